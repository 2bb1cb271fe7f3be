"""The oracle of rewrites: what counts of a page, which cases there are, and what is compared."""

from bench import digests
from bench.digest_cases import CASES, CORE, Case
from bench.digests import Line
from raycomp.config.commands import FOLDERS

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


def test_every_command_has_a_case_with_options_that_there_are_after_what_it_reads():
    assert set(FOLDERS) <= {case.command for case in CASES}
    assert digests.find_unknown(CASES, digests.read_names()) == []
    assert digests.find_unknown([Case("wrong", "select paper --set align.kept=1")], digests.read_names())
    order = [case.name for case in CASES]
    needs = [(need.name, case.name) for case in CASES for need in case.needs(CASES)]
    assert all(order.index(need) < order.index(name) for need, name in needs)
    core = {case.name for case in CASES if case.group == CORE}
    assert {need for need, name in needs if name in core} <= core


def test_missing_new_and_changed_files_are_reported():
    before, after = (
        {("one", name): Line("one", "curate", name, "1", sha) for name, sha in shas.items()}
        for shas in ({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "0", "d": "4"})
    )
    found = digests.compare(before, after, renamed=False)
    assert found == ["changed one: b", "missing one: c", "new     one: d"]
