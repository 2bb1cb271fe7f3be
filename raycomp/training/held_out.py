"""Held-out pairs: which ones a training is evaluated on, and the tables that store them.

``train.held_out`` is a share of the training pairs, which are then left out of training, or an input of its
own. At most ``MOST`` pairs are evaluated: the first in an order drawn from ``train.seed`` and the uid. Pairs
whose image or first caption an earlier one has are skipped, so that each query has one right answer.

N pairs in all, H held out, E of them evaluated.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import TooMuchBadData, UserError, exact_share
from raycomp.config.options import read_share_or_none
from raycomp.core.selection import (
    Known,
    find_keys,
    find_shared,
    hash_uids,
    key_images,
    key_texts,
    parse_uids,
    to_keys,
)
from raycomp.data.files import Folder
from raycomp.data.parquet import read_columns, write_table
from raycomp.run.work import map_files, map_tasks
from raycomp.schema import PAIRS_SCHEMA
from raycomp.training.config import TrainConfig
from raycomp.training.pairs import (
    Index,
    Pairs,
    find_pairs,
    fingerprint_pairs,
    load_shard,
    make_index,
    uids_in,
)
from raycomp.words import CAPTION, CAPTIONS, IMAGE, IMAGE_SHA256, UID

OPTION = "train.held_out"
MOST = 1000
"""Pairs that are evaluated, at most."""
_LEAST = 2
# Candidates for ``MOST`` pairs with different images and captions.
_CANDIDATES = 4 * MOST
# Makes the order independent of random subsets of the same seed.
_SALT = 0x68656C64
_FOLDER, _DRAWN, _EVALUATED = "held_out", "drawn.npy", "evaluated.npy"
_START = "start.json"
_SCHEMA = pa.schema(
    [(UID, pa.string()), (IMAGE_SHA256, pa.string()), (IMAGE, pa.large_binary()), (CAPTION, pa.string())]
)


@dataclass(frozen=True)
class HeldOut:
    """The held-out pairs of a training."""

    uris: tuple[str, ...]
    """Tables of the evaluated pairs: uid, image and caption."""
    max_pixels: int
    """Images with more are not decoded."""
    num_pairs: int
    """H."""
    image_E: np.ndarray
    """Keys of the evaluated images."""
    warnings: tuple[str, ...] = ()

    def describe(self, known: Known) -> dict[str, int]:
        """Return the section of run.json. ``images_in_training`` counts the evaluated images in ``known``,
        which the model is trained on."""
        shared = int(find_shared(known.image_K, self.image_E).sum())
        return {"pairs": self.num_pairs, "evaluated": len(self.image_E), "images_in_training": shared}

    def warn(self, known: Known) -> tuple[str, ...]:
        """Return the warnings about the held-out pairs."""
        shared = self.describe(known)["images_in_training"]
        line = (
            f"{OPTION}: {shared:,} of {len(self.image_E):,} evaluated images are among the images that the "
            f"model is trained on ({shared / len(self.image_E):.1%})"
        )
        return (*self.warnings, *([line] if shared else []))


def find_held_input(config: TrainConfig) -> Pairs | None:
    """Return the place of the held-out pairs if they are an input. Raises ValueError as ``find_pairs``."""
    own = _as_input(config)
    with _named_option():
        return find_pairs(own) if own else None


def fingerprint_held_out(config: TrainConfig) -> dict[str, str]:
    """Return the digest of the held-out pairs if they are an input."""
    own = _as_input(config)
    with _named_option():
        return {_FOLDER: fingerprint_pairs(own)["input"]} if own else {}


def _as_input(config: TrainConfig) -> TrainConfig | None:
    """Return the config by which the held-out pairs are training pairs, none where they are no input."""
    value = config.train.held_out
    if value is None or read_share_or_none(value) is not None:
        return None
    fit = replace(config.train, loss="clip", held_out=None)
    return replace(config, input=value, subset=None, negatives=None, negative_images=None, train=fit)


@contextmanager
def _named_option() -> Iterator[None]:
    """Let errors about an input name the option that holds it here."""
    try:
        yield
    except (ValueError, TooMuchBadData) as error:
        kind = type(error) if isinstance(error, UserError | TooMuchBadData) else ValueError
        raise kind(_rename(str(error))) from error


def _rename(line: str) -> str:
    return line.replace("input", OPTION, 1) if line.startswith(("input=", "input:")) else line


def index_pairs(pairs: Pairs, held: Pairs | None, config: TrainConfig, work: Folder) -> tuple[Index, HeldOut]:
    """List the training pairs and the held-out pairs in ``work``.

    ``held``: the place of the held-out pairs if they are an input, else none. Raises as
    ``make_index``, and ValueError where fewer than two pairs would be held out.
    """
    share, seed = read_share_or_none(config.train.held_out), config.train.seed

    def hold_out(uris: Sequence[str]) -> np.ndarray:
        """Take the share out of the tables. A second call, also after a kill, takes out the same pairs."""
        _draw(uris, share, seed, work)
        for _ in map_tasks(_load, list(enumerate(uris)), pairs, work, True, label="hold out pairs"):
            pass
        return _read(work, _DRAWN)

    def collect(index: Index, num_pairs: int, source: Pairs, warnings: Iterable[str] = ()) -> HeldOut:
        """Return the evaluated pairs; of a shard without one there is no table."""
        uris = [work.at(_FOLDER, _part(ordinal)) for ordinal in range(len(index.uris))]
        parts = list(map_files(read_columns, uris, [IMAGE_SHA256], label="count held-out pairs"))
        filled = tuple(uri for uri, part in zip(uris, parts, strict=True) if len(part))
        key_E = key_images([one for part in parts for one in part[IMAGE_SHA256].to_pylist()])
        return HeldOut(filled, source.max_pixels, num_pairs, key_E, tuple(warnings))

    index = make_index(pairs, work, None if share is None else hold_out)
    if share is not None:
        return index, collect(index, len(_read(work, _DRAWN)), pairs)
    assert held is not None, "neither a share nor an input"
    with _named_option():
        own = make_index(held, Folder(work.at(_FOLDER)))
    _draw(own.uris, None, seed, work)
    for _ in map_tasks(_load, list(enumerate(own.uris)), held, work, label="load held-out pairs"):
        pass
    return index, collect(own, own.tally["samples"], held, map(_rename, own.warnings))


def _draw(uris: Sequence[str], share: float | None, seed: int, work: Folder) -> None:
    """Write which pairs are held out (without a share, all) and which of them are evaluated.

    A second call changes nothing: by then the tables may lack the drawn pairs."""
    if work.exists(_FOLDER, _EVALUATED):
        return
    parts = list(map_files(uids_in, uris, label="draw held-out pairs"))
    uid_N2 = np.concatenate([np.empty((0, 2), np.uint64), *parts])
    num = len(uid_N2) if share is None else exact_share(share, len(uid_N2))
    if num < _LEAST:
        value = "the input" if share is None else share
        raise ValueError(
            f"{OPTION}={value}: holds out {num:,} of {len(uid_N2):,} pairs, must hold out at least {_LEAST}; "
            "name a larger share or input"
        )
    order_N = np.lexsort((uid_N2[:, 1], uid_N2[:, 0], hash_uids(uid_N2, seed ^ _SALT)))
    drawn_H2 = uid_N2[order_N[:num]]
    evaluated = _choose_distinct(uris, drawn_H2[:_CANDIDATES])
    if len(evaluated) < _LEAST:
        raise ValueError(f"{OPTION}: all held-out pairs have the same image or caption; name another input")
    if share is not None:
        _write(drawn_H2, work, _DRAWN)
    _write(evaluated, work, _EVALUATED)


def _choose_distinct(uris: Sequence[str], uid_C2: np.ndarray) -> np.ndarray:
    """Return the first ``MOST`` of the pairs whose image and first caption no earlier pair has; (E, 2)."""
    key_C = to_keys(uid_C2)
    rows = {
        key: (image, text)
        for found in map_files(_describe, uris, np.sort(key_C), label="choose held-out pairs")
        for key, image, text in zip(*found, strict=True)
    }
    images, texts, chosen = set(), set(), []
    for number, key in enumerate(key_C.tolist()):
        image, text = rows[key]
        if image not in images and text not in texts:
            chosen.append(number)
        images.add(image)
        texts.add(text)
    return uid_C2[chosen[:MOST]]


def _describe(uri: str, key_C: np.ndarray) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return the keys of a table's pairs that are among ``key_C``, of their images, and of their captions."""
    table = read_columns(uri, [UID, IMAGE_SHA256, CAPTIONS])
    key_N = to_keys(parse_uids(table[UID]))
    is_named = find_keys(key_C, key_N) >= 0
    table = table.filter(pa.array(is_named))
    image = key_images(table[IMAGE_SHA256].to_pylist())
    text = key_texts([captions[0] for captions in table[CAPTIONS].to_pylist()])
    return key_N[is_named].tolist(), image.tolist(), text.tolist()


def _load(item: tuple[int, str], pairs: Pairs, work: Folder, drops: bool = False) -> None:
    """Write the evaluated pairs of a shard with their images, once; ``drops``: then remove the drawn pairs
    from the shard's table."""
    ordinal, uri = item
    index = read_columns(uri)
    key_N = to_keys(parse_uids(index[UID]))
    if not work.exists(_FOLDER, _part(ordinal)):
        evaluated = np.sort(to_keys(_read(work, _EVALUATED)))
        own = index.filter(pa.array(find_keys(evaluated, key_N) >= 0))
        table = load_shard(replace(pairs, negative_images=()), ordinal, own)
        first = pc.list_element(table[CAPTIONS], 0) if len(table) else pa.array([], pa.string())
        found = table.select([UID, IMAGE_SHA256, IMAGE]).append_column(CAPTION, first)
        write_table(found, work.at(_FOLDER, _part(ordinal)), _SCHEMA)
    if drops:
        stays_N = find_keys(np.sort(to_keys(_read(work, _DRAWN))), key_N) < 0
        if not stays_N.all():
            write_table(index.filter(pa.array(stays_N)), uri, PAIRS_SCHEMA)


def _part(ordinal: int) -> str:
    return f"{ordinal:05d}.parquet"


def write_start(values: Mapping[str, float], work: Folder) -> None:
    """Store the figures of the model before its first step until run.json has them."""
    work.write_json({"step": 0, **values}, _FOLDER, _START)


def read_start(work: Folder) -> list[dict[str, float]]:
    """Return what ``write_start`` stored, as the first evaluation, or no evaluation."""
    return [work.read_json(_FOLDER, _START)] if work.exists(_FOLDER, _START) else []


def _read(work: Folder, name: str) -> np.ndarray:
    return np.load(io.BytesIO(work.read_bytes(_FOLDER, name)), allow_pickle=False)


def _write(array: np.ndarray, work: Folder, name: str) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    work.write_bytes(buffer.getvalue(), _FOLDER, name)
