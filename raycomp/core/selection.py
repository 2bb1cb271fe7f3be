"""Exact selection at any size: the k best rows of a corpus that is never in one memory; uids as keys, and the
images and texts that two sets of samples share.

Rows are ordered by score, best first, ties to the smaller uid. That order is the order of a 160-bit key: the
complement of the score's sortable bits followed by the uid. The k-th key is found 16 bits at a time from
histograms, which any number of workers count and which add in any order. Two passes determine the score.
Further passes read the uid only if the k-th score is tied, until exactly k rows are at or before the key.

Letters: N rows of a chunk, or queried keys; M sorted keys; 2 halves of a uid. A uid is 32 hex digits; in
arrays it is two uint64, the first 16 digits and the last 16, so that order by halves is order by text.

Shared images and texts: a key is the first 16 bytes of a SHA-256, of an image's bytes or of a text after
``normalise_text``. Known keys are sorted, each once; parts that are read separately are merged. Memory is 16
bytes for each known key; the queried keys can come in blocks of any size. K known keys, T texts, P pairs of
image and text.

- An image on both sides is shared, with any text: a model that learned from it has seen the evidence of the
  answer, and another caption or box does not change that. A copy that was resized or encoded again has other
  bytes and is not found, so a count is a lower bound.
- A text on both sides is counted separately and makes no sample shared: all images of a class have the same
  prompts, and short captions repeat by chance. A known text still has to be found for a new image.
- An entry without a key, such as an unreadable image, is not shared.
"""

import binascii
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from raycomp import words
from raycomp.config import UserError

KEY = np.dtype("S16")
# Uids whose duplicates are searched together; sorting takes some 80 bytes for each.
_BUCKET_ROWS = 4_000_000


def to_keys(uid_N2: np.ndarray) -> np.ndarray:
    """Return uids, uint64 (N, 2), as keys (N,) in the same order."""
    return np.ascontiguousarray(uid_N2, ">u8").view(KEY).reshape(-1)


def from_keys(key_N: np.ndarray) -> list[str]:
    """Return keys as uids of 32 hex digits."""
    return format_uids(np.frombuffer(key_N.astype(KEY).tobytes(), ">u8").astype(np.uint64).reshape(-1, 2))


def find_keys(key_M: np.ndarray, key_N: np.ndarray) -> np.ndarray:
    """Return the first index of each key among the sorted ``key_M``, int64 (N,); -1 if it is absent."""
    if not len(key_M):
        return np.full(len(key_N), -1)
    place_N = np.searchsorted(key_M, key_N)
    found_N = key_M[np.minimum(place_N, len(key_M) - 1)] == key_N
    return np.where(found_N, place_N, -1)


def count_keys(key_M: np.ndarray, key_N: np.ndarray) -> np.ndarray:
    """Return the count of each key among the sorted ``key_M``, int64 (N,)."""
    return np.searchsorted(key_M, key_N, side="right") - np.searchsorted(key_M, key_N)


def drop_duplicates(uids: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return which rows of each shard stay, bool: the first of every uid in the order of shards and rows.

    ``uids`` are uint64 (n, 2), one array for each shard. In addition it takes a byte a row and the memory of
    one bucket.
    """
    num_buckets = max(1, -(-sum(map(len, uids)) // _BUCKET_ROWS))
    keep = [np.ones(len(uid_n2), bool) for uid_n2 in uids]
    for bucket in range(num_buckets):
        rows = [np.flatnonzero(bucket_of(uid_n2, num_buckets) == bucket) for uid_n2 in uids]
        if not any(map(len, rows)):
            continue
        uid_N2 = np.concatenate([uid_n2[row_n] for uid_n2, row_n in zip(uids, rows, strict=True)])
        shard_N = np.repeat(np.arange(len(uids)), [len(row_n) for row_n in rows])
        row_N = np.concatenate(rows)
        later_N = find_firsts(uid_N2, shard_N, row_N) != np.arange(len(row_N))
        for shard, row in zip(shard_N[later_N], row_N[later_N], strict=True):
            keep[shard][row] = False
    return keep


NUM_BINS = 1 << 16
NUM_SCORE_DIGITS = 2
NUM_DIGITS = 10
_SIGN = np.uint32(0x8000_0000)
_MASK_64 = (1 << 64) - 1


def parse_uids(uids: Any) -> np.ndarray:
    """Return uids as uint64 of shape (N, 2); upper and lower case are the same uid.

    ``uids`` is a sequence of str or a pyarrow string array, chunked or not, which is read without making
    Python objects. Raises ValueError naming the first that is not 32 hex digits (or is null).
    """
    if hasattr(uids, "combine_chunks"):
        uids = uids.combine_chunks()
    try:
        raw = binascii.unhexlify(_hex_text(uids))
    except (ValueError, TypeError) as error:
        texts = uids.to_pylist() if hasattr(uids, "to_pylist") else uids
        bad = next(uid for uid in texts if not re.fullmatch("[0-9a-fA-F]{32}", str(uid)))
        raise ValueError(f"uid={bad!r}: must be 32 hex digits") from error
    return np.frombuffer(raw, ">u8").astype(np.uint64).reshape(-1, 2)


def _hex_text(uids: Any) -> bytes | memoryview:
    """Return the digits of all uids as one run of bytes; ValueError or TypeError if a uid is invalid."""
    if not len(uids):
        return b""
    if hasattr(uids, "buffers"):
        _, offset_buffer, data = uids.buffers()
        offset_type = {"string": np.int32, "large_string": np.int64}[str(uids.type)]
        offsets = np.frombuffer(offset_buffer, offset_type)[uids.offset : uids.offset + len(uids) + 1]
        if uids.null_count or (np.diff(offsets) != 32).any():
            raise ValueError("a uid is null or of another length")
        return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]].data
    if set(map(len, uids)) != {32}:
        raise ValueError("a uid is of another length")
    return "".join(uids).encode("ascii")


def format_uids(uid_N2: np.ndarray) -> list[str]:
    """Return the 32 lower-case hex digits of each uid."""
    text = uid_N2.astype(">u8").tobytes().hex()
    return [text[start : start + 32] for start in range(0, len(text), 32)]


def check_scores(score_N: np.ndarray, uid_N2: np.ndarray) -> None:
    """Raise ValueError naming the uid of the first score that is NaN; infinities are valid scores."""
    bad_N = np.isnan(score_N)
    if bad_N.any():
        row = int(bad_N.argmax())
        raise ValueError(f"score of uid {format_uids(uid_N2[row : row + 1])[0]} is NaN: must be a number")


def sortable_bits(score_N: np.ndarray) -> np.ndarray:
    """Return uint32 in the order of the float32 scores, -0.0 equal to 0.0, denormals and infinities too.

    Raises ValueError on NaN (``check_scores`` names the uid) and on any dtype except float32: it would need
    rounding, which could tie different scores.
    """
    if score_N.dtype != np.float32:
        raise ValueError(f"score has dtype {score_N.dtype}: must be float32")
    bad_N = np.isnan(score_N)
    if bad_N.any():
        raise ValueError(f"score of row {int(bad_N.argmax())} is NaN: must be a number")
    bits_N = score_N.view(np.uint32)
    bits_N = np.where(bits_N == _SIGN, np.uint32(0), bits_N)
    return bits_N ^ (np.negative(bits_N >> 31) | _SIGN)


@dataclass(frozen=True)
class Threshold:
    """A selection's threshold: rows of better score stay, and tied rows up to ``uid``."""

    count: int
    """Rows it keeps of the rows that were searched."""
    bits: int | None
    """Sortable bits of the lowest kept score; none if no row is kept."""
    uid: tuple[int, int] | None = None
    """Among rows of that score, the ones up to this uid stay; none = all of them."""

    @property
    def value(self) -> float | None:
        """The lowest kept score; none if no row is kept."""
        if self.bits is None:
            return None
        bits = self.bits ^ (0x8000_0000 if self.bits >> 31 else 0xFFFF_FFFF)
        return float(np.uint32(bits).view(np.float32))

    def to_dict(self) -> dict[str, int | str | None]:
        """Return values that json holds exactly; the uid as text."""
        uid = None if self.uid is None else f"{self.uid[0]:016x}{self.uid[1]:016x}"
        return {"count": self.count, "bits": self.bits, "uid": uid}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Threshold":
        """Return the threshold that ``to_dict`` wrote."""
        uid = values["uid"]
        halves = None if uid is None else (int(uid[:16], 16), int(uid[16:], 16))
        return cls(values["count"], values["bits"], halves)


@dataclass
class KthSearch:
    """The search for the k-th best row; its state is a few hundred bytes, which are sent to the workers.

    ::

        search = KthSearch(k)
        while not search.done:
            search.advance(sum(count_digit(search, score_N, uid_N2) for score_N, uid_N2 in chunks))
        kept_N = keep_mask(search.threshold, score_N, uid_N2)

    With ``keep_ties`` every row of the k-th score stays, so more than k rows may stay.
    """

    k: int
    keep_ties: bool = False
    digits: tuple[int, ...] = field(default=(), init=False)
    """The leading digits of the k-th key, 16 bits each."""
    rank: int = field(default=0, init=False)
    """The k-th row has this rank (from 1) among the rows whose keys start with ``digits``."""
    num_open: int | None = field(default=None, init=False)
    """Number of these rows; none before the first pass."""

    def __post_init__(self) -> None:
        if self.k < 0:
            raise ValueError(f"k={self.k}: must be at least 0")
        self.rank = self.k

    @property
    def done(self) -> bool:
        if self.k == 0:
            return True
        return len(self.digits) >= NUM_SCORE_DIGITS and (self.keep_ties or self.num_open == self.rank)

    @property
    def needs_uid(self) -> bool:
        """Whether the next pass reads uids; the first two need only scores."""
        return len(self.digits) >= NUM_SCORE_DIGITS

    def advance(self, count_V: np.ndarray) -> None:
        """Take in the counts of one pass over all rows, int64 of shape (65536,).

        Raises ValueError if k exceeds the rows, if this pass saw other rows than the pass before, and if two
        rows share score and uid so that no key separates them.
        """
        total = int(count_V.sum())
        if self.num_open is None and self.k > total:
            raise ValueError(f"k={self.k}: must be at most the number of rows, {total}")
        if self.num_open not in (None, total):
            raise ValueError(f"a pass counted {total} rows where the one before left {self.num_open}")
        end_V = np.cumsum(count_V)
        digit = int(np.searchsorted(end_V, self.rank))
        self.num_open = int(count_V[digit])
        self.rank -= int(end_V[digit]) - self.num_open
        self.digits += (digit,)
        if len(self.digits) == NUM_DIGITS and not self.done:
            uid = "".join(f"{part:04x}" for part in self.digits[NUM_SCORE_DIGITS:])
            raise ValueError(f"uid {uid} occurs {self.num_open} times with one score: uids must be unique")

    @property
    def threshold(self) -> Threshold:
        """The result of a search that is done."""
        if self.k == 0:
            return Threshold(0, None)
        assert self.done and self.num_open is not None, "the search is not done"
        bits = 0xFFFF_FFFF ^ (self.digits[0] << 16 | self.digits[1])
        count = self.k - self.rank + self.num_open
        if len(self.digits) == NUM_SCORE_DIGITS:
            return Threshold(count, bits)
        uid = 0
        for place in range(NUM_SCORE_DIGITS, NUM_DIGITS):
            uid = uid << 16 | (self.digits[place] if place < len(self.digits) else 0xFFFF)
        return Threshold(count, bits, (uid >> 64, uid & _MASK_64))


def count_digit(search: KthSearch, score_N: np.ndarray, uid_N2: np.ndarray | None = None) -> np.ndarray:
    """Return one chunk's histogram of the next digit among undecided rows, int64 of shape (65536,).

    ``uid_N2`` may be none while ``search.needs_uid`` is False. Raises ValueError on NaN.
    """
    if uid_N2 is not None:
        check_scores(score_N, uid_N2)
    key_N = ~sortable_bits(score_N)
    for place, digit in enumerate(search.digits):
        row_M = np.flatnonzero(_digit(key_N, uid_N2, place) == digit)
        key_N = key_N[row_M]
        uid_N2 = None if uid_N2 is None else uid_N2[row_M]
    return np.bincount(_digit(key_N, uid_N2, len(search.digits)), minlength=NUM_BINS)


def _digit(key_N: np.ndarray, uid_N2: np.ndarray | None, place: int) -> np.ndarray:
    """Return the 16-bit digit at ``place`` (0 to 9, most significant first) of each row's key."""
    if place < NUM_SCORE_DIGITS:
        word_N, shift = key_N, 16 * (1 - place)
    else:
        assert uid_N2 is not None, "rows of one score need uids"
        half, quarter = divmod(place - NUM_SCORE_DIGITS, 4)
        word_N, shift = uid_N2[:, half], 48 - 16 * quarter
    return (word_N >> word_N.dtype.type(shift)).astype(np.uint16)


def keep_mask(threshold: Threshold, score_N: np.ndarray, uid_N2: np.ndarray | None = None) -> np.ndarray:
    """Return which rows of a chunk stay, bool (N,); over all chunks exactly ``threshold.count`` are True.

    ``uid_N2`` may be none where ``threshold.uid`` is. Raises ValueError on NaN.
    """
    if uid_N2 is not None:
        check_scores(score_N, uid_N2)
    bits_N = sortable_bits(score_N)
    if threshold.bits is None:
        return np.zeros(len(bits_N), dtype=bool)
    keep_N = bits_N >= np.uint32(threshold.bits)
    if threshold.uid is not None:
        assert uid_N2 is not None, "rows of one score need uids"
        tied_M = np.flatnonzero(bits_N == np.uint32(threshold.bits))
        first_M, last_M = uid_N2[tied_M].T
        first, last = (np.uint64(half) for half in threshold.uid)
        keep_N[tied_M] = (first_M < first) | ((first_M == first) & (last_M <= last))
    return keep_N


def kth_datacomp(num_rows: int, fraction: float) -> KthSearch:
    """Return the search whose threshold is DataComp's ``-np.sort(-s)[int(n * f)]``, kept by ``>=``.

    Gadre et al. 2023, arXiv:2304.14108, baselines/apply_filter.py. That keeps int(n * f) + 1 rows and all
    that tie with the last, with n * f rounded as a double. A fraction of 1 is an IndexError there; here a
    ValueError.
    """
    index = int(num_rows * fraction)
    if fraction < 0 or index >= num_rows:
        problem = f"must be at least 0 and below 1 of {num_rows} rows for DataComp's rule"
        raise ValueError(f"fraction={fraction}: {problem}")
    return KthSearch(index + 1, keep_ties=True)


def hash_uids(uid_N2: np.ndarray, seed: int) -> np.ndarray:
    """Return uint64 values that depend only on each uid and ``seed``: splitmix64 (Steele et al. 2014) chained
    over seed, first and second half. Not cryptographic."""
    state = _splitmix64(np.array([seed & _MASK_64], dtype=np.uint64))
    return _splitmix64(_splitmix64(state ^ uid_N2[:, 0]) ^ uid_N2[:, 1])


def _splitmix64(x_N: np.ndarray) -> np.ndarray:
    x_N = x_N + np.uint64(0x9E3779B97F4A7C15)
    x_N = (x_N ^ (x_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x_N = (x_N ^ (x_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x_N ^ (x_N >> np.uint64(31))


def random_scores(uid_N2: np.ndarray, seed: int) -> np.ndarray:
    """Return float32 scores, uniform on the multiples of 2^-24 in [0, 1), for the random control.

    A row's score does not depend on the other rows; ties go to the smaller uid as everywhere.
    """
    return (hash_uids(uid_N2, seed) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def bucket_of(uid_N2: np.ndarray, num_buckets: int) -> np.ndarray:
    """Return each uid's bucket, int64 in [0, num_buckets), uniform even if uids are consecutive numbers."""
    return (hash_uids(uid_N2, 0) % np.uint64(num_buckets)).astype(np.int64)


def find_firsts(uid_N2: np.ndarray, ordinal_N: np.ndarray, position_N: np.ndarray) -> np.ndarray:
    """Return for each row the index of the first row with its uid by (ordinal, position), int64 (N,).

    The bucket may be in any order and must hold every row of the uids in it (``bucket_of``).
    """
    order_N = np.lexsort((position_N, ordinal_N, uid_N2[:, 1], uid_N2[:, 0]))
    sorted_N2 = uid_N2[order_N]
    is_first_N = np.ones(len(order_N), bool)
    is_first_N[1:] = (sorted_N2[1:] != sorted_N2[:-1]).any(axis=1)
    first_N = np.empty(len(order_N), np.int64)
    first_N[order_N] = order_N[is_first_N][np.cumsum(is_first_N) - 1]
    return first_N


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


class Leak(NamedTuple):
    """The overlap between one test set and one training set."""

    test: str
    train: str
    """The training set as a sentence names it: "the training images of a"."""
    shared: Shared

    def __str__(self) -> str:
        num, num_images = self.shared.images, self.shared.num_images
        share = f"{100 * self.shared.share:.1f} %"
        return f"{self.test}: {num:,} of {num_images:,} test images are among {self.train} ({share})"

    def describe(self) -> dict[str, Any]:
        """Return the fields for run.json."""
        return {"test": self.test, "train": self.train, **self.shared._asdict()}


def warn_leak(leak: Leak, overlap: str) -> list[str]:
    """Return a line where images are shared, else no line; ``overlap``: warn or drop."""
    if not leak.shared.images:
        return []
    then = "they are left out (overlap=drop)" if overlap == words.DROP else "overlap=drop leaves them out"
    return [f"{leak}; {then}"]


def check_left(leak: Leak, overlap: str) -> None:
    """Raise UserError where the test set would have no image left."""
    if overlap == words.DROP and leak.shared.images and leak.shared.images == leak.shared.num_images:
        raise UserError(
            f"overlap=drop: {leak}, which empties the test set; name other images, or set overlap=warn"
        )


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
    return words.strip("".join(one for one in {*words} if one == " " or unicodedata.category(one)[0] == "P"))


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
    images, texts = find_shared(known.image_K, image_N), find_shared(known.text_K, own_T)
    return Shared(int((image_N != NO_KEY).sum()), int(images.sum()), len(own_T), int(texts.sum()))


def join_keys(image_P: np.ndarray, text_P: np.ndarray) -> np.ndarray:
    """Return one key (P,) for each image with its text, 32 bytes; NO_KEY if either has none."""
    halves = [np.ascontiguousarray(one).view(np.uint8).reshape(-1, KEY.itemsize) for one in (image_P, text_P)]
    pair_P = np.concatenate(halves, axis=1).view(f"S{2 * KEY.itemsize}").reshape(-1)
    return np.where((image_P != NO_KEY) & (text_P != NO_KEY), pair_P, NO_KEY)
