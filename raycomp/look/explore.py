"""``raycomp explore``: pages to look at the samples of a curation: cards, their index, a Parquet file.

Cards and index are scripts rather than JSON: a page opened from a disk may load scripts, and nothing else,
from next to it. The page holds the index's columns in memory, 18 bytes a row; orders and words are loaded
when they are used. Numbers are written as little-endian arrays in base64.

Letters: N rows of a scores file, M rows that are shown, E entries of these: rows with an embedding, or words
of rows; D dimensions, K nearest rows, P phrases, V words.

Columns of the Parquet file: all that hold one value a row; ``phrase_texts``; ``thumbnail``, a struct of bytes
and path, as Hugging Face writes images; ``projection_x`` and ``projection_y``; ``neighbors``, a struct of
ids, which are numbers of rows in the file from 0, and distances, 1 - cosine, equally many in every row:
embedding-atlas asks for that.
"""

import base64
import importlib
import importlib.util
import json
import math
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.config import DryRun, as_setting, changed_options, flatten, list_options
from raycomp.core.metrics import project_pca
from raycomp.core.near import find_nearest
from raycomp.core.selection import hash_uids, parse_uids
from raycomp.curation.command import stream_photos
from raycomp.curation.config import CurateConfig, SelectionRule, make_selection, read_config
from raycomp.curation.page import REASON_WORDS, reason_words, say_outcome
from raycomp.curation.select.filters import EXCLUDE, add_metadata, add_short_names
from raycomp.curation.select.marks import add_metadata_files, list_marked
from raycomp.curation.select.measures import ScoresFile, list_counted
from raycomp.curation.select.select import Gates, judge_file
from raycomp.curation.summary import MOST_CHARACTERS
from raycomp.data.expression import evaluate, find_columns
from raycomp.data.files import Folder, absolute_uri, is_dry_run
from raycomp.data.inputs import ShardPath, check_output, count_bytes, expand_input
from raycomp.data.parquet import read_columns, read_schema, to_matrix, write_groups
from raycomp.data.runs import SUBSET_KINDS, find_curation, identify, order_reasons, read_finished
from raycomp.data.samples import to_json_value
from raycomp.look.config import UMAP, ExploreConfig
from raycomp.report.page import INDEX_MARK, POLICY, Html, render_page, shrink_photo
from raycomp.run.executor import connect
from raycomp.run.run import Run, Say, command_line, start_run
from raycomp.run.work import map_files, map_tasks

WHERE = "where"
SHOWN, NOT_SHOWN, NOT_DRAWN = "shown", "not_where", "not_drawn"
_DRAWN = np.dtype([("hash", "<u8"), ("file", "<i4"), ("row", "<i4")])
# Rows that are kept at a time, in multiples of those that are drawn.
_SLACK = 4


class Shown(NamedTuple):
    """The rows of a file that are shown: ``row_M``, ascending, and the number ``first`` of the first one."""

    file: ScoresFile
    row_M: np.ndarray
    first: int


class Drawn(NamedTuple):
    """The rows that are shown by file, the outcomes of all rows, and how many are shown or why not."""

    shown: list[Shown]
    outcomes: Counter[str]
    counts: Counter[str]


@dataclass(frozen=True)
class Source:
    """A finished curation or selection, and what is shown of it."""

    selection: SelectionRule
    gates: Gates
    config: ExploreConfig
    shards: Mapping[str, ShardPath]
    """The input's shards by name; none where they are gone."""

    def read(self, file: ScoresFile, with_nested: bool = True) -> pa.Table:
        """Return the columns of scores/ but embeddings, of marks/ but reasons, and the metadata, [N].

        Added are ``outcome``, kept or why not, and ``score``, what the last gate ranked by, null where it did
        not. Without nested columns there are no phrases.
        """
        schema = read_schema(file.uri)
        is_wanted = {one.name: with_nested or not pa.types.is_nested(one.type) for one in schema}
        names = [name for name in schema.names if is_wanted[name] and name != words.IMAGE_EMBEDDING]
        table, reason_N, score_N = judge_file(file, self.selection, self.gates, names)
        columns = {name: table[name] for name in names}
        columns[words.OUTCOME] = pa.array(reason_N, pa.string())
        columns[words.SCORE] = pa.array(score_N, mask=np.isnan(score_N))
        marks = pa.table({}) if file.marks is None else read_columns(file.marks)
        for name in marks.column_names:
            if name not in (words.UID, words.MARK, words.MARK_AFTER):
                columns.setdefault(name, marks[name])
        return pa.table(add_metadata(columns, file))

    def find(self, table: pa.Table) -> np.ndarray:
        """Return for which rows the condition is true, bool [N]."""
        where = self.config.where
        if where is None:
            return np.ones(len(table), bool)
        flat = add_short_names({name: table[name] for name in list_flat(table)})
        columns = {name: flat[name] for name in find_columns(WHERE, where, list(flat))}
        value = evaluate(WHERE, where, pa.table(columns or {words.UID: table[words.UID]}))
        return pc.fill_null(value, False).to_numpy()


def open_source(run: dict[str, Any], source: str, config: ExploreConfig) -> tuple[Source, list[ScoresFile]]:
    """Return the run in ``source`` with its files; ValueError or UserError where the condition does not fit.

    Raises as ``list_marked``.
    """
    curation = posixpath.dirname(run["scores"]) if run["kind"] == "select" else source
    files = add_metadata_files(list_marked(run, source), Folder(curation))
    curated, shards = read_config(run["config"]), dict[str, ShardPath]()
    if curated.prepare.stored_embeddings is None:
        with suppress(ValueError):  # the input may be gone
            shards = {one.name: one for one in expand_input(curated.input, None, curated.columns)}
    found = Source(make_selection(curated), Gates.from_dict(run["gates"]), config, shards)
    if config.where is not None:  # an error now, not after half the files
        found.find(found.read(files[0], with_nested=False).slice(0, 0))
    return found, files


def list_flat(table: pa.Table) -> list[str]:
    """Return the names of the columns that hold one value a row."""
    return [one.name for one in table.schema if not pa.types.is_nested(one.type)]


def _cut(drawn: np.ndarray, most: int) -> np.ndarray:
    return drawn if len(drawn) <= most else drawn[np.argsort(drawn, order=_DRAWN.names)[:most]]


def draw_rows(source: Source, files: list[ScoresFile]) -> Drawn:
    """Return the rows for which the condition is true; of more than ``config.rows``, those of the smallest
    seeded hash of their uid. Memory is bounded by a multiple of that number."""
    outcomes, counts = Counter[str](), Counter[str]()
    most, kept = source.config.rows, np.empty(0, _DRAWN)
    for found, drawn, num in map_files(_draw_file, list(enumerate(files)), source, label="rows"):
        outcomes.update(found)
        counts.update({NOT_SHOWN: found.total() - num, SHOWN: num})
        kept = np.concatenate([kept, drawn])
        kept = _cut(kept, most) if len(kept) > _SLACK * most else kept
    kept = _cut(kept, most)
    counts[NOT_DRAWN] = counts[SHOWN] - len(kept)
    counts[SHOWN] = len(kept)
    shown, first = [], 0
    for ordinal, file in enumerate(files):
        row_M = np.sort(kept["row"][kept["file"] == ordinal])
        if len(row_M):
            shown.append(Shown(file, row_M, first))
            first += len(row_M)
    return Drawn(shown, outcomes, counts)


def _draw_file(numbered: tuple[int, ScoresFile], source: Source) -> tuple[Counter[str], np.ndarray, int]:
    """Return the outcomes of a file's rows, the first rows of the draw, and how many rows fit."""
    ordinal, file = numbered
    table = source.read(file, with_nested=False)
    row_M = np.flatnonzero(source.find(table))
    drawn = np.empty(len(row_M), _DRAWN)
    uids = table[words.UID].take(pa.array(row_M))
    drawn["hash"] = hash_uids(parse_uids(uids), source.config.seed) if len(row_M) else 0
    drawn["file"], drawn["row"] = ordinal, row_M
    return Counter(table[words.OUTCOME].to_pylist()), _cut(drawn, source.config.rows), len(row_M)


# Rows of one job: their small photos are held in memory, and a tar is read anew for each.
_ROWS_PER_JOB = 50_000


class Embeddings(NamedTuple):
    """The image embeddings of the rows that have one."""

    num_rows: int
    row_E: np.ndarray
    value_ED: np.ndarray


class Job(NamedTuple):
    """Rows of one file, with the numbers of their nearest rows, -1 for none, and the cosines."""

    shown: Shown
    first_file: int
    """The number of the first file of their cards."""
    near_MK: np.ndarray
    cosine_MK: np.ndarray


def load_embeddings(shown: Sequence[Shown]) -> Embeddings:
    """Return the embeddings of all rows that are shown, in the precision of the scores files."""
    found = list(map_tasks(_load_embeddings, shown, label="embeddings"))
    row_E = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in found)])
    values = [value_ED for _, value_ED in found if len(value_ED)] or [np.zeros((0, 1), np.float32)]
    return Embeddings(sum(len(one.row_M) for one in shown), row_E, np.concatenate(values))


def _load_embeddings(shown: Shown) -> tuple[np.ndarray, np.ndarray]:
    column = read_columns(shown.file.uri, [words.IMAGE_EMBEDDING])[words.IMAGE_EMBEDDING].take(
        pa.array(shown.row_M)
    )
    return shown.first + np.flatnonzero(column.is_valid().to_numpy()), to_matrix(column.drop_null())


def plan_jobs(shown: Sequence[Shown], embeddings: Embeddings, config: ExploreConfig) -> list[Job]:
    """Return the jobs in the order of their rows."""
    near_EK, found_EK = find_nearest(embeddings.value_ED, config.neighbours, config.seed)
    near_MK = np.full((embeddings.num_rows, near_EK.shape[1]), -1, np.int32)
    cosine_MK = np.zeros(near_MK.shape, np.float32)
    if near_MK.size:
        near_MK[embeddings.row_E] = np.where(near_EK < 0, -1, embeddings.row_E[near_EK])
        cosine_MK[embeddings.row_E] = found_EK
    jobs, num_files = [], 0
    for one in shown:
        for start in range(0, len(one.row_M), _ROWS_PER_JOB):
            row_M, first = one.row_M[start : start + _ROWS_PER_JOB], one.first + start
            rows = slice(first, first + len(row_M))
            part = one._replace(row_M=row_M, first=first)
            jobs.append(Job(part, num_files, near_MK[rows], cosine_MK[rows]))
            num_files += -(-len(row_M) // ROWS_PER_FILE)
    return jobs


def list_targets(table: pa.Table, name: str) -> list[Any]:
    """Return a column of phrases, or of other words, of each row; None where there are none."""
    return table[name].to_pylist() if name in table.column_names else [None] * len(table)


def read_rows(job: Job, source: Source) -> tuple[pa.Table, dict[int, bytes]]:
    """Return the columns of a job's rows, and their small photos by place in the file.

    There is no photo where its bytes are not those that were scored.
    """
    shown = job.shown
    table = source.read(shown.file).take(pa.array(shown.row_M))
    shard = source.shards.get(table[words.SHARD][0].as_py())
    if shard is None or not source.config.thumbnails:
        return table, {}
    photos = stream_photos(shard, shown.file.uri, {*shown.row_M.tolist()})
    small = ((place, shrink_photo(image, source.config.side)) for place, image in photos)
    return table, {place: photo for place, photo in small if photo is not None}


DATA = "data"
ROWS_PER_FILE = 50
SCORES = (words.SCORE, words.ALIGNMENT, words.MEAN_PAS)
INDEXED = (words.UID, words.OUTCOME, words.STATUS, *SCORES, words.DUPLICATE_GROUP)
_WORD = re.compile(r"[^\W_]+")
_LARGEST_EXACT = 2**53


class Indexed(NamedTuple):
    """What the index holds of a job's rows."""

    table: pa.Table
    kinds_M: np.ndarray
    """The kinds of the row's phrases, a bit each, in the order of KINDS; uint8."""
    words: list[str]
    word_E: np.ndarray
    code_E: np.ndarray
    """Twice the row's number, plus 1 where the word is in a phrase; in the order of ``word_E``, uint32."""
    drop_P: np.ndarray
    """The size of the drop of every phrase that has one."""
    names: list[str]
    """The names of the values on a card."""


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case: runs of letters and digits, as the page splits a query."""
    return _WORD.findall(text.lower())


def write_cards(job: Job, source: Source, folder: Folder) -> Indexed:
    """Write the cards of a job's rows to ``data/cards`` of the folder."""
    table, photos = read_rows(job, source)
    names = [name for name in list_flat(table) if name != words.CAPTION]
    values = [table[name].to_pylist() for name in names]
    captions = table[words.CAPTION].to_pylist()
    phrases, contents = (list_targets(table, name) for name in (words.PHRASES, words.CONTENT_WORDS))
    nearest = zip(job.near_MK.tolist(), job.cosine_MK.tolist(), strict=True)
    places, rows = job.shown.row_M.tolist(), zip(*values, strict=True)
    parts = zip(places, captions, phrases, contents, rows, nearest, strict=True)
    cards = []
    for place, caption, own, others, raw, (near, cosines) in parts:
        row = [*map(_to_value, raw)]
        card: dict[str, Any] = {"caption": caption and caption[:MOST_CHARACTERS], "values": row}
        if caption and len(caption) > MOST_CHARACTERS:
            card["cut"] = len(caption) - MOST_CHARACTERS
        row_values = {words.PHRASES: own, words.CONTENT_WORDS: others, **dict(zip(names, raw, strict=True))}
        reason, score = row_values[words.OUTCOME], row_values[words.SCORE]
        card["why"] = say_outcome(row_values, reason, score, source.selection, source.gates)
        counted = [phrase for phrase, _ in list_counted(row_values, source.selection)]
        card["phrases"] = _make_phrases(own, counted)
        if others:
            card["words"] = _make_phrases(others, counted)
        known = zip(near, cosines, strict=True)
        card["near"] = [(number, round(cosine, 4)) for number, cosine in known if number >= 0]
        if place in photos:
            card["photo"] = base64.b64encode(photos[place]).decode("ascii")
        cards.append(card)
    for number, start in enumerate(range(0, len(cards), ROWS_PER_FILE), job.first_file):
        put(folder, f"cards/{number:05d}", cards[start : start + ROWS_PER_FILE])
    indexed = table.select([name for name in INDEXED if name in table.column_names])
    return _index(indexed, captions, phrases, job.shown.first, names)


def put(folder: Folder, name: str, content: Any) -> None:
    """Write a script below ``data/`` that hands ``content`` to the page under its name."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    folder.write_bytes(f'raycomp.put("{name}",{text});\n'.encode("ascii"), DATA, f"{name}.js")


def _make_phrases(phrases: list[dict[str, Any]] | None, counted: list[dict[str, Any]]) -> list[list[Any]]:
    """Return places, kind, target, drop, nonces and whether it counts, of the phrases that end within the
    shown caption."""
    found = []
    for phrase in phrases or ():
        if phrase["end"] <= MOST_CHARACTERS:
            places = [phrase[name] for name in ("start", "target_start", "target_end", "end")]
            drop = phrase["drop"]
            shown = None if drop is None or not math.isfinite(drop) else round(drop, 6)
            facts = phrase["kind"], phrase["target"], phrase["target_class"]
            found.append([*places, *facts, shown, phrase["nonces"], phrase in counted])
    return found


def _to_value(value: Any) -> Any:
    """Return a value as a script can hold it: whole numbers beyond 2^53 as text."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST_EXACT:
        return str(value)
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    return to_json_value(value)


def _index(
    table: pa.Table, captions: list[str | None], phrases: list[Any], first: int, names: list[str]
) -> Indexed:
    vocabulary: dict[str, int] = {}
    word, code, drops = [], [], []
    kinds_M = np.zeros(len(captions), np.uint8)
    for row, (caption, found) in enumerate(zip(captions, phrases, strict=True)):
        own: set[str] = set()
        for phrase in found or ():
            own.update(split_words(phrase["text"]))
            kinds_M[row] |= 1 << words.KINDS.index(phrase["kind"])
            drops.append(math.nan if phrase["drop"] is None else abs(phrase["drop"]))
        for one in sorted({*split_words(caption or "")}):
            word.append(vocabulary.setdefault(one, len(vocabulary)))
            code.append(2 * (first + row) + (one in own))
    drop_P = np.array(drops, np.float32)
    codes = np.array(word, np.int64), np.array(code, np.uint32)
    return Indexed(table, kinds_M, list(vocabulary), *codes, drop_P[np.isfinite(drop_P)], names)


MOST_BUCKETS = 256
_CODES_PER_BUCKET = 20_000


def write_index(parts: Sequence[Indexed], folder: Folder) -> dict[str, Any]:
    """Write the index to ``data/index`` of the folder; return what the page must know of it."""
    table = pa.concat_tables([part.table for part in parts], promote_options="default")
    columns: dict[str, Any] = {"kinds": encode(np.concatenate([part.kinds_M for part in parts]))}
    names = {}
    for name in (words.OUTCOME, words.STATUS):
        counts = {one["values"]: one["counts"] for one in pc.value_counts(table[name]).to_pylist()}
        ranked = sorted(order_reasons(counts), key=lambda one: one != words.KEPT)
        columns[name] = encode(pc.index_in(table[name], pa.array(ranked)).to_numpy().astype(np.uint8))
        names[name] = [[one, counts[one]] for one in ranked]
    for name in SCORES:
        value_M = table[name].to_numpy().astype("<f4")
        columns[name] = encode(value_M)
        put(folder, f"index/by_{name}", encode(np.argsort(value_M, kind="stable").astype("<u4")))
    if words.DUPLICATE_GROUP in table.column_names:
        group_M = table[words.DUPLICATE_GROUP].combine_chunks().dictionary_encode().indices
        columns["group"] = encode((pc.fill_null(group_M, -1).to_numpy() + 1).astype("<u4"))  # 0 for none
    put(folder, "index/columns", columns)
    put(folder, "index/uids", table[words.UID].to_pylist())
    drop_P = np.concatenate([part.drop_P for part in parts])
    return {
        "outcomes": names[words.OUTCOME],
        "statuses": names[words.STATUS],
        "buckets": _write_words(parts, folder),
        "values": parts[0].names,
        # Shading is full at the 95th percentile, to two figures.
        "scale": float(f"{np.quantile(drop_P, 0.95):.1e}") if drop_P.any() else 0.05,
    }


def encode(array_M: np.ndarray) -> str:
    """Return an array's bytes in base64."""
    return base64.b64encode(array_M.tobytes()).decode("ascii")


def get_bucket(word: str, num_buckets: int) -> int:
    """Return the number of the script that holds a word's rows; the page computes the same."""
    return sum(word.encode()) % num_buckets


def _write_words(parts: Sequence[Indexed], folder: Folder) -> int:
    """Write the rows of every word; return the number of scripts."""
    vocabulary: dict[str, int] = {}
    numbers = []
    for part in parts:
        number_V = [vocabulary.setdefault(word, len(vocabulary)) for word in part.words]
        numbers.append(np.array(number_V, np.int64)[part.word_E])
    word_E, code_E = np.concatenate(numbers), np.concatenate([part.code_E for part in parts])
    order_E = np.argsort(word_E, kind="stable")  # the rows of a word stay in order
    code_E = code_E[order_E].astype("<u4")
    edges = np.searchsorted(word_E[order_E], np.arange(len(vocabulary) + 1))
    num_buckets = int(np.clip(len(code_E) // _CODES_PER_BUCKET, 1, MOST_BUCKETS))
    buckets: list[list[list[str]]] = [[] for _ in range(num_buckets)]
    for word, number in vocabulary.items():
        codes = encode(code_E[edges[number] : edges[number + 1]])
        buckets[get_bucket(word, num_buckets)].append([word, codes])
    for number, content in enumerate(buckets):
        put(folder, f"index/words_{number:03d}", content)
    return num_buckets


_THUMBNAIL = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_NEIGHBORS = pa.struct([("ids", pa.list_(pa.int64())), ("distances", pa.list_(pa.float32()))])


def write_atlas(jobs: Sequence[Job], source: Source, embeddings: Embeddings, uri: str) -> str:
    """Write the rows of the jobs to the file; return the line that opens it."""
    place_M2 = np.full((embeddings.num_rows, 2), np.nan, np.float32)
    if source.config.projection == UMAP:
        model = importlib.import_module("umap").UMAP(metric="cosine", random_state=source.config.seed)
        place_M2[embeddings.row_E] = model.fit_transform(embeddings.value_ED.astype(np.float32))
    else:
        place_M2[embeddings.row_E] = project_pca(embeddings.value_ED)
    places = [place_M2[job.shown.first :][: len(job.shown.row_M)] for job in jobs]
    placed = list(zip(jobs, places, strict=True))
    tables = map_tasks(_make_table, placed, source, label="atlas")
    first = next(tables)
    write_groups(chain([first], tables), uri, first.schema)
    return (
        f"{uri}: {embeddings.num_rows:,} rows; look at them with\n"
        f"embedding-atlas {shlex.quote(uri)} --duckdb server --x projection_x --y projection_y "
        "--neighbors neighbors --image thumbnail --text caption"
    )


def _make_table(placed: tuple[Job, np.ndarray], source: Source) -> pa.Table:
    """Return the rows of a job with their photo, place and nearest rows."""
    job, place_M2 = placed
    table, photos = read_rows(job, source)
    found = table.select(list_flat(table))
    texts = [one and [phrase["text"] for phrase in one] for one in list_targets(table, words.PHRASES)]
    found = found.append_column("phrase_texts", pa.array(texts, pa.list_(pa.string())))
    images = [{"bytes": photos.get(row), "path": None} for row in job.shown.row_M.tolist()]
    found = found.append_column("thumbnail", pa.array(images, _THUMBNAIL))
    for axis, name in enumerate(("projection_x", "projection_y")):
        value_M = place_M2[:, axis]
        found = found.append_column(name, pa.array(value_M, mask=np.isnan(value_M)))
    # Where fewer rows are near, the row itself fills their places.
    own_M1 = (job.shown.first + np.arange(len(job.near_MK)))[:, None]
    near_MK = np.where(job.near_MK < 0, own_M1, job.near_MK).tolist()
    far_MK = np.where(job.near_MK < 0, 0, 1 - job.cosine_MK).tolist()
    nearest = [{"ids": ids, "distances": far} for ids, far in zip(near_MK, far_MK, strict=True)]
    return found.append_column("neighbors", pa.array(nearest, _NEIGHBORS))


# Scripts of the page's own folder run as well: 'self' is for a server, file: for a disk.
_POLICY = f"{POLICY} 'self' file:"


def explore(
    source: str, config: ExploreConfig, atlas: str | None, out: str | None, say: Say = print
) -> dict[str, Any] | None:
    """Write pages of the samples of the curation or selection in ``source`` to ``out``; return run.json.

    ``atlas`` is a Parquet file to write, of the same rows, instead of the pages or in addition to them; see
    ``write_atlas``. Raises ValueError where there is no finished curation or selection, and ValueError or
    UserError where the condition does not fit its columns.
    """
    source = absolute_uri(str(source))
    made = _read_source(source)
    found, scores = open_source(made, source, config)
    if atlas is not None:
        atlas = absolute_uri(atlas)
        if not atlas.endswith(".parquet"):
            raise ValueError(f"--atlas {atlas}: must end in .parquet")
        if config.projection == UMAP and importlib.util.find_spec("umap") is None:
            said = "needs the package umap-learn; install it, or set projection=pca"
            raise ValueError(f"projection=umap: {said}")
    size = partial(count_bytes, [*found.shards.values()] if config.thumbnails else [])
    connected = partial(connect, config.cluster, scores=False, say=say, num_bytes=size)

    def work(folder: Folder | None) -> tuple[Drawn, list[Job], list[Indexed]]:
        """Draw the rows; write their cards to the folder, if there is one, and the atlas."""
        drawn = draw_rows(found, scores)
        embeddings = load_embeddings(drawn.shown)
        jobs, parts = plan_jobs(drawn.shown, embeddings, config), list[Indexed]()
        if folder is not None:
            parts += map_tasks(write_cards, jobs, found, folder, label="cards")
        if atlas is not None:
            say(write_atlas(jobs, found, embeddings, atlas))
        return drawn, jobs, parts

    if out is None:
        if is_dry_run():
            raise DryRun("dry run of explore: all checks passed, nothing was written")
        with connected():
            work(None)
        return None
    out = absolute_uri(str(out))
    check_output(read_config(made["config"]).input, out)
    rerun = command_line(f"raycomp explore {shlex.quote(source)}", changed_options(config), out)

    def identify_source() -> dict[str, Any]:
        return {"run": identify(_read_source(source))}

    with start_run("explore", config, identify_source, out, say, rerun, outputs=(DATA,)) as run:
        if not run.is_finished:
            run.bind("cpu")
            with connected(run.folder, run.lease.check):
                drawn, jobs, parts = work(run.folder)
            facts = write_index(parts, run.folder) if parts else {}
            origin = {
                "has_photos": bool(found.shards),
                "source": source,
                "select": _write_select(made, source),
                "explain": f"raycomp explain {shlex.quote(source)}",
            }
            _close(run, drawn, jobs, facts, origin)
    return run.record


def _read_source(source: str) -> dict[str, Any]:
    run = read_finished(source)
    if run["kind"] not in SUBSET_KINDS:
        raise ValueError(f"{source}: holds {run['kind']}; name a curation or selection")
    return run


def _close(run: Run, drawn: Drawn, jobs: list[Job], facts: dict[str, Any], origin: dict[str, Any]) -> None:
    """Count the rows; write the script, what it must know, and the page."""
    counts = {name: count for name, count in drawn.counts.items() if count or name == SHOWN}
    num, read = counts[SHOWN], sum(counts.values())
    run.close({words.OK: read}, counts, SHOWN, source=origin["source"])
    record, config, first_rows = run.record, run.record["config"], list[int]()
    for job in jobs:
        first = job.shown.first
        first_rows += range(first, first + len(job.shown.row_M), ROWS_PER_FILE)
    shown = {"id": record["id"], "rows": num, "cards": first_rows, "all": dict(drawn.outcomes)}
    about = {**facts, **shown, **origin}
    script = files("raycomp.look").joinpath("explore.js").read_bytes()
    run.folder.write_bytes(script, DATA, "explore.js")
    put(run.folder, "index/about", {**about, "words": REASON_WORDS})
    ranked = sorted(order_reasons(drawn.outcomes).items(), key=lambda item: item[0] != words.KEPT)
    page = render_page(
        "look/explore.html.jinja",
        run={**record, "fingerprint": f"run {record['fingerprint']['run']}"},
        about=about,
        read=read,
        where=config["where"],
        drawn=read - counts.get(NOT_SHOWN, 0) if NOT_DRAWN in counts else None,
        seed=config["seed"],
        outcomes=[(reason_words(name), count) for name, count in ranked],
        policy=_POLICY,
        index_mark=Html(INDEX_MARK),
    )
    run.report(f"pages of {num:,} of {read:,} rows", page)


def _write_select(made: dict[str, Any], source: str) -> dict[str, str | None]:
    """Return the command that chooses again without the ticked rows, and the list that the run has now."""
    curation = posixpath.dirname(made["scores"]) if made["kind"] == "select" else source
    before = dict(flatten(find_curation(made, source)["config"]))
    free = {option.path for option in list_options(CurateConfig, "select")}
    changed = {path: value for path, value in flatten(made["config"]) if before.get(path) != value}
    options = {path: value for path, value in changed.items() if path in free}
    known = options.pop(EXCLUDE, before.get(EXCLUDE))
    start = f"raycomp select {shlex.quote(curation)}"
    line = command_line(start, {**options, EXCLUDE: "exclude.txt"}, f"{source}-2")
    erase = f"raycomp update {shlex.quote(curation)} --remove exclude.txt"
    return {"command": line, "erase": erase, "exclude": known and as_setting(known)}
