"""``raycomp probe pas``: nonces against real words, other pictures, other nonces, on a curation's samples.

Go et al. (arXiv 2605.22651), section 7. Every text is embedded once; images are embeddings already.

N samples, T texts, D dims.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.config import ScorerConfig
from raycomp.core import alignment, reliability
from raycomp.core.metrics import share_interval
from raycomp.core.selection import Threshold, hash_uids, keep_mask, parse_uids
from raycomp.curation import config as curated
from raycomp.curation.config import NonceConfig, SelectionRule
from raycomp.curation.page import MOST_DRIVEN, PAPER_CORRELATIONS
from raycomp.curation.select.marks import list_marked
from raycomp.curation.select.measures import mask_corpus
from raycomp.curation.select.select import Gates
from raycomp.data.files import Folder
from raycomp.data.parquet import readable, to_matrix
from raycomp.data.runs import SUBSET_KINDS, check_results, identify, read_finished
from raycomp.language import phrases as language
from raycomp.language.phrases import Controls, ControlWords, list_distinct_words
from raycomp.models.architecture import NonceMaker, fingerprint_folder
from raycomp.models.parser import MAX_CHARACTERS, PACKAGED, load_lexicon
from raycomp.negatives.captions import is_scored_by
from raycomp.probe.config import ProbeConfig
from raycomp.table import Cell, Column, Columns, Estimate, Table, group_by, take_estimate
from raycomp.words import ALIGNMENT, CAPTION, IMAGE_EMBEDDING, IMAGE_SHA256, PHRASES, UID

if TYPE_CHECKING:
    from torch import Tensor


NO_NONCE = "no_nonce"
NO_NOUN = "no_noun"
NO_PICTURE = "no_other_picture"
SHOWN = "noun that an image can show"
LEFT_OUT = {
    NO_NONCE: "the curation found no valid nonce",
    NO_NOUN: "no control: the target is not a noun",
    **language.CONTROL_REASONS,
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
    """Correlates of the score that ranks, as ``core.alignment.PasProfile``."""
    extremes: list[dict[str, Any]]
    """For each class of words its number of targets, and how many captions' lowest and highest value it has,
    among captions with two or more; ``words``: the commonest words of the lowest."""
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

    def find(self, target: _Target, put: Iterable[str]) -> list[int]:
        """Return the numbers of the texts with some words in the place of a target."""
        return [self.number[target.row, target.start, word] for word in put]


def probe_samples(
    samples: Samples, encode: Encode, controls: ControlWords, redraw: Redraw, keep: float, seed: int
) -> PasResult:
    """Replace every target by nonces and by real words, and compare the drops.

    ``keep`` is the share of the samples that the curation keeps by PAS. ``seed`` pairs samples with other
    pictures and draws splits and resamples.
    """
    targets = list(_list_targets(samples, controls, redraw))
    named = zip(samples.images, samples.image_ND, strict=True)
    names = [sha256 or sha1(image_D.tobytes()).hexdigest() for sha256, image_D in named]
    picture_N = np.unique(names, return_inverse=True)[1]  # pictures with the same bytes have one number
    other_N = _pair_pictures(samples, targets, picture_N, seed)
    drops = _measure(samples, targets, other_N, encode)
    lacks = [_describe_lack(target, other_N) for target in targets]
    left_out = Counter(lacks)
    paired = [target for target, lack in zip(targets, lacks, strict=True) if lack is None]
    rows = [_compare(samples, target, drops, other_N) for target in paired]
    drop_P = {name: np.array([row[name] for row in rows]) for name in reliability.CONDITIONS}
    kind_P = np.array([target.kind for target in paired])
    picture_P = np.array([picture_N[target.row] for target in paired])
    word_P = np.array([row["target"].lower() for row in rows])
    nonces_P = [[nonce.lower() for nonce in target.nonces] for target in paired]
    unpaired = zip(targets, lacks, strict=True)
    others = [target for target, lack in unpaired if lack not in (None, NO_NONCE, NO_NOUN)]
    other_drops = [float(drops.own_T[drops.find(x, x.nonces)].mean(dtype=np.float64)) for x in others]
    return PasResult(
        score=samples.score,
        calibration=reliability.calibrate(drop_P, kind_P, picture_P, word_P, nonces_P, seed),
        left_out={reason: left_out[reason] for reason in LEFT_OUT if left_out[reason]},
        num_samples=len(samples.uids),
        num_targets=len(targets),
        keep=keep,
        **_measure_again(samples, targets, drops, picture_N, keep, seed),
        num_others=len(others),
        others_nonce=float(np.mean(other_drops)) if others else float("nan"),
        profile={name: one._asdict() for name, one in _profile(samples)._asdict().items()},
        extremes=_count_extremes(samples),
        targets=rows,
    )


def _counts(phrase: dict[str, Any], selection: SelectionRule) -> bool:
    return selection.targets != words.SHOWABLE or phrase["target_class"] != words.UNSEEN


def _count(samples: Samples) -> tuple[list[list[dict[str, Any]]], np.ndarray, np.ndarray, np.ndarray]:
    """Return the phrases that count in each sample; their drops, displacements and aggregated values."""
    how = samples.selection
    counted = [[p for p in some if p["drop"] is not None and _counts(p, how)] for some in samples.phrases]
    drop_P, moved_P = (
        np.array([p[name] for some in counted for p in some], np.float64) for name in ("drop", "displacement")
    )
    value_P = (
        alignment.drop_per_displacement(drop_P, moved_P) if how.unit == words.PER_DISPLACEMENT else drop_P
    )
    return counted, drop_P, moved_P, value_P


def _name_class(phrase: dict[str, Any]) -> str:
    if phrase["target_class"] != words.CONTENT:
        return SHOWN if phrase["target_class"] == words.HEAD else "noun that no image shows"
    return {words.RELATION: "relation word", words.PREDICATE: "verb"}.get(phrase["kind"], "adjective")


def _count_extremes(samples: Samples) -> list[dict[str, Any]]:
    """Return ``PasResult.extremes``, the commonest class first."""
    counted, _, _, value_P = _count(samples)
    totals = {name: Counter[str]() for name in ("targets", "lowest", "highest")}
    lowest = Counter[tuple[str, str]]()
    start = 0
    for caption, some in zip(samples.captions, counted, strict=True):
        value_Q, start = value_P[start : start + len(some)], start + len(some)
        if len(some) < 2 or np.isnan(value_Q).any():
            continue
        least, most = (some[at(value_Q)] for at in (np.argmin, np.argmax))
        for name, found in (("targets", some), ("lowest", [least]), ("highest", [most])):
            totals[name].update(map(_name_class, found))
        lowest[_name_class(least), caption[least["target_start"] : least["target_end"]].lower()] += 1
    return [
        {"class": one, **{name: total[one] for name, total in totals.items()}}
        | {"words": [(word, num) for (of, word), num in lowest.most_common() if of == one][:3]}
        for one, _ in totals["targets"].most_common()
    ]


def _profile(samples: Samples) -> alignment.PasProfile:
    """Return the correlates of the score that the curation ranked by."""
    how = samples.selection
    counted, drop_P, moved_P, value_P = _count(samples)
    offset_E = np.cumsum([0, *map(len, counted)])
    score_N = samples.base_N + alignment.aggregate_drops(value_P, offset_E, how.aggregate)
    moved_N = alignment.aggregate_drops(moved_P, offset_E, "mean")
    has_N = ~np.isnan(score_N)
    words_N = np.array([len(caption.split()) for caption in samples.captions], np.float64)
    text_N3 = np.column_stack([words_N, np.diff(offset_E), moved_N])
    return alignment.profile_pas(samples.alignment_N[has_N], score_N[has_N], text_N3[has_N], drop_P, moved_P)


def _list_targets(samples: Samples, controls: ControlWords, redraw: Redraw) -> Iterator[_Target]:
    for row, (uid, caption, phrases) in enumerate(
        zip(samples.uids, samples.captions, samples.phrases, strict=True)
    ):
        spans = [(phrase["target_start"], phrase["target_end"]) for phrase in phrases]
        for phrase, (start, end), again in zip(phrases, spans, redraw(uid, caption, spans), strict=True):
            drawn: Controls | str = NO_NOUN
            if phrase["target_class"] != words.CONTENT:
                drawn = controls.draw(caption[:MAX_CHARACTERS], phrase["start"], start, end)
            again = again if _counts(phrase, samples.selection) else []
            yield _Target(row, start, end, phrase["kind"], phrase["nonces"], drawn, again)


def _pair_pictures(samples: Samples, targets: list[_Target], picture_N: np.ndarray, seed: int) -> np.ndarray:
    """Return for every sample the number of one with another picture; -1 where there is none."""
    captions = [" ".join(caption.lower().split()) for caption in samples.captions]
    replaced: list[set[str]] = [set() for _ in captions]
    for target in targets:
        if isinstance(target.controls, str):
            continue
        replaced[target.row] |= list_distinct_words(samples.captions[target.row][target.start : target.end])
    said = [list_distinct_words(caption) for caption in captions]
    order_N = hash_uids(parse_uids(samples.uids), seed)
    return reliability.draw_others(picture_N.tolist(), captions, replaced, said, order_N)


def _describe_lack(target: _Target, other_N: np.ndarray) -> str | None:
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
        real = () if isinstance(target.controls, str) else target.controls
        caption = samples.captions[target.row]
        for word in dict.fromkeys((*target.nonces, *real, *target.again)):
            number[target.row, target.start, word] = len(number)
            variants[target.row].append(language.make_counterfactual(caption, target.start, target.end, word))
    image_ND = torch.from_numpy(samples.image_ND)
    own: list[np.ndarray] = []
    other: list[np.ndarray] = []
    moved = []
    for start in range(0, len(variants), _SAMPLES_PER_PASS):
        rows = slice(start, start + _SAMPLES_PER_PASS)
        caption_ND, text_TD = encode(samples.captions[rows], variants[rows])
        row_T = np.repeat(np.arange(len(caption_ND)), [len(some) for some in variants[rows]])
        for drops, seen_ND in ((own, image_ND[rows]), (other, image_ND[other_N[rows]])):
            alignment_N = pair_cosine(seen_ND, caption_ND).numpy()
            drops.append(
                alignment.pair_drop(alignment_N[row_T], pair_cosine(seen_ND[row_T], text_TD).numpy())
            )
        moved.append(1 - pair_cosine(caption_ND[row_T], text_TD).numpy())
    return _Drops(np.concatenate(own), np.concatenate(other), np.concatenate(moved), number)


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
        reliability.SAME: same,
        reliability.NONCE: own,
        reliability.CROSS: cross,
        reliability.WRONG: other,
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
    reading["displacement_PT"] = moved_PA if how.unit == words.PER_DISPLACEMENT else None
    how_many = COUNTS, keep, picture_N, rng, reliability.NUM_DRAWS
    retest = [
        {"count": one.count, "in_common": one.in_common}
        | one.reliability.under("reliability")
        | one.predicted.under("predicted")
        for one in reliability.measure_retest(drop_PA, offset_E, *how_many, samples.base_N, **reading)
    ]
    between, within = reliability.split_variance(drop_PA)
    return {"num_again": num_again, "retest": retest, "between": between, "within": within}


_PAPER_SAYS = "Paper: CC3M, CLIP ViT-B/16 of OpenAI, 100,000 interventions."
PASS, FAIL, OPEN = "pass", "fail", "cannot be judged"


class Criterion(NamedTuple):
    """A number that must lie between ``least`` and ``most``; docs/probes.md has the reasons."""

    name: str
    found: Estimate
    least: float
    most: float
    paper: str = ""

    @property
    def limit(self) -> str:
        """The limit for readers."""
        if abs(self.least) == abs(self.most):
            return f"{self.least:g} to {self.most:g}"
        return f"below {self.most:g}" if self.least == -math.inf else f"above {self.least:g}"

    @property
    def result(self) -> str:
        """Whether the whole interval lies within the limit, or beyond it."""
        low, high = self.found.low, self.found.high
        if self.least < low and high < self.most:
            return PASS
        return FAIL if high <= self.least or low >= self.most else OPEN


def list_criteria(result: PasResult, opened: "OpenedPas") -> list[Criterion]:
    """Return the criteria of the verdict, in the order of docs/probes.md."""
    how, nan, inf = opened.samples.selection, math.nan, math.inf
    line = next((one for one in result.calibration if one["kind"] == reliability.ALL), None)
    names = reliability.WRONG_SHARE, "nonce_over_same", "cross_over_nonce"
    share, same, cross = (
        Estimate.of(reliability.join_intervals(line, name)) if line else Estimate(nan) for name in names
    )
    if line and not line[f"{reliability.NONCE}_low"] > 0:
        share = Estimate(share.value)  # a share of nothing
    agree, moved = (take_agreement(result, name) for name in ("alignment", "displacement"))
    named = "alignment: r with the score"
    if how.rule.attribute_by == curated.ALIGN_PAS:
        agree, named = Estimate(agree.value), f"{named}, which contains it"
    again = [one for one in result.retest if one["count"] <= opened.num_nonces]
    stable = take_estimate(again[-1], "reliability") if again else Estimate(nan)
    near, nonce, far = reliability.PAPER.values()
    (r_alignment, _), (r_displacement, _) = PAPER_CORRELATIONS.values()
    by_alignment = f"{r_alignment}" if result.score == curated.PAPER_READING else ""
    found = [
        Criterion("wrong image: share of a nonce's drop that is left", share, -inf, 0.5),
        Criterion("same category: nonce minus real word", same, 0, inf, f"{nonce - near:.4f}"),
        Criterion("other category: real word minus nonce", cross, 0, inf, f"{far - nonce:.4f}"),
        Criterion(named, agree, -0.5, 0.5, by_alignment),
        Criterion("displacement: r with the drop", moved, -inf, MOST_DRIVEN, f"{r_displacement}"),
        Criterion(f"other nonces: reliability, {opened.num_nonces} for a target", stable, 0.8, inf),
        Criterion("coverage: captions with a valid nonce", _share(opened.covered), 0.95, inf, "0.9979"),
    ]
    if how.aggregate in ("min", "max"):
        end = {"min": "lowest", "max": "highest"}[how.aggregate]
        shown = sum(one[end] for one in result.extremes if one["class"] == SHOWN)
        held = _share((shown, sum(one[end] for one in result.extremes)))
        found.append(Criterion(f"extreme word: share of {end} values on a {SHOWN}", held, 0.5, inf))
    return found


def _share(counts: tuple[int, int]) -> Estimate:
    part, whole = counts
    return Estimate(part / whole, *share_interval(part, whole)) if whole else Estimate(math.nan)


def take_agreement(result: PasResult, name: str) -> Estimate:
    """Return a correlate of the score with its interval."""
    one = result.profile[name]
    return Estimate(one["value"], one["low"], one["high"])


def say_verdict(criteria: Iterable[Criterion]) -> str:
    """Return the verdict in a sentence."""
    by = group_by(criteria, lambda one: one.result)
    total = sum(map(len, by.values()))
    for result, answer in ((FAIL, "No"), (OPEN, "Undecided")):
        if result in by:
            counts = ", ".join(f"{len(by[name])} {name}" for name in (PASS, FAIL, OPEN) if name in by)
            names = ", ".join(one.name.partition(":")[0] for one in by[result])
            return f"Trust PAS on these data? {answer}: of {total} criteria {counts}; {result}: {names}"
    return f"Trust PAS on these data? Yes: all {total} criteria pass"


def report_pas(
    result: PasResult, criteria: Sequence[Criterion], scorer: str, is_noise: bool = False
) -> list[Table | str]:
    """Return the tables; ``scorer`` names model and weights. With random weights no criterion is judged."""
    lead = (
        f"Scorer {scorer}; {result.num_samples:,} samples. {len(result.targets):,} of "
        f"{result.num_targets:,} targets have a nonce, both replacement words and another picture."
    )
    left_out = [(reason, num, LEFT_OUT[reason]) for reason, num in result.left_out.items()]
    return [
        lead,
        _table_criteria(result, criteria, is_noise),
        *([_table_extremes(result)] if result.extremes else []),
        *(_report_calibration(result) if result.targets else []),
        _report_retest(result) if result.retest else f"No retest: fewer than {LEAST_SAMPLES} samples.",
        *([Table("Targets left out", ("reason", "targets", "meaning"), left_out)] if left_out else []),
    ]


def _table_criteria(result: PasResult, criteria: Sequence[Criterion], is_noise: bool) -> Table:
    """Return the verdict's lines, and the correlates that have no limit."""
    rows: list[tuple[Cell, ...]] = [
        (one.name, one.found, one.limit, one.paper, "noise" if is_noise else one.result) for one in criteria
    ]
    is_paper = result.score == curated.PAPER_READING
    (_, by_alignment), (_, by_displacement) = PAPER_CORRELATIONS.values()
    more = {
        "alignment_ranks": ("alignment: Spearman's rho with the score", f"{by_alignment}" * is_paper),
        "displacement_ranks": ("displacement: Spearman's rho with the drop", f"{by_displacement}"),
        "text": ("text alone: R^2 of the score", ""),
    }
    rows += [(what, take_agreement(result, name), "none", paper, "") for name, (what, paper) in more.items()]
    note = "Random weights: no verdict. " if is_noise else ""
    note += (
        f"The score: {result.score}. A criterion passes if its whole 95 % interval is within the limit and "
        "fails if all of it is beyond. The first three intervals span those over images, words and nonces. "
        "The text alone: words of the caption, targets, mean displacement (shift of the text embedding). "
        f"The reasons for the limits: docs/probes.md. {_PAPER_SAYS}"
    )
    heads = ("criterion", Column("value"), "limit", "paper", "result")
    return Table("Would you trust PAS on these data?", heads, rows, note)


def _table_extremes(result: PasResult) -> Table:
    totals = {name: sum(one[name] for one in result.extremes) for name in ("targets", "lowest", "highest")}
    rows: list[tuple[Cell, ...]] = []
    for one in result.extremes:
        shares = (100 * one[name] / total for name, total in totals.items())
        rows.append((one["class"], *shares, ", ".join(f"{word} {count}" for word, count in one["words"])))
    heads = (Column(name, "%", 1) for name in totals)
    note = f"The lowest and the highest value of the {totals['lowest']:,} captions with two or more targets."
    return Table("Words that hold the extreme", ("class", *heads, "commonest lowest words"), rows, note)


def _report_calibration(result: PasResult) -> list[Table]:
    lines = result.calibration
    total = next(line for line in lines if line["kind"] == reliability.ALL)
    means = _report_lines("Mean drop s(I, T) - s(I, T~)", lines, reliability.CONDITIONS)
    paper = ("paper", None, *(reliability.PAPER.get(name) for name in reliability.CONDITIONS))
    note = "95 % intervals over pictures, with the words as drawn."
    if result.num_others:  # the compared ones are no random sample of all
        note += f" Mean drop of a nonce: {total[reliability.NONCE]:.4f} in the targets compared, "
        note += f"{result.others_nonce:.4f} in the {result.num_others:,} others with a nonce."
    title = f"Paired differences; intervals span those over pictures, {total['num_words']:,} words and nonces"
    return [
        Table(means.title, means.columns, [*means.rows, paper], note),
        _report_lines(title, lines, reliability.DIFFERENCES, reliability.join_intervals),
    ]


def _report_lines(
    title: str, lines: list[dict[str, Any]], names: Iterable[str], take: Callable[..., Any] = take_estimate
) -> Table:
    """Return a row of estimates per kind of phrase."""
    columns = ("kind", "targets", *(name.replace("_", " ") for name in names))
    rows = [(x["kind"], x["num_targets"], *(Estimate.of(take(x, name)) for name in names)) for x in lines]
    return Table(title, columns, rows)


def _report_retest(result: PasResult) -> Table:
    names = {"reliability": "reliability", "predicted": "Spearman-Brown from 1"}
    estimates = (Column(head, digits=3) for head in names.values())
    rows = [
        (line["count"], *(take_estimate(line, name) for name in names), 100 * line["in_common"])
        for line in result.retest
    ]
    note = (
        f"{result.num_again:,} targets have two nonces or more. At chance both keep {result.keep:.1%} of the "
        f"kept set. Standard deviation of drops: {result.between:.4f} between targets, "
        f"{result.within:.4f} between the nonces of one target."
    )
    columns: Columns = ("nonces", *estimates, Column("kept by both", "%", 1))
    return Table(f"The same samples with other nonces: {result.score}", columns, rows, note)


@dataclass(frozen=True)
class OpenedPas:
    """A curation or selection whose samples are read, and the scorer that made their embeddings."""

    samples: Samples
    scorer: ScorerConfig
    name: str
    """The scorer's name."""
    nonce: NonceConfig
    keep: float
    """The share of the samples that the run keeps by PAS."""
    num_nonces: int
    """The run's nonces for each target."""
    covered: tuple[int, int]
    """Captions past the alignment gate with a valid nonce, and all; zeros where the run does not know."""
    fingerprint: Callable[[], dict[str, str]]
    """What results depend on; ValueError where the scorer is no longer the one that scored."""


def open_pas(config: ProbeConfig) -> OpenedPas:
    """Open the curation or selection in ``config.input``; phrases and nonces are its own.

    Raises ValueError where there is none, where another scorer made its image embeddings, and where no sample
    has phrases.
    """
    run = read_finished(config.input)
    if run["kind"] not in SUBSET_KINDS:
        raise ValueError(f"input={config.input!r}: holds {run['kind']}, must hold a curation or selection")
    written = curated.read_config(run["config"])
    scorer = config.scorer or written.scorer
    name = f"{scorer.model} {scorer.weights}"

    def fingerprint() -> dict[str, str]:
        if not is_scored_by(scorer, run, config.input):
            raise ValueError(f"scorer={name!r}: must be the scoring model of {config.input}")
        return {"input": identify(run), "lexicon": fingerprint_folder(PACKAGED.with_name("lexicon"))}

    fingerprint()
    samples = read_samples(run, config.input, config.sample, config.seed)
    # The share of samples with a PAS that the run keeps, or would keep by the rule cpi.
    gates = run["gates"]
    kept = min(1.0, written.attribute.keep / max(written.align.keep, written.pool, 1e-9))
    if gates["attribute"] and gates["num_scored"]:
        kept = gates["attribute"]["count"] / gates["num_scored"]
    coverage = run.get("coverage", {})
    covered = coverage.get("with_nonce", 0), coverage.get("captions", 0)
    return OpenedPas(
        samples, scorer, name, written.nonce, kept, written.attribute.nonces, covered, fingerprint
    )


def measure_pas(opened: OpenedPas, seed: int) -> PasResult:
    """Measure the drops; ``seed`` draws the words and pictures to compare with."""
    from raycomp.models.clip import load_tokenizer

    maker = NonceMaker(load_tokenizer(opened.scorer), opened.nonce.seed, opened.scorer.model)
    length = maker.tokenizer.context_length
    control = ControlWords(load_lexicon(), maker.encode, length, opened.samples.vocabulary, seed)
    redraw, encode = make_redraw(maker, opened.nonce), _make_encode(opened.scorer)
    return probe_samples(opened.samples, encode, control, redraw, opened.keep, seed)


def read_samples(run: dict[str, Any], source: str, count: int | None, seed: int) -> Samples:
    """Return at most ``count`` samples with phrases of the curation or selection in ``source``.

    They passed the gate by alignment, if the rule has a second gate: PAS ranks there. The draw depends on
    seed and uid alone. Raises ValueError where there are none.
    """
    vocabulary: set[str] = set()
    pool: list[pa.Table] = []
    written = curated.read_config(run["config"])
    has_second = curated.get_rule(written.select.rule).attribute_by is not None
    align = Threshold.from_dict(run["gates"]["align"]) if has_second else None
    selection = curated.make_selection(written)
    names = [PHRASES, words.CONTENT_WORDS] if selection.targets == words.CONTENT else [PHRASES]
    for file in list_marked(run, source):
        table = file.read([UID, CAPTION, ALIGNMENT, IMAGE_SHA256, *names, IMAGE_EMBEDDING])
        table = table.filter(pa.array(mask_corpus(table)))
        vocabulary.update(*map(list_distinct_words, table[CAPTION].to_pylist()))
        if align is not None:
            is_kept_N = keep_mask(align, table[ALIGNMENT].to_numpy(), parse_uids(table[UID]))
            table = table.filter(pa.array(is_kept_N))
        pool.append(table.filter(pc.greater(pc.list_value_length(table[PHRASES]), 0)))
        if count is not None:
            every = pa.concat_tables(pool)
            drawn_N = np.argsort(hash_uids(parse_uids(every[UID]), seed), kind="stable")[:count]
            pool = [every.take(np.sort(drawn_N))]
    table = pa.concat_tables(pool) if pool else None
    if not table:
        raise ValueError(f"input={source!r}: no sample has phrases; curate with select.rule=cpi")
    uids, captions, images = (table[name].to_pylist() for name in (UID, CAPTION, IMAGE_SHA256))
    lists = zip(*(table[name].to_pylist() for name in names), strict=True)
    phrases = [[phrase for some in row for phrase in some] for row in lists]
    image_ND = to_matrix(table[IMAGE_EMBEDDING]).astype(np.float32)
    alignment_N = table[ALIGNMENT].to_numpy().astype(np.float64)
    scores = uids, captions, phrases, images, image_ND, alignment_N, frozenset(vocabulary), selection
    fit = Gates.from_dict(run["gates"]).fit
    if fit is None or selection.rule.attribute_by != curated.ALIGN_PAS:
        return Samples(*scores, selection.reading)
    base_N = fit.residuals({ALIGNMENT: alignment_N}, np.zeros(len(alignment_N)))
    return Samples(*scores, selection.ranking, base_N)


def _make_encode(scorer: ScorerConfig) -> Encode:
    """Load the scorer; its text tower shares the prefixes of a caption and its variants."""
    from raycomp.models.clip import Clip, load_tokenizer, refuse_bad

    clip, tokenize = Clip(scorer), load_tokenizer(scorer)

    def encode(captions: list[str], variants: list[list[str]]) -> tuple["Tensor", "Tensor"]:
        texts = [readable(text) for text in [*captions, *(text for group in variants for text in group)]]
        tokens_TN = tokenize(texts).numpy().astype(np.int32)
        counts = np.array([len(group) for group in variants])
        found = clip.text.embed(tokens_TN[: len(captions)], tokens_TN[len(captions) :], counts)
        for text_TD in found:
            refuse_bad(text_TD, scorer.said_weights, "texts")
        return found

    return encode


def make_redraw(maker: NonceMaker, config: NonceConfig) -> Redraw:
    """Return a function that draws a target's nonces as the curation did, but more of them."""

    def redraw(uid: str, caption: str, spans: list[tuple[int, int]]) -> list[list[str]]:
        key = uid if config.key == "sample" else ""
        made = maker.make(caption[:MAX_CHARACTERS], spans, NUM_AGAIN, key)
        return [[] if isinstance(nonces, str) else nonces for nonces in made]

    return redraw


_COLUMNS = ("target", "kind", "nonces", "same category", "cross category")


def explain_targets(run: dict[str, Any], source: str, uid: str) -> str | None:
    """Return the words that replaced a sample's targets, and their drops; None where it has no target."""
    check_results(Folder(source), run, "pas.json")
    if not Folder(source).exists("pas.json"):
        raise ValueError(f"{source}: has no pas.json; run the probe again, into another folder")
    rows = [row for row in Folder(source).read_json("pas.json")["rows"]["targets"] if row[UID] == uid]
    if not rows:
        return None
    drops = [name for name, value in rows[0].items() if isinstance(value, float)]
    cells = [
        (row["target"], row["kind"], ", ".join(row["nonces"]), *row["words"], *(row[name] for name in drops))
        for row in rows
    ]
    heads = (f"drop: {name.replace('_', ' ')}" for name in drops)
    return Table("", (*_COLUMNS, *heads), cells).to_text()
