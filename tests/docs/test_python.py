"""Every snippet of docs/python.md and cell of the notebook runs, in order, with a tiny model."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import raycomp
from raycomp.data.samples import find_image
from tests.corpus import scenes, write_world_shards
from tests.docs.documents import ROOT, list_blocks

PAGE = ROOT / "docs/python.md"


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    """A folder with twelve photos, in the working folder."""
    (tmp_path / "photos").mkdir()
    for i, members in enumerate(scenes(12, seed=1)):
        (tmp_path / "photos" / f"{i:02d}.jpg").write_bytes(members[find_image(members)])
        (tmp_path / "photos" / f"{i:02d}.txt").write_bytes(members["txt"])
    monkeypatch.chdir(tmp_path)
    return tmp_path / "photos"


def run_code(snippets: list[str], model: str) -> dict[str, Any]:
    """Run snippets with this model; return the names that they leave."""
    names: dict[str, Any] = {}
    for snippet in snippets:
        tiny = snippet.replace('"ViT-B-16"', repr(model)).replace('"openai"', '"random:0"')
        exec(compile(tiny, snippet[:50], "exec"), names)
    return names


def test_every_cell_of_the_notebook_runs(tiny_scorer, photos, capsys):
    cells = json.loads((ROOT / "docs/notebook.ipynb").read_text())["cells"]
    names = run_code(
        ["".join(one["source"]) for one in cells if one["cell_type"] == "code"], tiny_scorer.model
    )
    assert (
        names["run"].kind == "curate" and len(names["kept"]) == 6 and "kept: yes" in capsys.readouterr().out
    )
    assert names["half"]["funnel"]["kept"] == 3 and len(names["negatives"]) > 6


def test_every_snippet_runs(tiny_scorer, photos, tmp_path, capsys):
    write_world_shards(tmp_path / "shards", 40, 40)
    snippets = [block.text for block in list_blocks(PAGE) if block.language == "python"]
    names = run_code(snippets, tiny_scorer.model)
    assert len(snippets) > 8 and "kept: yes" in capsys.readouterr().out
    assert names["scores"]["status"].to_pylist() == ["ok"] * 10
    assert {"SWAP", "REPLACE", "ADD"} == {*names["negatives"]["op"].to_pylist()}
    assert {*names["unranked"]["op"].to_pylist()} == {*names["negatives"]["op"].to_pylist()}
    scales = raycomp.open("out/trained").table()["logit_scale"].to_pylist()
    assert [scale is not None for scale in scales] == [False, True, False, True]
    assert names["again"].equals(score_by_files(tmp_path, names["images"], names["captions"]))
    assert not names["again"].equals(names["scores"])
    with pytest.raises(ValueError, match="holds a model with its weights; leave weights out"):
        raycomp.score([], [], model="out/trained", weights="openai")


def score_by_files(folder: Path, images: list[Path], captions: list[str]) -> pa.Table:
    """Return the scores by the files of the training, named one by one."""
    model, weights = (
        folder / "out/trained/checkpoint" / name for name in ("model.json", "model.safetensors")
    )
    return raycomp.score(images, captions, model=model, weights=weights)
