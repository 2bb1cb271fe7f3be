"""Hard negatives of a caption from its parse and the lexicon, and ADDs to its true parts.

An ADD is longer than its input, so a reader of text alone can find it. Where the caption first loses a
modifier, what is left is still true, and what is added makes up for the length.

Everything is a function of (parsed caption, operator, seed, key): where several edits are possible, a hash of
these chooses. Several calls are composed in the original parse, whose spans shift; nothing is parsed again.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raycomp.language.changes import Case, Change, Piece, State, Wording
from raycomp.language.concepts import Edit, Parsed
from raycomp.language.lexicon import NUMBER, VERB, Lexicon
from raycomp.language.operations import RULES
from raycomp.language.text_only import Context, count_words
from raycomp.words import ADD, ATTRIBUTE, CONCEPT_KINDS, OPERATIONS, RELATION, REPLACE, SWAP

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
    num_words = count_words(case.parsed.text)
    removals = [
        (one, num_words - count_words(case.words.render([one.piece])[0])) for one in list_removals(case.words)
    ]
    for change in changes:
        longer = sum(count_words(piece.text) for piece in change.pieces)
        for one, lost in removals:
            places = {*one.concepts, *one.about}
            touches = any(
                one.piece.start <= other.end and other.start <= one.piece.end for other in change.pieces
            )
            if abs(longer - lost) > MOST_LONGER or places & change.used or touches:
                continue
            names = tuple("-" + case.concepts[place].word for place in one.concepts)
            yield change._replace(
                concepts=(*change.concepts, *names), used=change.used | places, removed=(one.piece,)
            )


def list_removals(words: Wording) -> Iterator[Removal]:
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
    if one.category in ("", NUMBER) or not one.end < noun.start or words.first(place) == 0:
        return None
    before, after = words.tokens[words.first(place) - 1], words.tokens[words.last(place) + 1]
    others = [words.concepts[i] for i in words.attributes[owner]]
    if after.start not in {noun.start, *(other.start for other in others)}:
        return None
    is_first = before.tag in ("DT", "PRP$") or before.end in {other.end for other in others}
    if words.text[one.end : after.start] != " " or not is_first:
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


def propose(
    parsed: Parsed,
    op: str,
    lexicon: Lexicon,
    seed: int,
    key: str,
    at_most: int,
    taken: Sequence[tuple[int, int]] = (),
    context: Context | None = None,
) -> list[Edit]:
    """Return up to ``at_most`` different edits of one operator: kinds take turns, the plausible come first.

    Concepts that overlap a span of ``taken`` are left alone, and so is what would undo a change to them. With
    the counts of a corpus words are drawn as it uses them, and more for each place.
    """
    used = frozenset(
        place
        for place, one in enumerate(parsed.concepts)
        if any(one.start < end and start < one.end for start, end in taken)
    )
    steps = _steps(Case(parsed, lexicon, seed, key, context, at_most), op, State(used=used), at_most)
    return [edit for edit, _ in steps]


def apply_calls(
    parsed: Parsed,
    ops: Sequence[str],
    lexicon: Lexicon,
    seed: int,
    key: str,
    at_most: int,
    context: Context | None = None,
) -> list[list[Edit]]:
    """Return up to ``at_most`` chains: the n-th edit applies ``ops[n]`` to what the n - 1 before it made.

    Each call acts only on concepts that those before it left alone. Where none is left the chain stops, so it
    is shorter than ``ops``; there is no chain where the first call already finds nothing.
    """
    case = Case(parsed, lexicon, seed, key, context, at_most)
    chains = []
    for turn, (edit, state) in enumerate(_steps(case, ops[0], State(), at_most) if ops else ()):
        chain = [edit]
        for op in ops[1:]:
            steps = _steps(case, op, state, 1, turn)
            if not steps:
                break
            edit, state = steps[0]
            chain.append(edit)
        chains.append(chain)
    return chains


def join_calls(chain: Sequence[Edit]) -> tuple[str, str]:
    """Return the operators and the kinds of a chain, each joined with "+" in the order applied."""
    return "+".join(edit.op for edit in chain), "+".join(edit.kind for edit in chain)


def _steps(case: Case, op: str, state: State, at_most: int, turn: int = 0) -> list[tuple[Edit, State]]:
    """Return the first edits of ``op`` after ``state``, with the states they lead to."""
    if op not in OPERATIONS:
        raise ValueError(f"op={op!r}: must be one of {', '.join(OPERATIONS)}")
    changes = [change for rule in RULES[op] for change in rule(case, state)]
    if op == ADD and case.context is not None and not state.pieces:
        changes += match_lengths(case, changes)
    texts = {case.parsed.text.lower(), case.words.render(state.pieces)[0].lower()}
    found: list[tuple[Edit, State]] = []
    for change in _in_turns(case, op, changes, turn):
        if len(found) == at_most:
            break
        pieces = (*state.pieces, *change.removed, *change.pieces)
        text, spans = case.words.render(pieces)
        if text.lower() in texts:
            continue
        texts.add(text.lower())
        base = case.words.render((*state.pieces, *change.removed))[0] if change.removed else None
        brought = {SWAP: (), REPLACE: change.concepts[1:], ADD: change.concepts}[op]
        swapped = (*state.swapped, change.swapped) if change.swapped else state.swapped
        after = State(pieces, state.used | change.used, (*state.brought, *brought), swapped)
        found.append((Edit(text, op, change.kind, change.concepts, tuple(spans), base), after))
    return found


def _in_turns(case: Case, op: str, changes: list[Change], turn: int) -> list[Change]:
    """Let the kinds take turns, the plausible first in each, else by hash."""
    rows = []
    for kind in CONCEPT_KINDS:
        ours = [change for change in changes if change.kind == kind]
        ranked = sorted(
            ours, key=lambda one: (one.tier, one.rank, case.hash(op, turn, *one.concepts, *one.pieces))
        )
        first = case.hash(op, turn, kind)
        rows += [(place, change.tier, first, change) for place, change in enumerate(ranked)]
    return [row[-1] for row in sorted(rows, key=lambda row: row[:3])]
