"""Filters of curate and select: conditions, joined tables, lists of rows to leave out."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.cli import USER_ERROR, main
from raycomp.config import UserError
from raycomp.curation import command
from raycomp.curation.config import FilterConfig
from raycomp.curation.select.filters import ALIASES, hash_keys, load_condition, load_exclusion
from raycomp.curation.select.measures import ScoresFile
from raycomp.look.show import explain
from raycomp.words import EXCLUDED, FILTER_NULL, FILTERED, FILTERED_AFTER, KEPT
from tests.corpus import curate_with_metadata

NUM = 40


@pytest.fixture(scope="module")
def curated(tiny_scorer, tmp_path_factory) -> Path:
    """A curation of scenes with metadata; every row was attributed."""
    return curate_with_metadata(tmp_path_factory.mktemp("filtered"), tiny_scorer, NUM)


def read_rows(out: Path) -> list[dict]:
    rows = []
    for path in sorted((out / "scores").iterdir()):
        metadata = pq.read_table(out / "metadata" / path.name).to_pylist()
        scores = pq.read_table(path).to_pylist()
        assert [row["uid"] for row in scores] == [row["uid"] for row in metadata]
        rows += [{"meta": more, **row} for row, more in zip(scores, metadata, strict=True)]
    return rows


def read_marks(out: Path) -> dict[str, str | None]:
    tables = [pq.read_table(path) for path in sorted((out / "marks").iterdir())]
    return {row["uid"]: row["mark"] or row["mark_after"] for table in tables for row in table.to_pylist()}


def select(curated: Path, out: Path, **settings: object) -> dict:
    return raycomp.select(curated, {f"filter.{name}": value for name, value in settings.items()}, out)


def test_a_condition_over_scores_and_metadata(curated, tmp_path):
    """The first reason of a row counts: what the condition drops is not excluded."""
    rows, where = read_rows(curated), "nsfw < 0.5 and aspect >= 1 and meta_width is null or width > 1e6"
    (tmp_path / "all.csv").write_text("domain\nEXAMPLE.org\n")
    run = select(curated, tmp_path / "out", where=where, exclude=str(tmp_path / "all.csv"))
    expected = {row["uid"]: FILTER_NULL if row["meta"]["nsfw"] is None else FILTERED for row in rows}
    assert read_marks(tmp_path / "out") == expected
    assert run["funnel"]["corpus"] == 0 == run["funnel"]["kept"]
    run = select(curated, tmp_path / "some", where="coalesce(nsfw, 0) < 0.5 and lang is not null")
    wanted = {row["uid"] for row in rows if (row["meta"]["nsfw"] or 0) < 0.5 and row["caption_language"]}
    assert {uid for uid, mark in read_marks(tmp_path / "some").items() if mark is None} == wanted
    assert run["funnel"]["corpus"] == len(wanted) and run["funnel"]["kept"] == len(wanted) // 2
    assert run["funnel"]["dropped"][FILTERED] == NUM - len(wanted)


def test_after_the_shares_the_filter_only_removes(curated, tmp_path):
    runs = [
        select(
            curated, tmp_path / when, where="coalesce(nsfw, 0) < 0.5" if when == "after" else None, when=when
        )
        for when in ("before", "after")
    ]
    assert runs[0]["gates"] == runs[1]["gates"]
    kept, left = (
        pq.read_table(tmp_path / when / "subset/kept.parquet")["uid"].to_pylist()
        for when in ("before", "after")
    )
    fails = {row["uid"] for row in read_rows(curated) if (row["meta"]["nsfw"] or 0) >= 0.5}
    assert left == [uid for uid in kept if uid not in fails]
    assert runs[1]["funnel"]["dropped"][FILTERED_AFTER] == len(kept) - len(left) > 0


def test_a_table_is_joined_by_each_key(curated, tmp_path):
    rows, order = read_rows(curated), np.random.default_rng(1).permutation(NUM)
    for on, column in {"uid": "uid", "sha256": "image_sha256", "url": "url", "key": "key"}.items():
        keys = [rows[i][column].upper() if on in ("uid", "sha256") else rows[i][column] for i in order]
        join = str(tmp_path / f"{on}.parquet")
        pq.write_table(pa.table({on: keys, "score": [float(i) for i in order]}), join)
        run = select(curated, tmp_path / on, where="score < 10", join=join)
        marks = read_marks(tmp_path / on)
        assert [marks[row["uid"]] for row in rows] == [None] * 10 + [FILTERED] * (NUM - 10), on
        assert run["funnel"]["corpus"] == 10


def test_rows_that_the_table_lacks(curated, tmp_path):
    rows = read_rows(curated)
    lines = [f"{row['uid']},{i}" for i, row in enumerate(rows) if i % 2]
    (tmp_path / "more.csv").write_text("\n".join(["uid,score", *lines]))
    how = {"where": "score >= 0", "join": str(tmp_path / "more.csv")}
    with pytest.raises(UserError, match=r"filter\.join=.*has no row for 10 rows of one shard, such as uid"):
        select(curated, tmp_path / "out", **how)
    for missing, mark in (("drop", FILTER_NULL), ("keep", None)):
        select(curated, tmp_path / missing, **how, missing=missing)
        marks = read_marks(tmp_path / missing)
        assert [marks[row["uid"]] for row in rows] == [None if i % 2 else mark for i in range(NUM)]


def test_a_list_leaves_rows_out_without_scoring_and_names_lines_that_match_nothing(curated, tmp_path):
    rows = read_rows(curated)
    lines = ["# opted out", rows[0]["uid"], rows[1]["image_sha256"].upper(), rows[2]["url"]]
    lines += ["", "img3.example.org", f"{rows[4]['key']}.jpg", "nowhere.jpg", "not a thing"]
    (tmp_path / "optout.txt").write_text("\n".join(lines))
    run = select(curated, tmp_path / "out", exclude=str(tmp_path / "optout.txt"))
    expected = {
        row["uid"]: EXCLUDED if i < 3 or i % 4 == 3 or row["key"] == rows[4]["key"] else None
        for i, row in enumerate(rows)
    }
    assert read_marks(tmp_path / "out") == expected
    said = "optout.txt: 2 of 7 lines matched no row: nowhere.jpg, not a thing"
    assert said in run["warnings"]
    assert run["funnel"]["dropped"][EXCLUDED] == sum(mark is not None for mark in expected.values())
    kept = pq.read_table(tmp_path / "out/subset/kept.parquet")["uid"].to_pylist()
    assert kept and not [uid for uid in kept if expected[uid]]
    (tmp_path / "part.csv").write_text("domain\nample.org\n")
    none = select(curated, tmp_path / "none", exclude=str(tmp_path / "part.csv"))
    assert EXCLUDED not in none["funnel"]["dropped"]
    (tmp_path / "optout.txt").write_text(rows[4]["uid"])
    with pytest.raises(ValueError, match=r"filter\.exclude"):  # another list is another run
        select(curated, tmp_path / "out", exclude=str(tmp_path / "optout.txt"))


def test_a_list_of_removed_rows_is_counted_and_forms_of_other_tools_are_refused(curated, tmp_path):
    """Also where a list removes rows while they are scored; what may be meant literally is only counted."""
    rows, path = read_rows(curated), tmp_path / "optout.txt"
    path.write_text(
        "\n".join([rows[0]["uid"], "*.img3.example.org", "nowhere.jpg", "https://a.org/*/7", "9.tar"])
    )
    config = raycomp.override_all(raycomp.open(curated).config, {"removed": str(path)})
    run = raycomp.curate(config, tmp_path / "out")
    gone = sum(i == 0 or i % 4 == 3 for i in range(NUM))
    assert run["funnel"]["dropped"]["removed"] == gone
    said = "optout.txt: 3 of 5 lines matched no row: nowhere.jpg, https://a.org/*/7, 9.tar"
    assert said in run["warnings"] and "keys_matched" not in (tmp_path / "out/run.json").read_text()
    for line, cure in [
        ("||example.org^", "rule of an ad blocker"),
        ("@@||example.org^$image", "rule of an ad blocker"),
        ("example.org:8080", "has a port"),
        ("0.0.0.0 example.org", "hosts file"),
        ("photos/*.jpg", r"has a \*"),
    ]:
        path.write_text(f"# list\na.org\n{line}\n")
        for option in ("removed", "filter.exclude"):
            said = rf"^{option}=.*: the line '{re.escape(line)}' .*{cure}"
            config = raycomp.override_all(raycomp.open(curated).config, {option: str(path)})
            with pytest.raises(ValueError, match=said):
                raycomp.curate(config, tmp_path / "no")


def test_curate_and_select_filter_alike(curated, tmp_path):
    where, runs = "coalesce(nsfw, 0) < 0.7", [tmp_path / "selected", tmp_path / "curated"]
    chosen = select(curated, runs[0], where=where)
    config = raycomp.override_all(raycomp.open(curated).config, {"filter.where": where})
    assert raycomp.curate(config, runs[1])["funnel"] == chosen["funnel"]
    for name in ("subset/kept.parquet", "shards/00000000.tar"):
        assert (runs[0] / name).read_bytes() == (runs[1] / name).read_bytes()
    lost = next(uid for uid, mark in read_marks(runs[0]).items() if mark)
    assert f"kept: no, {FILTERED}" in "".join(explain(str(runs[0]), lost))
    next((runs[0] / "marks").iterdir()).unlink()
    with pytest.raises(ValueError, match="marks"):
        explain(str(runs[0]), lost)


def test_mistakes_are_one_line_and_exit_2(curated, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, data in {
        "empty.csv": b"a,b\n1,2\n",
        "twice.csv": b"uid,b\nx,1\nx,2\n",
        "clash.csv": b"uid,nsfw\nx,1\n",
        "none.txt": b"#\n\n",
        "binary.txt": b"\xff\xfe",
        "list.xlsx": b"PK",
    }.items():
        Path(name).write_bytes(data)
    for option, said in {
        "where=nswf < 1": "no column nswf; there are nsfw",
        "where=width": "must be true or false",
        "join=missing.parquet": "no such file",
        "join=list.xlsx": "must end in .parquet, .csv or .tsv",
        "join=empty.csv": "must have a column uid or sha256 or url or key, has a, b",
        "join=twice.csv": "1 rows repeat a uid, such as 'x'",
        "join=clash.csv": "its column nsfw is also one of metadata",
        "exclude=none.txt": "is empty",
        "exclude=binary.txt": "must be UTF-8 text",
        "exclude=empty.csv": "must have a column uid, sha256, url, domain, key",
        "exclude=gone.jpg": "no such file; filter.exclude takes a file of lines (.txt)",
    }.items():
        sets = ["--set", f"filter.{option}", "--set", "cluster.executor=local"]
        code, error = main(["select", str(curated), *sets, "--out", "out"]), capsys.readouterr().err
        assert code == USER_ERROR and said in error and error.count("\n") == 1, (option, error)


def test_curate_refuses_a_condition_before_it_scores(curated, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "score", lambda scoring: pytest.fail("it scored"))
    config = raycomp.open(curated).config
    for where, said in {"nswf < 1": "no column nswf; there are", "lang < 3": "where", "(": "syntax"}.items():
        with pytest.raises(ValueError, match=said):
            raycomp.curate(raycomp.override_all(config, {"filter.where": where}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_empty_files_have_empty_marks(tmp_path):
    schema = pa.schema(
        [*((name, pa.string()) for name in ("uid", "url", "key")), ("alignment", pa.float32())]
    )
    pq.write_table(schema.empty_table(), tmp_path / "0.parquet")
    (tmp_path / "list.txt").write_text("a.org")
    file = ScoresFile(str(tmp_path / "0.parquet"))
    condition = load_condition(FilterConfig(where="url = 'x'"), schema, [])
    for marker in (condition, load_exclusion(str(tmp_path / "list.txt"), False)):
        assert len(marker(file).reason_N) == 0
    assert KEPT not in condition.columns


def test_a_domain_has_one_spelling():
    for same in (
        ["*.Example.org", ".example.org", "example.org."],
        ["b\u00fccher.test", "xn--bcher-kva.test"],
    ):
        keys = hash_keys("domain", same)
        assert (keys == keys[0]).all(), same
    assert hash_keys("domain", ["example.org"]) != hash_keys("domain", ["ample.org"])


def test_a_name_in_another_case_is_another_column_or_is_refused():
    schema = pa.schema([("original_width", pa.int32())])
    (alias,) = [name for name, column in ALIASES.items() if column == "original_width"]
    fields = load_condition(FilterConfig(where=f"{alias} > 3"), schema, [alias.upper()]).fields
    assert fields[alias][1] == "original_width" and fields[f"meta_{alias.upper()}"][1] == alias.upper()
    both = ["License", "license"]
    load_condition(FilterConfig(where=f"{alias} > 3"), schema, both)
    with pytest.raises(ValueError, match=r"License and license differ in case alone"):
        load_condition(FilterConfig(where="LICENSE = 'x'"), schema, both)
