"""Metrics of continual learning, and the text micro-buffer of past tasks.

COMPO-REALIGN (ICLR 2026, openreview.net/forum?id=eiTy6AYeQi), third key design. An image buffer also holds
the image's embedding. Both kinds have a budget in entries and one in bytes.

T tasks; ``score_TT[t, i]`` is the score on task i after task t was learned, ``before_T[i]`` the score before
any task. A metric that a method or a stream does not have is NaN. B samples, P primitives of each at most, V
names, D dims, N questions or texts, K candidate answers; of a subspace, S directions.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from raycomp.config.options import check
from raycomp.core.metrics import auc
from raycomp.table import group_by


@dataclass(frozen=True)
class BufferEntry:
    """The stored part of a sample."""

    text: str
    primitives: tuple[str, ...]
    image: bytes = b""
    """The image's embedding, for an image buffer; the caller defines its content."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the entry: text and primitives in UTF-8, and the image."""
        words = (self.text, *self.primitives)
        return sum(len(word.encode("utf-8", "surrogatepass")) for word in words) + len(self.image)


class MicroBuffer:
    """At most ``per_task`` entries of each task, drawn uniformly from its distinct entries.

    The entries of the smallest hash of (seed, task, entry) are kept. The draw does not depend on the order
    and the batches of entries, nor on repetitions. A task with fewer entries is kept completely.
    ``max_bytes`` of each task is a second limit: entries are taken in this order until one does not fit.
    Entries that alone exceed the limit are skipped.
    """

    def __init__(self, per_task: int, seed: int, max_bytes: int | None = None):
        for name, value in (("buffer.per_task", per_task), ("buffer.max_bytes", max_bytes)):
            check(value is None or value >= 0, name, value, "at least 0")
        self.per_task, self.seed, self.max_bytes = per_task, seed, max_bytes
        self._tasks: dict[int, dict[bytes, BufferEntry]] = {}
        """By task, the entries sorted by hash, rising."""

    def add(self, task: int, entries: Iterable[BufferEntry]) -> None:
        """Add entries of a task."""
        most = float("inf") if self.max_bytes is None else self.max_bytes
        fitting = {}
        for entry in entries:
            if entry.num_bytes <= most:
                named = json.dumps([self.seed, task, entry.text, entry.primitives]).encode()
                fitting[hashlib.blake2b(named + entry.image, digest_size=16).digest()] = entry
        nearest = sorted((self._tasks.get(task, {}) | fitting).items())[: self.per_task]
        num_fit = sum(total <= most for total in accumulate(entry.num_bytes for _, entry in nearest))
        self._tasks[task] = dict(nearest[:num_fit])

    def entries(self, before: int | None = None) -> list[BufferEntry]:
        """Return the entries of all tasks, or those of tasks below ``before``, in the order of tasks."""
        tasks = sorted(task for task in self._tasks if before is None or task < before)
        return [entry for task in tasks for entry in self._tasks[task].values()]

    def draw(self, num: int, rng: np.random.Generator, before: int | None = None) -> list[BufferEntry]:
        """Draw ``num`` of these entries, each at most once; all of them where there are no more."""
        entries = self.entries(before)
        chosen = rng.choice(len(entries), min(num, len(entries)), replace=False)
        return [entries[place] for place in chosen]

    @property
    def num_bytes(self) -> int:
        """Bytes of all entries."""
        return sum(entry.num_bytes for entry in self.entries())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for json."""
        rows = [
            [task, entry.text, list(entry.primitives), entry.image.hex()]
            for task, own in self._tasks.items()
            for entry in own.values()
        ]
        return {"per_task": self.per_task, "seed": self.seed, "max_bytes": self.max_bytes, "rows": rows}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "MicroBuffer":
        """Return the buffer that ``to_dict`` wrote."""
        buffer = cls(values["per_task"], values["seed"], values["max_bytes"])
        by_task: dict[int, list[BufferEntry]] = {}
        for task, text, primitives, image in values["rows"]:
            by_task.setdefault(task, []).append(BufferEntry(text, tuple(primitives), bytes.fromhex(image)))
        for task, entries in by_task.items():
            buffer.add(task, entries)
        return buffer


def make_template(entry: BufferEntry) -> tuple[str, ...] | None:
    """Return a stored caption in parts: words, then for each place an article or "", the number of its
    primitive, and the words behind; none if the caption does not name all its primitives word by word."""
    names = {name.lower() for name in entry.primitives}
    longest = "|".join(re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name)))
    parts = re.split(rf"(?<!\w)((?:an? )?)({longest})(?!\w)", entry.text, flags=re.IGNORECASE)
    numbers: dict[str, str] = {}
    for at in range(2, len(parts), 3):
        parts[at] = numbers.setdefault(parts[at].lower(), str(len(numbers)))
    return tuple(parts) if {*numbers} == names else None


def fill_template(template: Sequence[str], names: Sequence[str]) -> str:
    """Return the caption with these primitives, its articles fitted to them."""
    parts = [*template]
    for at in range(2, len(parts), 3):
        parts[at] = names[int(parts[at])]
        if article := parts[at - 1]:
            parts[at - 1] = article[0] + ("n " if parts[at][:1].lower() in tuple("aeiou") else " ")
    return "".join(parts)


def reword(
    entries: Iterable[BufferEntry], captions: Mapping[str, Sequence[str]], rng: np.random.Generator
) -> dict[tuple[str, ...], str]:
    """Return a paraphrase of each composition of captions: a stored caption that names as many primitives,
    with those of the composition in their place, the first named for the first named.

    It is drawn from the distinct templates, and differs from all captions of the composition; a composition
    without such a template has none. Other stored words, such as relations and counts, stay as they are.
    """
    made = [one for one in dict.fromkeys(map(make_template, entries)) if one is not None]
    found: dict[tuple[str, ...], str] = {}
    for names, said in group_by(captions, lambda text: tuple(sorted(set(captions[text])))).items():
        first = said[0].lower()
        ordered = sorted(names, key=lambda name: first.find(name.lower()))
        fitting = [one for one in made if len({*one[2::3]}) == len(names)]
        drawn = (fill_template(fitting[place], ordered) for place in rng.permutation(len(fitting)))
        found[names] = next((text for text in drawn if text not in said), "")
    return {names: text for names, text in found.items() if text}


class MatrixSummary(NamedTuple):
    """The metrics of a matrix; a forgetting metric has the name of its definition."""

    transfer: float
    """Mean over tasks except the first of the mean score before they are learned: R[j, i], j < i (ZSCL)."""
    average: float
    """Mean of the whole matrix (ZSCL)."""
    last: float
    """Mean after the last task."""
    learned: float
    """Mean of R[i, i], each task just learned."""
    forgetting_best: float
    """Mean over all tasks except the last of max over t >= i of R[t, i], less R[T - 1, i]; >= 0 (Mammoth)."""
    forgetting_first: float
    """The same of R[i, i] instead of the best (Avalanche); less than 0 where later tasks help."""
    forgetting_step: float
    """Mean over t > 0 of the mean over i < t of R[t - 1, i] - R[t, i] (ConStruct-VL)."""
    forward: float
    """Mean over all tasks except the first of R[i - 1, i], less ``before_T`` (FWT)."""
    gain: float
    """``last`` less the mean of ``before_T``: the gain of the whole stream."""


def summarise(score_TT: np.ndarray, before_T: np.ndarray | None = None) -> MatrixSummary:
    """Return the metrics of a matrix. NaN in it, as above the diagonal of a method without zero-shot scores,
    makes the metrics that use the value NaN. ValueError unless it is square, and ``before_T`` as long.
    """
    score_TT = np.asarray(score_TT, np.float64)
    num = len(score_TT)
    if not num or score_TT.shape != (num, num):
        raise ValueError(f"scores {score_TT.shape}: must be (T, T), T at least 1")
    start_T = np.full(num, np.nan) if before_T is None else np.asarray(before_T, np.float64)
    if start_T.shape != (num,):
        raise ValueError(f"scores before {start_T.shape}: must be ({num},)")
    own_T, last_T = np.diag(score_TT), score_TT[-1]
    best_T = np.array([score_TT[i:, i].max() for i in range(num)])
    return MatrixSummary(
        transfer=_mean([score_TT[:i, i].mean() for i in range(1, num)]),
        average=_mean(score_TT),
        last=_mean(last_T),
        learned=_mean(own_T),
        forgetting_best=_mean((best_T - last_T)[:-1]),
        forgetting_first=_mean((own_T - last_T)[:-1]),
        forgetting_step=_mean([(score_TT[t - 1, :t] - score_TT[t, :t]).mean() for t in range(1, num)]),
        forward=_mean([score_TT[i - 1, i] - start_T[i] for i in range(1, num)]),
        gain=_mean(last_T) - _mean(start_T),
    )


class Retention(NamedTuple):
    """CRR, which is 1 for chance too, with its parts."""

    ratio: float
    """pair / (attribute * object): 1 if both are right independently, above 1 if together."""
    pair: float
    attribute: float
    object: float


def compute_retention(
    right_pair_N: np.ndarray, right_attribute_N: np.ndarray, right_object_N: np.ndarray
) -> Retention:
    """Return the compositional retention ratio of N samples; NaN without any, or if a part is never right."""
    pair, attribute, thing = map(_mean, (right_pair_N, right_attribute_N, right_object_N))
    apart = attribute * thing
    return Retention(pair / apart if apart else float("nan"), pair, attribute, thing)


def zero_shot_drift(before_D: Sequence[float], after_D: Sequence[float]) -> float:
    """Return ZSTD, the mean over held-out data sets of after - before, in their unit; negative is a loss."""
    if len(before_D) != len(after_D):
        raise ValueError(f"{len(before_D)} data sets before and {len(after_D)} after: must be equal")
    return _mean(np.subtract(after_D, before_D))


class LayerDrift(NamedTuple):
    """How far the hidden states of a layer moved between two models."""

    subspace: float
    """One minus the mean squared cosine of the principal angles, 0 (the same subspace) to 1 (at right
    angles)."""
    distance: float
    """Mean over texts of one minus the cosine of the text's two states, not centred, 0 to 2."""


def measure_drift(start_ND: np.ndarray, now_ND: np.ndarray) -> LayerDrift:
    """Return how far a layer's states of the same texts moved from those of the start model.

    COMPO-REALIGN names a "subspace drift" by layer; its text defines neither subspace nor token, so both are
    our choice. With A and B the S main directions of the centred states, before and now (the largest right
    singular vectors, as rows), drift = 1 - |A B^T|^2 / S (Frobenius), the mean sin^2 of the principal angles
    (Bjorck and Golub 1973). S = min(16, D // 2, rank at the start): at most half the dims, so that 1 can be
    reached. A direction that the states have lost counts as a right angle. A shift of all states and their
    scale do not count; in the distance a shift does. NaN for the subspace if all start states are equal; a
    state of length 0 has distance 1. ValueError unless both have the same shape, with at least one text.
    """
    start_ND, now_ND = np.asarray(start_ND, np.float64), np.asarray(now_ND, np.float64)
    if start_ND.ndim != 2 or start_ND.shape != now_ND.shape or not len(start_ND):
        raise ValueError(f"states {start_ND.shape} and {now_ND.shape}: must be (N, D) both, N at least 1")
    length_N = np.linalg.norm(start_ND, axis=1) * np.linalg.norm(now_ND, axis=1)
    cosine = _mean((start_ND * now_ND).sum(1) / np.maximum(length_N, 1e-300))
    most = min(16, start_ND.shape[1] // 2)
    before_SD, after_SD = _find_directions(start_ND, most), _find_directions(now_ND, most)
    num = len(before_SD)
    shared = np.square(before_SD @ after_SD[:num].T).sum() / num if num else np.nan
    return LayerDrift(float(np.clip(1 - shared, 0, 1)), float(np.clip(1 - cosine, 0, 2)))


def _find_directions(state_ND: np.ndarray, most: int) -> np.ndarray:
    """Return the main directions of centred states, (S, D); fewer than ``most`` where their rank is lower."""
    centred_ND = state_ND - state_ND.mean(0)
    _, size_R, direction_RD = np.linalg.svd(centred_ND, full_matrices=False)
    # Rounding of fp32 states is not a direction.
    least = np.abs(state_ND).max() * max(state_ND.shape) * np.finfo(np.float32).eps
    return direction_RD[: min(most, int((size_R > least).sum()))]


def cycle_errors(direction_BD: np.ndarray, primitive_BPD: np.ndarray, valid_BP: np.ndarray) -> np.ndarray:
    """Return CCE of each sample: the mean distance of its primitives from the direction read back, 0 to 2.

    ``direction_BD`` is the result of ``Composer.decompose``. Primitives are the composer's, shaped; they are
    scaled to length 1 here. Against their mean CCE would be 0 for any invertible R; m primitives at right
    angles have sqrt(2 - 2 / sqrt(m)).
    """
    primitive_BPD = np.where(valid_BP[..., None], np.asarray(primitive_BPD, np.float64), 0.0)
    length_BP1 = np.linalg.norm(primitive_BPD, axis=-1, keepdims=True)
    apart_BPD = primitive_BPD / np.maximum(length_BP1, 1e-300) - np.asarray(direction_BD)[:, None]
    return np.where(valid_BP, np.linalg.norm(apart_BPD, axis=-1), 0.0).sum(1) / valid_BP.sum(1)


class ReadOut(NamedTuple):
    """How well primitives are separated from other names, over all samples."""

    pr_auc: float
    """Average precision: the mean over own primitives of the precision at their score."""
    roc_auc: float
    base: float
    """The share of own primitives: the chance level of ``pr_auc``."""


def judge_read_out(score_BV: np.ndarray, is_own_BV: np.ndarray) -> ReadOut:
    """Evaluate scores of every name for every sample; ValueError on NaN, and without own or other names."""
    own_N, other_M = np.asarray(score_BV)[is_own_BV], np.asarray(score_BV)[~is_own_BV]
    roc_auc = auc(own_N, other_M)
    return ReadOut(average_precision(own_N, other_M), roc_auc, len(own_N) / is_own_BV.size)


def average_precision(positive_N: np.ndarray, negative_M: np.ndarray) -> float:
    """Return the area under precision over recall by steps, equal scores counted together, in (0, 1]."""
    positive_N, negative_M = np.sort(positive_N), np.sort(negative_M)
    own_N = len(positive_N) - np.searchsorted(positive_N, positive_N, "left")
    return float((own_N / (own_N + len(negative_M) - np.searchsorted(negative_M, positive_N, "left"))).mean())


def fuse(text: np.ndarray, composed: np.ndarray, weight: float = 0.5) -> np.ndarray:
    """Return (1 - w) s(z_v, e_c) + w s(z_v, e^_c), or keys that score so.

    With w = 0 it equals the frozen model, bit by bit, for any head. Raises ValueError unless 0 <= w <= 1.
    """
    check(0 <= weight <= 1, "score.weight", weight, "between 0 and 1")
    if weight in (0, 1):
        return composed if weight else text
    return (1 - weight) * text + weight * composed


def score_by_prior(
    seen_M: np.ndarray, seen_kind_M: np.ndarray, kind_N: np.ndarray, candidate_NK: np.ndarray
) -> np.ndarray:
    """Return how often each candidate was the answer to the same kind of question, float64 (N, K).

    This is a text-only baseline. Answers and kinds of questions are whole numbers; below 0 a candidate is
    padding, with score -inf.
    """
    counts = Counter(zip(seen_kind_M.tolist(), seen_M.tolist(), strict=True))
    rows = zip(kind_N.tolist(), candidate_NK.tolist(), strict=True)
    score_N = [[counts[kind, one] for one in row] for kind, row in rows]
    score_NK = np.array(score_N, np.float64).reshape(candidate_NK.shape)
    return np.where(candidate_NK < 0, -np.inf, score_NK)


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if np.size(values) else float("nan")
