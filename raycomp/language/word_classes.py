"""The words of a caption that an edit can change, their classes, and the concepts that a run of them makes.

Words are compared in lower case without inflection; words that follow from others do not count (``GLUE``).
Classes go by Penn tags and neighbours, so they need no tree and no lexicon.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from raycomp.language.inflection import find_base_form
from raycomp.language.tokens import NOUN_TAGS, Token, Word
from raycomp.words import ATTRIBUTE, OBJECT, RELATION

WORD = re.compile(r"[^\W_]+")
GLUE = frozenset(
    "a an the this that these those such his her its their our my your s t there who whom which is are was "
    "were be been being am isn aren can could will would shall should may might must do does did and".split()
)
DENIALS = frozenset("no not n yes never none nor".split())
QUANTITIES = frozenset("number couple lot lots plenty few pair handful bunch variety".split())
# Nouns of place: "on the left of" is a relation, "the left of" anything else is not.
PLACES = frozenset("top bottom left right side sides back front middle center centre edge end rear".split())
PRONOUNS = frozenset(
    "he she it they him them himself herself itself themselves i you we me us one ones".split()
)
# Relations of several words besides those with a noun of place. The lexicon is not used: it writes negatives,
# and its own words must not judge them.
LINKS = {
    *(("in", noun, "of") for noun in ("spite", "place", "case", "favor", "terms", "lieu")),
    *(("on", noun, "of") for noun in ("behalf", "account")),
    *((word, "of") for word in ("out", "because", "instead", "ahead", "inside", "outside", "off")),
    *((word, "to") for word in ("next", "close", "due", "according", "opposite", "adjacent", "thanks")),
}
RECIPROCAL = (("side", "by", "side"), ("each", "other"), ("one", "another"))
# The classes of words, and the concepts that a run of them is made of, tried in this order at each place.
NOUN, MODIFIER, VERB, LINK, OF, ADVERB, OR, DENIAL = "NAVROBCD"
CONCEPTS = (
    (ATTRIBUTE, re.compile(r"[ABD]*NO$")),
    (OBJECT, re.compile(r"(?:[ABD](?:C?[ABD])*)?N(?:O[ABD]*N)*")),
    (RELATION, re.compile(r"B*[VRO](?:C?[VROB])*")),
    (ATTRIBUTE, re.compile(r"[ABD](?:C?[ABD])*")),
)


def read_words(tokens: Sequence[Token]) -> list[Word]:
    """Return the words of a caption that count, in order."""
    places = [i for i, token in enumerate(tokens) if WORD.search(token.text)]
    hyphened = [tokens[i].tag == "HYPH" or tokens[i].text == "-" for i in range(len(tokens))]
    joined = [any(hyphened[i:j]) for i, j in pairwise(places)]
    letters = dict(zip(places, classify_words([tokens[i] for i in places], joined), strict=True))
    words = []
    for i in places:
        for piece in WORD.finditer(tokens[i].text.lower()):
            if piece.group() not in GLUE:
                start = tokens[i].start + piece.start()
                words.append(
                    Word(find_base_form(piece.group()), start, start + len(piece.group()), letters[i])
                )
    return words


def classify_words(tokens: Sequence[Token], joined: Sequence[bool]) -> list[str]:
    """Return the class of every token (one letter), by its Penn tag and the neighbouring words.

    ``joined`` marks for each token except the last whether a hyphen joins it to the next: their class is one.
    """
    words = [token.text.lower() for token in tokens]
    letters = [""] * len(tokens)
    for i in reversed(range(len(tokens))):
        before, tag = tokens[i - 1].tag if i else "", tokens[i].tag
        behind, second = [*(token.tag for token in tokens[i + 1 : i + 3]), "", ""][:2]
        is_before_noun = behind in NOUN_TAGS or (behind in ("VBN", "JJ") and second in NOUN_TAGS)
        is_named = before in ("DT", "PRP$") or (before == "JJ" and tag in ("VB", "VBP"))
        letters[i] = _classify_word(words[i], tag, is_named, is_before_noun)
        if i < len(joined) and joined[i]:
            letters[i] = letters[i + 1]
    for last in range(len(words)):
        for first in range(max(0, last - 3), last):
            if _is_long_link(tuple(word for word in words[first : last + 1] if word not in ("a", "the"))):
                letters[first : last + 1] = [LINK] * (last + 1 - first)
        if words[last] == "of" and last and words[last - 1] in QUANTITIES:
            letters[last - 1 : last + 1] = [MODIFIER] * 2
    return letters


def _classify_word(word: str, tag: str, is_named: bool, is_before_noun: bool) -> str:
    """``is_named``: the preceding words exclude a verb, whatever the tagger reads."""
    if word in DENIALS:
        return DENIAL
    if word == "of":
        return OF
    if tag == "CC":
        return OR
    if tag in NOUN_TAGS:
        return MODIFIER if is_before_noun else NOUN
    if tag.startswith("VB") and not is_named:
        return MODIFIER if is_before_noun and tag == "VBN" else VERB
    if tag in ("IN", "TO", "RP", "WRB"):
        return LINK
    if tag.startswith("RB"):
        return ADVERB
    return NOUN if tag in ("PRP", "FW", "WP") or (tag.startswith("VB") and not is_before_noun) else MODIFIER


def _is_long_link(words: tuple[str, ...]) -> bool:
    """Report whether words without articles are a relation together: "in front of", "on left of"."""
    return (
        words in LINKS
        or words in RECIPROCAL
        or (
            len(words) == 3
            and words[0] in ("on", "at", "in", "to")
            and words[1] in PLACES
            and words[2] == "of"
        )
    )


def name_concepts(words: Sequence[Word]) -> list[str]:
    """Return the kinds of the concepts that a run of words is made of, in order."""
    letters = "".join(word.letter for word in words)
    kinds, place = [], 0
    while place < len(letters):
        matches = ((kind, pattern.match(letters, place)) for kind, pattern in CONCEPTS)
        kind, end = next(((kind, match.end()) for kind, match in matches if match), ("", place + 1))
        kinds += [kind] if kind else []
        place = end
    return kinds
