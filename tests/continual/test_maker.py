"""Streams that a user's code makes, and the edits that rows of a stream may have."""

import json
import shutil

import pytest

from raycomp.config import ModelConfig, UserError
from raycomp.continual.method import find_maker, find_variant
from raycomp.continual.streams.build import read_stream
from raycomp.continual.streams.samples import MadeVariant
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar
from tests.continual.test_stream_leaks import find, task, write

MAKERS = """
from pathlib import Path

from raycomp.config import ModelConfig
from raycomp.continual.method import MadeStream, StreamMaker


def draw(folder, variant, seed):
    Path(folder, "tasks.json").write_text(f"{variant} {seed}")
    Path(folder).with_name("shared.txt").write_text("")
    return MadeStream(f"{folder}/tasks.json", ModelConfig(weights=f"random:{variant}"), f"{folder}/../shared")


def fail(folder, variant, seed):
    return 1 / variant


drawn = StreamMaker(draw, variants=3)
failing = StreamMaker(fail)
other = StreamMaker(lambda folder, variant, seed: folder)
many = StreamMaker(draw, variants=1000)
"""


@pytest.fixture
def makers(tmp_path) -> str:
    (tmp_path / "makers.py").write_text(MAKERS)
    return f"{tmp_path}/makers.py"


def test_a_variant_is_made_in_an_empty_folder_and_found_where_it_is_moved(makers, tmp_path):
    first = MadeVariant(f"{makers}:drawn", 2, f"{tmp_path}/streams", "made-drawn-02")
    (tmp_path / "streams/made-drawn-02").mkdir(parents=True)
    (tmp_path / "streams/made-drawn-02/half").write_text("left by a run that was killed")
    assert not first.is_made
    first.make(seed=7)
    assert first.is_made and not (tmp_path / "streams/made-drawn-02/half").exists()
    shutil.move(tmp_path / "streams", tmp_path / "moved")
    moved = MadeVariant(first.stream, 2, f"{tmp_path}/moved", first.name).read()
    assert moved.file == f"{tmp_path}/moved/made-drawn-02/tasks.json"
    assert (tmp_path / "moved/made-drawn-02/tasks.json").read_text() == "2 7"
    assert moved.model == ModelConfig(weights="random:2")
    assert moved.reference == f"{tmp_path}/moved/made-drawn-02/../shared"


def test_seeds_take_variants_in_turn(makers):
    assert [find_variant(f"{makers}:drawn", seed) for seed in range(5)] == [0, 1, 2, 0, 1]
    assert find_variant("tasks.json", 4) == 0


def test_a_maker_that_cannot_be_used_is_reported_in_a_line(makers, tmp_path):
    for name, said in (
        ("failing", r"stream=.*failing: ZeroDivisionError: .*makers.py, line 15"),
        ("other", r"stream=.*other: must return MadeStream, returned '"),
    ):
        with pytest.raises(UserError, match=said):
            MadeVariant(f"{makers}:{name}", 0, str(tmp_path), "made").make(0)
    for name, said in (("draw", "must name a StreamMaker"), ("many", "variants=1000: must be between 1 and")):
        with pytest.raises(ValueError, match=said):
            find_maker(f"{makers}:{name}")


def test_edits_of_test_rows_become_arrays_and_bad_ones_drop_the_row(tmp_path):
    edit = {"text": "a blue cube", "primitives": ["blue cube"], "category": "REPLACE attribute"}
    edits = [[edit], [], [edit, {**edit, "text": "a red ball", "primitives": ["red ball"]}]]
    edits += [[{**edit, "text": "a cube 3"}], [{**edit, "primitives": []}], [{"text": "a blue cube"}]]
    for half in ("train", "test"):
        rows = [
            {
                "jpg": f"{half} {i}".encode(),
                "txt": f"a cube {i}".encode(),
                "json": json.dumps({"primitives": ["cube"], "edits": some}).encode(),
            }
            for i, some in enumerate(edits)
        ]
        (tmp_path / half).mkdir()
        write_tar(str(tmp_path / half / "0.tar"), [(f"{i}", row) for i, row in enumerate(rows)])
    stream = {"tasks": [task("a", "train", "test")]}
    found = find(tmp_path, stream, max_bad_fraction=0.6)
    write(found, Folder(str(tmp_path / "out")), "warn")
    (made,) = read_stream(Folder(str(tmp_path / "out")), with_pixels=False).tasks
    assert len(made.test) == 3 and made.edits is not None
    assert made.edits.split.texts == ("a blue cube", "a red ball")
    assert made.edits.split.primitives == (("blue cube",), ("red ball",))
    assert made.edits.row_M.tolist() == [0, 2, 2] and made.edits.text_M.tolist() == [0, 0, 1]
