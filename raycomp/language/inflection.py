"""Regular English endings, and the article that a word asks for."""

import re

VOWEL_SOUNDS = (
    "hour",
    "honest",
    "honor",
    "honour",
    "heir",
    "x-ray",
    "mp3",
    "suv",
    "atv",
    "lp",
    "nba",
    "nfl",
    "rv",
)
CONSONANT_SOUNDS = (
    *("uni", "use", "usu", "util", "uran", "urin", "uter", "uga", "ukulele", "ufo", "uk ", "us ", "u.s"),
    *("eu", "ewe", "one", "once"),
)
VOWEL_NUMBERS = re.compile(r"8|1[18](?!\d)|18\d\d(?!\d)")
UN_PREFIX = ("unin", "unim", "unid")


def choose_article(following: str) -> str:
    """Return "a" or "an" for the words that follow it, by their sound."""
    word = following.lower()
    if word.startswith(VOWEL_SOUNDS) or VOWEL_NUMBERS.match(word):
        return "an"
    if word.startswith(UN_PREFIX):
        return "an"
    return "an" if word[:1] in tuple("aeiou") and not word.startswith(CONSONANT_SOUNDS) else "a"


def add_s(word: str) -> str:
    """Return the regular plural of a noun, or the third person of a verb."""
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2:-1] not in tuple("aeiou"):
        return word[:-1] + "ies"
    return word + ("es" if word in ("go", "do", "echo", "veto") else "s")


def drop_s(word: str) -> str:
    """Return the regular singular of a noun; the word itself where it is no plural."""
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "zzes", "ches", "shes")):
        return word[:-2]
    return word[:-1]


def add_ing(verb: str, doubles: bool) -> str:
    """Return the participle of a verb, which may double its last letter: "hugging"."""
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith(("ee", "oe", "ye")):
        return verb[:-1] + "ing"
    return verb + verb[-1] * doubles + "ing"


def regular_past(verb: str, doubles: bool) -> str:
    """Return the regular past of a verb."""
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2:-1] not in tuple("aeiou"):
        return verb[:-1] + "ied"
    return verb + verb[-1] * doubles + "ed"
