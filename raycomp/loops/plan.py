"""What a curation will cost, measured on a part of one shard in this process; nothing is written."""

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.config import CurateConfig
from raycomp.loops.align import Align
from raycomp.loops.attribute import Attribute, parse
from raycomp.loops.prepare import prepare
from raycomp.models.clip import describe_scorer
from raycomp.schema import OK, STATUS
from raycomp.shards.embeddings import check_embeddings
from raycomp.shards.inputs import expand_input
from raycomp.shards.paths import ShardPath, fingerprint_shards
from raycomp.shards.reader import read_shard

NUM_ROWS = 256
_BLOCK_ROWS = 64
_BYTES = {"float32": 4, "float16": 2}
# A row of scores beside its embedding: caption, uid, phrases, compressed.
_BYTES_BESIDE = 600


def plan(config: CurateConfig) -> str:
    """Return shards, samples, time, bytes and cost per million pairs, from up to 256 rows of one shard.

    Sample counts of other shards are estimated by their bytes. Cost is in worker hours, and in money where
    ``cluster.price_per_hour`` is set. Raises ValueError as ``curate`` does before it works.
    """
    shards = expand_input(config.input, config.prepare.stored_embeddings)
    sizes = [shard["size"] for shard in fingerprint_shards(shards)]
    first = next((i for i, size in enumerate(sizes) if size), None)
    if first is None:
        raise ValueError(f"input={config.input!r}: every shard is empty")
    spec = describe_scorer(config.scorer)
    check_embeddings(shards, config.scorer.model, spec.embedding_dim)
    seconds: dict[str, float] = {}
    table = _timed(seconds, "read", lambda: _read_some(shards[first]))
    in_first = sum(len(block) for block in read_shard(shards[first], _BLOCK_ROWS))
    prepared = _timed(
        seconds,
        "decode",
        lambda: prepare(
            table,
            config.scorer,
            spec,
            config.prepare.max_pixels,
            config.extra_columns,
            config.prepare.fast_decode,
        ),
    )
    align = Align(config.scorer, spec)
    align(prepared.slice(0, 1))  # the first call pays for setting up
    aligned = _timed(seconds, "align", lambda: align(prepared))
    pool = _take_pool(aligned, config.pool)
    parse(pool.slice(0, 1), config.parser, config.nonce, config.attribute, config.scorer)
    parsed = _timed(
        seconds,
        "parse",
        lambda: parse(pool, config.parser, config.nonce, config.attribute, config.scorer),
    )
    attribute = Attribute(config.scorer)
    _timed(seconds, "attribute", lambda: attribute(parsed))
    samples = round(in_first * sum(sizes) / sizes[first])
    stored = samples * (spec.embedding_dim * _BYTES[config.scorer.embedding_dtype] + _BYTES_BESIDE)
    facts = [
        f"shards    {len(sizes):,}, {sum(sizes) / 1e9:,.3f} GB",
        f"samples   about {samples:,}, {in_first:,} of them in the first shard",
        f"scores    about {stored / 1e9:,.3f} GB",
        f"measured  {len(table):,} rows, one worker on {align.clip.device.place}",
    ]
    return "\n".join([*facts, *_tell_time(config, samples, len(table), seconds)])


def _timed(seconds: dict[str, float], stage: str, run: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    result = run()
    seconds[stage] = time.perf_counter() - started
    return result


def _read_some(shard: ShardPath) -> pa.Table:
    return pa.concat_tables(islice(read_shard(shard, _BLOCK_ROWS), NUM_ROWS // _BLOCK_ROWS))


def _take_pool(aligned: pa.Table, share: float) -> pa.Table:
    """Return as many usable rows as the pool's share; which ones does not matter for time."""
    usable = np.flatnonzero([status == OK for status in aligned[STATUS].to_pylist()])
    return aligned.take(pa.array(usable[: round(share * len(usable))]))


def _tell_time(config: CurateConfig, samples: int, num_rows: int, seconds: dict[str, float]) -> list[str]:
    million = {stage: value / num_rows * 1e6 for stage, value in seconds.items()}
    hours = sum(million.values()) / 3600
    lines = ["seconds per million pairs"]
    lines += [f"  {stage:<10}{value:>12,.0f}" for stage, value in million.items()]
    lines.append(
        f"cost      {hours:,.1f} worker hours per million pairs, {hours * samples / 1e6:,.3f} in all"
    )
    if config.cluster.price_per_hour is not None:
        price = hours * config.cluster.price_per_hour
        lines.append(f"price     {price:,.2f} per million pairs, {price * samples / 1e6:,.2f} in all")
    workers = config.cluster.scorers or 1
    lines.append(
        f"time      about {hours * samples / 1e6 / workers:,.3f} hours on {workers} workers like this one"
    )
    return lines
