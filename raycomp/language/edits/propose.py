"""SWAP, REPLACE and ADD by rules: hard negatives of a caption from its parse and the lexicon.

Everything is a function of (parsed caption, operator, seed, key): where several edits are possible, a hash of
these chooses. Several calls are composed in the original parse, whose spans shift; nothing is parsed again.
"""

from collections.abc import Callable, Iterator, Sequence

from raycomp.language.concepts import Edit, Parsed
from raycomp.language.context import Context
from raycomp.language.edits.additions import add_attributes, add_objects, add_relations
from raycomp.language.edits.changes import Case, Change, State
from raycomp.language.edits.replacements import replace_attributes, replace_objects, replace_relations
from raycomp.language.edits.shorten import match_lengths
from raycomp.language.edits.swaps import swap_attributes, swap_objects, swap_sides
from raycomp.language.lexicon import Lexicon
from raycomp.words import ADD, CONCEPT_KINDS, OPERATIONS, REPLACE, SWAP

RULES: dict[str, tuple[Callable[[Case, State], Iterator[Change]], ...]] = {
    SWAP: (swap_objects, swap_attributes, swap_sides),
    REPLACE: (replace_objects, replace_attributes, replace_relations),
    ADD: (add_objects, add_attributes, add_relations),
}


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
        edit, after = _apply(case, op, change, state)
        if edit.text.lower() not in texts:
            texts.add(edit.text.lower())
            found.append((edit, after))
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


def _apply(case: Case, op: str, change: Change, state: State) -> tuple[Edit, State]:
    pieces = (*state.pieces, *change.removed, *change.pieces)
    text, spans = case.words.render(pieces)
    base = case.words.render((*state.pieces, *change.removed))[0] if change.removed else None
    brought = {SWAP: (), REPLACE: change.concepts[1:], ADD: change.concepts}[op]
    swapped = (*state.swapped, change.swapped) if change.swapped else state.swapped
    after = State(pieces, state.used | change.used, (*state.brought, *brought), swapped)
    return Edit(text, op, change.kind, change.concepts, tuple(spans), base), after
