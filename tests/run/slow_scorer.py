"""A scorer that waits as long as a GPU would compute, and what a pool of such wrote."""

import hashlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from raycomp.config import ClusterConfig, WavesConfig
from raycomp.data.files import Folder, join_uri
from raycomp.data.parquet import write_table
from raycomp.run.executor import SCORERS, Part, Pass, Stage, connect, read_parts
from raycomp.run.progress import describe_phases
from raycomp.run.work import Phase
from raycomp.words import OK, POSITION, SHARD_ORDINAL, STATUS
from tests.run.test_ray_passes import Clock

NUM_SHARDS, ROWS, PER_CALL = 64, 32, 16
# What a call takes until enough scorers were seen, and after that.
SLOW_S, QUICK_S = 5.0, 0.01
SCHEMA = pa.schema([(POSITION, pa.int32()), ("score", pa.float64())])


def read(ordinal: int) -> Iterator[pa.Table]:
    for start in range(0, ROWS, PER_CALL):
        yield pa.table(
            {
                SHARD_ORDINAL: pa.array([ordinal] * PER_CALL, pa.int32()),
                POSITION: pa.array(range(start, start + PER_CALL), pa.int32()),
                STATUS: pa.array([OK] * PER_CALL),
            }
        )


class Slow:
    """A scorer that waits as a GPU would compute, until there is a mark not as long."""

    def __init__(self, num_threads: int | None, mark: str):
        self.device, self.mark = Clock(), Path(mark)

    def __call__(self, table: pa.Table) -> pa.Table:
        time.sleep(QUICK_S if self.mark.exists() else SLOW_S)
        rows = zip(table[SHARD_ORDINAL].to_pylist(), table[POSITION].to_pylist(), strict=True)
        return table.append_column("score", pa.array([hash(row) / 2**64 for row in rows]))


def merge(ordinal: int, parts_uri: str, names: list[str], target_uri: str) -> int:
    table = read_parts(parts_uri, names)
    write_table(table.select(SCHEMA.names), join_uri(target_uri, f"{ordinal:05d}.parquet"), SCHEMA)
    return len(table)


def score(config: ClusterConfig, out: Folder) -> dict:
    """Score all shards into ``out``; return what run.json would say of it."""
    with connect(config) as session:
        items = {ordinal: ordinal for ordinal in range(NUM_SHARDS)}
        stage = Stage("score", "waits", SCORERS, partial(Slow, mark=out.at("mark")))
        steps = Pass(session, items, read, (stage,), Part(SCHEMA), rows=PER_CALL, scorer_rows=PER_CALL)
        target = (out.at("scores"),)
        work = Folder(out.at("work"))
        phase = Phase("score", work, WavesConfig(shards_per_wave=4), steps, merge, target)
        stats = phase.run(dict.fromkeys(items, ROWS))
    return describe_phases({"score": stats})[0]


def digest(out: Folder) -> str:
    names = sorted(out.list_names("scores"))
    assert len(names) == NUM_SHARDS
    return hashlib.sha256(b"".join(out.read_bytes("scores", name) for name in names)).hexdigest()


def score_at_once(folder: Path) -> str:
    """Score with one scorer that never waits long; return the digest."""
    one = Folder(str(folder))
    one.write_bytes(b"", "mark")
    assert "growth" not in score(ClusterConfig(executor="ray", gpu=False), one)
    return digest(one)
