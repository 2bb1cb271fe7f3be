"""Fingerprints of test sets, and scores without the examples that the training samples contain.

``contaminated_by`` in marks/ names for each sample the test images and rows that it contains. An example is
touched if its image is such an image, or one of its texts is a text of such a row. In retrieval, touched
images are no targets either.

The index is a folder: ``images.parquet`` has a row for each view of an image (the whole, parts, its mirror),
``texts.parquet`` one for each caption, positive or negative. ``sha256`` is of the image file; ``ids`` are its
ids in COCO, Flickr and Visual Genome, found in its name.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.core.near import THUMBNAIL
from raycomp.core.selection import find_keys, key_images, merge_keys, parse_uids, to_keys
from raycomp.curation.config import DecontaminateConfig
from raycomp.curation.outputs import read_subset
from raycomp.curation.select.marks import OPTION, fingerprint_index, list_marked, read_index
from raycomp.curation.select.select import SUBSET
from raycomp.data.files import CHECKPOINT, WEIGHTS, Folder, absolute_uri, check_writable
from raycomp.data.inputs import with_absolute_paths
from raycomp.data.parquet import read_columns, write_groups
from raycomp.data.reader import read_shard
from raycomp.data.runs import SUBSET_KINDS, check_results, identify, read_finished, read_run
from raycomp.evaluation.choices import Evaluation, Pictures, Texts
from raycomp.evaluation.config import EvaluateConfig
from raycomp.evaluation.embed import count_needed
from raycomp.evaluation.open import Opened, open_evaluations
from raycomp.evaluation.results import Line, choose_main, compute_outcomes, make_lines
from raycomp.evaluation.retrieval import Retrieval
from raycomp.language.overlap import find_source_ids, normalise_caption
from raycomp.models.images import ImageFault, decode_image, list_views
from raycomp.run.executor import connect
from raycomp.run.progress import check_bad_pictures
from raycomp.run.run import Say, refuse_early, say_count, start_run
from raycomp.run.work import map_tasks
from raycomp.table import Cell, Column, Estimate, Table, plain, write_cell
from raycomp.words import CAPTION, CONTAMINATED_BY, IMAGE, KEY, NO_IMAGE, OK, STATUS, UID

TRAINED_ON = "trained_on"


@dataclass(frozen=True)
class Touched:
    """What the kept samples of a curation contain of test sets."""

    source: str
    """The folder of the curation or selection."""
    image_K: np.ndarray
    """Sorted keys of test images, see ``core.leaks``."""
    texts: Mapping[str, frozenset[str]]
    """Normalised texts by benchmark; a benchmark that the index lacks is absent."""
    identity: Mapping[str, str]
    """Identifies the curation and the index in a fingerprint."""


def find_touched(config: EvaluateConfig) -> tuple[Touched | None, list[str]]:
    """Return what the samples behind the model contain of test sets, None where it is unknown; and warnings.

    The samples are those of ``trained_on``; else those of the training that wrote the weights, where its
    input is a curation or selection that compared its samples with test sets. Raises as ``read_touched`` for
    ``trained_on``.
    """
    if config.trained_on is not None:
        return read_touched(config.trained_on), []
    start, found, _ = config.model.weights.partition(f"/{CHECKPOINT}/{WEIGHTS}")
    training = read_run(Folder(start)) if found else None
    source = training["config"].get("input", "") if training and training["kind"] == "train" else ""
    try:
        run = read_finished(source)
    except (ValueError, OSError):
        return None, []
    if not _find_index(run) or training is None or identify(run) != training["fingerprint"].get("input"):
        return None, []
    try:
        return read_touched(source), []
    except (ValueError, OSError) as error:
        return None, [f"{error}; touched examples are unknown"]


def read_touched(source: str) -> Touched:
    """Return what the samples that the run in ``source`` kept contain of test sets.

    Raises ValueError, naming the option, where the run is not a curation or selection that compared its
    samples with test sets.
    """
    try:
        run = read_finished(source)
        if run["kind"] not in SUBSET_KINDS:
            raise ValueError(f"holds {run['kind']}, must hold a curation or a selection")
        if not _find_index(run):
            raise ValueError(f"its samples were not compared with test sets; select again with {OPTION}")
        keys = to_keys(read_subset(check_results(Folder(source), run, SUBSET[0])["/".join(SUBSET)]))
        marked = [file.marks for file in list_marked(run, source)]
    except ValueError as error:
        raise ValueError(f"{TRAINED_ON}={source!r}: {error}") from error
    hits: set[tuple[str, str]] = set()  # benchmark and row of all evidence on the kept rows
    for marks in filter(None, marked):
        table = read_columns(marks, [UID, CONTAMINATED_BY])
        table = table.filter(table[CONTAMINATED_BY].is_valid())
        kept_N = find_keys(keys, to_keys(parse_uids(table[UID]))) >= 0
        found_N = table[CONTAMINATED_BY].filter(pa.array(kept_N)).to_pylist()
        hits |= {(hit["benchmark"], hit["row"]) for found in found_N for hit in found}
    images, tested, benchmarks = read_index(_find_index(run))
    image_rows = zip(*(images[name].to_pylist() for name in ("benchmark", "image", "sha256")), strict=True)
    sha256s = [sha256 for *place, sha256 in image_rows if tuple(place) in hits]
    found: dict[str, set[str]] = {name: set() for name in benchmarks}
    for name, row, text in zip(
        *(tested[one].to_pylist() for one in ("benchmark", "row", "text")), strict=True
    ):
        if (name, row) in hits:
            found[name].add(text)
    texts = {name: frozenset(own) for name, own in found.items()}
    identity = {TRAINED_ON: identify(run), **fingerprint_index(DecontaminateConfig(_find_index(run)))}
    return Touched(source, merge_keys([key_images(sha256s)]), texts, identity)


def _find_index(run: Mapping[str, Any]) -> str:
    return run["config"].get("decontaminate", {}).get("index") or ""


@dataclass(frozen=True)
class Untouched:
    """The scores of the untouched examples."""

    source: str
    lines: Sequence[Line]
    warnings: Sequence[str]
    """A line for each benchmark that has no such score."""

    def report(self, every: Sequence[Line]) -> tuple[Table, list[str]]:
        """Return a table with the scores of all examples, ``every``, and of untouched ones; and the lines
        that a command prints."""
        wholes = {(line.benchmark, line.metric, line.split): line for line in choose_main(every)}
        rows: list[tuple[Cell, ...]] = []
        said = []
        for line in choose_main(self.lines):
            whole, name = wholes[line.benchmark, line.metric, line.split], f"{line.benchmark}: {line.metric}"
            figure, counts = Estimate.of(line), f"{line.n:,} of {whole.n:,} untouched examples"
            rows.append((name, line.split, Estimate.of(whole), figure, whole.n, whole.n - line.n))
            said.append(f"{name}, {line.split} {plain(write_cell(figure))} on the {counts}")
        columns = ("Score", "split", Column("all examples"), Column("untouched"), "n", "touched")
        note = (
            f"Touched: the image or a text is among the samples that {self.source} kept, by contaminated_by "
            "in its marks. In retrieval, touched images are no targets either."
        )
        return Table("All examples and untouched ones", columns, rows, note), [*said, *self.warnings]


def grade_untouched(
    touched: Touched, evaluations: Sequence[Evaluation], pictures: Pictures, texts: Texts
) -> Untouched:
    """Return the scores of the untouched examples of all benchmarks."""
    lines: list[Line] = []
    warnings = []
    for evaluation in evaluations:
        if evaluation.name not in touched.texts:
            said = f"the index of {touched.source} lacks it, so its touched examples are unknown"
            warnings.append(f"{evaluation.name}: {said}")
            continue
        own = touched.texts[evaluation.name]
        bad = frozenset(text for text in texts.place if normalise_caption(text) in own)
        try:
            table = evaluation.grade(pictures.bar(touched.image_K), replace(texts, bad=texts.bad | bad))
            lines += make_lines(evaluation.name, compute_outcomes(table))
        except ValueError as error:
            warnings.append(f"{evaluation.name}: has no score of untouched examples ({error})")
    return Untouched(touched.source, lines, warnings)


IMAGES, TEXTS = "images.parquet", "texts.parquet"
_TEXTS = dict.fromkeys(("benchmark", "image", "sha256"), pa.string())
_VIEW = {"ids": pa.list_(pa.string()), "view": pa.string(), "hash": pa.uint64()}
IMAGES_SCHEMA = pa.schema({**_TEXTS, **_VIEW, "thumbnail": pa.binary(THUMBNAIL * THUMBNAIL)})
TEXTS_SCHEMA = pa.schema(
    {**dict.fromkeys(("benchmark", "row", "text"), pa.string()), "is_negative": pa.bool_()}
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

    dry: dict[str, Any] = {"cost": partial(say_count, len(opened), "benchmarks")}
    dry["num_bytes"] = partial(count_needed, [one.evaluation for one in opened])
    with start_run("index-eval", config, fingerprint, out, say, outputs=(IMAGES, TEXTS), **dry) as run:
        if run.is_finished:
            return run.record
        with connect(config.cluster, run.folder, run.lease.check, scores=False, say=say):
            statuses: Counter[str] = Counter()
            tables = _index_images(opened, config.max_pixels, statuses)
            num_views = write_groups(tables, run.folder.at(IMAGES), IMAGES_SCHEMA)
            limits = config.max_bad_fraction, config.max_missing_fraction
            check_bad_pictures("benchmarks", statuses, *limits)
            run.end_dry_run()
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
            image = None if data is None else decode_image(data, max_pixels)
        except ImageFault as fault:
            statuses[fault.status] += 1
            continue
        statuses[NO_IMAGE if image is None else OK] += 1
        if data is not None and image is not None:
            place = benchmark, name, hashlib.sha256(data).hexdigest(), find_source_ids(name, is_test=True)
            rows += [(*place, view.name, view.hash, view.thumbnail.tobytes()) for view in list_views(image)]
    return _make_table(rows, IMAGES_SCHEMA), statuses


def _read_images(job: Any) -> Iterator[tuple[str, bytes | None]]:
    if not isinstance(job, list):
        for table in read_shard(job, _ROWS):
            names = (f"{job.name}/{key}" for key in table[KEY].to_pylist())
            yield from zip(names, table[IMAGE].to_pylist(), strict=True)
        return
    for uri in job:
        name, data = "/".join(uri.split("/")[-2:]), None
        with suppress(FileNotFoundError, ValueError):
            data = Folder(uri).read_bytes()
        yield name, data


def _list_texts(opened: Opened) -> pa.Table:
    """Return the normalised texts of a benchmark: of its rows, its retrieval items, or its shards."""
    evaluation: Evaluation = opened.evaluation
    found: list[tuple[str, str, bool]] = []
    for choice in opened.choices:
        texts = *((text, False) for text in choice.positives), *((text, True) for text in choice.negatives)
        found += [(f"{choice.split}/{choice.id}", *text) for text in texts]
    if isinstance(evaluation, Retrieval):
        found += [(item.image, text, False) for item in evaluation.items for text in item.captions]
    for shard in () if opened.choices else evaluation.shards:
        for table in read_shard(shard, _ROWS):
            good = table.filter(pa.array(np.equal(table[STATUS].to_pylist(), OK)))
            names = zip(good[KEY].to_pylist(), good[CAPTION].to_pylist(), strict=True)
            found += [(f"{shard.name}/{key}", text, False) for key, text in names]
    rows = ((evaluation.name, row, normalise_caption(text), is_bad) for row, text, is_bad in found)
    return _make_table([one for one in dict.fromkeys(rows) if one[2]], TEXTS_SCHEMA)


def _make_table(rows: Sequence[tuple], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
