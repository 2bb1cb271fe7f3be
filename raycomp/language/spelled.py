"""Where the tokens of a caption spell an entry of the lexicon: the one reading for phrases and concepts."""

from collections.abc import Sequence
from itertools import pairwise

from raycomp.language.lexicon import Entry, Lexicon
from raycomp.language.tokens import Token

LONGEST = 6
"""Tokens that a noun or an attribute of the lexicon may span; a hyphen is a token."""


def join_words(tokens: Sequence[Token], first: int, last: int) -> str:
    """Return tokens [first, last] in lower case, with a space where the caption has one."""
    said = tokens[first].text
    for before, token in pairwise(tokens[first : last + 1]):
        said += f" {token.text}" if token.start > before.end else token.text
    return said.lower()


def find_longest(tokens: Sequence[Token], last: int, kind: str, lexicon: Lexicon) -> tuple[int, Entry] | None:
    """Return the longest entry of a kind that ends at ``last``, after its start position."""
    found, said = None, ""
    for first in range(last, max(-1, last - LONGEST), -1):
        space = " " if first < last and tokens[first + 1].start > tokens[first].end else ""
        said = tokens[first].text.lower() + space + said
        if entry := lexicon.find(said, kind):
            found = first, entry
    return found


def find_long_prepositions(words: Sequence[str], lexicon: Lexicon) -> dict[int, tuple[int, Entry]]:
    """Map the first position of every preposition of several words to its last one and its entry.

    ``words`` are in lower case. From left to right the longest counts: "to the left of" over "left of".
    """
    found: dict[int, tuple[int, Entry]] = {}
    known, free = lexicon.long_prepositions, 0
    for first, word in enumerate(words):
        for spelled, entry in known.get(word, ()) if first >= free else ():
            if tuple(words[first : first + len(spelled)]) == spelled:
                free = first + len(spelled)
                found[first] = free - 1, entry
                break
    return found
