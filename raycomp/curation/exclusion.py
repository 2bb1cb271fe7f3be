"""Lists and tables of the user's, and the list of rows to leave out.

They are read once and shared with all tasks. Rows are found by sorted 128-bit hashes of their keys.
"""

import hashlib
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from pyarrow import csv, fs

from raycomp.config import UserError
from raycomp.core.uids import find_keys, to_keys
from raycomp.curation.config import FilterConfig
from raycomp.curation.scored import Found, ScoresFile
from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns
from raycomp.data.paths import resolve, resolve_file
from raycomp.data.rows import parse_uid
from raycomp.data.written import hash_file
from raycomp.words import EXCLUDED, EXCLUDED_AFTER, IMAGE_SHA256, KEY, SHARD, UID, URL

JOIN, EXCLUDE = "filter.join", "filter.exclude"
SHA256, DOMAIN = "sha256", "domain"
# The columns by which rows are found in a table, with those of scores/.
KEYS = {UID: UID, SHA256: IMAGE_SHA256, URL: URL, KEY: KEY}
_LISTED = (UID, SHA256, URL, DOMAIN)
REMOVABLE = (*_LISTED, SHARD)
_NAMES = {UID: "a uid", SHA256: "a SHA-256", URL: "a url", DOMAIN: "a domain", SHARD: "a shard's name"}
MOST_ROWS = 50_000_000
"""Rows of a table or a list: every worker holds them."""
_HEX = re.compile(r"[0-9a-fA-F]+")


def hash_keys(kind: str, values: Sequence[str | None]) -> np.ndarray:
    """Return keys of values of a kind (uid, sha256, url, key, domain), to be compared; null has its own."""
    texts = [value if value is None else _normalise(kind, value) for value in values]
    hashes = b"".join(
        hashlib.blake2b(b"\0" if text is None else f"\1{text}".encode(), digest_size=16).digest()
        for text in texts
    )
    return to_keys(np.frombuffer(hashes, ">u8").astype(np.uint64).reshape(-1, 2))


def _normalise(kind: str, value: str) -> str:
    if kind == UID:
        return parse_uid(value) or value
    return value.lower() if kind in (SHA256, DOMAIN) else value


@dataclass(frozen=True)
class Exclusion:
    """Finds the rows of a file that are in a list, by uid, sha256, url or domain."""

    lists: dict[str, np.ndarray]
    """Sorted keys by kind."""
    is_after: bool

    def __call__(self, file: ScoresFile) -> Found:
        """Return the reason ``excluded`` for each row of the list."""
        found_N = find_listed(self.lists, lambda name: read_columns(file.uri, [name])[name])
        reason_N = np.full(len(found_N), None, object)
        reason_N[found_N] = EXCLUDED_AFTER if self.is_after else EXCLUDED
        return Found(reason_N, self.is_after)


def find_listed(lists: Mapping[str, np.ndarray], read: Callable[[str], pa.ChunkedArray]) -> np.ndarray:
    """Return which rows are in one of the lists, bool [N]; ``lists``: sorted keys by kind, at least one.

    ``read(name)`` returns the column ``name`` of the rows: uid, image_sha256 or url.
    """
    found = []
    for kind, key_M in lists.items():
        values = read(URL if kind == DOMAIN else KEYS[kind]).to_pylist()
        found.append(_find_domains(key_M, values) if kind == DOMAIN else _find(kind, key_M, values))
    return np.logical_or.reduce(found)


def _find(kind: str, key_M: np.ndarray, values: Sequence[str | None]) -> np.ndarray:
    is_value_N = np.array([value is not None for value in values], bool)
    return (find_keys(key_M, hash_keys(kind, values)) >= 0) & is_value_N


def _find_domains(key_M: np.ndarray, urls: Sequence[str | None]) -> np.ndarray:
    """Return which urls are of a listed domain or of one below it, bool [N]."""
    names, owners = [], []
    for row, url in enumerate(urls):
        labels = _find_host(url).split(".")
        names += [".".join(labels[i:]) for i in range(len(labels))]
        owners += [row] * len(labels)
    found_N = np.zeros(len(urls), bool)
    found_N[np.array(owners, int)[_find(DOMAIN, key_M, names)]] = True
    return found_N


def _find_host(url: str | None) -> str:
    try:
        return (urlsplit(url or "").hostname or "").rstrip(".")
    except ValueError:
        return ""


def load_exclusion(uri: str, is_after: bool) -> Exclusion:
    """Return the marker of an exclusion list: a text with a value in each line, or a table.

    A line is a uid (32 hex digits), a SHA-256 (64), a url or a domain; empty lines and those that start with
    # are skipped. A table, CSV or Parquet, has one or more of these as columns. Raises ValueError where a
    line is none of these, a table has no such column, or the list is empty.
    """
    lists = read_lists(EXCLUDE, uri, _LISTED)
    return Exclusion({kind: sort_keys(kind, values) for kind, values in lists.items()}, is_after)


def sort_keys(kind: str, values: Sequence[str]) -> np.ndarray:
    """Return the sorted keys of a list's values of a kind."""
    return np.sort(hash_keys(kind, values))


def read_lists(option: str, uri: str, kinds: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of a list by kind, of those that the option ``option`` takes; see load_exclusion."""
    is_text = posixpath.splitext(uri)[1].lower() in (".txt", "")
    lists = _read_lines(option, uri, kinds) if is_text else _read_table(option, uri, kinds)
    if not any(lists.values()):
        raise ValueError(f"{option}={uri!r}: is empty; give one of {', '.join(kinds)} in each line")
    return lists


def _read_lines(option: str, uri: str, kinds: Sequence[str]) -> dict[str, list[str]]:
    try:
        lines = Folder(uri).read_bytes().decode("utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise ValueError(f"{option}={uri!r}: no such file") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{option}={uri!r}: must be UTF-8 text, .csv or .parquet") from error
    lists: dict[str, list[str]] = {}
    for number, line in enumerate(lines, 1):
        value = line.strip()
        if value and not value.startswith("#"):
            kind = _name_kind(value)
            if kind is None or kind not in kinds:
                *names, last = (_NAMES[one] for one in kinds)
                wanted = f"must be {', '.join(names)} or {last}"
                raise ValueError(f"{option}={uri!r}: line {number}, {value[:80]!r}: {wanted}")
            lists.setdefault(kind, []).append(value)
    return lists


def _name_kind(value: str) -> str | None:
    """Return what a line of a list is, None where it is nothing known."""
    if parse_uid(value):
        return UID
    if len(value) == 64 and _HEX.fullmatch(value):
        return SHA256
    if "://" in value:
        return URL
    if posixpath.splitext(value)[1].lower() in (".tar", ".parquet"):
        return SHARD
    if "." in value and not re.search(r"[\s/@,;]", value):
        return DOMAIN
    return None


def _read_table(option: str, uri: str, kinds: Sequence[str]) -> dict[str, list[str]]:
    table = load_table(option, uri)
    there = [kind for kind in kinds if kind in table.column_names]
    if not there:
        said = f"must have a column {', '.join(kinds)}, has {', '.join(table.column_names)}"
        raise ValueError(f"{option}={uri!r}: {said}")
    texts = {kind: table[kind].cast(pa.string()).drop_null().to_pylist() for kind in there}
    return {kind: values for kind, values in texts.items() if values}


def find_key(uri: str | None, on: str | None, names: Sequence[str]) -> str:
    """Return the column that a table is joined by: ``on``, or the first of KEYS that it has."""
    wanted = [on] if on else list(KEYS)
    found = next((name for name in wanted if name in names), None)
    if found is None:
        said = f"must have a column {' or '.join(wanted)}, has {', '.join(names)}"
        raise ValueError(f"{JOIN}={uri!r}: {said}")
    return found


def load_table(option: str, uri: str) -> pa.Table:
    """Return a Parquet, CSV or TSV table in memory. Raises ValueError or UserError, naming the option."""
    extension = posixpath.splitext(uri)[1].lower()
    if extension not in (".parquet", ".csv", ".tsv"):
        raise ValueError(f"{option}={uri!r}: must end in .parquet, .csv or .tsv")
    try:
        table = read_columns(uri) if extension == ".parquet" else _read_csv(uri, extension)
    except FileNotFoundError as error:
        raise ValueError(f"{option}={uri!r}: no such file") from error
    except pa.ArrowException as error:
        raise UserError(f"{option}={uri!r}: cannot be read: {' '.join(str(error).split())[:200]}") from error
    if len(table) > MOST_ROWS:
        raise ValueError(f"{option}={uri!r}: has {len(table):,} rows, must have at most {MOST_ROWS:,}")
    return table


def _read_csv(uri: str, extension: str) -> pa.Table:
    """Keys are read as text: a uid of digits alone is not read as a number."""
    filesystem, path = resolve_file(uri)
    parse = csv.ParseOptions(delimiter="," if extension == ".csv" else "\t", newlines_in_values=True)
    convert = csv.ConvertOptions(column_types=dict.fromkeys((*KEYS, DOMAIN), pa.string()))
    with filesystem.open_input_stream(path) as file:
        return csv.read_csv(file, parse_options=parse, convert_options=convert)


def fingerprint_filter(config: FilterConfig) -> dict[str, str]:
    """Return the SHA-256 of the files that a filter reads. Raises ValueError where one is missing."""
    found = {}
    for option, uri in ((JOIN, config.join), (EXCLUDE, config.exclude)):
        if uri is not None:
            found[option] = hash_uri(option, uri)
    return found


def hash_uri(option: str, uri: str) -> str:
    """Return the SHA-256 of the file that an option names. Raises ValueError where it is missing."""
    filesystem, path = resolve(uri)
    if filesystem.get_file_info(path).type != fs.FileType.File:
        raise ValueError(f"{option}={uri!r}: no such file")
    with filesystem.open_input_file(path) as file:
        return hash_file(uri, file).sha256
