"""A condition on the columns of a table, written in SQL: checked by its syntax tree, computed by DuckDB.

DuckDB parses, types and computes the expression. It has no access to files or the network, its configuration
is locked, and it has a limit of memory, beyond which it writes to a temporary folder, and of time. Only
comparisons, logic, arithmetic, CASE, casts and the functions below are taken, so that the result depends on
the row alone.
"""

import json
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import UserError

if TYPE_CHECKING:
    import duckdb

FUNCTIONS = frozenset(
    """abs ceil ceiling contains ends_with exp floor greatest isfinite isinf isnan least left len length ln
    log log10 log2 lower ltrim pow power prefix regexp_full_match regexp_matches right round rtrim sign sqrt
    starts_with strip_accents strlen substr substring suffix trim trunc upper + - * / // % ^ ** || ~~ !~~ ~~*
    !~~* ~~~ ^@ like_escape not_like_escape ilike_escape not_ilike_escape""".split()
)
MOST_LETTERS = 10_000
"""Characters of an expression."""
SECONDS = 300.0
"""The limit of time for the rows of one shard."""
_MEMORY = "2GB"
_ROWS = "rows"
# The line's end ends a comment.
_QUERY = f"SELECT ({{}}\n) AS found FROM {_ROWS}"
_OFF = ("python_enable_replacements", "autoload_known_extensions", "enable_external_access")
_CLASSES = frozenset(
    "BETWEEN CASE CAST COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION OPERATOR TYPE".split()
)


def find_columns(option: str, expression: str, known: Sequence[str]) -> list[str]:
    """Return the columns that an expression uses, as they are written in ``known``.

    Raises UserError, naming ``option``, where it is not one expression, uses anything but the allowed
    syntax, or a column that is not ``known``; columns' names are compared without case.
    """
    by_name = {name.lower(): name for name in reversed(known)}
    found: dict[str, None] = {}
    for node in _list_nodes(_parse(option, expression)):
        if node["class"] not in _CLASSES:
            said = f"{node['class'].lower().replace('_', ' ')} is not allowed"
            raise _refuse(option, expression, f"{said}; write one condition on the row's columns")
        if node["class"] == "FUNCTION" and node["function_name"].lower() not in FUNCTIONS:
            names = ", ".join(sorted(name for name in FUNCTIONS if name[0].isalpha()))
            said = f"unknown function {node['function_name']}; the functions are {names}"
            raise _refuse(option, expression, said)
        if node["class"] == "COLUMN_REF":
            name = ".".join(node["column_names"])
            if name.lower() not in by_name:
                near = get_close_matches(name, known, 3, 0.5) or sorted(known)
                raise _refuse(option, expression, f"no column {name}; there are {', '.join(near)}")
            found[by_name[name.lower()]] = None
    return list(found)


def evaluate(option: str, expression: str, table: pa.Table, seconds: float = SECONDS) -> pa.ChunkedArray:
    """Return the value of a checked expression on every row, bool, null where SQL says so.

    Raises UserError, naming ``option``, where it cannot be computed, is not a condition, or takes longer than
    ``seconds``.
    """
    with _connect() as con:
        con.register(_ROWS, table)
        late = threading.Event()

        def stop() -> None:
            late.set()
            con.interrupt()

        timer = threading.Timer(seconds, stop)
        timer.start()
        try:
            result = con.sql(_QUERY.format(expression)).to_arrow_table()["found"]
        except Exception as error:  # DuckDB's own kinds, and what an interrupt becomes
            if isinstance(error, MemoryError):
                raise
            line = f"takes more than {seconds:g} s" if late.is_set() else " ".join(str(error).split())[:200]
            raise _refuse(option, expression, line) from error
        finally:
            timer.cancel()
    if result.type != pa.bool_() and not pa.types.is_null(result.type):
        said = f"must be true or false, is {result.type}; compare it with a value"
        raise _refuse(option, expression, said)
    return pc.cast(result, pa.bool_())


def check_types(option: str, expression: str, schema: pa.Schema) -> None:
    """Raise UserError where a checked expression does not fit the types of its columns."""
    evaluate(option, expression, schema.empty_table())


@lru_cache(maxsize=64)
def _parse(option: str, expression: str) -> dict[str, Any]:
    if not 0 < len(expression) <= MOST_LETTERS:
        said = f"must have 1 to {MOST_LETTERS:,} characters, has {len(expression):,}"
        raise _refuse(option, expression, said)
    with _connect() as con:
        query = _QUERY.format(expression)
        row = con.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchone()
    assert row is not None
    tree = json.loads(row[0])
    if tree["error"]:
        said = "must be one condition" if "SELECT" in tree["error_message"] else tree["error_message"]
        raise _refuse(option, expression, " ".join(said.split())[:200])
    select = [statement["node"] for statement in tree["statements"]]
    items = [item for node in select for item in node.get("select_list", ())]
    if len(items) != 1 or items[0].get("alias") != "found":
        raise _refuse(option, expression, "must be one condition")
    return items[0]


def _list_nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every node of a syntax tree that has a class. A constant's value is not looked into."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo += node
        elif isinstance(node, dict):
            if "class" in node:
                yield node
            if node.get("class") != "CONSTANT":
                todo += node.values()


@contextmanager
def _connect() -> Iterator["duckdb.DuckDBPyConnection"]:
    import duckdb  # only where a condition is used

    with tempfile.TemporaryDirectory(prefix="raycomp-sql-") as folder:
        con = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": _MEMORY})
        try:
            con.execute("SET temp_directory = ?", [folder])
            for setting in _OFF:
                con.execute(f"SET {setting} = false")
            con.execute("SET lock_configuration = true")
            yield con
        finally:
            con.close()


def _refuse(option: str, expression: str, said: str) -> UserError:
    text = expression if len(expression) <= 200 else f"{expression[:200]}..."
    return UserError(f"{option}={text!r}: {said}")
