"""Paraphrases by order of conjuncts: "a dog and a cat sleep", "a cat and a dog sleep".

Two conjuncts change places only where nothing else can hang on one of them: what follows the second might
belong to it alone ("a lady and a man with no shirt"), what precedes the first to both ("a red hat and
shirt"). The rules refuse more than they must: a lost paraphrase costs less than one that says something else.
"""

from collections.abc import Sequence

from raycomp.language.tokens import ADJECTIVE_TAGS, Token

DETERMINERS = {"a", "an", "the", "some", "several", "many"}
NOUNS = {"NN", "NNS"}
INSIDE = {*ADJECTIVE_TAGS, "RB", "VBN", *NOUNS}
PLURAL_VERBS = {"are", "were", "have"}
NO_PRESENT = ("ed", "ing")
# Pronouns that go back to what was said last, and words that say which of the two is meant by order alone.
BOUND = {
    *"he she it him her hers his its himself herself itself ones other others another who whose".split(),
    *"former latter first second last left right respectively either".split(),
}


def swap_conjuncts(text: str, tokens: Sequence[Token]) -> str | None:
    """Return the text with its two initial conjuncts in the other order, with the same meaning; else None.

    Each has a determiner or numeral of its own, or both are one bare word. Behind them comes nothing or a
    verb that agrees with both ("are", "play"), and nowhere a pronoun of one of them ("its", "another").
    """
    words = [token.text.lower() for token in tokens]
    middle = _end_of_conjunct(tokens, words, 0)
    if not middle or words[middle : middle + 1] != ["and"]:
        return None
    end = _end_of_conjunct(tokens, words, middle + 1)
    are_bare = (middle, end) == (1, 3)
    if not end or not (are_bare or all(_is_own(tokens[place]) for place in (0, middle + 1))):
        return None
    # "Each other" is of both.
    alone = [word for before, word in zip(["", *words], words, strict=False) if before != "each"]
    if BOUND & {*alone} or not _goes_on_with_both(tokens, words, end):
        return None
    return _exchange(text, tokens, middle, end)


def _is_own(token: Token) -> bool:
    return token.tag == "CD" or token.text.lower() in DETERMINERS


def _end_of_conjunct(tokens: Sequence[Token], words: Sequence[str], start: int) -> int:
    """Return the end of the determiner, modifiers and nouns from ``start``; 0 where no noun ends them."""
    end = start + (start < len(tokens) and _is_own(tokens[start]))
    while end < len(tokens) and tokens[end].tag in INSIDE and words[end] not in DETERMINERS:
        end += 1
    return end if end > start and tokens[end - 1].tag in NOUNS else 0


def _goes_on_with_both(tokens: Sequence[Token], words: Sequence[str], end: int) -> bool:
    """Report whether the text ends here, or a plural verb in the present says something of both.

    At the end of the text a noun behind a noun may be a verb that the parser mistook: "a tan dog fighting".
    """
    if end == len(tokens) or words[end] in (".", "!"):
        return end + 1 >= len(tokens) and tokens[end - 2].tag not in NOUNS
    return words[end] in PLURAL_VERBS or (tokens[end].tag == "VBP" and not words[end].endswith(NO_PRESENT))


def _exchange(text: str, tokens: Sequence[Token], middle: int, end: int) -> str:
    """Return the text with the tokens before ``middle`` and those behind it, up to ``end``, exchanged."""
    spans = [(tokens[a].start, tokens[b].end) for a, b in ((0, middle - 1), (middle + 1, end - 1))]
    first, second = (text[start:stop] for start, stop in spans)
    if first[0].isupper():
        first, second = first[0].lower() + first[1:], second[0].upper() + second[1:]
    (start, before), (behind, stop) = spans
    return text[:start] + second + text[before:behind] + first + text[stop:]
