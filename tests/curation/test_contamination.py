"""Decontamination: planted copies of test images and texts are found, other photos are not."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

import raycomp
from bench.decontaminate import COPIES, encode
from raycomp.cli import USER_ERROR, main
from raycomp.data.samples import write_tar
from raycomp.words import CONTAMINATED, CONTAMINATED_BY
from tests.corpus import by_cpi, mean_drop

NUM = 12


def name_copy(how: str) -> str:
    return how.replace(" ", "-").replace("%", "p").replace(",", "")


@pytest.fixture(scope="module")
def photos(shared) -> list[tuple[str, Image.Image, list[str]]]:
    folder = shared / "data/flickr8k_800"
    lines = [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()[: 3 * NUM]]
    return [
        (row["image"], Image.open(folder / "images" / row["image"]).convert("RGB"), row["captions"])
        for row in lines
    ]


@pytest.fixture(scope="module")
def index(photos, tmp_path_factory) -> Path:
    """An index of the first photos as a retrieval set."""
    folder = tmp_path_factory.mktemp("index")
    (folder / "test").mkdir()
    lines = []
    for i, (_, image, captions) in enumerate(photos[:NUM]):
        (folder / f"test/test-{i}.jpg").write_bytes(encode(image, 90))
        lines.append(json.dumps({"image": f"test-{i}.jpg", "captions": captions}))
    (folder / "test/captions.jsonl").write_text("\n".join(lines))
    sets = ["benchmarks=retrieval", f"retrieval.input={folder / 'test'}", "cluster.executor=local"]
    arguments = [text for one in sets for text in ("--set", one)]
    assert main(["index-eval", *arguments, "--out", str(folder / "index")]) == 0
    return folder / "index"


@pytest.fixture(scope="module")
def corpus(photos, tmp_path_factory) -> Path:
    """Copies of the test images with other captions, other photos, and test captions with other photos."""
    samples = {}
    for how, make in COPIES.items():
        for i, (_, image, _) in enumerate(photos[:NUM]):
            samples[f"{name_copy(how)}/{i}"] = {"jpg": make(image), "txt": f"copy number {i}".encode()}
    for i, (name, image, captions) in enumerate(photos[NUM:]):
        text = photos[i][2][1].upper() if i < 3 else captions[0]
        key = f"other/{i}-{name.partition('.')[0]}x"
        samples[key] = {"jpg": encode(image), "txt": text.encode()}
    folder = tmp_path_factory.mktemp("corpus")
    write_tar(str(folder / "0.tar"), samples.items())
    return folder


def curate(corpus: Path, out: Path, scorer: object, **settings: object) -> dict:
    config = by_cpi(input=str(corpus), scorer=scorer, attribute=mean_drop(pool=1.0))
    return raycomp.curate(raycomp.override_all(config, settings), out)


@pytest.fixture(scope="module")
def plain(corpus, tmp_path_factory, tiny_scorer) -> tuple[Path, dict]:
    """A curation without an index, and its record."""
    out = tmp_path_factory.mktemp("plain") / "out"
    return out, curate(corpus, out, tiny_scorer)


def test_planted_copies_are_found_and_other_photos_are_not(index, corpus, plain, tmp_path, tiny_scorer):
    """Select finds the same; action=flag drops nothing."""
    option = {"decontaminate.index": str(index)}
    run = curate(corpus, tmp_path / "out", tiny_scorer, **option)
    scores = pq.read_table(tmp_path / "out/scores/00000.parquet", columns=["key", "uid"]).to_pylist()
    marks = {row["uid"]: row for row in pq.read_table(tmp_path / "out/marks/00000.parquet").to_pylist()}
    evidence = {row["key"]: marks[row["uid"]][CONTAMINATED_BY] or [] for row in scores}
    found = {name_copy(how): 0 for how in COPIES}
    for key, hits in evidence.items():
        how, _, rest = key.partition("/")
        if how in found:
            i = rest.partition("-")[0]
            found[how] += any(hit["row"].endswith(f"test-{i}.jpg") for hit in hits)
            assert {Path(hit["row"]).name for hit in hits} <= {f"test-{i}.jpg"}, "no other test image"
    assert found["itself"] == found["quality-30"] == found["half-size"] == found["mirror"] == NUM
    assert min(found.values()) >= 0.9 * NUM
    others = {key: hits for key, hits in evidence.items() if key.startswith("other/")}
    by_text = [key for key, hits in others.items() if hits]
    assert by_text == [*others][:3], "those with a caption of a test image"
    assert {hit["evidence"] for key in by_text for hit in others[key]} <= {"same text", "8 words in a row"}
    dropped = run["funnel"]["dropped"][CONTAMINATED]
    assert dropped == sum(found.values()) + 3
    page = (tmp_path / "out/report.html").read_text()
    assert "are not contaminated (the corpus)" in page and "left out" not in page
    assert len(run["warnings"]) == 1  # random weights
    own = pq.read_table(tmp_path / "out/marks/00000.parquet")[CONTAMINATED_BY]
    flag = {"decontaminate.action": "flag"}
    for name, settings, wanted in (("chosen", option, run), ("flagged", option | flag, plain[1])):
        assert raycomp.select(plain[0], settings, tmp_path / name)["funnel"] == wanted["funnel"]
        assert pq.read_table(tmp_path / name / "marks/00000.parquet")[CONTAMINATED_BY].equals(own)


def test_without_the_input_hashes_count_unconfirmed(index, corpus, tmp_path, tiny_scorer):
    (tmp_path / "in").symlink_to(corpus)
    curate(tmp_path / "in", tmp_path / "plain", tiny_scorer)
    (tmp_path / "in").unlink()
    settings = {"decontaminate.index": str(index), "materialize": False}
    raycomp.select(tmp_path / "plain", settings, tmp_path / "chosen")
    marks = pq.read_table(tmp_path / "chosen/marks/00000.parquet").to_pylist()
    evidence = {hit["evidence"] for row in marks for hit in row[CONTAMINATED_BY] or []}
    assert any(one.endswith("not confirmed") for one in evidence)
    assert not any("looks like" in one for one in evidence)


def test_a_folder_that_is_no_index_is_refused(plain, tmp_path, capsys):
    for index, said in ((plain[0], "holds curate, must be an index"), ("nowhere", "nowhere")):
        sets = ["--set", f"decontaminate.index={index}", "--set", "cluster.executor=local"]
        assert main(["select", str(plain[0]), *sets, "--out", str(tmp_path / "out")]) == USER_ERROR
        error = capsys.readouterr().err
        assert "raycomp: decontaminate.index=" in error and said in error
