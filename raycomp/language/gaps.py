"""Small questions for small models: the word for a gap, or the two words that change places.

A model of some hundred million parameters that is asked to rewrite a caption returns it unchanged, or writes
another one (bench/RESULTS.md). So the parse gives the place, the model the new words, and the edit
is made here, with the rules' articles and capitals. Captions are data here, too: JSON strings on one line.
"""

from collections.abc import Sequence
from functools import partial

from raycomp.language.concepts import Concept, Parsed
from raycomp.language.edits.changes import Case, Change, State
from raycomp.language.edits.propose import RULES
from raycomp.language.edits.wording import Piece
from raycomp.language.lexicon import Lexicon
from raycomp.language.prompts import FORMS, PAIR_FORM, WORD_FORM, Request, make_chat, quote
from raycomp.words import ADD, ATTRIBUTE, CONCEPT_KINDS, OBJECT, RELATION, REPLACE, SWAP

GAP = "___"
SYSTEMS = {
    SWAP: "Choose two of the words that could change places in the caption.",
    REPLACE: "Fill the gap with something else than the given word.",
    ADD: "Fill the gap with a word that describes the next one.",
}
# Of REPLACE by the kind of what stood in the gap: small models answer in the class of the examples.
EXAMPLES: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    SWAP: (
        ("A goat in a wooden cart is pulled by a farmer.", "goat, cart, farmer", ("goat", "farmer")),
        ("A boy throws a ball to his dog .", "boy, ball, dog", ("boy", "dog")),
        ("The lamp stands on the table next to a window", "lamp, table, window", ("lamp", "table")),
    ),
    f"{REPLACE} {OBJECT}": (
        ("An old woman is knitting by the ___.", "stove", ("piano",)),
        ("A ___ carries two bags up the stairs", "woman", ("soldier",)),
        ("Two men load ___ onto a red truck .", "barrels", ("sheep",)),
    ),
    f"{REPLACE} {ATTRIBUTE}": (
        ("Two boys in ___ coats feed a horse .", "red", ("green",)),
        ("An ___ man is knitting by the stove.", "old", ("young",)),
        ("A ___ table stands in the garden", "wooden", ("metal",)),
    ),
    f"{REPLACE} {RELATION}": (
        ("Ladders and ropes lie ___ the bridge", "below", ("above",)),
        ("A girl ___ a letter at the window.", "writes", ("burns",)),
        ("A cat sleeps ___ a basket .", "in", ("behind",)),
    ),
    ADD: (
        ("Three girls carry a ___ armchair up the stairs.", "", ("purple",)),
        ("A ___ goose crosses the parking lot", "", ("spotted",)),
        ("A man sits on a ___ bench and reads .", "", ("wooden",)),
        ("Two ___ trucks wait at the light .", "", ("rusty",)),
        ("A woman in a ___ hat", "", ("striped",)),
    ),
}
_BESIDES = {SWAP: "Words: ", REPLACE: "Not ", ADD: ""}
WORDING = [SYSTEMS, EXAMPLES, _BESIDES, GAP]


def ask_for_words(
    op: str, parsed: Parsed, taken: Sequence[str], lexicon: Lexicon, key: str
) -> Request | None:
    """Return the request for one call of ``op``; None where no concept is left to ask about.

    ``taken`` are concepts that earlier calls changed. Of several concepts a hash of ``key`` chooses one.
    """
    case = Case(parsed, lexicon, 0, key)
    barred = {word.lower() for word in taken}
    if op == SWAP:
        return _ask_for_pair(case, barred)
    kinds = (OBJECT,) if op == ADD else CONCEPT_KINDS
    free = [place for kind in kinds for place in case.free(kind, State())]
    free = [place for place in free if case.concepts[place].word not in barred]
    if not free:
        return None
    one = case.concepts[min(free, key=lambda place: case.hash(op, place))]
    gap = (one.start, one.start) if op == ADD else (one.start, one.end)
    text = f"{parsed.text[: gap[0]]}{GAP}{' ' * (op == ADD)}{parsed.text[gap[1] :]}"
    said = "" if op == ADD else parsed.text[one.start : one.end]
    examples = EXAMPLES[ADD if op == ADD else f"{REPLACE} {one.kind}"]
    return Request(_chat(op, examples, text, said), WORD_FORM, partial(_fill, case, gap, one))


def _fill(case: Case, gap: tuple[int, int], one: Concept, words: Sequence[str]) -> str:
    new = case.words.matching(one.start, one.end, words[0]) + " " * (gap[0] == gap[1])
    return case.words.render([Piece(*gap, new)])[0]


def _ask_for_pair(case: Case, barred: set[str]) -> Request | None:
    """Return the request for two words that the rules would let change places, all of one kind."""
    swaps = [change for rule in RULES[SWAP] for change in rule(case, State())]
    free = [change for change in swaps if not barred & {*change.concepts}]
    if not free:
        return None
    kind = min(free, key=lambda change: (change.tier, case.hash(SWAP, *change.concepts))).kind
    changes = [change for change in free if change.kind == kind]
    words = {word for change in changes for word in change.concepts}
    named = [one for one in case.concepts if one.word in words]
    said = {case.parsed.text[one.start : one.end].lower(): one.word for one in named}
    messages = _chat(SWAP, EXAMPLES[SWAP], case.parsed.text, ", ".join(said))
    return Request(messages, PAIR_FORM, partial(_exchange, case, changes, said))


def _exchange(
    case: Case, changes: Sequence[Change], said: dict[str, str], words: Sequence[str]
) -> str | None:
    """Return the caption with the two in each other's place; None where they are not there or may not."""
    wanted = sorted(said.get(word.lower(), word.lower()) for word in words)
    found = next((change for change in changes if sorted(change.concepts) == wanted), None)
    return case.words.render(found.pieces)[0] if found else None


def _chat(
    op: str, examples: Sequence[tuple[str, str, tuple[str, ...]]], text: str, said: str
) -> list[dict[str, str]]:
    names = FORMS[PAIR_FORM if op == SWAP else WORD_FORM]
    turns = [
        (_ask(op, shown, context), dict(zip(names, words, strict=True))) for shown, context, words in examples
    ]
    return make_chat(SYSTEMS[op], turns, _ask(op, text, said))


def _ask(op: str, text: str, said: str) -> str:
    return f"{quote(text)}\n{_BESIDES[op]}{quote(said)}" if said else quote(text)
