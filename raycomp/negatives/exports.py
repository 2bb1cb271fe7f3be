"""Export negatives in other layouts: enriched shards, NegCLIP's TSV, TripletCLIP's shards."""

import re
import shlex
import tarfile
import uuid
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from posixpath import dirname
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.config import UserError
from raycomp.core.selection import parse_uids
from raycomp.curation import outputs
from raycomp.curation.write import changed_error, hash_image, read_caption
from raycomp.data import parquet
from raycomp.data.files import Folder, join_uri, new_file, resolve
from raycomp.data.inputs import IMAGE_EXTENSIONS, ShardPath
from raycomp.data.reader import extract
from raycomp.data.samples import find_image, parse_object, write_tar
from raycomp.negatives.captions import CaptionFile, read_aligned
from raycomp.run.work import map_files, map_tasks
from raycomp.table import FORMULA_STARTS, write_csv
from raycomp.training import hard
from raycomp.words import CAPTION, IMAGE_EMBEDDING, IMAGE_SHA256, NEGATIVES, NEIGHBOURS, UID

NUM_NEIGHBOURS = 3
_NEIGHBOURS = pa.schema([(UID, pa.string()), (NEIGHBOURS, pa.list_(pa.string()))])
_SHARD = re.compile(r"\d{8}\.tar")
_TSV = ("", "title", "filepath", "neg_caption", "neg_image")
# Characters that end a line or a field for some reader, or cannot be read.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NO_BREAK = "\u00a0"
_MOST_PIXELS = 100_000_000
# "#N/A N/A" is a missing value.
_NO_TITLE = (*FORMULA_STARTS, "#")


def write_shards(
    shards: Sequence[ShardPath], negatives: Sequence[str], kept: str | None, out: Folder, work: Folder
) -> None:
    """Rewrite a curation's shards, each sample's json with its negatives.

    The samples of a curation's shards have the order of its scores and of its subset, ``kept``, and so do
    negatives. Raises UserError, and leaves no ``shards/``, if a sample is not the one that its negatives were
    written for, or its image is not the one that the curation wrote.
    """
    sizes, reads = _split(shards, negatives)
    folder = outputs.OutputFolder(
        out, work, [outputs.Output(number, sizes[number], own) for number, own in enumerate(reads)]
    )
    firsts = [0, *accumulate(sizes)]
    jobs = [
        (shards[number], [(negatives[file], start, end) for file, start, end in own], firsts[number])
        for number, _, own in folder.left
    ]
    folder.write(_write_shard, jobs, map_files(_read_uids, negatives, label="count"), kept)


def _split(
    shards: Sequence[ShardPath], negatives: Sequence[str]
) -> tuple[list[int], list[list[outputs.Range]]]:
    """Return the samples of a curation's shards, and the rows of negatives that belong to each."""
    counts = list(map_files(parquet.count_rows, negatives, label="count"))
    sizes = _find_sizes(dirname(shards[0].uri), len(shards), sum(counts)) if shards else []
    if sum(sizes) != sum(counts):
        raise UserError(f"{len(shards)} shards cannot hold {sum(counts)} samples in the layout of curate")
    return sizes, outputs.split_rows(counts, sizes)


def _find_sizes(folder: str, num_shards: int, num_samples: int) -> list[int]:
    """Return the samples of each of a curation's shards, of ``num_samples`` in all."""
    there = Folder(folder).exists(outputs.SIZES)
    sizes = outputs.read_sizes(join_uri(folder, outputs.SIZES) if there else None, num_shards)
    before = accumulate([0, *sizes])
    return [max(0, min(size, num_samples - start)) for size, start in zip(sizes, before, strict=False)]


def _read_uids(uri: str) -> np.ndarray:
    return parse_uids(parquet.read_columns(uri, [UID])[UID])


def _write_shard(
    job: tuple[ShardPath, list[tuple[str, int, int]], int], out: Folder, work: Folder, kept: str | None
) -> tuple[int, int]:
    """Return the number of samples written; images stay unchanged."""
    shard, parts, first = job
    rows = []
    for uri, start, end in parts:
        rows += parquet.read_columns(uri, [UID, CAPTION, NEGATIVES]).slice(start, end - start).to_pylist()
    images = None  # a curation need not store the SHA-256 of the images that it wrote
    if kept is not None and IMAGE_SHA256 in parquet.read_schema(kept).names:
        tables = parquet.read_rows(kept, [IMAGE_SHA256], first + np.arange(len(rows)))
        images = [image for table in tables for image in table[IMAGE_SHA256].to_pylist()]

    samples = (
        (row[UID], outputs.enrich(members, row[UID], row[CAPTION], {NEGATIVES: row[NEGATIVES]}))
        for row, members in _read_samples(shard, rows, range(len(rows)), images)
    )
    return outputs.commit_output(out, work, shard.ordinal, samples, {}), 0


def _read_samples(
    shard: ShardPath,
    rows: Sequence[dict[str, Any]],
    wanted: Collection[int],
    images: Sequence[str] | None = None,
) -> Iterator[tuple[dict[str, Any], dict[str, bytes]]]:
    """Yield the row and the members of the ``wanted`` samples of a shard; UserError where one is another."""
    left = set(wanted)
    for position, members in extract(shard, set(left)):
        row, (_, own) = rows[position], parse_object(members.get("json"))
        is_same = ((own or {}).get(UID), read_caption(members)) == (row[UID], row[CAPTION])
        if not is_same or (images is not None and hash_image(members) != images[position]):
            raise changed_error(shard, position)
        left.remove(position)
        yield row, members
    if left:
        raise changed_error(shard, min(left))


def write_triplets(
    shards: Sequence[ShardPath], negatives: Sequence[str], images: str, out: Folder
) -> list[str]:
    """Write ``exports/triplet/shard-N.tar`` as TripletCLIP's trainer reads it (Patel et al. 2024); report it.

    A sample has image, caption, neg_image and neg_caption: the first of its negatives that has an image.
    """
    jobs = list(zip(shards, _split(shards, negatives)[1], strict=True))
    pictures = hard.HardImages(hard.find_images("negatives.images", images), uuid.uuid4().hex)
    to = out.at("exports", "triplet")
    num = sum(map_tasks(_write_triplets, jobs, negatives, pictures, to, label="export"))
    if not num:
        raise UserError(f"negatives.images={images!r}: no negative has a readable image there")
    return [f"exports/triplet/shard-{{0..{len(jobs) - 1}}}.tar: {num:,} pairs with a negative of both"]


def _write_triplets(
    job: tuple[ShardPath, list[outputs.Range]], negatives: Sequence[str], pictures: hard.HardImages, to: str
) -> int:
    shard, parts = job
    columns = [UID, CAPTION, NEGATIVES]
    table = pa.concat_tables(
        parquet.read_columns(negatives[i], columns).slice(start, end - start) for i, start, end in parts
    )
    marked = pictures.mark(table[UID], hard.to_hard(table)[0], _MOST_PIXELS)
    texts, images = marked.to_pylist(), pictures.load(table[UID], marked).to_pylist()
    shown = {}
    for place, (own, found) in enumerate(zip(texts, images, strict=True)):
        both = ((one["text"].encode(), image) for one, image in zip(own, found, strict=True) if image)
        if (first := next(both, None)) is not None:
            shown[table[UID][place].as_py()] = first
    rows = table.to_pylist()

    def list_samples() -> Iterator[tuple[str, dict[str, bytes]]]:
        for row, own in _read_samples(shard, rows, [i for i, row in enumerate(rows) if row[UID] in shown]):
            pair = {"image": own[find_image(own) or ""], "caption": row[CAPTION].encode()}
            text, image = shown[row[UID]]
            yield f"{row[UID]}-0", {**pair, "neg_image": image, "neg_caption": text}

    return write_tar(join_uri(to, f"shard-{shard.ordinal}.tar"), list_samples())


def write_negclip(
    sources: Sequence[CaptionFile], negatives: Sequence[str], shards_uri: str, out: Folder
) -> list[str]:
    """Write ``exports/negclip.tsv``, the captions that have a negative; report it.

    Columns as NegCLIP's trainer reads them (Yuksekgonul et al. 2023): row number, title, filepath,
    neg_caption (a Python list of texts), neg_image (a Python list of the numbers of the three rows whose
    images are nearest among those of the same file). ``title`` is the caption but for white space, see
    ``to_title``. ``filepath`` is the name of the sample's image in the curation's shards, which lie in the
    folder ``shards_uri``. Raises ValueError where they do not hold the images of all captions.
    """
    tars = [name for name in Folder(shards_uri).list_names() if _SHARD.fullmatch(name)]
    counts = list(map_files(parquet.count_rows, negatives, label="count"))
    # The samples of a curation's shards have the order of its scores, and so do negatives.
    sizes = _find_sizes(shards_uri, len(tars), sum(counts))
    jobs = [
        (source, uri, [join_uri(shards_uri, tars[tar]) for tar, _, _ in reads])
        for source, uri, reads in zip(sources, negatives, outputs.split_rows(sizes, counts), strict=True)
    ]
    first, changed = 0, []
    with new_file(out.at("exports", "negclip.tsv")) as file:
        file.write(write_csv([_TSV], "\t").encode())
        for rows in map_tasks(_read_negclip, jobs, label="export"):
            numbered = [
                (first + i, title, path, repr(texts), repr([first + n for n in near]))
                for i, (title, path, texts, near) in enumerate(rows)
            ]
            file.write(write_csv(numbered, "\t").encode())
            first += len(rows)
            changed += [title for title, *_ in rows if title.startswith(_NO_BREAK)]
    said = [f"exports/negclip.tsv: {first:,} rows; the images that it names are members of the shards"]
    to = out.at("exports", "images")
    if "://" not in shards_uri + to:
        place, packed = shlex.quote(to), f"{shlex.quote(shards_uri)}/*.tar"
        unpack = f"cat {packed} | tar -xi --exclude='*.txt' --exclude='*.json' -C {place}"
        said[0] += f"; to unpack them, and train in that folder: mkdir -p {place} && {unpack}"
    if changed:
        why = "start with a no-break space, as some readers would take them for formulas, numbers or none"
        said.append(f"exports/negclip.tsv: {len(changed):,} titles {why}, such as {changed[0][1:81]!r}")
    return said


def write_neighbours(sources: Sequence[CaptionFile], negatives: Sequence[str], out: Folder) -> None:
    """Write for each caption's pair the uids of the three whose images are nearest in the same file."""
    jobs = list(zip(sources, negatives, strict=True))
    list(map_tasks(_write_neighbours, jobs, out.at("exports", "neighbours"), label="export"))


def _write_neighbours(job: tuple[CaptionFile, str], folder: str) -> None:
    source, uri = job
    uids = parquet.read_columns(uri, [UID])[UID].to_pylist()
    near = find_nearest(_load_embeddings(source, uids), NUM_NEIGHBOURS)
    rows = [(uid, [uids[place] for place in places]) for uid, places in zip(uids, near, strict=True)]
    table, name = parquet.from_rows(rows, _NEIGHBOURS), uri.rpartition("/")[2]
    parquet.write_table(table, join_uri(folder, name), _NEIGHBOURS)


def _load_embeddings(source: CaptionFile, uids: Sequence[str]) -> np.ndarray:
    """Return the stored embeddings of pairs of a file."""
    table = read_aligned(source.uri, [UID, IMAGE_EMBEDDING])
    place = {uid: i for i, uid in enumerate(table[UID].to_pylist())}
    return parquet.to_matrix(table[IMAGE_EMBEDDING])[[place[uid] for uid in uids]].astype(np.float32)


def to_title(caption: str) -> str:
    """Return a caption as one field of a table that every reader reads as that text.

    Line breaks and all other control characters become spaces, runs of white space one. A no-break space,
    which tokenizers fold as they do others, comes before a caption that a spreadsheet would take for a
    formula, or a reader of tables for a number or a missing value ("NA", "2024").
    """
    title = " ".join(_CONTROL.sub(" ", caption).split())
    return _NO_BREAK + title if " " not in title or title.startswith(_NO_TITLE) else title


def _read_negclip(job: tuple[CaptionFile, str, list[str]]) -> list[tuple[str, str, list[str], list[int]]]:
    """Return title, path, texts and nearest rows of one file's captions that have negatives."""
    source, uri, shards = job
    rows = [row for row in parquet.read_columns(uri, [UID, CAPTION, NEGATIVES]).to_pylist() if row[NEGATIVES]]
    image_ND = _load_embeddings(source, [row[UID] for row in rows])
    names = {uid: name for shard in shards for uid, name in _read_image_names(shard)}
    found = []
    for row, near in zip(rows, find_nearest(image_ND, NUM_NEIGHBOURS), strict=True):
        if row[UID] not in names:
            lack = f"the curation's shards lack the image of {row[UID]}; they are incomplete or belong to "
            raise UserError(f"negatives.export=negclip: {lack}another run; curate or select again")
        texts = [negative["text"] for negative in row[NEGATIVES]]
        found.append((to_title(row[CAPTION]), names[row[UID]], texts, near))
    return found


def _read_image_names(uri: str) -> list[tuple[str, str]]:
    """Return uid and member name of the images in a tar of ``write_shard``; of several, the scored one."""
    filesystem, path = resolve(uri)
    found: dict[str, list[str]] = {}
    with filesystem.open_input_file(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            key, _, extension = member.name.partition(".")
            if extension in IMAGE_EXTENSIONS:
                found.setdefault(key.removesuffix("-0"), []).append(extension)
    return [
        (uid, f"{uid}-0.{min(extensions, key=IMAGE_EXTENSIONS.index)}") for uid, extensions in found.items()
    ]


def find_nearest(image_ND: np.ndarray, count: int) -> list[list[int]]:
    """Return the ``count`` nearest other rows of each row of unit embeddings [N, D], nearest first.

    With fewer others, all of them; ties by row number.
    """
    found = []
    for start in range(0, len(image_ND), 1024):
        cosine_MN = image_ND[start : start + 1024] @ image_ND.T
        rows_M = np.arange(len(cosine_MN))
        cosine_MN[rows_M, start + rows_M] = -np.inf
        order_MN = np.argsort(-cosine_MN, axis=1, kind="stable")[:, : min(count, len(image_ND) - 1)]
        found += order_MN.tolist()
    return found
