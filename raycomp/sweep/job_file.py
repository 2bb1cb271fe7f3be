"""The best trial as a config file: a Python file with a description and a function that returns its
config."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

from raycomp.config import Domain, changed_options, write_space
from raycomp.config.space import FIXED
from raycomp.sweep.choose import Winner
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.plan import Plan, make_base
from raycomp.table import Estimate, is_numeral, plain, write_cell

BEST = "best.py"
_HEAD = '''"""The best of a sweep of {space}

by {metric} on development seeds, next to its result on report seeds, which selected nothing:
{reported}

    raycomp sweep {file} --out AGAIN      # repeats its trainings with the same results
{lines}

Cost: that of {num} of the sweep's trainings.
"""

from raycomp.config import {kinds}, override_all
'''
_FUNCTION = '''

def {name}() -> {kind}:
    """{text}"""
    return override_all({kind}(), {{{options}}})
'''


def write_job(plan: Plan, winners: Sequence[Winner], file: str) -> str:
    """Return the text of the file: ``config`` is the best of all, further functions are the best of each
    group."""
    best = winners[0]
    reported = [f"- {one.name}: {_say(one.development)}, report {_say(one.report)}" for one in winners]
    lines = _list_lines(plan, best, file)
    head = _HEAD.format(
        space=_escape(write_space(plan.space)),
        metric=plan.config.metric,
        reported=_escape("\n".join(reported)),
        file=_escape(file),
        lines=_escape("\n".join(f"    {line}" for line in lines)),
        num=plan.config.seeds + plan.config.report_seeds,
        kinds=", ".join(sorted(["SweepConfig", _find_kind(plan)])),
    )
    functions = [_write_sweep("config", plan, best)]
    if len(winners) > 1:
        names = name_functions([one.name for one in winners])
        functions += [_write_sweep(names[one.name], plan, one) for one in winners]
    functions.append(_write_training(plan, best))
    return head + "".join(functions)


def name_functions(values: Sequence[str]) -> dict[str, str]:
    """Return unique names of the file's functions, by the values of groups.

    Signs of numbers become words. Where replacing invalid characters makes two names equal, later ones of the
    sorted values are numbered.
    """
    found: dict[str, str] = {}
    for value in sorted(values):
        text = value.replace("-", " minus ").replace("+", " plus ") if is_numeral(value) else value
        base = f"of_{re.sub(r'[^0-9a-zA-Z]+', '_', text).strip('_').lower()}"
        numbered = (f"{base}_{n}" for n in count(2))
        found[value] = next(name for name in chain([base], numbered) if name not in found.values())
    return found


def fix(plan: Plan, winner: Winner) -> SweepConfig:
    """Return the sweep with only a winner's options."""
    space = {option: Domain(FIXED, (value,)) for option, value in winner.trial.options.items()}
    alone: dict[str, Any] = {
        "search": "grid",
        "scheduler": "none",
        "rungs": "seeds",
        "per": None,
        "report": "best",
    }
    return replace(plan.config, space=write_space(space), **alone)


def _write_sweep(name: str, plan: Plan, winner: Winner) -> str:
    options = changed_options(fix(plan, winner))
    text = f"{winner.name}: one trial, on all of the sweep's seeds."
    return _FUNCTION.format(name=name, kind="SweepConfig", text=_escape(text), options=_write(options))


def _write_training(plan: Plan, winner: Winner) -> str:
    """Return the function that has the command alone; for a training the command line names the input."""
    command = plan.config.command
    base = changed_options(make_base(plan.config))
    options = {path: value for path, value in base.items() if not path.startswith("cluster.")}
    options |= plan.split(winner.trial.options)[command]
    of_train = "The training's options, without a trial's seed and pairs."
    text = of_train if command == "train" else "The command's options, without a trial's seed."
    return _FUNCTION.format(name=command, kind=_find_kind(plan), text=text, options=_write(options))


def _find_kind(plan: Plan) -> str:
    return type(make_base(plan.config)).__name__


def _list_lines(plan: Plan, winner: Winner, file: str) -> list[str]:
    """Return the commands that repeat the best trial with the user's own pairs."""
    if plan.config.command == "continual":
        return [f"raycomp continual {file}:continual --out OUT"]
    chosen = plan.split(winner.trial.options).get("select", {})
    lines = []
    if plan.scored is not None:
        sets = " ".join(f"--set {option}={value}" for option, value in chosen.items())
        lines.append(f"raycomp select CURATED {sets} --out CHOSEN".replace("  ", " "))
    place = "CHOSEN" if plan.scored is not None else "INPUT"
    return [*lines, f"raycomp train {file}:train --set input={place} --out MODEL"]


def _write(options: Mapping[str, object]) -> str:
    """Return options as the inside of a dict, in ASCII."""
    lines = [f"        {path!a}: {value!a},\n" for path, value in options.items()]
    return "\n" + "".join(lines) + "    " if lines else ""


def _escape(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode().replace("\\", "\\\\").replace('"', "'")


def _say(one: Estimate) -> str:
    return plain(write_cell(one))
