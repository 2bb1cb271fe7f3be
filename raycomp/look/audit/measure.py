"""The rows of a data set with the columns that curate writes before a model runs, in a file for each shard.

N rows of a file.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.core.selection import hash_uids, parse_uids
from raycomp.curation.filters import add_short_names
from raycomp.curation.near import name_key
from raycomp.curation.prepare import load_measures, prepare
from raycomp.data.arrow import TOKENS
from raycomp.data.expression import evaluate, find_columns
from raycomp.data.folder import Folder
from raycomp.data.parquet import new_groups, read_columns
from raycomp.data.paths import ShardPath
from raycomp.data.reader import read_shard
from raycomp.look.audit.checks import Check
from raycomp.look.audit.config import AuditConfig
from raycomp.models.spec import ScorerSpec
from raycomp.schema import aligned_schema
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    CAPTION_LANGUAGE,
    IMAGE_EMBEDDING,
    IMAGE_SHA256,
    OK,
    PIXELS,
    PIXELS_HASH,
    STATUS,
    UID,
)

ROWS = "rows"
_SAMPLED_CAPTIONS = 100_000
_BLOCK_ROWS = 256
# The columns of scores/ that need no model.
SCHEMA = pa.schema(
    [one for one in aligned_schema(1, "float32") if one.name not in (ALIGNMENT, IMAGE_EMBEDDING)]
)
KEYS = {"exact": IMAGE_SHA256, "pixels": PIXELS_HASH, "captions": CAPTION}


def name_rows(ordinal: int) -> str:
    """Return the name of a shard's file of rows."""
    return f"{ordinal:05d}.parquet"


def measure_shard(
    shard: ShardPath, config: AuditConfig, spec: ScorerSpec, folder: Folder
) -> tuple[Counter[str], Counter[str | None]]:
    """Write the rows of a shard; return their statuses and the usable captions' languages."""
    load_measures()
    work = partial(
        prepare,
        scorer=config.scorer,
        spec=spec,
        max_pixels=config.prepare.max_pixels,
        fast_decode=config.prepare.fast_decode,
    )
    statuses: Counter[str] = Counter()
    languages: Counter[str | None] = Counter()
    with new_groups(folder.at(ROWS, name_rows(shard.ordinal)), SCHEMA) as write:
        for block in read_shard(shard, _BLOCK_ROWS):
            table = work(block).drop_columns([PIXELS, TOKENS]).select(SCHEMA.names)
            write(table)
            statuses.update(table[STATUS].to_pylist())
            languages.update(_usable(table)[CAPTION_LANGUAGE].to_pylist())
    return statuses, languages


def _usable(table: pa.Table) -> pa.Table:
    return table.filter(pc.equal(table[STATUS], OK))


def read_usable(uri: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a file that can be used, or some columns of them."""
    wanted = None if columns is None else list(dict.fromkeys([*columns, STATUS]))
    return _usable(read_columns(uri, wanted))


def sample_captions(uri: str, seed: int) -> tuple[np.ndarray, list[str]]:
    """Return the captions of the smallest seeded hashes of uids, with the hashes."""
    table = read_usable(uri, [UID, CAPTION])
    hash_N = hash_uids(parse_uids(table[UID]), seed) if len(table) else np.zeros(0, np.uint64)
    row_M = np.argsort(hash_N, kind="stable")[:_SAMPLED_CAPTIONS]
    return hash_N[row_M], table[CAPTION].take(pa.array(row_M)).to_pylist()


def merge_captions(parts: Sequence[tuple[np.ndarray, list[str]]]) -> list[str]:
    """Return the captions of the smallest hashes of all parts."""
    hash_N = np.concatenate([np.zeros(0, np.uint64), *(hashes for hashes, _ in parts)])
    captions = [caption for _, found in parts for caption in found]
    return [captions[row] for row in np.argsort(hash_N, kind="stable")[:_SAMPLED_CAPTIONS]]


def read_keys(uri: str, rule: str) -> list[bytes | None]:
    """Return what a rule of near-duplicates compares, of the usable rows of a file."""
    values = read_usable(uri, [KEYS[rule]])[KEYS[rule]].to_pylist()
    return [None if value is None else name_key(rule, value) for value in values]


def find_odd(uri: str, checks: Sequence[Check]) -> dict[str, np.ndarray]:
    """Return for each check with a condition which usable rows of a file are odd, bool [N]."""
    table = read_usable(uri)
    columns = add_short_names({name: table[name] for name in table.column_names})
    found = {}
    for check in checks:
        if check.where is not None:
            used = find_columns(check.name, check.where, list(columns))
            value = evaluate(check.name, check.where, pa.table({name: columns[name] for name in used}))
            found[check.name] = ~pc.fill_null(value, False).to_numpy()
    return found


def find_repeats(files: Sequence[Sequence[bytes | None]]) -> list[np.ndarray]:
    """Return of each file which rows have a key that an earlier row has; ``files``: keys, None for none.

    One process holds every key, some 80 bytes each.
    """
    known: set[bytes] = set()
    found = []
    for keys in files:
        odd_N = np.zeros(len(keys), bool)
        for row, key in enumerate(keys):
            if key is not None:
                odd_N[row] = key in known
                known.add(key)
        found.append(odd_N)
    return found
