"""The values that rules rank by: scores-table rows that have an alignment, with their measures."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import UserError
from raycomp.core.attribution import aggregate_drops, drop_per_displacement
from raycomp.core.selection import parse_uids
from raycomp.curate.config import SelectionRule
from raycomp.curate.rules import DISPLACEMENT, NUM_PHRASES, NUM_WORDS, PAS
from raycomp.data.parquet import count_caption_words
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    CONTENT,
    CONTENT_WORDS,
    MEAN_PAS,
    PER_TARGET,
    PHRASES,
    SHOWABLE,
    STATUS,
    UID,
    UNSEEN,
)


@dataclass(frozen=True)
class Corpus:
    """The rows of one scores file that have an alignment: M of its N rows."""

    row_M: np.ndarray
    uid_M2: np.ndarray
    measures: dict[str, np.ndarray]
    """The measures, float32 [M], for which the table has columns; NaN where a value is missing.
    PAS is always present. num_phrases counts the targets that PAS uses; displacement is their mean."""


def corpus_columns(selection: SelectionRule, with_attribute: bool) -> list[str]:
    """Return the columns that the rule's gates read. The align gate reads no column of a sample's content."""
    rule, columns = selection.rule, [UID, STATUS, ALIGNMENT]
    if not (with_attribute and rule.attribute_by):
        return columns
    if PHRASES not in rule.columns:
        is_stored = (selection.aggregate, selection.unit, selection.targets) == ("mean", PER_TARGET, SHOWABLE)
        columns.append(MEAN_PAS if is_stored else PHRASES)
    columns += rule.columns
    return [*columns, *([CONTENT_WORDS] if selection.targets == CONTENT and PHRASES in columns else [])]


def check_scores(table: pa.Table, said: str) -> None:
    """Raise UserError, naming the file ``said`` and the column, if a score is NaN or infinite.

    A row without a score has null.
    """
    columns = {name: table[name] for name in (ALIGNMENT, MEAN_PAS) if name in table.column_names}
    for nested in {PHRASES, CONTENT_WORDS} & {*table.column_names}:
        flat = table[nested].combine_chunks().flatten()
        columns |= {f"{nested}.{name}": pc.struct_field(flat, name) for name in ("drop", "displacement")}
    for name, column in columns.items():
        if not pc.all(pc.is_finite(column), min_count=0).as_py():
            raise UserError(f"{said}: {name} must be finite numbers, holds NaN or infinity; curate again")


def read_corpus(table: pa.Table, selection: SelectionRule) -> Corpus:
    """Take the corpus rows out of a scores table with ``corpus_columns``."""
    row_M = np.flatnonzero(table[ALIGNMENT].is_valid().to_numpy())
    taken = table.take(pa.array(row_M))
    measures = {ALIGNMENT: taken[ALIGNMENT].to_numpy(), PAS: np.full(len(row_M), np.nan, np.float32)}
    if PHRASES in table.column_names:
        measures |= _measure_phrases(taken, selection)
    elif MEAN_PAS in table.column_names:
        measures[PAS] = taken[MEAN_PAS].to_numpy().astype(np.float32)
    if CAPTION in table.column_names:
        measures[NUM_WORDS] = count_caption_words(taken[CAPTION]).to_numpy().astype(np.float32)
    return Corpus(row_M, parse_uids(taken[UID]), measures)


def _measure_phrases(taken: pa.Table, selection: SelectionRule) -> dict[str, np.ndarray]:
    """Return a value per target of each row, for targets that count and have a drop."""
    columns = [PHRASES, CONTENT_WORDS] if selection.targets == CONTENT else [PHRASES]
    parts = [_read_targets(taken[name].combine_chunks(), selection) for name in columns]
    row_P, drop_P, displacement_P = (np.concatenate(values) for values in zip(*parts, strict=True))
    order_P = np.argsort(row_P, kind="stable")
    count_N = np.bincount(row_P, minlength=len(taken))
    offset_E = np.concatenate([[0], np.cumsum(count_N)])
    drop_P, displacement_P = drop_P[order_P], displacement_P[order_P]
    value_P = drop_P if selection.unit == PER_TARGET else drop_per_displacement(drop_P, displacement_P)
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
    if selection.targets == SHOWABLE:
        is_unseen = pc.fill_null(pc.equal(pc.struct_field(flat, "target_class"), UNSEEN), False)
        counts_P &= ~is_unseen.to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(sizes)), sizes)[counts_P], drop_P[counts_P], displacement_P[counts_P]
