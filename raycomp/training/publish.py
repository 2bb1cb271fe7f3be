"""A trained model in the layout of open_clip's hub, and the keys of its training pairs.

Two sorted arrays of 16-byte keys, see ``core.leaks``: of images, and of all their captions. Hard negatives
and their images are not among them.
"""

import hashlib
import io
import posixpath
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from raycomp.config import DryRun, ModelConfig
from raycomp.core.leaks import Known, key_images, key_texts, merge_keys, merge_known
from raycomp.core.selection import KEY
from raycomp.data.files import Folder, ResultFile, check_writable, is_dry_run
from raycomp.data.manifest import check_results, read_result
from raycomp.data.parquet import read_columns
from raycomp.data.paths import ARCHITECTURE, CHECKPOINT, RUN, WEIGHTS
from raycomp.data.runs import read_finished
from raycomp.models.architecture import HUB_CONFIG
from raycomp.words import CAPTIONS, IMAGE_SHA256

TRAINED = ("trained_images.npy", "trained_texts.npy")
"""At the top of a training's folder, in the order of ``Known``."""

# The files of a model and its tokenizer.
_PUBLISHED = (".safetensors", ".json", ".jsonl", ".txt", ".model", ".jinja")
PUBLISHED_WEIGHTS = "open_clip_model.safetensors"


def read_keys(uri: str) -> Known:
    """Return the keys of the pairs in an index (PAIRS_SCHEMA)."""
    table = read_columns(uri, [IMAGE_SHA256, CAPTIONS])
    image_N = key_images(table[IMAGE_SHA256].to_pylist())
    texts = [text for captions in table[CAPTIONS].to_pylist() for text in captions or ()]
    return Known(merge_keys([image_N]), merge_keys([key_texts(texts)]))


def merge_some(parts: list[Known]) -> list[Known]:
    """Return the union of several, in a list."""
    return [merge_known(parts)]


def write_trained(known: Known, folder: Folder) -> None:
    """Write the keys to the top of a training's folder."""
    for name, key_K in zip(TRAINED, known, strict=True):
        buffer = io.BytesIO()
        np.save(buffer, key_K, allow_pickle=False)
        folder.write_bytes(buffer.getvalue(), name)


def read_trained(weights: str) -> Known | None:
    """Return the keys of the training that wrote ``weights``; none where the file has none.

    ``weights``: the file, as ``find_model`` names it. Raises ValueError where an array has changed.
    """
    start, found, _ = weights.partition(f"/{CHECKPOINT}/{WEIGHTS}")
    folder = Folder(start)
    if not found or not folder.exists(RUN):
        return None
    files = check_results(folder, read_finished(folder.uri), *TRAINED)
    if not all(name in files for name in TRAINED):
        return None
    found_keys = []
    for uri in (files[name] for name in TRAINED):
        try:
            key_K = np.load(io.BytesIO(read_result(uri)), allow_pickle=False)
        except (ValueError, EOFError) as error:
            line = " ".join(str(error).split())[:200]
            raise ValueError(f"{uri}: does not hold the keys of a training ({line})") from error
        if key_K.dtype != KEY or key_K.ndim != 1 or (key_K[1:] <= key_K[:-1]).any():
            raise ValueError(
                f"{uri}: does not hold the keys of a training: must be sorted, without duplicates"
            )
        found_keys.append(key_K)
    return Known(*found_keys)


def identify_trained(known: Known) -> str:
    """Return a digest of the keys."""
    return hashlib.sha256(b"".join(key_K.tobytes() for key_K in known)).hexdigest()


def publish(source: str, out: str, say: Callable[[str], object] = print) -> None:
    """Write the model of the training in ``source`` to ``out``, after loading it as a test.

    ``open_clip.create_model_and_transforms("local-dir:OUT")`` loads it; uploaded as it is, ``hf-hub:`` does.
    Only files that the training wrote are copied, and of these no pickle. Raises ValueError where ``source``
    holds no finished training, its model has changed, or ``out`` is not empty or cannot be written.
    """
    found, folder = Folder(source), Folder(out)
    files = _list_files(found)
    check_writable(out)
    if folder.list_names():
        raise ValueError(f"--out {out}: holds other files; name a folder that is empty or new")
    if is_dry_run():
        raise DryRun(
            f"dry run of publish: all checks passed, nothing was written; {len(files)} files would be"
        )
    from raycomp.models.clip import load_start, load_tokenizer  # behind all checks

    with TemporaryDirectory() as local:
        for name, file in files.items():
            (Path(local) / name).write_bytes(read_result(file))
        try:
            published = ModelConfig(name=f"local-dir:{local}")
            load_start(published)
            load_tokenizer(published)
        except ValueError as error:
            raise ValueError(f"{found.at(CHECKPOINT)}: the model is incomplete ({error})") from error
        for name in files:
            folder.write_bytes((Path(local) / name).read_bytes(), name)
    say(f'{out}: load it with open_clip.create_model_and_transforms("local-dir:{out}")')


def _list_files(source: Folder) -> dict[str, ResultFile]:
    """Return the files that are published by their new names, the one that describes the model last."""
    above, name = posixpath.split(source.uri.rstrip("/"))
    if name == CHECKPOINT and Folder(above).exists(RUN):
        raise ValueError(f"{source.uri}: is part of a training; name the training's folder, {above}")
    run = read_finished(source.uri)
    if run["kind"] != "train":
        raise ValueError(f"{source.uri}: holds {run['kind']}, must hold a training")
    written = {posixpath.basename(file): file for file in check_results(source, run, CHECKPOINT).values()}
    folders = Folder(source.at(CHECKPOINT)).list_folders()
    if folders:
        raise ValueError(
            f"{source.at(CHECKPOINT, folders[0])}: is a folder; a model has files only; move it out"
        )
    if ARCHITECTURE not in written or WEIGHTS not in written:
        raise ValueError(
            f"{source.at(CHECKPOINT)}: the model is incomplete: {ARCHITECTURE} or {WEIGHTS} is missing"
        )
    names = [name for name in written if name != ARCHITECTURE and name.endswith(_PUBLISHED)]
    names.sort(key=lambda name: name == HUB_CONFIG)
    return {PUBLISHED_WEIGHTS if name == WEIGHTS else name: written[name] for name in names}
