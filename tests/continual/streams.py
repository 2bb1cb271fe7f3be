"""Streams for tests: arrays whose pictures are their things, turned by each task, with noise; and streams of
files, read without a model: random embeddings of whatever their sources hold."""

import hashlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.continual.data import Split, Stream, Task
from raycomp.continual.streams.samples import StreamSamples, find_texts
from raycomp.continual.streams.sources import StreamSource, read_stream
from raycomp.data.inputs import ShardPath
from raycomp.data.parquet import to_fixed_lists
from raycomp.data.samples import write_tar
from raycomp.evaluation.choices import Pictures, Texts
from raycomp.evaluation.embed import Files, read_pictures
from raycomp.words import EMPTY_CAPTION, IMAGE_EMBEDDING, IMAGE_SHA256, NO_CAPTION, OK, STATUS
from tests.evaluation.embedded import draw, key_files

DIM, NUM_NAMES = 16, 12
NAMES = tuple(f"small colour{i % 4} shape{i}" for i in range(NUM_NAMES))


def unit(value: np.ndarray) -> np.ndarray:
    return (value / np.linalg.norm(value, axis=-1, keepdims=True)).astype(np.float32)


def make_split(
    sets: list[tuple[str, ...]],
    embedded: dict[str, np.ndarray],
    turn_DD: np.ndarray,
    seed: int,
    questions: bool = False,
) -> Split:
    """One sample of each set; a text's embedding is the mean of its names, and noise."""
    rng = np.random.default_rng(seed)
    mean_TD = np.stack([np.mean([embedded[name] for name in names], axis=0) for names in sets])
    image_ND = unit(mean_TD @ turn_DD + 0.05 * rng.standard_normal(mean_TD.shape))
    asked, row_N = {}, np.arange(len(sets))
    if questions:
        asked["candidate_NK"] = np.stack([row_N, (row_N + 1) % len(sets), np.full(len(sets), -1)], 1)
        asked["kind_N"] = np.zeros(len(sets), np.int64)
    return Split(
        image_ND=image_ND,
        own_N=row_N,
        texts=tuple(f"a picture of {' and '.join(names)}" for names in sets),
        text_TD=unit(mean_TD + 0.3 * rng.standard_normal(mean_TD.shape)),
        primitives=tuple(tuple(sorted(names)) for names in sets),
        **asked,
    )


def make_stream(num_tasks: int = 3, per_task: int = 20, dim: int = DIM, questions: bool = False) -> Stream:
    rng = np.random.default_rng(0)
    name_VD = unit(rng.standard_normal((NUM_NAMES, dim)))
    embedded, tasks = dict(zip(NAMES, name_VD, strict=True)), []
    for task in range(num_tasks + 1):
        turn_DD, upper_DD = np.linalg.qr(np.eye(dim) + 0.3 * rng.standard_normal((dim, dim)))
        turn_DD = turn_DD * np.sign(np.diag(upper_DD))
        sets: dict[tuple[str, ...], None] = {}
        while len(sets) < 2 * per_task:
            chosen = rng.choice(NUM_NAMES, int(rng.integers(2, 4)), replace=False)
            sets.setdefault(tuple(sorted(NAMES[i] for i in chosen)))
        halves = enumerate(([*sets][:per_task], [*sets][per_task:]))
        splits = [make_split(some, embedded, turn_DD, 10 * task + i, questions) for i, some in halves]
        tasks.append(Task(f"task {task}", *splits))
    return Stream("made", tuple(tasks[:-1]), (tasks[-1],), NAMES, name_VD)


def write_half(folder: Path, samples: Sequence[tuple[Any, ...]]) -> None:
    """Write a shard of (image, caption) or (image, caption, fields of the json); None leaves a member out."""
    rows = []
    for number, (image, caption, *fields) in enumerate(samples):
        text = json.dumps(fields[0]) if fields else None
        members = {"jpg": image, "txt": caption, "json": text}
        rows.append(
            (f"{number:03d}", {name: one.encode() for name, one in members.items() if one is not None})
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_tar(str(folder / "0.tar"), rows)


def task(name: str = "a", train: Any = "train", test: Any = "test", **more: Any) -> dict[str, Any]:
    return {"name": name, "train": train, "test": test, **more}


def open_stream(
    folder: Path, *tasks: dict[str, Any], zero_shot: Sequence[dict[str, Any]] = ()
) -> StreamSource:
    content = {"tasks": list(tasks), **({"zero_shot": list(zero_shot)} if zero_shot else {})}
    (folder / "mine.json").write_text(json.dumps(content))
    return read_stream(str(folder / "mine.json"))


def see(stream: StreamSource, bad: Collection[str] = ()) -> Pictures:
    """Return the pictures of a stream as the pass leaves them; files that end so are corrupt."""
    rng, files, statuses = np.random.default_rng(0), list(dict.fromkeys(stream.pictures)), []
    for one in files:
        status = pa.concat_tables(read_pictures(Files(0, (one,)), 1))[STATUS][0].as_py()
        statuses.append("corrupt_image" if one.uri.endswith(tuple(bad)) and bad else status)
    is_ok_M = np.array([status == OK for status in statuses], bool)
    image_MD = np.float32(draw(rng, len(files), DIM) * is_ok_M[:, None])
    shards = {shard.uri: see_shard(shard, rng) for shard in stream.shards}
    keys = key_files(files, statuses)
    return Pictures({one: i for i, one in enumerate(files)}, statuses, image_MD, shards, keys)


def see_shard(shard: ShardPath, rng: np.random.Generator) -> pa.Table:
    """Return a shard's rows; what captions lack does not keep an image from being seen."""
    table = pa.concat_tables(read_pictures(shard, 64))
    images = table["image"].to_pylist()
    hashes = [None if image is None else hashlib.sha256(image).hexdigest() for image in images]
    table = table.drop_columns(["image"]).append_column(IMAGE_SHA256, pa.array(hashes, pa.string()))
    seen = [OK if one in (NO_CAPTION, EMPTY_CAPTION) else one for one in table[STATUS].to_pylist()]
    image_MD = draw(rng, len(table), DIM) * np.array([[status == OK] for status in seen])
    table = table.set_column(table.schema.get_field_index(STATUS), STATUS, pa.array(seen))
    return table.append_column(IMAGE_EMBEDDING, to_fixed_lists(np.float32(image_MD)))


def invent_texts(samples: Sequence[StreamSamples]) -> Texts:
    """Return random embeddings of all texts of a stream, and of its primitives."""
    texts: dict[str, None] = {}
    for some in samples:
        for text, primitives in find_texts(some).items():
            texts |= dict.fromkeys((text, *primitives))
    return Texts({text: i for i, text in enumerate(texts)}, draw(np.random.default_rng(1), len(texts), DIM))


def refuse_parser() -> Any:
    raise AssertionError("nothing has to be parsed")
