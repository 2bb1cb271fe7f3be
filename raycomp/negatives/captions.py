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
from raycomp.data import parquet
from raycomp.data.files import KEPT_FILE, Folder, join_uri
from raycomp.data.inputs import expand_input
from raycomp.data.runs import check_results, check_shards_of_runs, find_curation, list_scores
from raycomp.data.samples import decode_text, parse_uid
from raycomp.models.architecture import fingerprint_scorer
from raycomp.run.local import cut
from raycomp.run.work import map_files

# A caption is compared with at most this many others of its image.
MOST_OTHERS = 16
OTHERS_SCHEMA = pa.schema(
    [("file", pa.string()), (words.IMAGE_SHA256, pa.string()), (parquet.OTHERS, pa.list_(pa.string()))]
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
    schema = parquet.read_schema(uri)
    texts = Counter(field.name for field in schema if _is_text(field.type))
    here = ", ".join(f"{field.name} ({field.type})" for field in schema)
    for name in (words.UID, words.CAPTION):
        if texts[name] != 1:
            raise UserError(f"input={uri!r}: must have one column {name!r} of text; it has {here}")
    # A column that holds only nulls has the null type.
    image = words.IMAGE_SHA256
    kinds = [field.type for field in schema if field.name == image]
    if sum(not pa.types.is_null(kind) for kind in kinds) != texts[image] or len(kinds) > 1:
        raise UserError(f"input={uri!r}: its column {image!r} must be text, and one; it has {here}")


def _is_text(kind: pa.DataType) -> bool:
    """Whether values are texts, in any storage type."""
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _read_texts(uri: str, columns: Sequence[str]) -> tuple[pa.Table, pa.Array]:
    """Return columns of a file, texts in the plain type, and the rows' statuses.

    A uid has the form that ``parse_uid`` accepts. A caption that is not UTF-8 is null, its status
    bad_encoding; every other status is null. Raises UserError if a uid or an image's hash is not UTF-8.
    """
    table = parquet.read_columns(uri, columns)
    statuses: list[str | None] = [None] * len(table)
    for name in (words.UID, words.CAPTION, words.IMAGE_SHA256):
        if name not in table.column_names:
            continue
        column = table[name].cast(pa.string())
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            if name != words.CAPTION:
                raise UserError(f"input: a value of the column {name!r} is not UTF-8") from None
            texts = [decode_text(data) for data in column.cast(pa.large_binary()).to_pylist()]
            pairs = zip(texts, column.is_valid().to_pylist(), strict=True)
            statuses = [words.BAD_ENCODING if text is None and is_there else None for text, is_there in pairs]
            column = pa.array(texts, pa.string())
        if name == words.UID:
            column = pa.array([parse_uid(uid) or uid for uid in column.to_pylist()], pa.string())
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table, pa.array(statuses, pa.string())


def _list_images(table: pa.Table) -> list[str | None]:
    """Return the hash of each row's image; None where it has none."""
    has_images = words.IMAGE_SHA256 in table.column_names
    return table[words.IMAGE_SHA256].to_pylist() if has_images else [None] * len(table)


def load_captions(source: CaptionFile, block_rows: int) -> Iterator[pa.Table]:
    """Yield the rows of one file in blocks, each with the other captions of its image."""
    here, embeddings = parquet.read_schema(source.uri).names, [words.IMAGE_EMBEDDING] * source.with_images
    wanted = (words.UID, words.CAPTION, words.IMAGE_SHA256, words.SHARD, words.STATUS, *embeddings)
    table, statuses = _read_texts(source.uri, [name for name in wanted if name in here])
    pairs = zip(_list_images(table), table[words.UID].to_pylist(), strict=True)
    folds = [zlib.crc32((image or uid or "").encode()) % NUM_FOLDS for image, uid in pairs]
    rows = pa.table(
        {
            words.SHARD_ORDINAL: pa.array([source.ordinal] * len(table), pa.int32()),
            words.UID: table[words.UID],
            words.CAPTION: table[words.CAPTION],
            parquet.OTHERS: _find_others(table, source),
            words.STATUS: statuses,
            FOLD: pa.array(folds, pa.int32()),
            **{name: table[name] for name in embeddings},
        }
    )
    if source.kept is not None:
        kept = _read_kept(source, table[words.SHARD][0].as_py())
        # A bad row or a duplicate may share the uid of a kept row.
        rows = rows.filter(pc.and_(pc.is_in(table[words.UID], kept.combine_chunks()), _is_aligned(table)))
        if len(rows) != len(kept):
            said = f"{source.uri}: has {len(rows)} of the {len(kept):,} captions that the run kept"
            raise UserError(said)
    rows = rows.add_column(1, words.POSITION, pa.array(range(len(rows)), pa.int32()))
    if source.rows is not None:
        rows = rows.filter(parquet.read_columns(source.rows, [words.STATUS])[words.STATUS].is_null())
    yield from cut([rows], block_rows)


def _read_kept(source: CaptionFile, shard: str) -> pa.ChunkedArray:
    """Return the uids of a shard's rows in the subset."""
    assert source.kept is not None
    return parquet.read_matching(source.kept, [words.UID], words.SHARD, shard)[words.UID]


def _find_others(table: pa.Table, source: CaptionFile) -> pa.Array:
    """Return for each row the other captions of its image, in this file and then in other files."""
    shared: dict[str, list[str]] = {}
    if source.others is not None:
        columns = [words.IMAGE_SHA256, parquet.OTHERS]
        others = parquet.read_matching(source.others, columns, "file", f"{source.ordinal:09d}")
        shared = dict(zip(*(others[name].to_pylist() for name in columns), strict=True))
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


def draw_uid(uid: str, salt: str) -> float:
    """Return a number in [0, 1) that depends only on a uid, of any form, and ``salt``."""
    return int.from_bytes(blake2b(f"{salt}\0{uid}".encode(), digest_size=6).digest(), "big") / 2**48


def read_aligned(uri: str, columns: Sequence[str]) -> pa.Table:
    """Return columns of a scores file's corpus rows: there every uid is unique."""
    table = parquet.read_columns(uri, [*columns, words.STATUS])
    return table.filter(_is_aligned(table)).select(list(columns))


def _is_aligned(table: pa.Table) -> pa.ChunkedArray:
    return pc.is_in(table[words.STATUS], pa.array(words.ALIGNED_STATUSES))


def count_captions(source: CaptionFile) -> int | None:
    """Return the number of rows that ``load_captions`` yields; None if uids are missing or repeated."""
    if source.kept is not None:
        shard = parquet.read_columns(source.uri, [words.SHARD])[words.SHARD][0].as_py()
        return len(_read_kept(source, shard))
    _check_columns(source.uri)
    uids = _read_texts(source.uri, [words.UID])[0][words.UID]
    return None if uids.null_count or len(uids.unique()) < len(uids) else len(uids)


def count_statuses(source: CaptionFile) -> Counter[str]:
    """Return the captions of a plain file by status: ok, or the reason why none can be written."""
    table, statuses = _read_texts(source.uri, [words.UID, words.CAPTION])
    counts: Counter[str] = Counter()
    for caption, status in zip(table[words.CAPTION].to_pylist(), statuses.to_pylist(), strict=True):
        found = words.NO_CAPTION if caption is None else words.OK if caption.strip() else words.EMPTY_CAPTION
        counts[status or found] += 1
    return counts


_KEYS_AT_ONCE = 100_000_000
"""Images whose keys are compared at a time: 0.8 GB."""
MOST_SHARED = 5_000_000
"""Images whose captions in other files are known; of more, some are drawn by their keys."""


def share_captions(sources: list[CaptionFile], num_rows: int, work: Folder) -> list[CaptionFile]:
    """Return the files with the name of a table of captions that they share images with."""
    if len(sources) < 2:
        return sources
    parts = max(1, -(-num_rows // _KEYS_AT_ONCE))
    repeated = []
    for part in range(parts):
        keys = map_files(_list_keys, sources, part, parts, label="find images")
        key_K, count_K = np.unique(np.concatenate(list(keys)), return_counts=True)
        repeated.append(key_K[count_K > 1])
    repeated_K = np.sort(np.concatenate(repeated))[:MOST_SHARED]
    if not len(repeated_K):
        return sources
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
                rows.append((f"{ordinal:09d}", image, list(dict.fromkeys(others))[:MOST_OTHERS]))
    uri = work.at("others.parquet")
    parquet.write_table(parquet.from_rows(sorted(rows), OTHERS_SCHEMA), uri, OTHERS_SCHEMA)
    return [replace(source, others=uri) for source in sources]


def _list_keys(source: CaptionFile, part: int, parts: int) -> np.ndarray:
    """Return the keys of a file's images, each once."""
    if words.IMAGE_SHA256 not in parquet.read_schema(source.uri).names:
        return np.zeros(0, np.uint64)
    images = _read_texts(source.uri, [words.IMAGE_SHA256])[0][words.IMAGE_SHA256].unique().drop_null()
    key_K = np.array([_to_key(image) for image in images.to_pylist()], np.uint64)
    return key_K[key_K % np.uint64(parts) == part]


def _to_key(image: str) -> int:
    return int.from_bytes(blake2b(image.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def _list_captions(source: CaptionFile, repeated_K: np.ndarray) -> dict[str, list[str]]:
    """Return the captions of a file by image, of images whose keys are in ``repeated_K``, sorted."""
    found: dict[str, list[str]] = defaultdict(list)
    if words.IMAGE_SHA256 not in parquet.read_schema(source.uri).names:
        return found
    columns = [words.IMAGE_SHA256, words.CAPTION]
    table, _ = _read_texts(source.uri, columns)
    for image, caption in zip(*(table[name].to_pylist() for name in columns), strict=True):
        if image is None or not caption:
            continue
        key = np.uint64(_to_key(image))
        place = int(np.searchsorted(repeated_K, key))
        if place < len(repeated_K) and repeated_K[place] == key and len(found[image]) < MOST_OTHERS:
            found[image].append(caption)
    return found
