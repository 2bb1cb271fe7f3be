"""The oracle of rewrites: what counts of a page, names of then and now, and what is compared."""

import pyarrow as pa
import pyarrow.parquet as pq

from bench import digests
from bench.digest_cases import CASES, CORE, Case
from bench.digests import Line

PAGE = """<title>9</title><style>a{width:7px}</style><h1>Kept <b>30</b></h1>
<p>30 of 60 in 4.2 s, 2026-11-27</p>
<h2>Scores</h2><table><tr><th>what</th><td>0.25</td></tr></table><img src="data:image/png;base64,AA">
<h2>Time by phase</h2><h3>align: 3 rows</h3><table><tr><td>88</td></tr></table><p>99</p>
<h2>More</h2><p>5</p>"""


def test_of_a_page_count_tables_numbers_and_pictures_but_no_times():
    found = digests.read_page(PAGE)
    assert found["tables"].split() == [b"what", b"0.25"]
    assert found["numbers"].split() == [b"30", b"60", b"5"]
    assert found["pictures"] == b"data:image/png;base64,AA"


def test_no_case_has_an_option_that_there_is_not():
    assert digests.find_unknown(CASES, digests.read_names()) == []
    wrong = Case("wrong", "select paper --set align.kept=1")
    assert digests.find_unknown([wrong], digests.read_names()) == [
        "select: align.kept: is not an option; digest_names.csv must map it"
    ]


def test_every_command_has_a_case_and_a_case_runs_after_what_it_reads():
    from raycomp.config.commands import FOLDERS

    assert set(FOLDERS) == {case.command for case in CASES} & set(FOLDERS)
    order = [case.name for case in CASES]
    assert all(
        order.index(need.name) < order.index(case.name) for case in CASES for need in case.needs(CASES)
    )
    assert len(order) == len(set(order))
    cases, wanted, _ = digests.choose_cases(["show-train"], False, {})
    assert [case.name for case in cases] == ["paper", "train-clip", "show-train"] and wanted == {"show-train"}
    core = {case.name for case in CASES if case.group == CORE}
    assert {one.name for case in CASES if case.name in core for one in case.needs(CASES)} <= core


def test_a_renamed_column_changes_the_bytes_but_not_the_values(tmp_path):
    pq.write_table(pa.table({"b": [1, 2], "a": ["x", None]}), tmp_path / "old.parquet")
    pq.write_table(pa.table({"rank": [1, 2], "a": ["x", None]}), tmp_path / "new.parquet")
    old = digests.read_values(tmp_path / "old.parquet", {})
    assert digests.read_values(tmp_path / "new.parquet", {"rank": "b"}) == old
    assert digests.read_values(tmp_path / "new.parquet", {}) != old


def lines(**shas: str) -> dict[tuple[str, str], Line]:
    return {("one", name): Line("one", "curate", name, "1", sha) for name, sha in shas.items()}


def test_missing_new_and_changed_files_are_reported():
    before, after = lines(a="1", b="2", c="3"), lines(a="1", b="0", d="4")
    assert digests.compare(before, after, renamed=False) == [
        "changed one: b",
        "missing one: c",
        "new     one: d",
    ]
    before |= {("one", "b: values"): Line("one", "curate", "b: values", "1", "7")}
    after |= {("one", "b: values"): Line("one", "curate", "b: values", "1", "7")}
    assert "changed one: b" not in digests.compare(before, after, renamed=True)
