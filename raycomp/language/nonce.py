"""The Three-Invariance replacement protocol (Go et al., arXiv 2605.22651, section 4.3), and its control
words.

A nonce takes the place of a phrase's nominal target in the caption: as many BPE tokens (Eq. 4), no meaning,
and the target's capitals, plural, possessive, hyphens and digits. The paper says what has to hold and not
how; the rules are ours. Tokens are BPE ids without start and end of text. A nonce has one of three forms:
``plural``, or ``vowel`` or ``consonant`` by its first letter. An "a" or "an" before it stays right: it does
not belong to the target and cannot change, so the nonce is drawn to suit it.

Go et al. (arXiv 2605.22651, section 7) find the mean drop of nonces between those of real words of the same
and of another category, and name no rules. These are ours; the categories are the lexicon's. The new word
keeps the target's number, capitals, length in BPE tokens and the tokens around it, suits an "a" or "an"
before it, is countable where the target is, and the caption does not name it already. It is neither a synonym
of the target nor a wider or a narrower word; a word of another category has no wider word in common with it
either ("man" and "teacher" are persons). Only words that the corpus uses count as real: a scorer need not
know others.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from raycomp.language.lexicon import ABSTRACT, CROWD, FIXED, RARE, Entry, Lexicon
from raycomp.language.tokens import choose_article, is_plural
from raycomp.words import OBJECT

CONSONANT = "consonant"
VOWEL = "vowel"
PLURAL = "plural"

PAST_CONTEXT = "past_context"
NOT_A_WORD = "not_a_word"
NO_NONCE_OF_LENGTH = "no_nonce_of_length"
TOKENS_CHANGE = "tokens_change"
REASONS = {
    PAST_CONTEXT: "the target does not lie wholly before the text encoder's cut",
    NOT_A_WORD: "the target has no Latin letter: a number, an emoji, another script",
    NO_NONCE_OF_LENGTH: "the target has a word of more tokens than any nonce",
    TOKENS_CHANGE: "with every nonce tried, tokens outside the target would change too",
}

Pools = Mapping[tuple[int, str], Sequence[str]]
"""(num_tokens, form) -> nonces in lower case."""

_LETTER = "A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff"
_WORD = re.compile(f"[{_LETTER}][{_LETTER}\u0300-\u036f]*")
_POSSESSIVE = re.compile("['\u2019]s$", re.IGNORECASE)
_AFTER_AN = re.compile("[aeio]|u(?!ni|s|t)", re.IGNORECASE)
_ARTICLE = re.compile("(?:^|[^\\w'\u2019-])(an?)\\s+[\"'(\u2018\u201c]?$", re.IGNORECASE)


def list_word_spans(target: str) -> list[tuple[int, int]]:
    """Return the (start, end) of the words of a target that are replaced; none if it has no Latin letter.

    They are its runs of Latin letters, a possessive 's apart; single letters ("T-shirt", "F16") only where
    there is nothing longer.
    """
    stem = _POSSESSIVE.sub("", target)
    runs = [match.span() for match in _WORD.finditer(stem)]
    return [(start, end) for start, end in runs if end - start > 1] or runs


def form_of(word: str) -> str:
    """Return which form of nonce can stand for ``word``."""
    if is_plural(word):
        return PLURAL
    return VOWEL if _AFTER_AN.match(word) else CONSONANT


def read_article(caption: str, start: int) -> str:
    """Return the "a" or "an" that stands right before the character ``start``, in lower case; "" for none."""
    found = _ARTICLE.search(caption[max(0, start - 8) : start])
    return found[1].lower() if found else ""


def _suits(nonce: str, article: str) -> bool:
    return not article or bool(_AFTER_AN.match(nonce) if article == "an" else nonce[0] not in "aeiou")


def copy_case(nonce: str, word: str) -> str:
    """Return ``nonce`` with the capitals of ``word``, letter by letter; a longer nonce ends like its last."""
    upper = [letter.isupper() for letter in word]
    upper += upper[-1:] * len(nonce)
    return "".join(letter.upper() if up else letter for letter, up in zip(nonce, upper, strict=False))


def draw_nonces(
    target: str,
    count_tokens: Callable[[str], int],
    count: int,
    key: str,
    seed: int,
    pools: Pools,
    article: str = "",
) -> list[str]:
    """Draw up to ``count`` distinct replacements of a target that suit the "a" or "an" before it, if any.

    They depend on nothing but the target in lower case, the lengths of its words in tokens, ``article``,
    ``key`` and ``seed``; with ``key`` "" a target has the same nonces in every caption but for that article,
    a sample's own key changes them from sample to sample. Fewer come back where a pool is small, none where
    a word is longer than any nonce or the target has no word.
    """
    spans = list_word_spans(target)
    if not spans:
        return []
    draws = []
    for start, end in spans:
        word = target[start:end]
        asked = article if start == 0 else ""
        pool = _list_fitting(pools, count_tokens(word), form_of(word), asked)
        name = "\0".join((str(seed), key, target.lower(), str(start)))
        draws.append([copy_case(nonce, word) for nonce in _shuffle(pool, name, count, word.lower())])
    return [_replace(target, spans, words) for words in zip(*draws, strict=False)]


def _list_fitting(pools: Pools, num_tokens: int, form: str, article: str) -> Sequence[str]:
    """Return the nonces of a form; where an article asks for another sound, those of that sound."""
    if form == PLURAL:
        return [nonce for nonce in pools.get((num_tokens, form), ()) if _suits(nonce, article)]
    sound = {"": form, "a": CONSONANT, "an": VOWEL}[article]
    return pools.get((num_tokens, sound), ())


def _shuffle(pool: Sequence[str], name: str, count: int, never: str) -> Iterator[str]:
    """Yield up to ``count`` members of the pool, but not ``never``, in an order that ``name`` decides."""
    left = [nonce for nonce in pool if nonce != never]
    for j in range(min(count, len(left))):
        digest = blake2b(f"{name}\0{j}".encode(), digest_size=8).digest()
        yield left.pop(int.from_bytes(digest, "big") % len(left))


def _replace(target: str, spans: list[tuple[int, int]], words: Sequence[str]) -> str:
    for (start, end), word in reversed(list(zip(spans, words, strict=True))):
        target = target[:start] + word + target[end:]
    return target


def make_counterfactual(caption: str, start: int, end: int, nonce: str) -> str:
    """Return the caption with its characters [start:end] replaced (Eq. 2)."""
    return caption[:start] + nonce + caption[end:]


def check_nonce(
    caption_tokens: Sequence[int],
    counterfactual_tokens: Sequence[int],
    target_tokens: Sequence[int],
    nonce_tokens: Sequence[int],
    context_length: int,
) -> str | None:
    """Check token invariance on the whole caption: None if it holds, else the reason.

    It holds where the caption is A + target + B and the counterfactual A + nonce + B, token by token, nonce
    and target being equally long but not equal, and A + target survives the cut to ``context_length`` tokens
    with start and end of text (open_clip keeps the first ``context_length - 2``). No character offset is
    mapped to tokens: cleaning (HTML, white space, mojibake) may move them.
    """
    length = len(target_tokens)
    inner = _first_difference(target_tokens, nonce_tokens)
    first = _first_difference(caption_tokens, counterfactual_tokens)
    same_lengths = len(nonce_tokens) == length and len(counterfactual_tokens) == len(caption_tokens)
    if not same_lengths or inner is None or first is None or first < inner:
        return TOKENS_CHANGE
    start, end = first - inner, first - inner + length
    if (
        caption_tokens[start:end] != target_tokens
        or counterfactual_tokens[start:end] != nonce_tokens
        or caption_tokens[end:] != counterfactual_tokens[end:]
    ):
        return TOKENS_CHANGE
    return PAST_CONTEXT if end > context_length - 2 else None


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)


NO_CONTROLS = (ABSTRACT, CROWD, FIXED)
"""Categories whose words have no thing of their own to be another one instead."""
NO_CATEGORY = "no_category"
NO_SAME = "no_same_category_word"
NO_CROSS = "no_cross_category_word"
CONTROL_REASONS = {
    NO_CATEGORY: "no control: the lexicon knows no category of visible things for the target",
    NO_SAME: "no control: no word of its category fits: its length in tokens, its form, not said already",
    NO_CROSS: "no control: no word of another category fits",
}
WORD = re.compile(r"[^\W\d_]+")


class Controls(NamedTuple):
    """The two words that may stand in place of a target, in its form."""

    same: str
    cross: str


def list_distinct_words(text: str) -> set[str]:
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
        article = read_article(caption, start)
        if article and choose_article(word) != article:
            return False
        others = list_distinct_words(caption[:start]) | list_distinct_words(caption[end:])
        if any(self.lexicon.is_kind_of(other, word) for other in others):
            return False
        texts = (caption, make_counterfactual(caption, start, end, word), caption[start:end], word)
        before, after, target, new = map(self.encode, texts)
        return check_nonce(before, after, target, new, self.context_length) is None
