"""Tables in documents are what the committed results say."""

import re
from pathlib import Path

from bench.at_scale import list_bounds, list_sizes, list_steps
from bench.blocks import (
    BLOCKS,
    PAGES,
    check_numbers,
    fill,
    list_documents,
    list_paragraphs,
    make,
    read_prose,
    to_markdown,
)
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


def test_every_number_of_a_page_is_what_its_source_says():
    paragraphs = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        assert not [*check_numbers(text)], f"{page}: python -m bench.blocks lists them"
        paragraphs += [paragraph for _, paragraph in list_paragraphs(text)]
    # Each of them, changed by one in its last digit, is found, and so is each whose source is taken away.
    ends = [
        (paragraph, place)
        for paragraph in paragraphs
        for match in re.finditer(r"[\d,.]*\d(?!\d)", read_prose(paragraph))
        for place in [match.end() - 1]
        if re.search(r"(?<![\w@/.-])[-(\[]*[\d,.]+$", paragraph[: place + 1])
    ]
    assert len(ends) > 100
    for paragraph, place in ends:
        changed = str((int(paragraph[place]) + 1) % 10)
        assert [*check_numbers(paragraph[:place] + changed + paragraph[place + 1 :])], paragraph[: place + 1]
        assert [*check_numbers(paragraph.partition("<!--")[0])], paragraph


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
