"""NegCLIP's TSV as other programs read it, written without Ray from tables made by hand."""

import ast
import csv
import io
import subprocess

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from raycomp.config import UserError
from raycomp.curation.outputs import write_shard
from raycomp.data.files import Folder
from raycomp.data.parquet import to_fixed_lists, write_table
from raycomp.negatives import exports
from raycomp.negatives.captions import CaptionFile
from raycomp.negatives.exports import to_title, write_negclip
from raycomp.schema import NEGATIVES_SCHEMA
from raycomp.words import CAPTION, IMAGE_EMBEDDING, NEGATIVES, OK, STATUS, UID

BREAKS = ["\n", "\r\n", "\x0b", "\x1c", "\x85", "\u2028", "\u2029", "\t", "\0", "\x1b[2J"]
QUOTES = ['"', "'", "\\", ",", '"\t"']
FORMULAS = ['=HYPERLINK("http://x","a b")', "=cmd|' /C calc'!A0", "+1 2", "-2 3", "@SUM(1, 2)", "\uff1d1 2"]
MISSING = ["NA", "nan", "#N/A N/A", "1e5", "007", "True", "-inf", "2024"]
CAPTIONS = [
    *(f"{mark}A dog{mark}in the{mark}{mark}snow{mark}" for mark in (*BREAKS, *QUOTES)),
    *FORMULAS,
    *(f"\r{formula}" for formula in FORMULAS),
    *MISSING,
    "Ein sch\u00f6ner Hund \U0001f600",
    "a" * 60_000,
]


def fold(text: str) -> str:
    """Return a text with every break, control character and run of white space as one space."""
    return " ".join("".join(" " if ord(c) < 32 or 127 <= ord(c) < 160 else c for c in text).split())


@pytest.fixture
def export(tmp_path, monkeypatch):
    for name in ("map_tasks", "map_files"):
        monkeypatch.setattr(exports, name, lambda run, jobs, *args, label: (run(job) for job in jobs))

    def write(captions: list[str], images: list[str], per_file: int = 20):
        uids = [f"{i:032x}" for i in range(len(captions))]
        texts = [[f"{caption} not", "x\ty\r"] for caption in captions]
        members = ((uid, {name: b"i", "txt": b"t"}) for uid, name in zip(uids, images, strict=True))
        write_shard(str(tmp_path / "shards"), 0, members)
        rows = [
            {UID: uid, CAPTION: caption, STATUS: OK, NEGATIVES: [{"text": text} for text in several]}
            for uid, caption, several in zip(uids, captions, texts, strict=True)
        ]
        vectors = np.random.default_rng(0).standard_normal((len(uids), 4)).astype(np.float32)
        scores = pa.table({UID: uids, IMAGE_EMBEDDING: to_fixed_lists(vectors), STATUS: [OK] * len(uids)})
        sources, written = [], []
        for n, start in enumerate(range(0, len(captions), per_file)):
            written.append(str(tmp_path / f"negatives-{n}.parquet"))
            table = pa.Table.from_pylist(rows[start : start + per_file], schema=NEGATIVES_SCHEMA)
            write_table(table, written[-1], NEGATIVES_SCHEMA)
            sources.append(CaptionFile(n, str(tmp_path / f"scores-{n}.parquet")))
            write_table(scores.slice(start, per_file), sources[-1].uri, scores.schema)
        said = write_negclip(sources, written, str(tmp_path / "shards"), Folder(str(tmp_path)))
        assert said[0].startswith(f"exports/negclip.tsv: {len(uids)} rows")
        changed = [caption for caption in captions if to_title(caption).startswith("\u00a0")]
        assert [f"{len(changed):,} titles start with a no-break space" in line for line in said[1:]] == (
            [True] if changed else []
        )
        # The printed command makes every name of the table a file.
        subprocess.run(said[0].partition("in that folder: ")[2], shell=True, check=True)
        named = pd.read_csv(tmp_path / "exports/negclip.tsv", sep="\t")["filepath"]
        assert all((tmp_path / "exports/images" / name).is_file() for name in named)
        return tmp_path / "exports" / "negclip.tsv", uids, texts

    return write


def test_pandas_reads_every_caption_as_its_row_and_no_field_starts_a_formula(export):
    images = [("jpg", "jpeg", "png", "webp")[i % 4] for i in range(len(CAPTIONS))]
    path, uids, texts = export(CAPTIONS, images)
    lists = {"neg_caption": ast.literal_eval, "neg_image": ast.literal_eval}
    table = pd.read_csv(path, sep="\t", converters=lists)
    assert table.columns[0] == "Unnamed: 0" and table["Unnamed: 0"].tolist() == list(range(len(CAPTIONS)))
    assert [" ".join(title.split()) for title in table["title"]] == [fold(text) for text in CAPTIONS]
    assert table["filepath"].tolist() == [f"{uid}-0.{name}" for uid, name in zip(uids, images, strict=True)]
    assert table["neg_caption"].tolist() == texts
    for i, near in enumerate(table["neg_image"]):
        start = i // 20 * 20
        assert len({*near}) == 3 and i not in near and all(start <= n < start + 20 for n in near)
    text = path.read_bytes().decode()
    assert len(text.splitlines()) == len(CAPTIONS) + 1
    for row in csv.reader(io.StringIO(text), delimiter="\t"):
        assert len(row) == 5 and not any(cell.startswith(("=", "+", "-", "@", "\uff1d")) for cell in row)
    for caption in MISSING:  # a column of what looks like no text is text
        path, *_ = export([caption] * 5, ["jpg"] * 5)
        assert [title.strip() for title in pd.read_csv(path, sep="\t")["title"]] == [caption] * 5


def test_shards_that_are_not_whole_or_others_are_refused(export, tmp_path):
    with pytest.raises(UserError, match=r"the curation's shards lack the image of 0{31}2"):
        export(["a dog", "a cat", "a cow"], ["jpg", "jpg", "txt2"])
    for name in ("._00000000.tar", ".00000000.tar", "more.tar"):
        (tmp_path / "shards" / name).write_bytes(b"no tar")
    export(["a dog", "a cat", "a cow"], ["jpg"] * 3)
