"""JSON written by a user: a duplicate key is an error; Python would silently take the last one."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text.

    Raises ValueError, naming the key, if an object has a key twice, and RecursionError if the nesting is too
    deep.
    """
    return json.loads(text, object_pairs_hook=_read_object)


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r:.80} occurs twice in one object")
    return record
