"""Tables in documents are what the committed results say."""

import re

import pytest

from bench.blocks import BLOCKS, ROOT, fill, list_documents, make, to_markdown
from raycomp.table import Column, Estimate, Table

DOCUMENTS = list_documents()


def names_in(text: str) -> list[str]:
    return re.findall(r"<!-- table ([\w-]+) -->", text)


def test_blocks_are_made_of_the_results():
    for path in DOCUMENTS:
        text = path.read_text()
        assert fill(text, make(names_in(text))) == text, "python -m bench.blocks writes them anew"


def test_every_block_has_a_place():
    assert {name for path in DOCUMENTS for name in names_in(path.read_text())} == {*BLOCKS}
    assert ROOT / "docs" / "study_pas.md" in DOCUMENTS


def test_a_block_is_replaced_and_the_rest_stays():
    text = "a\n<!-- table one -->\nold\n<!-- end -->\nb\n"
    made = to_markdown(Table("", ["rule", Column("x", "%", 1)], [["cpi", Estimate(1.0, 0.5, 1.5)]], "Note."))
    lines = "| rule | x, % |\n| --- | --- |\n| cpi | 1.0 [0.5, 1.5] |\n\nNote.\n"
    assert fill(text, {"one": made}) == f"a\n<!-- table one -->\n{lines}<!-- end -->\nb\n"
    with pytest.raises(KeyError):
        fill(text, {})
