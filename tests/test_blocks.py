"""Tables in documents are what the committed results say."""

import re
from pathlib import Path

from bench.at_scale import list_bounds, list_sizes, list_steps
from bench.blocks import BLOCKS, fill, list_documents, make, to_markdown
from raycomp.table import Column, Estimate, Table, as_columns

ROOT = Path(__file__).parents[1]


def test_blocks_are_made_of_the_results():
    found = set()
    for path in list_documents():
        text = path.read_text()
        names = re.findall(r"<!-- table ([\w-]+) -->", text)
        assert fill(text, make(names)) == text, "python -m bench.blocks writes them anew"
        found |= {*names}
    assert found == {*BLOCKS}


def test_a_block_is_replaced_and_the_rest_stays():
    text = "a\n<!-- table one -->\nold\n<!-- end -->\nb\n"
    made = to_markdown(Table("", ["rule", Column("x", "%", 1)], [["cpi", Estimate(1.0, 0.5, 1.5)]], "Note."))
    lines = "| rule | x, % |\n| --- | --- |\n| cpi | 1.0 [0.5, 1.5] |\n\nNote.\n"
    assert fill(text, {"one": made}) == f"a\n<!-- table one -->\n{lines}<!-- end -->\nb\n"


def test_the_tables_of_scale_are_what_its_arithmetic_makes_of_the_measured_rates():
    page = (ROOT / "docs/scale.md").read_text()
    for table in (list_steps(), list_bounds(), list_sizes()):
        for row in table.rows:
            parts = [
                part if isinstance(part, str) else f"{part:,.{column.digits}f}"
                for part, column in zip(row, as_columns(table.columns), strict=True)
            ]
            assert f"| {' | '.join(parts)} |" in page
    results = (ROOT / "bench/RESULTS.md").read_text()
    for rate in ("361 photos/s | exact decoding 130", "1,505 captions/s", "3,714", "4,399", "65 s, 7 MB"):
        assert rate in results
