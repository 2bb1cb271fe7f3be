"""Score pairs in memory by the stages of a curation, in this process: ``raycomp.score``.

A score depends only on the pair, the model and the options, so these scores equal those that ``raycomp
curate`` writes for the same pairs.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from raycomp.config.options import check
from raycomp.core.ahead import ahead
from raycomp.curation.config import CurateConfig, make_selection
from raycomp.curation.score.prepare import parse, prepare
from raycomp.curation.select.measures import corpus_columns, read_corpus
from raycomp.curation.select.rules import PAS, get_rule
from raycomp.data.parquet import add_columns
from raycomp.data.paths import resolve
from raycomp.data.rows import check_sample, decode_text
from raycomp.data.tar import MAX_MEMBER_BYTES
from raycomp.models.describe import describe_scorer
from raycomp.models.images import ImageFault, encode_picture, is_picture
from raycomp.run.progress import Progress
from raycomp.run.scorer import Name, find_scorer, keep_model
from raycomp.schema import PHRASE_TYPE, SAMPLE_SCHEMA, attributed_schema
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    CONTENT,
    CONTENT_WORDS,
    IMAGE,
    IMAGE_TOO_LARGE,
    IS_LAST,
    KEY,
    MEAN_PAS,
    NO_IMAGE,
    PHRASES,
    POSITION,
    SHARD,
    SHARD_ORDINAL,
    STATUS,
    UID,
)

if TYPE_CHECKING:
    from raycomp.curation.score.scorers import Align, Attribute


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
    from raycomp.curation.score.scorers import Align, Attribute  # torch, after all checks

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
        raise ValueError(
            f"images and captions: must have equal lengths, have {len(images):,} and {len(captions):,}"
        )
    for i, caption in enumerate(captions):
        if not (caption is None or isinstance(caption, str)):
            raise ValueError(f"captions[{i}]: must be a str or None, is {type(caption).__name__}")
    for i, image in enumerate(images):
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
            SHARD_ORDINAL: [0] * len(block),
            POSITION: list(block),
            UID: [f"{i:032x}" for i in block],
            KEY: [str(i) for i in block],
            SHARD: [""] * len(block),
            CAPTION: texts,
            IMAGE: [data for data, _ in read],
            STATUS: statuses,
            IS_LAST: [False] * len(block),
        }
        none = [None] * len(block)
        arrays = [pa.array(columns.get(field.name, none), field.type) for field in SAMPLE_SCHEMA]
        yield pa.table(arrays, schema=SAMPLE_SCHEMA)


def _read_image(i: int, image: Any, max_pixels: int) -> tuple[bytes | None, str | None]:
    """Return the bytes of an image's file, or the status that gives the reason why there are none.

    Raises ValueError, naming the image, for an array that is not an image; OSError if the storage fails.
    """
    if image is None or isinstance(image, bytes):
        return image, None
    if isinstance(image, str | os.PathLike):
        filesystem, path = resolve(os.fspath(image))
        if filesystem.get_file_info(path).type != fs.FileType.File:
            return None, NO_IMAGE
        with filesystem.open_input_file(path) as file:
            return (file.read(), None) if file.size() <= MAX_MEMBER_BYTES else (None, IMAGE_TOO_LARGE)
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
    usable = aligned.filter(aligned[ALIGNMENT].is_valid())
    found = attributed_schema(CONTENT_WORDS in schema.names).empty_table()
    if len(usable):
        found = attribute(parse(usable, config.parser, config.nonce, config.attribute, config.scorer))
    row_N = np.full(len(aligned), -1)
    row_N[pc.index_in(found[POSITION], aligned[POSITION]).to_numpy()] = np.arange(len(found))
    names = [name for name in (STATUS, MEAN_PAS, PHRASES, CONTENT_WORDS) if name in schema.names]
    added = found.select(names).take(pa.array(row_N, mask=row_N < 0))
    columns = {name: added[name] for name in names}
    columns[STATUS] = pc.coalesce(added[STATUS], aligned[STATUS])
    scored = add_columns(aligned, columns)
    rule = replace(make_selection(config), rule=get_rule("cpi"))
    corpus = read_corpus(scored.select(corpus_columns(rule, with_attribute=True)), rule)
    pas_N = np.full(len(scored), np.nan, np.float32)
    pas_N[corpus.row_M] = corpus.measures[PAS]
    scored = add_columns(scored, {PAS: pa.array(pas_N, mask=np.isnan(pas_N))})
    return scored.select(schema.names).cast(schema)


def _find_schema(config: CurateConfig) -> pa.Schema:
    has_content = config.attribute.targets == CONTENT
    content = [(CONTENT_WORDS, pa.list_(PHRASE_TYPE))] if has_content else []
    values = [(name, pa.float32()) for name in (ALIGNMENT, PAS, MEAN_PAS)]
    texts = [(name, pa.string()) for name in (CAPTION, STATUS)]
    return pa.schema([*texts, *values, (PHRASES, pa.list_(PHRASE_TYPE)), *content])
