"""The trials of a sweep's folder are its own and whole, or a line says which are not."""

import json
import re
from pathlib import Path

import pytest

from raycomp.config import read_space, write_space
from raycomp.data.files import Folder
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.plan import Plan, list_points, make_plan
from raycomp.sweep.result import name_functions
from raycomp.sweep.trials import (
    DEVELOPMENT,
    FINISHED,
    Journal,
    Outcome,
    SeedTraining,
    check_trials,
    name_trial,
    repair_trials,
)
from raycomp.table import Estimate
from tests.sweep.runs import SCORED

RATE, STEPS = "train.learning_rate", "train.steps"
SEED_TRAINING = SeedTraining(DEVELOPMENT, 0)
OUTCOME = Outcome(FINISHED, {"sugarcrepe.accuracy.macro": Estimate(0.5, 0.4, float("nan"))}, 1.0)


def plan_of(space: str, search: str = "grid") -> Plan:
    return make_plan(SweepConfig(space=space, search=search), SCORED)


PLAN = plan_of(f"{RATE}=grid(1e-3,1e-4)")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Two trials, one of them trained with one seed."""
    journal = Journal(Folder(str(tmp_path)))
    for options in list_points(PLAN):
        journal.start(options, "2026-01-01")
    journal.write(name_trial({RATE: "0.001"}), SEED_TRAINING, OUTCOME)
    return journal


def test_two_spellings_of_a_space_are_the_same_trials():
    for space, again in [
        (f"{RATE}=grid(1e-3,1E-04)", f"{RATE}=grid(.001,0.0001)"),
        (f"{RATE}=1e-3", f"{RATE}=0.0010"),
        ("train.autocast=grid(true,0)", "train.autocast=grid(1,False)"),
        ("train.steps=grid(none,9) train.epochs=none", "train.steps=grid(null,09) train.epochs=None"),
        ("train.freeze=grid(image,text:1;text)", "train.freeze=grid(image, text:1;text)"),
    ]:
        points = list_points(plan_of(space))
        assert points == list_points(plan_of(again)) and [*map(name_trial, points)]
        spelled = write_space(plan_of(space).space)
        assert write_space(plan_of(spelled).space) == spelled and len(read_space(spelled)) == space.count("=")


def test_a_whole_journal_is_left_as_it_is(journal):
    files, said = journal.folder.find_names(), []
    repair_trials(PLAN, journal, said.append)
    check_trials(PLAN, journal)
    assert not said and journal.folder.find_names() == files and len(files) == 3
    assert [len(trial.outcomes) for trial in journal.read()].count(1) == 1


def test_a_damaged_outcome_is_trained_again(journal):
    for content in [
        b"",
        b'{"status": "fin',
        b"\xff",
        b"null",
        b"[]",
        b"[" * 100_000,
        {},
        {"status": float("nan")},
        {"status": "done"},
        {"status": "stopped"},
        {"metrics": None},
        {"metrics": {"a": 1}},
        {"metrics": {"a": [1, 2]}},
        {"metrics": {"a": [1, "2", 3]}},
        {"metrics": {"a": [True, 2, 3]}},
        {"seconds": "1"},
        {"starts": 1.5},
        {"steps": 1.5},
        {"why": None},
        {"more": 1},
    ]:
        name = name_trial({RATE: "0.001"})
        file = Path(journal.folder.at("trials", name, f"{SEED_TRAINING.name}.json"))
        journal.write(name, SEED_TRAINING, OUTCOME)
        bad = content if isinstance(content, bytes) else json.dumps({**OUTCOME.to_dict(), **content}).encode()
        file.write_bytes(bad if content != {} else b"{}")
        with pytest.raises(ValueError, match=f"{name}/development-00.json: .*; the sweep was finished"):
            check_trials(PLAN, journal)
        said: list[str] = []
        repair_trials(PLAN, journal, said.append)
        (line,) = said
        assert line.startswith(f"trials/{name}/development-00.json: ") and "\n" not in line
        assert "trained again" in line
        assert journal.find(name, SEED_TRAINING) is None and len(journal.read()) == 2
        repair_trials(PLAN, journal, pytest.fail)


def test_a_trial_with_damaged_options_is_started_again(journal):
    for content in [None, b"", b"{", b"[1]", b'{"options": [], "started": ""}', b'{"options": {"a": 1}}']:
        name = name_trial({RATE: "0.001"})
        file = Path(journal.folder.at("trials", name, "options.json"))
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(
            ValueError, match=f"trials/{name}: its options cannot be read: .*the sweep was finished"
        ):
            check_trials(PLAN, journal)
        said: list[str] = []
        repair_trials(PLAN, journal, said.append)
        assert len(said) == 1 and said[0].startswith(f"trials/{name}: ")
        assert journal.list_trials() == [name_trial({RATE: "0.0001"})]
        assert journal.start({RATE: "0.001"}, "2026-01-02") == name and len(journal.read()) == 2


def plant(journal: Journal, name: str, options: dict[str, str]) -> None:
    journal.folder.write_json({"options": options, "started": "2026"}, "trials", name, "options.json")
    journal.write(name, SEED_TRAINING, OUTCOME)


def test_a_trial_of_another_sweep_is_refused(journal):
    for name, options, words in [
        ("foreign", {RATE: "0.001"}, "its options do not match its name"),
        (name_trial({RATE: "0.001"}), {RATE: "0.0001"}, "its options do not match its name"),
        (None, {RATE: "0.01"}, "train.learning_rate=0.01 is not in grid(0.001,0.0001)"),
        (None, {RATE: "1e-3"}, "it has train.learning_rate=1e-3 in place of 0.001"),
        (None, {RATE: "much"}, "train.learning_rate='much': must be of type float"),
        (None, {STEPS: "9"}, "the options are train.steps, the space has train.learning_rate"),
        (None, {RATE: "0.001", STEPS: "9"}, "the space has train.learning_rate"),
        (None, {}, "the space has train.learning_rate"),
    ]:
        name = name or name_trial(options)
        plant(journal, name, options)
        files = journal.folder.find_names()
        place = re.escape(journal.folder.at("trials", name))
        line = f"^{place}: belongs to another sweep: .*{re.escape(words)}.*; remove it$"
        for check in (lambda: check_trials(PLAN, journal), lambda: repair_trials(PLAN, journal, pytest.fail)):
            with pytest.raises(ValueError, match=line):
                check()
        assert journal.folder.find_names() == files, "nothing of others is removed"
        journal.folder.remove("trials", name)


def test_a_folder_that_is_no_trial_is_never_removed(journal):
    journal.folder.write_json("mine", "trials", "notes", "a.json")
    with pytest.raises(ValueError, match="trials/notes: belongs to another sweep: not a trial's name"):
        repair_trials(PLAN, journal, pytest.fail)
    assert journal.folder.exists("trials", "notes", "a.json")


def test_a_training_with_a_seed_of_another_sweep_is_refused(journal):
    for training in [
        SeedTraining(DEVELOPMENT, 7),
        SeedTraining(DEVELOPMENT, 0, 9),
        SeedTraining("report", 0),
        SeedTraining("foreign", 0),
    ]:
        name = name_trial({RATE: "0.001"})
        journal.write(name, training, OUTCOME)
        with pytest.raises(
            ValueError,
            match=f"{name}/{training.name}.json: belongs to another sweep: this sweep has no such training",
        ):
            check_trials(PLAN, journal)
        journal.folder.remove("trials", name, f"{training.name}.json")


def test_a_drawn_value_lies_between_the_ends_of_its_range(tmp_path):
    for space, value, fits in [
        (f"{RATE}=loguniform(1e-4,1e-3)", "0.0001", True),
        (f"{RATE}=loguniform(1e-4,1e-3)", "0.00101", False),
        (f"{RATE}=loguniform(1e-4,1e-3)", "nan", False),
        (f"{STEPS}=uniform(5,9)", "9", True),
        (f"{STEPS}=uniform(5,9)", "7.5", False),
        (f"{STEPS}=uniform(5,9)", "10", False),
        (f"{STEPS}=uniform(5,9)", "none", False),
    ]:
        plan, journal = plan_of(space, "random"), Journal(Folder(str(tmp_path)))
        name = journal.start({space.partition("=")[0]: value}, "2026")
        if fits:
            repair_trials(plan, journal, pytest.fail)
        else:
            with pytest.raises(ValueError, match=f"trials/{name}: belongs to another sweep"):
                repair_trials(plan, journal, pytest.fail)
        journal.folder.remove("trials", name)


def test_functions_of_groups_have_names_of_their_own():
    for values, names in [
        (["1e-05", "1e+05"], ["of_1e_minus_05", "of_1e_plus_05"]),
        (["-0.5", "0.5"], ["of_minus_0_5", "of_0_5"]),
        (["a-b", "a b", "a b 2", "A.B"], ["of_a_b_3", "of_a_b_2", "of_a_b_2_2", "of_a_b"]),
        (["\u00e9", "\u00e8", "clip"], ["of__2", "of_", "of_clip"]),
    ]:
        found = name_functions(values)
        assert all(name.isidentifier() for name in found.values()) and len({*found.values()}) == len(values)
        assert name_functions(values[::-1]) == found
        assert [found[value] for value in values] == names
