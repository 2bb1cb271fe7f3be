"""Scores of a method after each task; a run's results and metrics; options selected on development seeds.

N samples, T texts or tasks, K candidates, M edits, E heads, D dims.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from posixpath import commonprefix
from typing import Any, NamedTuple

import numpy as np

from raycomp.continual import data
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Choice, Edits, Keys, Split, StreamRun, name_stream
from raycomp.continual.method import get_method, name_method
from raycomp.core import continual as core
from raycomp.core.intervals import wilcoxon
from raycomp.core.metrics import pearson
from raycomp.data.files import Folder
from raycomp.data.parquet import read_columns
from raycomp.table import Cell, Column, Columns, Table

RUNS = "cells"
_BOUND = ("crr", "a_pair", "a_attribute", "a_object")
CRR, CRR_LEARNED = "crr_to_primitives", "crr_to_learned"
"""The two readings of the paper's CRR: pair / (attribute * object), "crr" in the files of runs; and pair
accuracy relative to that of the same model right after each task."""
SUBSPACE_DRIFT, STATE_DISTANCE = "subspace_drift_layer_", "cosine_distance_layer_"
"""Figures of a method that trains the model, each followed by the layer of the text tower, from 1."""


@dataclass(frozen=True)
class Result:
    """One run's figures and facts."""

    one_run: StreamRun
    facts: dict[str, Any]
    """backbone, order, tasks, zero_shot, steps, seconds, config of the method."""
    values: Mapping[tuple[str, str], Mapping[tuple[int, int], float]]
    """Figures by subject and name, by evaluation (after) and number."""

    @property
    def num_tasks(self) -> int:
        return len(self.facts["order"])

    def matrix(self, figure: str) -> np.ndarray:
        """Return R[t, i] of a figure, in percent, float64 (T, T); NaN where it was not evaluated."""
        found, num = self.values.get((TASK, figure), {}), self.num_tasks
        nan = float("nan")
        return np.array([[100 * found.get((after, i), nan) for i in range(num)] for after in range(num)])

    def before(self, figure: str) -> np.ndarray:
        """Return the figure of every task before any training, in percent, float64 (T,)."""
        found = self.values[TASK, figure]
        return np.array([100 * found.get((BEFORE, i), float("nan")) for i in range(self.num_tasks)])

    def of_method(self, figure: str) -> np.ndarray:
        """Return a figure of the method after each task, float64 (T,); NaN where there is none."""
        found = self.values.get((METHOD, figure), {})
        return np.array([found.get((after, 0), np.nan) for after in range(self.num_tasks)])

    @property
    def main(self) -> str:
        """The main figure: fused, of the merged gallery, both ways; or of answers."""
        answers = f"{FUSED} {ANSWERS}"
        return answers if (TASK, answers) in self.values else f"{FUSED} {MERGED} {BOTH}"


def read_result(folder: Folder, one_run: StreamRun) -> Result:
    """Return the results of a finished run. Raises ValueError if the file is another run's, or cannot be
    read."""
    facts = _read_facts(folder, one_run)
    if facts is None:
        own = f"{name_stream(one_run.stream)}, {one_run.method}, seed {one_run.seed}"
        where = folder.at(RUNS, f"{one_run.name}.json")
        raise ValueError(f"{where}: belongs to another run than {own}; remove it")
    table = read_columns(folder.at(RUNS, f"{one_run.name}.parquet"))
    values: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    for row in table.to_pylist():
        values.setdefault((row["of"], row["figure"]), {})[row["after"], row["number"]] = row["value"]
    return Result(one_run, facts, values)


def is_done(folder: Folder, one_run: StreamRun) -> bool:
    """Whether a run has ended: a damaged file of its name, or another run's file, does not count."""
    return folder.exists(RUNS, f"{one_run.name}.json") and _read_facts(folder, one_run) is not None


def _read_facts(folder: Folder, one_run: StreamRun) -> dict[str, Any] | None:
    """Return the contents of the file of a run's name; none if it is not of this run."""
    try:
        facts = folder.read_json(RUNS, f"{one_run.name}.json")
    except (ValueError, RecursionError):
        return None
    known = facts.get("cell") if isinstance(facts, dict) else None
    return facts if isinstance(known, dict) and {"rate": None, **known} == vars(one_run) else None


def measure(result: Result) -> dict[str, float]:
    """Return the metrics of one run, shares in percent, by name: score, gallery and direction, then the
    metric, as ``core.continual.MatrixSummary`` names them. The main figure's metrics have no such prefix.

    The figures before training are by captions alone, for all methods the frozen model, not by an untrained
    composer. zstd: in points, of zero-shot sets' own galleries, by the score after the last task, minus the
    frozen model's.
    """
    found: dict[str, float] = {}
    figures = [figure for of, figure in result.values if of == TASK and not figure.endswith(_BOUND)]
    for prefix, figure in (("", result.main), *((f"{figure} ", figure) for figure in figures)):
        score, _, rest = figure.partition(" ")
        before_T = result.before(f"{TEXT} {rest}" if score in SCORES else figure)
        summary = core.summarise(result.matrix(figure), before_T)._asdict()
        found |= {f"{prefix}{name}": value for name, value in summary.items()}
    for score in SCORES:
        for name in _BOUND:
            last_T = result.matrix(f"{score} {name}")[-1]
            found[f"{score} {CRR if name == 'crr' else name}"] = float((last_T / 100).mean())
        found[f"{score} {CRR_LEARNED}"] = float(list_retained(result, score)[-1])
    for score in SCORES:
        found[f"{score} zstd"] = float(list_drifts(result, score)[-1])
    for of, name in result.values:
        if of == METHOD and not name.endswith("_last"):
            found[name] = float(result.of_method(name)[-1])
    found["sigma_max"] = float(np.nanmax([*result.of_method("sigma_max"), -np.inf]))
    found |= correlate_tasks(result)
    found["seconds"] = result.facts["seconds"]
    return {name: value for name, value in found.items() if np.isfinite(value)}


def list_drifts(result: Result, score: str) -> np.ndarray:
    """Return ZSTD after each task, in points, float64 (T,); NaN where it was not evaluated."""
    rest = ANSWERS if result.main.endswith(ANSWERS) else f"{OWN} {BOTH}"
    before = result.values.get((ZERO_SHOT, f"{TEXT} {rest}"), {})
    after = result.values.get((ZERO_SHOT, f"{score} {rest}"), {})
    numbers = sorted({number for _, number in after}) if before else []
    initial = [100 * before[BEFORE, number] for number in numbers]
    every = [[100 * after.get((t, one), np.nan) for one in numbers] for t in range(result.num_tasks)]
    return np.array([core.zero_shot_drift(initial, one) for one in every])


def average_so_far(result: Result, figure: str) -> np.ndarray:
    """Return after each task the mean over the tasks learned so far, (T,), in percent; or NaN."""
    matrix = result.matrix(figure)
    return np.array([matrix[t, : t + 1].mean() for t in range(len(matrix))])


def list_retained(result: Result, score: str) -> np.ndarray:
    """Return after each task the pair accuracy on all tasks before, relative to the accuracies right after
    each of them, (T,): 1 if nothing is lost. NaN after the first task, without the figure, and if no pair was
    right."""
    pair_TT = result.matrix(f"{score} a_pair")
    now_T, then_T = np.tril(pair_TT, -1).sum(1), np.cumsum([0, *pair_TT.diagonal()[:-1]])
    return np.divide(now_T, then_T, out=np.full(result.num_tasks, np.nan), where=then_T > 0)


def correlate_tasks(result: Result) -> dict[str, float]:
    """Return Pearson's r over the tasks of one run, at least three: the largest sigma of each with the main
    figure and with CRR, over the tasks so far (CRR to learned needs four); CCE with the size of ZSTD."""
    sigma_T = result.of_method("sigma_max")
    pairs = {
        "sigma_recall_r": (sigma_T, average_so_far(result, result.main)),
        f"sigma_{CRR}_r": (sigma_T, average_so_far(result, f"{FUSED} crr")),
        f"sigma_{CRR_LEARNED}_r": (sigma_T[1:], list_retained(result, FUSED)[1:]),
        "cce_zstd_r": (result.of_method("cce_transpose"), np.abs(list_drifts(result, FUSED))),
    }
    return {
        name: pearson(*pair) for name, pair in pairs.items() if len(pair[0]) > 2 and np.isfinite(pair).all()
    }


_METRICS = ("last", "learned", "forgetting_best")


def list_trials(config: ContinualConfig) -> list[StreamRun]:
    """Return the development runs, all methods of a seed in sequence; none if nothing is selected.

    Methods are developed on the first stream, all at the same multiples of their learning rate.
    """
    first, made = config.first_seed + max(config.seeds, config.tune_seeds or 0), []
    for name in data.list_methods(config):
        method = get_method(name)
        if method.trains is None:
            continue
        takes_steps = method.settings.get("head.steps") != 0
        rates = dict.fromkeys(config.develop.rates) if takes_steps else (1.0,)
        for seed in range(first, first + config.develop.seeds):
            made += [StreamRun(config.stream[0], name, seed, rate) for rate in rates]
    return sorted(made, key=lambda one_run: one_run.seed)


def choose(results: Mapping[StreamRun, Result], config: ContinualConfig) -> dict[str, Choice]:
    """Return each method's selected values: the highest mean of Last over development seeds; ties go to the
    values nearest to the default."""
    chosen: dict[str, Choice] = {}
    for method in dict.fromkeys(one_run.method for one_run in results):
        found = dict(_score(results, method, config))
        nearest = sorted(found, key=lambda one: (abs(log(one.rate)), abs((one.weight or 0) - config.weight)))
        chosen[method] = max(nearest, key=lambda one: found[one]["last"])
    return chosen


def _score(
    results: Mapping[StreamRun, Result], method: str, config: ContinualConfig
) -> Iterator[tuple[Choice, dict[str, float]]]:
    """Yield the tried values of a method, with the means of its metrics over seeds."""
    own = {one_run: result for one_run, result in results.items() if one_run.method == method}
    for rate in dict.fromkeys(one_run.rate for one_run in own):
        some = [result for one_run, result in own.items() if one_run.rate == rate]
        measured, figure = [measure(one) for one in some], some[0].main.partition(" ")[2]
        is_weighed = any(name.startswith("w=") for name in measured[0])
        weights = tuple(dict.fromkeys(config.develop.weights)) if is_weighed else (None,)
        for weight in weights:
            prefix = "" if weight is None else f"w={weight} {figure} "
            values = {name: [one.get(prefix + name, np.nan) for one in measured] for name in _METRICS}
            yield Choice(rate or 1.0, weight), {name: float(np.mean(found)) for name, found in values.items()}


def list_ends(chosen: Mapping[str, Choice], config: ContinualConfig) -> list[str]:
    """Return a line for each method whose selected rate is an end of the grid of ``develop.rates``."""
    rates = sorted({*config.develop.rates})
    beyond = {one: one**2 / near for one, near in (rates[:2], rates[:-3:-1])} if len(rates) > 1 else {}
    return [
        f"develop.rates: {name_method(method)} selected {choice.rate:g}, an end of the grid; extend "
        f"develop.rates, for example by {beyond[choice.rate]:.2g}"
        for method, choice in chosen.items()
        if choice.rate in beyond and get_method(method).settings.get("head.steps") != 0
    ]


def report_trials(
    results: Mapping[StreamRun, Result], chosen: Mapping[str, Choice], config: ContinualConfig
) -> Table:
    """Return a table of learning and forgetting at each rate and weight, with the selected ones."""
    rows: list[tuple[Cell, ...]] = []
    for method in dict.fromkeys(one_run.method for one_run in results):
        stream = next(one_run.stream for one_run in results if one_run.method == method)
        for choice, means in _score(results, method, config):
            found = (None if np.isnan(means[name]) else means[name] for name in _METRICS)
            mark = "selected" if choice == chosen[method] else ""
            weight = choice.weight
            rows.append((name_method(method), name_stream(stream), f"{choice.rate:g}", weight, *found, mark))
    columns: Columns = (
        *("Method", "stream", "rate x", Column("w", digits=2)),
        *(Column(name, digits=1) for name in ("last", "learned", "forgotten")),
        "",
    )
    note = (
        f"Means over {config.develop.seeds} development seeds, in percent, used only for selection. The row "
        "with the highest Last is selected; all other tables use other seeds. Rate: multiple of the method's "
        "learning rate. A method that forgets less at a lower rate may only have learned less."
    )
    return Table("Development seeds: learning and forgetting", columns, rows, note)


TEXT, COMPOSED, FUSED = "text", "composed", "fused"
SCORES = (TEXT, COMPOSED, FUSED)
"""Scores by e_c, by e^_c, and by both. A method without compositions uses e_c for all of them."""
OWN, MERGED = "own", "merged"
"""Candidates of one task, or of all tasks together."""
TO_TEXT, TO_IMAGE, BOTH = "image_to_text", "text_to_image", "both"
ANSWERS = "answers"
BEFORE = -1
"""The number for the evaluation before the first task."""
TASK, ZERO_SHOT, METHOD = "task", "zero_shot", "method"
"""Subject of a figure: a task by its position in training order, a zero-shot set by its number, or the
method."""
_IMAGES_AT_ONCE = 512


@dataclass(frozen=True)
class Questions:
    """The tests of all tasks as one split, with the rows and texts of each task."""

    split: Split
    sample_IN: tuple[np.ndarray, ...]
    """Row indices by task."""
    text_IT: tuple[np.ndarray, ...]
    """By task, indices of its texts in ``split.texts``."""


def gather_questions(tests: Sequence[Split]) -> Questions:
    """Concatenate the tests of tasks, in their order."""
    joined = data.join_splits(tests)
    place_of = {text: place for place, text in enumerate(joined.texts)}
    starts = np.cumsum([0, *map(len, tests)])
    samples = tuple(np.arange(start, end) for start, end in pairwise(starts))
    texts = tuple(np.array([place_of[text] for text in test.texts], np.int64) for test in tests)
    return Questions(joined, samples, texts)


class Figure(NamedTuple):
    """One figure of one task."""

    task: int
    name: str
    """Score, gallery and direction, or another description of the figure."""
    value: float


def judge_tasks(
    asked: Questions, keys: Keys, weight: float, weights: Sequence[float] = ()
) -> Iterator[Figure]:
    """Yield the accuracies of every task, each as a share, 0 to 1.

    With compositions, also the main figure by each other weight w of ``weights``, named "w=..."; that is what
    development selects by.
    """
    split = asked.split
    tried = [(f"w={one}", one) for one in weights] if keys.composed_ETD is not None else []
    for score, own_weight in (*weigh(weight).items(), *tried):
        if split.candidate_NK is not None:
            yield from _report_answers(asked, f"{score} {ANSWERS}", answer(split, keys, own_weight))
            continue
        merged = search(split, keys, own_weight, np.arange(len(split)), np.arange(len(split.texts)))
        for task, (sample_N, text_T) in enumerate(zip(asked.sample_IN, asked.text_IT, strict=True)):
            galleries = {MERGED: (merged.right_N[sample_N], merged.right_T[text_T])}
            if score in SCORES:
                own = search(split, keys, own_weight, sample_N, text_T)
                galleries = {OWN: (own.right_N, own.right_T), **galleries}
            has_T = np.isin(text_T, split.own_N[sample_N])
            for gallery, (right_N, right_T) in galleries.items():
                to_text, to_image = float(right_N.mean()), float(right_T[has_T].mean())
                if score in SCORES:
                    yield Figure(task, f"{score} {gallery} {TO_TEXT}", to_text)
                    yield Figure(task, f"{score} {gallery} {TO_IMAGE}", to_image)
                yield Figure(task, f"{score} {gallery} {BOTH}", (to_text + to_image) / 2)
            if score in SCORES:
                yield from _report_binding(task, score, split, sample_N, merged.first_N[sample_N])


def _report_answers(asked: Questions, name: str, right_N: np.ndarray) -> Iterator[Figure]:
    for task, sample_N in enumerate(asked.sample_IN):
        yield Figure(task, name, float(right_N[sample_N].mean()))


def weigh(weight: float) -> dict[str, float]:
    """Return the weight of the composition in each score."""
    return {TEXT: 0.0, COMPOSED: 1.0, FUSED: weight}


class SearchResult(NamedTuple):
    """Results of retrieval in both directions."""

    right_N: np.ndarray
    """Whether an image's own text scores strictly above all others, bool."""
    right_T: np.ndarray
    """Whether an own image of a text scores strictly above all other images, bool; False for texts without an
    image."""
    first_N: np.ndarray
    """The text retrieved for an image, an index in ``split.texts``."""


def search(split: Split, keys: Keys, weight: float, sample_N: np.ndarray, text_T: np.ndarray) -> SearchResult:
    """Retrieve texts by images and images by texts, by the score of ``core.continual.fuse``."""
    own_N = split.own_N[sample_N]
    right_N, first_N = np.zeros(len(sample_N), bool), np.zeros(len(sample_N), np.int64)
    own_T, other_T = np.full((2, len(text_T)), -np.inf, np.float32)
    for start in range(0, len(sample_N), _IMAGES_AT_ONCE):
        part = slice(start, start + _IMAGES_AT_ONCE)
        score_BT = score_pairs(keys, weight, sample_N[part], text_T)
        is_own_BT = own_N[part][:, None] == text_T
        first_N[part] = text_T[score_BT.argmax(1)]
        own_BT = np.where(is_own_BT, score_BT, -np.inf)
        other_BT = np.where(is_own_BT, -np.inf, score_BT)
        right_N[part] = own_BT.max(1) > other_BT.max(1)
        own_T = np.maximum(own_T, own_BT.max(0))
        other_T = np.maximum(other_T, other_BT.max(0))
    return SearchResult(right_N, own_T > other_T, first_N)


def score_pairs(keys: Keys, weight: float, sample_N: np.ndarray, text_T: np.ndarray) -> np.ndarray:
    """Return the score of every image with every text, fp32 (N, T)."""
    image_ND, text_TD = keys.image_ND[sample_N], keys.text_TD[text_T]
    if keys.composed_ETD is None or not weight:
        return image_ND @ text_TD.T
    if keys.expert_N is None:
        return image_ND @ core.fuse(text_TD, keys.composed_ETD[0, text_T], weight).T
    score_NT = np.zeros((len(sample_N), len(text_T)), np.float32)
    for expert, composed_TD in enumerate(keys.composed_ETD):
        is_its_N = keys.expert_N[sample_N] == expert
        score_NT[is_its_N] = image_ND[is_its_N] @ core.fuse(text_TD, composed_TD[text_T], weight).T
    return score_NT


def answer(split: Split, keys: Keys, weight: float) -> np.ndarray:
    """Return whether the right answer of each question scores strictly above the other candidates, bool
    (N,)."""
    assert split.candidate_NK is not None
    right_N = np.zeros(len(split), bool)
    for row, candidate_K in enumerate(split.candidate_NK):
        own, text_K = split.own_N[row], candidate_K[candidate_K >= 0]
        score_K = score_pairs(keys, weight, np.array([row]), text_K)[0]
        is_own_K = text_K == own
        right_N[row] = score_K[is_own_K].max() > score_K[~is_own_K].max(initial=-np.inf)
    return right_N


def _report_binding(
    task: int, score: str, split: Split, sample_N: np.ndarray, first_N: np.ndarray
) -> Iterator[Figure]:
    """Yield the shares of retrieved texts with the right attributes, the right objects, and both bound
    correctly; CRR. A primitive's last word is its object, all words before are attributes."""
    if all(" " not in name.strip() for names in split.primitives for name in names):
        return  # no name has an attribute

    def list_attributes(primitives: Sequence[str]) -> list[str]:
        return sorted(word for one in primitives for word in one.split()[:-1])

    def list_objects(primitives: Sequence[str]) -> list[str]:
        return sorted(one.split()[-1] for one in primitives if one.split())

    own, found = ([split.primitives[place] for place in some] for some in (split.own_N[sample_N], first_N))
    rights = [
        np.array([kind(a) == kind(b) for a, b in zip(own, found, strict=True)])
        for kind in (sorted, list_attributes, list_objects)
    ]
    for name, value in zip(_BOUND, core.compute_retention(*rights), strict=True):
        yield Figure(task, f"{score} {name}", value)


def judge_drift(start_KTW: Iterable[np.ndarray], now_KTW: Iterable[np.ndarray]) -> Iterator[Figure]:
    """Yield how far the states after each block of the text tower moved from the start model's."""
    for layer, states in enumerate(zip(start_KTW, now_KTW, strict=True), 1):
        drift = core.measure_drift(*states)
        yield Figure(0, f"{SUBSPACE_DRIFT}{layer}", drift.subspace)
        yield Figure(0, f"{STATE_DISTANCE}{layer}", drift.distance)


PRIOR, SHUFFLED, CHANCE = "prior", "shuffled", "chance"
_SHUFFLE_SEED = 41


def judge_text_only(
    asked: Questions, keys: Keys, weight: float, trainings: Sequence[Split]
) -> Iterator[Figure]:
    """Yield the accuracies of two baselines on each task's questions, as shares.

    Text-only: the answer that was right most often for questions of the same kind in all training data; ties
    are guessed. Shuffled image: the fused score with the image of another question of the task; a tie is
    wrong.
    """
    split = asked.split
    if split.candidate_NK is None or split.kind_N is None:
        return
    places: dict[str, int] = {}
    seen = [number_answers(one, places)[one.candidate_NK == one.own_N[:, None]] for one in trainings]
    kinds = [one.kind_N for one in trainings if one.kind_N is not None]
    asked_NK = number_answers(split, places)
    score_NK = core.score_by_prior(np.concatenate(seen), np.concatenate(kinds), split.kind_N, asked_NK)
    is_own_NK = split.candidate_NK == split.own_N[:, None]
    own_N, best_N = np.where(is_own_NK, score_NK, -np.inf).max(1), score_NK.max(1)
    by_prior_N = np.where(own_N == best_N, 1 / (score_NK == best_N[:, None]).sum(1), 0.0)
    rng, order_N = np.random.default_rng(_SHUFFLE_SEED), np.arange(len(split))
    for sample_N in asked.sample_IN:
        order_N[sample_N] = rng.permutation(sample_N)
    expert_N = None if keys.expert_N is None else keys.expert_N[order_N]
    others = keys._replace(image_ND=keys.image_ND[order_N], expert_N=expert_N)
    yield from _report_answers(asked, f"{PRIOR} {ANSWERS}", by_prior_N)
    yield from _report_answers(asked, f"{SHUFFLED} {ANSWERS}", answer(split, others, weight))
    yield from _report_answers(asked, f"{CHANCE} {ANSWERS}", 1 / (split.candidate_NK >= 0).sum(1))


def number_answers(split: Split, places: dict[str, int]) -> np.ndarray:
    """Return an answer number for every candidate, int64 (N, K), -1 = padding; new answers are added to
    ``places``.

    If all candidates start with the same question, the answer is the text after it. The question is the
    shared words up to one that ends in "?". Example: "what is it? a dog" and "what is it? a cat" have the
    answers "a dog" and "a cat".
    """
    assert split.candidate_NK is not None
    number_NK = np.full(split.candidate_NK.shape, -1, np.int64)
    for row, candidate_K in enumerate(split.candidate_NK):
        said = [split.texts[text].split() for text in candidate_K[candidate_K >= 0]]
        asked = [place for place, word in enumerate(commonprefix(said), 1) if word.endswith("?")]
        answers = [" ".join(words[max(asked, default=0) :]) for words in said]
        number_NK[row, candidate_K >= 0] = [places.setdefault(answer, len(places)) for answer in answers]
    return number_NK


def judge_margins(
    tests: Sequence[Split], edits: Sequence[Edits], keys: Sequence[tuple[Keys, Keys]], weight: float
) -> Iterator[Figure]:
    """Yield, by score and category, the margins s(image, caption) - s(image, edit), over all tasks together.

    Mean, share above 0, share that is exactly 0, and Wilcoxon's p. ``keys``: of each test, and its edits.
    """
    category_M = np.concatenate([one.category_M for one in edits])
    for score, own in weigh(weight).items():
        margins = []
        for test, some, (of_test, of_edits) in zip(tests, edits, keys, strict=True):
            for row, text in zip(some.row_M.tolist(), some.text_M.tolist(), strict=True):
                row_1 = np.array([row])
                right = score_pairs(of_test, own, row_1, test.own_N[row_1])[0, 0]
                expert_1 = None if of_test.expert_N is None else of_test.expert_N[row_1]
                seen = of_edits._replace(image_ND=of_test.image_ND[row_1], expert_N=expert_1)
                wrong = score_pairs(seen, own, np.zeros(1, np.int64), np.array([text]))[0, 0]
                margins.append(right - wrong)
        for category in np.unique(category_M).tolist():
            some_M = np.array(margins)[category_M == category].astype(np.float64)
            name = f"{score} margin {category}"
            yield Figure(0, name, float(some_M.mean()))
            yield Figure(0, f"{name} above", float((some_M > 0).mean()))
            yield Figure(0, f"{name} zero", float((some_M == 0).mean()))
            yield Figure(0, f"{name} p", wilcoxon(some_M))
