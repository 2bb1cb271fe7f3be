"""Exams sat without Ray: embeddings by a model in this process, or invented ones."""

import hashlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.core.selection import KEY, key_images
from raycomp.data.parquet import to_matrix
from raycomp.evaluation import embed as passes
from raycomp.evaluation.choices import Evaluation, Picture, Pictures, Texts, key_pictures
from raycomp.evaluation.embed import TEXT, Files
from raycomp.models.architecture import describe_scorer
from raycomp.words import IMAGE_EMBEDDING, STATUS


def sit(evaluation: Evaluation, scorer: ScorerConfig) -> pa.Table:
    """Return the exam's rows by a model."""
    return evaluation.grade(*embed(evaluation, scorer))


def embed(evaluation: Evaluation, scorer: ScorerConfig) -> tuple[Pictures, Texts]:
    """Return what the pass would, in one process."""
    model = ModelConfig(scorer.model, scorer.weights)
    spec = describe_scorer(model)
    see = passes.EmbedPictures(model, spec)
    files = list(dict.fromkeys(evaluation.pictures))
    items = [Files(0, tuple(files)), *evaluation.shards] if files else list(evaluation.shards)
    tables = [
        see(passes.prepare_pixels(pa.concat_tables(passes.read_pictures(item, 64)), spec, 10**8))
        for item in items
    ]
    of_files = tables.pop(0) if files else None
    pictures = Pictures(
        {picture: place for place, picture in enumerate(files)},
        of_files[STATUS].to_pylist() if of_files else [],
        to_matrix(of_files[IMAGE_EMBEDDING]) if of_files else np.zeros((0, spec.embedding_dim), np.float32),
        {shard.uri: table for shard, table in zip(evaluation.shards, tables, strict=True)},
        key_pictures(of_files) if of_files else np.zeros(0, KEY),
    )
    texts = list(dict.fromkeys(evaluation.list_texts(pictures)))
    text_TD = np.zeros((0, spec.embedding_dim), np.float32)
    if texts:
        tokens = passes.tokenize(pa.table({TEXT: texts}), model)
        text_TD = to_matrix(passes.EmbedTexts(model)(tokens)[passes.TEXT_EMBEDDING])
    return pictures, Texts({text: place for place, text in enumerate(texts)}, text_TD)


def invent(
    evaluation: Evaluation, dim: int = 8, bad: Collection[str] = (), seed: int = 0
) -> tuple[Pictures, Texts]:
    """Return random embeddings of image files and texts; files that end so are corrupt."""
    rng = np.random.default_rng(seed)
    files = list(dict.fromkeys(evaluation.pictures))
    statuses = [
        "corrupt_image" if any(picture.uri.endswith(name) for name in bad) else "ok" for picture in files
    ]
    image_MD = draw(rng, len(files), dim) * np.array([[status == "ok"] for status in statuses])
    pictures = Pictures(
        {one: i for i, one in enumerate(files)},
        statuses,
        np.float32(image_MD),
        {},
        key_files(files, statuses),
    )
    texts = list(dict.fromkeys(evaluation.list_texts(pictures)))
    return pictures, Texts({text: i for i, text in enumerate(texts)}, draw(rng, len(texts), dim))


def key_files(files: list[Picture], statuses: list[str]) -> np.ndarray:
    """Return the keys of image files that are there, of those whose status is ok."""
    paths = [Path(one.uri) if status == "ok" else None for one, status in zip(files, statuses, strict=True)]
    return key_images(
        [hashlib.sha256(one.read_bytes()).hexdigest() if one and one.exists() else None for one in paths]
    )


def draw(rng: np.random.Generator, num: int, dim: int) -> np.ndarray:
    """Return random rows of length 1."""
    rows = rng.normal(size=(num, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
