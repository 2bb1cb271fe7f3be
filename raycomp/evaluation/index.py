"""``raycomp index-eval``: fingerprints of test sets, by which a curation finds samples that are also in them.

The index is a folder: ``images.parquet`` has a row for each view of an image (the whole, parts, its mirror),
``texts.parquet`` one for each caption, positive or negative. ``sha256`` is of the image file; ``ids`` are its
ids in COCO, Flickr and Visual Genome, found in its name.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.core.copies import THUMBNAIL
from raycomp.data.files import check_writable
from raycomp.data.folder import Folder
from raycomp.data.parquet import write_groups
from raycomp.data.paths import absolute_uri
from raycomp.data.reader import read_shard
from raycomp.data.whole import with_absolute_paths
from raycomp.evaluation.config import EvaluateConfig
from raycomp.evaluation.evaluation import Evaluation
from raycomp.evaluation.open import Opened, open_evaluations
from raycomp.evaluation.retrieval import Retrieval
from raycomp.language.sources import find_source_ids, normalise_caption
from raycomp.models.images import ImageFault, decode_image
from raycomp.models.views import list_views
from raycomp.run.bad_data import check_bad_pictures
from raycomp.run.opening import refuse_early, say_count
from raycomp.run.run import Say, start_run
from raycomp.run.session import connect
from raycomp.run.tasks import map_tasks
from raycomp.words import CAPTION, IMAGE, KEY, NO_IMAGE, OK, STATUS

IMAGES, TEXTS = "images.parquet", "texts.parquet"
IMAGES_SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("image", pa.string()),
        ("sha256", pa.string()),
        ("ids", pa.list_(pa.string())),
        ("view", pa.string()),
        ("hash", pa.uint64()),
        ("thumbnail", pa.binary(THUMBNAIL * THUMBNAIL)),
    ]
)
TEXTS_SCHEMA = pa.schema(
    [("benchmark", pa.string()), ("row", pa.string()), ("text", pa.string()), ("is_negative", pa.bool_())]
)
_FILES_PER_TASK = 64
_ROWS = 64


def index_eval(config: EvaluateConfig, out: str, say: Say = print) -> dict[str, Any]:
    """Index the images and texts of ``config.benchmarks`` into the folder ``out``; return run.json.

    Raises ValueError for errors that the user can fix, TooMuchBadData where too many images are bad.
    """
    out, config = absolute_uri(str(out)), with_absolute_paths(config)
    check_writable(out)
    opened = open_evaluations(config, say)
    refuse_early("index-eval", config, out)

    def fingerprint() -> dict[str, Any]:
        return {one.evaluation.name: one.fingerprint for one in open_evaluations(config, lambda line: None)}

    outputs, cost = (IMAGES, TEXTS), partial(say_count, len(opened), "benchmarks")
    with start_run("index-eval", config, fingerprint, out, say, outputs=outputs, cost=cost) as run:
        if run.is_finished:
            return run.record
        with connect(config.cluster, run.folder, run.lease.check, scores=False, say=say):
            statuses: Counter[str] = Counter()
            num_views = write_groups(
                _index_images(opened, config.max_pixels, statuses), run.folder.at(IMAGES), IMAGES_SCHEMA
            )
            limits = config.max_bad_fraction, config.max_missing_fraction
            check_bad_pictures("benchmarks", statuses, *limits)
        texts = [_list_texts(one) for one in opened]
        num_texts = write_groups(texts, run.folder.at(TEXTS), TEXTS_SCHEMA)
        run.close(statuses, statuses, OK, views=num_views, texts=num_texts)
        run.report(f"indexed {statuses[OK]:,} images with {num_views:,} views and {num_texts:,} texts")
    return run.record


def _index_images(opened: Sequence[Opened], max_pixels: int, statuses: Counter[str]) -> Iterator[pa.Table]:
    """Yield tables of IMAGES_SCHEMA; count the images by status."""
    for one in opened:
        name = one.evaluation.name
        uris = list(dict.fromkeys(picture.uri for picture in one.evaluation.pictures))
        starts = range(0, len(uris), _FILES_PER_TASK)
        jobs: list[Any] = [uris[start : start + _FILES_PER_TASK] for start in starts]
        jobs += list(one.evaluation.shards)
        for table, counts in map_tasks(_index_some, jobs, name, max_pixels, label="index"):
            statuses.update(counts)
            yield table


def _index_some(job: Any, benchmark: str, max_pixels: int) -> tuple[pa.Table, Counter[str]]:
    """Return the views of some image files, or of the images of a shard."""
    rows, statuses = [], Counter[str]()
    for name, data in _read_images(job):
        try:
            if data is None:
                raise ImageFault(NO_IMAGE, "no bytes")
            image = decode_image(data, max_pixels)
        except ImageFault as fault:
            statuses[fault.status] += 1
            continue
        statuses[OK] += 1
        sha256, ids = hashlib.sha256(data).hexdigest(), find_source_ids(name)
        for view in list_views(image):
            thumbnail = view.thumbnail.tobytes()
            rows.append((benchmark, name, sha256, ids, view.name, view.hash, thumbnail))
    columns = zip(*rows, strict=True) if rows else [[]] * len(IMAGES_SCHEMA)
    arrays = [pa.array(column, one.type) for column, one in zip(columns, IMAGES_SCHEMA, strict=True)]
    return pa.table(arrays, schema=IMAGES_SCHEMA), statuses


def _read_images(job: Any) -> Iterator[tuple[str, bytes | None]]:
    if isinstance(job, list):
        for uri in job:
            name = "/".join(uri.split("/")[-2:])
            try:
                yield name, Folder(uri).read_bytes()
            except (FileNotFoundError, ValueError):
                yield name, None
        return
    for table in read_shard(job, _ROWS):
        for key, image in zip(table[KEY].to_pylist(), table[IMAGE].to_pylist(), strict=True):
            yield f"{job.name}/{key}", image


def _list_texts(opened: Opened) -> pa.Table:
    """Return the normalised texts of a benchmark: of its rows, its retrieval items, or its shards."""
    rows = [(str(row), text, is_negative) for row, text, is_negative in _iterate_texts(opened)]
    found = [(row, normalise_caption(text), is_negative) for row, text, is_negative in rows]
    found = [one for one in dict.fromkeys(found) if one[1]]
    names = [opened.evaluation.name] * len(found)
    columns = [names, *(list(column) for column in zip(*found, strict=True))] if found else [[]] * 4
    arrays = [pa.array(column, one.type) for column, one in zip(columns, TEXTS_SCHEMA, strict=True)]
    return pa.table(arrays, schema=TEXTS_SCHEMA)


def _iterate_texts(opened: Opened) -> Iterator[tuple[str, str, bool]]:
    for choice in opened.choices:
        row = f"{choice.split}/{choice.id}"
        yield from ((row, text, False) for text in choice.positives)
        yield from ((row, text, True) for text in choice.negatives)
    evaluation: Evaluation = opened.evaluation
    if isinstance(evaluation, Retrieval):
        yield from ((item.image, text, False) for item in evaluation.items for text in item.captions)
    for shard in () if opened.choices else evaluation.shards:
        for table in read_shard(replace(shard), _ROWS):
            good = table.filter(pa.array(np.equal(table[STATUS].to_pylist(), OK)))
            for key, text in zip(good[KEY].to_pylist(), good[CAPTION].to_pylist(), strict=True):
                yield f"{shard.name}/{key}", text, False
