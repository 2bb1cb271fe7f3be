"""True parts of a caption, and ADDs to them that are as long as the caption.

An ADD is longer than its input, so a reader of text alone can find it. Where the caption first loses a
modifier, what is left is still true, and what is added makes up for the length.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raycomp.language.edits.changes import Case, Change
from raycomp.language.edits.wording import Piece, Wording
from raycomp.language.lexicon import NUMBER, VERB
from raycomp.language.text_only import count_words
from raycomp.words import ATTRIBUTE, RELATION

MOST_LONGER = 1
"""Words that an ADD to a part of the caption may be longer or shorter than the caption."""
# Forms of "to be": without what follows, nothing is said.
_COPULAS = frozenset("is are was were be been being 's 're".split())


class Removal(NamedTuple):
    """What a caption can lose and stay true: a piece, the concepts inside, and what these are about."""

    piece: Piece
    concepts: tuple[int, ...]
    about: tuple[int, ...]


def match_lengths(case: Case, changes: Sequence[Change]) -> Iterator[Change]:
    """Yield the changes that add with each removal elsewhere that makes up for their length."""
    removals = [
        (one, count_words(case.parsed.text) - _count_left(case, one)) for one in find_removals(case.words)
    ]
    for change in changes:
        longer = sum(count_words(piece.text) for piece in change.pieces)
        for one, lost in removals:
            places = {*one.concepts, *one.about}
            if abs(longer - lost) > MOST_LONGER or places & change.used or _touch(one.piece, change.pieces):
                continue
            names = tuple("-" + case.concepts[place].word for place in one.concepts)
            yield change._replace(
                concepts=(*change.concepts, *names), used=change.used | places, removed=(one.piece,)
            )


def _count_left(case: Case, removal: Removal) -> int:
    return count_words(case.words.render([removal.piece])[0])


def _touch(piece: Piece, others: Sequence[Piece]) -> bool:
    return any(piece.start <= other.end and other.start <= piece.end for other in others)


def find_removals(words: Wording) -> Iterator[Removal]:
    """Yield what a caption can lose, from its start to its end."""
    for place, one in enumerate(words.concepts):
        found = None
        if one.kind == ATTRIBUTE and one.owner is not None:
            found = _drop_attribute(words, place, one.owner)
        elif one.kind == RELATION and one.sides is not None and one.category != VERB:
            found = _drop_phrase(words, place, one.sides)
        if found is not None:
            yield found


def _drop_attribute(words: Wording, place: int, owner: int) -> Removal | None:
    """Drop an attribute right before its noun or another attribute; not a number, which counts the things."""
    one, noun = words.concepts[place], words.concepts[owner]
    behind = words.last(place) + 1
    if not one.category or one.category == NUMBER or not one.end < noun.start or words.first(place) == 0:
        return None
    before, after = words.tokens[words.first(place) - 1], words.tokens[behind]
    inside = {words.concepts[i].start for i in (owner, *words.attributes[owner])}
    if after.start not in inside or words.text[one.end : after.start] != " ":
        return None
    if not (
        before.tag in ("DT", "PRP$") or before.end in {words.concepts[i].end for i in words.attributes[owner]}
    ):
        return None
    return Removal(Piece(one.start, after.end, after.text), (place,), (owner,))


def _drop_phrase(words: Wording, place: int, sides: tuple[int, int]) -> Removal | None:
    """Drop a preposition and what it leads to, at the end of a sentence, behind a noun or a full verb."""
    left, right = sides
    first, last = words.first(place), words.last(right)
    if first == 0 or not words.ends(right) or words.phrase_starts[right] != words.last(place) + 1:
        return None
    before = words.tokens[first - 1]
    is_full = before.tag.startswith(("NN", "VB")) and before.text.lower() not in _COPULAS
    if not is_full or words.concepts[right].word == words.concepts[left].word:
        return None
    end = words.concepts[right].end
    inside = tuple(
        i for i, one in enumerate(words.concepts) if words.concepts[place].start <= one.start < end
    )
    return Removal(Piece(before.end, words.tokens[last].end, ""), inside, (left,))
