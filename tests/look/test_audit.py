"""The audit finds what was planted, and the option that it prints drops exactly the rows that it counts."""

import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageFilter

import raycomp
from raycomp.config import override_all
from raycomp.curation.config import CurateConfig
from raycomp.data.samples import write_tar
from raycomp.look.audit import find_phrases, list_checks
from raycomp.look.config import AuditConfig
from raycomp.table import read_csv
from tests.corpus import scenes

NUM = 60
NOISE = np.random.default_rng(0).integers(0, 256, (128, 128, 3), np.uint8)


def encode(image: Image.Image) -> dict[str, bytes]:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return {"png": buffer.getvalue()}


def plant() -> list[dict[str, bytes]]:
    """Return scenes, and after them one sample for each oddity, or two."""
    noise = Image.fromarray(NOISE)
    grey = noise.convert("L").convert("RGB")
    odd = [
        (encode(Image.new("RGB", (128, 128), (5, 5, 5))), "a night without a moon"),
        (encode(Image.fromarray(NOISE // 16)), "a dark room of the house"),
        (encode(Image.fromarray(255 - NOISE // 32)), "snow in the bright sun"),
        (encode(Image.new("RGB", (128, 128), (200, 40, 40))), "a red wall without a door"),
        (encode(noise.filter(ImageFilter.GaussianBlur(12))), "a car behind wet glass"),
        (encode(grey), "an old film of a street"),
        (encode(noise.resize((40, 40))), "<script>alert(1)</script> it's a 'test'"),
        (encode(noise.resize((640, 128))), "a panorama of the hills"),
        (encode(noise), "a field of coloured dots"),
        (encode(noise), "the same picture once more"),
        (encode(noise.rotate(90)), "A night, without a MOON!"),
        (encode(noise.rotate(180)), "sunset"),
        (encode(noise.transpose(Image.Transpose.FLIP_LEFT_RIGHT)), "a word " * 100),
        (encode(noise.crop((0, 0, 120, 128))), "ein kleiner Hund sitzt auf der gruenen Wiese vor dem Haus"),
        ({"jpg": b"no picture"}, "a picture that is broken"),
    ]
    samples = scenes(NUM, seed=4)
    for i in range(12):
        samples[i]["txt"] += b" - it's stock photo, free download here"
    return [*samples, *({**image, "txt": text.encode()} for image, text in odd)]


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    samples = plant()
    for shard in range(2):
        rows = [(f"{i:03d}", samples[i]) for i in range(shard, len(samples), 2)]
        write_tar(str(folder / f"in/{shard}.tar"), rows)
    return folder


@pytest.fixture(scope="module")
def audited(planted, tiny_scorer) -> Path:
    raycomp.audit(AuditConfig(input=str(planted / "in"), scorer=tiny_scorer), planted / "out")
    return planted / "out"


@pytest.fixture(scope="module")
def scored(planted, tiny_scorer) -> Path:
    config = CurateConfig(input=str(planted / "in"), scorer=tiny_scorer, materialize=False)
    raycomp.curate(override_all(config, {"max_bad_fraction": 0.5, "attribute.pool": 1.0}), planted / "scored")
    return planted / "scored"


def read(folder: Path, name: str) -> dict[str, dict]:
    tables = [pq.read_table(path) for path in sorted((folder / name).glob("*.parquet"))]
    return {row["uid"]: row for table in tables for row in table.to_pylist()}


def findings(audited: Path) -> dict[str, dict[str, str]]:
    return {row["check"]: row for row in read_csv((audited / "findings.csv").read_text())}


def test_what_was_planted_is_found(audited):
    found = {name: int(row["rows"]) for name, row in findings(audited).items()}
    record, page = raycomp.open(audited).record, (audited / "report.html").read_text()
    (warning,) = record["warnings"]
    assert warning.endswith("such as 0.tar/074; left out")
    assert '<td data-head="the first ten">0.tar/074' in page
    assert "<script>alert(1)" not in page and "&lt;script&gt;alert(1)" in page
    funnel = record["funnel"]
    assert funnel["read"] == NUM + 15 and funnel["dropped"]["corrupt_image"] == 1
    assert funnel["kept"] + funnel["dropped"]["odd"] == NUM + 14
    exact = {"dark pictures": 2, "images that repeat, byte by byte": 1}
    names = "bright pictures,small pictures,long pictures,short captions,long captions"
    exact |= dict.fromkeys(names.split(","), 1)
    assert {name: found[name] for name in exact} == exact
    least = {"pictures of one colour": 2, "grey pictures": 2, "blurred pictures": 1}
    least |= {"captions that repeat": 1, "captions not in en": 1}
    assert all(found[name] >= number for name, number in least.items())
    assert any(name.startswith("phrase: ") and "stock photo" in name for name in found)


def test_the_rows_are_those_of_curate(audited, scored):
    ours, theirs = read(audited, "rows"), read(scored, "scores")
    assert {*ours} == {*theirs}
    for uid, row in ours.items():
        assert row == {**{name: theirs[uid][name] for name in row}, "status": row["status"]}


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_the_option_drops_exactly_the_rows_that_were_counted(audited, scored, tmp_path, step):
    """Every fourth check, and all of them at night, by select on a curation of the same data."""
    for i, (name, row) in enumerate(list(findings(audited).items())[::step]):
        path, _, value = row["option"].partition("=")
        settings = {path: value, "materialize": False}
        run = raycomp.select(scored, settings, tmp_path / str(i))
        dropped = run["funnel"]["dropped"]
        lost = sum(dropped.get(reason, 0) for reason in ("filtered", "filter_null", "near_duplicate"))
        assert lost == int(row["rows"]), name


def test_phrases_are_the_longest_that_are_frequent():
    captions = [f"thing {i} click here to enlarge" for i in range(20)] + [f"one {i}" for i in range(20)]
    assert find_phrases(captions, 0.01, 5) == ["click here to enlarge"]
    assert find_phrases(captions, 0.9, 5) == [] and find_phrases([], 0.01, 5) == []
    assert list_checks(AuditConfig(), None, ["it's"])[-1].where == "NOT contains(lower(caption), 'it''s')"
    assert [one.rule for one in list_checks(AuditConfig(), None, [])].count(None) == 9
