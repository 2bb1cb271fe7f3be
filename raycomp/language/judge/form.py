"""What a model may write instead of an edited caption, seen from the letters alone."""

import re

EMPTY, TOO_LONG, MARKUP, PROSE, LANGUAGE = "empty", "too_long", "markup", "prose", "language"
FORM_FAULTS = {
    EMPTY: "it has no word",
    TOO_LONG: "it has too many characters or words, or many more than its input",
    MARKUP: "it holds markup, code, an address or control characters that its input does not",
    PROSE: "it speaks about a caption instead of being one",
    LANGUAGE: "it is in another language",
}

MAX_CHARACTERS, MAX_WORDS = 300, 60
LONGEST_EDITED = 2 * MAX_CHARACTERS
"""No edit of a longer text could be short enough, and finding edits takes the square of its length."""
MAX_TOKENS = 75
"""CLIP reads 77, two of them marks; a word is taken for one token and one more per eight letters."""
MAX_GROWTH, GROWTH_SLACK = 1.5, 6
"""Words of a text: at most so many times those of its input, and so many more."""

WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
CODE = re.compile(r"[<>{}\[\]|\\`^*_#=~\x00-\x1f\x7f]|&\w+;|https?:|www\.")
SPEECH = re.compile(r"[\":\u201c\u201d()]")
SPEAKING = {
    *"i i'm i've caption captions sentence swapped replaced modified sure sorry certainly okay".split(),
    *"answer output json negative operation here's".split(),
}
FOREIGN = {
    *"un una el los las del con y en su sobre por para junto dos uma na com uno della che di per il".split(),
    *"le les des et dans sur avec une est sont sous deux het een op van ett och".split(),
    *"der das ein eine einen einem und auf mit im ist von unter neben zwei".split(),
}
LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]")


def strip(text: str) -> str:
    """Return the text without case, needless white space and final stop."""
    return " ".join(text.casefold().split()).rstrip(" .!")


def find_form_fault(text: str, known_text: str) -> str | None:
    """Return why ``text`` cannot be a caption edited from ``known_text``; what ``known_text`` also has is
    allowed."""
    if not WORD.search(text):
        return EMPTY
    if len(text) > MAX_CHARACTERS:
        return TOO_LONG
    if {*CODE.findall(text)} - {*CODE.findall(known_text)}:
        return MARKUP
    words, known = WORD.findall(text.casefold()), WORD.findall(known_text.casefold())
    new = {*words} - {*known}
    if {*SPEECH.findall(text)} - {*SPEECH.findall(known_text)} or new & SPEAKING:
        return PROSE
    if len(new & FOREIGN) > 1 or _share_of_latin(text) < min(0.8, _share_of_latin(known_text)):
        return LANGUAGE
    tokens = sum(1 + (len(word) - 1) // 8 for word in words) + sum(text.count(mark) for mark in ".,-'")
    is_long = len(words) > min(MAX_WORDS, MAX_GROWTH * len(known) + GROWTH_SLACK) or tokens > MAX_TOKENS
    return TOO_LONG if is_long else None


def _share_of_latin(text: str) -> float:
    if text.isascii():
        return float(any(map(str.isalpha, text)))
    letters = [letter for letter in text if letter.isalpha()]
    return sum(LATIN.match(letter) is not None for letter in letters) / max(1, len(letters))
