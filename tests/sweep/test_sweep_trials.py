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


def test_damaged_outcomes_and_trials_are_trained_again(journal):
    place = f"trials/{NAME}"
    broken = [b"", b'{"status": "fin', b"\xff", b"null", b"[]", b"{}", b"[" * 100_000]
    wrong = [{"metrics": one} for one in (None, {"a": 1}, {"a": [1, 2]}, {"a": [1, "2", 3]})]
    wrong += [{"status": "stopped"}, {"seconds": "1"}, {"starts": 1.5}, {"why": None}, {"more": 1}]
    broken += [json.dumps({**OUTCOME.to_dict(), **one}).encode() for one in wrong]
    options = [None, b"", b"{", b"[1]", b'{"options": [], "started": ""}', b'{"options": {"a": 1}}']
    of_options = [("options.json", content, f"{place}: its options cannot be read: ") for content in options]
    name = "development-00.json"
    for file, content, said in [*((name, one, f"{place}/{name}: ") for one in broken), *of_options]:
        assert journal.start({RATE: "0.001"}, "2026-01-02") == NAME
        journal.write(NAME, SEED_TRAINING, OUTCOME)
        journal.folder.remove("trials", NAME, file)
        if content is not None:
            journal.folder.write_bytes(content, "trials", NAME, file)
        with pytest.raises(ValueError, match=f"{said}.*the sweep was finished"):
            journal.check(PLAN)
        heard: list[str] = []
        journal.repair(PLAN, heard.append)
        assert len(heard) == 1 and heard[0].startswith(f"{place}") and "\n" not in heard[0], content
        assert journal.list_trials() == ([OTHER] if file == "options.json" else sorted([NAME, OTHER]))
        assert file == "options.json" or journal.find(NAME, SEED_TRAINING) is None
        journal.repair(PLAN, pytest.fail)


def test_a_trial_of_another_sweep_is_refused_and_never_removed(journal):
    for training in (SeedTraining("report", 0), SeedTraining(DEVELOPMENT, 0, 9)):
        journal.write(NAME, training, OUTCOME)
        said = f"{training.name}.json: belongs to another sweep: this sweep has no such training"
        with pytest.raises(ValueError, match=said):
            journal.check(PLAN)
        journal.folder.remove("trials", NAME, f"{training.name}.json")
    drawn = plan_of(f"{RATE}=loguniform(1e-4,1e-3)", search="random")
    whole = plan_of(f"{STEPS}=uniform(5,9)", search="random")
    for plan, name, options, words in [
        (PLAN, "foreign", {RATE: "0.001"}, "or its name differs"),
        (PLAN, NAME, {RATE: "0.0001"}, "or its name differs"),
        (PLAN, "", {RATE: "1e-3"}, "its options are {'train.learning_rate': '1e-3'} in place of"),
        (PLAN, "", {RATE: "0.01"}, "train.learning_rate=0.01 is not in grid(0.001,0.0001)"),
        (PLAN, "", {RATE: "much"}, "train.learning_rate='much': must be of type float"),
        (PLAN, "", {RATE: "0.001", STEPS: "9"}, "the space has train.learning_rate"),
        (PLAN, "notes", None, "not a trial's name"),
        *((drawn, "", {RATE: value}, "") for value in ("0.00101", "nan")),
        *((whole, "", {STEPS: value}, "") for value in ("7.5", "10", "none")),
    ]:
        if plan is not PLAN:
            journal = Journal(Folder(f"{journal.folder.uri}/more"))
        name = name or name_trial(options)
        journal.folder.write_json({"options": options, "started": "2026"}, "trials", name, "options.json")
        files = journal.folder.find_names()
        place = re.escape(journal.folder.at("trials", name))
        line = f"^{place}: belongs to another sweep: .*{re.escape(words)}.*; remove it$"
        with pytest.raises(ValueError, match=line):
            journal.repair(plan, pytest.fail)
        assert journal.folder.find_names() == files, "nothing of others is removed"
        journal.folder.remove("trials", name)
    for plan, option, value in [(drawn, RATE, "0.0001"), (whole, STEPS, "9")]:
        journal.start({option: value}, "2026")
        journal.repair(plan, pytest.fail)
        journal.folder.remove("trials", name_trial({option: value}))
