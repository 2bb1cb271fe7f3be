"""The drop of nonces compared with real words, with another picture, and on repetition with other nonces.

Go et al. (arXiv 2605.22651), section 7. Every text is embedded once; images are embeddings already.

N samples, T texts, D dims.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha1
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from raycomp.core.attribution import aggregate_drops, drop_per_displacement, pair_drop
from raycomp.core.calibration import (
    CONDITIONS,
    CROSS,
    NONCE,
    NUM_DRAWS,
    SAME,
    WRONG,
    calibrate,
    draw_others,
)
from raycomp.core.pas_profile import PasProfile, profile_pas
from raycomp.core.reliability import Retest, measure_retest, split_variance
from raycomp.core.selection import hash_uids, parse_uids
from raycomp.curation.config import SelectionRule
from raycomp.language.control_words import REASONS, Controls, ControlWords, find_word_set
from raycomp.language.nonce import make_counterfactual
from raycomp.models.parser import MAX_CHARACTERS
from raycomp.words import CONTENT, PER_DISPLACEMENT, SHOWABLE, UID, UNSEEN

if TYPE_CHECKING:
    from torch import Tensor

NO_NONCE = "no_nonce"
NO_NOUN = "no_noun"
NO_PICTURE = "no_other_picture"
LEFT_OUT = {
    NO_NONCE: "the curation found no valid nonce",
    NO_NOUN: "no control: the target is not a noun",
    **REASONS,
    NO_PICTURE: "no other sample has a different image whose caption contains none of the targets",
}
COUNTS = (1, 2, 4)
"""Nonces per target for the repeated measurement of PAS."""
NUM_AGAIN = 2 * max(COUNTS)
LEAST_SAMPLES = 10
"""Minimum number of samples for a correlation."""
_SAMPLES_PER_PASS = 256

Encode = Callable[[list[str], list[list[str]]], tuple["Tensor", "Tensor"]]
"""Captions and the variants of each -> fp32 embeddings [captions, D] and [all variants, D], in order."""
Redraw = Callable[[str, str, list[tuple[int, int]]], list[list[str]]]
"""A sample's uid, its caption and the spans of its targets -> up to ``NUM_AGAIN`` nonces of each."""


@dataclass(frozen=True)
class Samples:
    """Attributed samples of a curation, and the words of all its captions."""

    uids: list[str]
    captions: list[str]
    phrases: list[list[dict[str, Any]]]
    """For each sample, as ``schema.PHRASE_TYPE``, and its other content words if they count for PAS."""
    images: list[str | None]
    """SHA-256 of the image's bytes; None where unknown: the embedding then identifies the picture."""
    image_ND: np.ndarray
    alignment_N: np.ndarray
    vocabulary: frozenset[str]
    selection: SelectionRule
    """The run's reading of PAS."""
    score: str
    """The name of the score that ranks: PAS plus ``base_N``."""
    base_N: np.ndarray | float = 0.0


@dataclass(frozen=True)
class PasResult:
    """The results of ``probe pas``, as plain rows.

    ``calibration``: lines as ``core.calibration.calibrate`` returns them. ``targets``: the targets behind
    them, with the words and the drops. ``left_out``: the number of targets that lack a condition, by
    ``LEFT_OUT``. ``score``: the name of the score that ranks. ``retest``: for each of ``COUNTS``, value and
    95 % interval of its reliability and of the Spearman-Brown prediction from one nonce, and ``in_common``,
    the share of the kept set that other nonces keep too, where the share ``keep`` is kept. ``between`` and
    ``within``: standard deviations of targets' own drops, and of the drops of one target's nonces; from the
    ``num_again`` targets with two or more nonces.
    """

    score: str
    calibration: list[dict[str, Any]]
    left_out: dict[str, int]
    num_samples: int
    num_targets: int
    retest: list[dict[str, Any]]
    keep: float
    between: float
    within: float
    num_again: int
    num_others: int
    others_nonce: float
    """Number and mean drop of targets that have a nonce and lack another condition."""
    profile: dict[str, Any]
    """Correlates of the score that ranks, as ``core.pas_profile.PasProfile``."""
    targets: list[dict[str, Any]]


class _Target(NamedTuple):
    """A phrase's target: characters [start, end) of the caption of sample ``row``."""

    row: int
    start: int
    end: int
    kind: str
    nonces: list[str]
    controls: Controls | str
    """The control words, or the reason why there are none."""
    again: list[str]
    """Nonces for the repeated measurement; empty where the target is left out of PAS."""


@dataclass(frozen=True)
class _Drops:
    """s(I, T) - s(I, T~) of every text, fp32 (T,), with its own and the other picture; the displacement."""

    own_T: np.ndarray
    other_T: np.ndarray
    moved_T: np.ndarray
    number: dict[tuple[int, int, str], int]
    """Number of a text by row, start of the target and the substituted word."""

    def find(self, target: _Target, words: Iterable[str]) -> list[int]:
        """Return the numbers of the texts with some words in the place of a target."""
        return [self.number[target.row, target.start, word] for word in words]


def probe_samples(
    samples: Samples, encode: Encode, controls: ControlWords, redraw: Redraw, keep: float, seed: int
) -> PasResult:
    """Replace every target by nonces and by real words, and compare the drops.

    ``keep`` is the share of the samples that the curation keeps by PAS. ``seed`` pairs samples with other
    pictures and draws splits and resamples.
    """
    targets = list(_list_targets(samples, controls, redraw))
    picture_N = _name_pictures(samples)
    other_N = _pair_pictures(samples, targets, picture_N, seed)
    drops = _measure(samples, targets, other_N, encode)
    left_out = Counter(reason for target in targets if (reason := _find_lack(target, other_N)))
    paired = [target for target in targets if not _find_lack(target, other_N)]
    rows = [_compare(samples, target, drops, other_N) for target in paired]
    drop_P = {name: np.array([row[name] for row in rows]) for name in CONDITIONS}
    kind_P = np.array([target.kind for target in paired])
    picture_P = np.array([picture_N[target.row] for target in paired])
    word_P = np.array([row["target"].lower() for row in rows])
    nonces_P = [[nonce.lower() for nonce in target.nonces] for target in paired]
    others = [target for target in targets if _find_lack(target, other_N) not in (None, NO_NONCE, NO_NOUN)]
    other_drops = [float(drops.own_T[drops.find(x, x.nonces)].mean(dtype=np.float64)) for x in others]
    return PasResult(
        score=samples.score,
        calibration=calibrate(drop_P, kind_P, picture_P, word_P, nonces_P, seed),
        left_out={reason: left_out[reason] for reason in LEFT_OUT if left_out[reason]},
        num_samples=len(samples.uids),
        num_targets=len(targets),
        keep=keep,
        **_measure_again(samples, targets, drops, picture_N, keep, seed),
        num_others=len(others),
        others_nonce=float(np.mean(other_drops)) if others else float("nan"),
        profile={name: one._asdict() for name, one in _profile(samples)._asdict().items()},
        targets=rows,
    )


def _counts(phrase: dict[str, Any], selection: SelectionRule) -> bool:
    return selection.targets != SHOWABLE or phrase["target_class"] != UNSEEN


def _profile(samples: Samples) -> PasProfile:
    """Return the correlates of the score that the curation ranked by."""
    how = samples.selection
    counted = [[p for p in some if p["drop"] is not None and _counts(p, how)] for some in samples.phrases]
    drop_P, moved_P = (
        np.array([p[name] for some in counted for p in some], np.float64) for name in ("drop", "displacement")
    )
    offset_E = np.cumsum([0, *map(len, counted)])
    value_P = drop_per_displacement(drop_P, moved_P) if how.unit == PER_DISPLACEMENT else drop_P
    score_N = samples.base_N + aggregate_drops(value_P, offset_E, how.aggregate)
    moved_N = aggregate_drops(moved_P, offset_E, "mean")
    has_N = ~np.isnan(score_N)
    words_N = np.array([len(caption.split()) for caption in samples.captions], np.float64)
    text_N3 = np.column_stack([words_N, np.diff(offset_E), moved_N])
    return profile_pas(samples.alignment_N[has_N], score_N[has_N], text_N3[has_N], drop_P, moved_P)


def _list_targets(samples: Samples, controls: ControlWords, redraw: Redraw) -> Iterator[_Target]:
    for row, (uid, caption, phrases) in enumerate(
        zip(samples.uids, samples.captions, samples.phrases, strict=True)
    ):
        spans = [(phrase["target_start"], phrase["target_end"]) for phrase in phrases]
        for phrase, (start, end), again in zip(phrases, spans, redraw(uid, caption, spans), strict=True):
            words: Controls | str = NO_NOUN
            if phrase["target_class"] != CONTENT:
                words = controls.draw(caption[:MAX_CHARACTERS], phrase["start"], start, end)
            again = again if _counts(phrase, samples.selection) else []
            yield _Target(row, start, end, phrase["kind"], phrase["nonces"], words, again)


def _name_pictures(samples: Samples) -> np.ndarray:
    """Number the pictures, int (N,): pictures with the same bytes have one number."""
    pairs = zip(samples.images, samples.image_ND, strict=True)
    names = [sha256 or sha1(image_D.tobytes()).hexdigest() for sha256, image_D in pairs]
    return np.unique(names, return_inverse=True)[1]


def _pair_pictures(samples: Samples, targets: list[_Target], picture_N: np.ndarray, seed: int) -> np.ndarray:
    """Return for every sample the number of one with another picture; -1 where there is none."""
    captions = [" ".join(caption.lower().split()) for caption in samples.captions]
    replaced: list[set[str]] = [set() for _ in captions]
    for target in targets:
        if isinstance(target.controls, str):
            continue
        replaced[target.row] |= find_word_set(samples.captions[target.row][target.start : target.end])
    said = [find_word_set(caption) for caption in captions]
    order_N = hash_uids(parse_uids(samples.uids), seed)
    return draw_others(picture_N.tolist(), captions, replaced, said, order_N)


def _find_lack(target: _Target, other_N: np.ndarray) -> str | None:
    """Return why a target cannot be compared, None where it can."""
    if not target.nonces:
        return NO_NONCE
    if isinstance(target.controls, str):
        return target.controls
    return NO_PICTURE if other_N[target.row] < 0 else None


def _measure(samples: Samples, targets: list[_Target], other_N: np.ndarray, encode: Encode) -> _Drops:
    """Embed every caption and its variants once."""
    import torch

    from raycomp.core.alignment import pair_cosine

    number: dict[tuple[int, int, str], int] = {}
    variants: list[list[str]] = [[] for _ in samples.uids]
    for target in targets:
        words = () if isinstance(target.controls, str) else target.controls
        caption = samples.captions[target.row]
        for word in dict.fromkeys((*target.nonces, *words, *target.again)):
            number[target.row, target.start, word] = len(number)
            variants[target.row].append(make_counterfactual(caption, target.start, target.end, word))
    image_ND = torch.from_numpy(samples.image_ND)
    own, other, moved = [], [], []
    for start in range(0, len(variants), _SAMPLES_PER_PASS):
        rows = slice(start, start + _SAMPLES_PER_PASS)
        caption_ND, text_TD = encode(samples.captions[rows], variants[rows])
        row_T = np.repeat(np.arange(len(caption_ND)), [len(some) for some in variants[rows]])
        own.append(_drop(image_ND[rows], caption_ND, text_TD, row_T))
        other.append(_drop(image_ND[other_N[rows]], caption_ND, text_TD, row_T))
        moved.append(1 - pair_cosine(caption_ND[row_T], text_TD).numpy())
    return _Drops(np.concatenate(own), np.concatenate(other), np.concatenate(moved), number)


def _drop(image_ND: "Tensor", caption_ND: "Tensor", text_TD: "Tensor", row_T: np.ndarray) -> np.ndarray:
    from raycomp.core.alignment import pair_cosine

    alignment_N = pair_cosine(image_ND, caption_ND).numpy()
    return pair_drop(alignment_N[row_T], pair_cosine(image_ND[row_T], text_TD).numpy())


def _compare(samples: Samples, target: _Target, drops: _Drops, other_N: np.ndarray) -> dict[str, Any]:
    """Return the words that replace a target and their drops; for several nonces, the mean."""
    same, cross = drops.own_T[drops.find(target, target.controls)].tolist()
    nonces = drops.find(target, target.nonces)
    own, other = (float(drop_T[nonces].mean(dtype=np.float64)) for drop_T in (drops.own_T, drops.other_T))
    return {
        UID: samples.uids[target.row],
        "kind": target.kind,
        "target": samples.captions[target.row][target.start : target.end],
        "target_start": target.start,
        "nonces": target.nonces,
        "words": list(target.controls),
        "other_uid": samples.uids[other_N[target.row]],
        SAME: same,
        NONCE: own,
        CROSS: cross,
        WRONG: other,
    }


def _measure_again(
    samples: Samples, targets: list[_Target], drops: _Drops, picture_N: np.ndarray, keep: float, seed: int
) -> dict[str, Any]:
    """Return the fields of ``PasResult`` on the reliability of drops and of the score with other nonces."""
    drop_PA, moved_PA = value_VPA = np.full((2, len(targets), NUM_AGAIN), np.nan)
    for i, target in enumerate(targets):
        numbers = drops.find(target, target.again)
        value_VPA[:, i, : len(numbers)] = drops.own_T[numbers], drops.moved_T[numbers]
    num_again = int((~np.isnan(drop_PA[:, 1])).sum())
    rows = {target.row for target in targets if len(target.again) > 1}
    if len(rows) < LEAST_SAMPLES:
        return {"num_again": num_again, "retest": [], "between": float("nan"), "within": float("nan")}
    offset_E = np.searchsorted([target.row for target in targets], np.arange(len(picture_N) + 1))
    rng = np.random.default_rng(seed)
    how = samples.selection
    reading: dict[str, Any] = {"how": how.aggregate}
    reading["displacement_PT"] = moved_PA if how.unit == PER_DISPLACEMENT else None
    how_many = COUNTS, keep, picture_N, rng, NUM_DRAWS
    found = measure_retest(drop_PA, offset_E, *how_many, samples.base_N, **reading)
    between, within = split_variance(drop_PA)
    return {
        "num_again": num_again,
        "retest": [_name_retest(retest) for retest in found],
        "between": between,
        "within": within,
    }


def _name_retest(retest: Retest) -> dict[str, Any]:
    ends = retest.reliability.under("reliability") | retest.predicted.under("predicted")
    return {"count": retest.count, "in_common": retest.in_common, **ends}
