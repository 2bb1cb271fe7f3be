"""The tables of docs/scale.md are what its arithmetic makes of the measured rates."""

from pathlib import Path

from bench.at_scale import list_bounds, list_sizes, list_steps
from raycomp.table import as_columns

ROOT = Path(__file__).parents[1]


def test_the_page_has_every_row():
    page = (ROOT / "docs" / "scale.md").read_text()
    for table in (list_steps(), list_bounds(), list_sizes()):
        for row in table.rows:
            cells = [
                cell if isinstance(cell, str) else f"{cell:,.{column.digits}f}"
                for cell, column in zip(row, as_columns(table.columns), strict=True)
            ]
            assert f"| {' | '.join(cells)} |" in page


def test_its_rates_are_those_of_the_results():
    results = (ROOT / "bench" / "RESULTS.md").read_text()
    for reported in ("361 photos/s | exact decoding 130", "1,505 captions/s", "3,714", "4,399"):
        assert reported in results
    assert "217 s, 2 MB | 65 s, 7 MB | 172 s" in results
