"""Overlap of a training side and a test side: images by their bytes, texts by their normalised words.

A key is the first 16 bytes of a SHA-256: of an image's bytes, or of a text after ``normalise_text``. Known
keys are sorted, each once. Parts of a side that are read separately get keys separately and are merged.
Memory is 16 bytes for each known key; the queried keys can come in blocks of any size.

Rules:

- An image on both sides is shared, with any text: a model that learned from it has seen the evidence of the
  answer, and another caption or box does not change that. The same bytes are the same image. A copy that was
  resized or encoded again has other bytes and is not found, so a count is a lower bound.
- A text on both sides is counted separately and makes no sample shared: all images of a class have the same
  prompts, and short captions repeat by chance. A known text still has to be found for a new image.
- An entry without a key, such as an unreadable image, is not shared.

N queried samples, T texts, K known keys, P pairs of image and text.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from raycomp.core.selection import KEY, find_keys

NO_KEY = b""
"""The key of entries that cannot be compared: 16 zero bytes."""


class Known(NamedTuple):
    """The training side, the result of ``merge_keys``."""

    image_K: np.ndarray
    text_K: np.ndarray


class Shared(NamedTuple):
    """The overlap of a test side with the training side."""

    num_images: int
    """Samples of the test that have an image."""
    images: int
    """Those of them whose image is shared: the leaks."""
    num_texts: int
    """Texts of the test, each once."""
    texts: int
    """Those of them that are shared, with any image."""

    @property
    def share(self) -> float:
        """The share of samples whose image is shared; 0 without samples."""
        return self.images / self.num_images if self.num_images else 0.0


def key_images(sha256s: Sequence[str | None]) -> np.ndarray:
    """Return the keys (N,) of images by the hex digits of their SHA-256; NO_KEY for None."""
    return np.array([bytes.fromhex(one[:32]) if one else NO_KEY for one in sha256s], KEY)


def key_texts(texts: Sequence[str | None]) -> np.ndarray:
    """Return the keys (T,) of texts; NO_KEY for None and for texts without content."""
    plain = [normalise_text(text) if text else "" for text in texts]
    return np.array([hashlib.sha256(one.encode()).digest()[:16] if one else NO_KEY for one in plain], KEY)


def normalise_text(text: str) -> str:
    """Return a canonical text: different spellings of the same words become equal.

    Unicode NFKC and full case folding; white space collapsed; punctuation removed at both ends, such as a
    final full stop. Punctuation inside stays: "black, white" and "black white" are two texts. Characters that
    cannot be encoded become "?".
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    words = " ".join(folded.encode("utf-8", "replace").decode().split())
    start, end = 0, len(words)
    while start < end and _is_edge(words[start]):
        start += 1
    while start < end and _is_edge(words[end - 1]):
        end -= 1
    return words[start:end]


def _is_edge(letter: str) -> bool:
    return letter == " " or unicodedata.category(letter).startswith("P")


def merge_keys(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Return all keys of the parts, sorted, each once, without NO_KEY."""
    found = np.unique(np.concatenate([np.zeros(0, KEY), *parts]))
    return found[found != NO_KEY]


def merge_known(parts: Sequence[Known]) -> Known:
    """Return several training sides as one."""
    return Known(merge_keys(one.image_K for one in parts), merge_keys(one.text_K for one in parts))


def find_shared(known_K: np.ndarray, key_N: np.ndarray) -> np.ndarray:
    """Return which keys are among the known ones, bool (N,)."""
    return (find_keys(known_K, key_N) >= 0) & (key_N != NO_KEY)


def count_shared(known: Known, image_N: np.ndarray, text_T: np.ndarray) -> Shared:
    """Return the known part of a test: its samples' images (N,), and its texts (T,), which may repeat."""
    own_T = merge_keys([text_T])
    return Shared(
        num_images=int((image_N != NO_KEY).sum()),
        images=int(find_shared(known.image_K, image_N).sum()),
        num_texts=len(own_T),
        texts=int(find_shared(known.text_K, own_T).sum()),
    )


def join_keys(image_P: np.ndarray, text_P: np.ndarray) -> np.ndarray:
    """Return one key (P,) for each image with its text, 32 bytes; NO_KEY if either has none."""
    halves = [np.ascontiguousarray(one).view(np.uint8).reshape(-1, KEY.itemsize) for one in (image_P, text_P)]
    pair_P = np.concatenate(halves, axis=1).view(f"S{2 * KEY.itemsize}").reshape(-1)
    return np.where((image_P != NO_KEY) & (text_P != NO_KEY), pair_P, NO_KEY)
