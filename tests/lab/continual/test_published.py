"""The paper's differences, and which of them a run reproduces."""

import csv
import io
import json
from dataclasses import replace

import pyarrow as pa
import pytest

from lab.continual.published import (
    RETRIEVED,
    find_equal,
    judge_sign,
    published,
    report_published,
    write_published,
)
from raycomp.continual.scoring import measure
from raycomp.continual.tables import Runs
from raycomp.core.intervals import contrast
from raycomp.data.files import Folder
from raycomp.data.parquet import write_table
from raycomp.schema import CONTINUAL_SCHEMA
from tests.continual.test_results import make_result


def make_published(num: int, *more: str) -> Runs:
    """Runs of the whole method and of others, each seed with a backbone of its own."""
    made = []
    for seed in range(num):
        wobble = seed / 500
        made.append(make_result("compo-realign", seed, [[0.5, 0.25], [0.7, 0.3], [0.6, 0.7 + wobble]], seed))
        made.append(make_result("no-trust", seed, [[0.5, 0.25], [0.7, 0.3], [0.5, 0.6]], seed))
        made.append(make_result("no-shaper", seed, [[0.5, 0.25], [0.7, 0.3], [0.7, 0.7]], seed))
        made.append(make_result("diki", seed, [[0.5, 0.25], [0.7, 0.3], [0.6, 0.4 + seed % 3 / 3]], seed))
        made += [
            make_result(method, seed, [[0.5, 0.25], [0.7, 0.3], [0.6, 0.7 + wobble]], seed) for method in more
        ]
    results = {one.one_run: one for one in made}
    return Runs("world", results, {one_run: measure(one) for one_run, one in results.items()})


def read_published(runs: Runs) -> dict[tuple[str, str], tuple]:
    rows = report_published(runs).rows
    return {(row[0].partition(" minus")[0], row[1]): row[2:] for row in rows}


def test_published_differences_reappear_are_reversed_or_cannot_be_read():
    runs = make_published(10)
    found = read_published(runs)
    here, least, published, word = found["no-trust", "R@1, image to text"]
    assert (round(here.value, 2), round(published, 2), word) == (-10.45, -0.9, "reappears")
    gaps = runs.list_gaps("no-trust", "compo-realign", "fused merged image_to_text last")
    assert least == pytest.approx(contrast(list(gaps.values())).detectable)
    assert found["no-shaper", "R@1, image to text"][3] == "reversed"
    assert found["diki", "R@1, text to image"][3] == "unreadable", "wider than what was published"
    assert found["no-trust", "forgetting"][3] == "reappears"
    whole = found["compo-realign", "R@1, image to text"]
    assert (round(whole[0].value, 2), whole[1:]) == (65.45, (None, 58.8, ""))
    words = [row[3] for row in found.values()]
    counts = [words.count(word) for word in ("reappears", "reversed", "undecided", "unreadable")]
    assert min(counts) > 0
    said = (
        f"{sum(counts[:3])} of {sum(counts)} published differences are readable here: reappears {counts[0]}"
    )
    assert said in report_published(runs).note
    written = list(csv.DictReader(io.StringIO(write_published([runs]))))
    assert [row["verdict"] for row in written] == [word for word in words if word]
    assert float(written[0]["less compo-realign"]) == pytest.approx(-10.45, abs=0.01)
    alone = {one_run: result for one_run, result in runs.results.items() if one_run.method == "compo-realign"}
    assert not report_published(replace(runs, results=alone)).rows


@pytest.mark.parametrize("num", [1, 3, 9])
def test_of_fewer_than_ten_backbones_no_difference_is_counted(num):
    runs = make_published(num)
    assert {row[3] for row in read_published(runs).values()} == {"", "unreadable"}
    assert "Not counted: unreadable" in report_published(runs).note


def test_what_equals_another_method_is_inert_and_not_counted():
    """A part that cannot act: no-buffer has the whole method's figures, replay-text those of sequential."""
    runs = make_published(10, "no-buffer", "replay-text", "sequential")
    found = read_published(runs)
    assert {found[name, "forgetting"][3] for name in ("no-buffer", "replay-text")} == {"inert"}
    assert "no-buffer is compo-realign in every figure" in report_published(runs).note
    assert find_equal(runs, "no-trust") is None
    first = next(one_run for one_run in runs.results if one_run.method == "no-buffer")
    other = make_result("no-buffer", first.seed, [[0.5, 0.25], [0.7, 0.3], [0.6, 0.71]], first.seed)
    assert find_equal(replace(runs, results={**runs.results, first: other}), "no-buffer") is None


def test_a_difference_that_could_have_been_seen_and_was_not_is_undecided():
    (figure,) = (one for one in RETRIEVED if one.metric == "forgetting_best")
    found = contrast([0.1, -0.1] * 5)
    assert judge_sign(found, figure, 1.1, 10) == "undecided"
    assert judge_sign(found, figure, 0.05, 10) == "unreadable"
    assert judge_sign(found, figure, 0.0, 10) == ""
    (crr,) = (one for one in RETRIEVED if one.metric == "fused crr_to_primitives")
    assert judge_sign(contrast([-0.3, -0.31] * 5), crr, -4, 10) == "unreadable"


def test_verdicts_are_computed_from_the_files_of_a_run(tmp_path):
    runs, folder = make_published(10), Folder(str(tmp_path))
    for one_run, result in runs.results.items():
        rows = [
            {"after": after, "of": of, "number": number, "figure": figure, "value": value}
            for (of, figure), found in result.values.items()
            for (after, number), value in found.items()
        ]
        table = pa.Table.from_pylist(rows, CONTINUAL_SCHEMA)
        write_table(table, folder.at("cells", f"{one_run.name}.parquet"), CONTINUAL_SCHEMA)
        folder.write_json({"cell": vars(one_run), **result.facts}, "cells", f"{one_run.name}.json")
    (printed,) = published(str(tmp_path))
    assert "world: comparison with the paper" in printed or "no-trust minus compo-realign" in printed
    written = list(csv.DictReader(io.StringIO((tmp_path / "published.csv").read_text())))
    expected = list(csv.DictReader(io.StringIO(write_published([runs]))))
    assert sorted(map(json.dumps, written)) == sorted(map(json.dumps, expected)) and len(written) > 5


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no finished run of raycomp continual"):
        list(published(str(tmp_path)))
