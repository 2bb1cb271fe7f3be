"""``raycomp negatives`` that draws by how the corpus uses words: against the same work in one memory."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.config import ParserConfig
from raycomp.language.overlap import TABLES, count_context
from raycomp.language.prompts import apply_calls
from raycomp.negatives.captions import CaptionFile, load_captions
from raycomp.negatives.judges import load_context, load_reader
from tests.negatives.test_refined_runs import make_captions, run

COUNTED = {"context": True, "rank": False, "candidates": 24, "per_caption": 1000, "judge": ()}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    return make_captions(tmp_path_factory.mktemp("captions"), num_files=2, per_file=30)


@pytest.fixture(scope="module")
def counted(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("counted") / "out"
    return out, run(source, out, **COUNTED)


def read_captions(source: str) -> list[dict]:
    files = [CaptionFile(i, f"{source}/{i}.parquet") for i in range(2)]
    return [row for one in files for table in load_captions(one, 1000) for row in table.to_pylist()]


def test_counts_of_files_are_those_of_all_captions(source, counted):
    reader = load_reader(ParserConfig())
    captions = [row["caption"] for row in read_captions(source)]
    reader.read(captions)
    want = count_context(reader.parsed[text] for text in captions)
    found = load_context(str(counted[0] / "context.parquet"))
    assert found.tables == want.tables and all(want.tables[name] for name in TABLES)


def test_edits_are_drawn_by_the_counts_of_the_file(source, counted):
    out, rows = counted
    context, reader = load_context(str(out / "context.parquet")), load_reader(ParserConfig())
    reader.read([row["caption"] for row in rows])
    for row in rows[::7]:
        parsed = reader.parsed[row["caption"]]
        for op in ("SWAP", "REPLACE", "ADD"):
            chains = apply_calls(parsed, [op], reader.lexicon, 0, row["uid"], 24, context)
            texts = [chain[-1].text for chain in chains]
            found = [one["text"] for one in row["negatives"] if one["op"] == op]
            assert set(found) <= set(texts) and len(found) >= 0.6 * len(texts)
            assert found or op == "SWAP"


def test_an_add_as_long_as_its_caption_is_refined(tmp_path):
    """Of two things one has a colour: a negative gives one to the other in its place."""
    rng, lines = random.Random(0), []
    for i in range(90):
        first, second = rng.sample(["dog", "cat", "horse", "cow"], 2)
        colour, place = rng.choice(["black", "white", "brown"]), rng.randrange(2)
        said = [f"a {colour} {first}", f"a {second}"] if place else [f"a {first}", f"a {colour} {second}"]
        lines.append((f"{i:032x}", f"There is {said[0]} behind {said[1]}.", str(i)))
    columns = zip(("uid", "caption", "image_sha256"), map(list, zip(*lines, strict=True)), strict=True)
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(dict(columns)), tmp_path / "in" / "0.parquet")
    options = {"operations": ("ADD",), "judge": ("ngrams",), "refine": "balance", "coverage": 4.0}
    rows = run(str(tmp_path / "in"), tmp_path / "out", **COUNTED | options)
    added = [(row, one) for row in rows for one in row["negatives"]]
    longer = [len(one["text"].split()) - len(row["caption"].split()) for row, one in added]
    assert len(added) > 3 and sum(longer) == 0 and set(longer) <= {-1, 0, 1}
    assert all(any(word.startswith("-") for word in one["concepts"]) for _, one in added)
