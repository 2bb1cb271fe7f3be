"""Candidates by rules with and without counts of the corpus: how many, at what cost, and what text shows.

    python -m bench.candidates FOLDER OUT.csv [--timed 300] [--repeats 3]

First captions of flickr8k_800 and cc_web_400 (RAYCOMP_SHARED), all candidates kept, for ``negatives.context``
false and true and for 6 and 32 proposals of each operation. By operation and kind: candidates of a caption,
the share of captions with one, the share of proposals that the judge of edits accepts, and the share of pairs
in which a bigram model of other images' captions takes the caption for the true one, for a random candidate
and for the one that it finds likeliest, with 95 % intervals over captions. Rows of kind ``all`` have the CPU
milliseconds of a caption (parse, propose, judge; the counting once, per caption, apart), the least of the
repeats in turn.
"""

import argparse
import csv
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import raycomp
from bench.refinement import write_captions
from raycomp.config import ClusterConfig
from raycomp.core.intervals import compute_share
from raycomp.data.parquet import OTHERS
from raycomp.language.overlap import count_context
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.negatives.judges import load_reader
from raycomp.negatives.write import write_by_rules
from raycomp.words import OPERATIONS

SETTINGS = [(context, proposals) for context in (False, True) for proposals in (6, 32)]
FIELDS = (
    "context", "proposals", "op", "kind", "pairs", "captions", "accepted", "random", "random_low",
    "random_high", "likeliest", "likeliest_low", "likeliest_high", "milliseconds", "counting",
)  # fmt: skip
BLOCK_ROWS = 64


def main() -> None:
    """Write candidates of every setting and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--timed", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    captions = options.folder / "captions.parquet"
    write_captions(captions)
    for setting in SETTINGS:
        _write(captions, options.folder / _name(setting), make_config(*setting))
    counts = str(options.folder / _name(SETTINGS[-1]) / "context.parquet")
    costs = time_all(pq.read_table(captions), counts, options.timed, options.repeats)
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for setting in SETTINGS:
            writer.writerows(report(options.folder / _name(setting), setting, costs))


def make_config(context: bool, proposals: int) -> NegativesConfig:
    """Return options that keep every candidate."""
    writing = WritingConfig(
        context=context, candidates=proposals, per_caption=1000, rank=False, judge=("ngrams",)
    )
    return NegativesConfig(negatives=writing, cluster=ClusterConfig(executor="local"))


def _name(setting: tuple[bool, int]) -> str:
    return f"{'counted' if setting[0] else 'plain'}_{setting[1]}"


def _write(captions: Path, out: Path, config: NegativesConfig) -> None:
    raycomp.negatives(replace(config, input=str(captions)), str(out))


def time_all(table: pa.Table, counts: str, num: int, repeats: int) -> dict:
    """Return CPU milliseconds of a caption by setting, and of the counting, each the least of the repeats."""
    rng = np.random.default_rng(0)
    table = table.take(np.sort(rng.permutation(len(table))[:num]))
    none = pa.array([[]] * len(table), pa.list_(pa.string()))
    table = table.select(["uid", "caption"]).append_column(OTHERS, none)
    blocks = [table.slice(start, BLOCK_ROWS) for start in range(0, len(table), BLOCK_ROWS)]
    least: dict = {}
    for _ in range(repeats):
        for setting in SETTINGS:
            started = time.process_time()
            for block in blocks:
                write_by_rules(block, make_config(*setting), counts if setting[0] else None)
            _keep_least(least, setting, started, num)
        started = time.process_time()
        reader = load_reader(make_config(True, 6).parser)
        reader.read(table["caption"].to_pylist())
        count_context(reader.parsed.values())
        _keep_least(least, "counting", started, num)
    return least


def _keep_least(least: dict, name: object, started: float, num: int) -> None:
    least[name] = min(least.get(name, np.inf), 1000 * (time.process_time() - started) / num)


def report(out: Path, setting: tuple[bool, int], costs: dict) -> Iterator[dict]:
    """Yield a row of all edits, and one for each operation and kind."""
    rows = [row for path in sorted((out / "negatives").iterdir()) for row in pq.read_table(path).to_pylist()]
    rng = np.random.default_rng(0)
    every = {(one["op"], one["kind"]) for row in rows for one in row["negatives"]}
    groups = [("all", "all"), *((op, "all") for op in OPERATIONS), *sorted(every)]
    rejected = json.loads((out / "run.json").read_text())["rejected"]
    refused = {fault: count for fault, count in rejected.items() if "left to edit" not in fault}
    for op, kind in groups:
        found = ([one["bigram"] for one in row["negatives"] if _is_of(one, op, kind)] for row in rows)
        gaps = [own for own in found if own]
        num = sum(map(len, gaps))
        lost = sum(count for fault, count in refused.items() if op in ("all", fault.split(":")[0]))
        row = {"context": setting[0], "proposals": setting[1], "op": op, "kind": kind}
        row |= {"pairs": round(num / len(rows), 3), "captions": round(len(gaps) / len(rows), 3)}
        if kind == "all":
            row["accepted"] = round(num / (num + lost), 4)
        if op == "all":
            row |= {"milliseconds": round(costs[setting], 1), "counting": round(costs["counting"], 1)}
        drawn = [own[int(rng.integers(len(own)))] for own in gaps]
        for name, values in (("random", drawn), ("likeliest", [min(own) for own in gaps])):
            right = (np.sign(values) + 1) / 2
            share = compute_share(right, np.arange(len(right)))
            row |= {name: round(share.value, 3), f"{name}_low": round(share.low, 3)}
            row[f"{name}_high"] = round(share.high, 3)
        yield row


def _is_of(one: dict, op: str, kind: str) -> bool:
    return op in ("all", one["op"]) and kind in ("all", one["kind"])


if __name__ == "__main__":
    main()
