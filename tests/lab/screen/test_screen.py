"""The screen as a command: small worlds, what it leaves, a resume, refusals."""

import csv
import json

import numpy as np
import pytest

from lab import LAB
from lab.screen import command
from lab.screen.config import CUES, TEXT_VISIBLE, ScreenConfig
from lab.screen.draws import ScreenRun, check_captions, draw_pairs
from lab.screen.judge import READINGS, REGISTERED
from lab.screen.one_run import run_one
from lab.screen.tables import (
    SEEN_KINDS,
    STRATA,
    compare,
    compare_registered,
    list_shares,
    write_text,
)
from lab.worlds.crowds import KINDS, MISSING_STAMP, WRONG_RELATION
from lab.worlds.faults import NO_FAULT
from raycomp.cli import main
from raycomp.config import ClusterConfig
from raycomp.data.files import Folder
from tests.curation.test_curate_runs import digests

CONFIG = ScreenConfig(
    worlds=2,
    cues=("no-logo",),
    sound=40,
    faulty=20,
    scorer_pairs=40,
    scorer_steps=2,
    batch_size=16,
    captions=1000,
    cluster=ClusterConfig(executor="local"),
)


@pytest.fixture(scope="module")
def screened(tmp_path_factory):
    out = tmp_path_factory.mktemp("screen") / "out"
    return out, command.screen(CONFIG, str(out))


def read_csv(path) -> list[dict[str, str]]:
    with path.open() as lines:
        return list(csv.DictReader(lines))


def test_a_row_of_every_world_cue_kind_rule_and_share(screened):
    out, record = screened
    assert record["funnel"]["kept"] == 2
    rows = read_csv(out / "faults.csv")
    rules = {row["rule"] for row in rows}
    assert len(rules) == 2 + 2 * (len(READINGS) + 1) and len(rows) == 2 * len(KINDS) * len(rules) * 4
    for row in rows:
        assert int(row["planted"]) == CONFIG.faulty and int(row["faults_kept"]) <= int(row["planted_in_pool"])
        assert int(row["kept"]) == int(float(row["keep"]) * int(row["pairs"]))
    text = {row["kind"]: float(row["auc"]) for row in read_csv(out / "text.csv")}
    assert {*text} == {*KINDS} and all(0.4 < auc < 0.6 for auc in text.values())
    assert {row["trait"] for row in read_csv(out / "traits.csv")} >= {"1 things", "6 things", "template 2"}
    page = (out / "report.html").read_text()
    assert "Faults kept: no-logo" in page and "cpi paper, minus alignment" in page
    assert "Alignment and PAS minus alignment alone" in page
    assert not (out / "work").exists() and len(list((out / "figures").iterdir())) == len(KINDS)


def test_a_screen_that_was_broken_off_goes_on_to_the_same_bytes(screened, tmp_path, monkeypatch):
    done: list[str] = []

    def stop(one: ScreenRun, *args) -> None:
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(one.name)
        run_one(one, *args)

    with monkeypatch.context() as patch:
        patch.setattr(command, "run_one", stop)
        with pytest.raises(KeyboardInterrupt):
            command.screen(CONFIG, str(tmp_path / "out"))
    before = {name: (tmp_path / "out" / "cells" / f"{name}.json").stat().st_mtime_ns for name in done}
    command.screen(CONFIG, str(tmp_path / "out"))
    after = {name: (tmp_path / "out" / "cells" / f"{name}.json").stat().st_mtime_ns for name in done}
    assert before == after
    for name in ("faults.csv", "traits.csv", "text.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (screened[0] / name).read_bytes()
    assert digests(tmp_path / "out", "figures") == digests(screened[0], "figures")


def test_captions_show_a_fault_where_the_logo_goes_with_it(tmp_path):
    check_captions(TEXT_VISIBLE, CONFIG, Folder(str(tmp_path)))
    found = json.loads((tmp_path / "captions" / f"{TEXT_VISIBLE}.json").read_text())
    assert [row["kind"] for row in found["text"]] == [*KINDS]
    assert all(row["auc"] == 1 for row in found["text"]), "and there is no interval"


def test_pairs_of_a_run_are_what_their_cue_says():
    pairs = list(draw_pairs(ScreenRun(3, CUES["noun-50"]), CONFIG))
    assert len(pairs) == 2 * 40 + 5 * 20
    for is_sound in (True, False):
        logos = [p.said.logo for p, _ in pairs if (p.fault == NO_FAULT) == is_sound]
        assert 0.3 < np.mean(logos) < 0.7
    assert all((p.said.stamp is not None) == stamped for p, stamped in pairs)
    assert all(stamped for p, stamped in pairs if p.fault == MISSING_STAMP)
    assert all(len(p.said.things) > 1 for p, _ in pairs if p.fault == WRONG_RELATION)
    visible = list(draw_pairs(ScreenRun(3, CUES[TEXT_VISIBLE]), CONFIG))
    assert all(p.said.logo == (p.fault != NO_FAULT) for p, _ in visible)


def test_another_world_is_another_draw():
    captions = [
        [p.caption for p, _ in draw_pairs(ScreenRun(world, CUES["no-logo"]), CONFIG)] for world in (0, 1, 0)
    ]
    assert captions[0] == captions[2] != captions[1]


def test_differences_are_paired_by_world(screened):
    out, _ = screened
    found = [json.loads(path.read_text()) for path in sorted((out / "cells").glob("*no-logo.json"))]
    rule = "cpi paper"
    one, base = (list_shares(found, "no-logo", KINDS[0], r) for r in (rule, "alignment"))
    reported = compare(found, "no-logo", KINDS[0], rule)
    assert reported.value == pytest.approx(np.mean(np.subtract(one, base))) and reported.num == 2


def test_the_registered_figure_is_the_mean_over_kinds_that_scorers_see(screened):
    out, _ = screened
    rows = [row for row in read_csv(out / "faults.csv") if row["keep"] == "0.5"]
    kept = {(row["world"], row["kind"], row["rule"]): int(row[STRATA]) for row in rows}
    differences = [
        np.mean([kept[world, kind, REGISTERED] - kept[world, kind, "alignment"] for kind in SEEN_KINDS])
        for world in ("0", "1")
    ]
    found = [json.loads(path.read_text()) for path in sorted((out / "cells").glob("*no-logo.json"))]
    assert WRONG_RELATION not in SEEN_KINDS and len(SEEN_KINDS) == 4
    assert compare_registered(found, "no-logo").value == pytest.approx(
        100 * np.mean(differences) / CONFIG.faulty
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["--set", "cues=typo"], "cues='typo': must be one of no-logo"),
        (["--set", "worlds=0"], "worlds=0: must be"),
        (["--set", "scorer_pairs=10"], "scorer_pairs=10: must be at least 64, a batch"),
        (
            ["--scorer.model", "RN50"],
            "scorer.model=RN50: is for real photos; also set sugarcrepe.annotations",
        ),
        (["--sugarcrepe.annotations", "a", "--worlds", "2"], "worlds=2: is for drawn worlds; leave it out"),
        (["--sugarcrepe.annotations", "none-here"], "none-here: is not a folder"),
    ],
)
def test_refusals_are_a_line(settings, said, tmp_path, capsys):
    assert main(["screen", *settings, "--out", str(tmp_path / "out")], LAB) == 2
    assert said in capsys.readouterr().err


def test_a_kind_with_too_few_captions_has_no_value():
    row = {"kind": "mismatch", "auc": None, "auc_low": None, "auc_high": None}
    found = write_text([{"cue": "no-logo", "captions": 20, "text": [row, row | {"auc": 0.0}]}])
    assert found.splitlines()[1:] == ["no-logo,mismatch,20,,,", "no-logo,mismatch,20,0.0,,"]
