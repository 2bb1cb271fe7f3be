"""The plan of a sweep: the options of its space found in their commands, every value parsed and checked; and
the metrics by name, BENCHMARK.METRIC.SPLIT, that an evaluation can give."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from math import prod
from typing import Any

import numpy as np

from raycomp.config import Domain, check_path, list_options, override_all, read_space, read_value
from raycomp.config.commands import list_hints
from raycomp.config.options import (
    CHOICE,
    FIXED,
    GRID,
    LOGUNIFORM,
    Seconds,
    check,
    check_choice,
    spell_value,
    spell_values,
    split_none,
)
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import list_runs, name_stream
from raycomp.continual.scoring import CRR, CRR_LEARNED
from raycomp.continual.tables import FROZEN, MAIN
from raycomp.core.selection import KEY
from raycomp.curation.config import choose_config, explain_unused
from raycomp.evaluation.choices import ChoiceEvaluation, Pictures, Texts
from raycomp.evaluation.classification import Sets
from raycomp.evaluation.config import EvaluateConfig
from raycomp.evaluation.open import open_evaluations
from raycomp.evaluation.results import AGGREGATES, CUTS, compute_outcomes, make_lines
from raycomp.sweep.config import OWN_OPTIONS, SWEPT, SweepConfig, SweptCommand
from raycomp.table import group_by
from raycomp.words import ACC1, ACC5, MACRO, MEAN_PER_CLASS_RECALL, MEAN_RECALL, MICRO, OK, RECALLS, TEST

Options = Mapping[str, str]
"""The options of one trial by path, as text that ``override`` parses."""
_MOST_TRIALS = 10_000
# Largest number of combinations of values and range ends that are checked before anything starts.
_MOST_CHECKED = 1000
# Largest number of characters of a trial in a message.
_MOST_SAID = 200


@dataclass(frozen=True)
class Plan:
    """The space and the configs of trials."""

    config: SweepConfig
    space: Mapping[str, Domain]
    """Every value in normalized form, so that equal values have equal texts."""
    parts: Mapping[str, SweptCommand]
    """By option of the space, the part of a trial that has it."""
    scored: Mapping[str, Any] | None
    """The config of the curation whose scores trials select from; none = no selection."""

    def split(self, options: Options) -> dict[str, dict[str, str]]:
        """Return the options of a trial by the name of their part, those that its rule uses."""
        rule = options.get("select.rule") or (self.scored or {}).get("select", {}).get("rule", "")
        found: dict[str, dict[str, str]] = {part.name: {} for part in SWEPT[self.config.command]}
        for option, value in options.items():
            if self.parts[option].name != "select" or not explain_unused(rule, option, True):
                found[self.parts[option].name][option] = value
        return found

    def check_part(self, part: str, options: Options) -> None:
        """Raise ValueError, naming the trial, if the options of one part are invalid, alone or together."""
        try:
            if part != "select":
                self.make_trial(options)
            elif self.scored is not None:
                choose_config(self.scored, self.split(options)[part])
        except ValueError as error:
            said = " ".join(f"{option}={value}" for option, value in options.items())
            said = said if len(said) <= _MOST_SAID else f"{said[:_MOST_SAID]}..."
            raise ValueError(f"{error}; the space has the trial {said}") from error

    def make_trial(self, options: Options) -> Any:
        """Return the config of a trial's own command, except its seed and its inputs.

        Raises ValueError if the options are invalid together, or the sweep itself refuses them: its
        conditions on ``continual`` hold for every trial.
        """
        command = self.config.command
        trial = override_all(make_base(self.config), self.split(options)[command])
        if self.config.rungs == "steps":
            steps = trial.train.steps
            check(steps is not None, "train.steps", steps, "set with rungs=steps, which trains for 1/9 of it")
        if command == "continual":
            replace(self.config, continual=trial)
            trial = replace(trial, seeds=1, tune_seeds=1, first_seed=0, method=(*trial.method, FROZEN))
            list_runs(trial)
        return trial

    def get_type(self, option: str) -> Any:
        """Return the type of an option's values, without None."""
        return split_none(list_hints(self.parts[option].config)[option])[0]

    def spell(self, options: Options) -> dict[str, str]:
        """Return the options of a trial in normalized form. Raises ValueError if the space has no such
        trial."""
        if set(options) != set(self.space):
            raise ValueError(f"the options are {', '.join(options)}, the space has {', '.join(self.space)}")
        spelled = {}
        for option, text in options.items():
            domain, value = self.space[option], read_value(self.parts[option].config, option, text)
            spelled[option] = spell_value(text, value)
            is_within = spelled[option] in domain.values
            if domain.is_range and value is not None:
                low, high = domain.ends
                is_within = low <= value <= high
            if not is_within:
                raise ValueError(f"{option}={text} is not in {domain}")
        return spelled

    def count(self) -> int:
        """Return the number of trials; of optuna's with a grid, as many for each of its points."""
        grids = [len(domain.values) for domain in self.space.values() if domain.kind == GRID]
        return prod(grids) * (self.config.num_samples if _list_drawn(self.space) else 1)

    def list_checked(self) -> Iterator[dict[str, str]]:
        """Yield the trials to check before anything starts.

        Every value and both ends of every range, with the first values of the other options; then their
        combinations up to a limit; then all trials if they are known.
        """
        first = {option: domain.values[0] for option, domain in self.space.items()}
        for option, domain in self.space.items():
            yield from ({**first, option: value} for value in domain.values)
        for values in islice(product(*(domain.values for domain in self.space.values())), _MOST_CHECKED):
            yield dict(zip(self.space, values, strict=True))
        if self.config.search != "optuna":
            yield from self.list_points()

    def list_points(self) -> list[dict[str, str]]:
        """Return the options of every trial, in their order, without duplicates. Not for search=optuna.

        Complete grids. With search=random every grid point is repeated with draws from the other options;
        sample n has the same draws at every point.
        """
        grids = [d.values if d.kind in (GRID, FIXED) else ("",) for d in self.space.values()]
        drawn = _list_drawn(self.space)
        points: dict[tuple[str, ...], dict[str, str]] = {}
        for n in range(self.config.num_samples if drawn else 1):
            rng = np.random.default_rng([self.config.seed, n])
            draws = {option: draw(self.space[option], self.get_type(option), rng) for option in drawn}
            for values in product(*grids):
                point = {**dict(zip(self.space, values, strict=True)), **draws}
                points.setdefault(tuple(point.values()), point)
        return list(points.values())

    def list_groups(self) -> Iterator[dict[str, str]]:
        """Yield each value of ``per`` as the options of a group; one group without options if it is none."""
        per = self.config.per
        yield from ({per: value} for value in self.space[per].values) if per else ({},)


def make_base(config: SweepConfig) -> Any:
    """Return the trials' defaults for the sweep's command, for options that the space does not set."""
    if config.command == "train":
        return config.trained
    return replace(config.continual, cluster=config.cluster)


def make_plan(config: SweepConfig, scored: Mapping[str, Any] | None) -> Plan:
    """Return the plan, with all values valid. Raises ValueError with the name of an invalid one.

    ``scored``: the config of the curation to select from, from its run.json; none = there is none.
    """
    space = read_space(config.space)
    parts = {option: _get_part(config, option, scored is not None) for option in space}
    for option, domain in space.items():
        space[option] = spell_values(option, domain, partial(read_value, parts[option].config, option))
    plan = Plan(config, space, parts, scored)
    for option, domain in space.items():
        if domain.kind == GRID and config.search == "optuna" and option != config.per:
            raise ValueError(f"space={option}={domain}: must be choice(...) with search=optuna")
        if domain.kind not in (GRID, FIXED) and config.search == "grid":
            raise ValueError(f"space={option}={domain}: must be grid(...), or set search=random or optuna")
        if domain.is_range and plan.get_type(option) not in (int, float, Seconds):
            raise ValueError(f"space={option}={domain}: must be choice(...), for {option} is not a number")
    own = (scored or {"select": {"rule": "cpi"}})["select"]["rule"]
    rules = space["select.rule"].values if "select.rule" in space else (own,)
    for option in space:
        why = [explain_unused(rule, option, False) for rule in rules if parts[option].name == "select"]
        if why and all(why):
            named = f"{option}={space[option]}: is not used by rule {' or '.join(rules)}"
            raise ValueError(f"space={named}; {why[0]}")
    if config.per is not None and (config.per not in space or space[config.per].kind != GRID):
        raise ValueError(f"per={config.per!r}: must be an option with a grid in the space")
    if config.search == "optuna" and not _list_drawn(space):
        raise ValueError("search=optuna: must have a choice or a range in the space")
    if (num := plan.count()) > _MOST_TRIALS:
        raise ValueError(f"space: has {num:,} trials, must have at most {_MOST_TRIALS:,}")
    checked: set[tuple[str, ...]] = set()
    for options in plan.list_checked():
        for part, own in plan.split(options).items():
            key = (part, *own.values())
            if key not in checked:  # many trials share the options of a part
                checked.add(key)
                plan.check_part(part, options)
    return plan


def _get_part(config: SweepConfig, option: str, can_choose: bool) -> SweptCommand:
    """Return the part that has an option. Raises ValueError if none has it, or it may not be swept."""
    errors = []
    for part in SWEPT[config.command]:
        try:
            check_path(part.config, option)
        except ValueError as error:
            errors.append(str(error).replace(": unknown option", f": unknown option of {part.name}", 1))
            continue
        # Those that results depend on and a trial does not set.
        options = [one.path for one in list_options(part.config, part.mark) if "free" not in one.marks]
        allowed = [one for one in options if one not in OWN_OPTIONS]
        if option not in allowed:
            raise ValueError(
                f"space: {option} cannot be swept; of {part.name}, sweep one of {', '.join(allowed)}"
            )
        if part.name == "select" and not can_choose:
            raise ValueError(f"space: {option} needs scores to choose from; set curated instead of input")
        return part
    raise ValueError(f"space: {'; '.join(errors)}")


def _list_drawn(space: Mapping[str, Domain]) -> list[str]:
    return [option for option, domain in space.items() if domain.kind not in (GRID, FIXED)]


def draw(domain: Domain, kind: type, rng: np.random.Generator) -> str:
    """Return a value of a choice or range: numbers with 6 digits, integers if the option is of type int."""
    if domain.kind == CHOICE:
        return domain.values[rng.integers(len(domain.values))]
    low, high = domain.ends
    if domain.kind == LOGUNIFORM:
        return write_number(float(np.exp(rng.uniform(np.log(low), np.log(high)))), domain, kind)
    return write_number(float(rng.uniform(low, high)), domain, kind)


def write_number(value: float, domain: Domain, kind: type) -> str:
    """Return a number of a range as the text of an option; it stays within the range."""
    rounded = round(value) if kind is int else float(f"{value:.6g}")
    if domain.ends[0] <= rounded <= domain.ends[1]:
        return str(rounded)
    return domain.values[0] if rounded < domain.ends[0] else domain.values[1]


_RETRIEVED = tuple(f"{metric}@{k}" for metric in (*RECALLS.values(), MEAN_RECALL) for k in CUTS)
ALL = "all"
# Of continual learning, in addition to the main figure.
_FURTHER = ("fused zstd", f"fused {CRR}", f"fused {CRR_LEARNED}", "fused a_pair", "composed merged both last")
_CLASSIFIED = (ACC1, ACC5, MEAN_PER_CLASS_RECALL)


def check_metric(name: str, known: Sequence[str]) -> str:
    """Return the full name of a metric. Raises ValueError if it is not among the ``known`` ones.

    Without a split it is the macro mean, or the only split.
    """
    if name in known:
        return name
    splits = group_by(known, lambda one: one.rpartition(".")[0])
    means = {
        metric: f"{metric}.{MACRO}" if f"{metric}.{MACRO}" in some else some[0]
        for metric, some in splits.items()
        if len(some) == 1 or f"{metric}.{MACRO}" in some
    }
    more = ", or one of these with a split behind it" if len(known) > len(means) else ""
    check_choice("metric", name, tuple(means), more)
    return means[name]


def list_metrics(config: EvaluateConfig) -> list[str]:
    """Return all metrics that an evaluation may give. Raises ValueError if the evaluation cannot be built."""
    found = []
    for one in (opened.evaluation for opened in open_evaluations(config, say=lambda line: None)):
        if not isinstance(one, ChoiceEvaluation):
            metrics = _RETRIEVED if one.name == "retrieval" else _CLASSIFIED
            splits = [*one.parts] if isinstance(one, Sets) else [TEST]
            if len(splits) > 1:
                more = (name for name, own in AGGREGATES.get(one.name, {}).items() if {*own[1]} <= {*splits})
                splits = [*splits, MICRO, MACRO, *more]
            found += [f"{one.name}.{metric}.{split}" for metric in metrics for split in splits]
            continue
        # Any model's scores could have these names; here they belong to a text-only baseline.
        pictures = list(dict.fromkeys(one.pictures))
        blank, keys = np.zeros((len(pictures), 1), np.float32), np.zeros(len(pictures), KEY)
        seen = Pictures({name: i for i, name in enumerate(pictures)}, [OK] * len(pictures), blank, {}, keys)
        texts = list(dict.fromkeys(one.list_texts(seen)))
        read = Texts({text: i for i, text in enumerate(texts)}, np.zeros((len(texts), 1), np.float32))
        lines = make_lines(one.name, compute_outcomes(one.grade(seen, read)))
        found += [f"{one.name}.{line.metric}.{line.split}" for line in lines if not line.control]
    return found


def list_stream_metrics(config: ContinualConfig) -> list[str]:
    """Return the metrics of a method on its streams: those of the main figure, alone and minus the frozen
    model's, and a few more."""
    apart = (f"{name} minus {FROZEN}" for name in MAIN)
    return _name_of_streams(config, [*MAIN, *apart, *_FURTHER, "seconds"])


def list_main_metrics(config: ContinualConfig) -> list[str]:
    """Return the metrics that are reported for every trial."""
    return _name_of_streams(config, [*MAIN, *_FURTHER])


def _name_of_streams(config: ContinualConfig, names: Sequence[str]) -> list[str]:
    names = [name.replace(" ", "_") for name in names]
    return [f"{name_stream(stream)}.{name}.{ALL}" for stream in config.stream for name in names]
