"""The training pairs: listed once for every shard, counted by reason, loaded with their images when
needed.

A uid that occurs k times is trained on k times in each epoch (upsampling). N uids of the file, M sorted keys
of pairs.

Uids of a subset take 16 bytes each in every process that lists pairs, those of negatives 24; the negatives of
a curation without shards are joined file by file and take none.
"""

import hashlib
import posixpath
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import UserError
from raycomp.core.selection import count_keys, drop_duplicates, find_keys, parse_uids, to_keys
from raycomp.curation.config import read_config
from raycomp.curation.outputs import SIZES, read_sizes, read_subset
from raycomp.curation.select.filters import list_shards
from raycomp.data import runs
from raycomp.data.files import KEPT_FILE, Folder
from raycomp.data.inputs import LIST, ShardPath, expand_input, fingerprint_shards, list_written_shards
from raycomp.data.parquet import count_rows, hash_images, read_columns, read_matching, read_rows, write_table
from raycomp.data.reader import check_tables, read_shard
from raycomp.data.samples import CAPTION_COLUMNS, decode_text, find_column, parse_object
from raycomp.models.images import ImageFault, decode_image
from raycomp.run.run import check_bad_rows, describe_dropped, list_counts
from raycomp.run.work import map_files, map_tasks
from raycomp.schema import HARD_TYPE, PAIRS_SCHEMA
from raycomp.training import hard
from raycomp.training.config import TrainConfig
from raycomp.words import (
    ALIGNED_STATUSES,
    CAPTION,
    CAPTIONS,
    DUPLICATE_UID,
    FIRST_ROW,
    HELD_OUT,
    IMAGE,
    IMAGE_SHA256,
    JSON,
    NEGATIVE_IMAGES,
    NEGATIVES,
    NOT_IN_SUBSET,
    NUM_ROWS,
    OK,
    POSITION,
    SHARD,
    SHARD_STATUSES,
    STATUS,
    UID,
    UNREADABLE_PICTURE,
)

_FOLDER = "pairs"
_BLOCK_ROWS = 256
_SOUND = (OK, NOT_IN_SUBSET, HELD_OUT)
_LOADED_SCHEMA = pa.schema(
    [(UID, pa.string()), (IMAGE, pa.large_binary()), (CAPTION, pa.string()), (IMAGE_SHA256, pa.string())]
)


@dataclass(frozen=True)
class Pairs:
    """The files of pairs and of their subset, negatives and images of negatives."""

    source: str
    """The input as the user named it."""
    shards: tuple[ShardPath, ...]
    max_pixels: int
    """Images with more are not decoded. For a curation it is the curation's own limit."""
    is_curated: bool = False
    """Whether a curation has already decoded the images."""
    scores: tuple[str, ...] = ()
    """Of a curation without shards: the scores of every shard, with statuses and captions."""
    kept: str | None = None
    """The subset of a curation or selection, with the SHA-256 of the images that it wrote."""
    num_kept: int = 0
    """The number of pairs in ``kept``."""
    sizes: tuple[int, ...] = ()
    """Samples of each of the shards that a curation or selection wrote; the last may have fewer."""
    subset: str | None = None
    """What narrows the pairs further."""
    negatives: tuple[str, ...] = ()
    negative_images: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    """Files of pairs with similar images."""
    max_bad_fraction: float = 1.0
    """Maximum share of bad rows, unless a curation checked them; also of negatives' images."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex, compare=False)
    """Identifies this object: what a process caches of files is read again for another token."""


@dataclass(frozen=True)
class Index:
    """The pairs of a run, shard by shard."""

    uris: tuple[str, ...]
    rows_S: tuple[int, ...]
    """Rows of every shard in an epoch: a sample that the subset repeats has several."""
    reasons: Counter[str]
    """All samples of the input by status: ok is trained on."""
    tally: Counter[str]
    """Counts as ``tally_pairs`` returns them."""
    kinds: Counter[tuple[str, str]]
    """Negatives by operation and kind."""
    most_negatives: int
    """That a pair has."""
    warnings: tuple[str, ...] = ()
    """A warning for every status whose rows are left out."""


def find_pairs(config: TrainConfig) -> Pairs:
    """Return the files of the pairs of ``config``; no shard is read. Raises ValueError, one line, for errors
    the user can fix: no input, an unfinished run, one without images or whose shards were changed after
    scoring, an invalid subset, negatives of other pairs."""
    folder, run = runs.read_curation(config.input)
    if run is None:
        shards = tuple(expand_input(config.input, columns=config.columns))
        runs.check_shards_of_runs(shards)
        check_tables(shards)
        pairs = Pairs(config.input, shards, config.train.max_pixels)
    else:
        pairs = _find_curated(config.input, folder, run)
    if config.subset is not None:
        runs.check_files_of_run(posixpath.dirname(config.subset))
        pairs = replace(pairs, subset=config.subset)
        uid_N2 = read_uids(config.subset)
        if pairs.kept is not None:
            kept = read_columns(pairs.kept, [UID])[UID]
            refuse_unknown(config.subset, config.input, uid_N2, np.sort(to_keys(parse_uids(kept))), 0)
    if config.negatives is not None:
        pairs = replace(pairs, negatives=hard.find_negatives(config.negatives, run, folder.uri))
    if config.negative_images is not None:
        pairs = replace(pairs, negative_images=hard.find_image_files(config.negative_images))
    if config.hard_images is not None:
        pairs = replace(pairs, neighbours=hard.find_neighbour_files(config.hard_images))
    return replace(pairs, max_bad_fraction=config.max_bad_fraction)


def fingerprint_pairs(config: TrainConfig) -> dict[str, str]:
    """Return what batches depend on in addition to the options: digests of the input and of the files that go
    with it. Raises ValueError where one of them is missing."""
    _, run = runs.read_curation(config.input)
    shards = [] if run else expand_input(config.input, columns=config.columns)
    found = {"input": runs.identify(run) if run else runs.digest(fingerprint_shards(shards))}
    if config.subset is not None:
        found["subset"] = hashlib.sha256(np.sort(to_keys(read_uids(config.subset))).tobytes()).hexdigest()
    if config.negatives is not None:
        found["negatives"] = runs.identify(runs.read_finished(config.negatives))
    if config.hard_images is not None:
        found["hard_images"] = runs.digest(fingerprint_shards(expand_input(config.hard_images)))
    if config.negative_images is not None:
        found["negative_images"] = runs.digest(fingerprint_shards(expand_input(config.negative_images)))
    return found


def _find_curated(source: str, folder: Folder, run: dict[str, Any]) -> Pairs:
    """Return the pairs that a curation or selection kept."""
    config = read_config(run["config"])
    if config.prepare.stored_embeddings is not None:
        raise ValueError(
            f"input={source!r}: was curated from stored embeddings, without images; name a curation of images"
        )
    if not run["funnel"]["kept"]:
        raise ValueError(f"input={source!r}: kept no pairs; curate with a larger share")
    files = runs.check_results(folder, run, "subset", "shards")
    kept = files.get(KEPT_FILE, folder.at(KEPT_FILE))
    pairs = Pairs(source, (), config.prepare.max_pixels, True, kept=kept, num_kept=count_rows(kept))
    if pairs.num_kept != run["funnel"]["kept"]:
        raise ValueError(f"{kept}: names {pairs.num_kept:,} pairs, the run kept {run['funnel']['kept']:,}")
    if any(name.startswith("shards/") for name in files):
        shards = list_written_shards(files)
        sizes = read_sizes(files.get(f"shards/{SIZES}"), len(shards))
        return replace(pairs, shards=tuple(shards), sizes=tuple(sizes))
    scores = runs.list_scores(run, folder.uri)
    shards = list_shards(config)
    if runs.digest(fingerprint_shards(shards)) != runs.find_curation(run, folder.uri)["fingerprint"]["input"]:
        raise ValueError(
            f"input={source!r}: has no shards, and {config.input} has changed since scoring; curate again"
        )
    return replace(pairs, shards=tuple(shards), scores=tuple(scores))


def make_index(
    pairs: Pairs, work: Folder, hold_out: Callable[[Sequence[str]], np.ndarray] | None = None
) -> Index:
    """List the pairs of every shard in ``work``, or those that are not listed there yet.

    ``hold_out`` takes pairs out of the tables and returns their uids, uint64 (H, 2). Raises ValueError where
    there is none, and for whatever else only all shards together show; TooMuchBadData where more of it is bad
    than may be.
    """
    ordinals = list(range(len(pairs.shards)))
    reasons: Counter[str] = Counter()
    for found in map_tasks(_list_pairs, ordinals, pairs, work, label="list pairs"):
        reasons.update(found)
    uris = tuple(_at(work, ordinal) for ordinal in ordinals)
    uids = [] if pairs.is_curated else list(map_files(uids_in, uris, label="compare uids"))
    repeated = [~keep_n for keep_n in drop_duplicates(uids)]
    again = [(uri, rows_n) for uri, rows_n in zip(uris, repeated, strict=False) if rows_n.any()]
    for _ in map_tasks(_drop_rows, again, label="drop duplicates"):
        pass
    held_H2 = np.empty((0, 2), np.uint64) if hold_out is None else hold_out(uris)
    rows, tally, kinds, most = [], Counter[str](), Counter[tuple[str, str]](), 0
    for one, of_kinds, of_one in map_files(_tally, uris, pairs, label="count pairs"):
        rows.append(one["pairs"])
        tally.update(one)
        kinds.update(of_kinds)
        most = max(most, of_one)
    # An interrupted run may have dropped some before.
    num_found = tally["samples"] + len(held_H2)
    if reasons[OK] > num_found:
        reasons[DUPLICATE_UID] += reasons[OK] - num_found
    reasons[OK] = tally["samples"]
    if len(held_H2):
        reasons[HELD_OUT] = len(held_H2)
    check_pairs(pairs, reasons, tally, [*uids, held_H2] if pairs.subset else ())
    lost = tuple(describe_lost(pairs, reasons, tally))
    return Index(uris, tuple(rows), reasons, tally, kinds, most, lost)


def _at(work: Folder, ordinal: int) -> str:
    return work.at(_FOLDER, f"{ordinal:05d}.parquet")


def _list_pairs(ordinal: int, pairs: Pairs, work: Folder) -> Counter[str]:
    """Write the table of a shard's pairs, then how many rows it has by reason; return that."""
    name = f"{ordinal:05d}.json"
    if not work.exists(_FOLDER, name):
        table, reasons = index_shard(pairs, ordinal)
        write_table(table, _at(work, ordinal), PAIRS_SCHEMA)
        work.write_json(reasons, _FOLDER, name)
    return Counter(work.read_json(_FOLDER, name))


def uids_in(uri: str) -> np.ndarray:
    """Return the uids of an index, uint64 (N, 2)."""
    return parse_uids(read_columns(uri, [UID])[UID])


def _drop_rows(item: tuple[str, np.ndarray]) -> None:
    uri, rows_n = item
    write_table(read_columns(uri).filter(pa.array(~rows_n)), uri, PAIRS_SCHEMA)


def _tally(uri: str, pairs: Pairs) -> tuple[Counter[str], Counter[tuple[str, str]], int]:
    table = read_columns(uri)
    pictures = hard.HardImages(pairs.negative_images, pairs.token) if pairs.negative_images else None
    most = pc.max(pc.list_value_length(table[NEGATIVES])).as_py() or 0
    return tally_pairs(table, pictures), count_kinds(table), most


def index_shard(pairs: Pairs, ordinal: int) -> tuple[pa.Table, Counter[str]]:
    """Return the pairs of a shard that are trained on (PAIRS_SCHEMA), and how many rows it has by reason.

    The reason is OK for what is trained on, else the status or NOT_IN_SUBSET; they sum to the rows read.
    Samples of plain shards get the same status as in curation: the images of all samples in the subset are
    decoded. Duplicates in other shards stay; see ``drop_duplicates``. A sample that the subset repeats is one
    row; its ``num_rows`` is its number of rows in an epoch.
    """
    found, reasons = _index_scores(pairs, ordinal) if pairs.scores else _index_samples(pairs, ordinal)
    if pairs.negatives:
        uris = (pairs.negatives[ordinal],) if pairs.scores else pairs.negatives
        negatives = hard.join_negatives(uris, found[UID], found[CAPTIONS], pairs.token)
    else:
        negatives = pa.array([[]] * len(found), pa.list_(HARD_TYPE))
    if pairs.negative_images:
        images = hard.HardImages(pairs.negative_images, pairs.token)
        negatives = images.mark(found[UID], negatives, pairs.max_pixels)
    found = found.append_column(NUM_ROWS, pa.array(_count_rows(pairs, found)))
    return found.append_column(NEGATIVES, negatives).cast(PAIRS_SCHEMA), Counter(reasons)


def _index_scores(pairs: Pairs, ordinal: int) -> tuple[pa.Table, list[str]]:
    table = read_columns(pairs.scores[ordinal], [POSITION, UID, IMAGE_SHA256, CAPTION, STATUS])
    assert pairs.kept is not None, "scores without a subset"
    kept = read_matching(pairs.kept, [UID], SHARD, pairs.shards[ordinal].name)[UID]
    # A bad row or a duplicate may have the uid of one that was kept.
    aligned_N = pc.is_in(table[STATUS], pa.array(ALIGNED_STATUSES)).to_numpy()
    stays_N = aligned_N & pc.is_in(table[UID], kept.combine_chunks()).to_numpy()
    if stays_N.sum() != len(kept):
        raise UserError(
            f"{pairs.scores[ordinal]}: has {stays_N.sum():,} of the {len(kept):,} pairs that the run kept of "
            f"{pairs.shards[ordinal].name}"
        )
    stays_N &= _count_rows(pairs, table) > 0
    reason_N = np.where(aligned_N, NOT_IN_SUBSET, np.array(table[STATUS].to_pylist(), object))
    reason_N[stays_N] = OK
    table = table.filter(pa.array(stays_N))
    captions = pa.array([[caption] for caption in table[CAPTION].to_pylist()], pa.list_(pa.string()))
    return table.select([POSITION, UID, IMAGE_SHA256]).append_column(CAPTIONS, captions), reason_N.tolist()


def _index_samples(pairs: Pairs, ordinal: int) -> tuple[pa.Table, list[str]]:
    shard = pairs.shards[ordinal]
    columns: dict[str, list[Any]] = {POSITION: [], UID: [], IMAGE_SHA256: [], CAPTIONS: []}
    reasons: list[str] = []
    written: pa.Table | None = None
    if pairs.kept is not None:
        # A run's shards hold the kept pairs in their order, ``sizes`` each.
        start = sum(pairs.sizes[:ordinal])
        row_N = np.arange(start, min(pairs.num_kept, start + pairs.sizes[ordinal]))
        written = pa.concat_tables(read_rows(pairs.kept, [UID, CAPTION, IMAGE_SHA256], row_N))
    for table in read_shard(shard, _BLOCK_ROWS):
        table = hash_images(table)
        if written is not None:
            _check_written(shard.uri, table, len(reasons), written)
        found = _judge(pairs, table)
        kept = table.filter(pa.array([reason == OK for reason in found]))
        for name in (POSITION, UID, IMAGE_SHA256):
            columns[name] += kept[name].to_pylist()
        texts = zip(kept[CAPTION].to_pylist(), kept[JSON].to_pylist(), strict=True)
        columns[CAPTIONS] += [
            # A run keeps the caption that it scored; the image's other captions have no score.
            [caption] if pairs.is_curated else _list_captions(caption, text, shard)
            for caption, text in texts
        ]
        reasons += found
    if written is not None and len(reasons) != len(written):
        raise UserError(
            f"{shard.uri}: holds {len(reasons):,} of the {len(written):,} samples that the run wrote"
        )
    schema = pa.schema([PAIRS_SCHEMA.field(name) for name in columns])
    return pa.table(columns, schema=schema), reasons


def _check_written(uri: str, table: pa.Table, start: int, written: pa.Table) -> None:
    """Raise UserError unless a block, whose first row is sample ``start``, is as the run wrote it."""
    own = written.slice(start, len(table))
    if len(own) < len(table):
        raise UserError(f"{uri}: holds more than the {len(written):,} samples that the run wrote")
    names = [name for name in (UID, CAPTION, IMAGE_SHA256) if not table[name].equals(own[name])]
    bad = next((status for status in table[STATUS].to_pylist() if status != OK), None)
    if names or bad:
        what = f"a sample has status {bad}" if bad else f"{names[0]} of a sample is another"
        raise UserError(f"{uri}: differs from what the run wrote: {what}")


def _judge(pairs: Pairs, table: pa.Table) -> list[str]:
    """Return the reason why each sample is not a training pair, OK for training pairs."""
    reasons = table[STATUS].to_pylist()
    images = table[IMAGE].combine_chunks()
    for i, is_named in enumerate((_count_rows(pairs, table) > 0).tolist()):
        if reasons[i] in SHARD_STATUSES:
            continue
        if not is_named:
            reasons[i] = NOT_IN_SUBSET
        elif reasons[i] == OK and not pairs.is_curated:
            try:
                decode_image(images[i].as_py(), pairs.max_pixels)
            except ImageFault as fault:
                reasons[i] = fault.status
    return reasons


def _list_captions(caption: str, text: str | None, shard: ShardPath) -> list[str]:
    """Return the captions of an image: the json's ``captions``, else a table's list, else the caption.

    With ``columns.captions`` other than first, the caption is the one that makes the pair.
    """
    columns = shard.columns
    if text is None or columns.captions != "first" or (shard.format == "tar" and f'"{CAPTIONS}"' not in text):
        return [caption]
    own = parse_object(text)[1] or {}
    lists = [own.get(CAPTIONS)]
    if shard.format in ("parquet", LIST):
        column = find_column(own, columns.caption, CAPTION_COLUMNS)
        lists = [own.get(column or "")] if columns.caption else [*lists, own.get(column or "")]
    for values in lists:
        texts = [decode_text(value) for value in values] if isinstance(values, list) else []
        found = [value for value in texts if value and value.strip()]
        if found:
            return found
    return [caption]


def _count_rows(pairs: Pairs, table: pa.Table) -> np.ndarray:
    """Return how often an epoch trains on each row, int64 (N,): as often as the subset names its uid.
    DataComp upsamples the same way: its resharder writes a sample once for every occurrence of the uid in the
    subset file."""
    if pairs.subset is None:
        return np.ones(len(table), np.int64)
    return count_keys(load_keys(pairs.subset, pairs.token), to_keys(parse_uids(table[UID])))


@lru_cache(maxsize=1)
def load_keys(uri: str, token: str) -> np.ndarray:
    """Return the sorted keys of a subset, (N,), repeated ones too, cached for the next call with ``token``.

    Raises as ``read_uids``.
    """
    return np.sort(to_keys(read_uids(uri)))


def read_uids(uri: str) -> np.ndarray:
    """Return the uids of a subset, repeated ones too, uint64 (N, 2).

    Raises ValueError, one line, where the file cannot be read or has another form.
    """
    try:
        if uri.endswith(".npy"):
            return read_subset(uri)
        uids = read_columns(uri, [UID])[UID]
        if pa.types.is_dictionary(uids.type) or pa.types.is_string_view(uids.type):
            uids = uids.cast(pa.string())  # as pandas and newer writers store text
        if not (pa.types.is_string(uids.type) or pa.types.is_large_string(uids.type)):
            raise ValueError(f"its column uid must be text, is {uids.type}")
        return parse_uids(uids)
    except OSError as error:
        line = " ".join(str(error).split())
        raise ValueError(f"subset={uri!r}: cannot be read; name a .npy or Parquet file ({line})") from error
    except ValueError as error:
        raise ValueError(f"subset={uri!r}: {error}") from error


def refuse_unknown(uri: str, source: str, uid_N2: np.ndarray, key_M: np.ndarray, num_bad: int) -> None:
    """Raise ValueError where more uids of a subset have no pair than ``num_bad``, the number of its samples
    that are bad and therefore have none."""
    key_N = np.unique(to_keys(uid_N2))
    lost_n = np.flatnonzero(find_keys(key_M, key_N) < 0)
    if len(lost_n) > num_bad:
        example = key_N[lost_n[0]].ljust(16, b"\0").hex()
        of_these = f", {num_bad:,} of them bad samples of it" if num_bad else ""
        raise ValueError(
            f"subset={uri!r}: {len(lost_n):,} of the {len(key_N):,} uids that it names have no pair in "
            f"{source}{of_these}; one is {example}"
        )


def load_shard(pairs: Pairs, ordinal: int, index: pa.Table) -> pa.Table:
    """Return the pairs of an index with the number of their first row in an epoch, their images' bytes, and
    those of their negatives if there are any.
    The shard is read once, up to its last pair. Raises UserError where it differs from the index in a uid or
    an image's SHA-256 (for a curation without its own shards also in a caption), and OSError where the
    storage fails."""
    shard, wanted_N = pairs.shards[ordinal], index[POSITION].to_numpy()
    blocks: list[pa.Table] = []
    start = 0
    for table in read_shard(shard, _BLOCK_ROWS) if len(index) else ():
        low, high = np.searchsorted(wanted_N, [start, start + len(table)])
        taken = table.select([UID, IMAGE, CAPTION]).take(pa.array(wanted_N[low:high] - start))
        blocks.append(hash_images(taken))
        start += len(table)
        if start > wanted_N[-1]:
            break
    found = pa.concat_tables([_LOADED_SCHEMA.empty_table(), *blocks])
    is_same = all(found[name].equals(index[name]) for name in (UID, IMAGE_SHA256))
    if pairs.scores:
        is_same &= found[CAPTION].equals(pc.list_element(index[CAPTIONS], 0)) if len(index) else True
    if found[IMAGE].null_count or not is_same:
        raise UserError(f"{shard.uri}: its pairs differ from those that the run listed; restore the file")
    rows_N = index[NUM_ROWS].to_numpy()
    columns = {IMAGE: found[IMAGE], FIRST_ROW: pa.array(rows_N.cumsum() - rows_N)}
    if pairs.negative_images:
        negatives = index[NEGATIVES].combine_chunks()
        images = hard.HardImages(pairs.negative_images, pairs.token)
        columns[NEGATIVE_IMAGES] = images.load(index[UID], negatives)
    for name, column in columns.items():
        index = index.append_column(name, column)
    return index


def tally_pairs(index: pa.Table, pictures: hard.HardImages | None = None) -> Counter[str]:
    """Return the number of samples in an index, and counts over an epoch: pairs, pairs with negatives, pairs
    with images of negatives, captions, negatives and images of negatives, each as often as its sample is
    trained on, and copies, all pairs of a sample but its first. ``bad_pictures``: listed images of negatives
    that cannot be read, each counted once."""
    flat = index[NEGATIVES].combine_chunks()
    length_N, rows_N = pc.list_value_length(flat).to_numpy(), index[NUM_ROWS].to_numpy()
    num_listed = pictures.count_listed(index[UID], flat) if pictures else 0
    shown_F = pc.struct_field(flat.flatten(), "image").to_numpy(zero_copy_only=False).astype(bool)
    row_F = np.repeat(np.arange(len(index)), length_N)
    return Counter(
        samples=len(index),
        pairs=int(rows_N.sum()),
        copies=int(rows_N.sum()) - len(index),
        with_negatives=int(rows_N[length_N > 0].sum()),
        with_negative_images=int(rows_N[np.unique(row_F[shown_F])].sum()),
        captions=int(pc.list_value_length(index[CAPTIONS]).to_numpy() @ rows_N),
        negatives=int(length_N @ rows_N),
        negative_images=int(rows_N[row_F[shown_F]].sum()),
        bad_pictures=max(0, num_listed - int(shown_F.sum())),
    )


def count_kinds(index: pa.Table) -> Counter[tuple[str, str]]:
    """Return the number of negatives of every operation and kind in an epoch, counted as in
    ``tally_pairs``."""
    lists = index[NEGATIVES].combine_chunks()
    flat, rows_N = lists.flatten(), index[NUM_ROWS].to_numpy()
    columns = {name: pc.struct_field(flat, name) for name in ("op", "kind")}
    columns[NUM_ROWS] = pa.array(np.repeat(rows_N, pc.list_value_length(lists).to_numpy()))
    lines = pa.table(columns).group_by(["op", "kind"]).aggregate([(NUM_ROWS, "sum")]).to_pylist()
    return Counter({(line["op"], line["kind"]): line[f"{NUM_ROWS}_sum"] for line in lines})


def check_pairs(
    pairs: Pairs, reasons: Counter[str], tally: Counter[str], uids: Sequence[np.ndarray] = ()
) -> None:
    """Raise ValueError, one line, for errors that only the sums over all shards show.

    ``reasons`` and ``tally`` are sums of what ``index_shard`` and ``tally_pairs`` return; ``uids`` those of
    all indices, uint64 (n, 2), where there is a subset. These are: a run's shards do not hold the pairs that
    it kept; there are no pairs; the subset names uids without a pair (other than bad samples); no pair has a
    negative, or no negative has an image. Raises TooMuchBadData where too many rows, or images of negatives,
    are bad.
    """
    if pairs.is_curated and not pairs.scores:
        bad = {why: count for why, count in sorted(reasons.items()) if count and why not in _SOUND}
        if bad or reasons.total() != pairs.num_kept:
            said = list_counts(bad) or "all ok"
            raise ValueError(
                f"input={pairs.source!r}: its shards hold {reasons.total():,} samples ({said}), the run kept "
                f"{pairs.num_kept:,}"
            )
    if pairs.subset is not None and not pairs.is_curated:
        others = (*_SOUND, DUPLICATE_UID, *SHARD_STATUSES)
        named_bad = sum(count for reason, count in reasons.items() if reason not in others)
        key_M = np.sort(to_keys(np.concatenate([np.empty((0, 2), np.uint64), *uids])))
        refuse_unknown(pairs.subset, pairs.source, read_uids(pairs.subset), key_M, named_bad)
    if not tally["pairs"]:
        said = list_counts({reason: count for reason, count in sorted(reasons.items()) if count})
        raise ValueError(f"input={pairs.source!r}: no pairs to train on ({said or 'no rows'})")
    if pairs.negatives and not tally["negatives"]:
        raise ValueError(
            f"negatives: none of the {tally['pairs']:,} pairs of {pairs.source} has negatives in "
            f"{pairs.negatives[0].rpartition('/')[0]}; they are joined by uid"
        )
    if pairs.negative_images and not tally["negative_images"]:
        raise ValueError(
            f"negative_images: none of the {tally['negatives']:,} negatives has a readable image in "
            f"{pairs.negative_images[0]}; they are joined by uid and negative"
        )
    for (said, what), counts in _count_judged(pairs, reasons, tally).items():
        check_bad_rows(said, counts, pairs.max_bad_fraction, what)


def describe_lost(pairs: Pairs, reasons: Counter[str], tally: Counter[str]) -> list[str]:
    """Return a warning for every status whose rows, or images of negatives, are left out."""
    judged = _count_judged(pairs, reasons, tally).items()
    return [line for (said, what), counts in judged for line in describe_dropped(said, counts, what)]


def _count_judged(
    pairs: Pairs, reasons: Counter[str], tally: Counter[str]
) -> dict[tuple[str, str], dict[str, int]]:
    """Return counts by status for each option and kind of row that is checked here; a curation has checked
    its own rows."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    if not pairs.is_curated:
        found["input", "rows"] = reasons
    if pairs.negative_images:
        bad = {UNREADABLE_PICTURE: tally["bad_pictures"]}
        found["negative_images", "pictures"] = {OK: tally["negative_images"], **bad}
    return found
