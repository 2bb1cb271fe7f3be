"""Checks that the trials in a sweep's folder belong to it and are undamaged, before they are used."""

import re
from collections.abc import Callable, Iterator
from itertools import chain

from raycomp.sweep.journal import TRIALS, Journal, SeedTraining, name_trial
from raycomp.sweep.plan import Plan
from raycomp.sweep.rungs import list_report, list_rungs

_OWN_NAME = re.compile(r"[0-9a-f]{12}")


def repair_trials(plan: Plan, journal: Journal, say: Callable[[str], None]) -> None:
    """Remove the damaged files of an unfinished sweep, so that they are made again; print a line for each.

    Raises ValueError with the name of a trial that does not belong to this sweep.
    """
    for name, file, why in list(_list_damaged(plan, journal)):
        journal.remove(*filter(None, (name, file)))
        say(f"{TRIALS}/{name}{file and '/'}{file}: {why}; removed, will be trained again")
    for name in journal.list_trials():
        options, _ = journal.read_options(name)
        if options != (spelled := plan.spell(options)):
            option = next(one for one in options if options[one] != spelled[one])
            raise ValueError(
                f"{journal.folder.at(TRIALS, name)}: was started by another version of raycomp, which wrote "
                f"{option}={options[option]} instead of {spelled[option]}; name another folder"
            )


def check_trials(plan: Plan, journal: Journal) -> None:
    """Raise ValueError unless all trials of a finished sweep belong to it and none of their files is
    damaged."""
    for name, file, why in _list_damaged(plan, journal):
        raise ValueError(
            f"{journal.folder.at(TRIALS, *filter(None, (name, file)))}: {why}; the sweep was finished: "
            f"remove its folder or name another one, and run again"
        )


def _list_damaged(plan: Plan, journal: Journal) -> Iterator[tuple[str, str, str]]:
    """Yield the trial, the file (empty: all of the trial) and the problem.

    Raises ValueError for a trial, or a training of one, that does not belong to this sweep.
    """
    own = {*chain(*list_rungs(plan.config), list_report(plan.config))}
    for name in journal.list_trials():
        try:
            options, _ = journal.read_options(name)
        except ValueError as error:
            if not _OWN_NAME.fullmatch(name):
                raise _refuse(journal, name, "not a trial's name") from error
            yield name, "", f"its options cannot be read: {error}"
            continue
        _check_options(plan, journal, name, options)
        for training in journal.list_seed_trainings(name):
            if training not in own:
                raise _refuse(journal, f"{name}/{training.name}.json", "this sweep has no such training")
            if why := _find_damage(journal, name, training):
                yield name, f"{training.name}.json", why


def _check_options(plan: Plan, journal: Journal, name: str, options: dict[str, str]) -> None:
    if name != name_trial(options):
        raise _refuse(journal, name, "its options do not match its name")
    try:
        plan.spell(options)
    except ValueError as error:
        raise _refuse(journal, name, str(error)) from error


def _find_damage(journal: Journal, name: str, training: SeedTraining) -> str:
    """Return the problem with the outcome file of a training; nothing if it can be read."""
    try:
        journal.find(name, training)
    except ValueError as error:
        return str(error)
    return ""


def _refuse(journal: Journal, name: str, why: str) -> ValueError:
    where = journal.folder.at(TRIALS, *name.split("/"))
    return ValueError(f"{where}: belongs to another sweep: {why}; remove it")
