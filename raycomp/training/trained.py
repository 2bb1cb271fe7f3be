"""Keys of the training pairs, written with the model: ``raycomp evaluate`` compares tests with them.

Two sorted arrays of 16-byte keys, see ``core.leaks``: of images, and of all their captions. Hard negatives
and their images are not among them.
"""

import hashlib
import io

import numpy as np

from raycomp.core.leaks import Known, key_images, key_texts, merge_keys, merge_known
from raycomp.core.uids import KEY
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results, read_result
from raycomp.data.parquet import read_columns
from raycomp.data.paths import CHECKPOINT, RUN, WEIGHTS
from raycomp.data.runs import read_finished
from raycomp.data.written import ResultFile
from raycomp.words import CAPTIONS, IMAGE_SHA256

TRAINED = ("trained_images.npy", "trained_texts.npy")
"""At the top of a training's folder, in the order of ``Known``."""


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
    images, texts = (_read_array(files[name]) for name in TRAINED)
    return Known(images, texts)


def _read_array(uri: ResultFile) -> np.ndarray:
    try:
        key_K = np.load(io.BytesIO(read_result(uri)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        line = " ".join(str(error).split())[:200]
        raise ValueError(f"{uri}: does not hold the keys of a training ({line})") from error
    if key_K.dtype != KEY or key_K.ndim != 1 or (key_K[1:] <= key_K[:-1]).any():
        raise ValueError(f"{uri}: does not hold the keys of a training: must be sorted, without duplicates")
    return key_K


def identify_trained(known: Known) -> str:
    """Return a digest of the keys."""
    return hashlib.sha256(b"".join(key_K.tobytes() for key_K in known)).hexdigest()
