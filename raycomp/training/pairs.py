"""The training pairs: listed once for every shard, and loaded with their images when they are needed.

Uids of a subset take 16 bytes each in every process that lists pairs, those of negatives 24; the negatives of
a curation without shards are joined file by file and take none.
"""

import hashlib
import posixpath
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import UserError
from raycomp.core.selection import parse_uids
from raycomp.core.uids import count_keys, to_keys
from raycomp.curation.config import read_config
from raycomp.curation.removal import list_shards
from raycomp.data.arrow import hash_images
from raycomp.data.datacomp import SIZES, read_sizes
from raycomp.data.folder import Folder
from raycomp.data.image_inputs import LIST, check_tables
from raycomp.data.inputs import expand_input, list_written_shards
from raycomp.data.listed import CAPTION_COLUMNS, find_column
from raycomp.data.manifest import check_results
from raycomp.data.parquet import count_rows, read_columns, read_matching, read_rows
from raycomp.data.paths import KEPT_FILE, ShardPath, fingerprint_shards
from raycomp.data.reader import read_shard
from raycomp.data.rows import decode_text, parse_object
from raycomp.data.runs import (
    check_files_of_run,
    check_shards_of_runs,
    digest,
    find_curation,
    identify,
    list_scores,
    read_curation,
    read_finished,
)
from raycomp.models.images import ImageFault, decode_image
from raycomp.schema import HARD_TYPE, PAIRS_SCHEMA
from raycomp.training.config import TrainConfig
from raycomp.training.hard import (
    HardImages,
    find_image_files,
    find_negatives,
    find_neighbour_files,
    join_negatives,
)
from raycomp.training.subset import load_keys, read_uids, refuse_unknown
from raycomp.training.written import WrittenSamples
from raycomp.words import (
    ALIGNED_STATUSES,
    CAPTION,
    CAPTIONS,
    FIRST_ROW,
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
)

_BLOCK_ROWS = 256
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


def find_pairs(config: TrainConfig) -> Pairs:
    """Return the files of the pairs of ``config``; no shard is read. Raises ValueError, one line, for errors
    the user can fix: no input, an unfinished run, one without images or whose shards were changed after
    scoring, an invalid subset, negatives of other pairs."""
    folder, run = read_curation(config.input)
    if run is None:
        shards = tuple(expand_input(config.input, columns=config.columns))
        check_shards_of_runs(shards)
        check_tables(shards)
        pairs = Pairs(config.input, shards, config.train.max_pixels)
    else:
        pairs = _find_curated(config.input, folder, run)
    if config.subset is not None:
        check_files_of_run(posixpath.dirname(config.subset))
        pairs = replace(pairs, subset=config.subset)
        uid_N2 = read_uids(config.subset)
        if pairs.kept is not None:
            kept = read_columns(pairs.kept, [UID])[UID]
            refuse_unknown(config.subset, config.input, uid_N2, np.sort(to_keys(parse_uids(kept))), 0)
    if config.negatives is not None:
        pairs = replace(pairs, negatives=find_negatives(config.negatives, run, folder.uri))
    if config.negative_images is not None:
        pairs = replace(pairs, negative_images=find_image_files(config.negative_images))
    if config.hard_images is not None:
        pairs = replace(pairs, neighbours=find_neighbour_files(config.hard_images))
    return replace(pairs, max_bad_fraction=config.max_bad_fraction)


def fingerprint_pairs(config: TrainConfig) -> dict[str, str]:
    """Return what batches depend on in addition to the options: digests of the input and of the files that go
    with it. Raises ValueError where one of them is missing."""
    _, run = read_curation(config.input)
    shards = [] if run else expand_input(config.input, columns=config.columns)
    found = {"input": identify(run) if run else digest(fingerprint_shards(shards))}
    if config.subset is not None:
        found["subset"] = hashlib.sha256(np.sort(to_keys(read_uids(config.subset))).tobytes()).hexdigest()
    if config.negatives is not None:
        found["negatives"] = identify(read_finished(config.negatives))
    if config.hard_images is not None:
        found["hard_images"] = digest(fingerprint_shards(expand_input(config.hard_images)))
    if config.negative_images is not None:
        found["negative_images"] = digest(fingerprint_shards(expand_input(config.negative_images)))
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
    files = check_results(folder, run, "subset", "shards")
    kept = files.get(KEPT_FILE, folder.at(KEPT_FILE))
    pairs = Pairs(source, (), config.prepare.max_pixels, True, kept=kept, num_kept=count_rows(kept))
    if pairs.num_kept != run["funnel"]["kept"]:
        raise ValueError(f"{kept}: names {pairs.num_kept:,} pairs, the run kept {run['funnel']['kept']:,}")
    if any(name.startswith("shards/") for name in files):
        shards = list_written_shards(files)
        sizes = read_sizes(files.get(f"shards/{SIZES}"), len(shards))
        return replace(pairs, shards=tuple(shards), sizes=tuple(sizes))
    scores = list_scores(run, folder.uri)
    shards = list_shards(config)
    if digest(fingerprint_shards(shards)) != find_curation(run, folder.uri)["fingerprint"]["input"]:
        raise ValueError(
            f"input={source!r}: has no shards, and {config.input} has changed since scoring; curate again"
        )
    return replace(pairs, shards=tuple(shards), scores=tuple(scores))


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
        negatives = join_negatives(uris, found[UID], found[CAPTIONS], pairs.token)
    else:
        negatives = pa.array([[]] * len(found), pa.list_(HARD_TYPE))
    if pairs.negative_images:
        images = HardImages(pairs.negative_images, pairs.token)
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
    stays_N &= _are_named(pairs, table)
    reason_N = np.where(aligned_N, NOT_IN_SUBSET, np.array(table[STATUS].to_pylist(), object))
    reason_N[stays_N] = OK
    table = table.filter(pa.array(stays_N))
    captions = pa.array([[caption] for caption in table[CAPTION].to_pylist()], pa.list_(pa.string()))
    return table.select([POSITION, UID, IMAGE_SHA256]).append_column(CAPTIONS, captions), reason_N.tolist()


def _index_samples(pairs: Pairs, ordinal: int) -> tuple[pa.Table, list[str]]:
    shard = pairs.shards[ordinal]
    columns: dict[str, list[Any]] = {POSITION: [], UID: [], IMAGE_SHA256: [], CAPTIONS: []}
    reasons: list[str] = []
    written = WrittenSamples(pairs.shards[ordinal].uri, _list_written(pairs, ordinal))
    for table in read_shard(shard, _BLOCK_ROWS):
        table = hash_images(table)
        written.check(table, len(reasons))
        found = _judge(pairs, table)
        kept = table.filter(pa.array([reason == OK for reason in found]))
        columns[IMAGE_SHA256] += kept[IMAGE_SHA256].to_pylist()
        columns[POSITION] += kept[POSITION].to_pylist()
        columns[UID] += kept[UID].to_pylist()
        texts = zip(kept[CAPTION].to_pylist(), kept[JSON].to_pylist(), strict=True)
        columns[CAPTIONS] += [
            # A run keeps the caption that it scored; the image's other captions have no score.
            [caption] if pairs.is_curated else _list_captions(caption, text, shard)
            for caption, text in texts
        ]
        reasons += found
    written.check_end(len(reasons))
    schema = pa.schema([PAIRS_SCHEMA.field(name) for name in columns])
    return pa.table(columns, schema=schema), reasons


def _list_written(pairs: Pairs, ordinal: int) -> pa.Table | None:
    """Return uid, caption and image_sha256 of all samples that a run wrote to a shard; none if unknown.

    Its shards hold the kept pairs in their order, ``sizes`` each.
    """
    if pairs.kept is None:
        return None
    start = sum(pairs.sizes[:ordinal])
    row_N = np.arange(start, min(pairs.num_kept, start + pairs.sizes[ordinal]))
    return pa.concat_tables(read_rows(pairs.kept, [UID, CAPTION, IMAGE_SHA256], row_N))


def _judge(pairs: Pairs, table: pa.Table) -> list[str]:
    """Return the reason why each sample is not a training pair, OK for training pairs."""
    reasons = table[STATUS].to_pylist()
    images = table[IMAGE].combine_chunks()
    for i, is_named in enumerate(_are_named(pairs, table).tolist()):
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


def _are_named(pairs: Pairs, table: pa.Table) -> np.ndarray:
    """Return whether the subset names each row, bool (N,)."""
    return _count_rows(pairs, table) > 0


def _count_rows(pairs: Pairs, table: pa.Table) -> np.ndarray:
    """Return how often an epoch trains on each row, int64 (N,): as often as the subset names its uid.
    DataComp upsamples the same way: its resharder writes a sample once for every occurrence of the uid in the
    subset file."""
    if pairs.subset is None:
        return np.ones(len(table), np.int64)
    return count_keys(load_keys(pairs.subset, pairs.token), to_keys(parse_uids(table[UID])))


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
        images = HardImages(pairs.negative_images, pairs.token)
        columns[NEGATIVE_IMAGES] = images.load(index[UID], negatives)
    for name, column in columns.items():
        index = index.append_column(name, column)
    return index
