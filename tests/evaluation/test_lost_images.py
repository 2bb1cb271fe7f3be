"""Images that an evaluation loses: said for every exam, refused beyond a share; figures say of how many."""

import json

import numpy as np

from raycomp.config import TooMuchBadData, override_all
from raycomp.data.samples import write_tar
from raycomp.evaluation.classification import open_linear_probe
from raycomp.evaluation.compare import compare_tables
from raycomp.evaluation.config import EvaluateConfig, LinearProbeConfig, RetrievalConfig
from raycomp.evaluation.embed import check_images
from raycomp.evaluation.results import compute_outcomes, make_lines, report_lines
from raycomp.evaluation.retrieval import open_retrieval
from tests.drawn import world_shards
from tests.evaluation.embedded import embed, invent
from tests.evaluation.test_choice_evaluation import make_choices, make_evaluation


def check(evaluation, pictures, **limits) -> list[str]:
    """Return what is said of one exam."""
    said: list[str] = []
    config = override_all(EvaluateConfig(), limits)
    try:
        assert check_images([evaluation], pictures, config, said.append) == said
    except TooMuchBadData as error:
        said.append(str(error))
    return said


def test_retrieval_over_the_few_images_that_are_left_is_refused(tmp_path):
    """200 images of which 120 are missing and 60 undecodable: 20 are left, which are easier to tell apart."""
    rows = [{"image": f"{i:03d}.jpg", "captions": [f"text {i}"]} for i in range(200)]
    for i in range(120, 200):
        (tmp_path / f"{i:03d}.jpg").write_bytes(b"x")
    (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    evaluation = open_retrieval(RetrievalConfig(str(tmp_path)))
    pictures, texts = invent(evaluation, bad=[f"{i:03d}.jpg" for i in range(120, 180)])
    lines = [
        f"retrieval: {count} of 200 images are {status}; left out"
        for count, status in (
            (60, "corrupt_image (the image bytes do not decode), such as 120.jpg"),
            (120, "no_image (there is no image), such as 000.jpg"),
        )
    ]
    *said, error = check(evaluation, pictures)
    assert said == lines
    assert error.startswith("retrieval: 75.0% of 80 present images cannot be used (60 corrupt_image)")
    assert "max_bad_fraction=0.05" in error
    error = check(evaluation, pictures, max_bad_fraction=0.8, max_missing_fraction=0.5)[-1]
    assert "60.0% of 200 images" in error and "max_missing_fraction=0.5" in error
    assert check(evaluation, pictures, max_bad_fraction=0.8) == lines
    found = make_lines("retrieval", compute_outcomes(evaluation.grade(pictures, texts)))
    assert {(line.n, line.num_all) for line in found} == {(20, 200)}
    assert all(row[2:4] == [20, 200] for table in report_lines(found) for row in table.rows)


def test_samples_of_shards_are_counted_by_what_they_lack(tmp_path, tiny_scorer):
    (samples,) = [shard for _, shard in world_shards(8, 0, 0, per_shard=8)]
    changes = [{"jpg": b"x"}, {"txt": b" "}, {"txt": b"\xff"}, {}]
    broken = [(key, {**own, **change}) for (key, own), change in zip(samples, changes, strict=False)]
    del broken[3][1]["jpg"]
    write_tar(str(tmp_path / "0.tar"), [*broken, *samples[4:]])
    evaluation = open_retrieval(RetrievalConfig(str(tmp_path)))
    pictures, _ = embed(evaluation, tiny_scorer)
    *said, error = check(evaluation, pictures)
    statuses = [line.split(" is ")[1].split()[0] for line in said]
    assert statuses == ["bad_encoding", "corrupt_image", "no_caption", "no_image"]
    assert "42.9% of 7 present images" in error


def test_classes_are_held_to_the_limit_on_both_sides_of_a_probe(tmp_path):
    for half, num in (("train", 10), ("test", 5)):
        for name in ("cat", "dog"):
            (tmp_path / half / name).mkdir(parents=True)
            for i in range(num):
                (tmp_path / half / name / f"{i}.jpg").write_bytes(b"x")
    probe = open_linear_probe(LinearProbeConfig(str(tmp_path / "train"), str(tmp_path / "test")))
    *said, error = check(probe, invent(probe, bad=["train/cat/3.jpg", "test/dog/4.jpg"])[0])
    assert [line.partition(" images")[0] for line in said] == [
        "linear_probe.train: 1 of 20",
        "linear_probe.test: 1 of 10",
    ]
    assert error.startswith("linear_probe.test: 10.0% of 10 present images")


def test_an_image_of_several_rows_is_counted_once():
    evaluation = make_evaluation(
        make_choices(8), ambiguous=("3.jpg",), uris={f"{i}.jpg": f"/{i}.jpg" for i in (0, 1)}
    )
    pictures, texts = invent(evaluation, bad=["/1.jpg"])
    assert [line.partition(" (")[0] for line in check(evaluation, pictures, max_bad_fraction=0.5)] == [
        "made: 1 of 4 images is ambiguous_image",
        "made: 1 of 4 images is corrupt_image",
        "made: 1 of 4 images is no_image",
    ]
    statuses = evaluation.grade(pictures, texts)["status"].to_pylist()
    assert statuses == [s for s in ("ok", "corrupt_image", "no_image", "ambiguous_image") for _ in (0, 1)]


def test_a_split_that_is_lost_stays_in_the_table_and_in_the_means():
    rows = make_choices(6) + [one._replace(image=f"x{one.image}") for one in make_choices(4, "swap_obj")]
    whole = make_evaluation(rows)
    some = make_evaluation(rows, uris={f"{i}.jpg": f"/pictures/{i}.jpg" for i in (0, 1)})
    table = some.grade(*invent(some))
    lines = {line.split: line for line in make_lines("made", compute_outcomes(table)) if not line.control}
    counts = {split: (line.n, line.num_all) for split, line in lines.items()}
    assert counts == {"swap_att": (4, 6), "swap_obj": (0, 4), "micro": (4, 10), "macro": (4, 10)}
    assert np.isnan(lines["swap_obj"].value) and lines["macro"].value == lines["swap_att"].value
    both = compare_tables("made", whole.grade(*invent(whole)), table)
    assert {line.split: (line.n, line.num_all) for line in both} == counts
