"""Faults of English that an edit of a caption can bring in, counted on the parser's tokens.

No grammar of English: only what goes wrong when words change places, come in or go. Captions are fragments
and the parser errs, so counts mean something only against those of the text that was edited.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from raycomp.language.inflection import choose_article
from raycomp.language.lexicon import Lexicon
from raycomp.language.tokens import ADJECTIVE_TAGS, ARTICLES, ONE, OWNERS, STOPS, SUBJECTS, Token
from raycomp.words import OBJECT, RELATION

CUT_OFF, DOUBLED_WORD, WRONG_ARTICLE = "cut_off", "doubled_word", "wrong_article"
NO_NOUN, NO_OBJECT, DISAGREEMENT, NO_SENTENCE = "no_noun", "no_object", "disagreement", "no_sentence"
FAULTS = {
    CUT_OFF: "it ends in the middle of a phrase: with a determiner, a conjunction or a form of to be",
    DOUBLED_WORD: "a word stands twice in a row",
    WRONG_ARTICLE: "a stands before the sound of a vowel, or an before another",
    NO_NOUN: "no noun follows a determiner",
    NO_OBJECT: "a preposition has no object",
    DISAGREEMENT: "a determiner or numeral disagrees in number with its noun",
    NO_SENTENCE: "it has no noun, or falls into several sentences",
}

NEED_NOUN = {*ARTICLES, "every", *OWNERS}
LAST_NEVER = NEED_NOUN | {*"and or but nor is are was were be being to very than while whose".split()}
PLURAL = {
    *"two three four five six seven eight nine ten eleven twelve several many both few various".split(),
    *"these those numerous".split(),
}
QUANTITIES = {*"few dozen hundred thousand million couple lot number pair handful bunch".split()}
# Of "two year old", "three story house": the singular is right.
UNITS = {*"year month story storey foot wheel lane door piece level person seat man way".split()}
PREPOSITIONS = {
    *"in on at under with of near behind over above below beside by for from into onto through".split(),
    *"between among against across along toward towards without beneath underneath upon atop".split(),
}
# A small parser takes "a boy [hands] out" and "a dog [chases] the ball" for nouns.
BEHIND_VERB = NEED_NOUN | {*"out up down off away him her them it".split()}
FINITE = {"VBZ", "VBP", "VBD", "MD"}
ENDING = {"IN", "TO", "VBZ", "VBP", "MD", "DT", "PRP", "PRP$", "WDT", "WP", "EX", "."}
INSIDE = {*ADJECTIVE_TAGS, "RB", "RBR", "RBS", "CD", "VBG", "VBN", "VBD", "HYPH", "FW"}
NOMINAL = {"ROOT", *SUBJECTS, "obj", "dobj", "pobj", "obl", "nmod", "conj"}


@lru_cache(maxsize=64)
def count_grammar_faults(tokens: tuple[Token, ...], lexicon: Lexicon) -> Counter[str]:
    """Count the faults of a text, by kind."""
    # A tokenizer may take "a." at the end for one word.
    words = [token.text.lower().rstrip(".") or "." for token in tokens]
    faults = Counter({NO_SENTENCE: _count_breaks(tokens), CUT_OFF: _is_cut_off(tokens, words)})
    for place, (word, token) in enumerate(zip(words, tokens, strict=True)):
        behind = tokens[place + 1] if place + 1 < len(tokens) else None
        if behind is not None and word == words[place + 1] and word[0].isalpha():
            faults[DOUBLED_WORD] += 1
        if word in ("a", "an") and behind is not None and _is_wrong_article(word, behind):
            faults[WRONG_ARTICLE] += 1
        if word in NEED_NOUN and token.tag != "NNP" and not _reaches_noun(tokens, place, lexicon):
            faults[NO_NOUN] += 1
        if word in PREPOSITIONS and _ends_phrase(behind):
            faults[NO_OBJECT] += 1
        if word in ONE | PLURAL and _disagrees(tokens, words, place, lexicon):
            faults[DISAGREEMENT] += 1
    return faults


def _count_breaks(tokens: Sequence[Token]) -> int:
    """Count what is too much for one sentence with a noun: its stops inside, and the lack of a noun."""
    is_nominal = [token.tag.startswith(("NN", "PRP")) or token.dep in SUBJECTS for token in tokens]
    stops = sum(token.text in (*STOPS, ";") for token in tokens[:-1])
    return stops + (not any(is_nominal))


def _is_cut_off(tokens: Sequence[Token], words: Sequence[str]) -> bool:
    said = [word for word in words if word[0].isalnum()]
    return bool(said) and (said[-1] in LAST_NEVER or tokens[-1].text in (",", "-", "&"))


def _is_wrong_article(word: str, behind: Token) -> bool:
    """Report whether the article clashes with a plain word behind it; letters and digits are spelt out."""
    text = behind.text
    return text.isalpha() and len(text) > 1 and not text.isupper() and choose_article(text) != word


def _reaches_noun(tokens: Sequence[Token], place: int, lexicon: Lexicon) -> bool:
    """Report whether a noun, or a word used as one, comes before the phrase of the determiner must end."""
    for step in range(place + 1, len(tokens)):
        token = tokens[step]
        if token.text == "-" and step > place + 1:
            return True
        if step + 1 < len(tokens) and tokens[step + 1].text == "-":
            continue
        if token.tag in ENDING or (step == place + 1 and not token.text[0].isalnum()):
            return False
        if token.tag.startswith("NN") or token.tag == "FW" or lexicon.find(token.text, OBJECT):
            return True
        if token.tag in ("JJ", "CD", "VBG", "VBN") and token.dep in NOMINAL and tokens[place].head == step:
            return True
        if token.tag == "CC" and step == place + 1:
            return False
    return False


def _ends_phrase(behind: Token | None) -> bool:
    return behind is None or behind.text in (*STOPS, ",", ";") or behind.tag in FINITE | {"CC"}


def _disagrees(tokens: Sequence[Token], words: Sequence[str], place: int, lexicon: Lexicon) -> bool:
    """Report whether the noun of the determiner or numeral at ``place`` has the other number."""
    nouns = []
    for step in range(place + 1, len(tokens)):
        token = tokens[step]
        if token.tag in ("NN", "NNS"):
            nouns.append(step)
        elif nouns or token.tag not in INSIDE | {"CC"}:
            break
        if words[step] in QUANTITIES or token.tag == "CD":
            return False
    if not nouns:
        return False
    if words[place] in ONE:
        head = next((step for step in nouns if tokens[step].dep in SUBJECTS), nouns[-1])
        is_verb = len(nouns) > 1 and lexicon.find(words[head], RELATION) is not None
        is_verb = is_verb or (len(nouns) > 1 and tokens[head].dep == "ROOT")
        is_verb = is_verb or (head + 1 < len(words) and words[head + 1] in BEHIND_VERB)
        return tokens[head].tag == "NNS" and lexicon.is_plural(words[head]) and not is_verb
    first = place
    while first and tokens[first - 1].tag in INSIDE:
        first -= 1
    if (first and words[first - 1] in NEED_NOUN | {"one", "number"}) or words[place + 1] in UNITS | {"-"}:
        return False
    return not any(_may_be_many(words[step], tokens[step].tag, lexicon) for step in nouns)


def _may_be_many(word: str, tag: str, lexicon: Lexicon) -> bool:
    return tag == "NNS" or lexicon.is_plural(word) or lexicon.plural(word) == word
