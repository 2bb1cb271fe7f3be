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

``find_content`` adds what the paper leaves out: adjectives and what else stands before a noun, verbs, and the
relation words of the lexicon ("on", "to the left of"), each its own span and target, of class CONTENT. Not
among them: determiners, auxiliaries and "be", and relation words that show nothing ("because of").

Trees come in two label schemes, Universal Dependencies and ClearNLP (spaCy's English pipelines); their labels
identify the scheme. Tags are the Penn Treebank's in both.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raycomp.language.lexicon import ABSTRACT, Lexicon, find_long_prepositions, join_words, match_longest
from raycomp.language.tokens import ADJECTIVE_TAGS, NOUN_TAGS, Token, list_children
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
    subjects: frozenset[str]
    """Subjects."""
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
    subjects=frozenset(["nsubj", "nsubj:pass"]),
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
    subjects=frozenset(["nsubj", "nsubjpass"]),
    clauses=frozenset("acl relcl advcl ccomp xcomp".split()),
    distinctive=frozenset(
        "dobj pobj prep nsubjpass auxpass poss attr relcl acomp agent dative npadvmod pcomp prt".split()
    ),
)


def detect_labels(labels: Sequence[str]) -> Labels:
    """Return the scheme of ``labels``, those of a tree or of a whole parser; UD if unclear."""
    return CLEAR_NLP if len(CLEAR_NLP.distinctive & {*labels}) > len(UD.distinctive & {*labels}) else UD


def find_phrases(tokens: Sequence[Token], lexicon: Lexicon, labels: Labels | None = None) -> list[Phrase]:
    """Return the phrases of one caption, sorted and without overlap.

    ``labels`` is UD or CLEAR_NLP; by default what the caption's own labels say. A root is its own head.
    """
    return _Tree(tokens, lexicon, labels or detect_labels([token.dep for token in tokens])).phrases()


def find_content(tokens: Sequence[Token], lexicon: Lexicon, labels: Labels | None = None) -> list[Phrase]:
    """Return the adjectives, verbs and relation words of one caption, sorted; none is a target of a phrase.

    Their kinds are attribute, predicate and relation; a preposition of several words is one target.
    """
    return _Tree(tokens, lexicon, labels or detect_labels([token.dep for token in tokens])).content()


class _Tree:
    """A parsed caption with what several rules ask for."""

    def __init__(self, tokens: Sequence[Token], lexicon: Lexicon, labels: Labels):
        self.tokens = tokens
        self.lexicon = lexicon
        self.labels = labels
        self.words = [token.text.lower() for token in tokens]
        self.children = list_children(tokens)
        spans = find_long_prepositions(self.words, lexicon)
        # By the last word, which is what the parser attaches.
        self.long_prepositions = {last: first for first, (last, _) in spans.items()}

    def phrases(self) -> list[Phrase]:
        """Return the phrases; each one takes what it may of the words behind the one before it."""
        found = []
        first_free = 0
        groups = self._group_heads()
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
                longest = match_longest(self.tokens, target, OBJECT, self.lexicon)
                target_class = UNSEEN if longest and longest[1].category == ABSTRACT else HEAD
            start, end, place = self.tokens[first].start, self.tokens[first_free - 1].end, self.tokens[target]
            found.append(Phrase(start, end, kind, place.start, place.end, target_class))
        return found

    def content(self) -> list[Phrase]:
        """Return what describes and relates the targets of phrases."""
        found, targets = [], self._group_heads()
        # A preposition of several words is one.
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
        entry = self.lexicon.find(join_words(self.tokens, first, last), RELATION)
        if first < last or (entry and not token.tag.startswith(("VB", *NOUN_TAGS))):
            return RELATION if entry and entry.category != ABSTRACT else None
        if not WORD.fullmatch(token.text) or not LATIN.search(token.text) or word in PRONOUNS:
            return None
        if token.tag.startswith("VB"):
            is_filler = word in BE or token.dep in AUXILIARIES
            return None if is_filler else ATTRIBUTE if self._is_inside(last) else PREDICATE
        if token.tag in (*ADJECTIVE_TAGS, "CD"):
            return ATTRIBUTE
        if token.tag in NOUN_TAGS:
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
            targets[max([noun, *(i for i in names if self.tokens[i].tag in NOUN_TAGS)])] = noun
        for target, head in sorted(targets.items()):
            groups[target] = [*groups.pop(target - 1, []), head]
        return groups

    def _heads(self, place: int) -> bool:
        """Report whether the token at ``place`` heads a noun phrase."""
        token = self.tokens[place]
        if token.dep in self.labels.never or not (token.tag in NOUN_TAGS or self._stands_for_noun(place)):
            return False
        if not WORD.fullmatch(token.text) or not LATIN.search(token.text) or self.words[place] in PRONOUNS:
            return False
        return not self._is_inside(place) and not self._is_verb(place)

    def _is_verb(self, place: int) -> bool:
        """Report whether the tree uses the token as a verb, whatever its tag."""
        below = {self.tokens[child].dep for child in self.children[place] if child < place}
        if below & self.labels.subjects:
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
