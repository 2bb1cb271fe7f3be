"""Hard negatives and hard images of the training pairs, joined by uid; images of negatives by uid and
text.

Files of negatives and of their images are indexed by keys of 16 bytes; with the index of its row each caption
or image takes 24 bytes in every process that joins them. N pairs, F negatives of them all, M keys in order.
"""

import hashlib
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import UserError
from raycomp.core.selection import KEY, find_keys, parse_uids, to_keys
from raycomp.data.files import join_uri, resolve
from raycomp.data.inputs import expand_input
from raycomp.data.parquet import count_rows, read_columns, read_rows, read_schema
from raycomp.data.runs import find_curation, identify, list_negatives, read_curation, read_finished
from raycomp.data.samples import MAX_MEMBER_BYTES, parse_uid
from raycomp.models.images import ImageFault, decode_image
from raycomp.schema import HARD_TYPE
from raycomp.words import CAPTION, IMAGE, NEGATIVE, NEGATIVES, NEIGHBOURS, NUM_ROWS, UID

MOST = 3
"""Neighbours of a pair that are used, as in NegCLIP."""
PATH, OWN = "path", "own"
_FIELDS = ("text", "op", "kind")


def load_mates(files: Sequence[str], pairs: Sequence[str]) -> tuple[tuple[np.ndarray, ...], list[str]]:
    """Return for each table of pairs the rows of the neighbours of each row, int32 (n, MOST), -1 for none,
    and a line on uids without a pair. Neighbours in other tables, or not trained on, are left out.

    It takes some 60 bytes for each pair. Raises ValueError where a uid is none, or no pair has a neighbour.
    """
    tables = [read_columns(uri, [UID, NUM_ROWS]) for uri in pairs]
    counts = [table[NUM_ROWS].to_numpy() for table in tables]
    firsts = [np.cumsum(count_n) - count_n for count_n in counts]
    shard_N = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    first_N = np.concatenate([*firsts, np.zeros(0, np.int64)])
    key_N = np.concatenate([to_keys(parse_uids(table[UID])) for table in tables if len(table)])
    order_N = np.argsort(key_N, kind="stable")
    sorted_N = key_N[order_N]
    mate_NK = np.full((len(key_N), MOST), -1, np.int32)
    num_uids = num_lost = 0
    for uri in files:
        # The rows of pairs and of their neighbours, of those that both are trained on.
        table = read_columns(uri, [UID, NEIGHBOURS])
        lists = table[NEIGHBOURS].combine_chunks()
        try:
            own_M = find_keys(sorted_N, to_keys(parse_uids(table[UID])))
            other_E = find_keys(sorted_N, to_keys(parse_uids(lists.flatten())))
        except ValueError as error:
            raise ValueError(f"hard_images={uri!r}: {error}") from error
        num_uids, num_lost = num_uids + len(own_M), num_lost + int((own_M < 0).sum())
        own_E = np.repeat(own_M, lists.value_lengths().fill_null(0).to_numpy())
        is_here_E = (own_E >= 0) & (other_E >= 0)
        own_E, other_E = order_N[own_E[is_here_E]], order_N[other_E[is_here_E]]
        is_near_E = (own_E != other_E) & (shard_N[own_E] == shard_N[other_E])
        own_E, other_E = own_E[is_near_E], other_E[is_near_E]
        starts = np.flatnonzero(np.diff(own_E, prepend=-1))
        rank_E = np.arange(len(own_E)) - np.repeat(starts, np.diff(starts, append=len(own_E)))
        kept_E = rank_E < MOST
        mate_NK[own_E[kept_E], rank_E[kept_E]] = first_N[other_E[kept_E]]
    lost = f"{num_lost:,} of {num_uids:,} uids have no pair that is trained on"
    if (mate_NK < 0).all():
        said = f"none of the {len(key_N):,} pairs has a neighbour in its shard; {lost}"
        raise ValueError(f"hard_images={files[0]!r}: {said}")
    parts = np.split(mate_NK, np.cumsum([len(table) for table in tables])[:-1])
    found = (np.repeat(part_nK, count_n, 0) for part_nK, count_n in zip(parts, counts, strict=True))
    return tuple(found), [f"hard_images: {lost}; left out"] * bool(num_lost)


def find_negatives(uri: str, run: dict[str, Any] | None, source: str) -> tuple[str, ...]:
    """Return the files of negatives in the folder of a finished run, by number.

    ``run`` is the curation or selection in ``source`` that is trained on, none where ``source`` is not a run.
    Raises ValueError where there are no negatives, or they belong to another curation.
    """
    try:
        written = read_finished(uri)
        if written["kind"] != "negatives":
            raise ValueError(f"holds {written['kind']}, must hold a run of raycomp negatives")
        tables = list_negatives(written, uri)
    except ValueError as error:
        raise ValueError(f"negatives={uri!r}: {error}") from error
    if run is not None and not _is_of(written, run, source):
        own = written["config"].get("input")
        if own == source:
            raise ValueError(f"negatives={uri!r}: {source} was changed since; run raycomp update {uri}")
        raise ValueError(
            f"negatives={uri!r}: were written for {own!r}, not for the pairs in {source}; run raycomp "
            f"negatives on these"
        )
    num_rows, num_written = sum(map(count_rows, tables)), written["funnel"]["read"]
    if num_rows != num_written:
        raise ValueError(f"negatives={uri!r}: holds {num_rows:,} captions, the run wrote {num_written:,}")
    return tuple(tables)


def _is_of(written: dict[str, Any], run: dict[str, Any], source: str) -> bool:
    """Whether negatives belong to a run's own pairs, or to another selection from the same scores."""
    known = written["fingerprint"].get("input")
    if known == identify(run):
        return True
    curated = identify(find_curation(run, source))
    if known == curated:
        return True
    try:
        folder, other = read_curation(str(written["config"].get("input")))
        if other is None or known != identify(other):
            return False
        return curated == identify(find_curation(other, folder.uri))
    except ValueError:
        return False


def find_tables(option: str, spec: str, forms: Sequence[set[str]], wanted: str) -> tuple[str, ...]:
    """Return the Parquet files that an option names; each must have the columns of one of the forms."""
    try:
        shards = expand_input(spec)
    except ValueError as error:
        raise ValueError(f"{option}={spec!r}: {error}") from error
    for shard in shards:
        names = {*read_schema(shard.uri).names} if shard.format == "parquet" else set()
        if not any(form <= names for form in forms):
            raise ValueError(f"{option}={shard.uri!r}: must be Parquet with the columns {wanted}")
    return tuple(shard.uri for shard in shards)


def find_images(option: str, spec: str) -> tuple[str, ...]:
    """Return the files of images of negatives; raises as ``find_tables``."""
    forms = [{UID, NEGATIVE, column} for column in (IMAGE, PATH)]
    return find_tables(option, spec, forms, f"{UID}, {NEGATIVE}, and {IMAGE} or {PATH}")


@lru_cache(maxsize=2)
def _place(
    uris: tuple[str, ...], columns: tuple[str, ...], token: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return every key of the files, sorted, of uids or of uids and texts, and its file and row; cached for
    ``token``."""
    keys, files, rows = [np.empty(0, KEY)], [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    for number, uri in enumerate(uris):
        table = read_columns(uri, columns)
        try:
            uid_n2, row_n = parse_uids(table[UID]), np.arange(len(table), dtype=np.int32)
        except ValueError:  # a row without a uid has no key
            own = [parse_uid(uid) for uid in table[UID].to_pylist()]
            row_n = np.flatnonzero([uid is not None for uid in own]).astype(np.int32)
            uid_n2 = parse_uids([uid for uid in own if uid])
        key_n = to_keys(uid_n2)
        if NEGATIVE in columns:
            key_n = _to_text_keys(key_n, table[NEGATIVE].take(row_n).to_pylist())
        keys.append(key_n)
        files.append(np.full(len(key_n), number, np.int32))
        rows.append(row_n)
    key_M = np.concatenate(keys)
    order_M = np.argsort(key_M, kind="stable")
    return key_M[order_M], np.concatenate(files)[order_M], np.concatenate(rows)[order_M]


def _find(
    uris: tuple[str, ...], columns: tuple[str, ...], token: str, key_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return file and row of each key, -1 for an unknown key."""
    key_M, file_M, row_M = _place(uris, columns, token)
    place_N = find_keys(key_M, key_N)
    if not len(key_M):
        return place_N, place_N
    return np.where(place_N >= 0, file_M[place_N], -1), np.where(place_N >= 0, row_M[place_N], -1)


def _to_text_keys(key_N: np.ndarray, texts: Sequence[str | None]) -> np.ndarray:
    """Return keys of uid and text, the first 16 bytes of BLAKE2b."""
    digests = [
        hashlib.blake2b(key.ljust(16, b"\0") + str(text).encode(), digest_size=16).digest()
        for key, text in zip(key_N.tolist(), texts, strict=True)
    ]
    return np.frombuffer(b"".join(digests), KEY)


def join_negatives(
    uris: tuple[str, ...], uids: pa.ChunkedArray, captions: pa.ChunkedArray, token: str
) -> pa.ListArray:
    """Return a list of HARD_TYPE for each uid, empty where there are no negatives; none is marked as having
    an image. The index of the files is cached for the next call with the ``token``. Raises UserError where
    the caption of negatives differs from all of a pair's ``captions`` in more than white space: data sets
    whose shards and keys have the same names have the same uids."""
    file_N, row_N = _find(uris, (UID,), token, to_keys(parse_uids(uids)))
    kind = pa.list_(HARD_TYPE)
    parts, count = [pa.array([[]], kind)], 1
    order_N = np.zeros(len(file_N), np.int64)
    for file in np.unique(file_N[file_N >= 0]).tolist():
        mine = np.flatnonzero(file_N == file)
        found = read_columns(uris[file], [NEGATIVES, CAPTION]).take(pa.array(row_N[mine]))
        rows = [column.take(pa.array(mine)).to_pylist() for column in (uids, captions)]
        written = zip(found[CAPTION].to_pylist(), *rows, strict=True)
        others = [uid for text, uid, own in written if text and text.split() not in map(str.split, own)]
        if others:
            raise UserError(
                f"negatives: {len(others):,} of {len(mine):,} captions in {uris[file]} differ from the pair "
                f"with the same uid, such as {others[0]}; name the negatives of these pairs"
            )
        parts.append(to_hard(found)[0])
        order_N[mine] = count + np.arange(len(mine))
        count += len(mine)
    return pa.concat_arrays(parts).take(pa.array(order_N))


def to_hard(table: pa.Table) -> tuple[pa.ListArray, int]:
    """Return negatives as lists of HARD_TYPE. Plain texts are a user's own: those that are empty or equal
    their caption are left out, and counted."""
    lists = table[NEGATIVES].combine_chunks()
    if pa.types.is_struct(lists.type.value_type):
        flat = lists.flatten()
        fields = [pc.struct_field(flat, name) for name in _FIELDS]
        fields.append(pa.array(np.zeros(len(flat), bool)))
        hard = pa.StructArray.from_arrays(fields, fields=list(HARD_TYPE))
        return _to_lists(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(), hard), 0
    found, num_unfit = [], 0
    for caption, texts in zip(table[CAPTION].to_pylist(), lists.to_pylist(), strict=True):
        fit = [text for text in texts or () if text and text.split() not in ([], (caption or "").split())]
        found.append([{"text": text, "op": OWN, "kind": OWN, "image": False} for text in fit])
        num_unfit += len(texts or ()) - len(fit)
    return pa.array(found, pa.list_(HARD_TYPE)), num_unfit


def is_own(negatives: str) -> bool:
    """Whether an option names a user's own table of negatives, not a run's folder."""
    return negatives.endswith(".parquet")


def find_own_negatives(spec: str) -> tuple[str, ...]:
    """Return the files of negatives that a user wrote; ValueError where columns lack or have another type."""
    wanted = "uid, caption and negatives, a list of texts in each row"
    uris = find_tables("negatives", spec, [{UID, CAPTION, NEGATIVES}], wanted)
    for uri in uris:
        kind = read_schema(uri).field(NEGATIVES).type
        of = str(getattr(kind, "value_type", None))
        if of not in ("string", "large_string") and not all(f"{name}: string" in of for name in _FIELDS):
            raise ValueError(f"negatives={uri!r}: its column negatives must be lists of texts, is {kind}")
    return uris


def report_own_negatives(uris: tuple[str, ...], key_N: np.ndarray, token: str) -> list[str]:
    """Return warnings on what is not used of a user's negatives; ``key_N``: of all pairs."""
    key_M, num_rows = _place(uris, (UID,), token)[0], sum(map(count_rows, uris))
    is_known_M, is_first_M = np.isin(key_M, key_N), np.isin(np.arange(len(key_M)), np.unique(key_M, True)[1])
    lost = [key.ljust(16, bytes(1)).hex() for key in key_M[~is_known_M][:1].tolist()]
    tables = [read_columns(uri, [CAPTION, NEGATIVES]) for uri in uris]
    texts = sum(int(pc.sum(pc.list_value_length(table[NEGATIVES])).as_py() or 0) for table in tables)
    unknown = ", such as ".join(["have a uid of no training pair", *lost])
    counts = (
        (num_rows - int(is_known_M.sum()), num_rows, "rows", unknown),
        (int((is_known_M & ~is_first_M).sum()), num_rows, "rows", "repeat a uid; its first row counts"),
        (sum(to_hard(table)[1] for table in tables), texts, "texts", "are empty or equal their caption"),
    )
    return [f"negatives: {n:,} of {of:,} {what} {why}" for n, of, what, why in counts if n]


def _to_lists(length_N: np.ndarray, flat: pa.Array) -> pa.ListArray:
    offset_N = np.concatenate([[0], np.cumsum(length_N)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offset_N), flat)


@dataclass(frozen=True)
class HardImages:
    """Images of negatives, in files that ``find_tables`` found."""

    uris: tuple[str, ...]
    token: str

    def mark(self, uids: pa.ChunkedArray, negatives: pa.ListArray, max_pixels: int) -> pa.ListArray:
        """Return the negatives, marked where an image exists and decodes."""
        flat, file_F, row_F = self._find(uids, negatives)
        shown_F = np.zeros(len(flat), bool)
        for place, data in _read_images(self.uris, file_F, row_F):
            with suppress(ImageFault):
                if data is not None:
                    decode_image(data, max_pixels)
                    shown_F[place] = True
        fields = [*flat.flatten()[:-1], pa.array(shown_F)]
        marked = pa.StructArray.from_arrays(fields, fields=list(HARD_TYPE))
        return _to_lists(pc.list_value_length(negatives).to_numpy(), marked)

    def count_listed(self, uids: pa.ChunkedArray, negatives: pa.ListArray) -> int:
        """Return how many negatives have a row, whether or not its image can be read."""
        return int((self._find(uids, negatives)[1] >= 0).sum())

    def load(self, uids: pa.ChunkedArray, negatives: pa.ListArray) -> pa.ListArray:
        """Return the bytes of every negative's image, null where it has none."""
        flat, file_F, row_F = self._find(uids, negatives)
        file_F = np.where(pc.struct_field(flat, "image").to_numpy(zero_copy_only=False), file_F, -1)
        images: list[bytes | None] = [None] * len(flat)
        for place, data in _read_images(self.uris, file_F, row_F):
            images[place] = data
        return _to_lists(pc.list_value_length(negatives).to_numpy(), pa.array(images, pa.large_binary()))

    def _find(
        self, uids: pa.ChunkedArray, negatives: pa.ListArray
    ) -> tuple[pa.StructArray, np.ndarray, np.ndarray]:
        """Return the negatives in one array, and file and row of each one's image."""
        flat = negatives.flatten()
        key_F = np.repeat(to_keys(parse_uids(uids)), pc.list_value_length(negatives).to_numpy())
        key_F = _to_text_keys(key_F, pc.struct_field(flat, "text").to_pylist())
        return flat, *_find(self.uris, (UID, NEGATIVE), self.token, key_F)


def _read_images(
    uris: tuple[str, ...], file_F: np.ndarray, row_F: np.ndarray
) -> Iterator[tuple[int, bytes | None]]:
    """Yield the indices of negatives that have a row, and the image's bytes: None where a path names no file,
    or one beyond MAX_MEMBER_BYTES."""
    for file in np.unique(file_F[file_F >= 0]).tolist():
        place_f = np.flatnonzero(file_F == file)
        place_f = place_f[np.argsort(row_F[place_f], kind="stable")]
        column = IMAGE if IMAGE in read_schema(uris[file]).names else PATH
        places = iter(place_f.tolist())
        for table in read_rows(uris[file], [column], row_F[place_f].astype(np.int64)):
            for value in table[column].to_pylist():
                if isinstance(value, str):
                    uri = value if "://" in value else join_uri(posixpath.dirname(uris[file]), value)
                    filesystem, path = resolve(uri)
                    info, value = filesystem.get_file_info(path), None
                    if info.is_file and info.size <= MAX_MEMBER_BYTES:
                        with filesystem.open_input_stream(path) as stream:
                            value = stream.read()
                yield next(places), value
