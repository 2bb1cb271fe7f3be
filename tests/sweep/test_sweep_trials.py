"""The trials of a sweep's folder are its own and whole, or a line says which are not."""

import json
import math
import re
from pathlib import Path

import pytest

from raycomp.data.files import Folder
from raycomp.sweep.trials import DEVELOPMENT, FINISHED, Journal, Outcome, SeedTraining, name_trial
from raycomp.table import Estimate
from tests.sweep.runs import METRIC, RATE, plan_of

STEPS = "train.steps"
SEED_TRAINING = SeedTraining(DEVELOPMENT, 0)
OUTCOME = Outcome(FINISHED, {METRIC: Estimate(0.5, 0.4, float("nan"))}, 1.0)
PLAN = plan_of(f"{RATE}=grid(1e-3,1e-4)")
NAME, OTHER = (name_trial({RATE: rate}) for rate in ("0.001", "0.0001"))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Two trials, one of them trained with one seed."""
    journal = Journal(Folder(str(tmp_path)))
    for options in PLAN.list_points():
        journal.start(options, "2026-01-02" if options[RATE] == "0.001" else "2026-01-01")
    journal.write(NAME, SEED_TRAINING, OUTCOME)
    return journal


def test_a_whole_journal_gives_back_what_was_written_and_is_left_as_it_is(journal):
    files = journal.folder.find_names()
    assert journal.start({RATE: "0.001"}, "2026-01-03") == NAME  # started once
    journal.repair(PLAN, pytest.fail)
    journal.check(PLAN)
    assert journal.folder.find_names() == files and len(files) == 3
    assert journal.find(NAME, SeedTraining(DEVELOPMENT, 1)) is None
    assert [trial.name for trial in journal.read()] == [OTHER, NAME]
    found = journal.read()[1].outcomes[SEED_TRAINING].metrics[METRIC]
    assert found.value == 0.5 and math.isnan(found.high)
    assert SeedTraining(DEVELOPMENT, 3, 9).name == "development-03-1of9"


def test_a_damaged_outcome_is_trained_again(journal):
    file = Path(journal.folder.at("trials", NAME, "development-00.json"))
    broken = [b"", b'{"status": "fin', b"\xff", b"null", b"[]", b"{}", b"[" * 100_000]
    wrong = [
        {"status": float("nan")},
        {"status": "stopped"},
        *(
            {"metrics": one}
            for one in (None, {"a": 1}, {"a": [1, 2]}, {"a": [1, "2", 3]}, {"a": [True, 2, 3]})
        ),
        *({"seconds": "1"}, {"starts": 1.5}, {"steps": 1.5}, {"why": None}, {"more": 1}),
    ]
    for bad in broken + [json.dumps({**OUTCOME.to_dict(), **one}).encode() for one in wrong]:
        journal.write(NAME, SEED_TRAINING, OUTCOME)
        file.write_bytes(bad)
        with pytest.raises(ValueError, match=f"{NAME}/development-00.json: .*; the sweep was finished"):
            journal.check(PLAN)
        said: list[str] = []
        journal.repair(PLAN, said.append)
        (line,) = said
        assert line.startswith(f"trials/{NAME}/development-00.json: ") and "\n" not in line, bad
        assert "trained again" in line
        assert journal.find(NAME, SEED_TRAINING) is None and len(journal.read()) == 2
        journal.repair(PLAN, pytest.fail)


def test_a_trial_with_damaged_options_is_started_again(journal):
    file = Path(journal.folder.at("trials", NAME, "options.json"))
    for content in [None, b"", b"{", b"[1]", b'{"options": [], "started": ""}', b'{"options": {"a": 1}}']:
        file.unlink() if content is None else file.write_bytes(content)
        words = f"trials/{NAME}: its options cannot be read: .*the sweep was finished"
        with pytest.raises(ValueError, match=words):
            journal.check(PLAN)
        said: list[str] = []
        journal.repair(PLAN, said.append)
        assert len(said) == 1 and said[0].startswith(f"trials/{NAME}: ")
        assert journal.list_trials() == [OTHER]
        assert journal.start({RATE: "0.001"}, "2026-01-02") == NAME and len(journal.read()) == 2


def test_a_trial_of_another_sweep_is_refused(journal):
    for name, options, words in [
        ("foreign", {RATE: "0.001"}, "or its name differs"),
        (NAME, {RATE: "0.0001"}, "or its name differs"),
        (None, {RATE: "1e-3"}, "its options are {'train.learning_rate': '1e-3'} in place of"),
        (None, {RATE: "0.01"}, "train.learning_rate=0.01 is not in grid(0.001,0.0001)"),
        (None, {RATE: "much"}, "train.learning_rate='much': must be of type float"),
        (None, {RATE: "0.001", STEPS: "9"}, "the space has train.learning_rate"),
        (None, {STEPS: "9"}, "the options are train.steps, the space has train.learning_rate"),
    ]:
        name = name or name_trial(options)
        journal.folder.write_json({"options": options, "started": "2026"}, "trials", name, "options.json")
        journal.write(name, SEED_TRAINING, OUTCOME)
        files = journal.folder.find_names()
        place = re.escape(journal.folder.at("trials", name))
        line = f"^{place}: belongs to another sweep: .*{re.escape(words)}.*; remove it$"
        for check in (lambda: journal.check(PLAN), lambda: journal.repair(PLAN, pytest.fail)):
            with pytest.raises(ValueError, match=line):
                check()
        assert journal.folder.find_names() == files, "nothing of others is removed"
        journal.folder.remove("trials", name)


def test_a_folder_that_is_no_trial_is_never_removed(journal):
    journal.folder.write_json("mine", "trials", "notes", "a.json")
    with pytest.raises(ValueError, match="trials/notes: belongs to another sweep: not a trial's name"):
        journal.repair(PLAN, pytest.fail)
    assert journal.folder.exists("trials", "notes", "a.json")


def test_a_training_with_a_seed_of_another_sweep_is_refused(journal):
    for training in (
        SeedTraining(DEVELOPMENT, 7),
        SeedTraining(DEVELOPMENT, 0, 9),
        SeedTraining("report", 0),
    ):
        journal.write(NAME, training, OUTCOME)
        words = f"{NAME}/{training.name}.json: belongs to another sweep: this sweep has no such training"
        with pytest.raises(ValueError, match=words):
            journal.check(PLAN)
        journal.folder.remove("trials", NAME, f"{training.name}.json")


def test_a_drawn_value_lies_between_the_ends_of_its_range(tmp_path):
    rates, steps = f"{RATE}=loguniform(1e-4,1e-3)", f"{STEPS}=uniform(5,9)"
    fits = [(rates, "0.0001"), (steps, "9")]
    for space, value in [
        *fits,
        (rates, "0.00101"),
        (rates, "nan"),
        (steps, "7.5"),
        (steps, "10"),
        (steps, "none"),
    ]:
        plan, journal = plan_of(space, search="random"), Journal(Folder(str(tmp_path)))
        name = journal.start({space.partition("=")[0]: value}, "2026")
        if (space, value) in fits:
            journal.repair(plan, pytest.fail)
        else:
            with pytest.raises(ValueError, match=f"trials/{name}: belongs to another sweep"):
                journal.repair(plan, pytest.fail)
        journal.folder.remove("trials", name)
