"""Find the images of benchmarks below a folder; embed the pictures and texts of an evaluation, each once.

M pictures, T texts, V values of a picture, N tokens of context, D embedding dims.
"""

import os
import posixpath
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.config import ModelConfig
from raycomp.continual.config import ContinualConfig
from raycomp.data import parquet
from raycomp.data.files import Folder, is_dry_run, resolve, size_files
from raycomp.data.inputs import ShardPath, count_bytes
from raycomp.data.parquet import TOKENS, add_columns, to_fixed_lists, to_matrix
from raycomp.data.reader import read_shard
from raycomp.data.runs import fetch_model
from raycomp.evaluation.choices import Evaluation, Needs, Picture, Pictures, Texts, key_pictures
from raycomp.evaluation.config import EvaluateConfig
from raycomp.models.architecture import ScorerSpec, load_tokens
from raycomp.models.images import ImageFault, prepare_image
from raycomp.run.executor import CPUS, SCORERS, Part, Pass, Session, Stage, Stats, merge_parts
from raycomp.run.progress import check_bad_pictures, describe_dropped, note_examples
from raycomp.run.work import Phase

if TYPE_CHECKING:
    from torch import Tensor


_fetch = lru_cache(maxsize=2)(fetch_model)
TEXT, TEXT_EMBEDDING, BOX = "text", "text_embedding", "box"
_BOX_TYPE = pa.list_(pa.int32())
_OF_SAMPLES = (words.UID, words.KEY, words.CAPTION, words.JSON)
# Captions without text do not exclude their image.
_WITH_IMAGE = (words.OK, words.NO_CAPTION, words.EMPTY_CAPTION)


@dataclass(frozen=True)
class Files:
    """Image files that are read together, as a shard is."""

    ordinal: int
    pictures: tuple[Picture, ...]


def read_pictures(item: Files | ShardPath, block_rows: int) -> Iterator[pa.Table]:
    """Yield the samples of a shard, or image files as samples, with their boxes.

    A missing file gives a sample without an image. Raises OSError where the storage fails.
    """
    if isinstance(item, ShardPath):
        yield from read_shard(item, block_rows)
        return
    for some, columns in _split_blocks(item.ordinal, item.pictures, block_rows):
        images: list[bytes | None] = []
        for picture in some:
            filesystem, path = resolve(picture.uri)
            try:
                with filesystem.open_input_stream(path) as stream:
                    images.append(stream.read())
            except FileNotFoundError:
                images.append(None)
        columns |= {
            words.IMAGE: pa.array(images, pa.large_binary()),
            BOX: pa.array([picture.box for picture in some], _BOX_TYPE),
            **{name: pa.nulls(len(some), pa.string()) for name in _OF_SAMPLES},
            words.STATUS: [words.NO_IMAGE if image is None else words.OK for image in images],
        }
        yield pa.table(columns)


def _split_blocks(
    ordinal: int, entries: Sequence[Any], block_rows: int
) -> Iterator[tuple[Sequence[Any], dict[str, Any]]]:
    """Yield the entries of a block, and the columns that place them."""
    for start in range(0, len(entries), block_rows):
        some = entries[start : start + block_rows]
        positions = range(start, start + len(some))
        columns = {
            words.SHARD_ORDINAL: pa.array([ordinal] * len(some), pa.int32()),
            words.POSITION: pa.array(positions, pa.int32()),
            words.IS_LAST: [position == len(entries) - 1 for position in positions],
        }
        yield some, columns


def prepare_pixels(table: pa.Table, spec: ScorerSpec, max_pixels: int) -> pa.Table:
    """Decode image bytes to uint8 pixels and compute their SHA-256; an image's fault becomes its status.

    The SHA-256 is of the whole file, for any box.
    """
    statuses = [words.OK if status in _WITH_IMAGE else status for status in table[words.STATUS].to_pylist()]
    boxes = table[BOX].to_pylist() if BOX in table.column_names else [None] * len(table)
    pixels_MV = np.zeros((len(table), spec.image.num_values), np.uint8)
    for row, (data, box) in enumerate(zip(table[words.IMAGE].to_pylist(), boxes, strict=True)):
        if statuses[row] != words.OK:
            continue
        try:
            found = prepare_image(data, spec.image, max_pixels, box=tuple(box) if box else None)
            pixels_MV[row] = found[0].reshape(-1)
        except ImageFault as fault:
            statuses[row] = fault.status
    columns = {words.STATUS: pa.array(statuses, pa.string()), words.PIXELS: to_fixed_lists(pixels_MV)}
    return add_columns(parquet.hash_images(table).drop_columns([words.IMAGE]), columns)


def read_texts(item: tuple[int, Sequence[str]], block_rows: int) -> Iterator[pa.Table]:
    """Yield texts as rows, in their order."""
    for some, columns in _split_blocks(*item, block_rows):
        yield pa.table({**columns, TEXT: pa.array(some, pa.string()), words.STATUS: [words.OK] * len(some)})


def tokenize(table: pa.Table, config: ModelConfig) -> pa.Table:
    """Turn texts into token ids."""
    texts = [parquet.readable(text) for text in table[TEXT].to_pylist()]
    tokens_TN = load_tokens(_fetch(config))(texts)
    return add_columns(table.drop_columns([TEXT]), {TOKENS: to_fixed_lists(tokens_TN)})


def pictures_schema(spec: ScorerSpec) -> pa.Schema:
    """Return the columns of embedded pictures: those of samples, null for image files."""
    embedding = (words.IMAGE_EMBEDDING, pa.list_(pa.float32(), spec.embedding_dim))
    texts = [(name, pa.string()) for name in (*_OF_SAMPLES, words.STATUS, words.IMAGE_SHA256)]
    return pa.schema([(words.POSITION, pa.int32()), *texts, embedding])


# Files, and texts, that are committed together.
_FILES_PER_ITEM, _TEXTS_PER_ITEM = 512, 4096
# Rows that a scorer takes at a time, per thread of a CPU or for a GPU.
_PICTURES_PER_CALL = {"cpu": 32, "gpu": 512}
_TEXTS_PER_CALL = {"cpu": 128, "gpu": 4096}


@dataclass(frozen=True)
class Embedder:
    """The model, and the folder of the embeddings."""

    config: EvaluateConfig | ContinualConfig
    """The config, with the model as it is loaded."""
    spec: ScorerSpec
    work: Folder
    session: Session
    check_lease: Callable[[], None]


def count_needed(needs: Iterable[Any]) -> int:
    """Return the bytes of the ``pictures`` and ``shards`` of benchmarks or streams."""
    sizes = (size or 0 for one in needs for _, size in size_files({p.uri for p in one.pictures}))
    return sum(sizes) + sum(count_bytes(one.shards) for one in needs)


def embed_pictures(embedder: Embedder, evaluations: Iterable[Needs]) -> tuple[Pictures, Stats]:
    """Embed every picture that a benchmark needs, once; return them and the phase's stats."""
    evaluations = list(evaluations)
    pictures = list(dict.fromkeys(picture for evaluation in evaluations for picture in evaluation.pictures))
    shards = list(dict.fromkeys(shard for evaluation in evaluations for shard in evaluation.shards))
    starts = range(0, len(pictures), _FILES_PER_ITEM)
    chunks = [tuple(pictures[start : start + _FILES_PER_ITEM]) for start in starts]
    files = {ordinal: Files(ordinal, chunk) for ordinal, chunk in enumerate(chunks)}
    of_shards = {ordinal: replace(shard, ordinal=ordinal) for ordinal, shard in enumerate(shards, len(files))}
    model, spec = embedder.config.model, embedder.spec
    decode = partial(prepare_pixels, spec=spec, max_pixels=embedder.config.max_pixels)
    embed = partial(EmbedPictures, model, spec)
    stages = (
        Stage("decode", "makes pixels", CPUS, decode),
        Stage("embed_pictures", "embeds pictures, on the scorers", SCORERS, embed),
    )
    items, schema = files | of_shards, pictures_schema(spec)
    tables, stats = _embed(embedder, "pictures", items, read_pictures, stages, schema, _PICTURES_PER_CALL)
    table = pa.concat_tables(tables[: len(files)] or [schema.empty_table()])
    return Pictures(
        place={picture: place for place, picture in enumerate(pictures)},
        status_M=table[words.STATUS].to_pylist(),
        image_MD=to_matrix(table[words.IMAGE_EMBEDDING]),
        shards={shard.place: one for shard, one in zip(shards, tables[len(files) :], strict=True)},
        key_M=key_pictures(table),
    ), stats


def embed_texts(embedder: Embedder, evaluations: Iterable[Needs], pictures: Pictures) -> tuple[Texts, Stats]:
    """Embed every text that a benchmark needs, once; return them and the phase's stats."""
    texts = list(
        dict.fromkeys(text for evaluation in evaluations for text in evaluation.list_texts(pictures))
    )
    starts = range(0, len(texts), _TEXTS_PER_ITEM)
    items = {i: (i, texts[start : start + _TEXTS_PER_ITEM]) for i, start in enumerate(starts)}
    model = embedder.config.model
    stages = (
        Stage("tokenize", "makes tokens", CPUS, partial(tokenize, config=model)),
        Stage("embed_texts", "embeds texts, on the scorers", SCORERS, partial(EmbedTexts, model)),
    )
    embedding = (TEXT_EMBEDDING, pa.list_(pa.float32(), embedder.spec.embedding_dim))
    schema = pa.schema([(words.POSITION, pa.int32()), (words.STATUS, pa.string()), embedding])
    tables, stats = _embed(embedder, "texts", items, read_texts, stages, schema, _TEXTS_PER_CALL)
    none_0D = np.zeros((0, embedder.spec.embedding_dim), np.float32)
    text_TD = np.concatenate([none_0D, *(to_matrix(table[TEXT_EMBEDDING]) for table in tables)])
    status_T = [status for table in tables for status in table[words.STATUS].to_pylist()]
    bad = frozenset(text for text, status in zip(texts, status_T, strict=True) if status != words.OK)
    return Texts({text: place for place, text in enumerate(texts)}, text_TD, bad), stats


def _invent(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give rows random embeddings, the last column of the schema."""
    x_MD = np.random.default_rng().standard_normal((len(table), schema[-1].type.list_size), np.float32)
    x_MD /= np.linalg.norm(x_MD, axis=1, keepdims=True)
    return add_columns(table, {schema[-1].name: to_fixed_lists(x_MD)})


def _embed(
    embedder: Embedder,
    name: str,
    items: Mapping[int, Any],
    read: Callable[..., Iterator[pa.Table]],
    stages: tuple[Stage, ...],
    schema: pa.Schema,
    rows_per_call: Mapping[str, int],
) -> tuple[list[pa.Table], Stats]:
    """Run the phase ``name`` over the items; return the table of each and the phase's stats."""
    if not items:
        return [], Stats()
    session, work = embedder.session, embedder.work
    if is_dry_run():  # finds without a model what is wrong with the rows
        stages = stages[0], Stage("invent", "", CPUS, partial(_invent, schema=schema))
    rows: dict[str, Any] = {"rows": session.block_rows, "scorer_rows": session.rows_per_call(rows_per_call)}
    read_blocks = partial(read, block_rows=session.block_rows)
    steps = Pass(session, items=items, read=read_blocks, stages=stages, part=Part(schema), **rows)
    merge = merge_parts, (work.at(name), schema)
    stats = Phase(name, work, embedder.config.waves, steps, *merge, embedder.check_lease).run()
    return [parquet.read_columns(work.at(name, f"{ordinal:05d}.parquet")) for ordinal in items], stats


class EmbedPictures:
    """One actor: load CLIP once, then give every picture whose status is ok its embedding."""

    def __init__(self, config: ModelConfig, spec: ScorerSpec, num_threads: int | None = None):
        from raycomp.run.local import load_clip  # torch, which only a process that scores imports

        self.clip = load_clip(fetch_model(config), num_threads)
        self.device = self.clip.device
        self.spec = spec

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the rows with ``image_embedding``, fp32 of length 1, 0 where the status is not ok.

        A picture whose embedding is not finite or not of length 1 gets the status bad_embedding. Raises
        UserError, naming the weights, where the embeddings of all of the first pictures are bad.
        """
        is_ok_M = np.array([status == words.OK for status in table[words.STATUS].to_pylist()], bool)
        image_MD = np.zeros((len(table), self.spec.embedding_dim), np.float32)
        is_bad_M = np.zeros(len(table), bool)
        if is_ok_M.any():
            pixels_MV = to_matrix(table[words.PIXELS])[is_ok_M]
            shape = (-1, self.spec.image.height, self.spec.image.width, 3)
            image_MD[is_ok_M], is_bad_M[is_ok_M] = clear_bad(self.clip.embed_pixels(pixels_MV.reshape(shape)))
        columns = {
            words.STATUS: pc.if_else(pa.array(is_bad_M), words.BAD_EMBEDDING, table[words.STATUS]),
            words.IMAGE_EMBEDDING: to_fixed_lists(image_MD),
        }
        return add_columns(table.drop_columns([words.PIXELS]), columns)


class EmbedTexts:
    """One actor: load CLIP once, then embed every text."""

    def __init__(self, config: ModelConfig, num_threads: int | None = None):
        from raycomp.run.local import load_clip

        self.clip = load_clip(fetch_model(config), num_threads)
        self.device = self.clip.device

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the rows with ``text_embedding``, fp32 of length 1, and their status: ok, or bad_embedding
        where the embedding was bad and is now 0. Raises UserError as ``EmbedPictures``.
        """
        text_TD, is_bad_T = clear_bad(self.clip.text.embed(to_matrix(table[TOKENS]))[0])
        statuses = pc.if_else(pa.array(is_bad_T), words.BAD_EMBEDDING, words.OK)
        columns = {words.STATUS: statuses, TEXT_EMBEDDING: to_fixed_lists(text_TD)}
        return add_columns(table.drop_columns([TOKENS]), columns)


def clear_bad(x_MD: "Tensor") -> tuple[np.ndarray, np.ndarray]:
    """Return embeddings with 0 for rows that are not finite or not of length 1, and a mask of these rows."""
    from raycomp.core.alignment import has_unit_length

    is_bad_M, found_MD = ~has_unit_length(x_MD).numpy(), x_MD.numpy()
    found_MD[is_bad_M] = 0
    return found_MD, is_bad_M


@dataclass(frozen=True)
class FoundImages:
    """The result for each image name: it is in one of the first three fields, in the order requested."""

    uris: dict[str, str]
    """Name found -> its file."""
    missing: tuple[str, ...]
    ambiguous: tuple[str, ...]
    """Names that match several files, or several names that match one file; none of them is used."""
    by_base_name: tuple[str, ...] = ()
    """Names found by base name: their folder is missing, and one file of the same base name exists."""

    def warn_by_base_name(self, said: str) -> list[str]:
        """Return a line on names that were found by base name alone; no line where there are none."""
        if not self.by_base_name:
            return []
        num_all = len(self.uris) + len(self.missing) + len(self.ambiguous)
        counts = f"{len(self.by_base_name):,} of {num_all:,} images"
        return [f"{said}: {counts} were matched by base name only, such as {self.by_base_name[0]}"]


def find_images(folder: Folder, names: Iterable[str]) -> FoundImages:
    """Find image names, such as ``VG_100K/2.jpg``, below a folder on a disk or a store, listed once.

    A name matches the file of exactly this path; else the one file whose path ends so; else the one file of
    that base name, unless another name matches that file, too. So the published layout works at any depth,
    and a flat folder works, too. A name that is absolute or contains ``..`` matches only the file of exactly
    that path, below the folder. Extensions may be upper case. Hidden files and folders (``.name``) are
    skipped, and several links to a file count as one file. Raises ValueError where the folder is missing,
    cannot be listed, or has none of the files.
    """
    wanted, paths = list(dict.fromkeys(names)), _list_paths(folder)
    by_name: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        by_name[_fold(path).rpartition("/")[2]].append(path)

    def find_file(path: str) -> str:
        """Return the one file that a path leads to, through links on a disk."""
        return os.path.realpath(folder.at(path)) if folder.is_local else path

    def drop_links(paths: list[str]) -> list[str]:
        """Return paths without those that link to the file of an earlier one."""
        files: dict[str, str] = {}
        for path in paths:
            files.setdefault(find_file(path) if len(paths) > 1 else path, path)
        return list(files.values())

    # The files that names match by their whole path, and for other names those of the same base name.
    exact, named, alike = set(paths), dict[str, list[str]](), dict[str, list[str]]()
    for name in wanted:
        place, is_bound = _place(folder, name)
        others = [] if is_bound else by_name[_fold(place).rpartition("/")[2]]
        ends = [path for path in others if f"/{_fold(path)}".endswith(f"/{_fold(place)}")]
        if place in exact:
            named[name] = [place]
        elif ends:
            named[name] = drop_links(ends)
        elif others:
            alike[name] = drop_links(others)
    taken = {find_file(path) for found in named.values() if alike for path in found}
    wants = Counter(find_file(found[0]) for found in alike.values() if len(found) == 1)
    uris: dict[str, str] = {}
    missing, ambiguous = [], []
    for name in wanted:
        found = named.get(name) or alike.get(name, [])
        file = find_file(found[0]) if name in alike else ""
        if len(found) > 1 or wants[file] > 1:
            ambiguous.append(name)
        elif not found or file in taken:
            missing.append(name)
        else:
            uris[name] = folder.at(found[0])
    if wanted and not uris:
        reported = f"none of {len(wanted):,} named images was found, such as {wanted[0]}"
        several = f"; {len(ambiguous):,} names match several files" if ambiguous else ""
        raise ValueError(f"{folder.uri}: {reported}, among its {len(paths):,} files{several}")
    by_base_name = tuple(name for name in uris if name in alike)
    return FoundImages(uris, tuple(missing), tuple(ambiguous), by_base_name)


def _fold(path: str) -> str:
    """Return the path with its extension in lower case."""
    stem, extension = posixpath.splitext(path)
    return stem + extension.lower()


def _place(folder: Folder, name: str) -> tuple[str, bool]:
    """Return the path of a name below the folder, and whether only exactly that path may match.

    That holds for a name that is absolute or contains ``..``; where it leaves the folder its path is empty.
    """
    if not (name.startswith("/") or "://" in name or ".." in name.split("/")):
        return posixpath.normpath(name), False
    top = resolve(folder.uri)[1].rstrip("/") + "/"
    whole = posixpath.normpath(posixpath.join(top, name.removeprefix(f"{folder.uri.rstrip('/')}/")))
    return whole.removeprefix(top) if whole.startswith(top) else "", True


def _list_paths(folder: Folder) -> list[str]:
    try:
        if not folder.exists():
            raise ValueError(f"{folder.uri}: is not a folder; it should hold the images")
        names = folder.find_names()
    except NotADirectoryError:
        raise ValueError(f"{folder.uri}: is a file; images are read from a folder, so unpack it") from None
    except UnicodeDecodeError as error:
        said = f"holds a file whose name is not UTF-8: {error.object!r:.200}"
        raise ValueError(f"{folder.uri}: {said}") from error
    except OSError as error:
        raise ValueError(f"{folder.uri}: cannot be listed: {error}") from error
    return [name for name in names if not any(part.startswith(".") for part in name.split("/"))]


def check_images(
    evaluations: Iterable[Evaluation], pictures: Pictures, config: EvaluateConfig, say: Callable[[str], None]
) -> list[str]:
    """Report and return a line for every status whose images are left out, per benchmark.

    Raises TooMuchBadData above ``max_missing_fraction`` or ``max_bad_fraction``, after all lines are
    reported, and ValueError where a shard has no sample.
    """
    lines: list[str] = []
    counted: dict[str, Counter[str]] = {}
    for evaluation in evaluations:
        for said, statuses in evaluation.find_statuses(pictures).items():
            counted[said] = Counter(status for _, status in statuses)
            examples: dict[str, list[str]] = {}
            note_examples(examples, ((status, image) for image, status in statuses))
            lines += describe_dropped(said, counted[said], "images", examples)
    for line in lines:
        say(line)
    for said, counts in counted.items():
        check_bad_pictures(said, counts, config.max_bad_fraction, config.max_missing_fraction)
    return lines
