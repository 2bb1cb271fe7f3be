"""Select samples: cut the gates over all files, then write the rows that pass.

The corpus is the rows that have an alignment. cpi passes two gates (Go et al., arXiv 2605.22651, section
5.3): floor(align.keep * N) rows, the best by alignment, and of these floor(attribute.keep * N), the best by
aggregated PAS. align_only and random keep floor(attribute.keep * N) of all N, full keeps N.

The other controls (length and phrase count are from section 7, the rest are ours) pass the same first gate.
At the second gate they rank the rows that cpi ranks there, those past gate 1 with a PAS, by another measure,
and keep as many. A caption without a phrase is in none of them (0.21 % of the paper's captions have no valid
counterfactual).

The paper's own counts (1,557,650 and 1,111,131 of 2,222,261) are not rounded down: 0.7 N is 1,555,582.7 and
0.5 N is 1,111,130.5, so its second count is rounded up and its first is 0.09 % higher. Here it is always
floor.

The driver receives counts; the kept rows go from task to task by files in ``work``. So its memory does not
grow with the corpus, and it requests no shard file from the storage.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp import words
from raycomp.config import exact_share
from raycomp.config.options import check
from raycomp.core.alignment import Moments
from raycomp.core.metrics import CrossMoments, LinearFit
from raycomp.core.selection import (
    KthSearch,
    Threshold,
    count_digit,
    keep_mask,
    kth_datacomp,
    parse_uids,
    random_scores,
)
from raycomp.curation.config import (
    ALIGN_PAS,
    DISPLACEMENT,
    DRAW,
    MINUS_PAS,
    NUM_PHRASES,
    NUM_WORDS,
    PAS,
    RESIDUAL,
    CurateConfig,
    SelectionRule,
    get_rule,
    make_pool_selection,
    update_line,
)
from raycomp.curation.outputs import count_pieces, read_images, write_subset
from raycomp.curation.select.measures import (
    Corpus,
    ScoresFile,
    check_scores,
    corpus_columns,
    read_corpus,
    take_columns,
)
from raycomp.data import parquet
from raycomp.data.files import Folder
from raycomp.run.progress import name_dropped, note_examples
from raycomp.run.work import add_counts, map_files, map_tasks
from raycomp.schema import KEPT_SCHEMA

EXPLAINING = (NUM_WORDS, NUM_PHRASES, words.ALIGNMENT, DISPLACEMENT)
"""Regressors of pas_residual; the response is the aggregated PAS."""
_LOST = {
    DRAW: words.DROPPED_RANDOM,
    words.ALIGNMENT: words.DROPPED_ALIGNMENT,
    PAS: words.DROPPED_ATTRIBUTION,
    ALIGN_PAS: words.DROPPED_ATTRIBUTION,
}


@dataclass(frozen=True)
class Gates:
    """A committed choice: the size of the corpus and each gate's threshold; none = no such gate."""

    num_corpus: int
    align: Threshold | None = None
    attribute: Threshold | None = None
    num_scored: int | None = None
    """Rows past the align gate that have a PAS, which the attribute gate ranks."""
    fit: LinearFit | None = None
    """The prediction that is subtracted from the PAS, fitted over these rows; align_pas uses it for its
    sum."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for json."""
        return {
            "num_corpus": self.num_corpus,
            "align": self.align and self.align.to_dict(),
            "attribute": self.attribute and self.attribute.to_dict(),
            "num_scored": self.num_scored,
            "fit": self.fit and self.fit.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Gates":
        """Return the gates that ``to_dict`` wrote."""
        cuts = {name: values[name] and Threshold.from_dict(values[name]) for name in ("align", "attribute")}
        fit = values.get("fit") and LinearFit.from_dict(values["fit"])
        return cls(values["num_corpus"], cuts["align"], cuts["attribute"], values["num_scored"], fit)


def make_search(selection: SelectionRule, num_corpus: int, num_ranked: int, share: float) -> KthSearch:
    """Return the search for a gate that keeps ``share`` of the corpus out of ``num_ranked`` rows.

    With fewer rows than that, all are kept. Raises ValueError if DataComp's rule has no rows to cut.
    """
    if selection.datacomp_compat:
        check(num_corpus > 0, "select.datacomp_compat", True, "false: no row has an alignment")
        wanted = kth_datacomp(num_corpus, share).k
        return KthSearch(min(wanted, num_ranked), keep_ties=True)
    return KthSearch(min(exact_share(share, num_corpus), num_ranked))


def align_scores(corpus: Corpus, selection: SelectionRule) -> np.ndarray:
    """Return the values by which the rule's align gate ranks the corpus, float32 [M]."""
    if selection.rule.align_by == DRAW:
        return random_scores(corpus.uid_M2, selection.seed)
    return corpus.measures[selection.rule.align_by]


def attribute_scores(corpus: Corpus, selection: SelectionRule, gates: Gates) -> np.ndarray:
    """Return the values that the rule's attribute gate ranks, float32 [M]; numbers on
    ``enters_attribute``."""
    what = selection.rule.attribute_by
    if what == DRAW:
        return random_scores(corpus.uid_M2, selection.seed)
    if what == MINUS_PAS:
        return -corpus.measures[PAS]
    if what in (RESIDUAL, ALIGN_PAS):
        assert gates.fit is not None, "PAS is not fitted yet"
        return gates.fit.residuals(corpus.measures, corpus.measures[PAS])
    return corpus.measures[str(what)]


def passes_align(corpus: Corpus, selection: SelectionRule, gates: Gates) -> np.ndarray:
    """Return which corpus rows pass the align gate, bool [M]."""
    assert gates.align is not None, "the align gate is not cut yet"
    return keep_mask(gates.align, align_scores(corpus, selection), corpus.uid_M2)


def enters_attribute(corpus: Corpus, selection: SelectionRule, gates: Gates) -> np.ndarray:
    """Return which corpus rows the attribute gate ranks, under any rule: past the align gate, with a PAS."""
    return passes_align(corpus, selection, gates) & ~np.isnan(corpus.measures[PAS])


def cut_gates(selection: SelectionRule, over: Callable[..., Iterable[Any]]) -> Gates:
    """Cut the gates of a selection rule over files that are never in one memory.

    ``over(measure, with_attribute, *args)`` yields ``measure(corpus, selection, *args)`` of every file, in
    order, with its corpus read from ``corpus_columns(selection, with_attribute)``. ``measure`` is a plain
    function.
    """
    num_corpus = sum(over(lambda corpus, _: len(corpus.row_M), False))
    gates = Gates(num_corpus)
    search = make_search(selection, num_corpus, num_corpus, selection.align_share)
    while not search.done:
        search.advance(sum(over(_count_align, False, search)))
    gates = replace(gates, align=search.threshold)
    if selection.attribute_share is None:
        return gates
    num_scored = sum(over(lambda *entered: int(enters_attribute(*entered).sum()), True, gates))
    gates = replace(gates, num_scored=num_scored)
    if selection.rule.attribute_by in (RESIDUAL, ALIGN_PAS):
        names = EXPLAINING if selection.rule.attribute_by == RESIDUAL else (words.ALIGNMENT,)
        moments = reduce(CrossMoments.merge, over(_cross_moments, True, gates, names))
        is_sum = selection.rule.attribute_by == ALIGN_PAS
        gates = replace(gates, fit=weigh_alike(moments) if is_sum else LinearFit.of(EXPLAINING, moments))
    search = make_search(selection, num_corpus, num_scored, selection.attribute_share)
    while not search.done:
        search.advance(sum(over(_count_attribute, True, gates, search)))
    return replace(gates, attribute=search.threshold)


def _count_align(corpus: Corpus, selection: SelectionRule, search: KthSearch) -> np.ndarray:
    return count_digit(search, align_scores(corpus, selection), corpus.uid_M2)


def _cross_moments(
    corpus: Corpus, selection: SelectionRule, gates: Gates, names: Sequence[str]
) -> CrossMoments:
    """Return the moments of some measures and PAS over the rows that the attribute gate ranks."""
    enters_M = enters_attribute(corpus, selection, gates)
    return CrossMoments.of([corpus.measures[name][enters_M] for name in (*names, PAS)])


def weigh_alike(moments: CrossMoments) -> LinearFit:
    """Return the fit whose residual is the sum of alignment and PAS, each divided by its standard deviation.

    The residual is the centred sum times the deviation of PAS. If either does not vary, the other alone
    ranks.
    """
    align_size, pas_size = np.sqrt(np.diag(moments.product_CC)).tolist()
    ratio = pas_size / align_size if align_size and pas_size else 1.0
    align_mean, pas_mean = moments.mean_C.tolist()
    return LinearFit(moments.count, pas_mean + ratio * align_mean, {words.ALIGNMENT: -ratio}, None)


def _count_attribute(corpus: Corpus, selection: SelectionRule, gates: Gates, search: KthSearch) -> np.ndarray:
    enters_M = enters_attribute(corpus, selection, gates)
    return count_digit(search, attribute_scores(corpus, selection, gates)[enters_M], corpus.uid_M2[enters_M])


def rank_attributed(table: pa.Table, selection: SelectionRule, gates: Gates) -> pa.Array:
    """Return the value by which ``selection.by_pas`` ranks each row with a PAS, past its gates or not.

    The table needs its ``corpus_columns``.
    """
    rule = selection.by_pas
    corpus = read_corpus(take_columns(table, rule, with_attribute=True), rule)
    value_N = np.full(len(table), np.nan, np.float32)
    value_N[corpus.row_M] = attribute_scores(corpus, rule, gates)
    return pa.array(value_N, mask=np.isnan(value_N))


Judged = tuple[np.ndarray, np.ndarray]


def judge_table(table: pa.Table, selection: SelectionRule, gates: Gates) -> Judged:
    """Return the reason and the last gate's score of every row of a table.

    The reason is KEPT, a gate's, a mark's or the status. Reasons are an object array of str, scores float32
    with NaN where the row was not ranked.
    """
    rule = selection.rule
    reason_N = np.array(table[words.STATUS].to_pylist(), dtype=object)
    score_N = np.full(len(table), np.nan, np.float32)
    corpus = read_corpus(table, selection)
    passes_M = passes_align(corpus, selection, gates)
    reason_M = np.where(passes_M, words.KEPT, _LOST.get(rule.align_by, words.DROPPED_CONTROL)).astype(object)
    score_M = align_scores(corpus, selection)
    if gates.attribute is not None:
        enters_M = enters_attribute(corpus, selection, gates)
        score_M = np.where(enters_M, attribute_scores(corpus, selection, gates), np.float32(np.nan))
        kept_M = np.zeros(len(enters_M), bool)
        kept_M[enters_M] = keep_mask(gates.attribute, score_M[enters_M], corpus.uid_M2[enters_M])
        reason_M[passes_M & ~enters_M] = words.DROPPED_UNSCORED
        reason_M[enters_M & ~kept_M] = _LOST.get(str(rule.attribute_by), words.DROPPED_CONTROL)
    if words.MARK in table.column_names:
        is_marked_N = table[words.ALIGNMENT].is_valid().to_numpy() & table[words.MARK].is_valid().to_numpy()
        reason_N[is_marked_N] = table[words.MARK].to_numpy()[is_marked_N]
    if words.MARK_AFTER in table.column_names:  # of rows that would be kept
        after_M = table[words.MARK_AFTER].to_numpy()[corpus.row_M]
        is_lost_M = (reason_M == words.KEPT) & np.array([after is not None for after in after_M], bool)
        reason_M[is_lost_M] = after_M[is_lost_M]
    reason_N[corpus.row_M] = reason_M
    score_N[corpus.row_M] = score_M
    return reason_N, score_N


def judge_file(
    file: ScoresFile, selection: SelectionRule, gates: Gates, columns: Sequence[str] = ()
) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Return a scores file with ``columns`` and those of the gates, and each row's reason and score."""
    wanted = dict.fromkeys([*columns, *corpus_columns(selection, with_attribute=True)])
    table = file.read(list(wanted))
    return table, *judge_table(take_columns(table, selection, with_attribute=True), selection, gates)


def choose_tables(tables: Sequence[pa.Table], selection: SelectionRule) -> tuple[Gates, list[Judged]]:
    """Choose over scores tables in memory, as the cluster does over files; return the gates and each table's
    reasons and scores.

    The tables need the columns of ``corpus_columns(selection, True)``.
    """
    corpora = [read_corpus(table, selection) for table in tables]

    def over(measure: Callable, with_attribute: bool, *args: Any) -> Iterable[Any]:
        return (measure(corpus, selection, *args) for corpus in corpora)

    gates = cut_gates(selection, over)
    return gates, [judge_table(table, selection, gates) for table in tables]


def describe_shortage(selection: SelectionRule, gates: Gates) -> list[str]:
    """Return a warning if the attribute gate had fewer rows to rank than it should keep."""
    share, num_scored = selection.attribute_share, gates.num_scored
    if share is None or num_scored is None or num_scored >= (wanted := exact_share(share, gates.num_corpus)):
        return []
    return [
        f"attribute.keep={share} asks for {wanted:,} pairs, but only {num_scored:,} past the first gate have "
        "a PAS; all of them were kept"
    ]


def describe_duplicates(reasons: Mapping[str, int], num_corpus: int) -> list[str]:
    """Return a warning if most rows that no filter dropped are near-duplicates of others."""
    lost = reasons.get(words.NEAR_DUPLICATE, 0)
    if lost <= num_corpus:
        return []
    return [
        f"near.rules: {lost:,} of {lost + num_corpus:,} rows are near-duplicates of another row and were "
        "dropped; look at the groups in marks/, or set a stricter near.bits or near.cosine"
    ]


SUBSET = ("subset", "subset.npy")
# The kept rows of one shard, with the columns that locate their samples.
_PART_SCHEMA = KEPT_SCHEMA.append(pa.field(words.POSITION, pa.int32()))


@dataclass(frozen=True)
class Chosen:
    """The result of a choice: gate thresholds, kept rows per shard, and dropped rows by reason."""

    gates: Gates
    rows_S: list[int]
    """Rows of each shard."""
    pieces_S: list[list[int]]
    """Kept rows of each shard, by piece (``count_pieces``)."""
    reasons: Counter
    examples: dict[str, list[str]]
    """Names of the first rows of each status that is left out."""
    moments: Moments | None = None
    """Under cpi those of the PAS that the attribute gate ranks: Eq. 5 divides by them."""

    @property
    def faults(self) -> Counter[str]:
        """Rows by reason, marked rows under one name: a mark is not a fault of the row."""
        marked = sum(self.reasons[reason] for reason in words.MARK_REASONS)
        others = {reason: count for reason, count in self.reasons.items() if reason not in words.MARK_REASONS}
        return Counter({**others, words.MARK: marked})

    @property
    def num_kept(self) -> int:
        """Rows in the subset."""
        return sum(map(sum, self.pieces_S))


def choose(
    scores: list[ScoresFile], selection: SelectionRule, out: Folder, work: Folder, check: Callable[[], None]
) -> Chosen:
    """Cut the gates over the files; write each shard's kept rows to ``work``, and ``subset.npy`` to ``out``.

    ``check`` is called before the gates are committed; it raises if this run may not commit.
    """
    committed = commit_once(work, "subset", lambda: {"gates": cut_all(scores, selection).to_dict()}, check)
    gates = Gates.from_dict(committed["gates"])
    moments = None
    if selection.rule.attribute_by == PAS:
        moments = reduce(Moments.merge, map_files(_measure, scores, selection, _measure_pas, True, gates))
    jobs = [(file, _kept_part(work, ordinal)) for ordinal, file in enumerate(scores)]
    found = list(map_files(_write_kept, jobs, selection, gates))
    examples: dict[str, list[str]] = {}
    for *_, own in found:
        note_examples(examples, ((status, name) for status, names in own.items() for name in names))
    parts = [part for _, part in jobs]
    list(map_tasks(_write_subset, [parts], out.at(*SUBSET), label="subset"))
    return Chosen(
        gates,
        [counted.total() for counted, *_ in found],
        [pieces for _, pieces, _ in found],
        sum((counted for counted, *_ in found), Counter()),
        examples,
        moments,
    )


def _write_subset(parts: list[str], uri: str) -> None:
    write_subset((parse_uids(kept[words.UID]) for kept in parquet.read_in_order(parts, [words.UID])), uri)


def write_kept(choice: Chosen, out: Folder, work: Folder, has_images: bool = False) -> None:
    """Write ``subset/kept.parquet``, the kept rows of all shards in their order, by one task.

    ``has_images``: whether outputs hold images in another format, whose SHA-256 the rows get.
    """
    list(map_tasks(_join_kept, [len(choice.rows_S)], out, work, has_images, label="subset"))


def _join_kept(num_shards: int, out: Folder, work: Folder, has_images: bool) -> None:
    images = read_images(work) if has_images else {}
    parts = [_kept_part(work, ordinal) for ordinal in range(num_shards)]
    with parquet.new_groups(out.at("subset", "kept.parquet"), KEPT_SCHEMA) as write:
        for kept in parquet.read_in_order(parts, KEPT_SCHEMA.names):
            if images:
                uids, known = (kept[name].to_pylist() for name in (words.UID, words.IMAGE_SHA256))
                found = [images.get(uid, image) for uid, image in zip(uids, known, strict=True)]
                kept = parquet.add_columns(kept, {words.IMAGE_SHA256: pa.array(found, pa.string())})
            write(kept)


def commit_once(
    work: Folder, name: str, cut: Callable[[], dict[str, Any]], check: Callable[[], None]
) -> dict[str, Any]:
    """Return ``work/gates/NAME.json`` of an earlier attempt, else cut the gates and commit it."""
    names = ("gates", f"{name}.json")
    if not work.exists(*names):
        found = cut()
        check()
        work.write_json(found, *names)
    return work.read_json(*names)


def cut_pool(scores: list[ScoresFile], pool: SelectionRule) -> dict[str, Any]:
    """Return the gate of the pool that is attributed, and the number of its rows in each file that have not
    been attributed yet."""
    gates = cut_all(scores, pool)
    return {
        "gates": gates.to_dict(),
        "sizes": [left for _, left in map_files(_count_pool, scores, pool, gates)],
    }


def load_pool(
    item: tuple[int, ScoresFile], selection: SelectionRule, gates: Gates, block_rows: int
) -> Iterator[pa.Table]:
    """Yield the rows of one aligned file that are in the pool, but for those with an attribution."""
    ordinal, file = item
    columns = [words.POSITION, words.UID, words.STATUS, words.CAPTION, words.ALIGNMENT, words.IMAGE_EMBEDDING]
    rows = np.flatnonzero(find_pool(file, selection, gates) & ~is_attributed(file.uri))
    table = parquet.read_columns(file.uri, columns).take(pa.array(rows))
    table = parquet.add_columns(table, {words.SHARD_ORDINAL: pa.array([ordinal] * len(table), pa.int32())})
    for start in range(0, len(table), block_rows):
        yield table.slice(start, block_rows)


def cut_all(scores: list[ScoresFile], selection: SelectionRule) -> Gates:
    """Cut the gates of a selection rule over all files; every pass reads each file."""
    return cut_gates(
        selection, lambda *measure: map_files(_measure, scores, selection, *measure, fold=add_counts)
    )


def _measure(
    file: ScoresFile, selection: SelectionRule, measure: Callable, with_attribute: bool, *args: Any
) -> Any:
    """Return what ``measure`` finds in the corpus rows of a file. Raises UserError as ``check_scores``."""
    table = file.read(corpus_columns(selection, with_attribute))
    check_scores(table, file.uri)
    return measure(read_corpus(table, selection), selection, *args)


def _measure_pas(corpus: Corpus, selection: SelectionRule, gates: Gates) -> Moments:
    return Moments.of(corpus.measures[PAS][enters_attribute(corpus, selection, gates)])


def find_pool(file: ScoresFile, selection: SelectionRule, gates: Gates) -> np.ndarray:
    """Return which rows of a file are in the pool, bool [N]."""
    table = take_columns(file.read(corpus_columns(selection, False)), selection, False)
    return (judge_table(table, selection, gates)[0] == words.KEPT).astype(bool)


def is_attributed(uri: str) -> np.ndarray:
    """Return which rows of a file have phrases, if only an empty list, bool [N]."""
    if words.PHRASES not in parquet.read_schema(uri).names:
        return np.zeros(parquet.count_rows(uri), bool)
    return parquet.read_columns(uri, [words.PHRASES])[words.PHRASES].is_valid().to_numpy()


def _count_pool(file: ScoresFile, selection: SelectionRule, gates: Gates) -> tuple[int, int]:
    """Return how many rows of a file are in the pool, and how many of these have no attribution."""
    in_pool_N = find_pool(file, selection, gates)
    return int(in_pool_N.sum()), int((in_pool_N & ~is_attributed(file.uri)).sum())


def _write_kept(
    job: tuple[ScoresFile, str], selection: SelectionRule, gates: Gates
) -> tuple[Counter, list[int], dict[str, list[str]]]:
    """Write one file's kept rows; return the number of rows by reason, of kept rows by piece, and the names
    of the first rows of each status that is left out."""
    file, part = job
    kept = [words.KEY, words.SHARD, words.POSITION, words.IMAGE_SHA256, words.CAPTION, words.MEAN_PAS]
    table, reason_N, score_N = judge_file(file, selection, gates, kept)
    named = name_dropped(table, reason_N)
    table = table.append_column(words.SCORE, pa.array(score_N)).filter(pa.array(reason_N == words.KEPT))
    parquet.write_table(table.select(_PART_SCHEMA.names), part, _PART_SCHEMA)
    return Counter(reason_N.tolist()), count_pieces(table[words.POSITION].to_numpy()), named


def _kept_part(work: Folder, ordinal: int) -> str:
    return work.at("kept", f"{ordinal:05d}.parquet")


def read_kept(work: Folder, ordinal: int) -> pa.Table:
    """Return a shard's kept rows, with their positions."""
    return parquet.read_columns(_kept_part(work, ordinal))


def check_pool(files: list[ScoresFile], config: CurateConfig, scored: CurateConfig, source: str) -> None:
    """Raise ValueError if rows past the first gate were never attributed.

    ``scored``: the config of the curation. Its pool can be too small where other rows are dropped before the
    shares are counted, and where DataComp's rule keeps ties. ``source``: the curation's folder; the error
    names the update of it that attributes them.
    """
    compat = config.select.datacomp_compat and not scored.select.datacomp_compat
    is_marked = config.has_marks or scored.has_marks
    if not get_rule(config.select.rule).attribute_by or not (is_marked or (compat and scored.pool < 1)):
        return
    pool = make_pool_selection(config.align.keep, config.select.datacomp_compat)
    gates = cut_all(files, pool)
    passing, missing = map(sum, zip(*map_files(_count_pool, files, pool, gates), strict=True))
    if not missing:
        return
    line = update_line(source, "attribute.pool", 1)
    if compat and not config.has_marks:
        attributed = exact_share(scored.pool, gates.num_corpus)
        said = f"gate 1 keeps {passing:,} pairs with their ties, {attributed:,} were attributed"
        raise ValueError(f"select.datacomp_compat=true: {said}; attribute all: {line}")
    said = f"{missing:,} rows past gate 1 were never attributed, because rows before them are dropped"
    raise ValueError(f"filter: {said}; attribute them: {line}")
