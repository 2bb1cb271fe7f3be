"""The user's lists and tables, the list of rows that must not be used, and conditions on columns.

Lists and tables are read once and shared with all tasks. Rows are found by sorted 128-bit hashes of their
keys.

A row of the list ``removed`` keeps its uid, shard and position, with the status ``removed``. Nothing of its
content is scored or written. A shard of the list is not read. ``write_removed`` keeps the list as hashes: the
urls and SHA-256 of removed samples are content, too.
"""

import hashlib
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, compress, islice
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, fs

from raycomp import words
from raycomp.config import UserError
from raycomp.core.selection import find_keys, from_keys, parse_uids, to_keys
from raycomp.curation.config import CurateConfig, FilterConfig
from raycomp.curation.select.measures import Found, Marker, ScoresFile
from raycomp.data.expression import evaluate, find_columns
from raycomp.data.files import Folder, hash_file, read_stamp, resolve, resolve_file
from raycomp.data.inputs import ShardPath, expand_input
from raycomp.data.parquet import add_columns, count_rows, from_rows, read_columns, read_schema, write_table
from raycomp.data.samples import parse_uid
from raycomp.table import group_by

JOIN, EXCLUDE = "filter.join", "filter.exclude"
SHA256, DOMAIN, STEM = "sha256", "domain", "stem"
# The columns by which rows are found in a table, with those of scores/.
KEYS = {words.UID: words.UID, SHA256: words.IMAGE_SHA256, words.URL: words.URL, words.KEY: words.KEY}
_LISTED = (words.UID, SHA256, words.URL, DOMAIN, words.KEY)
REMOVABLE = (*_LISTED, words.SHARD)
# The column of scores/ that a kind is compared with, where it has another name.
_COLUMNS = {**KEYS, DOMAIN: words.URL, STEM: words.KEY}
_WANTED = "a uid, key or file name, url, SHA-256 or domain"
_MOST_SHOWN, _LETTERS = 5, 80
MOST_ROWS = 50_000_000
"""Rows of a table or a list: every worker holds them."""
_HEX = re.compile(r"[0-9a-fA-F]+")
# Lines of other tools' lists, which no row can match, and the cure.
_FOREIGN = {
    re.compile(r"\|\||@@|!|.*\^(\$|$)|.*#@?#"): "is a rule of an ad blocker; write its domain alone",
    re.compile(r"[^\s/:]+\.[^\s/:]+:\d+(/|$)"): "has a port; write the domain alone, or the whole url",
    re.compile(r"(0\.0\.0\.0|127\.0\.0\.1|::1?)\s+\S"): "is of a hosts file; write the domain alone",
    re.compile(r"(?!.*://|\*\.[^*]*$).*\*"): "has a *, read in *.DOMAIN only; write what it stands for",
}


def hash_keys(kind: str, values: Sequence[str | None]) -> np.ndarray:
    """Return keys of values of a kind, to be compared; null has its own. A stem is that of a file name."""
    hashes = []
    for value in values:
        if value is not None and kind == SHA256:
            value = value.lower()
        elif value is not None and kind == DOMAIN:
            value = _spell_domain(value)
        elif value is not None and kind == words.UID:
            value = parse_uid(value) or value
        elif value is not None and kind == STEM:
            value = posixpath.splitext(value)[0]
        text = b"\0" if value is None else f"\1{value}".encode()
        hashes.append(hashlib.blake2b(text, digest_size=16).digest())
    return to_keys(np.frombuffer(b"".join(hashes), ">u8").astype(np.uint64).reshape(-1, 2))


def _spell_domain(value: str) -> str:
    """Return a domain as it is compared: without ``*.`` and outer dots, in the letters of ASCII (IDNA)."""
    value = value.lower().removeprefix("*.").strip(".")
    if value.isascii():
        return value
    with suppress(UnicodeError):
        return value.encode("idna").decode()
    return value


def find_excluded(file: ScoresFile, lists: Mapping[str, np.ndarray], is_after: bool) -> Found:
    """Return the reason ``excluded`` for each row of a list; ``lists``: sorted keys by kind."""
    found_N, matched = find_listed(lists, lambda name: read_columns(file.uri, [name])[name])
    reason_N = np.full(len(found_N), None, object)
    reason_N[found_N] = words.EXCLUDED_AFTER if is_after else words.EXCLUDED
    return Found(reason_N, is_after, matched=matched)


def find_listed(
    lists: Mapping[str, np.ndarray], read: Callable[[str], pa.ChunkedArray]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return which rows are in one of the lists, bool [N], and the keys of the lists that a row has, by kind.

    ``lists``: sorted keys by kind, at least one. ``read(name)`` returns the column ``name`` of the rows.
    """
    found, matched = [], {}
    for kind, key_M in lists.items():
        values = read(_COLUMNS[kind]).to_pylist()
        names, owners = list[str](), list[int]()
        for row, value in enumerate(values):
            own = [] if value is None else _spell(kind, value)
            names += own
            owners += [row] * len(own)
        place_K = find_keys(key_M, hash_keys(words.KEY if kind == STEM else kind, names))
        found_N = np.zeros(len(values), bool)
        found_N[np.array(owners, int)[place_K >= 0]] = True
        found.append(found_N)
        matched[kind] = np.unique(key_M[place_K[place_K >= 0]])
    return np.logical_or.reduce(found), matched


def _spell(kind: str, value: str) -> Collection[str]:
    """Return the entries of a kind that stand for a row with this value.

    A domain also stands for those below it. A file name stands for every row whose key ends in it, whatever
    its folder, extension and number of the caption (``#1``).
    """
    if kind == DOMAIN:
        host = ""
        with suppress(ValueError):
            host = (urlsplit(value).hostname or "").rstrip(".")
        labels = host.split(".")
        return [".".join(labels[i:]) for i in range(len(labels))]
    if kind not in (words.KEY, STEM):
        return [value]
    own = re.sub(r"#\d+$", "", value)
    name = posixpath.basename(own)
    return {own, name} if kind == STEM else {value, own, name, posixpath.splitext(name)[0]} - {""}


def load_exclusion(uri: str, is_after: bool) -> Marker:
    """Return the marker of an exclusion list; see ``read_lists``."""
    return partial(find_excluded, lists=hash_lists(read_lists(EXCLUDE, uri, _LISTED)), is_after=is_after)


def read_lists(option: str, uri: str, kinds: Sequence[str]) -> dict[str, list[str]]:
    """Return the entries of a list by each kind that they may be, of those that the option ``option`` takes.

    The list is a text with an entry in each line, or a table, CSV, TSV or Parquet, with one or more of the
    kinds as columns. Empty lines and those that start with # are skipped. Raises ValueError where the file is
    missing, a table has no such column, the list is empty, or an entry is of a form of other tools' lists.
    """
    _find_file(option, uri)
    if posixpath.splitext(uri)[1].lower() in (".parquet", ".csv", ".tsv"):
        table = load_table(option, uri)
        there = [kind for kind in kinds if kind in table.column_names]
        if not there:
            said = f"must have a column {', '.join(kinds)}, has {', '.join(table.column_names)}"
            raise ValueError(f"{option}={uri!r}: {said}")
        lists = {kind: table[kind].cast(pa.string()).drop_null().to_pylist() for kind in there}
        lists |= {STEM: lists[words.KEY]} if words.KEY in lists else {}
    else:
        try:
            lines = Folder(uri).read_bytes().decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            said = f"must be UTF-8 text with {_WANTED} in each line, .csv, .tsv or .parquet"
            raise ValueError(f"{option}={uri!r}: {said}") from error
        lists = {}
        for value in map(str.strip, lines):
            for kind in name_kinds(value, kinds) if value and not value.startswith("#") else ():
                lists.setdefault(kind, []).append(value)
    if not any(lists.values()):
        raise ValueError(f"{option}={uri!r}: is empty; give {_WANTED} in each line")
    for value in chain(*lists.values()):
        if cure := next((cure for form, cure in _FOREIGN.items() if form.match(value)), None):
            raise ValueError(f"{option}={uri!r}: the line {value[:_LETTERS]!r} {cure}")
    return {kind: values for kind, values in lists.items() if values}


def name_kinds(value: str, kinds: Sequence[str] = REMOVABLE) -> list[str]:
    """Return all that a line of a list may be, of ``kinds``.

    32 hex digits are a uid, 64 a SHA-256, NAME.tar and NAME.parquet a shard. Anything else is a key or file
    name; it is a url too if it has ``://``, and a domain if it looks like one.
    """
    if parse_uid(value):
        return [words.UID]
    if len(value) == 64 and _HEX.fullmatch(value):
        return [SHA256]
    if words.SHARD in kinds and posixpath.splitext(value)[1].lower() in (".tar", ".parquet"):
        return [words.SHARD]
    if "://" in value:
        return [words.URL, words.KEY]
    is_domain = "." in value and not re.search(r"[\s/@,;]", value)
    return [DOMAIN] * is_domain + [words.KEY, STEM]


def hash_lists(lists: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Return the sorted keys of entries by kind."""
    return {kind: np.sort(hash_keys(kind, values)) for kind, values in lists.items()}


def merge_lists(lists: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the sorted keys of all lists by kind."""
    parts: dict[str, list[np.ndarray]] = {}
    for one in lists:
        for kind, keys in one.items():
            parts.setdefault(kind, []).append(keys)
    return {kind: np.unique(np.concatenate(parts[kind])) for kind in sorted(parts)}


def list_unmatched(
    option: str, uri: str, matched: Mapping[str, np.ndarray], kinds: Sequence[str] = _LISTED
) -> list[str]:
    """Return a line on the entries of the list in ``uri`` that no row has, none where every one has a row.

    ``matched``: the keys that a row has, by kind; ``kinds``: those that the option ``option`` takes.
    """
    lists = read_lists(option, uri, kinds)
    lost = dict.fromkeys(chain(*lists.values()))
    num = len(lost)
    for kind, values in lists.items():
        is_found_M = np.isin(hash_keys(kind, values), matched.get(kind, ()))
        for value in compress(values, is_found_M):
            lost.pop(value, None)
    shown = [value[:_LETTERS] for value in islice(lost, _MOST_SHOWN)] + ["..."] * (len(lost) > _MOST_SHOWN)
    said = f"{posixpath.basename(uri)}: {len(lost):,} of {num:,} lines matched no row: {', '.join(shown)}"
    return [said] if lost else []


def load_table(option: str, uri: str) -> pa.Table:
    """Return a Parquet, CSV or TSV table in memory. Raises ValueError or UserError, naming the option.

    Keys are read as text: a uid of digits alone is not read as a number.
    """
    extension = posixpath.splitext(uri)[1].lower()
    if extension not in (".parquet", ".csv", ".tsv"):
        raise ValueError(f"{option}={uri!r}: must end in .parquet, .csv or .tsv")
    parse = csv.ParseOptions(delimiter="\t" if extension == ".tsv" else ",", newlines_in_values=True)
    convert = csv.ConvertOptions(column_types=dict.fromkeys((*KEYS, DOMAIN), pa.string()))
    try:
        if extension == ".parquet":
            table = read_columns(uri)
        else:
            filesystem, path = resolve_file(uri)
            with filesystem.open_input_stream(path) as file:
                table = csv.read_csv(file, parse_options=parse, convert_options=convert)
    except FileNotFoundError as error:
        raise ValueError(f"{option}={uri!r}: no such file") from error
    except pa.ArrowException as error:
        raise UserError(f"{option}={uri!r}: cannot be read: {' '.join(str(error).split())[:200]}") from error
    if len(table) > MOST_ROWS:
        raise ValueError(f"{option}={uri!r}: has {len(table):,} rows, must have at most {MOST_ROWS:,}")
    return table


def _find_file(option: str, uri: str) -> tuple[fs.FileSystem, str]:
    filesystem, path = resolve(uri)
    if filesystem.get_file_info(path).type != fs.FileType.File:
        said = (
            f"; {option} takes a file of lines (.txt), {_WANTED} in each, or a table (.csv, .tsv, .parquet)"
        )
        raise ValueError(f"{option}={uri!r}: no such file{said * (option != JOIN)}")
    return filesystem, path


def hash_uri(option: str, uri: str) -> str:
    """Return the SHA-256 of the file that an option names. Raises ValueError where it is missing."""
    filesystem, path = _find_file(option, uri)
    with filesystem.open_input_file(path) as file:
        return hash_file(uri, file).sha256


OPTION = "removed"
KEYS_MATCHED = "keys_matched"  # A column while rows are scored: the entries of ``removed`` that they have.
_HASHED = pa.schema([("kind", pa.string()), ("hash", pa.string())])
MATCHED = [words.UID, words.STATUS, words.URL, words.IMAGE_SHA256, words.KEY]
"""Columns by which rows are found in a list."""
REMOVED_CONTENT = (words.KEY, words.URL, words.IMAGE_SHA256, words.CAPTION, words.IMAGE, words.JSON)


@dataclass(frozen=True)
class Removal:
    """A list of rows and shards, as sorted keys by kind: uid, sha256, url, domain, key, stem, shard."""

    lists: Mapping[str, np.ndarray]

    def digest(self) -> str:
        """Return the SHA-256 of all entries."""
        found = hashlib.sha256()
        for kind, keys in sorted(self.lists.items()):
            found.update(f"{kind} {len(keys)}\0".encode() + keys.tobytes())
        return found.hexdigest()

    def find_rows(self, table: pa.Table) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return which rows are in the list, bool [N], and the keys of the list that a row has, by kind.

        Rows that stand for a shard are in no list.
        """
        lists = {kind: keys for kind, keys in self.lists.items() if kind != words.SHARD}
        if not lists or not len(table):
            return np.zeros(len(table), bool), {}
        is_sample_N = ~np.isin(np.array(table[words.STATUS].to_pylist(), object), words.SHARD_STATUSES)
        found_N, matched = find_listed(lists, lambda name: table[name])
        return found_N & is_sample_N, matched


def load_removed(uri: str | None, option: str = OPTION) -> Removal | None:
    """Return the list in a file: a user's, as in the option's description, or one of ``write_removed``.

    None without a file. Raises ValueError as ``read_lists``.
    """
    if uri is None:
        return None
    return _load(uri, read_stamp(uri), option)


def has_entry(uri: str | None, value: str) -> bool:
    """Whether the list in a file, if it is there, has a line ``value``."""
    lists = _load(uri, read_stamp(uri), OPTION).lists if uri and Folder(uri).exists() else {}
    return any(np.isin(hash_keys(kind, [value]), lists.get(kind, ())).any() for kind in name_kinds(value))


@lru_cache(maxsize=4)
def _load(uri: str, stamp: tuple[int | None, int | None], option: str) -> Removal:
    _find_file(option, uri)
    if posixpath.splitext(uri)[1] != ".parquet" or read_schema(uri).names != _HASHED.names:
        return Removal(hash_lists(read_lists(option, uri, REMOVABLE)))
    lists, table = dict[str, np.ndarray](), read_columns(uri)
    for kind in pc.unique(table["kind"]).to_pylist():
        hashes = table["hash"].filter(pc.equal(table["kind"], kind))
        lists[kind] = np.sort(to_keys(parse_uids(hashes)))
    return Removal(lists)


def list_unremoved(config: CurateConfig, found: Iterable[str]) -> list[str]:
    """Return a line on entries of ``removed`` that no row or shard has; ``found``: the rows' KEYS_MATCHED."""
    shards = expand_input(config.input, config.prepare.stored_embeddings, config.columns)
    names = hash_keys(words.SHARD, [shard.name for shard in shards])
    both = np.concatenate([to_keys(parse_uids(pa.array(found, pa.string()))), names])
    with suppress(ValueError):  # a list of write_removed holds hashes alone
        return list_unmatched(OPTION, str(config.removed), dict.fromkeys((*REMOVABLE, STEM), both), REMOVABLE)
    return []


def list_shards(config: CurateConfig) -> list[ShardPath]:
    """Return the shards of a curation's input without those that are removed."""
    shards = expand_input(config.input, config.prepare.stored_embeddings, config.columns)
    return shards if config.removed is None else drop_shards(shards, config.removed)


def drop_shards(shards: Sequence[ShardPath], removed: str) -> list[ShardPath]:
    """Return the shards that the list ``removed`` does not name, numbered anew."""
    removal = load_removed(removed)
    assert removal is not None
    if words.SHARD not in removal.lists:
        return [*shards]
    keys = hash_keys(words.SHARD, [shard.name for shard in shards])
    is_found_N = find_keys(removal.lists[words.SHARD], keys) >= 0
    left = [shard for shard, is_found in zip(shards, is_found_N, strict=True) if not is_found]
    if not left:
        raise ValueError(f"removed={removed!r}: names every shard of the input; name fewer")
    return [replace(shard, ordinal=ordinal) for ordinal, shard in enumerate(left)]


def write_removed(removal: Removal, uri: str) -> None:
    """Write a list as hashes of its values, sorted."""
    rows = [(kind, text) for kind, keys in sorted(removal.lists.items()) for text in from_keys(keys)]
    write_table(from_rows(rows, _HASHED), uri, _HASHED)


def blank_rows(table: pa.Table, is_removed_N: np.ndarray, columns: Iterable[str]) -> pa.Table:
    """Return the table with the status ``removed`` and null in ``columns`` of some rows."""
    if not is_removed_N.any():
        return table
    blank = {name: blank_column(table[name], is_removed_N) for name in columns if name in table.column_names}
    statuses = pc.if_else(pa.array(is_removed_N), words.REMOVED, table[words.STATUS])
    return add_columns(table, {**blank, words.STATUS: statuses})


def blank_column(column: pa.ChunkedArray, is_removed_N: np.ndarray) -> pa.Array:
    """Return a column of any type with null in some rows."""
    keep_N = np.where(is_removed_N, -1, np.arange(len(column)))
    return column.combine_chunks().take(pa.array(keep_N, mask=keep_N < 0))


WHERE = "filter.where"
# Short names of columns of scores/, and the quotient of two.
ALIASES = {
    "width": words.ORIGINAL_WIDTH,
    "height": words.ORIGINAL_HEIGHT,
    "words": words.CAPTION_WORDS,
    "lang": words.CAPTION_LANGUAGE,
}
ASPECT = "aspect"
_SIZE = (words.ORIGINAL_WIDTH, words.ORIGINAL_HEIGHT)
OWN_PREFIX = "meta_"
"""Before the name of a metadata field that a column of scores/ or a short name has too."""
_SCORES, _METADATA, _JOINED, _ALIAS = "scores/", "metadata", "joined", "short names"
Fields = dict[str, tuple[str, str]]
"""The names that a condition may use, each with the place of its column, and the column's name there."""


@dataclass(frozen=True)
class Condition:
    """Finds the rows of a file for which the condition is not true, or which the joined table lacks."""

    config: FilterConfig
    columns: tuple[str, ...]
    """The names that the condition uses."""
    fields: Fields
    on: str
    """The key of the table of the user's that is joined; empty without one."""
    key_M: np.ndarray
    """The table's keys, sorted."""
    joined: pa.Table
    """The table's columns that the condition uses, in the order of the keys."""

    def __call__(self, file: ScoresFile) -> Found:
        """Return a reason for each row to be dropped; null of the condition is a reason of its own."""
        lost, null, is_after = words.FILTERED, words.FILTER_NULL, self.config.is_after
        if is_after:
            lost, null = words.FILTERED_AFTER, words.FILTER_NULL_AFTER
        row_N = self._find_rows(file)
        value_N = np.ones(len(row_N), np.int8)  # -1 for null
        if self.config.where is not None:
            columns = {name: self._take(name, file, row_N) for name in self.columns}
            table = pa.table(columns or {words.UID: read_columns(file.uri, [words.UID])[words.UID]})
            found = evaluate(WHERE, self.config.where, table)
            value_N = pc.fill_null(found.cast(pa.int8()), -1).to_numpy()
        reason_N = np.full(len(value_N), None, object)
        reason_N[value_N == 0], reason_N[value_N < 0] = lost, null
        reason_N[row_N < 0] = None if self.config.missing == "keep" else null
        return Found(reason_N, is_after)

    def _find_rows(self, file: ScoresFile) -> np.ndarray:
        """Return each row's row of the joined table, -1 where that has none; 0 without a table."""
        if not self.on:
            return np.zeros(count_rows(file.uri), int)
        table = read_columns(file.uri, [KEYS[self.on], words.ALIGNMENT])
        values = table[0].to_pylist()
        row_N = find_keys(self.key_M, hash_keys(self.on, values))
        missing_N = (row_N < 0) & table[words.ALIGNMENT].is_valid().to_numpy()
        if self.config.missing == "fail" and missing_N.any():
            raise UserError(
                f"{JOIN}={self.config.join!r}: has no row for {missing_N.sum():,} rows of one shard, such as "
                f"{self.on} {values[int(missing_N.argmax())]!r}; complete it, or set filter.missing"
            )
        return row_N

    def _take(self, name: str, file: ScoresFile, row_N: np.ndarray) -> pa.ChunkedArray:
        place, column = self.fields[name]
        if place == _JOINED:
            return self.joined[column].take(pa.array(row_N, mask=row_N < 0))
        if place == _METADATA:
            assert file.metadata is not None
            return read_columns(file.metadata, [column])[0]
        found = read_columns(file.uri, _SIZE if name == ASPECT else [column])
        return _divide(*found.columns) if name == ASPECT else found[0]


def _divide(width: pa.ChunkedArray, height: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.divide(width.cast(pa.float64()), height.cast(pa.float64()))


def add_short_names(columns: Mapping[str, pa.ChunkedArray]) -> dict[str, pa.ChunkedArray]:
    """Return columns by name, also under the short names that a condition may use."""
    found = {**columns}
    found |= {alias: columns[name] for alias, name in ALIASES.items() if name in columns}
    if {words.ORIGINAL_WIDTH, words.ORIGINAL_HEIGHT} <= {*columns}:
        found[ASPECT] = _divide(columns[words.ORIGINAL_WIDTH], columns[words.ORIGINAL_HEIGHT])
    return found


def add_metadata(columns: Mapping[str, pa.ChunkedArray], file: ScoresFile) -> dict[str, pa.ChunkedArray]:
    """Return columns by name with those of the file's metadata, under the names of a condition."""
    found, taken = {**columns}, {*add_short_names(columns)}
    if file.metadata is not None:
        table = read_columns(file.metadata)
        names = [name for name in table.column_names if name != words.UID]
        found |= {OWN_PREFIX + name if name in taken else name: table[name] for name in names}
    return found


def name_fields(scores: pa.Schema, metadata: Iterable[str], joined: Iterable[str]) -> Fields:
    """Return the names that a condition may use; their case does not count in it.

    Fields of the samples whose names differ in case alone have none. Raises ValueError where a joined column
    has the name of another column.
    """
    found = {one.name: (_SCORES, one.name) for one in scores if not pa.types.is_nested(one.type)}
    found |= {alias: (_ALIAS, column) for alias, column in ALIASES.items() if column in found}
    found |= {ASPECT: (_ALIAS, ASPECT)} if {*_SIZE} <= {*found} else {}
    own = [name for name in metadata if name != words.UID]
    taken, spelled = {name.lower() for name in found}, Counter(name.lower() for name in own)
    for name in own:
        if spelled[name.lower()] == 1:
            found[OWN_PREFIX + name if name.lower() in taken else name] = _METADATA, name
    for name in joined:
        if name in found:
            said = f"its column {name} is also one of {found[name][0]}; rename it in the table"
            raise ValueError(f"{JOIN}: {said}")
        found[name] = _JOINED, name
    return found


def load_condition(config: FilterConfig, scores: pa.Schema, metadata: Iterable[str]) -> Condition:
    """Return the condition, checked against the columns; a joined table is read into memory.

    Raises ValueError, and UserError where a key of the table occurs twice.
    """
    on, key_M, table = "", to_keys(np.empty((0, 2), np.uint64)), pa.table({})
    if config.join is not None:
        table = load_table(JOIN, config.join)
        wanted = [config.on] if config.on else list(KEYS)
        on = next((name for name in wanted if name in table.column_names), "")
        if not on:
            said = f"must have a column {' or '.join(wanted)}, has {', '.join(table.column_names)}"
            raise ValueError(f"{JOIN}={config.join!r}: {said}")
    metadata = list(metadata)
    fields = name_fields(scores, metadata, [name for name in table.column_names if name != on])
    for name, *others in group_by(metadata, str.lower).values() if config.where else ():
        if others and re.search(rf"(?i)\b{re.escape(name)}\b", str(config.where)):
            said = f"{name} and {others[0]} differ in case alone, so neither can be named; rename one"
            raise ValueError(f"{WHERE}={config.where!r}: {said}")
    columns = () if config.where is None else tuple(find_columns(WHERE, config.where, [*fields]))
    if on:
        values = table[on].cast(pa.string()).to_pylist()
        key_M = hash_keys(on, values)
        order_M = np.argsort(key_M, kind="stable")
        key_M = key_M[order_M]
        again = np.flatnonzero(key_M[1:] == key_M[:-1])
        if len(again):
            said = f"{len(again):,} rows repeat a {on}, such as {values[order_M[again[0]]]!r}"
            raise UserError(f"{JOIN}: {said}; keep one row of each")
        used = [name for name in columns if fields[name][0] == _JOINED]
        table = table.select(used).take(pa.array(order_M))
    return Condition(config, columns, fields, on, key_M, table)


def check_types(condition: Condition, scores: pa.Schema, metadata: Mapping[str, pa.DataType]) -> None:
    """Raise UserError where the condition does not fit the types of its columns, or is not a condition."""
    if condition.config.where is None:
        return
    kinds: dict[str, pa.DataType] = {}
    for name in condition.columns:
        place, column = condition.fields[name]
        if place == _METADATA:
            kinds[name] = metadata[column]
        elif name == ASPECT:
            kinds[name] = pa.float64()
        else:
            kinds[name] = (condition.joined.schema if place == _JOINED else scores).field(column).type
    columns = {name: pa.nulls(0, kind) for name, kind in (kinds or {words.UID: pa.string()}).items()}
    evaluate(WHERE, condition.config.where, pa.table(columns))
