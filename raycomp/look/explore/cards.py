"""The cards of the rows that are shown, in small scripts that the page loads, and what the index needs.

A script rather than JSON: a page opened from a disk may load scripts, and nothing else, from next to it.
"""

import base64
import json
import math
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.curation.samples import MOST_CHARACTERS
from raycomp.data.folder import Folder
from raycomp.data.rows import to_json_value
from raycomp.look.explore.config import ExploreConfig
from raycomp.look.explore.jobs import Job, Shards, list_targets, read_rows
from raycomp.look.explore.rows import Source, list_flat
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    CONTENT_WORDS,
    DUPLICATE_GROUP,
    KINDS,
    MEAN_PAS,
    OUTCOME,
    PHRASES,
    SCORE,
    STATUS,
    UID,
)

DATA = "data"
ROWS_PER_FILE = 50
INDEXED = (UID, OUTCOME, STATUS, ALIGNMENT, MEAN_PAS, SCORE, DUPLICATE_GROUP)
_WORD = re.compile(r"[^\W_]+")
_LARGEST_EXACT = 2**53


class Indexed(NamedTuple):
    """What the index holds of a job's rows."""

    table: pa.Table
    kinds_M: np.ndarray
    """The kinds of the row's phrases, a bit each, in the order of KINDS; uint8."""
    words: list[str]
    word_E: np.ndarray
    code_E: np.ndarray
    """Twice the row's number, plus 1 where the word is in a phrase; in the order of ``word_E``, uint32."""
    drop_P: np.ndarray
    """The size of the drop of every phrase that has one."""
    names: list[str]
    """The names of the values on a card."""


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case: runs of letters and digits, as the page splits a query."""
    return _WORD.findall(text.lower())


def write_cards(
    numbered: tuple[int, Job], source: Source, config: ExploreConfig, shards: Shards, folder: Folder
) -> Indexed:
    """Write the cards of a job's rows to ``data/cards`` of the folder, from the file of this number on."""
    first_file, job = numbered
    table, photos = read_rows(job, source, config, shards)
    names = [name for name in list_flat(table) if name != CAPTION]
    values = [map(_to_value, table[name].to_pylist()) for name in names]
    phrases, words = (list_targets(table, name) for name in (PHRASES, CONTENT_WORDS))
    cards = [
        _make_card(caption, one, others, [*row], near, photos.get(place))
        for caption, one, others, row, near, place in zip(
            table[CAPTION].to_pylist(),
            phrases,
            words,
            zip(*values, strict=True),
            _list_near(job),
            job.shown.row_M.tolist(),
            strict=True,
        )
    ]
    for number, start in enumerate(range(0, len(cards), ROWS_PER_FILE), first_file):
        put(folder, f"cards/{number:05d}", cards[start : start + ROWS_PER_FILE])
    indexed = table.select([name for name in INDEXED if name in table.column_names])
    return _index(indexed, table[CAPTION].to_pylist(), phrases, job.shown.first, names)


def number_files(jobs: Sequence[Job]) -> list[tuple[int, Job]]:
    """Return each job with the number of its first file of cards."""
    sizes = [-(-len(job.shown.row_M) // ROWS_PER_FILE) for job in jobs]
    return list(zip(accumulate(sizes, initial=0), jobs, strict=False))


def list_starts(jobs: Sequence[Job]) -> list[int]:
    """Return the number of the first row of each file of cards."""
    rows = (range(job.shown.first, job.shown.first + len(job.shown.row_M), ROWS_PER_FILE) for job in jobs)
    return [start for starts in rows for start in starts]


def put(folder: Folder, name: str, content: Any) -> None:
    """Write a script below ``data/`` that hands ``content`` to the page under its name."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    folder.write_bytes(f'raycomp.put("{name}",{text});\n'.encode("ascii"), DATA, f"{name}.js")


def _make_card(
    caption: str | None,
    phrases: list[dict[str, Any]] | None,
    words: list[dict[str, Any]] | None,
    values: list[Any],
    near: list[tuple[int, float]],
    photo: bytes | None,
) -> dict[str, Any]:
    card: dict[str, Any] = {"caption": caption and caption[:MOST_CHARACTERS], "values": values}
    if caption is not None and len(caption) > MOST_CHARACTERS:
        card["cut"] = len(caption) - MOST_CHARACTERS
    card["phrases"] = [_make_phrase(one) for one in phrases or () if one["end"] <= MOST_CHARACTERS]
    if words:
        card["words"] = [_make_phrase(one) for one in words if one["end"] <= MOST_CHARACTERS]
    card["near"] = near
    if photo is not None:
        card["photo"] = base64.b64encode(photo).decode("ascii")
    return card


def _make_phrase(phrase: dict[str, Any]) -> list[Any]:
    places = [phrase[name] for name in ("start", "target_start", "target_end", "end")]
    drop = phrase["drop"]
    shown = None if drop is None or not math.isfinite(drop) else round(drop, 6)
    return [*places, phrase["kind"], phrase["target"], phrase["target_class"], shown, phrase["nonces"]]


def _to_value(value: Any) -> Any:
    """Return a value as a script can hold it: whole numbers beyond 2^53 as text."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST_EXACT:
        return str(value)
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    return to_json_value(value)


def _list_near(job: Job) -> Iterator[list[tuple[int, float]]]:
    for rows, cosines in zip(job.near_MK.tolist(), job.cosine_MK.tolist(), strict=True):
        yield [(row, round(cosine, 4)) for row, cosine in zip(rows, cosines, strict=True) if row >= 0]


def _index(
    table: pa.Table, captions: list[str | None], phrases: list[Any], first: int, names: list[str]
) -> Indexed:
    vocabulary: dict[str, int] = {}
    word, code, drops = [], [], []
    kinds_M = np.zeros(len(captions), np.uint8)
    for row, (caption, found) in enumerate(zip(captions, phrases, strict=True)):
        own: set[str] = set()
        for phrase in found or ():
            own.update(split_words(phrase["text"]))
            kinds_M[row] |= 1 << KINDS.index(phrase["kind"])
            drops.append(math.nan if phrase["drop"] is None else abs(phrase["drop"]))
        for one in sorted({*split_words(caption or "")}):
            word.append(vocabulary.setdefault(one, len(vocabulary)))
            code.append(2 * (first + row) + (one in own))
    drop_P = np.array(drops, np.float32)
    codes = np.array(word, np.int64), np.array(code, np.uint32)
    return Indexed(table, kinds_M, list(vocabulary), *codes, drop_P[np.isfinite(drop_P)], names)
