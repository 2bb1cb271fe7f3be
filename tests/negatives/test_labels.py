"""The labelled negatives (``labels.csv``) are what the rules write, and what they are said to be."""

import csv
from pathlib import Path

import pyarrow as pa

from raycomp.data.parquet import OTHERS
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.negatives.write import write_by_rules

ROWS = list(csv.DictReader(Path(__file__).with_name("labels.csv").open()))


def test_the_rules_still_write_what_was_labelled():
    """Without counts of a corpus."""
    own = [row for row in ROWS if row["context"] == "false"][::2]
    none = pa.array([[]] * len(own), pa.list_(pa.string()))
    table = pa.table({name: [row[name] for row in own] for name in ("uid", "caption")} | {OTHERS: none})
    config = NegativesConfig(negatives=WritingConfig(rank=False))
    written = write_by_rules(table, config)["negatives"].to_pylist()
    found = [row["text"] in {one["text"] for one in every} for row, every in zip(own, written, strict=True)]
    assert len(ROWS) == 408 and sum(found) > 0.8 * len(own)
