"""The captions to write negatives for, and the other captions of the same images.

Only images that are in more than one file are gathered: first by keys of 8 bytes, some at a time, then with
their captions.
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.config import ScorerConfig, UserError, flatten
from raycomp.data.files import KEPT_FILE, Folder, join_uri
from raycomp.data.inputs import expand_input
from raycomp.data.parquet import OTHERS, from_rows, read_columns, read_matching, read_schema, write_table
from raycomp.data.runs import check_results, check_shards_of_runs, find_curation, list_scores
from raycomp.data.samples import decode_text, parse_uid
from raycomp.models.architecture import fingerprint_scorer
from raycomp.run.work import map_files

# A caption is compared with at most this many others of its image.
MOST_OTHERS = 16
OTHERS_SCHEMA = pa.schema(
    [("file", pa.string()), (words.IMAGE_SHA256, pa.string()), (OTHERS, pa.list_(pa.string()))]
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
    """The table of its rows (``write_all.plan_rows``), if only those without a status in it are written."""


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
    for name in (words.UID, words.CAPTION):
        if texts[name] != 1:
            raise UserError(f"input={uri!r}: must have one column {name!r} of text; it has {here}")
    # A column that holds only nulls has the null type.
    kinds = [field.type for field in schema if field.name == words.IMAGE_SHA256]
    if sum(not pa.types.is_null(kind) for kind in kinds) != texts[words.IMAGE_SHA256] or len(kinds) > 1:
        raise UserError(
            f"input={uri!r}: its column {words.IMAGE_SHA256!r} must be text, and one; it has {here}"
        )


def _is_text(kind: pa.DataType) -> bool:
    """Whether values are texts, in any storage type."""
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def read_texts(uri: str, columns: Sequence[str]) -> pa.Table:
    """Return columns of a file, texts in the plain type, and a uid in the form that ``parse_uid`` accepts."""
    table = read_columns(uri, columns)
    for place, field in enumerate(table.schema):
        if field.name in (words.UID, words.CAPTION, words.IMAGE_SHA256):
            table = table.set_column(place, field.name, table[field.name].cast(pa.string()))
    if words.UID not in table.column_names or not _is_utf8(table[words.UID]):
        return table
    uids = pa.array([parse_uid(uid) or uid for uid in table[words.UID].to_pylist()], pa.string())
    return table.set_column(table.column_names.index(words.UID), words.UID, uids)


def load_captions(source: CaptionFile, block_rows: int) -> Iterator[pa.Table]:
    """Yield the rows of one file in blocks, each with the other captions of its image."""
    wanted = (
        words.UID,
        words.CAPTION,
        words.IMAGE_SHA256,
        words.SHARD,
        words.STATUS,
        *([words.IMAGE_EMBEDDING] if source.with_images else []),
    )
    here = read_schema(source.uri).names
    table, statuses = part_encodings(read_texts(source.uri, [name for name in wanted if name in here]))
    others, images = _find_others(table, source), _list_images(table)
    names = [image or uid or "" for image, uid in zip(images, table[words.UID].to_pylist(), strict=True)]
    folds = pa.array([zlib.crc32(name.encode()) % NUM_FOLDS for name in names], pa.int32())
    if source.kept is not None:
        kept = read_matching(source.kept, [words.UID], words.SHARD, table[words.SHARD][0].as_py())[words.UID]
        # A bad row or a duplicate may share the uid of a kept row.
        stays = pc.and_(pc.is_in(table[words.UID], kept.combine_chunks()), _is_aligned(table))
        if pc.sum(stays).as_py() != len(kept):
            raise UserError(
                f"{source.uri}: has {pc.sum(stays)} of the {len(kept):,} captions that the run kept"
            )
        table, others = table.filter(stays), others.filter(stays)
        statuses, folds = statuses.filter(stays), folds.filter(stays)
    rows = pa.table(
        {
            words.SHARD_ORDINAL: pa.array([source.ordinal] * len(table), pa.int32()),
            words.POSITION: pa.array(range(len(table)), pa.int32()),
            words.UID: table[words.UID].cast(pa.string()),
            words.CAPTION: table[words.CAPTION].cast(pa.string()),
            OTHERS: others,
            words.STATUS: statuses,
            FOLD: folds,
            **({words.IMAGE_EMBEDDING: table[words.IMAGE_EMBEDDING]} if source.with_images else {}),
        }
    )
    if source.rows is not None:
        rows = rows.filter(read_columns(source.rows, [words.STATUS])[words.STATUS].is_null())
    for start in range(0, len(rows), block_rows):
        yield rows.slice(start, block_rows)


def _list_images(table: pa.Table) -> list[str | None]:
    """Return the hash of each row's image; None where it has none."""
    return (
        table[words.IMAGE_SHA256].to_pylist()
        if words.IMAGE_SHA256 in table.column_names
        else [None] * len(table)
    )


def draw_uid(uid: str, salt: str) -> float:
    """Return a number in [0, 1) that depends only on a uid, of any form, and ``salt``."""
    return int.from_bytes(blake2b(f"{salt}\0{uid}".encode(), digest_size=6).digest(), "big") / 2**48


def part_encodings(table: pa.Table) -> tuple[pa.Table, pa.Array]:
    """Return the table with null for captions that are not UTF-8; status bad_encoding for these, else null.

    Raises UserError if a uid or an image's hash is not UTF-8.
    """
    statuses: list[str | None] = [None] * len(table)
    for name in (words.UID, words.CAPTION, words.IMAGE_SHA256):
        if name not in table.column_names or _is_utf8(table[name]):
            continue
        if name != words.CAPTION:
            raise UserError(f"input: a value of the column {name!r} is not UTF-8")
        texts = [decode_text(data) for data in table[name].cast(pa.large_binary()).to_pylist()]
        statuses = [
            words.BAD_ENCODING if text is None and is_there else None
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
    table = read_columns(uri, [*columns, words.STATUS])
    return table.filter(_is_aligned(table)).select(list(columns))


def _is_aligned(table: pa.Table) -> pa.ChunkedArray:
    return pc.is_in(table[words.STATUS], pa.array(words.ALIGNED_STATUSES))


def count_captions(source: CaptionFile) -> int | None:
    """Return the number of rows that ``load_captions`` yields; None if uids are missing or repeated."""
    if source.kept is None:
        _check_columns(source.uri)
        uids = read_texts(source.uri, [words.UID])[words.UID]
        return None if uids.null_count or len(uids.unique()) < len(uids) else len(uids)
    shard = read_columns(source.uri, [words.SHARD])[words.SHARD][0].as_py()
    return len(read_matching(source.kept, [words.UID], words.SHARD, shard))


def count_statuses(source: CaptionFile) -> Counter[str]:
    """Return the captions of a plain file by status: ok, or the reason why none can be written."""
    table, statuses = part_encodings(read_texts(source.uri, [words.UID, words.CAPTION]))
    rows = zip(table[words.CAPTION].to_pylist(), statuses.to_pylist(), strict=True)
    return Counter(
        status
        or (words.NO_CAPTION if caption is None else words.OK if caption.strip() else words.EMPTY_CAPTION)
        for caption, status in rows
    )


def _find_others(table: pa.Table, source: CaptionFile) -> pa.Array:
    """Return for each row the other captions of its image, in this file and then in other files."""
    shared: dict[str, list[str]] = {}
    if source.others is not None:
        others = read_matching(source.others, [words.IMAGE_SHA256, OTHERS], "file", name_file(source.ordinal))
        shared = dict(zip(others[words.IMAGE_SHA256].to_pylist(), others[OTHERS].to_pylist(), strict=True))
    rows = list(zip(_list_images(table), table[words.CAPTION].to_pylist(), strict=True))
    by_image: dict[str, dict[str, None]] = defaultdict(dict)
    for image, caption in rows:
        if image is not None and caption:
            by_image[image].setdefault(caption)
    found = []
    for image, caption in rows:
        known = dict.fromkeys([*by_image.get(image or "", ()), *shared.get(image or "", ())])
        found.append([text for text in known if text != caption][:MOST_OTHERS])
    return pa.array(found, pa.list_(pa.string()))


_KEYS_AT_ONCE = 100_000_000
"""Images whose keys are compared at a time: 0.8 GB."""
MOST_SHARED = 5_000_000
"""Images whose captions in other files are known; of more, some are drawn by their keys."""


def share_captions(sources: list[CaptionFile], num_rows: int, work: Folder) -> list[CaptionFile]:
    """Return the files with the name of a table of captions that they share images with."""
    if len(sources) < 2:
        return sources
    parts = max(1, -(-num_rows // _KEYS_AT_ONCE))
    repeated = [np.zeros(0, np.uint64)]
    for part in range(parts):
        keys = map_files(_list_keys, sources, part, parts, label="find images")
        key_K, count_K = np.unique(np.concatenate([repeated[0], *keys]), return_counts=True)
        repeated.append(key_K[count_K > 1])
    repeated_K = np.sort(np.concatenate(repeated))[:MOST_SHARED]
    if not len(repeated_K):
        return sources
    uri = work.at("others.parquet")
    write_table(_gather(sources, repeated_K), uri, OTHERS_SCHEMA)
    return [replace(source, others=uri) for source in sources]


def _list_keys(source: CaptionFile, part: int, parts: int) -> np.ndarray:
    """Return the keys of a file's images, each once."""
    if words.IMAGE_SHA256 not in read_schema(source.uri).names:
        return np.zeros(0, np.uint64)
    table, _ = part_encodings(read_texts(source.uri, [words.IMAGE_SHA256]))
    images = table[words.IMAGE_SHA256].unique().drop_null()
    key_K = np.array([_to_key(image) for image in images.to_pylist()], np.uint64)
    return key_K[key_K % np.uint64(parts) == part]


def _to_key(image: str) -> int:
    return int.from_bytes(blake2b(image.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def _gather(sources: Sequence[CaptionFile], repeated_K: np.ndarray) -> pa.Table:
    """Return for each file and image the captions of the image in other files, in the order of these."""
    by_image: dict[str, list[tuple[int, list[str]]]] = defaultdict(list)
    gathered = map_files(_list_captions, sources, repeated_K, label="gather captions")
    for source, captions in zip(sources, gathered, strict=True):
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
    if words.IMAGE_SHA256 not in read_schema(source.uri).names:
        return {}
    table, _ = part_encodings(read_texts(source.uri, [words.IMAGE_SHA256, words.CAPTION]))
    found: dict[str, list[str]] = defaultdict(list)
    for image, caption in zip(
        table[words.IMAGE_SHA256].to_pylist(), table[words.CAPTION].to_pylist(), strict=True
    ):
        if image is None or not caption:
            continue
        key = np.uint64(_to_key(image))
        place = int(np.searchsorted(repeated_K, key))
        if place < len(repeated_K) and repeated_K[place] == key and len(found[image]) < MOST_OTHERS:
            found[image].append(caption)
    return {image: texts for image, texts in found.items() if texts}
