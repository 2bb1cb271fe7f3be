"""The training pairs: listed once for every shard, counted by reason, loaded with their images when
needed, and made into batches, whose draws depend on seed, epoch and uid alone.

A uid that occurs k times is trained on k times in each epoch (upsampling): its sample has k rows, its copies,
each drawn separately. Uids of a subset take 16 bytes each in every process that lists pairs, those of
negatives 24; the negatives of a curation without shards are joined file by file and take none.

N uids of the file, M sorted keys of pairs. Of a batch: B pairs of all ranks, R those of a rank, K hard
negatives per caption, N tokens of context, H x W pixels, C channels.
"""

import hashlib
import posixpath
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.config import ModelConfig, UserError
from raycomp.core.batches import EpochPlan, locate_rows
from raycomp.core.selection import count_keys, drop_duplicates, find_keys, parse_uids, to_keys
from raycomp.curation.config import read_config
from raycomp.curation.outputs import SIZES, read_sizes, read_subset
from raycomp.curation.select.filters import list_shards
from raycomp.data import parquet, runs
from raycomp.data.files import KEPT_FILE, Folder
from raycomp.data.inputs import ShardPath, expand_input, fingerprint_shards, list_written_shards
from raycomp.data.parquet import hash_images, read_columns, write_table
from raycomp.data.reader import check_tables, list_captions, read_shard
from raycomp.models.architecture import load_tokens
from raycomp.models.images import ImageFault, ImageSpec, crop_image, decode_image, prepare_image
from raycomp.run.progress import check_bad_rows, describe_dropped, list_counts
from raycomp.run.work import map_files, map_tasks
from raycomp.schema import HARD_TYPE, PAIRS_SCHEMA
from raycomp.training import hard
from raycomp.training.config import FitConfig, TrainConfig
from raycomp.training.losses import Loss, get_loss

_FOLDER = "pairs"
_COPY = "copy"
# Columns that a run's own shards must have as it wrote them.
_WRITTEN = (words.UID, words.CAPTION, words.IMAGE_SHA256)
_BLOCK_ROWS = 256
_fetch = lru_cache(maxsize=2)(runs.fetch_model)
_SOUND = (words.OK, words.NOT_IN_SUBSET, words.HELD_OUT)
_LOADED_SCHEMA = pa.schema(
    [
        (words.UID, pa.string()),
        (words.IMAGE, pa.large_binary()),
        (words.CAPTION, pa.string()),
        (words.IMAGE_SHA256, pa.string()),
    ]
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
    has_own_negatives: bool = False
    """Whether a user wrote them: any file may have any pair."""
    negative_images: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    """Files of pairs with similar images."""
    listed: tuple[str, ...] = ()
    """The uri of each shard's table of pairs, where these are listed."""
    max_bad_fraction: float = 1.0
    """Maximum share of bad rows, unless a curation checked them; also of negatives' images."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex, compare=False)
    """Identifies this object: what a process caches of files is read again for another token."""

    @property
    def pictures(self) -> hard.HardImages | None:
        """The images of negatives, if there are any."""
        return hard.HardImages(self.negative_images, self.token) if self.negative_images else None


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
            kept = read_columns(pairs.kept, [words.UID])[words.UID]
            refuse_unknown(config.subset, config.input, uid_N2, np.sort(to_keys(parse_uids(kept))), 0)
    if config.negatives is not None:
        if hard.is_own(config.negatives):
            negatives = hard.find_own_negatives(config.negatives)
            pairs = replace(pairs, negatives=negatives, has_own_negatives=True)
        else:
            pairs = replace(pairs, negatives=hard.find_negatives(config.negatives, run, folder.uri))
    if config.negative_images is not None:
        images = hard.find_images("negative_images", config.negative_images)
        pairs = replace(pairs, negative_images=images)
    if config.hard_images is not None:
        forms, wanted = [{words.UID, words.NEIGHBOURS}], f"{words.UID} and {words.NEIGHBOURS}"
        pairs = replace(pairs, neighbours=hard.find_tables("hard_images", config.hard_images, forms, wanted))
    return replace(pairs, max_bad_fraction=config.max_bad_fraction)


def fingerprint_pairs(config: TrainConfig) -> dict[str, str]:
    """Return what batches depend on in addition to the options: digests of the input and of the files that go
    with it. Raises ValueError where one of them is missing."""
    _, run = runs.read_curation(config.input)
    shards = [] if run else expand_input(config.input, columns=config.columns)
    found = {"input": runs.identify(run) if run else runs.digest(fingerprint_shards(shards))}
    if config.subset is not None:
        found["subset"] = hashlib.sha256(np.sort(to_keys(read_uids(config.subset))).tobytes()).hexdigest()
    if config.negatives is not None and not hard.is_own(config.negatives):
        found["negatives"] = runs.identify(runs.read_finished(config.negatives))
    for name in ("negatives", "hard_images", "negative_images"):
        if name not in found and (spec := getattr(config, name)) is not None:
            found[name] = runs.digest(fingerprint_shards(expand_input(spec)))
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
    pairs = Pairs(source, (), config.prepare.max_pixels, True, kept=kept, num_kept=parquet.count_rows(kept))
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
    uris = tuple(work.at(_FOLDER, f"{ordinal:05d}.parquet") for ordinal in ordinals)
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
    if reasons[words.OK] > num_found:
        reasons[words.DUPLICATE_UID] += reasons[words.OK] - num_found
    reasons[words.OK] = tally["samples"]
    if len(held_H2):
        reasons[words.HELD_OUT] = len(held_H2)
    lost = check_pairs(pairs, reasons, tally, [*uids, held_H2] if pairs.subset else ())
    if pairs.has_own_negatives:
        listed = to_keys(np.concatenate([held_H2, *map_files(uids_in, uris, label="compare uids")]))
        lost += hard.report_own_negatives(pairs.negatives, listed, pairs.token)
    return Index(uris, tuple(rows), reasons, tally, kinds, most, tuple(lost))


def _list_pairs(ordinal: int, pairs: Pairs, work: Folder) -> Counter[str]:
    """Write the table of a shard's pairs, then how many rows it has by reason; return that."""
    name = f"{ordinal:05d}.json"
    if not work.exists(_FOLDER, name):
        table, reasons = index_shard(pairs, ordinal)
        write_table(table, work.at(_FOLDER, f"{ordinal:05d}.parquet"), PAIRS_SCHEMA)
        work.write_json(reasons, _FOLDER, name)
    return Counter(work.read_json(_FOLDER, name))


def uids_in(uri: str) -> np.ndarray:
    """Return the uids of an index, uint64 (N, 2)."""
    return parse_uids(read_columns(uri, [words.UID])[words.UID])


def _drop_rows(item: tuple[str, np.ndarray]) -> None:
    uri, rows_n = item
    write_table(read_columns(uri).filter(pa.array(~rows_n)), uri, PAIRS_SCHEMA)


def index_shard(pairs: Pairs, ordinal: int) -> tuple[pa.Table, Counter[str]]:
    """Return the pairs of a shard that are trained on (PAIRS_SCHEMA), and how many rows it has by reason.

    The reason is OK for what is trained on, else the status or NOT_IN_SUBSET; they sum to the rows read.
    Samples of plain shards get the same status as in curation: the images of all samples in the subset are
    decoded. Duplicates in other shards stay; see ``drop_duplicates``. A sample that the subset repeats is one
    row; its ``num_rows`` is its number of rows in an epoch.
    """
    found, reasons = _index_scores(pairs, ordinal) if pairs.scores else _index_samples(pairs, ordinal)
    if pairs.negatives:
        by_file = pairs.scores and not pairs.has_own_negatives
        uris = (pairs.negatives[ordinal],) if by_file else pairs.negatives
        negatives = hard.join_negatives(uris, found[words.UID], found[words.CAPTIONS], pairs.token)
    else:
        negatives = pa.array([[]] * len(found), pa.list_(HARD_TYPE))
    if pairs.pictures:
        negatives = pairs.pictures.mark(found[words.UID], negatives, pairs.max_pixels)
    found = found.append_column(words.NUM_ROWS, pa.array(_count_rows(pairs, found)))
    return found.append_column(words.NEGATIVES, negatives).cast(PAIRS_SCHEMA), Counter(reasons)


def _index_scores(pairs: Pairs, ordinal: int) -> tuple[pa.Table, list[str]]:
    table = read_columns(pairs.scores[ordinal], [words.POSITION, *_WRITTEN, words.STATUS])
    assert pairs.kept is not None, "scores without a subset"
    kept = parquet.read_matching(pairs.kept, [words.UID], words.SHARD, pairs.shards[ordinal].name)[words.UID]
    # A bad row or a duplicate may have the uid of one that was kept.
    aligned_N = pc.is_in(table[words.STATUS], pa.array(words.ALIGNED_STATUSES)).to_numpy()
    stays_N = aligned_N & pc.is_in(table[words.UID], kept.combine_chunks()).to_numpy()
    if stays_N.sum() != len(kept):
        raise UserError(
            f"{pairs.scores[ordinal]}: has {stays_N.sum():,} of the {len(kept):,} pairs that the run kept of "
            f"{pairs.shards[ordinal].name}"
        )
    stays_N &= _count_rows(pairs, table) > 0
    reason_N = np.where(aligned_N, words.NOT_IN_SUBSET, np.array(table[words.STATUS].to_pylist(), object))
    reason_N[stays_N] = words.OK
    table = table.filter(pa.array(stays_N))
    captions = pa.array([[caption] for caption in table[words.CAPTION].to_pylist()], pa.list_(pa.string()))
    table = table.select([words.POSITION, words.UID, words.IMAGE_SHA256])
    return table.append_column(words.CAPTIONS, captions), reason_N.tolist()


def _index_samples(pairs: Pairs, ordinal: int) -> tuple[pa.Table, list[str]]:
    shard = pairs.shards[ordinal]
    names = (words.POSITION, words.UID, words.IMAGE_SHA256, words.CAPTIONS)
    columns: dict[str, list[Any]] = {name: [] for name in names}
    reasons: list[str] = []
    written: pa.Table | None = None
    if pairs.kept is not None:
        # A run's shards hold the kept pairs in their order, ``sizes`` each.
        start = sum(pairs.sizes[:ordinal])
        row_N = np.arange(start, min(pairs.num_kept, start + pairs.sizes[ordinal]))
        written = pa.concat_tables(parquet.read_rows(pairs.kept, _WRITTEN, row_N))
    for table in read_shard(shard, _BLOCK_ROWS):
        table = hash_images(table)
        if written is not None:
            own = written.slice(len(reasons), len(table))
            if len(own) < len(table):
                raise UserError(
                    f"{shard.uri}: holds more than the {len(written):,} samples that the run wrote"
                )
            others = [name for name in _WRITTEN if not table[name].equals(own[name])]
            bad = next((status for status in table[words.STATUS].to_pylist() if status != words.OK), None)
            if others or bad:
                what = f"a sample has status {bad}" if bad else f"{others[0]} of a sample is another"
                raise UserError(f"{shard.uri}: differs from what the run wrote: {what}")
        found = _judge(pairs, table)
        kept = table.filter(pa.array([reason == words.OK for reason in found]))
        for name in names[:-1]:
            columns[name] += kept[name].to_pylist()
        texts = zip(kept[words.CAPTION].to_pylist(), kept[words.JSON].to_pylist(), strict=True)
        columns[words.CAPTIONS] += [
            # A run keeps the caption that it scored; the image's other captions have no score.
            [caption] if pairs.is_curated else list_captions(caption, text, shard)
            for caption, text in texts
        ]
        reasons += found
    if written is not None and len(reasons) != len(written):
        raise UserError(
            f"{shard.uri}: holds {len(reasons):,} of the {len(written):,} samples that the run wrote"
        )
    schema = pa.schema([PAIRS_SCHEMA.field(name) for name in columns])
    return pa.table(columns, schema=schema), reasons


def _judge(pairs: Pairs, table: pa.Table) -> list[str]:
    """Return the reason why each sample is not a training pair, OK for training pairs."""
    reasons = table[words.STATUS].to_pylist()
    images = table[words.IMAGE].combine_chunks()
    for i, is_named in enumerate((_count_rows(pairs, table) > 0).tolist()):
        if reasons[i] in words.SHARD_STATUSES:
            continue
        if not is_named:
            reasons[i] = words.NOT_IN_SUBSET
        elif reasons[i] == words.OK and not pairs.is_curated:
            try:
                decode_image(images[i].as_py(), pairs.max_pixels)
            except ImageFault as fault:
                reasons[i] = fault.status
    return reasons


def _count_rows(pairs: Pairs, table: pa.Table) -> np.ndarray:
    """Return how often an epoch trains on each row, int64 (N,): as often as the subset names its uid.
    DataComp upsamples the same way: its resharder writes a sample once for every occurrence of the uid in the
    subset file."""
    if pairs.subset is None:
        return np.ones(len(table), np.int64)
    return count_keys(load_keys(pairs.subset, pairs.token), to_keys(parse_uids(table[words.UID])))


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
        uids = read_columns(uri, [words.UID])[words.UID]
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


def load_shard(pairs: Pairs, ordinal: int, index: pa.Table | None = None) -> pa.Table:
    """Return the pairs of an index (none = the shard's table) with the number of their first row in an epoch,
    their images' bytes, and those of their negatives if there are any.

    The shard is read once, up to its last pair. Raises UserError where it differs from the index in a uid or
    an image's SHA-256 (for a curation without its own shards also in a caption), and OSError where the
    storage fails."""
    if index is None:
        index = read_columns(pairs.listed[ordinal])
    shard, wanted_N = pairs.shards[ordinal], index[words.POSITION].to_numpy()
    blocks: list[pa.Table] = []
    start = 0
    for table in read_shard(shard, _BLOCK_ROWS) if len(index) else ():
        low, high = np.searchsorted(wanted_N, [start, start + len(table)])
        taken = table.select([words.UID, words.IMAGE, words.CAPTION]).take(
            pa.array(wanted_N[low:high] - start)
        )
        blocks.append(hash_images(taken))
        start += len(table)
        if start > wanted_N[-1]:
            break
    found = pa.concat_tables([_LOADED_SCHEMA.empty_table(), *blocks])
    is_same = all(found[name].equals(index[name]) for name in (words.UID, words.IMAGE_SHA256))
    if pairs.scores:
        is_same &= (
            found[words.CAPTION].equals(pc.list_element(index[words.CAPTIONS], 0)) if len(index) else True
        )
    if found[words.IMAGE].null_count or not is_same:
        raise UserError(f"{shard.uri}: its pairs differ from those that the run listed; restore the file")
    rows_N = index[words.NUM_ROWS].to_numpy()
    columns = {words.IMAGE: found[words.IMAGE], words.FIRST_ROW: pa.array(rows_N.cumsum() - rows_N)}
    if pairs.pictures:
        negatives = index[words.NEGATIVES].combine_chunks()
        columns[words.NEGATIVE_IMAGES] = pairs.pictures.load(index[words.UID], negatives)
    for name, column in columns.items():
        index = index.append_column(name, column)
    return index


def _tally(uri: str, pairs: Pairs) -> tuple[Counter[str], Counter[tuple[str, str]], int]:
    return tally_pairs(read_columns(uri), pairs.pictures)


def tally_pairs(
    index: pa.Table, pictures: hard.HardImages | None = None
) -> tuple[Counter[str], Counter[tuple[str, str]], int]:
    """Return the number of samples in an index, and counts over an epoch: pairs, pairs with negatives, pairs
    with images of negatives, captions, negatives and images of negatives, each as often as its sample is
    trained on, and copies, all pairs of a sample but its first. ``listed_pictures``, ``bad_pictures``:
    images of negatives, and unreadable ones, each counted once. Then the negatives of an epoch by operation
    and kind, and the most that a pair has."""
    lists, rows_N = index[words.NEGATIVES].combine_chunks(), index[words.NUM_ROWS].to_numpy()
    length_N, flat = pc.list_value_length(lists).to_numpy(), lists.flatten()
    num_listed = pictures.count_listed(index[words.UID], lists) if pictures else 0
    shown_F = pc.struct_field(flat, "image").to_numpy(zero_copy_only=False).astype(bool)
    row_F = np.repeat(np.arange(len(index)), length_N)
    columns = {name: pc.struct_field(flat, name) for name in ("op", "kind")}
    columns[words.NUM_ROWS] = pa.array(np.repeat(rows_N, length_N))
    lines = pa.table(columns).group_by(["op", "kind"]).aggregate([(words.NUM_ROWS, "sum")]).to_pylist()
    kinds = Counter({(line["op"], line["kind"]): line[f"{words.NUM_ROWS}_sum"] for line in lines})
    counts = Counter(
        samples=len(index),
        pairs=int(rows_N.sum()),
        copies=int(rows_N.sum()) - len(index),
        with_negatives=int(rows_N[length_N > 0].sum()),
        with_negative_images=int(rows_N[np.unique(row_F[shown_F])].sum()),
        captions=int(pc.list_value_length(index[words.CAPTIONS]).to_numpy() @ rows_N),
        negatives=int(length_N @ rows_N),
        negative_images=int(rows_N[row_F[shown_F]].sum()),
        listed_pictures=num_listed,
        bad_pictures=max(0, num_listed - int(shown_F.sum())),
    )
    return counts, kinds, int(length_N.max(initial=0))


def check_pairs(
    pairs: Pairs, reasons: Counter[str], tally: Counter[str], uids: Sequence[np.ndarray] = ()
) -> list[str]:
    """Return a warning for every status whose rows, or images of negatives, are left out. Raise ValueError,
    one line, for errors that only the sums over all shards show.

    ``reasons`` and ``tally`` are sums of what ``index_shard`` and ``tally_pairs`` count; ``uids`` those of
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
        others = (*_SOUND, words.DUPLICATE_UID, *words.SHARD_STATUSES)
        named_bad = sum(count for reason, count in reasons.items() if reason not in others)
        key_M = np.sort(to_keys(np.concatenate([np.empty((0, 2), np.uint64), *uids])))
        refuse_unknown(pairs.subset, pairs.source, read_uids(pairs.subset), key_M, named_bad)
    if not tally["pairs"]:
        said = list_counts({reason: count for reason, count in sorted(reasons.items()) if count})
        raise ValueError(f"input={pairs.source!r}: no pairs to train on ({said or 'no rows'})")
    if pairs.negatives and not tally["negatives"]:
        raise ValueError(
            f"negatives: none of the {tally['pairs']:,} pairs of {pairs.source} has negatives in "
            f"{pairs.negatives[0] if pairs.has_own_negatives else posixpath.dirname(pairs.negatives[0])}; "
            f"they are joined by uid, and kept.parquet or scores/ of a curation have the uids"
        )
    if pairs.negative_images and not tally["negative_images"]:
        raise ValueError(
            f"negative_images: none of the {tally['negatives']:,} negatives has a readable image in "
            f"{pairs.negative_images[0]}; they are joined by uid and negative"
        )
    judged: dict[tuple[str, str], dict[str, int]] = {}
    if not pairs.is_curated:  # a curation has checked its own rows
        judged["input", "rows"] = reasons
    if pairs.negative_images:
        bad = {words.UNREADABLE_PICTURE: tally["bad_pictures"]}
        judged["negative_images", "pictures"] = {words.OK: tally["negative_images"], **bad}
    for (said, what), counts in judged.items():
        check_bad_rows(said, counts, pairs.max_bad_fraction, what)
    lines = [line for (said, what), counts in judged.items() for line in describe_dropped(said, counts, what)]
    lost = sum(map(parquet.count_rows, pairs.negative_images)) - tally["listed_pictures"]
    said = f"negative_images: rows that match no negative of these pairs by uid and text: {lost:,}; left out"
    return lines + [said] * bool(lost)


@dataclass(frozen=True)
class Drawing:
    """The settings that batches are made with."""

    image: ImageSpec
    model: ModelConfig
    """The model whose tokenizer is used."""
    fit: FitConfig
    max_pixels: int
    """The limit of the pairs: larger images are not decoded."""
    kinds: tuple[tuple[str, str], ...] = ()
    """Every (operation, kind) of negatives, sorted."""
    most_negatives: int | None = None
    """Maximum number of negatives of a pair, which bounds the slots of a batch; none = the slots of
    ``fit``."""

    @property
    def loss(self) -> type[Loss]:
        """The loss that the batches are for."""
        return get_loss(self.fit.loss)

    @property
    def num_slots(self) -> int:
        """K of a batch, the same in all of a run."""
        asked = self.fit.num_negatives
        return asked if self.most_negatives is None else max(1, min(asked, self.most_negatives))


def make_batch(
    tables: Mapping[int, pa.Table], shard_R: np.ndarray, row_R: np.ndarray, epoch: int, draw: Drawing
) -> dict[str, np.ndarray]:
    """Return rows of loaded shards as arrays: image uint8 (R, H, W, C), token int32 (R, N).

    With a loss of hard negatives: negative int32 (R, K, N), valid bool (R, K), kind int64 (R, K), the
    number in ``draw.kinds``; a slot that is not valid has the caption's tokens and kind 0, and no slot with
    these tokens is valid. triplet takes only negatives with a picture, K = 1: negative_image uint8
    (R, H, W, C), 0 without one. Raises UserError where an image does not decode.
    """
    drawn = [_draw(row, epoch, draw) for row in _take(tables, shard_R, row_R, draw)]
    pixels, captions, negatives, shown = map(list, zip(*drawn, strict=True))
    batch = {"image": np.stack(pixels)}
    flat, num_slots = [negative for own in negatives for negative in own], draw.num_slots
    texts = [parquet.readable(text) for text in (*captions, *(negative["text"] for negative in flat))]
    token_TN = load_tokens(_fetch(draw.model))(texts)
    batch["token"] = token_TN[: len(drawn)]
    if not draw.loss.negatives:
        return batch
    batch["negative"] = np.repeat(batch["token"][:, None], num_slots, 1)
    batch["valid"] = np.arange(num_slots) < np.array([[len(own)] for own in negatives])
    batch["negative"][batch["valid"]] = token_TN[len(drawn) :]
    batch["kind"] = np.zeros((len(drawn), num_slots), np.int64)
    number = {kind: i for i, kind in enumerate(draw.kinds)}
    batch["kind"][batch["valid"]] = [number[negative["op"], negative["kind"]] for negative in flat]
    is_other_RK = (batch["negative"] != batch["token"][:, None]).any(2)
    batch |= {"valid": batch["valid"] & is_other_RK, "kind": batch["kind"] * is_other_RK}
    if draw.loss.negative_images:
        blank = np.zeros_like(batch["image"][0])
        batch["negative_image"] = np.stack([blank if one is None else one for one in shown])
    return batch


def _take(
    tables: Mapping[int, pa.Table], shard_R: np.ndarray, row_R: np.ndarray, draw: Drawing
) -> list[dict[str, Any]]:
    """Return the rows as Python values, and the number of each row among its pair's copies; rows of a shard
    are taken together."""
    names = [words.UID, words.CAPTIONS, words.IMAGE]
    names += [words.NEGATIVES] if draw.loss.negatives else []
    names += [words.NEGATIVE_IMAGES] if draw.loss.negative_images else []
    rows: list[dict[str, Any]] = [{}] * len(shard_R)
    for shard in np.unique(shard_R).tolist():
        mine = np.flatnonzero(shard_R == shard)
        sample_R, copy_R = locate_rows(tables[shard][words.FIRST_ROW].to_numpy(), row_R[mine])
        found = tables[shard].select(names).take(pa.array(sample_R)).to_pylist()
        for place, row, copy in zip(mine.tolist(), found, copy_R.tolist(), strict=True):
            rows[place] = {**row, _COPY: copy}
    return rows


def _draw(
    row: dict[str, Any], epoch: int, draw: Drawing
) -> tuple[np.ndarray, str, list[dict[str, Any]], np.ndarray | None]:
    """Draw pixels, caption, negatives and the first negative's pixels of a pair from separate generators, so
    the loss does not change the caption or crops. The first copy equals the pair's draw without copies."""

    def generator(what: int) -> np.random.Generator:
        copy = [row[_COPY]] if row[_COPY] else []
        return np.random.default_rng((draw.fit.seed, epoch, int(row[words.UID], 16), what, *copy))

    captions, of_crop = row[words.CAPTIONS], generator(1)
    caption = captions[generator(0).integers(len(captions)) if len(captions) > 1 else 0]
    pixels, shown = _make_pixels(row[words.IMAGE], row[words.UID], draw, of_crop), None
    chosen = _choose(row[words.NEGATIVES], draw, generator(2)) if draw.loss.negatives else []
    if chosen and draw.loss.negative_images:
        shown = _make_pixels(row[words.NEGATIVE_IMAGES][chosen[0]], row[words.UID], draw, of_crop)
    return pixels, caption, [row[words.NEGATIVES][place] for place in chosen], shown


def _choose(negatives: list[dict[str, Any]], draw: Drawing, rng: np.random.Generator) -> list[int]:
    """Return the indices of a pair's negatives: drawn at random, over as many operations and kinds as
    possible."""
    places = rng.permutation(len(negatives)).tolist()
    if draw.loss.negative_images:
        places = [place for place in places if negatives[place]["image"]]
    seen: dict[tuple[str, str], int] = {}
    turns = {}
    for place in places:
        kind = negatives[place]["op"], negatives[place]["kind"]
        turns[place] = seen[kind] = seen.get(kind, -1) + 1
    return sorted(places, key=turns.__getitem__)[: draw.num_slots]


_KEPT_BYTES = 1 << 26
# The first pictures of trainings without crops, by the hash of their bytes: they are the same in every epoch.
_kept: dict[tuple[bytes, ImageSpec, int, bool], np.ndarray] = {}


def _make_pixels(data: bytes, uid: str, draw: Drawing, rng: np.random.Generator) -> np.ndarray:
    fit = draw.fit
    try:
        if tuple(fit.crop) != (1, 1):
            return crop_image(data, draw.image, draw.max_pixels, fit.crop, rng, fit.fast_decode)
        key = hashlib.sha256(data).digest(), draw.image, draw.max_pixels, fit.fast_decode
        pixels = _kept.get(key)
        if pixels is None:
            pixels = prepare_image(data, *key[1:])[0]
            if len(_kept) * pixels.nbytes < _KEPT_BYTES:
                _kept[key] = pixels
        return pixels
    except ImageFault as fault:
        raise UserError(f"the image of uid {uid} cannot be trained on: {fault.status} ({fault})") from fault


def read_batches(
    pairs: Pairs,
    plan: EpochPlan,
    draw: Drawing,
    first_step: int,
    num_steps: int,
    own: slice = slice(None),
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the batches of ``num_steps`` steps from ``first_step`` on, made in this process.

    ``own``: this rank's rows of a global batch. A shard is loaded with its window and dropped after it:
    memory holds the images of one window, or of two where a batch has rows of both.
    """
    tables: dict[int, pa.Table] = {}
    for step in range(first_step, first_step + num_steps):
        needed = plan.shards(step)
        tables = {shard: table for shard, table in tables.items() if shard in needed}
        for shard in sorted(needed - set(tables)):
            tables[shard] = load_shard(pairs, shard)
        shard_B, row_B = plan.batch(step)
        yield make_batch(tables, shard_B[own], row_B[own], step // plan.steps_per_epoch, draw)
