"""What rules can rank by: the rows of a scores table that have an alignment, and their measures."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import UserError
from raycomp.core.attribution import aggregate_drops
from raycomp.core.selection import parse_uids
from raycomp.curate.arm import Arm
from raycomp.curate.rules import DISPLACEMENT, NUM_PHRASES, NUM_WORDS, PAS
from raycomp.data.parquet import count_caption_words
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    MEAN_PAS,
    PHRASES,
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
    """What a rule can rank by, float32 [M], as far as the table has columns for it; NaN where there is none.
    PAS is there always, num_phrases counts the phrases that count for it, displacement is their mean."""


def corpus_columns(arm: Arm, with_attribute: bool) -> list[str]:
    """Return the columns that the rule's gates read; nothing of a sample's content for the align gate."""
    rule, columns = arm.rule, [UID, STATUS, ALIGNMENT]
    if not (with_attribute and rule.attribute_by):
        return columns
    if PHRASES not in rule.columns:
        is_stored = arm.aggregate == "mean" and not arm.unseen
        columns.append(MEAN_PAS if is_stored else PHRASES)
    return [*columns, *rule.columns]


def check_scores(table: pa.Table, said: str) -> None:
    """Raise UserError, naming the file ``said`` and the column, where a score is NaN or infinite.

    A row without a score has null.
    """
    columns = {name: table[name] for name in (ALIGNMENT, MEAN_PAS) if name in table.column_names}
    if PHRASES in table.column_names:
        flat = table[PHRASES].combine_chunks().flatten()
        columns |= {f"{PHRASES}.{name}": pc.struct_field(flat, name) for name in ("drop", "displacement")}
    for name, column in columns.items():
        if not pc.all(pc.is_finite(column), min_count=0).as_py():
            raise UserError(f"{said}: {name} must be finite numbers, holds NaN or infinity; curate again")


def read_corpus(table: pa.Table, arm: Arm) -> Corpus:
    """Take the corpus rows out of a scores table with ``corpus_columns``."""
    row_M = np.flatnonzero(table[ALIGNMENT].is_valid().to_numpy())
    taken = table.take(pa.array(row_M))
    measures = {ALIGNMENT: taken[ALIGNMENT].to_numpy(), PAS: np.full(len(row_M), np.nan, np.float32)}
    if PHRASES in table.column_names:
        measures |= _measure_phrases(taken[PHRASES].combine_chunks(), arm)
    elif MEAN_PAS in table.column_names:
        measures[PAS] = taken[MEAN_PAS].to_numpy().astype(np.float32)
    if CAPTION in table.column_names:
        measures[NUM_WORDS] = count_caption_words(taken[CAPTION]).to_numpy().astype(np.float32)
    return Corpus(row_M, parse_uids(taken[UID]), measures)


def _measure_phrases(phrases: pa.ListArray, arm: Arm) -> dict[str, np.ndarray]:
    """Return what the phrases of each row say, of those with a drop."""
    sizes = pc.fill_null(pc.list_value_length(phrases), 0).to_numpy()
    offset_E = np.concatenate([[0], np.cumsum(sizes)])
    drop_P, displacement_P = _read_phrases(phrases, arm.unseen)
    row_P = np.repeat(np.arange(len(sizes)), sizes)[~np.isnan(drop_P)]
    return {
        PAS: aggregate_drops(drop_P, offset_E, arm.aggregate),
        NUM_PHRASES: np.bincount(row_P, minlength=len(sizes)).astype(np.float32),
        DISPLACEMENT: aggregate_drops(displacement_P, offset_E, "mean"),
    }


def _read_phrases(phrases: pa.ListArray, unseen: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return drop and displacement of every phrase, float32; NaN in both where the phrase does not count.

    None counts without a drop, and one whose target no picture can show only with ``unseen``.
    """
    flat = phrases.flatten()
    columns = (pc.struct_field(flat, name) for name in ("drop", "displacement"))
    drop_P, displacement_P = (c.to_numpy(zero_copy_only=False).astype(np.float32) for c in columns)
    is_unseen = pc.fill_null(pc.equal(pc.struct_field(flat, "target_class"), UNSEEN), False)
    out_P = np.isnan(drop_P) | (is_unseen.to_numpy(zero_copy_only=False) & (not unseen))
    nan = np.float32(np.nan)
    return np.where(out_P, nan, drop_P), np.where(out_P, nan, displacement_P)
