"""A diff of two curations or selections, against plain loops over explained rows, and planted changes."""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.cli import USER_ERROR, main
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar
from raycomp.look.diff import ABSENT
from raycomp.table import read_csv
from raycomp.words import EMPTY_CAPTION
from tests.corpus import curate_with_metadata, scenes
from tests.look.scored import make_rows, select, write_curation

CONCEPTS = "concepts.csv"
WORDS = ["dog", "cat", "bird", "tree", "house", "<b>car</b>"]


def read(out: Path, name: str) -> list[dict[str, str]]:
    return read_csv((out / name).read_text())


@cache
def outcome(source: str, uid: str) -> str:
    """Return the last line of ``explain`` as an outcome."""
    last = re.findall(r"^kept: (yes|no, (\w+))", raycomp.explain(source, uid), re.MULTILINE)
    return "kept" if last[0][0] == "yes" else last[0][1]


def diff(first: str, second: str, out: Path) -> dict[str, Any]:
    return raycomp.diff(first, second, out)


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, str]:
    """A curation of 240 rows, and selections from it."""
    folder = tmp_path_factory.mktemp("sources")
    whole = write_curation(str(folder / "whole"), make_rows(240, WORDS, seed=0))
    found = {"whole": whole}
    for name, settings in {
        "less": {"attribute.keep": 0.2},
        "nodogs": {"filter.where": "caption not like '%dog%'", "align.keep": 1.0, "filter.when": "after"},
        "other": {"align.keep": 1.0, "attribute.aggregate": "max"},
    }.items():
        found[name] = select(whole, {"materialize": "false", **settings}, str(folder / name))
    return found


def test_a_run_with_itself_has_no_difference(sources, tmp_path, capsys):
    run = diff(sources["whole"], sources["whole"], tmp_path / "out")
    assert run["rows"] == {"kept_in_both": 120, "lost": 0, "gained": 0}
    assert diff(sources["whole"], sources["whole"], tmp_path / "out").record == run.record
    assert read(tmp_path / "out", "options.csv") == read(tmp_path / "out", CONCEPTS) == []
    assert {row["first"] == row["second"] for row in read(tmp_path / "out", "outcomes.csv")} == {True}
    assert not pq.read_table(tmp_path / "out/moved.parquet").num_rows
    said = capsys.readouterr().out
    assert "keep the same 120 rows" in said
    opened = raycomp.open(tmp_path / "out")
    assert opened.tables[0] == "concepts" and {"moved", "outcomes", "options", "means"} <= {*opened.tables}
    assert "No option, version or fingerprint differs" in (tmp_path / "out/report.html").read_text()


def test_outcomes_are_those_that_explain_prints(sources, tmp_path):
    uids = [row["uid"] for row in make_rows(240, WORDS, seed=0)]
    for first, second in (("whole", "less"), ("nodogs", "whole")):
        pair, out = (sources[first], sources[second]), tmp_path / first
        run = diff(*pair, out)
        found = {(row["first"], row["second"]): int(row["rows"]) for row in read(out, "outcomes.csv")}
        assert sum(found.values()) == 240, first
        rows = pq.read_table(out / "moved.parquet").to_pylist()
        moved = {row["uid"]: (row["outcome_first"], row["outcome_second"]) for row in rows}
        kept = [{*pq.read_table(f"{one}/subset/kept.parquet")["uid"].to_pylist()} for one in pair]
        assert {*moved} == kept[0] ^ kept[1], first
        counts = Counter({pair: n for pair, n in found.items() if (pair[0] == "kept") != (pair[1] == "kept")})
        assert Counter(moved.values()) == counts, first
        lost, gained = len(kept[0] - kept[1]), len(kept[1] - kept[0])
        assert (run["rows"]["lost"], run["rows"]["gained"]) == (lost, gained), first
        for uid in uids[::20]:
            own = tuple(outcome(source, uid) for source in pair)
            assert own in found and moved.get(uid, own) == own, (first, uid)


def test_the_other_direction_is_the_mirror_and_shares_are_those_of_the_captions(sources, tmp_path):
    there = diff(sources["whole"], sources["other"], tmp_path / "there")["rows"]
    back = diff(sources["other"], sources["whole"], tmp_path / "back")["rows"]
    assert (there["gained"], there["lost"]) == (back["lost"], back["gained"]) and there["gained"]
    one, other = (
        {
            row["concept"]: (float(row["difference"]), float(row["p"]))
            for row in read(tmp_path / way, CONCEPTS)
        }
        for way in ("there", "back")
    )
    assert {w: (pytest.approx(-d), pytest.approx(p)) for w, (d, p) in one.items()} == other
    kept = [
        pq.read_table(f"{sources[name]}/subset/kept.parquet")["caption"].to_pylist()
        for name in ("whole", "other")
    ]
    for line in read(tmp_path / "there", CONCEPTS):  # a word counts once in a row
        if line["type"] == "noun":
            shares = [sum(f"a {line['concept']}" in one for one in own) / len(own) for own in kept]
            assert [float(line[f"share_{side}"]) for side in ("first", "second")] == pytest.approx(shares)


def test_a_planted_concept_is_ranked_first_and_options_that_differ_are_named(sources, tmp_path, capsys):
    diff(sources["whole"], sources["nodogs"], tmp_path / "out")
    found = {row["what"]: (row["first"], row["second"]) for row in read(tmp_path / "out", "options.csv")}
    assert found == {
        "align.keep": ("0.7", "1.0"),
        "filter.where": ("none", "caption not like '%dog%'"),
        "filter.when": ("before", "after"),
        "command": ("curate", "select"),
    }
    lines, page = read(tmp_path / "out", CONCEPTS), (tmp_path / "out/report.html").read_text()
    assert "<b>car" not in page and "&lt;b&gt;car" in page
    assert (lines[0]["concept"], lines[0]["type"]) == ("dog", "noun")
    assert float(lines[0]["share_second"]) == 0 and float(lines[0]["p_holm"]) < 1e-6
    assert all(float(line["p_holm"]) > 0.05 for line in lines[1:])
    assert "Less frequent in nodogs: dog (" in capsys.readouterr().out


def test_rows_are_joined_by_uid_whatever_their_order_file_or_score(tmp_path):
    rows = make_rows(300, WORDS, seed=2)
    one = write_curation(str(tmp_path / "one"), rows[:200])
    changed = [row | ({"alignment": row["alignment"] + 0.5} if i < 7 else {}) for i, row in enumerate(rows)]
    other = write_curation(str(tmp_path / "other"), changed[:200][::-1], files=5)
    run = diff(one, other, tmp_path / "same")
    assert run["funnel"] == {"read": 200, "corpus": 200, "kept": 200, "dropped": {}}
    page = (tmp_path / "same/report.html").read_text()
    assert "Alignments of 7 rows differ between the runs, by at most 0.5." in page
    other = write_curation(str(tmp_path / "third"), rows[100:])
    run = diff(one, other, tmp_path / "out")
    assert run["funnel"] == {"read": 300, "corpus": 300, "kept": 100, "dropped": {ABSENT: 200}}
    found = Counter()
    for row in read(tmp_path / "out", "outcomes.csv"):
        found[row["first"] == ABSENT, row["second"] == ABSENT] += int(row["rows"])
    assert found == {(True, False): 100, (False, True): 100, (False, False): 100}


def test_a_uid_that_occurs_again_counts_once(tmp_path):
    """The row with an alignment counts, wherever the other one is."""
    rows = make_rows(60, WORDS, seed=4)
    bad = {**rows[30], "status": EMPTY_CAPTION, "alignment": None, "phrases": None, "mean_pas": None}
    one = write_curation(str(tmp_path / "one"), [bad, *rows])
    other = write_curation(str(tmp_path / "other"), rows)
    run = diff(one, other, tmp_path / "out")
    assert run["funnel"]["read"] == 60 and (run["rows"]["lost"], run["rows"]["gained"]) == (0, 0)
    assert "another row has their uid: 1 and 0 rows" in (tmp_path / "out/report.html").read_text()


def test_random_halves_move_no_concept(tmp_path):
    words = [f"word{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(80)]
    whole = write_curation(str(tmp_path / "whole"), make_rows(600, words, seed=5, chance=0.15))
    halves = [
        select(whole, {"select.rule": "random", "seed": str(seed)}, str(tmp_path / f"half{seed}"))
        for seed in (1, 2)
    ]
    diff(*halves, tmp_path / "out")
    lines = read(tmp_path / "out", CONCEPTS)
    assert len(lines) >= 80 and 1 <= sum(float(line["p"]) < 0.05 for line in lines) <= 10
    assert all(float(line["p_holm"]) >= 0.05 for line in lines)


def test_what_is_no_pair_of_curations_is_refused_in_a_line(sources, tmp_path, capsys):
    diff(sources["whole"], sources["less"], tmp_path / "diff")
    rows = make_rows(30, WORDS, seed=1)
    write_curation(str(tmp_path / "others"), [row | {"uid": f"{i:032x}"} for i, row in enumerate(rows)])
    failed = Folder(write_curation(str(tmp_path / "failed"), rows))
    failed.write_json(failed.read_json("run.json") | {"status": "failed", "failed": "disk"}, "run.json")
    for place, said in {
        "nothing": "holds no finished run: no such folder",
        "diff": "holds diff, must hold a curation or a selection",
        "others": "have no uid in common",
        "failed": "the run has failed",
    }.items():
        capsys.readouterr()
        line = ["diff", sources["whole"], str(tmp_path / place), "--out", str(tmp_path / "out")]
        assert main(line) == USER_ERROR, place
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1 and not (tmp_path / "out").exists(), place


def test_rows_without_phrases_are_reported(tmp_path):
    """A random draw keeps rows that were not attributed."""
    rows = make_rows(100, WORDS, seed=7)
    for row in rows[:30]:
        row |= {"phrases": None, "mean_pas": None}
    one = write_curation(str(tmp_path / "one"), rows, settings={"select.rule": "random"})
    other = select(one, {"seed": "5"}, str(tmp_path / "other"))
    warnings = diff(one, other, tmp_path / "out")["warnings"]
    warnings = [one for one in warnings if "pictures cannot be shown" not in one]
    assert len(warnings) == 1 and "rows without phrases" in warnings[0]


def test_pictures_are_shown_after_shards_are_added_but_no_changed_ones(tiny_scorer, tmp_path):
    one = curate_with_metadata(tmp_path, tiny_scorer, 40)
    raycomp.select(one, {"attribute.keep": 0.2, "materialize": "false"}, tmp_path / "other")
    rows = [(f"{i}", members) for i, members in enumerate(scenes(20, seed=9))]
    write_tar(str(tmp_path / "in" / "!first.tar"), rows)  # other shards have other ordinals now
    run, page = diff(one, tmp_path / "other", tmp_path / "added"), tmp_path / "added/report.html"
    assert not any("pictures" in line for line in run["warnings"])
    assert run["rows"]["lost"] and "kept in both; random weights" in run["headline"]
    assert page.read_text().count("data:image/jpeg") == 6 and page.read_text().count("is noise.") == 1
    for shard in range(2):
        write_tar(str(tmp_path / "in" / f"{shard}.tar"), rows)
    warning = diff(one, tmp_path / "other", tmp_path / "changed")["warnings"][-1]
    assert warning.endswith("pictures cannot be shown: they were changed or are gone since they were scored")
    assert "data:image/jpeg" not in (tmp_path / "changed/report.html").read_text()
