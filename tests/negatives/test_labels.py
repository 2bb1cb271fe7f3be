"""The labelled negatives (``labels.csv``) are what the rules write, and what they are said to be."""

import csv
import hashlib
from collections import Counter
from pathlib import Path

import pyarrow as pa

from raycomp.data.parquet import OTHERS
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.negatives.write import write_by_rules
from raycomp.words import OPERATIONS

ROWS = list(csv.DictReader(Path(__file__).with_name("labels.csv").open()))


def test_labels_are_whole_and_of_equal_numbers():
    assert len(ROWS) == 408 and len({row["image_sha256"] for row in ROWS}) == 408
    counts = Counter((row["source"], row["context"], row["op"]) for row in ROWS)
    assert len(counts) == 12 and set(counts.values()) == {34}
    for row in ROWS:
        for number in "12":
            assert row[f"false_{number}"] in ("y", "n", "u")
            assert row[f"operation_{number}"] in (*OPERATIONS, "OTHER")
            assert {row[f"grammatical_{number}"], row[f"plausible_{number}"]} <= {"y", "n"}


def test_the_rules_still_write_what_was_labelled():
    """Without counts of a corpus."""
    own = [row for row in ROWS if row["context"] == "false"]
    none = pa.array([[]] * len(own), pa.list_(pa.string()))
    columns = {name: [row[name] for row in own] for name in ("uid", "caption")}
    table = pa.table({**columns, OTHERS: none})
    config = NegativesConfig(negatives=WritingConfig(rank=False))
    written = write_by_rules(table, config)["negatives"].to_pylist()
    found = [row["text"] in {one["text"] for one in every} for row, every in zip(own, written, strict=True)]
    assert sum(found) > 0.8 * len(own)


def test_hashes_are_those_of_the_photos(shared):
    folder = shared / "data"
    hashes = {
        hashlib.sha256(path.read_bytes()).hexdigest()
        for source in ("flickr8k_800", "cc_web_400")
        for path in (folder / source / "images").iterdir()
    }
    assert {row["image_sha256"] for row in ROWS} <= hashes
