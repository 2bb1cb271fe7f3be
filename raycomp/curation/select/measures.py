"""The values that rules rank by: rows of scores with an alignment, their metadata and marks."""

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.config import UserError
from raycomp.config.commands import call_own, is_own, load_own
from raycomp.config.options import check, check_choice
from raycomp.core.alignment import aggregate_drops, drop_per_displacement
from raycomp.core.selection import parse_uids
from raycomp.curation.config import (
    COLUMN_OF,
    DISPLACEMENT,
    NUM_PHRASES,
    NUM_WORDS,
    OPTION,
    PAS,
    CurateConfig,
    SelectionRule,
    find_parameters,
    get_rule,
)
from raycomp.curation.score.columns import list_own_columns
from raycomp.data.files import Folder
from raycomp.data.parquet import add_columns, aligned_schema, count_caption_words, read_columns, scores_schema

MARKS = "marks"


class ScoresFile(NamedTuple):
    """A scores file, or a file of aligned rows; ``marks`` and ``metadata`` where the run has any."""

    uri: str
    marks: str | None = None
    metadata: str | None = None

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of the scores file, and ``mark`` and ``mark_after`` if it has marks.

        Raises as ``read_columns``, and UserError if the marks are of other rows.
        """
        table = read_columns(self.uri, columns)
        if self.marks is None:
            return table
        marks = read_columns(self.marks, [words.MARK, words.MARK_AFTER])
        if len(marks) != len(table):
            said = f"{self.marks}: has {len(marks):,} rows, {self.uri} has {len(table):,}; run it again"
            raise UserError(said)
        return add_columns(table, {name: marks[name] for name in marks.column_names})


def pair_marks(scores: Sequence[str], config: CurateConfig, out: Folder) -> list[ScoresFile]:
    """Return the files with the marks that ``mark_rows`` writes for them."""
    if not config.has_marks:
        return [ScoresFile(uri) for uri in scores]
    return [ScoresFile(uri, out.at(MARKS, posixpath.basename(uri))) for uri in scores]


@dataclass(frozen=True)
class Found:
    """What a marker found in one file of N rows."""

    reason_N: np.ndarray
    """Reasons, object [N]; None = the row is not dropped."""
    is_after: bool = False
    """Whether the rows are dropped after the rule's gates."""
    evidence: Mapping[str, pa.Array] = field(default_factory=dict)
    """Columns of the marks file, [N]."""
    matched: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Keys of a list that a row has, by kind."""


Marker = Callable[[ScoresFile], Found]
"""Finds the marks of one file; a plain callable that tasks can pickle."""


@dataclass(frozen=True)
class Corpus:
    """The rows of one scores file that have an alignment and no mark: M of its N rows."""

    row_M: np.ndarray
    uid_M2: np.ndarray
    measures: dict[str, np.ndarray]
    """The measures, float32 [M], for which the table has columns; NaN where a value is missing.
    PAS is always present. num_phrases counts the targets that PAS uses; displacement is their mean."""


def corpus_columns(selection: SelectionRule, with_attribute: bool) -> list[str]:
    """Return the columns that the rule's gates read. The align gate reads no column of a sample's content,
    except for a measure of the user's."""
    rule, columns = selection.rule, [words.UID, words.STATUS, words.ALIGNMENT]
    is_ranked = with_attribute and rule.attribute_by is not None
    if is_ranked and words.PHRASES not in rule.columns:
        stored = ("mean", words.PER_TARGET, words.SHOWABLE)
        is_stored = (selection.aggregate, selection.unit, selection.targets) == stored
        columns.append(words.MEAN_PAS if is_stored else words.PHRASES)
    if is_ranked or is_own(rule.align_by):
        columns += rule.columns
    if is_ranked and selection.targets == words.CONTENT and words.PHRASES in columns:
        columns.append(words.CONTENT_WORDS)
    return list(dict.fromkeys(columns))


def take_columns(table: pa.Table, selection: SelectionRule, with_attribute: bool) -> pa.Table:
    """Return the columns that the rule's gates read, and the marks if the table has any.

    Without attribution, as for the pool, rows with a mark after the gates count like others.
    """
    wanted = (words.MARK, words.MARK_AFTER) if with_attribute else (words.MARK,)
    marks = [name for name in wanted if name in table.column_names]
    return table.select([*corpus_columns(selection, with_attribute), *marks])


def mask_corpus(table: pa.Table) -> np.ndarray:
    """Return which rows of a scores table have an alignment and no mark, bool [N]."""
    counts_N = table[words.ALIGNMENT].is_valid().to_numpy()
    return counts_N & table[words.MARK].is_null().to_numpy() if words.MARK in table.column_names else counts_N


def check_scores(table: pa.Table, said: str) -> None:
    """Raise UserError, naming the file ``said`` and the column, if a score is NaN or infinite.

    A row without a score has null.
    """
    columns = {name: table[name] for name in (words.ALIGNMENT, words.MEAN_PAS) if name in table.column_names}
    for nested in {words.PHRASES, words.CONTENT_WORDS} & {*table.column_names}:
        flat = table[nested].combine_chunks().flatten()
        columns |= {f"{nested}.{name}": pc.struct_field(flat, name) for name in ("drop", "displacement")}
    for name, column in columns.items():
        if not pc.all(pc.is_finite(column), min_count=0).as_py():
            raise UserError(f"{said}: {name} must be finite numbers, holds NaN or infinity; curate again")


def read_corpus(table: pa.Table, selection: SelectionRule) -> Corpus:
    """Take the corpus rows out of a scores table with ``corpus_columns``, and its marks if it has any."""
    row_M = np.flatnonzero(mask_corpus(table))
    taken = table.take(pa.array(row_M))
    missing_M = np.full(len(row_M), np.nan, np.float32)
    measures = {words.ALIGNMENT: taken[words.ALIGNMENT].to_numpy(), PAS: missing_M}
    if words.PHRASES in table.column_names:
        measures |= _measure_phrases(taken, selection)
    elif words.MEAN_PAS in table.column_names:
        measures[PAS] = taken[words.MEAN_PAS].to_numpy().astype(np.float32)
    if words.CAPTION in table.column_names:
        measures[NUM_WORDS] = count_caption_words(taken[words.CAPTION]).to_numpy().astype(np.float32)
    has_attribute = not {words.PHRASES, words.MEAN_PAS}.isdisjoint(table.column_names)
    own = selection.rule.attribute_by if has_attribute else selection.rule.align_by
    if own and is_own(own):
        measures[own] = _measure_own(own, taken, measures, has_attribute)
    return Corpus(row_M, parse_uids(taken[words.UID]), measures)


def _measure_own(
    name: str, taken: pa.Table, measures: dict[str, np.ndarray], is_attributed: bool
) -> np.ndarray:
    """Return the values of the user's function for the corpus rows. Raises UserError where it returns
    anything but a number for each row that is ranked."""
    values = []
    for one in find_parameters(name):
        value: Any = measures[one] if one in measures else taken[one].combine_chunks()
        if one not in measures and (pa.types.is_floating(value.type) or pa.types.is_integer(value.type)):
            value = value.to_numpy(zero_copy_only=False)  # NaN for null
        values.append(value)
    found = call_own(OPTION, name, load_own(OPTION, name), *values)
    try:
        found_M = np.asarray(found, np.float32)
    except (TypeError, ValueError) as error:
        raise UserError(f"{OPTION}={name}: must return numbers, returned {found!r:.80}") from error
    if found_M.shape != (len(taken),):
        shape = [*found_M.shape]
        raise UserError(f"{OPTION}={name}: must return a number for each of {len(taken)} rows, not {shape}")
    is_bad = np.isnan(found_M) & ~(np.isnan(measures[PAS]) if is_attributed else False)
    if is_bad.any():
        uid = taken[words.UID][int(is_bad.argmax())]
        raise UserError(f"{OPTION}={name}: must return numbers, returned NaN for uid {uid}")
    return found_M


def check_own_columns(config: CurateConfig) -> None:
    """Raise ValueError if a parameter of the user's rule is not a column of scores/."""
    rule = config.select.rule
    if not is_own(rule):
        return
    aligned = aligned_schema(1, "float32", config.extra_columns, list_own_columns(config.scorers))
    known = [*scores_schema(aligned, with_content=True).names, PAS, *COLUMN_OF]
    for name in find_parameters(rule):
        others = "; other fields of the samples' json by extra_columns"
        check_choice(f"{OPTION}={rule}: parameter", name, known, others)
    needs_content = words.CONTENT_WORDS in get_rule(rule).columns
    targets, wanted = config.attribute.targets, f"content for {words.CONTENT_WORDS}"
    check(not needs_content or targets == words.CONTENT, "attribute.targets", targets, wanted)


def list_counted(row: Mapping[str, Any], selection: SelectionRule) -> list[tuple[dict[str, Any], float]]:
    """Return the targets of one row that count for its PAS, and their values, in the order of the caption."""
    targets = [*(row.get(words.PHRASES) or ())]
    if selection.targets == words.CONTENT:
        targets += row.get(words.CONTENT_WORDS) or ()
    drop_P, displacement_P = (
        np.array([one[name] for one in targets], np.float32) for name in ("drop", "displacement")
    )
    per_target = selection.unit == words.PER_TARGET
    value_P = drop_P if per_target else drop_per_displacement(drop_P, displacement_P)
    is_hidden = selection.targets == words.SHOWABLE
    found = [
        (one, value)
        for one, value in zip(targets, value_P.tolist(), strict=True)
        if value == value and not (is_hidden and one["target_class"] == words.UNSEEN)
    ]
    return sorted(found, key=lambda pair: pair[0]["target_start"])


def _measure_phrases(taken: pa.Table, selection: SelectionRule) -> dict[str, np.ndarray]:
    """Return a value per target of each row, for targets that count and have a drop."""
    columns = [words.PHRASES, words.CONTENT_WORDS] if selection.targets == words.CONTENT else [words.PHRASES]
    parts = [_read_targets(taken[name].combine_chunks(), selection) for name in columns]
    row_P, drop_P, displacement_P = (np.concatenate(values) for values in zip(*parts, strict=True))
    order_P = np.argsort(row_P, kind="stable")
    count_N = np.bincount(row_P, minlength=len(taken))
    offset_E = np.concatenate([[0], np.cumsum(count_N)])
    drop_P, displacement_P = drop_P[order_P], displacement_P[order_P]
    value_P = drop_P if selection.unit == words.PER_TARGET else drop_per_displacement(drop_P, displacement_P)
    return {
        PAS: aggregate_drops(value_P, offset_E, selection.aggregate),
        NUM_PHRASES: count_N.astype(np.float32),
        DISPLACEMENT: aggregate_drops(displacement_P, offset_E, "mean"),
    }


def _read_targets(lists: pa.ListArray, selection: SelectionRule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row, drop and displacement of every target that counts and has a drop."""
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    flat = lists.flatten()
    columns = (pc.struct_field(flat, name) for name in ("drop", "displacement"))
    drop_P, displacement_P = (c.to_numpy(zero_copy_only=False).astype(np.float32) for c in columns)
    counts_P = ~np.isnan(drop_P)
    if selection.targets == words.SHOWABLE:
        is_unseen = pc.fill_null(pc.equal(pc.struct_field(flat, "target_class"), words.UNSEEN), False)
        counts_P &= ~is_unseen.to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(sizes)), sizes)[counts_P], drop_P[counts_P], displacement_P[counts_P]
