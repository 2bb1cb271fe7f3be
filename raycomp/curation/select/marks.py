"""Marks: the reasons to drop a row that are not the rule's own gates; samples that are in a test set.

An image is in a test set if its bytes are, if its url or key has the id of a test image in COCO, Flickr or
Visual Genome, or if it looks like a view of a test image: the perceptual hashes differ in a few bits and the
thumbnails agree. For the thumbnail the image is read again; where the input is gone, hashes alone count. A
caption is in a test set if it is one of its texts, or shares a run of eight words with one.

``marks/`` has a file for every scores file, with a row for every row of it. ``mark`` is the reason of a drop
before the shares are counted: the row is not in the corpus. ``mark_after`` is the reason of a drop after the
rule's gates. Both are null for other rows. Further columns are the evidence.
"""

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.config import UserError
from raycomp.core.near import LEAST_LIKENESS, HashIndex, measure_likeness
from raycomp.core.selection import find_keys
from raycomp.curation.config import CurateConfig, DecontaminateConfig
from raycomp.curation.score.columns import METADATA, list_own_columns, name_types
from raycomp.curation.select import filters
from raycomp.curation.select.filters import (
    EXCLUDE,
    JOIN,
    Condition,
    check_types,
    hash_keys,
    hash_uri,
    load_condition,
    load_exclusion,
)
from raycomp.curation.select.measures import MARKS, Found, Marker, ScoresFile, pair_marks
from raycomp.curation.select.near import cap_clusters, find_groups
from raycomp.data.files import Folder, join_uri
from raycomp.data.inputs import ShardPath
from raycomp.data.parquet import aligned_schema, read_columns, read_schema, scores_schema, write_table
from raycomp.data.reader import extract, read_shard
from raycomp.data.runs import check_results, list_scores, list_tables, read_finished
from raycomp.data.samples import find_image
from raycomp.language.overlap import GRAM_WORDS, find_source_ids, list_grams, normalise_caption
from raycomp.models.images import ImageFault, decode_image, make_thumbnail
from raycomp.run.work import map_files

OPTION = "decontaminate.index"
EVIDENCE_TYPE = pa.list_(
    pa.struct([("benchmark", pa.string()), ("row", pa.string()), ("evidence", pa.string())])
)
_MOST_PER_ROW = 8
_MAX_PIXELS = 178_956_970


class Hit(NamedTuple):
    """Why a row is in a test set."""

    benchmark: str
    row: str
    evidence: str


@dataclass(frozen=True)
class Contamination:
    """Finds the rows of a file that are in a test set of the index."""

    images: pa.Table
    """Views: benchmark, image, sha256, ids, view, hash, thumbnail."""
    hashes: HashIndex
    """Of the views."""
    texts: "TestTexts"
    config: DecontaminateConfig
    shards: Mapping[str, ShardPath]
    """The input's shards by the name of their scores file; empty where the input is gone."""

    def __call__(self, file: ScoresFile) -> Found:
        """Return the reason of rows in a test set, and the column ``contaminated_by``."""
        names = [words.URL, words.KEY, words.IMAGE_SHA256, words.CAPTION, words.PERCEPTUAL_HASH]
        table = read_columns(file.uri, [*names, words.ALIGNMENT])
        hits: list[list[Hit]] = [[] for _ in range(len(table))]
        columns = (table[name].to_pylist() for name in (words.IMAGE_SHA256, words.URL, words.KEY))
        for row, (sha256, url, key) in enumerate(zip(*columns, strict=True)):
            names = [sha256, *find_source_ids(url), *find_source_ids(key and f"{key}.jpg")]
            hits[row] += [self._by_name[name] for name in names if name in self._by_name]
        self._find_views(table, file, hits)
        for row, hit in self.texts.find(table[words.CAPTION].to_pylist()):
            hits[row].append(hit)
        kept = [list(dict.fromkeys(found))[:_MOST_PER_ROW] for found in hits]
        column = pa.array([[hit._asdict() for hit in found] or None for found in kept], EVIDENCE_TYPE)
        drops = self.config.action == "drop"
        reasons = [words.CONTAMINATED if found and drops else None for found in kept]
        return Found(np.array(reasons, object), evidence={words.CONTAMINATED_BY: column})

    @cached_property
    def _by_name(self) -> dict[str, Hit]:
        """SHA-256 and ids of the images, each with the hit that it gives."""
        found: dict[str, Hit] = {}
        for row in self.images.filter(pc.equal(self.images["view"], "whole")).to_pylist():
            found.setdefault(row["sha256"], Hit(row["benchmark"], row["image"], "same bytes"))
            for one in row["ids"]:
                found.setdefault(one, Hit(row["benchmark"], row["image"], f"same id, {one}"))
        return found

    def _find_views(self, table: pa.Table, file: ScoresFile, hits: list[list[Hit]]) -> None:
        row_M = np.flatnonzero(table[words.PERCEPTUAL_HASH].is_valid().to_numpy())
        hash_M = table[words.PERCEPTUAL_HASH].take(pa.array(row_M)).to_numpy()
        match_E2 = self.hashes.find(hash_M, self.config.bits)
        match_E2[:, 0] = row_M[match_E2[:, 0]]
        shard = self.shards.get(posixpath.basename(file.uri))
        thumbs = {} if shard is None else _read_thumbnails(shard, np.unique(match_E2[:, 0]).tolist())
        seen = [(row, view) for row, view in match_E2.tolist() if shard is None or row in thumbs]
        likeness_E = np.ones(len(seen))
        if thumbs:
            views = [np.frombuffer(self.images["thumbnail"][view].as_py(), np.uint8) for _, view in seen]
            likeness_E = measure_likeness(np.stack([thumbs[row] for row, _ in seen]), np.stack(views))
        for (row, view), likeness in zip(seen, likeness_E, strict=True):
            if likeness < LEAST_LIKENESS:
                continue
            one = self.images.slice(view, 1).select(["benchmark", "image", "view"]).to_pylist()[0]
            how = f"looks like it, {one['view']}" if shard else f"same hash, {one['view']}, not confirmed"
            hits[row].append(Hit(one["benchmark"], one["image"], how))


@dataclass(frozen=True)
class TestTexts:
    """The texts of an index, and their runs of words, by sorted keys."""

    key_M: np.ndarray
    text_M: np.ndarray
    """The number of each key's text in the table."""
    is_gram_M: np.ndarray
    table: pa.Table

    @classmethod
    def of(cls, table: pa.Table) -> "TestTexts":
        """Sort the keys of a table with the columns benchmark, row, text."""
        names, texts, grams = [], [], []
        for number, text in enumerate(table["text"].to_pylist()):
            runs = [one for one in list_grams(text) if one != text]
            names += [text, *runs]
            texts += [number] * (1 + len(runs))
            grams += [False] + [True] * len(runs)
        key_M = hash_keys("text", names)
        is_gram_M = np.array(grams, bool)
        order_M = np.lexsort((np.arange(len(key_M)), is_gram_M, key_M))  # of equal keys, whole texts first
        return cls(key_M[order_M], np.array(texts, int)[order_M], is_gram_M[order_M], table)

    def find(self, captions: Sequence[str | None]) -> Iterator[tuple[int, Hit]]:
        """Yield the row of each caption that is one of the texts or shares a run of words, with its hit."""
        names, owners = [], []
        for row, caption in enumerate(captions):
            text = normalise_caption(caption or "")
            found = [text, *list_grams(text)] if text else []
            names += found
            owners += [row] * len(found)
        place_K = find_keys(self.key_M, hash_keys("text", names))
        for k in np.flatnonzero(place_K >= 0):
            row = self.table.slice(int(self.text_M[place_K[k]]), 1).to_pylist()[0]
            evidence = f"{GRAM_WORDS} words in a row" if self.is_gram_M[place_K[k]] else "same text"
            yield owners[k], Hit(row["benchmark"], row["row"], evidence)


def _read_thumbnails(shard: ShardPath, positions: Sequence[int]) -> dict[int, np.ndarray]:
    """Return the thumbnails of the images at some positions, as far as they decode."""
    found = {}
    for position, members in extract(shard, positions) if positions else ():
        name = find_image(members)
        try:
            if name is not None:
                found[position] = make_thumbnail(decode_image(members[name], _MAX_PIXELS))
        except ImageFault:
            continue
    return found


def read_index(folder: str) -> tuple[pa.Table, pa.Table, tuple[str, ...]]:
    """Return images, texts and benchmarks of the index in a folder. Raises ValueError where it holds none.

    The images have a row for each view: benchmark, image, sha256, ids, view, hash, thumbnail; the texts one
    for each text of an example: benchmark, row, text (normalised), is_negative.
    """
    benchmarks = tuple(_read_run(folder)["fingerprint"])
    try:
        images, texts = (read_columns(join_uri(folder, f"{name}.parquet")) for name in ("images", "texts"))
    except FileNotFoundError as error:
        raise UserError(f"{OPTION}={folder!r}: its files are missing; index again") from error
    return images, texts, benchmarks


def load_contamination(config: DecontaminateConfig, shards: Sequence[ShardPath]) -> Contamination:
    """Return the marker of an index. Raises ValueError where the folder holds none."""
    assert config.index is not None
    images, texts, _ = read_index(config.index)
    by_name = {f"{shard.ordinal:05d}.parquet": shard for shard in shards}
    return Contamination(images, HashIndex(images["hash"].to_numpy()), TestTexts.of(texts), config, by_name)


def _read_run(index: str) -> dict[str, Any]:
    """Return the record of an index. Raises ValueError where the folder holds none."""
    try:
        run = read_finished(index)
    except ValueError as error:
        raise ValueError(f"{OPTION}={index!r}: {error}; write it by raycomp index-eval") from error
    if run["kind"] != "index-eval":
        said = f"holds {run['kind']}, must be an index that raycomp index-eval wrote"
        raise ValueError(f"{OPTION}={index!r}: {said}")
    return run


def fingerprint_index(config: DecontaminateConfig) -> dict[str, Any]:
    """Return what identifies the index, empty without one."""
    if config.index is None:
        return {}
    run = _read_run(config.index)
    return {OPTION: run.get("manifest", {}).get("sha256", run["id"])}


def fingerprint_markers(config: CurateConfig) -> dict[str, Any]:
    """Return the SHA-256 of the files that marks depend on. Raises ValueError where one is missing."""
    files = {JOIN: config.filter.join, EXCLUDE: config.filter.exclude}
    found = {option: hash_uri(option, uri) for option, uri in files.items() if uri is not None}
    return found | fingerprint_index(config.decontaminate)


# Rows of the first shard whose json shows the fields of the metadata.
_ROWS = 256


def list_markers(
    config: CurateConfig, scores: pa.Schema, metadata: Iterable[str], shards: Sequence[ShardPath]
) -> list[Marker]:
    """Return the markers of a config, in their order: the first reason of a row counts.

    ``scores``: the columns of scores files; ``metadata``: those of metadata files; ``shards``: the input's,
    empty where it is gone. Raises ValueError or UserError where a marker does not fit them.
    """
    markers: list[Marker] = []
    chosen = config.filter
    if chosen.where is not None or chosen.join is not None:
        markers.append(load_condition(chosen, scores, metadata))
    if chosen.exclude is not None:
        markers.append(load_exclusion(chosen.exclude, chosen.is_after))
    if config.decontaminate.index is not None:
        markers.append(load_contamination(config.decontaminate, shards))
    return markers


def check_markers(config: CurateConfig, shards: Sequence[ShardPath]) -> None:
    """Raise ValueError or UserError where a marker cannot be right, before anything is scored.

    The fields of the metadata, and their types, are those of the first rows of the first shard.
    """
    own, kinds = list_own_columns(config.scorers), dict[str, pa.DataType]()
    scores = scores_schema(aligned_schema(1, "float32", config.extra_columns, own))
    if config.filter.where is not None or config.filter.join is not None:
        first = pa.concat_tables(islice(read_shard(shards[0], _ROWS), 1))
        kinds = name_types(json.loads(text) for text in first[words.JSON].to_pylist() if text)
    for marker in list_markers(config, scores, kinds, shards):
        if isinstance(marker, Condition):
            check_types(marker, scores, kinds)


def mark_rows(
    scores: Sequence[str],
    config: CurateConfig,
    out: Folder,
    origin: Folder,
    work: Folder,
    shards: Sequence[ShardPath] = (),
) -> dict[str, Any]:
    """Write ``marks/`` of the files to ``out``, with the config's markers; return facts for run.json.

    ``origin``: the folder with their metadata; ``work``: for parts; ``shards``: the input's. Safe to repeat:
    equal files and options give equal bytes.
    """
    files = pair_marks(scores, config, out)
    jobs = add_metadata_files(files, origin)
    metadata = jobs[0].metadata
    fields = [] if metadata is None else read_schema(metadata).names
    markers = list_markers(config, read_schema(jobs[0].uri), fields, shards)
    matched = filters.merge_lists(map_files(_mark_file, jobs, markers, label="mark"))
    facts: dict[str, Any] = {}
    if config.filter.exclude is not None:
        facts["unmatched"] = filters.list_unmatched(EXCLUDE, config.filter.exclude, matched)
    if config.near.rules:
        facts["near_duplicates"] = find_groups(files, config.near, work)
    if config.near.clusters is not None:
        facts["clusters"] = cap_clusters(files, config.near)
    return facts


def add_metadata_files(files: Sequence[ScoresFile], curation: Folder) -> list[ScoresFile]:
    """Return the files with the metadata of the curation that scored, where it has any."""
    names = {*curation.list_names(METADATA)}
    named = [(file, posixpath.basename(file.uri)) for file in files]
    return [
        file._replace(metadata=curation.at(METADATA, name) if name in names else None) for file, name in named
    ]


def list_marked(run: dict[str, Any], source: str) -> list[ScoresFile]:
    """Return the scores files behind the finished run in ``source``, with the run's own marks.

    Raises as ``list_scores``, and where a marks file is missing or was changed.
    """
    scores = list_scores(run, source)
    marks = list_tables(check_results(Folder(source), run, MARKS))
    if marks and sorted(marks) != list(range(len(scores))):
        raise ValueError(f"{source}: holds {len(marks)} marks files, the run wrote {len(scores)}")
    return [ScoresFile(uri, marks.get(ordinal)) for ordinal, uri in enumerate(scores)]


def _mark_file(file: ScoresFile, markers: Sequence[Marker]) -> Mapping[str, np.ndarray]:
    """Write the marks of one file; return the keys of the exclusion list that its rows have, by kind."""
    uid, evidence = read_columns(file.uri, [words.UID])[words.UID], dict[str, pa.Array]()
    matched = dict[str, np.ndarray]()
    reasons = {name: np.full(len(uid), None, object) for name in (words.MARK, words.MARK_AFTER)}
    for marker in markers:
        found = marker(file)
        reason_N = reasons[words.MARK_AFTER if found.is_after else words.MARK]
        is_free_N = np.array([reason is None for reason in reason_N], bool)
        reason_N[is_free_N] = found.reason_N[is_free_N]
        evidence |= found.evidence
        matched |= found.matched
    columns = {name: pa.array(reason_N, pa.string()) for name, reason_N in reasons.items()}
    table = pa.table({words.UID: uid, **columns, **evidence})
    assert file.marks is not None
    write_table(table, file.marks, table.schema)
    return matched
