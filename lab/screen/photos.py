"""The screen on real photos: which false captions of SugarCrepe each selection rule keeps.

Pairs are captions of COCO val2017 that SugarCrepe (Hsieh et al. 2023, arXiv:2306.14610) edits, each once with
its image. A third of the captions of every kind of edit are replaced by SugarCrepe's negative, which people
checked. COCO's other captions are left out: they would differ from the false ones in more than the edit.
N pairs; B draws of a bootstrap over images, the first of them the images themselves.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.screen import judge
from lab.screen.config import ScreenConfig
from lab.screen.one_run import read_readings, score_all
from lab.text_classifier import fit_text_classifier
from raycomp import words
from raycomp.config import exact_share
from raycomp.config.options import ColumnsConfig
from raycomp.core.metrics import Z_95
from raycomp.core.probe import draw_folds
from raycomp.curation.config import CurateConfig
from raycomp.data.files import Folder, size_files
from raycomp.data.inputs import with_absolute_paths
from raycomp.data.runs import digest
from raycomp.evaluation.benchmarks.published import EDITS, read_benchmark
from raycomp.evaluation.embed import find_images
from raycomp.models.architecture import describe_scorer, fingerprint_scorer
from raycomp.report.page import intervals, render_page
from raycomp.run.run import Say, say_count, start_run
from raycomp.table import Cell, Column, Columns, Estimate, Plot, Table, group_by, write_cell

ALL, PLACE = "all", "pair"
DRAWS, FOLDS = 1000, 5
_TITLE = "False captions kept, minus alignment alone"
_OUTPUTS = ("pairs.csv", "rules.csv", "text.csv")


class Pair(NamedTuple):
    """A caption and its image, by the file name in SugarCrepe; the kind is SugarCrepe's split."""

    image: str
    uri: str
    caption: str
    kind: str
    is_false: bool


class Row(NamedTuple):
    """The false captions of one kind, or all, that a rule keeps, in percent of the ``planted`` ones."""

    rule: str
    keep: float
    kind: str
    planted: int
    kept: Estimate
    points: Estimate
    """``kept`` minus that of alignment alone, paired by image."""
    points_in_strata: Estimate
    """The same where every number of target nouns keeps the same share of its pairs."""


def screen_photos(config: ScreenConfig, out: str, say: Say) -> dict[str, Any]:
    """Screen real photos into the folder ``out``; return the contents of run.json."""
    config = with_absolute_paths(config)
    pairs, warnings = draw_pairs(config)
    describe_scorer(config.scorer)

    def fingerprint() -> dict[str, Any]:
        own = draw_pairs(config)[0]
        sizes = size_files(sorted({pair.uri for pair in own}))
        return {"pairs": digest([own, sizes]), "scorer": fingerprint_scorer(config.scorer)}

    cost = partial(say_count, len(pairs), "pairs")
    with start_run("screen", config, fingerprint, out, say, outputs=_OUTPUTS, cost=cost) as run:
        if run.is_finished:
            return run.record
        list(map(say, warnings))
        lines = [json.dumps({"image": a.uri, "caption": a.caption, PLACE: i}) for i, a in enumerate(pairs)]
        run.work.write_bytes("\n".join(lines).encode(), "pairs.jsonl")
        columns = ColumnsConfig(root=config.sugarcrepe.images or config.sugarcrepe.annotations)
        own: dict[str, Any] = {"columns": columns, "scorer": config.scorer, "cluster": config.cluster}
        table = score_all(CurateConfig(run.work.at("pairs.jsonl"), **own), (PLACE,), run.work.at("scored"))
        bad = Counter(table.filter(pc.is_null(table[words.ALIGNMENT]))[words.STATUS].to_pylist())
        table = table.filter(pc.is_valid(table[words.ALIGNMENT]))
        pairs = [pairs[int(place)] for place in table[PLACE].to_pylist()]
        scored, copies_BN = take_scores(table, pairs, config.seed), draw_copies([one.image for one in pairs])
        kind_N = np.array([one.kind for one in pairs])
        rows = list(judge_photos(scored, copies_BN, kind_N))
        texts = report_text(scored, copies_BN, kind_N, pairs)
        values = {words.ALIGNMENT: scored.alignment_N, judge.TEXT: scored.text_N, **scored.readings}
        listed: list[Any] = [(*one, *(float(x[i]) for x in values.values())) for i, one in enumerate(pairs)]
        tables = Table("", (*Pair._fields, *values), listed), Table("", Row._fields, rows), texts
        for name, found in zip(_OUTPUTS, tables, strict=True):
            run.folder.write_bytes(found.to_csv().encode(), name)
        counts = {words.OK: len(pairs), **bad}
        run.close(counts, counts, words.OK, warnings=warnings)
        headline, *answers = say_verdict(rows, is_noise=bool(run.noise))
        plot = [(row.rule, row.points_in_strata) for row in take(rows) if row.rule != judge.ALIGNMENT]
        page = render_page(
            Path(__file__).with_name("page.html.jinja"),
            run=run.record,
            headline=headline,
            answers=answers,
            tables=[report_rules(rows, "cpi "), report_rules(rows, f"{judge.ALIGNMENT} + "), texts],
            charts=[intervals(Plot(_TITLE, "points; same share of every number of target nouns", plot, 0.0))],
        )
        said = f"screened {len(pairs):,} pairs"
        run.report(said if run.noise else f"{said}; {headline}", page)
    return run.record


def draw_pairs(config: ScreenConfig) -> tuple[list[Pair], list[str]]:
    """Return the pairs whose image is there, and warnings. A caption that SugarCrepe edits several times has
    one of these edits. Raises ValueError where files are missing or malformed."""
    files, rng = config.sugarcrepe, np.random.default_rng(config.seed)
    choices = [one for one in read_benchmark("sugarcrepe", Folder(str(files.annotations))) if not one.defects]
    root = Folder(files.images or str(files.annotations))
    try:
        found = find_images(root, [one.image for one in choices]).uris
    except ValueError as error:
        raise ValueError(f"sugarcrepe.images={root.uri!r}: {error}; name the folder of val2017") from error
    own = sorted(one for one in choices if one.image in found)
    edits = group_by(own, lambda one: (one.image, one.positives[0])).values()
    picked = [some[rng.integers(len(some))] for some in edits]
    order = sorted((one.split, rng.random(), i) for i, one in enumerate(picked))
    false = {i for *_, i in order[::3]}
    pairs = [
        Pair(a.image, found[a.image], (a.negatives if i in false else a.positives)[0], a.split, i in false)
        for i, a in enumerate(picked)
    ]
    num = len({one.image for one in choices})
    said = f"sugarcrepe.images: {num - len(found):,} of {num:,} images are not in {root.uri}; left out"
    return pairs, [said] if len(found) < num else []


def take_scores(table: pa.Table, pairs: Sequence[Pair], seed: int) -> judge.Scored:
    """Return the scores of pairs, which are the rows of the table."""
    image_N, _, caption_N, _, fault_N = (np.array(column) for column in zip(*pairs, strict=True))
    readings, num_targets_N = read_readings(table)
    return judge.Scored(
        fault_N=fault_N,
        alignment_N=table[words.ALIGNMENT].to_numpy().astype(np.float64),
        text_N=score_texts(caption_N, fault_N, image_N),
        readings=readings,
        num_targets_N=num_targets_N,
        draw_N=np.random.default_rng(seed).permutation(len(pairs)),
    )


def score_texts(caption_N: np.ndarray, fault_N: np.ndarray, image_N: np.ndarray) -> np.ndarray:
    """Return the log-odds of a true caption by a text-only classifier, fitted to captions of other images."""
    fold_N, score_N = draw_folds(image_N, FOLDS, np.random.default_rng(0)), np.zeros(len(caption_N))
    for fold in range(FOLDS):
        other_N = fold_N != fold
        fitted = fit_text_classifier(caption_N[other_N].tolist(), fault_N[other_N])
        score_N[~other_N] = -fitted.score(caption_N[~other_N].tolist())
    return score_N


def draw_copies(images: Sequence[str]) -> np.ndarray:
    """Return the number of copies of every pair in each draw of images, [B, N]; 1 in the first draw."""
    names, which_N = np.unique(images, return_inverse=True)
    drawn_BG = np.random.default_rng(0).multinomial(len(names), np.full(len(names), 1 / len(names)), DRAWS)
    return np.concatenate([np.ones((1, len(images))), drawn_BG[:, which_N]])


def judge_photos(scored: judge.Scored, copies_BN: np.ndarray, kind_N: np.ndarray) -> Iterator[Row]:
    """Yield the results of every rule, share and kind. Both gates select anew in every draw; sums keep the
    units of the whole corpus."""
    draw_N, fault_N, size_B = scored.draw_N, scored.fault_N, copies_BN.sum(1).astype(int)
    gate_B, *keep_B = (np.array([exact_share(x, n) for n in size_B]) for x in (judge.GATE, *judge.KEEPS))
    pool_BN = judge.keep_copies(scored.alignment_N, copies_BN, gate_B, draw_N)
    kinds = {ALL: fault_N, **{kind: fault_N & (kind_N == kind) for kind in EDITS if kind in kind_N}}
    strata = [scored.num_targets_N == num for num in np.unique(scored.num_targets_N)]
    base: dict[tuple[float, str], list[np.ndarray]] = {}
    for rule, score_N in judge.list_rules(scored, pool_BN[0] > 0):
        for keep, num_B in zip(judge.KEEPS, keep_B, strict=True):
            kept_BN, strata_BN = judge.keep_copies(score_N, pool_BN, num_B, draw_N), np.zeros_like(pool_BN)
            for at_N in strata:
                own_B = pool_BN[:, at_N].sum(1) * num_B / gate_B
                strata_BN[:, at_N] = judge.keep_copies(score_N[at_N], pool_BN[:, at_N], own_B, draw_N[at_N])
            for kind, at_N in kinds.items():
                planted_B = np.maximum(copies_BN[:, at_N].sum(1), 1)  # a draw may lack a kind
                own = [100 * one_BN[:, at_N].sum(1) / planted_B for one_BN in (kept_BN, strata_BN)]
                free, alike = base.setdefault((keep, kind), own)  # the first rule is alignment alone
                points = (own[0], own[0] - free, own[1] - alike)
                yield Row(rule, keep, kind, int(at_N.sum()), *map(_estimate, points))


def _estimate(value_B: np.ndarray, least: float = -100.0, most: float = 100.0) -> Estimate:
    value = float(value_B[0])  # NaN where the corpus lacks a side; a draw may lack one, too
    reach = Z_95 * float(np.nanstd(value_B)) if value == value else value
    return Estimate(value, max(value - reach, least), min(value + reach, most))


def take(rows: Sequence[Row], kind: str = ALL) -> list[Row]:
    """Return the rows of a kind at the paper's share."""
    return [row for row in rows if (row.kind, row.keep) == (kind, judge.KEEP)]


def say_verdict(rows: Sequence[Row], is_noise: bool) -> list[str]:
    """Return the verdict and what it rests on. The rule that keeps the fewest is chosen among many, so its
    interval is Bonferroni's for their number; that of the paper's rule is not."""
    if is_noise:
        return ["Noise: the scorer has random weights; the numbers show only that the command works"]
    points = {a.rule: a.points_in_strata for a in take(rows) if a.rule not in (judge.ALIGNMENT, judge.TEXT)}
    best = min(points, key=lambda rule: points[rule].value)
    one, paper = points[best], points[f"cpi {judge.PAPER}"]
    wider = NormalDist().inv_cdf(1 - 0.025 / len(points)) / Z_95
    reach = wider * max(one.value - one.low, one.high - one.value)  # one end may be cut
    said = f"{write_cell(Estimate(one.value, one.value - reach, one.value + reach), 1)} points"
    if abs(one.value) <= reach:
        verdict = f"Undecided: {best} keeps the fewest false captions, {said} compared with alignment alone"
    elif one.value < 0:
        verdict = f"{best} keeps the fewest false captions: {said} compared with alignment alone"
    else:
        verdict = f"Alignment alone keeps the fewest false captions; next is {best}, {said} more"
    how = "fewer" if paper.high < 0 else "more" if paper.low > 0 else "undecided"
    return [
        verdict,
        f"Adjusted for {len(points)} rules; every number of target nouns keeps the same share of its pairs.",
        f"The paper's rule: {write_cell(paper, 1)} points compared with alignment alone: {how}.",
    ]


def report_rules(rows: Sequence[Row], start: str) -> Table:
    """Return the difference of rules from alignment: of all false captions, and by kind of edit."""
    by_rule = group_by((row for row in rows if row.keep == judge.KEEP), lambda row: row.rule)
    base, lines = by_rule[judge.ALIGNMENT], list[tuple[Cell, ...]]()
    for rule, (own, *kinds) in by_rule.items():
        if rule.startswith(start):
            alike = [one.points_in_strata for one in kinds]
            lines.append((rule.removeprefix(start), own.points_in_strata, own.points, *alike))
    names = "all", "all, any number of nouns", *(one.kind.replace("_", " ") for one in base[1:])
    note = (
        f"Below 0 a rule keeps fewer, in percent of the {base[0].planted:,} false captions; alignment keeps "
        f"{write_cell(base[0].kept, 1)} %. All rules keep {100 * judge.KEEP:.0f} % of the pairs after a gate "
        f"of {100 * judge.GATE:.0f} % by alignment; in all columns but the second every number of target "
        f"nouns keeps the same share. 95 % intervals by {DRAWS:,} draws of images, not adjusted for their "
        f"number. {judge.TEXT}: a text-only classifier, fitted to captions of other images."
    )
    columns: Columns = ("Rule", *(Column(name, "points", 1) for name in names))
    return Table(f"{_TITLE}: {start.strip()}", columns, lines, note)


def report_text(
    scored: judge.Scored, copies_BN: np.ndarray, kind_N: np.ndarray, pairs: Sequence[Pair]
) -> Table:
    """Return how well the caption alone, alignment and PAS separate true from false captions of each kind."""
    few_N = -np.array([float(len(one.caption.split())) for one in pairs])
    scores = {"text-only classifier": scored.text_N, "few words": few_N, "alignment": scored.alignment_N}
    scores["paper's PAS"] = scored.readings[judge.PAPER]
    lines: list[tuple[Cell, ...]] = []
    for kind in (ALL, *(kind for kind in EDITS if kind in kind_N)):
        at_N = (kind_N == kind) | (kind == ALL)
        sides = at_N & ~scored.fault_N, at_N & scored.fault_N
        areas = [_estimate(judge.auc_copies(x_N, copies_BN, *sides), 0, 1) for x_N in scores.values()]
        lines.append((kind.replace("_", " "), *(int(side_N.sum()) for side_N in sides), *areas))
    note = (
        "AUC: the probability that a true caption scores above a false one; .5 is chance. Above .5 in the "
        "first two, the caption alone reveals part of the edits. The classifier (n-grams, number of words) "
        f"is fitted to captions of other images, in {FOLDS} folds. Intervals are over images."
    )
    heads = (Column(f"AUC, {name}", digits=3) for name in scores)
    columns: Columns = ("Kind of edit", "true captions", "false captions", *heads)
    return Table("What the caption alone reveals", columns, lines, note)
