"""The prompts of a run on their way to the engine, without one."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.cluster.negatives import asking
from raycomp.config import ClusterConfig, LeaseLost, LlmConfig, NegativesConfig, WritingConfig
from raycomp.loops.negatives.captions import list_parquet
from raycomp.loops.negatives.replies import ERROR, REPLIES_SCHEMA, REPLY
from raycomp.shards.folder import Folder
from raycomp.shards.parquet import write_table
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
    assert asking.write_prompts(source, config, **folders) == 6
    monkeypatch.delattr(asking, "find_prompts")
    first, second = (table.to_pylist() for table in asking.load_prompts(0, **folders))
    assert [len(first), len(second)] == [4, 2]
    answered = pa.table({KEY: [first[1][KEY]], REPLY: ["yes"], ERROR: pa.nulls(1, pa.string())})
    write_table(answered, str(tmp_path / "replies/00000/a-1.parquet"), REPLIES_SCHEMA)
    left = pa.concat_tables(asking.load_prompts(0, **folders)).to_pylist()
    assert left == [first[0], *first[2:], *second]


def test_prompts_are_not_written_into_a_folder_that_another_run_holds(tmp_path, monkeypatch):
    def refuse() -> None:
        raise LeaseLost("another run's")

    monkeypatch.setattr(asking, "map_tasks", lambda *args, **settings: pytest.fail("prompts are written"))
    job = SimpleNamespace(
        config=NegativesConfig(),
        work=Folder(str(tmp_path)),
        sources=[],
        replies_uri="",
        lease=SimpleNamespace(check=refuse),
    )
    with pytest.raises(LeaseLost):
        asking.ask_all(job)
