"""Real words in place of a phrase's target: what a nonce's drop is read against.

Go et al. (arXiv 2605.22651, section 7) find the mean drop of nonces between those of real words of the same
and of another category, and name no rules. These are ours; the categories are the lexicon's. The new word
keeps the target's number, capitals, length in BPE tokens and the tokens around it, suits an "a" or "an"
before it, is countable where the target is, and the caption does not name it already. It is neither a synonym
of the target nor a wider or a narrower word; a word of another category has no wider word in common with it
either ("man" and "teacher" are persons). Only words that the corpus uses count as real: a scorer need not
know others.
"""

import re
from collections.abc import Callable, Collection
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from raycomp.language.inflection import choose_article, is_plural
from raycomp.language.lexicon import ABSTRACT, CROWD, FIXED, RARE, Entry, Lexicon
from raycomp.language.nonce import copy_case, find_article, find_fault, make_counterfactual
from raycomp.words import OBJECT

NO_CONTROLS = (ABSTRACT, CROWD, FIXED)
"""Categories whose words have no thing of their own to be another one instead."""
NO_CATEGORY = "no_category"
NO_SAME = "no_same_category_word"
NO_CROSS = "no_cross_category_word"
REASONS = {
    NO_CATEGORY: "no control: the lexicon knows no category of visible things for the target",
    NO_SAME: "no control: no word of its category fits: its length in tokens, its form, not said already",
    NO_CROSS: "no control: no word of another category fits",
}
WORD = re.compile(r"[^\W\d_]+")


class Controls(NamedTuple):
    """The two words that may stand in place of a target, in its form."""

    same: str
    cross: str


def find_word_set(text: str) -> set[str]:
    """Return the words of a text, in lower case."""
    return {*WORD.findall(text.lower())}


def find_sense(lexicon: Lexicon, text: str) -> Entry | None:
    """Return what the lexicon has for the noun that ``text`` ends with: the longest that it knows.

    Of "a brown teddy bear" that is a toy and no animal. None where it knows none, or one that stands for no
    thing of its own ("day", the "group" of people).
    """
    words = text.split()
    found = (lexicon.find(" ".join(words[first:]), OBJECT) for first in range(len(words)))
    sense = next((entry for entry in found if entry), None)
    return None if sense is None or sense.category in NO_CONTROLS else sense


class ControlWords:
    """Draws control words. A target has the same ones in all captions that both fit, whatever else is drawn.

    ``encode`` returns a text's BPE ids without start and end; ``vocabulary`` are the corpus's words in lower
    case. Words are tried in the order of a hash of (seed, target, word).
    """

    def __init__(
        self,
        lexicon: Lexicon,
        encode: Callable[[str], list[int]],
        context_length: int,
        vocabulary: Collection[str],
        seed: int = 0,
    ):
        self.lexicon = lexicon
        self.encode = encode
        self.context_length = context_length
        self.vocabulary = frozenset(vocabulary)
        self.seed = seed
        self._list = lru_cache(1 << 16)(self._list_words)

    def draw(self, caption: str, phrase_start: int, start: int, end: int) -> Controls | str:
        """Return the words for the target ``caption[start:end]``, or the reason why one is missing.

        ``phrase_start`` is where the target's phrase begins; offsets count characters.
        """
        sense = find_sense(self.lexicon, caption[phrase_start:end])
        if sense is None:
            return NO_CATEGORY
        drawn = []
        for is_same, reason in ((True, NO_SAME), (False, NO_CROSS)):
            words = self._list(caption[start:end].lower(), sense, is_same)
            word = next((word for word in words if self._fits(caption, start, end, word)), None)
            if word is None:
                return reason
            drawn.append(copy_case(word, caption[start:end]))
        return Controls(*drawn)

    def _list_words(self, target: str, sense: Entry, is_same: bool) -> list[str]:
        """Return the words that may replace a target (in lower case) in some caption, in its form."""
        if not target.isalpha():
            return []  # a hyphen or a possessive would be lost
        words = self._siblings(target, sense) if is_same else self._strangers(target, sense)
        is_mass, plural = self.lexicon.is_mass(sense.word), is_plural(target)
        forms = {
            self.lexicon.plural(word) if plural else word
            for word in words
            if self.lexicon.is_mass(word) == is_mass
        }
        length = len(self.encode(target))
        fitting = (
            form
            for form in forms & self.vocabulary
            if is_plural(form) == plural and len(self.encode(form)) == length
        )
        return sorted(fitting, key=lambda form: self._hash(target, form))

    def _siblings(self, target: str, sense: Entry) -> list[str]:
        found = []
        for word in self.lexicon.siblings(sense):
            entry = self.lexicon.find(word, OBJECT)
            kin = self.lexicon.is_kind_of(word, target) or self.lexicon.is_kind_of(target, word)
            if entry and entry.category == sense.category and not kin:
                found.append(word)
        return found

    def _strangers(self, target: str, sense: Entry) -> list[str]:
        return [
            row.words[0]
            for row in self.lexicon.rows.values()
            if row.kind == OBJECT
            and row.category not in (sense.category, *NO_CONTROLS)
            and RARE not in row.marks
            and not any(self.lexicon.are_related(row.words[0], word) for word in (sense.word, target))
        ]

    def _hash(self, target: str, form: str) -> bytes:
        return blake2b(f"{self.seed}\0{target}\0{form}".encode(), digest_size=8).digest()

    def _fits(self, caption: str, start: int, end: int, word: str) -> bool:
        article = find_article(caption, start)
        if article and choose_article(word) != article:
            return False
        others = find_word_set(caption[:start]) | find_word_set(caption[end:])
        if any(self.lexicon.is_kind_of(other, word) for other in others):
            return False
        texts = (caption, make_counterfactual(caption, start, end, word), caption[start:end], word)
        before, after, target, new = map(self.encode, texts)
        return find_fault(before, after, target, new, self.context_length) is None
