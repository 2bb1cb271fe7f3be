"""What an edit brings into a caption, as a phrase: "hat", or "red hat"."""

from collections.abc import Sequence

from raycomp.language.concepts import Parsed
from raycomp.language.context import CONCEPT, DESCRIBED, NEAR, START, Context
from raycomp.language.inflection import choose_article
from raycomp.words import ADD, ATTRIBUTE, OBJECT, RELATION, REPLACE

Phrase = tuple[str, ...]
"""(noun,) or (noun, attribute)."""


def find_new_phrase(op: str, kind: str, concepts: Sequence[str], parsed: Parsed) -> Phrase:
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
    return f"a photo of {choose_article(said)} {said}"


def count_captions(context: Context) -> int:
    """Return how many captions were counted."""
    return sum(count for (first, _), count in context.tables[NEAR].items() if first == START)


def count_phrase(phrase: Phrase, context: Context) -> int:
    """Return how often captions mention a phrase."""
    noun, *attributes = phrase
    tables = context.tables
    return tables[DESCRIBED][noun, attributes[0]] if attributes else tables[CONCEPT][OBJECT, noun]
