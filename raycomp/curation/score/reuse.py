"""Take rows of an earlier curation over, so that only what changed is scored; score pairs in memory.

A score is a pure function of a sample, a model and options. So a shard that is still the same keeps its
scores file, and the file itself where no row of it changes. ``state/`` holds what that needs: the json of the
samples, and the alignment and embedding of rows that lost them because an earlier row has their uid; nothing
of removed rows. What depends on the whole corpus is computed anew: duplicates of uids, marks, gates, the
subset. For the same reason the scores of ``raycomp.score`` equal those that ``raycomp curate`` writes for the
same pairs.
"""

import os
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from raycomp import words
from raycomp.config.options import check
from raycomp.core.batches import ahead
from raycomp.curation.config import PAS, CurateConfig, get_rule, make_selection
from raycomp.curation.score.stages import Align, Attribute, parse, prepare
from raycomp.curation.select.filters import MATCHED, blank_rows, load_removed
from raycomp.curation.select.measures import corpus_columns, read_corpus
from raycomp.data.files import Folder, Written, link_file, resolve
from raycomp.data.inputs import ShardPath, describe_shards
from raycomp.data.parquet import (
    add_columns,
    attributed_schema,
    hash_images,
    read_columns,
    read_schema,
    write_table,
)
from raycomp.data.reader import read_shard
from raycomp.data.runs import STATE, read_finished, read_manifest
from raycomp.data.samples import MAX_MEMBER_BYTES, check_sample, decode_text
from raycomp.models.architecture import describe_scorer
from raycomp.models.images import ImageFault, encode_picture, is_picture
from raycomp.run.local import Name, find_scorer, keep_model
from raycomp.run.progress import Progress
from raycomp.run.work import map_files, map_tasks
from raycomp.schema import PHRASE_TYPE, SAMPLE_SCHEMA

SHARDS, OUTPUTS = "shards.json", "outputs.json"
"""The input's shards, and the keys of the written ones."""

ALIGNED = "aligned"
REUSED = "reused"
"""Folder below ``work``: the facts of the scores files that are taken over whole."""
LATER = (words.DUPLICATE_UID, words.UID_CONFLICT)
ATTRIBUTED = (words.MEAN_PAS, words.PHRASES, words.CONTENT_WORDS)
_KEPT = (words.UID, words.SHARD, words.POSITION, words.OFFSET, words.STATUS)
"""Columns that a removed row keeps."""
# What a score depends on besides the options and the sample, as in the fingerprint of a curation.
_SCORING = ("scorer", "scorers", "parser", "lexicon", "nonces")
# Columns by which a shard whose files were touched is recognised.
COMPARED = (words.UID, words.KEY, words.OFFSET, words.URL, words.IMAGE_SHA256, words.CAPTION)
_BLOCK_ROWS = 256


@dataclass(frozen=True)
class Reuse:
    """Files of an earlier curation, by shard numbers of the present one; empty = all is scored."""

    scores: Mapping[int, Written] = field(default_factory=dict)
    states: Mapping[int, Written] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    """Names of shards that hold other samples than when the earlier run scored them."""
    shards: Mapping[str, Written] = field(default_factory=dict)
    """The earlier run's own shards, and their statistics, by name."""
    outputs: Written | None = None
    """The earlier file of keys of these shards."""
    touched: frozenset[int] = frozenset()
    """Shards whose files were written again with the same samples; other members may differ."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """The earlier run's record."""

    def describe(self, statuses: Mapping[str, int]) -> dict[str, Any]:
        """Return the section of run.json on what was taken over; ``statuses``: of the rows, as read."""
        num = sum(statuses.values())
        rows = {"rows": num, "present": num - statuses.get(words.REMOVED, 0)}
        return {"shards": len(self.scores), **rows, "changed": list(self.changed)}

    def has_output(self, shards: Iterable[int]) -> bool:
        """Whether a shard that was made of these input shards can be the earlier run's."""
        return all(shard in self.scores and shard not in self.touched for shard in shards)

    def find_output(self, number: int) -> tuple[Written, Written]:
        """Return a shard of the earlier run, and its statistics."""
        return self.shards[f"{number:08d}.tar"], self.shards[f"{number:08d}_stats.json"]

    def check(self, record: Mapping[str, Any], source: str) -> list[str]:
        """Raise ValueError where the run in ``record`` scores by something else; return warnings.

        Models and the user's scorers must be the same, and so must the device.
        """
        for name in ("device", "gpu"):
            if name in self.run and record.get(name) != self.run[name]:
                raise ValueError(
                    f"{source}: was scored on {self.run[name]}, this session has {record.get(name)}, whose "
                    f"scores differ in the last bits; update it there, or curate into a new folder"
                )
        then, now = self.run.get("fingerprint", {}), record["fingerprint"]
        others = ", ".join(name for name in _SCORING if then.get(name) != now.get(name))
        if others:
            raise ValueError(f"{others}: changed since {source} was scored; curate into a new folder")
        then, now = self.run.get("versions", {}), record["versions"]
        others = ", ".join(f"{name} {then[name]}" for name in then if now.get(name) != then[name])
        said = f"{source}: rows that are taken over were scored with {others}"
        return [f"{said}; scores of this version may differ in the last bits"] if others else []


def find_reuse(source: str, shards: Sequence[ShardPath]) -> Reuse:
    """Return what a curation of ``shards`` can take over from the finished one in ``source``."""
    run, files = read_finished(source), read_manifest(Folder(source))
    listed = Folder(files[f"{STATE}/{SHARDS}"].uri).read_json()
    earlier = {one["name"]: (number, one) for number, one in enumerate(listed)}
    known = [shard for shard in shards if shard.name in earlier]
    scores, states, changed, touched = dict[int, Written](), dict[int, Written](), [], []
    for shard, now in zip(known, describe_shards(known), strict=True):
        number, was = earlier[shard.name]
        if {**was, "times": None} != {**now, "times": None}:
            changed.append(shard)
            continue
        scores[shard.ordinal] = files[f"scores/{number:05d}.parquet"]
        states[shard.ordinal] = files[f"{STATE}/{number:05d}.parquet"]
        if was != now:
            touched.append(shard)
    items = [(shard, scores[shard.ordinal].uri, states[shard.ordinal].uri) for shard in touched]
    same = list(map_tasks(_compare_shard, items, label="compare input"))
    for shard in (shard for shard, is_same in zip(touched, same, strict=True) if not is_same):
        changed.append(shard)
        del scores[shard.ordinal], states[shard.ordinal]
    return Reuse(
        scores,
        states,
        tuple(sorted(shard.name for shard in changed)),
        {posixpath.basename(name): file for name, file in files.items() if name.startswith("shards/")},
        files.get(f"{STATE}/{OUTPUTS}"),
        frozenset(shard.ordinal for shard in touched),
        run,
    )


def _compare_shard(item: tuple[ShardPath, str, str]) -> bool:
    """Return whether a shard still holds the samples of its scores; stored embeddings count as changed."""
    shard, scores, state = item
    was = read_columns(scores, [*COMPARED, words.STATUS])
    was = was.append_column(words.JSON, read_columns(state, [words.JSON])[words.JSON])
    return shard.embeddings is None and is_same_shard(shard, was)


def is_same_shard(shard: ShardPath, was: pa.Table) -> bool:
    """Return whether a shard still holds the samples of a table, by COMPARED, and by json if that has it.

    Removed rows have nothing to compare; their number counts.
    """
    names, start = [name for name in was.column_names if name != words.STATUS], 0
    for table in read_shard(shard, _BLOCK_ROWS):
        then, now = was.slice(start, len(table)), hash_images(table)
        start += len(table)
        if len(then) < len(table):
            return False
        is_there = pc.not_equal(then[words.STATUS], words.REMOVED)
        then, now = then.filter(is_there), now.filter(is_there)
        if not all(now[name].equals(then[name]) for name in names):
            return False
    return start == len(was)


def place_reused(reuse: Reuse, config: CurateConfig, work: Folder) -> Counter[str]:
    """Write the aligned rows of the shards that are taken over to ``work``; return their statuses as read.

    Files of an earlier attempt stay: duplicates may be marked in them.
    """
    there = {*work.list_names(ALIGNED)}
    names = {f"{ordinal:05d}.parquet": ordinal for ordinal in reuse.scores}
    left = ((name, ordinal) for name, ordinal in names.items() if name not in there)
    jobs = [(name, reuse.scores[ordinal], reuse.states[ordinal].uri) for name, ordinal in left]
    list(map_tasks(_place, jobs, config, reuse.run["config"], work, label="take over"))
    uris = [work.at(ALIGNED, name) for name in names]
    return sum(map_files(_count_statuses, uris, label="take over"), Counter())


def has_attribution(uri: str, then: Mapping[str, Any], config: CurateConfig) -> bool:
    """Whether the attributed rows of a scores file have what ``config`` asks for; ``then``: their config."""
    has_nonces, wanted = then["attribute"]["nonces"] == config.attribute.nonces, config.attribute.targets
    return has_nonces and (words.CONTENT_WORDS in read_schema(uri).names or wanted != words.CONTENT)


def _place(
    job: tuple[str, Written, str], config: CurateConfig, then: Mapping[str, Any], work: Folder
) -> None:
    """Link a scores file whose rows may all stay as they are, else write it without what must change.

    ``then``: the config of the earlier run.
    """
    name, file, state = job
    removal, names = load_removed(config.removed), read_schema(file.uri).names
    rows = read_columns(file.uri, MATCHED)
    statuses = np.array(rows[words.STATUS].to_pylist(), object)
    is_removed_N = (statuses != words.REMOVED) & (removal.find_rows(rows)[0] if removal else False)
    is_later_N = np.isin(statuses, LATER)
    is_attributed = has_attribution(file.uri, then, config)
    has_more = words.CONTENT_WORDS in names and config.attribute.targets != words.CONTENT
    if is_attributed and not has_more and not is_removed_N.any() and not is_later_N.any():
        link_file(file, work.at(ALIGNED, name))
        work.write_json(list(file), REUSED, f"{name}.json")
        return
    lost = read_columns(state, [words.ALIGNMENT, words.IMAGE_EMBEDDING])
    table = restore(read_columns(file.uri), lost, is_later_N, is_removed_N)
    if not is_attributed:  # as before any was attributed
        is_aligned = pc.is_in(table[words.STATUS], pa.array(words.ALIGNED_STATUSES))
        statuses = pc.if_else(is_aligned, words.OK, table[words.STATUS])
        table = add_columns(table, {words.STATUS: statuses})
        table = table.drop_columns([name for name in ATTRIBUTED if name in names])
    elif has_more:
        table = table.drop_columns([words.CONTENT_WORDS])
    write_table(table, work.at(ALIGNED, name), table.schema.remove_metadata())


def restore(table: pa.Table, lost: pa.Table, is_later_N: np.ndarray, is_removed_N: np.ndarray) -> pa.Table:
    """Return rows of a scores file as they were before duplicates were marked.

    Removed rows lose their content. ``lost``: alignment and embedding of the later rows, which lost them.
    """
    columns: dict[str, Any] = {words.STATUS: pc.if_else(pa.array(is_later_N), words.OK, table[words.STATUS])}
    row_N = np.arange(len(table)) + len(table) * is_later_N
    for name in lost.column_names:
        both = pa.chunked_array([*table[name].chunks, *lost[name].cast(table[name].type).chunks])
        columns[name] = both.combine_chunks().take(pa.array(row_N))
    content = [name for name in table.column_names if name not in _KEPT]
    return blank_rows(add_columns(table, columns), is_removed_N, content)


def _count_statuses(uri: str) -> Counter[str]:
    """Return the statuses with which the rows of a file were read."""
    statuses = read_columns(uri, [words.STATUS])[words.STATUS].to_pylist()
    sound = {*words.ALIGNED_STATUSES, *LATER}
    return Counter(words.OK if status in sound else status for status in statuses)


# Blocks of images that are decoded while the model computes.
_AHEAD = 2
# Pairs of a block, per thread of a CPU.
_ROWS = 32


def score_pairs(
    images: Sequence[Any],
    captions: Sequence[Any],
    model: Name | None = None,
    weights: Name | None = None,
    config: CurateConfig | None = None,
) -> pa.Table:
    """Return a row per pair; ``raycomp.score`` describes arguments, columns and errors."""
    config = config or CurateConfig()
    _check_pairs(images, captions)
    stored, key = config.prepare.stored_embeddings, config.nonce.key
    check(stored is None, "prepare.stored_embeddings", stored, "none, as images are given")
    check(key == "target", "nonce.key", key, "target, as pairs have no uid")
    config = replace(config, scorer=find_scorer(config.scorer, model, weights))
    spec = describe_scorer(config.scorer)
    with keep_model(config.scorer, config.cluster) as num_threads:
        align, attribute = Align(config.scorer, spec, num_threads), Attribute(config.scorer, num_threads)
        rows = config.scorer.batch_size or _ROWS * num_threads
        blocks = (
            prepare(block, config.scorer, spec, config.prepare.max_pixels, (), config.prepare.fast_decode)
            for block in _read_pairs(images, captions, rows, config.prepare.max_pixels)
        )
        tables = []
        with Progress("score", len(images), unit="pair") as progress:
            for block in ahead(blocks, _AHEAD):
                tables.append(_score_block(block, config, align, attribute))
                progress.reach(sum(map(len, tables)), 1)
    return pa.concat_tables([_find_schema(config).empty_table(), *tables]).combine_chunks()


def _check_pairs(images: Sequence[Any], captions: Sequence[Any]) -> None:
    for name, values in (("images", images), ("captions", captions)):
        if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
            raise ValueError(f"{name}: must be a list, is {type(values).__name__}; put one value in brackets")
    if len(images) != len(captions):
        lengths = f"{len(images):,} and {len(captions):,}"
        raise ValueError(f"images and captions: must have equal lengths, have {lengths}")
    for i, (image, caption) in enumerate(zip(images, captions, strict=True)):
        if not (caption is None or isinstance(caption, str)):
            raise ValueError(f"captions[{i}]: must be a str or None, is {type(caption).__name__}")
        if not (image is None or isinstance(image, str | os.PathLike | bytes) or is_picture(image)):
            wanted = "a path, a Pillow image, a uint8 array, the bytes of a file or None"
            raise ValueError(f"images[{i}]: must be {wanted}, is {type(image).__name__}")


def _read_pairs(
    images: Sequence[Any], captions: Sequence[Any], rows: int, max_pixels: int
) -> Iterator[pa.Table]:
    """Yield the pairs in blocks of SAMPLE_SCHEMA; each image is read when its block is needed."""
    for start in range(0, len(images), rows):
        block = range(start, min(start + rows, len(images)))
        read = [_read_image(i, images[i], max_pixels) for i in block]
        texts = [decode_text(captions[i]) for i in block]
        statuses = [
            fault or check_sample(data is not None, captions[i] is not None, text, bad_json=False)
            for i, (data, fault), text in zip(block, read, texts, strict=True)
        ]
        columns = {
            words.SHARD_ORDINAL: [0] * len(block),
            words.POSITION: list(block),
            words.UID: [f"{i:032x}" for i in block],
            words.KEY: [str(i) for i in block],
            words.SHARD: [""] * len(block),
            words.CAPTION: texts,
            words.IMAGE: [data for data, _ in read],
            words.STATUS: statuses,
            words.IS_LAST: [False] * len(block),
        }
        none = [None] * len(block)
        yield pa.table({name: columns.get(name, none) for name in SAMPLE_SCHEMA.names}, SAMPLE_SCHEMA)


def _read_image(i: int, image: Any, max_pixels: int) -> tuple[bytes | None, str | None]:
    """Return the bytes of an image's file, or the status that gives the reason why there are none.

    Raises ValueError, naming the image, for an array that is not an image; OSError if the storage fails.
    """
    if image is None or isinstance(image, bytes):
        return image, None
    if isinstance(image, str | os.PathLike):
        filesystem, path = resolve(os.fspath(image))
        if filesystem.get_file_info(path).type != fs.FileType.File:
            return None, words.NO_IMAGE
        with filesystem.open_input_file(path) as file:
            fits = file.size() <= MAX_MEMBER_BYTES
            return (file.read(), None) if fits else (None, words.IMAGE_TOO_LARGE)
    try:
        return encode_picture(image, max_pixels), None
    except ImageFault as fault:
        return None, fault.status
    except ValueError as error:
        raise ValueError(f"images[{i}]: {error}") from error


def _score_block(block: pa.Table, config: CurateConfig, align: "Align", attribute: "Attribute") -> pa.Table:
    """Return the rows of a block that ``prepare`` made, with their scores.

    ``pas`` is what the attribute gate of cpi ranks by, float32, null where there is none.
    """
    aligned, schema = align(block), _find_schema(config)
    usable = aligned.filter(aligned[words.ALIGNMENT].is_valid())
    found = attributed_schema(words.CONTENT_WORDS in schema.names).empty_table()
    if len(usable):
        found = attribute(parse(usable, config.parser, config.nonce, config.attribute, config.scorer))
    row_N = np.full(len(aligned), -1)
    row_N[pc.index_in(found[words.POSITION], aligned[words.POSITION]).to_numpy()] = np.arange(len(found))
    names = [name for name in (words.STATUS, *ATTRIBUTED) if name in schema.names]
    added = found.select(names).take(pa.array(row_N, mask=row_N < 0))
    columns = {name: added[name] for name in names}
    columns[words.STATUS] = pc.coalesce(added[words.STATUS], aligned[words.STATUS])
    scored = add_columns(aligned, columns)
    rule = replace(make_selection(config), rule=get_rule("cpi"))
    corpus = read_corpus(scored.select(corpus_columns(rule, with_attribute=True)), rule)
    pas_N = np.full(len(scored), np.nan, np.float32)
    pas_N[corpus.row_M] = corpus.measures[PAS]
    scored = add_columns(scored, {PAS: pa.array(pas_N, mask=np.isnan(pas_N))})
    return scored.select(schema.names).cast(schema)


def _find_schema(config: CurateConfig) -> pa.Schema:
    has_content = config.attribute.targets == words.CONTENT
    content = [(words.CONTENT_WORDS, pa.list_(PHRASE_TYPE))] if has_content else []
    values = [(name, pa.float32()) for name in (words.ALIGNMENT, PAS, words.MEAN_PAS)]
    texts = [(name, pa.string()) for name in (words.CAPTION, words.STATUS)]
    return pa.schema([*texts, *values, (words.PHRASES, pa.list_(PHRASE_TYPE)), *content])
