"""Noun phrases of a parsed caption: one span, one kind and one nominal target each.

Go et al. (arXiv 2605.22651, section 5.2) take object-, relation- and predicate-centered spans that do not
overlap, with one nominal target token each, and name no rules. These are ours:

- Every noun that heads a noun phrase is the target of one phrase, conjuncts each of their own. Pronouns,
  also "someone" and "something", are none, nor are words without a Latin letter, URLs and markup.
- Determiners and what stands before the head belong to its phrase: adjectives, numerals, compounds
  ("a wooden [fence]", "Golden Gate [Bridge]", "Jennifer [Anderson]") and possessors ("the rider 's [leg]").
  In "a group of people" both nouns are targets; clauses and prepositional phrases behind a noun are outside.
- Small parsers take nouns for verbs and part compounds. So a noun with a subject but no copula ("a dog
  [runs]" tagged as a noun) or bare in the place of a clause ("people [fishing]") is a verb, and of nouns side
  by side ("swim [trunks]") only the last is a target, wherever the tree hangs them.
- A noun of a preposition of several words is not a target ("in front of a computer", "to the left of a cat");
  which those are the lexicon says. Without "of" it is one: "a dog on the [left]".
- relation: the target has a preposition, and the span begins with it. predicate: the target is the direct
  object of a verb, and the span begins with that verb. Where another target stands between, the phrase is cut
  and is an object. object: all the rest, so also the second conjunct of "in shorts and boots".

The class of a target is UNSEEN where the lexicon files its noun under those that no picture can show. The
head decides: of "a parking [area]" only the target gives way to a nonce, and "parking" stays. All others are
HEAD, those too that the lexicon does not know.

``content`` adds what the paper leaves out: adjectives and what else stands before a noun, verbs, and the
relation words of the lexicon ("on", "to the left of"), each its own span and target, of class CONTENT. Not
among them: determiners, auxiliaries and "be", and relation words that show nothing ("because of").

Trees come in two label schemes, Universal Dependencies and ClearNLP (spaCy's English pipelines). Tags are the
Penn Treebank's in both.

A nonce takes the place of a target in the caption (section 4.3): as many BPE tokens (Eq. 4), no meaning, and
the target's capitals, plural, possessive, hyphens and digits. The paper says what has to hold and not how;
the rules are ours. Tokens are BPE ids without start and end of text. A nonce has one of three forms:
``plural``, or ``vowel`` or ``consonant`` by its first letter. An "a" or "an" before it stays right: it does
not belong to the target and cannot change, so the nonce is drawn to suit it.

Control words (section 7) are real words of the target's category and of another one; between them the paper
finds the mean drop of nonces. The paper names no rules; ours use the lexicon's categories. The new word keeps
the target's number, capitals, length in BPE tokens and the tokens around it, suits an "a" or "an" before it,
is countable where the target is, and the caption does not name it already. It is neither a synonym of the
target nor a wider or a narrower word; a word of another category has no wider word in common with it either
("man" and "teacher" are persons). Only words that the corpus uses count as real: a scorer need not know
others.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from raycomp.language import lexicon as lex
from raycomp.language.lexicon import Entry, Lexicon, Token
from raycomp.words import ATTRIBUTE, CONTENT, HEAD, OBJECT, PREDICATE, RELATION, UNSEEN

PRONOUNS = {
    *(quantity + kind for quantity in ("some", "any", "every", "no") for kind in ("one", "body", "thing")),
    *"one ones other none oneself myself yourself himself herself itself ourselves themselves".split(),
}
WORD = re.compile(r"\w+(?:['\u2019&/-]\w+)*\.?|(?:\w\.)+\w?")
MARKS = {":", ";", ".", "?", "!"}
LATIN = re.compile(r"[A-Za-z]")
BE = frozenset("be am is are was were been being 's 're".split())
AUXILIARIES = frozenset(["aux", "aux:pass", "auxpass", "cop"])


class Phrase(NamedTuple):
    """A span [start, end) of the caption with its kind, and its target's span; offsets count characters."""

    start: int
    end: int
    kind: str
    target_start: int
    target_end: int
    target_class: str


@dataclass(frozen=True)
class Labels:
    """What a label scheme calls the relations that matter here."""

    inside: frozenset[str]
    """A word of this label before its head, with all below it, is part of its head's noun phrase."""
    loose: frozenset[str]
    """Belongs to the phrase of a noun as well, but a noun of this label can head its own."""
    never: frozenset[str]
    """A word of this label heads no noun phrase, whatever its tag."""
    nominal: frozenset[str]
    """Places of a noun phrase: there an adjective ("in white") or a gerund may stand for a noun."""
    objects: frozenset[str]
    """Direct objects."""
    names: frozenset[str]
    """Joins the later words of a name to its first one."""
    clauses: frozenset[str]
    """Places of a clause."""
    distinctive: frozenset[str]
    """Labels that only this scheme has."""


UD = Labels(
    inside=frozenset("det det:predet amod nummod compound nmod:poss nmod:desc flat goeswith".split()),
    loose=frozenset("advmod punct obl:unmarked nmod:unmarked cc:preconj".split()),
    never=frozenset(
        "case fixed cc mark aux aux:pass cop compound:prt discourse punct expl det advmod".split()
    ),
    nominal=frozenset("obl nmod obj nsubj nsubj:pass obl:agent".split()),
    objects=frozenset(["obj"]),
    names=frozenset(["flat"]),
    clauses=frozenset("acl acl:relcl advcl advcl:relcl ccomp xcomp".split()),
    distinctive=frozenset(
        "obj obl obl:unmarked obl:agent nmod:poss nmod:unmarked nsubj:pass aux:pass acl:relcl cop flat "
        "fixed iobj compound:prt".split()
    ),
)
CLEAR_NLP = Labels(
    inside=frozenset("det predet amod nummod compound nn poss nmod quantmod".split()),
    loose=frozenset("advmod punct npadvmod preconj case".split()),
    never=frozenset("case prep cc mark aux auxpass prt intj punct expl det advmod".split()),
    nominal=frozenset("pobj dobj nsubj nsubjpass".split()),
    objects=frozenset(["dobj"]),
    names=frozenset(),
    clauses=frozenset("acl relcl advcl ccomp xcomp".split()),
    distinctive=frozenset(
        "dobj pobj prep nsubjpass auxpass poss attr relcl acomp agent dative npadvmod pcomp prt".split()
    ),
)


def detect_labels(labels: Sequence[str]) -> Labels:
    """Return the scheme of ``labels``, those of a tree or of a whole parser; UD if unclear."""
    return CLEAR_NLP if len(CLEAR_NLP.distinctive & {*labels}) > len(UD.distinctive & {*labels}) else UD


class Tree:
    """A parsed caption, whose labels are UD's or CLEAR_NLP's. A root is its own head."""

    def __init__(self, tokens: Sequence[Token], lexicon: Lexicon, labels: Labels):
        self.tokens = tokens
        self.lexicon = lexicon
        self.labels = labels
        self.words = [token.text.lower() for token in tokens]
        self.children = lex.list_children(tokens)
        spans = lex.find_long_prepositions(self.words, lexicon)
        # By the last word, which is what the parser attaches.
        self.long_prepositions = {last: first for first, (last, _) in spans.items()}

    def phrases(self) -> list[Phrase]:
        """Return the phrases, sorted, without overlap; each takes what it may of the words behind it."""
        found, first_free, groups = [], 0, self._group_heads()
        for target, heads in groups.items():
            kind, first = self._find_start(heads, target, first_free)
            first_free = target + 1
            while first_free < len(self.tokens) and first_free not in groups:
                behind = self.tokens[first_free]  # numerals and names behind the target are inside
                if behind.head != heads[-1] or behind.dep not in {"nummod", *self.labels.names}:
                    break
                first_free += 1
            target_class = HEAD
            if self.words[target] in self.lexicon.abstract_ends:
                longest = lex.match_longest(self.tokens, target, OBJECT, self.lexicon)
                target_class = UNSEEN if longest and longest[1].category == lex.ABSTRACT else HEAD
            start, end, place = self.tokens[first].start, self.tokens[first_free - 1].end, self.tokens[target]
            found.append(Phrase(start, end, kind, place.start, place.end, target_class))
        return found

    def content(self) -> list[Phrase]:
        """Return the adjectives, verbs and relation words, sorted; none is a target of a phrase.

        Their kinds are attribute, predicate and relation; a preposition of several words is one target.
        """
        found, targets = [], self._group_heads()
        ends = {first: last for last, first in self.long_prepositions.items()}
        inside = {i for first, last in ends.items() for i in range(first + 1, last + 1)}
        for first in (i for i in range(len(self.tokens)) if i not in inside):
            last = ends.get(first, first)
            kind = None if last in targets else self._classify_content(first, last)
            if kind:
                start, end = self.tokens[first].start, self.tokens[last].end
                found.append(Phrase(start, end, kind, start, end, CONTENT))
        return found

    def _classify_content(self, first: int, last: int) -> str | None:
        """Return the kind of a word that is not a target; None where it describes nothing visible."""
        token, word = self.tokens[last], self.words[last]
        entry = self.lexicon.find(lex.join_words(self.tokens, first, last), RELATION)
        if first < last or (entry and not token.tag.startswith(("VB", *lex.NOUN_TAGS))):
            return RELATION if entry and entry.category != lex.ABSTRACT else None
        if not WORD.fullmatch(token.text) or not LATIN.search(token.text) or word in PRONOUNS:
            return None
        if token.tag.startswith("VB"):
            is_filler = word in BE or token.dep in AUXILIARIES
            return None if is_filler else ATTRIBUTE if self._is_inside(last) else PREDICATE
        if token.tag in (*lex.ADJECTIVE_TAGS, "CD"):
            return ATTRIBUTE
        if token.tag in lex.NOUN_TAGS:
            return PREDICATE if self._is_verb(last) else ATTRIBUTE if self._is_inside(last) else None
        return None

    def _group_heads(self) -> dict[int, list[int]]:
        """Map every target, in order, to its nouns in the tree: several if they are adjacent."""
        functional = {i for last, first in self.long_prepositions.items() for i in range(first, last + 1)}
        nouns = [i for i in range(len(self.tokens)) if i not in functional and self._heads(i)]
        groups: dict[int, list[int]] = {}
        targets = {}
        for noun in nouns:  # of a name its last noun
            names = [i for i in self.children[noun] if i > noun and self.tokens[i].dep in self.labels.names]
            targets[max([noun, *(i for i in names if self.tokens[i].tag in lex.NOUN_TAGS)])] = noun
        for target, head in sorted(targets.items()):
            groups[target] = [*groups.pop(target - 1, []), head]
        return groups

    def _heads(self, place: int) -> bool:
        """Report whether the token at ``place`` heads a noun phrase."""
        token = self.tokens[place]
        if token.dep in self.labels.never or not (token.tag in lex.NOUN_TAGS or self._stands_for_noun(place)):
            return False
        if not WORD.fullmatch(token.text) or not LATIN.search(token.text) or self.words[place] in PRONOUNS:
            return False
        return not self._is_inside(place) and not self._is_verb(place)

    def _is_verb(self, place: int) -> bool:
        """Report whether the tree uses the token as a verb, whatever its tag."""
        below = {self.tokens[child].dep for child in self.children[place] if child < place}
        if below & lex.SUBJECTS:
            return "cop" not in below
        nominal = {"cop", "case", *self.labels.inside}
        return self.tokens[place].dep in self.labels.clauses and not below & nominal

    def _stands_for_noun(self, place: int) -> bool:
        """Say whether another word is used as a noun: "a man in [white]", "the [making] of", "a [pose]"."""
        token = self.tokens[place]
        if token.dep not in self.labels.nominal or token.tag not in ("JJ", "JJR", "VB", "VBG", "VBP"):
            return False
        if any(self.tokens[child].dep == "det" and child < place for child in self.children[place]):
            return True
        return token.tag == "JJ" and self._preposition(place) is not None

    def _is_inside(self, place: int) -> bool:
        """Report whether the token is, or hangs below, a modifier before another noun, or is a later name."""
        while (head := self.tokens[place].head) != place:
            dep = self.tokens[place].dep
            if dep in self.labels.names or (
                dep in self.labels.inside and place < head and MARKS.isdisjoint(self.words[place:head])
            ):
                return True
            place = head
        return False

    def _preposition(self, head: int) -> int | None:
        """Return the first position of the preposition of the noun at ``head``; None where it has none."""
        if self.labels is UD:
            cases = [i for i in self.children[head] if self.tokens[i].dep == "case" and i < head]
            return self.long_prepositions.get(max(cases), min(cases)) if cases else None
        above = self.tokens[head].head
        if self.tokens[head].dep != "pobj" or above > head:
            return None
        return self.long_prepositions.get(above, above)

    def _find_start(self, heads: list[int], target: int, first_free: int) -> tuple[str, int]:
        """Return the kind of a phrase and the position of its first token, at least ``first_free``."""
        for head in heads:
            preposition = self._preposition(head)
            if preposition is not None and first_free <= preposition < target:
                return RELATION, preposition
        for head in heads:
            verb = self.tokens[head].head
            is_object = self.tokens[head].dep in self.labels.objects
            if is_object and self.tokens[verb].tag.startswith("VB") and first_free <= verb < target:
                return PREDICATE, verb
        # Words on the left belong to the phrase that are heads of it, or hang below a modifier of one.
        start, inner = target, self.labels.inside | self.labels.loose
        while start > first_free and self.words[start - 1] not in MARKS:
            step = start - 1
            while self.tokens[step].head != step and self.tokens[step].head not in heads:
                step = self.tokens[step].head
            is_below = self.tokens[step].head in heads and step not in heads
            if start - 1 not in heads and not (is_below and self.tokens[step].dep in inner):
                break
            start -= 1
        while not any(letter.isalnum() for letter in self.tokens[start].text):
            start += 1
        first = self.tokens[start]
        return (RELATION if first.tag == "IN" and first.dep != "mark" else OBJECT), start


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
    if lex.is_plural(word):
        return PLURAL
    return VOWEL if _AFTER_AN.match(word) else CONSONANT


def read_article(caption: str, start: int) -> str:
    """Return the "a" or "an" that stands right before the character ``start``, in lower case; "" for none."""
    found = _ARTICLE.search(caption[max(0, start - 8) : start])
    return found[1].lower() if found else ""


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
    drawn: list[list[str]] = []
    done = 0
    for start, end in list_word_spans(target):
        word = target[start:end]
        asked, form = article if start == 0 else "", form_of(word)
        # Where an article asks for another sound than the word's, the nonces of that sound are drawn from.
        sound = form if form == PLURAL else {"": form, "a": CONSONANT, "an": VOWEL}[asked]
        left = [one for one in pools.get((count_tokens(word), sound), ()) if one != word.lower()]
        if form == PLURAL and asked:
            left = [one for one in left if (_AFTER_AN.match(one) if asked == "an" else one[0] not in "aeiou")]
        name = "\0".join((str(seed), key, target.lower(), str(start)))
        words = []
        for j in range(min(count, len(left))):
            digest = blake2b(f"{name}\0{j}".encode(), digest_size=8).digest()
            words.append(left.pop(int.from_bytes(digest, "big") % len(left)))
        drawn.append([target[done:start] + copy_case(one, word) for one in words])
        done = end
    return ["".join(pieces) + target[done:] for pieces in zip(*drawn, strict=False)]


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
    if len(nonce_tokens) != len(target_tokens) or len(counterfactual_tokens) != len(caption_tokens):
        return TOKENS_CHANGE
    inner, _ = lex.measure_ends(target_tokens, nonce_tokens)
    first, _ = lex.measure_ends(caption_tokens, counterfactual_tokens)
    start, end = first - inner, first - inner + len(target_tokens)
    is_kept = (
        inner < len(target_tokens)
        and first < len(caption_tokens)
        and start >= 0
        and caption_tokens[start:end] == target_tokens
        and counterfactual_tokens[start:end] == nonce_tokens
        and caption_tokens[end:] == counterfactual_tokens[end:]
    )
    return TOKENS_CHANGE if not is_kept else PAST_CONTEXT if end > context_length - 2 else None


NO_CONTROLS = (lex.ABSTRACT, lex.CROWD, lex.FIXED)
"""Categories whose words have no thing of their own to be another one instead."""
NO_CATEGORY = "no_category"
NO_SAME = "no_same_category_word"
NO_CROSS = "no_cross_category_word"
CONTROL_REASONS = {
    NO_CATEGORY: "no control: the lexicon knows no category of visible things for the target",
    NO_SAME: "no control: no word of its category fits: its length in tokens, its form, not said already",
    NO_CROSS: "no control: no word of another category fits",
}
LETTERS = re.compile(r"[^\W\d_]+")


class Controls(NamedTuple):
    """The two words that may stand in place of a target, in its form."""

    same: str
    cross: str


def list_distinct_words(text: str) -> set[str]:
    """Return the words of a text, in lower case."""
    return {*LETTERS.findall(text.lower())}


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
        lexicon, plural, length = self.lexicon, lex.is_plural(target), len(self.encode(target))
        words = []
        for word in lexicon.siblings(sense) if is_same else ():
            entry = lexicon.find(word, OBJECT)
            is_kin = lexicon.is_kind_of(word, target) or lexicon.is_kind_of(target, word)
            words += [word] if entry and entry.category == sense.category and not is_kin else []
        for row in () if is_same else lexicon.rows.values():
            is_strange = row.kind == OBJECT and row.category not in (sense.category, *NO_CONTROLS)
            if is_strange and lex.RARE not in row.marks:
                word = row.words[0]
                is_kin = lexicon.are_related(word, sense.word) or lexicon.are_related(word, target)
                words += [] if is_kin else [word]
        ranked = []
        for word in words:
            form = lexicon.plural(word) if plural else word
            fits = lexicon.is_mass(word) == lexicon.is_mass(sense.word) and lex.is_plural(form) == plural
            if fits and form in self.vocabulary and len(self.encode(form)) == length:
                name = f"{self.seed}\0{target}\0{form}"
                ranked.append((blake2b(name.encode(), digest_size=8).digest(), form))
        return [form for _, form in sorted(set(ranked))]

    def _fits(self, caption: str, start: int, end: int, word: str) -> bool:
        article = read_article(caption, start)
        if article and lex.choose_article(word) != article:
            return False
        others = list_distinct_words(caption[:start]) | list_distinct_words(caption[end:])
        if any(self.lexicon.is_kind_of(other, word) for other in others):
            return False
        texts = (caption, make_counterfactual(caption, start, end, word), caption[start:end], word)
        before, after, target, new = map(self.encode, texts)
        return check_nonce(before, after, target, new, self.context_length) is None
