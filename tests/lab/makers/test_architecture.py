"""The layers and the tree of docs/architecture.md are those of the files."""

import pytest

from lab.makers.architecture import PAGE, write_page


def test_the_page_is_up_to_date():
    page = PAGE.read_text("utf-8")
    assert write_page(page) == page, "rewrite it: python -m lab.makers.architecture"


def test_a_package_that_is_missing_is_added():
    page = PAGE.read_text("utf-8")
    lines = [line for line in page.splitlines(keepends=True) if "`curation/`" not in line or "|" not in line]
    assert len(lines) < len(page.splitlines())
    assert write_page("".join(lines)) == page


def test_a_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="<!-- layers -->"):
        write_page("# Architecture\n")
