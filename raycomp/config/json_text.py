"""JSON that a user wrote: no object may have a key twice, of which Python would silently take the last."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text.

    Raises ValueError, which names the key where an object has one twice, and RecursionError for what is too
    deep.
    """
    return json.loads(text, object_pairs_hook=_read_object)


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r:.80} stands twice in one object")
    return record
