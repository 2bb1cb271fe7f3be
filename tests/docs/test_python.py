"""Every snippet of docs/python.md runs, in order, with a tiny model in the place of the one that it names."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import raycomp
from raycomp.data.samples import find_image
from tests.corpus import scenes, write_world_shards
from tests.docs.documents import ROOT, list_blocks

PAGE = ROOT / "docs/python.md"


def test_every_snippet_runs(tiny_scorer, tmp_path, monkeypatch, capsys):
    write_world_shards(tmp_path / "shards", 40, 40)
    (tmp_path / "photos").mkdir()
    for i, members in enumerate(scenes(12, seed=1)):
        (tmp_path / "photos" / f"{i:02d}.jpg").write_bytes(members[find_image(members)])
        (tmp_path / "photos" / f"{i:02d}.txt").write_bytes(members["txt"])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    snippets = [block.text for block in list_blocks(PAGE) if block.language == "python"]
    for snippet in snippets:
        tiny = snippet.replace('"ViT-B-16"', repr(tiny_scorer.model)).replace('"openai"', '"random:0"')
        exec(compile(tiny, str(PAGE), "exec"), names)
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
