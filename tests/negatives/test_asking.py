"""The prompts of a run on their way to the engine, without one."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.config import ClusterConfig, LeaseLost
from raycomp.data.files import Folder
from raycomp.data.parquet import write_table
from raycomp.negatives import ask
from raycomp.negatives.ask import (
    ASKED_SCHEMA,
    ERROR,
    REPLIES_SCHEMA,
    REPLY,
    compact_replies,
    read_replies,
    write_replies,
)
from raycomp.negatives.captions import list_parquet
from raycomp.negatives.config import LlmConfig, NegativesConfig, WritingConfig
from raycomp.words import KEY


def test_prompts_are_found_once_and_read_without_what_was_answered_since(tmp_path, monkeypatch):
    captions = pa.table({"uid": ["0" * 32, "1" * 32], "caption": ["A dog on a mat.", "A red car"]})
    pq.write_table(captions, tmp_path / "captions.parquet")
    (source,) = list_parquet(str(tmp_path / "captions.parquet"))
    config = NegativesConfig(
        negatives=WritingConfig(engine="http"),
        llm=LlmConfig(url="http://nowhere/v1"),
        cluster=ClusterConfig(block_rows=4),
    )
    folders = {"replies_uri": str(tmp_path / "replies"), "prompts_uri": str(tmp_path / "prompts")}
    assert ask.write_prompts(source, config, **folders) == 6
    monkeypatch.delattr(ask, "list_prompts")
    first, second = (table.to_pylist() for table in ask.load_prompts(0, **folders))
    assert [len(first), len(second)] == [4, 2]
    answered = pa.table({KEY: [first[1][KEY]], REPLY: ["yes"], ERROR: pa.nulls(1, pa.string())})
    write_table(answered, str(tmp_path / "replies/00000/a-1.parquet"), REPLIES_SCHEMA)
    left = pa.concat_tables(ask.load_prompts(0, **folders)).to_pylist()
    assert left == [first[0], *first[2:], *second]


def test_replies_become_one_file_and_say_the_same(tmp_path):
    """Also where it was broken off before the small files were gone; a failed prompt keeps its last error."""
    uri = str(tmp_path)
    blocks = [
        [("a", "one", None), ("b", None, "too long")],
        [("b", "two", None), ("c", None, "lost")],
        [("c", None, "lost again"), ("d", "four", None)],
    ]
    for block in blocks:
        columns = [*map(pa.array, zip(*block, strict=True)), pa.array([False] * 2), pa.array([3] * 2)]
        names = [field.name for field in ASKED_SCHEMA]
        write_replies(pa.table(columns, names=names).cast(ASKED_SCHEMA), uri)
    folder = Folder(str(tmp_path / "00003"))
    small = {name: folder.read_bytes(name) for name in folder.list_names()}
    assert len(small) == 3
    before = read_replies(uri, 3)
    assert before == {"a": "one", "b": "two", "d": "four"}
    compact_replies(uri, 3)
    (name,) = folder.list_names()
    rows = pq.read_table(folder.at(name)).to_pylist()
    assert [row[KEY] for row in rows] == ["a", "b", "c", "d"] and rows[2][ERROR].startswith("lost")
    assert [row[ERROR] is None for row in rows] == [True, True, False, True]
    assert read_replies(uri, 3) == before
    for left, data in list(small.items())[:2]:
        folder.write_bytes(data, left)
    assert read_replies(uri, 3) == before
    compact_replies(uri, 3)
    compact_replies(uri, 3)
    assert folder.list_names() == [name] and read_replies(uri, 3) == before
    compact_replies(uri, 4)


def test_prompts_are_not_written_into_a_folder_that_another_run_holds(tmp_path, monkeypatch):
    def refuse() -> None:
        raise LeaseLost("another run's")

    monkeypatch.setattr(ask, "map_tasks", lambda *args, **settings: pytest.fail("prompts are written"))
    job = SimpleNamespace(
        config=NegativesConfig(),
        work=Folder(str(tmp_path)),
        sources=[],
        replies_uri="",
        lease=SimpleNamespace(check=refuse),
    )
    with pytest.raises(LeaseLost):
        ask.ask_all(job)
