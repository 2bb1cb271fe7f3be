"""Which operations explain a hard negative: SWAP, REPLACE, ADD, one call or two, or none of them.

The definition is over words alone, so it holds for negatives of any origin. Of each caption the words count
that ``concepts.read_words`` reads: not articles, possessives, "and", forms of "be", modal verbs, relative
pronouns; inflection and punctuation aside. Pronouns count only where nothing else differs: else they agree
with it.
A run of words is made of concepts (``concepts.name_concepts``):

- object: a noun or pronoun with all that stands before it in the phrase ("two small dogs", "cup of tea");
- relation: verbs, prepositions, particles ("is walking down", "in front of", "on the left of");
- attribute: adjectives, numerals, quantities ("a number of"), nouns and participles before a noun that did
  not change, adverbs alone.

Of the two captions, one positive and one negative,

- SWAP: the same words as often, in another order; prepositions may come, or may go, with a verb's object;
- REPLACE: exactly one run of words differs, and it is one concept in both;
- ADD: the positive is what remains of the negative without one run of words, and that run is one concept,
  an object with the relations that tie it in ("and a hat", "on a red mat");
- two calls: two such runs, or one run of two concepts, or a SWAP and a leftover run of one concept, where
  the SWAP moves at least one noun, adjective or verb;
- none: all other negatives, for one of ``REASONS``. In particular no operation deletes.

An explanation says that the words differ as an operation makes them differ, not that the meaning does: two
true captions of an image can be explained too. ``probe/overlap.py`` counts how often.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

from raycomp.language import concepts, tokens
from raycomp.language.concepts import Edit, Parsed
from raycomp.language.text_only import CONCEPT, DESCRIBED, END, NEAR, START, Context, find_words
from raycomp.language.tokens import Token, Word
from raycomp.words import ADD, ATTRIBUTE, OBJECT, RELATION, REPLACE, SWAP

Phrase = tuple[str, ...]
"""(noun,) or (noun, attribute)."""


def get_new_phrase(op: str, kind: str, concepts: Sequence[str], parsed: Parsed) -> Phrase:
    """Return what a REPLACE or an ADD brings in; () for other edits, and for relations of what is there."""
    own = [concept for concept in concepts if not concept.startswith("-")]
    if op not in (REPLACE, ADD) or not own or (op, kind) == (REPLACE, RELATION):
        return ()
    new = own[-1]
    if kind != ATTRIBUTE:
        return (new,)
    owners = [one.owner for one in parsed.concepts if (one.kind, one.word) == (ATTRIBUTE, new)]
    return (parsed.concepts[owners[0]].word, new) if owners and owners[0] is not None else ()


def say_phrase(phrase: Phrase) -> str:
    """Return the text whose embedding stands for a phrase."""
    said = " ".join(reversed(phrase))
    return f"a photo of {tokens.choose_article(said)} {said}"


def count_captions(context: Context) -> int:
    """Return how many captions were counted."""
    return sum(count for (first, _), count in context.tables[NEAR].items() if first == START)


def count_phrase(phrase: Phrase, context: Context) -> int:
    """Return how often captions mention a phrase."""
    noun, *attributes = phrase
    tables = context.tables
    return tables[DESCRIBED][noun, attributes[0]] if attributes else tables[CONCEPT][OBJECT, noun]


# Ends of the classes of a difference in words or letters: 1, 2, 3 to 4, 5 to 8, more.
_SIZES = (1, 2, 4, 8)


def list_differences(caption: str, negative: str) -> Iterator[tuple[str, int]]:
    """Yield the words, and pairs of neighbours, that occur more often in one of the two: (name, caption's
    count minus negative's); then the sign of the difference in words and in letters, by its size.

    Exchanging the two changes the sign of every difference. ``core.refine`` makes their sums 0.
    """
    words = find_words(caption), find_words(negative)
    first, second = (Counter([*own, *map(" ".join, pairwise([START, *own, END]))]) for own in words)
    for name in sorted(first.keys() | second.keys()):
        if first[name] != second[name]:
            yield name, first[name] - second[name]
    for unit, (one, two) in (("words", map(len, words)), ("letters", map(len, (caption, negative)))):
        if one != two:
            yield f"#{unit} {sum(abs(one - two) > end for end in _SIZES)}", 1 if one > two else -1


SAME, POLARITY, DELETION, REWORDED = "same", "polarity", "deletion", "reworded"
REASONS = {
    SAME: "but for articles, inflection and punctuation the two captions are one",
    POLARITY: "only yes, no or not comes, goes or changes, which is no concept",
    DELETION: "the negative says less: a concept is gone and none stands for it",
    REWORDED: "more differs than two calls change",
}
MOST_CALLS = 2


class Call(NamedTuple):
    """One call of an operation on a concept of some kind."""

    op: str
    kind: str


class Explanation(NamedTuple):
    """What made a negative: one or two calls in no particular order, or none and the reason why not."""

    calls: tuple[Call, ...]
    reason: str = ""

    @property
    def name(self) -> str:
        """SWAP, REPLACE, ADD, two of them joined by "+", or "" where nothing explains."""
        return "+".join(sorted(call.op for call in self.calls))


class Hunk(NamedTuple):
    """Words that differ at one place: those of the positive and those that stand there in the negative."""

    old: Sequence[Word]
    new: Sequence[Word]


def explain(positive: Sequence[Token], negative: Sequence[Token]) -> Explanation:
    """Return the fewest calls, at most two, that lead from the positive's tokens to the negative's.

    Between equally few, one run that differs goes before several, and both before a SWAP with a rest.
    """
    old, new = concepts.read_words(positive), concepts.read_words(negative)
    if tokens.list_bases(old) == tokens.list_bases(new):
        return Explanation((), SAME)
    nouns = [[word for word in words if word.base not in concepts.PRONOUNS] for words in (old, new)]
    if tokens.list_bases(nouns[0]) != tokens.list_bases(nouns[1]):
        old, new = nouns
    hunk, hunks = Hunk(*tokens.cut_ends(old, new)), find_hunks(old, new)
    if {word.letter for word in (*hunk.old, *hunk.new)} == {concepts.DENIAL}:
        return Explanation((), POLARITY)
    if kind := _find_swap(old, new):
        return Explanation((Call(SWAP, kind),))
    found = [_count_calls([hunk]), _count_calls_after_swap(hunks), _count_calls(hunks)]
    known = [calls for calls in found if calls is not None and len(calls) <= MOST_CALLS]
    if known:
        return Explanation(min(known, key=len))
    is_shorter = _count_apart(old, new) and not _count_apart(new, old)
    return Explanation((), DELETION if is_shorter else REWORDED)


def find_hunks(old: Sequence[Word], new: Sequence[Word]) -> list[Hunk]:
    """Return what differs around the longest common run, then around the longest on either side, and so on.

    Of equally long runs the first one counts (Ratcliff and Obershelp's alignment).
    """
    match = SequenceMatcher(None, tokens.list_bases(old), tokens.list_bases(new), autojunk=False)
    return [Hunk(old[a:b], new[c:d]) for tag, a, b, c, d in match.get_opcodes() if tag != "equal"]


def _find_swap(old: Sequence[Word], new: Sequence[Word]) -> str:
    """Return the kind of what was exchanged if the same words stand in another order, else "".

    Links that only come or only go are the verb's ("[at] a child a woman nags"), no concept of their own.
    """
    lost, gained = _count_apart(old, new), _count_apart(new, old)
    if (lost and gained) or any(word.letter != concepts.LINK for word in (*lost, *gained)):
        return ""
    kept, kept_new = [word for word in old if word not in lost], [word for word in new if word not in gained]
    span = Hunk(*tokens.cut_ends(kept, kept_new))
    size, old_bases, new_bases = len(span.old), tokens.list_bases(span.old), tokens.list_bases(span.new)
    for total in range(2, size + 1):  # the shortest blocks A, B: A x B before, B x A after
        for a in range(1, total):
            rest = size - total + a
            if old_bases[rest:] + old_bases[a:rest] + old_bases[:a] == new_bases:
                kinds = [
                    _kind_of([word.letter for word in block]) for block in (span.old[:a], span.old[rest:])
                ]
                is_move = total == size  # an attribute that moves past its noun
                if is_move and ATTRIBUTE in kinds:
                    return ATTRIBUTE
                return next(kind for kind in (OBJECT, RELATION, ATTRIBUTE) if kind in kinds)
    pairs = zip(span.old, new_bases, strict=True)
    return _kind_of([word.letter for word, base in pairs if word.base != base])


def _count_apart(words: Sequence[Word], others: Sequence[Word]) -> list[Word]:
    """Return those of ``words`` that ``others`` have less often."""
    spare = Counter(word.base for word in others)
    left = []
    for word in words:
        spare[word.base] -= 1
        if spare[word.base] < 0:
            left.append(word)
    return left


def _count_calls(hunks: Sequence[Hunk]) -> tuple[Call, ...] | None:
    """Return one call per concept replaced or added; None where a concept is deleted."""
    calls: list[Call] = []
    for hunk in hunks:
        old, new = concepts.name_concepts(hunk.old), concepts.name_concepts(hunk.new)
        if len(new) < len(old) or (hunk.old and not new):
            return None
        if hunk.old and not old:
            old = [new[0]]
        calls += [Call(REPLACE, kind) for kind in old]
        # A run adds its objects, which bring their relations along, and its other attributes.
        added = new[len(old) :]
        calls += [Call(ADD, kind) for kind in added if kind != RELATION]
        calls += [Call(ADD, kind) for kind in added[:1] if {*added} == {RELATION}]
    return tuple(calls)


def _count_calls_after_swap(hunks: Sequence[Hunk]) -> tuple[Call, ...] | None:
    """Return a SWAP of the words that only moved, and the calls that explain what remains."""
    lost = [word for hunk in hunks for word in hunk.old]
    gained = [word for hunk in hunks for word in hunk.new]
    left, left_new = _count_apart(lost, gained), _count_apart(gained, lost)
    kind = _kind_of([word.letter for word in lost if word not in left and word.letter in "NAV"])
    old_runs = [run for hunk in hunks if (run := [word for word in hunk.old if word in left])]
    new_runs = [run for hunk in hunks if (run := [word for word in hunk.new if word in left_new])]
    if not kind or len(old_runs) > 1 or len(new_runs) != 1:
        return None
    rest = _count_calls([Hunk(old_runs[0] if old_runs else [], new_runs[0])])
    return None if rest is None else (Call(SWAP, kind), *rest)


def _kind_of(letters: Sequence[str]) -> str:
    """Return the kind of words together: an object if one is a noun, else a relation if one is a verb, ..."""
    if concepts.NOUN in letters:
        return OBJECT
    if concepts.ACTION in letters or not {*letters} & {concepts.MODIFIER, concepts.ADVERB, concepts.DENIAL}:
        return RELATION if letters else ""
    return ATTRIBUTE


def is_regenerated(negative: str, edits: Sequence[Edit]) -> bool:
    """Report whether one of ``edits`` is the negative, but for case, punctuation and articles."""
    texts = (negative, *(edit.text for edit in edits))
    wanted, *said = (
        [one for one in concepts.WORD.findall(text.lower()) if one not in tokens.ARTICLES] for text in texts
    )
    return wanted in said


def is_same_edit(positive: str, negative: str, op: str, edits: Sequence[Edit]) -> bool:
    """Return whether one of ``edits`` is of operation ``op`` and changes the same words as the negative.

    The words of the positive between the common start and the common end are compared by their positions;
    where words are only added it is the place they are added at.
    """
    place = _locate(positive, negative)
    return any(edit.op == op and _locate(positive, edit.text) == place for edit in edits)


def _locate(positive: str, negative: str) -> tuple[int, int]:
    old, new = (
        [tokens.get_base_form(w) for w in concepts.WORD.findall(t.lower()) if w not in concepts.GLUE]
        for t in (positive, negative)
    )
    first, behind = tokens.measure_ends(old, new)
    return first, len(old) - behind
