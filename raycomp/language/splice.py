"""Tokens of an edited text from those of a text of the same form: no parser runs.

Where a text differs from a parsed one in a run of as many words, as "a dog" from "a cat", each new word takes
the tag, label and head of the word whose place it has.
"""

import re
from collections.abc import Sequence

from raycomp.language.tokens import Token, measure_ends

_WORD = re.compile(r"[^\s-]+|-")


def splice_tokens(tokens: Sequence[Token], old: str, new: str) -> list[Token] | None:
    """Return the tokens of ``new`` from those of ``old``; None where the numbers of changed words differ."""
    ahead, behind = measure_ends(old, new)
    grown = len(new) - len(old)
    is_kept = (token.end <= ahead and _keeps_end(old, new, token.end, 0) for token in tokens)
    first = next((place for place, kept in enumerate(is_kept) if not kept), len(tokens))
    last = len(tokens)
    while last > first and len(old) - tokens[last - 1].start <= behind:
        if not _keeps_end(old, new, tokens[last - 1].start, grown):
            break
        last -= 1
    if first == last:
        return None
    words = list(_WORD.finditer(new, tokens[first].start, tokens[last - 1].end + grown))
    if len(words) != last - first:
        return None
    changed = [
        token._replace(text=word.group(), start=word.start(), end=word.end())
        for token, word in zip(tokens[first:last], words, strict=True)
    ]
    moved = [token._replace(start=token.start + grown, end=token.end + grown) for token in tokens[last:]]
    return [*tokens[:first], *changed, *moved]


def _keeps_end(old: str, new: str, at: int, moved: int) -> bool:
    """Report whether a place between two words of ``old`` is one in ``new``."""
    return _is_apart(new, at + moved) or not _is_apart(old, at)


def _is_apart(text: str, at: int) -> bool:
    """Report whether no word runs over a place of the text."""
    return not (0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum())
