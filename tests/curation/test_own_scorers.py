"""Scorers of the user's own: columns in the pass that computes alignment."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.cli import USER_ERROR, main
from raycomp.curation.score.columns import ROWS, OwnScorers
from raycomp.data.samples import write_tar
from tests.corpus import by_cpi, mean_drop, scenes

CODE = """
import numpy as np


class Cosine:
    columns = {"own_cosine": "float32", "is_high": "bool"}
    needs = ("image_embeddings", "text_embeddings")

    def __call__(self, image_embeddings, text_embeddings):
        assert len(image_embeddings) == len(text_embeddings) == 32
        cosine = (image_embeddings * text_embeddings).sum(axis=1)
        return {"own_cosine": cosine, "is_high": cosine > 0}


class Look:
    columns = {"mean_pixel": "float64", "letters": "int64", "first": "string", "maybe": "float32"}
    needs = ("pixels", "captions")

    def __call__(self, pixels, captions):
        return {
            "mean_pixel": pixels.mean(axis=(1, 2, 3)),
            "letters": [len(caption) for caption in captions],
            "first": [caption.split()[0] if "red" in caption else None for caption in captions],
            "maybe": np.where(pixels.mean(axis=(1, 2, 3)) > 128, 1.0, np.nan),
        }


class Fails(Cosine):
    def __call__(self, **arrays):
        raise KeyError("nothing here")


def change(**members):
    return type("Changed", (Cosine,), members)


def give(cosine, **others):
    return change(__call__=lambda self, **arrays: {"own_cosine": cosine, **others})


Short, Other = give([1.0] * 3, is_high=[True] * 32), give([1.0] * 32)
Words = give(["high"] * 32, is_high=[True] * 32)
Bare, Needy = change(columns=None), change(needs=("image",))
Named, Taken = change(columns={"own cosine": "float32"}), change(columns={"alignment": "float32"})
no_class = 3
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.py").write_text(CODE)
    samples = scenes(50, seed=2)
    samples[7] = {"jpg": b"no picture", "txt": b"a red cube"}
    for shard in range(2):
        rows = [(f"{i:03d}", samples[i]) for i in range(shard * 25, shard * 25 + 25)]
        write_tar(str(folder / f"in/{shard}.tar"), rows)
    return folder


@pytest.fixture(scope="module")
def scored(place, tiny_scorer) -> Path:
    names = (f"{place}/own.py:Cosine", f"{place}/own.py:Look")
    options = {"scorer": tiny_scorer, "attribute": mean_drop(pool=1.0)}
    raycomp.curate(by_cpi(input=str(place / "in"), scorers=names, **options), place / "out")
    raycomp.curate(by_cpi(input=str(place / "in"), **options), place / "without")
    return place / "out"


def read(out: Path) -> list[dict]:
    return [row for path in sorted((out / "scores").iterdir()) for row in pq.read_table(path).to_pylist()]


def test_the_columns_are_those_of_a_plain_loop_and_others_stay_the_same_to_the_byte(scored, place):
    for row in read(scored):
        if row["alignment"] is None:
            assert row["key"] == "007"
            assert row["own_cosine"] is row["is_high"] is row["mean_pixel"] is row["first"] is None
            continue
        assert row["own_cosine"] == pytest.approx(row["alignment"], abs=1e-6)
        assert row["is_high"] == (row["own_cosine"] > 0)
        assert row["letters"] == len(row["caption"])
        assert row["first"] == (row["caption"].split()[0] if "red" in row["caption"] else None)
        assert row["maybe"] == (1.0 if row["mean_pixel"] > 128 else None)
    for path in sorted((place / "without/scores").iterdir()):
        table = pq.read_table(path)
        assert pq.read_table(scored / "scores" / path.name).select(table.column_names).equals(table)


def test_select_filters_by_them_without_the_file_and_a_changed_file_is_another_run(scored, place, tmp_path):
    file = (place / "own.py").rename(place / "moved.py")
    try:
        run = raycomp.select(scored, {"filter.where": "letters > 40 AND is_high"}, tmp_path / "out")
        (place / "own.py").write_text(CODE + "# changed\n")
        with pytest.raises(ValueError, match="differs in scorers"):
            raycomp.curate(raycomp.open(scored).config, scored)
    finally:
        file.rename(place / "own.py")
    rows = [row for row in read(scored) if row["alignment"] is not None]
    assert run["funnel"]["corpus"] == sum(row["letters"] > 40 and row["is_high"] for row in rows)


def test_a_value_depends_on_its_row_alone(place):
    rng = np.random.default_rng(0)
    vector = rng.normal(size=(75, 64)).astype(np.float32)
    own = OwnScorers([f"{place}/own.py:Cosine"])
    whole = own({"image_embeddings": vector, "text_embeddings": vector[::-1]}, np.ones(75, bool))
    for start, end in ((0, 1), (10, 60), (74, 75)):
        part = {"image_embeddings": vector[start:end], "text_embeddings": vector[::-1][start:end]}
        found = own(part, np.ones(end - start, bool))["own_cosine"]
        assert found.equals(whole["own_cosine"].slice(start, end - start))
    none = own({"image_embeddings": vector[:0], "text_embeddings": vector[:0]}, np.zeros(3, bool))
    assert none["is_high"].to_pylist() == [None] * 3 and ROWS == 32


def test_refusals(place, tiny_scorer, tmp_path, capsys):
    own = f"{place}/own.py"
    for number, (scorers, said) in enumerate(
        [
            (f"{own}:Fails", "KeyError: 'nothing here'"),
            (f"{own}:Short", "column own_cosine must have 32 values, one a row, has 3"),
            (f"{own}:Other", "must return a dict of own_cosine, is_high, returned own_cosine"),
            (f"{own}:Words", "column own_cosine must be float32"),
            (f"{own}:Bare", "its attribute columns must be"),
            (f"{own}:Needy", "its attribute needs must be a tuple of pixels"),
            (f"{own}:Named", "names in columns must be letters"),
            (f"{own}:Taken", "column 'alignment': must be new names"),
            (f"{own}:no_class", "the file defines no such class"),
            (f"{own}:Cosine,{own}:Cosine", "must be new names, each once"),
        ]
    ):
        options = [f"input={place}/in", f"scorers={scorers}", f"scorer.model={tiny_scorer.model}"]
        sets = [f"--set={one}" for one in (*options, f"scorer.weights={tiny_scorer.weights}")]
        assert main(["curate", *sets, "--out", str(tmp_path / f"{number}")]) == USER_ERROR, scorers
        error = capsys.readouterr().err
        assert error.startswith("raycomp: scorers=") and said in error and error.count("\n") == 1, error
