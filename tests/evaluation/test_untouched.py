"""Scores of all examples and of those that the training samples do not contain."""

import csv
import json
from pathlib import Path

import pytest

import raycomp
from bench.decontaminate import encode
from raycomp.cli import main
from raycomp.config import ScorerConfig
from raycomp.data.samples import write_tar
from tests.corpus import by_cpi, mean_drop
from tests.curation.test_contamination import photos  # noqa: F401, a fixture
from tests.drawn import WORLD, write_test_set

NUM, IMAGES, TEXT = 12, (0, 1, 2), 4


def write_set(folder: Path, photos: list, numbers: list[int]) -> str:  # noqa: F811
    """Write some photos with their captions as a retrieval set."""
    folder.mkdir()
    lines = []
    for i in numbers:
        (folder / f"{i}.jpg").write_bytes(encode(photos[i][1], 90))
        lines.append(json.dumps({"image": f"{i}.jpg", "captions": photos[i][2]}))
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return str(folder)


@pytest.fixture(scope="module")
def made(photos, tiny_scorer, tmp_path_factory) -> Path:  # noqa: F811
    """A test set, and a curation that kept three of its images and a caption of a fourth."""
    folder = tmp_path_factory.mktemp("untouched")
    test = write_set(folder / "test", photos, list(range(NUM)))
    kept = [(i, f"copy number {i}") for i in IMAGES] + [(NUM, photos[TEXT][2][0])]
    kept += [(i, f"photo number {i}") for i in range(NUM + 1, NUM + 9)]
    write_tar(
        str(folder / "0.tar"),
        [(f"{i}", {"jpg": encode(photos[i][1], 90), "txt": text.encode()}) for i, text in kept],
    )
    assert run("index-eval", folder / "index", None, benchmarks="retrieval", **{"retrieval.input": test}) == 0
    whole = {"align.keep": 1.0, "attribute.keep": 1.0, "cluster.executor": "local"}
    config = by_cpi(input=str(folder / "0.tar"), scorer=tiny_scorer, attribute=mean_drop(pool=1.0))
    raycomp.curate(raycomp.override_all(config, whole), folder / "plain")
    flag = {"decontaminate.index": str(folder / "index"), "decontaminate.action": "flag"}
    found = raycomp.select(folder / "plain", flag | {"cluster.executor": "local"}, folder / "flagged")
    assert found["funnel"]["kept"] == len(kept)
    return folder


def run(command: str, out: Path, model: object, **options: object) -> int:
    sets = options | {"cluster.executor": "local"}
    if isinstance(model, ScorerConfig):
        sets |= {"model.name": model.model, "model.weights": model.weights}
    elif model:
        sets |= {"model.weights": model}
    return main([command, *(f"--set={option}={value}" for option, value in sets.items()), f"--out={out}"])


def evaluate(made: Path, model: object, name: str, **options: object) -> tuple[int, Path]:
    sets = {"benchmarks": "retrieval", "retrieval.input": made / "test"}
    return run("evaluate", made / name, model, **(sets | options)), made / name


def test_untouched_examples_score_as_a_test_set_without_the_others(made, photos, tiny_scorer, capsys):  # noqa: F811
    code, out = evaluate(made, tiny_scorer, "scored", trained_on=made / "flagged")
    left = [i for i in range(NUM) if i not in (*IMAGES, TEXT)]
    assert code == 0 and f"on the {len(left)} of {NUM} untouched examples" in capsys.readouterr().out
    less = write_set(made / "less", photos, left)
    _, alone = evaluate(made, tiny_scorer, "alone", **{"retrieval.input": less})
    own = ("metric", "value", "n", "chance", "ties", "low", "high")
    files = (out / "untouched.csv", alone / "table.csv")
    untouched, expected = (list(csv.DictReader(file.read_text().splitlines())) for file in files)
    shown = [[[line[name] for name in own] for line in lines] for lines in (untouched, expected)]
    assert shown[0] == shown[1]
    assert {line["num_all"] for line in untouched} == {str(NUM), str(5 * NUM), str(6 * NUM)}
    assert not (alone / "untouched.csv").exists()
    assert "All examples and untouched ones" in (out / "report.html").read_text()
    record = json.loads((out / "run.json").read_text())
    assert record["fingerprint"]["trained_on"] and record["funnel"]["kept"] == NUM + 5 * NUM


def test_the_curation_is_known_from_the_training(made, photos, tiny_scorer, capsys):  # noqa: F811
    sets = {"input": made / "flagged", "train.steps": 1, "train.batch_size": 4}
    assert run("train", made / "trained", tiny_scorer, **sets) == 0
    code, out = evaluate(made, made / "trained", "by_training")
    assert code == 0 and (out / "untouched.csv").exists()
    (made / "index/texts.parquet").rename(made / "texts")
    code, lost = evaluate(made, made / "trained", "lost")
    (made / "texts").rename(made / "index/texts.parquet")
    assert code == 0 and not (lost / "untouched.csv").exists()
    assert "its files are missing; index again; touched examples are unknown" in capsys.readouterr().out


def test_what_has_no_untouched_score_is_said(made, photos, tiny_scorer, tmp_path):  # noqa: F811
    write_test_set(str(tmp_path), 4, 0)
    touched = write_set(made / "touched", photos, [*IMAGES, TEXT])
    for name, options, said in (
        ("lacks", {"benchmarks": WORLD, "own.annotations": tmp_path}, "its touched examples are unknown"),
        ("none", {"retrieval.input": touched}, "has no score of untouched examples"),
    ):
        code, out = evaluate(made, tiny_scorer, name, trained_on=made / "flagged", **options)
        assert code == 0 and said in " ".join(json.loads((out / "run.json").read_text())["warnings"]), name


def test_a_run_that_cannot_tell_is_refused(made, tiny_scorer, capsys):
    for place, said in {
        "plain": "its samples were not compared with test sets; select again with decontaminate.index",
        "index": "holds index-eval, must hold a curation or a selection",
    }.items():
        assert evaluate(made, tiny_scorer, f"refused-{place}", trained_on=made / place)[0] == 2
        error = capsys.readouterr().err
        assert said in error and error.startswith("raycomp: trained_on="), place
