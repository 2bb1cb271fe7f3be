"""Every snippet of docs/python.md runs, in order, with a tiny model in the place of the one that it names."""

import re
from pathlib import Path

import pytest

import raycomp
from raycomp.data.tar import find_image
from tests.corpus import scenes, write_world_shards

PAGE = Path(__file__).parents[1] / "docs/python.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_every_snippet_runs(tiny_scorer, tmp_path, monkeypatch, capsys):
    write_world_shards(tmp_path / "shards", 40, 40)
    (tmp_path / "photos").mkdir()
    for i, members in enumerate(scenes(12, seed=1)):
        (tmp_path / "photos" / f"{i:02d}.jpg").write_bytes(members[find_image(members)])
        (tmp_path / "photos" / f"{i:02d}.txt").write_bytes(members["txt"])
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for snippet in SNIPPETS:
        assert '"ViT-B-16"' not in snippet or '"openai"' in snippet
        tiny = snippet.replace('"ViT-B-16"', repr(tiny_scorer.model)).replace('"openai"', '"random:0"')
        exec(compile(tiny, str(PAGE), "exec"), names)
    assert len(SNIPPETS) > 8
    assert set(names["scores"]["status"].to_pylist()) == {"ok"} and len(names["scores"]) == 10
    assert len(names["negatives"]) > 20 and set(names["unranked"]["op"].to_pylist()) <= {
        "SWAP",
        "REPLACE",
        "ADD",
    }
    assert [
        value is not None for value in raycomp.open("out/trained").table()["logit_scale"].to_pylist()
    ] == [
        False,
        True,
        False,
        True,
    ]
    assert "kept: yes" in capsys.readouterr().out
    found = by_files(tmp_path, names["images"], names["captions"])
    assert found.equals(names["again"])
    with pytest.raises(ValueError, match="holds a model with its weights; leave weights out"):
        raycomp.score([], [], model="out/trained", weights="openai")


def by_files(folder: Path, images: list[Path], captions: list[str]):
    """Return the scores by the files of a training, named one by one."""
    model, weights = (
        folder / "out/trained/checkpoint" / name for name in ("model.json", "model.safetensors")
    )
    return raycomp.score(images, captions, model=model, weights=weights)
