"""The captions to write negatives for, and the other captions of the same images.

Only images that are in more than one file are gathered: first by keys of 8 bytes, some at a time, then with
their captions.
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import ScorerConfig, UserError, flatten
from raycomp.data.files import Folder
from raycomp.data.inputs import expand_input
from raycomp.data.manifest import check_results
from raycomp.data.parquet import OTHERS, from_rows, read_columns, read_matching, read_schema, write_table
from raycomp.data.paths import KEPT_FILE, join_uri
from raycomp.data.rows import decode_text, parse_uid
from raycomp.data.runs import check_shards_of_runs, find_curation, list_scores
from raycomp.models.describe import fingerprint_scorer
from raycomp.run.waves import map_files
from raycomp.words import (
    ALIGNED_STATUSES,
    BAD_ENCODING,
    CAPTION,
    EMPTY_CAPTION,
    IMAGE_EMBEDDING,
    IMAGE_SHA256,
    NO_CAPTION,
    OK,
    POSITION,
    SHARD,
    SHARD_ORDINAL,
    STATUS,
    UID,
)

# A caption is compared with at most this many others of its image.
MOST_OTHERS = 16
OTHERS_SCHEMA = pa.schema(
    [("file", pa.string()), (IMAGE_SHA256, pa.string()), (OTHERS, pa.list_(pa.string()))]
)
"""Captions of an image in other files, by file."""
FOLD = "fold"
"""A column: the fold of a row's image, from 0; models of the corpus that judge it have not read its fold."""
NUM_FOLDS = 10
# Number of files whose columns are checked before a run starts.
_MOST_CHECKED = 16


@dataclass(frozen=True)
class CaptionFile:
    """One file of captions; ``kept`` names the subset if only its rows count.

    ``with_images`` adds the images' embeddings.
    """

    ordinal: int
    uri: str
    kept: str | None = None
    with_images: bool = False
    others: str | None = None
    """The table of captions that images of this file have in other files."""
    rows: str | None = None
    """The table of its rows (``earlier.py``), if only those without a status in it are written."""


def name_file(ordinal: int) -> str:
    """Return the name of a file of captions in ``OTHERS_SCHEMA``."""
    return f"{ordinal:09d}"


def list_curated(run: dict, source: str, with_images: bool = False) -> list[CaptionFile]:
    """Return the scores files of a curation or selection in ``source``, with its subset."""
    kept = check_results(Folder(source), run, "subset").get(KEPT_FILE, join_uri(source, KEPT_FILE))
    uris = enumerate(list_scores(run, source))
    return [CaptionFile(ordinal, uri, kept, with_images) for ordinal, uri in uris]


def is_scored_by(scorer: ScorerConfig, run: dict, source: str = "the selection") -> bool:
    """Whether a scorer, including the bytes of its files, is the one that the curation in ``run`` used.

    For a selection the curation is the one that it chose from; ValueError, naming ``source``, if it is
    missing.
    """
    run = find_curation(run, source)
    known = run["fingerprint"].get("scorer"), dict(flatten(run["config"])).get("scorer.precision")
    return (fingerprint_scorer(scorer), scorer.precision) == known


def list_parquet(spec: str) -> list[CaptionFile]:
    """Return the Parquet files that ``spec`` names, sorted by name.

    Raises ValueError if there is none, or a file is not Parquet with uid and caption as text. If there are
    many files, only some are checked here; ``count_captions`` checks each.
    """
    shards = expand_input(spec)
    check_shards_of_runs(shards)
    for shard in shards:
        if shard.format != "parquet":
            raise ValueError(f"input={shard.uri!r}: must be a Parquet file or a folder that curate wrote")
    for shard in shards[:: -(-len(shards) // _MOST_CHECKED)]:
        _check_columns(shard.uri)
    return [CaptionFile(shard.ordinal, shard.uri) for shard in shards]


def _check_columns(uri: str) -> None:
    schema = read_schema(uri)
    texts = Counter(field.name for field in schema if _is_text(field.type))
    here = ", ".join(f"{field.name} ({field.type})" for field in schema)
    for name in (UID, CAPTION):
        if texts[name] != 1:
            raise UserError(f"input={uri!r}: must have one column {name!r} of text; it has {here}")
    # A column that holds only nulls has the null type.
    kinds = [field.type for field in schema if field.name == IMAGE_SHA256]
    if sum(not pa.types.is_null(kind) for kind in kinds) != texts[IMAGE_SHA256] or len(kinds) > 1:
        raise UserError(f"input={uri!r}: its column {IMAGE_SHA256!r} must be text, and one; it has {here}")


def _is_text(kind: pa.DataType) -> bool:
    """Whether values are texts, in any storage type."""
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return any(
        is_one(kind) for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def read_texts(uri: str, columns: Sequence[str]) -> pa.Table:
    """Return columns of a file, texts in the plain type, and a uid in the form that ``parse_uid`` accepts."""
    table = read_columns(uri, columns)
    for place, field in enumerate(table.schema):
        if field.name in (UID, CAPTION, IMAGE_SHA256):
            table = table.set_column(place, field.name, table[field.name].cast(pa.string()))
    if UID not in table.column_names or not _is_utf8(table[UID]):
        return table
    uids = pa.array([parse_uid(uid) or uid for uid in table[UID].to_pylist()], pa.string())
    return table.set_column(table.column_names.index(UID), UID, uids)


def load_captions(source: CaptionFile, block_rows: int) -> Iterator[pa.Table]:
    """Yield the rows of one file in blocks, each with the other captions of its image."""
    table, statuses = part_encodings(_read(source))
    others, folds = _find_others(table, _load_shared(source)), _find_folds(table)
    if source.kept is not None:
        kept = read_matching(source.kept, [UID], SHARD, table[SHARD][0].as_py())[UID]
        # A bad row or a duplicate may share the uid of a kept row.
        stays = pc.and_(pc.is_in(table[UID], kept.combine_chunks()), _is_aligned(table))
        if pc.sum(stays).as_py() != len(kept):
            raise UserError(
                f"{source.uri}: has {pc.sum(stays)} of the {len(kept):,} captions that the run kept"
            )
        table, others = table.filter(stays), others.filter(stays)
        statuses, folds = statuses.filter(stays), folds.filter(stays)
    rows = pa.table(
        {
            SHARD_ORDINAL: pa.array([source.ordinal] * len(table), pa.int32()),
            POSITION: pa.array(range(len(table)), pa.int32()),
            UID: table[UID].cast(pa.string()),
            CAPTION: table[CAPTION].cast(pa.string()),
            OTHERS: others,
            STATUS: statuses,
            FOLD: folds,
            **({IMAGE_EMBEDDING: table[IMAGE_EMBEDDING]} if source.with_images else {}),
        }
    )
    if source.rows is not None:
        rows = rows.filter(read_columns(source.rows, [STATUS])[STATUS].is_null())
    for start in range(0, len(rows), block_rows):
        yield rows.slice(start, block_rows)


def _find_folds(table: pa.Table) -> pa.Array:
    """Return each row's fold: rows of one image have the same, by the image's hash or without one by uid."""
    uids = table[UID].to_pylist()
    images = table[IMAGE_SHA256].to_pylist() if IMAGE_SHA256 in table.column_names else [None] * len(uids)
    names = [image or uid or "" for image, uid in zip(images, uids, strict=True)]
    return pa.array([zlib.crc32(name.encode()) % NUM_FOLDS for name in names], pa.int32())


def draw_uid(uid: str, salt: str) -> float:
    """Return a number in [0, 1) that depends only on a uid, of any form, and ``salt``."""
    return int.from_bytes(blake2b(f"{salt}\0{uid}".encode(), digest_size=6).digest(), "big") / 2**48


def part_encodings(table: pa.Table) -> tuple[pa.Table, pa.Array]:
    """Return the table with null for captions that are not UTF-8; status bad_encoding for these, else null.

    Raises UserError if a uid or an image's hash is not UTF-8.
    """
    statuses: list[str | None] = [None] * len(table)
    for name in (UID, CAPTION, IMAGE_SHA256):
        if name not in table.column_names or _is_utf8(table[name]):
            continue
        if name != CAPTION:
            raise UserError(f"input: a value of the column {name!r} is not UTF-8")
        texts = [decode_text(data) for data in table[name].cast(pa.large_binary()).to_pylist()]
        statuses = [
            BAD_ENCODING if text is None and is_there else None
            for text, is_there in zip(texts, table[name].is_valid().to_pylist(), strict=True)
        ]
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(texts, pa.string()))
    return table, pa.array(statuses, pa.string())


def _is_utf8(column: pa.ChunkedArray) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def read_aligned(uri: str, columns: Sequence[str]) -> pa.Table:
    """Return columns of a scores file's corpus rows: there every uid is unique."""
    table = read_columns(uri, [*columns, STATUS])
    return table.filter(_is_aligned(table)).select(list(columns))


def _is_aligned(table: pa.Table) -> pa.ChunkedArray:
    return pc.is_in(table[STATUS], pa.array(ALIGNED_STATUSES))


def count_captions(source: CaptionFile) -> int | None:
    """Return the number of rows that ``load_captions`` yields; None if uids are missing or repeated."""
    if source.kept is None:
        _check_columns(source.uri)
        uids = read_texts(source.uri, [UID])[UID]
        return None if uids.null_count or len(uids.unique()) < len(uids) else len(uids)
    shard = read_columns(source.uri, [SHARD])[SHARD][0].as_py()
    return len(read_matching(source.kept, [UID], SHARD, shard))


def count_statuses(source: CaptionFile) -> Counter[str]:
    """Return the captions of a plain file by status: ok, or the reason why none can be written."""
    table, statuses = part_encodings(read_texts(source.uri, [UID, CAPTION]))
    rows = zip(table[CAPTION].to_pylist(), statuses.to_pylist(), strict=True)
    return Counter(status or _judge_caption(caption) for caption, status in rows)


def _judge_caption(caption: str | None) -> str:
    if caption is None:
        return NO_CAPTION
    return OK if caption.strip() else EMPTY_CAPTION


def _read(source: CaptionFile) -> pa.Table:
    """Read the relevant columns that the file has."""
    names = read_schema(source.uri).names
    wanted = (UID, CAPTION, IMAGE_SHA256, SHARD, STATUS, *([IMAGE_EMBEDDING] if source.with_images else []))
    return read_texts(source.uri, [name for name in wanted if name in names])


def _load_shared(source: CaptionFile) -> dict[str, list[str]]:
    """Return the captions that images of a file have in other files."""
    if source.others is None:
        return {}
    table = read_matching(source.others, [IMAGE_SHA256, OTHERS], "file", name_file(source.ordinal))
    return dict(zip(table[IMAGE_SHA256].to_pylist(), table[OTHERS].to_pylist(), strict=True))


def _find_others(table: pa.Table, shared: Mapping[str, Sequence[str]]) -> pa.Array:
    """Return for each row the other captions of its image, in this file and then in ``shared`` by image."""
    captions = table[CAPTION].to_pylist()
    if IMAGE_SHA256 not in table.column_names:
        return pa.array([[] for _ in captions], pa.list_(pa.string()))
    images = table[IMAGE_SHA256].to_pylist()
    by_image: dict[str, dict[str, None]] = defaultdict(dict)
    for image, caption in zip(images, captions, strict=True):
        if image is not None and caption:
            by_image[image].setdefault(caption)
    found = [
        [
            text
            for text in dict.fromkeys([*by_image.get(image, ()), *shared.get(image, ())])
            if text != caption
        ][:MOST_OTHERS]
        for image, caption in zip(images, captions, strict=True)
    ]
    return pa.array(found, pa.list_(pa.string()))


_KEYS_AT_ONCE = 100_000_000
"""Images whose keys are compared at a time: 0.8 GB."""
MOST_SHARED = 5_000_000
"""Images whose captions in other files are known; of more, some are drawn by their keys."""


def share_captions(sources: list[CaptionFile], num_rows: int, work: Folder) -> list[CaptionFile]:
    """Return the files with the name of a table of captions that they share images with."""
    if len(sources) < 2:
        return sources
    parts = -(-num_rows // _KEYS_AT_ONCE)
    repeated_K = np.concatenate([_find_repeated(sources, part, parts) for part in range(max(1, parts))])
    if not len(repeated_K):
        return sources
    repeated_K = np.sort(repeated_K)[:MOST_SHARED]
    uri = work.at("others.parquet")
    write_table(_gather(sources, repeated_K), uri, OTHERS_SCHEMA)
    return [replace(source, others=uri) for source in sources]


def _find_repeated(sources: Sequence[CaptionFile], part: int, parts: int) -> np.ndarray:
    """Return the keys of a part that several files have."""
    found = [keys for keys in map_files(_list_keys, sources, part, parts, label="find images") if len(keys)]
    key_K, count_K = np.unique(np.concatenate(found or [np.zeros(0, np.uint64)]), return_counts=True)
    return key_K[count_K > 1]


def _list_keys(source: CaptionFile, part: int, parts: int) -> np.ndarray:
    """Return the keys of a file's images, each once."""
    if IMAGE_SHA256 not in read_schema(source.uri).names:
        return np.zeros(0, np.uint64)
    table, _ = part_encodings(read_texts(source.uri, [IMAGE_SHA256]))
    images = table[IMAGE_SHA256].unique().drop_null()
    key_K = np.array([_to_key(image) for image in images.to_pylist()], np.uint64)
    return key_K[key_K % np.uint64(parts) == part]


def _to_key(image: str) -> int:
    return int.from_bytes(blake2b(image.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def _gather(sources: Sequence[CaptionFile], repeated_K: np.ndarray) -> pa.Table:
    """Return for each file and image the captions of the image in other files, in the order of these."""
    by_image: dict[str, list[tuple[int, list[str]]]] = defaultdict(list)
    for source, captions in zip(
        sources, map_files(_list_captions, sources, repeated_K, label="gather captions"), strict=True
    ):
        for image, texts in captions.items():
            by_image[image].append((source.ordinal, texts))
    rows = []
    for image, several in by_image.items():
        for ordinal, _ in several:
            others = [text for other, texts in several if other != ordinal for text in texts]
            if others:
                rows.append((name_file(ordinal), image, list(dict.fromkeys(others))[:MOST_OTHERS]))
    return from_rows(sorted(rows), OTHERS_SCHEMA)


def _list_captions(source: CaptionFile, repeated_K: np.ndarray) -> dict[str, list[str]]:
    """Return the captions of a file by image, of images whose keys are in ``repeated_K``, sorted."""
    if IMAGE_SHA256 not in read_schema(source.uri).names:
        return {}
    table, _ = part_encodings(read_texts(source.uri, [IMAGE_SHA256, CAPTION]))
    found: dict[str, list[str]] = defaultdict(list)
    for image, caption in zip(table[IMAGE_SHA256].to_pylist(), table[CAPTION].to_pylist(), strict=True):
        if image is None or not caption:
            continue
        key = np.uint64(_to_key(image))
        place = int(np.searchsorted(repeated_K, key))
        if place < len(repeated_K) and repeated_K[place] == key and len(found[image]) < MOST_OTHERS:
            found[image].append(caption)
    return {image: texts for image, texts in found.items() if texts}
