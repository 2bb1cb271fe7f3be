"""Estimate the cost of a curation from a part of a few shards, measured in this process; writes nothing."""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config.options import Machine
from raycomp.curation.config import CurateConfig
from raycomp.curation.score.score import align_stages, attribute_stages
from raycomp.curation.select.filters import list_shards
from raycomp.data.parquet import check_extra_columns
from raycomp.data.parquet_input import check_embeddings
from raycomp.data.paths import ShardPath, fingerprint_shards
from raycomp.data.reader import read_shard
from raycomp.models.describe import describe_scorer
from raycomp.models.spec import ScorerSpec
from raycomp.run.executor import READ, SCORERS, Work
from raycomp.table import Cell, Column, Table, format_facts
from raycomp.words import OK, SHARD_STATUSES, STATUS

NUM_ROWS = 256
_BLOCK_ROWS = 64
_MOST_SHARDS = 16
_MOST_EXAMINED = 64
_BYTES = {"float32": 4, "float16": 2}
# A row of scores without its embedding: caption, uid, phrases, compressed.
_OTHER_BYTES = 600


class Measured(NamedTuple):
    """Seconds for a million pairs."""

    cpu_s: float
    """Of one core: reading, and the stages on CPUs."""
    scorer_s: float
    """Of one GPU, or of ``scorer_cores`` cores: the stages of scorers."""
    scorer_cores: int
    """0 where scorers had a GPU."""


class TimedRows(NamedTuple):
    """Rows to measure on, and the shards they represent, each read completely once before it was timed."""

    table: pa.Table
    read_s: float
    num_rows: int
    """Samples in all of these shards."""
    num_bytes: int
    names: list[str]
    passed_over: list[str]
    """Shards that were read and are damaged, or hold no usable row."""


def plan(config: CurateConfig) -> str:
    """Return shards, samples, time, bytes and cost per million pairs, from up to 256 rows of a few shards.

    The shards are undamaged and of medium size; the number of samples is estimated by bytes. Cost is in
    worker hours, in money if ``cluster.price_per_hour`` is set, and for each of ``cluster.machines``. Raises
    ValueError for the checks that ``curate`` makes before it starts, and if no usable row is found.
    """
    shards = list_shards(config)
    check_extra_columns(config.extra_columns)
    sizes = [int(shard["size"]) for shard in fingerprint_shards(shards)]
    spec = describe_scorer(config.scorer)
    check_embeddings(shards, config.scorer.model, spec.embedding_dim)
    sample = take_sample(shards, sizes, config.input)
    seconds, device = _measure(config, spec, sample)
    samples = round(sample.num_rows * sum(sizes) / sample.num_bytes)
    names, passed_over = (
        part[0] if len(part) == 1 else f"{len(part):,} shards ({', '.join(part[:1])}, ...)"
        for part in (sample.names, sample.passed_over)
    )
    stored = samples * (spec.embedding_dim * _BYTES[config.scorer.embedding_dtype] + _OTHER_BYTES)
    facts = {
        "shards": f"{len(sizes):,}, {sum(sizes) / 1e9:,.3f} GB",
        "samples": f"about {samples:,}, by bytes: {sample.num_rows:,} in {sample.num_bytes / 1e6:,.3f} MB "
        f"of {names}",
        "scores": f"about {stored / 1e9:,.3f} GB",
        "measured": f"{len(sample.table):,} rows of these, one worker on {device}, files read once before",
    }
    if sample.passed_over:
        facts["passed"] = f"over {passed_over}: incomplete, or without a usable row"
    million = {stage: value / len(sample.table) * 1e6 for stage, value in seconds.items()}
    hours, millions = sum(million.values()) / 3600, samples / 1e6  # of one worker, per million pairs
    facts["cost"] = f"{hours:,.1f} worker hours per million pairs, {hours * millions:,.3f} in all"
    if config.cluster.price_per_hour is not None:
        price = hours * config.cluster.price_per_hour
        facts["price"] = f"{price:,.2f} per million pairs, {price * millions:,.2f} in all"
    _, workers = config.cluster.span or (1, 1)
    total = hours * millions / workers
    took = f"{total:,.1f} hours" if total >= 1 else f"{60 * total:.1f} minutes"
    facts["time"] = f"about {took} on {workers} worker{'s' * (workers > 1)} like this one"
    tables = [Table("", ("stage", Column("time", "s per million pairs", 0)), [*million.items()])]
    if config.cluster.machines:
        import torch  # after all checks

        stages = [*align_stages(config, spec), *attribute_stages(config)]
        scorer_s = sum(million[stage.name] for stage in stages if stage.where == SCORERS)
        cores = torch.get_num_threads() if device == "cpu" else 0
        measured = Measured(sum(million.values()) - scorer_s, scorer_s, cores)
        tables.append(price_machines(measured, config.cluster.priced))
    return "\n\n".join([format_facts(facts), *(table.to_text() for table in tables)])


def take_sample(shards: Sequence[ShardPath], sizes: Sequence[int], spec: str) -> TimedRows:
    """Read undamaged shards from the medium size outwards until there are 256 rows or 16 shards.

    Damaged shards are used only if there are no others. Raises ValueError naming the input ``spec`` if 64
    shards hold no usable row.
    """
    by_size = sorted(range(len(shards)), key=lambda i: (sizes[i], i))
    middle = (len(by_size) - 1) // 2
    outwards = sorted(range(len(by_size)), key=lambda rank: (abs(rank - middle), rank))[:_MOST_EXAMINED]
    whole: dict[int, int] = {}
    partial: dict[int, int] = {}
    statuses: Counter[str] = Counter()
    examined = []
    for index in (by_size[rank] for rank in outwards):
        if len(whole) == _MOST_SHARDS or sum(whole.values()) >= NUM_ROWS:
            break
        examined.append(index)
        found = Counter[str]()
        for block in read_shard(shards[index], _BLOCK_ROWS):  # completely
            found.update(block[STATUS].to_pylist())
        statuses += found
        rows = sum(number for status, number in found.items() if status not in SHARD_STATUSES)
        if found[OK]:
            (whole if rows == found.total() else partial)[index] = rows
    chosen = whole or dict(list(partial.items())[:1])
    if not chosen:
        said = ", ".join(f"{number:,} {status}" for status, number in statuses.most_common(3))
        raise ValueError(f"input={spec!r}: no usable row in {len(examined):,} of its shards ({said})")
    started = time.perf_counter()
    blocks = (islice(read_shard(shards[index], _BLOCK_ROWS), NUM_ROWS // _BLOCK_ROWS) for index in chosen)
    table = pa.concat_tables(chain.from_iterable(blocks))
    read_s = time.perf_counter() - started
    table = table.filter(pc.invert(pc.is_in(table[STATUS], pa.array(SHARD_STATUSES)))).slice(0, NUM_ROWS)
    passed_over = [shards[index].name for index in examined if index not in chosen]
    names = [shards[index].name for index in chosen]
    num_bytes = sum(sizes[index] for index in chosen)
    return TimedRows(table, read_s, sum(chosen.values()), num_bytes, names, passed_over)


def _measure(config: CurateConfig, spec: ScorerSpec, sample: TimedRows) -> tuple[dict[str, float], str]:
    """Run every stage over the sample in this process; return seconds by stage, and the device."""
    seconds = {READ: sample.read_s}
    decode, align = align_stages(config, spec)
    prepared, seconds[decode.name] = _time(decode.start(), sample.table)
    if OK not in prepared[STATUS].to_pylist():
        counts = Counter(prepared[STATUS].to_pylist()).most_common(3)
        said = ", ".join(f"{number:,} {status}" for status, number in counts)
        raise ValueError(f"input={config.input!r}: no usable row among {len(prepared):,} ({said})")
    scorer = align.start()
    table, seconds[align.name] = _time(scorer, prepared)
    # As many usable rows as are attributed; the choice of rows does not affect time.
    usable = np.flatnonzero([status == OK for status in table[STATUS].to_pylist()])
    table = table.take(pa.array(usable[: max(1, round(config.pool * len(usable)))]))
    for stage in attribute_stages(config):
        table, seconds[stage.name] = _time(stage.start(), table)
    return seconds, str(scorer.device.place)


def _time(stage: Work, table: pa.Table) -> tuple[pa.Table, float]:
    """Return a stage's result on a table, and its seconds; the first call, which sets up, is not timed."""
    stage(table.filter(pc.equal(table[STATUS], OK)).slice(0, 1))
    started = time.perf_counter()
    result = stage(table)
    return result, time.perf_counter() - started


def price_machines(measured: Measured, machines: Sequence[Machine]) -> Table:
    """Return hours and cost of a million pairs on one of each kind of machine, and the bottleneck there.

    Stages run in parallel, so the slower of CPUs and GPUs determines the time of a machine. GPUs, and cores,
    count as equal to those measured. A machine whose scorers were not measured here gets no estimate.
    """
    per_million = (Column("hours", "per million pairs", 2), Column("cost", "per million pairs", 2))
    on_gpus = measured.scorer_cores == 0
    rows: list[tuple[Cell, ...]] = []
    for machine in machines:
        if on_gpus != (machine.gpus > 0):
            how = "with" if on_gpus else "without"
            rows.append((machine.name, None, None, f"not known: measured {how} a GPU"))
            continue
        cpu_s, gpu_s = measured.cpu_s / machine.cpus, 0.0
        if on_gpus:
            gpu_s = measured.scorer_s / machine.gpus
        else:
            cpu_s += measured.scorer_s * measured.scorer_cores / machine.cpus
        hours = max(cpu_s, gpu_s) / 3600
        bound = "its GPUs" if gpu_s > cpu_s else "its CPUs"
        rows.append((machine.name, hours, hours * machine.price_per_hour, bound))
    return Table("", ("machine", *per_million, "bound by"), rows)
