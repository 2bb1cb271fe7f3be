"""Whether one call of an operator on a caption is a valid hard negative, with a reason if it is not.

No grammar of English: only what goes wrong when words change places, come in or go. Captions are fragments
and the parser errs, so counts mean something only against those of the text that was edited.

Each call is judged against its own input: SWAP keeps the words and changes their order, REPLACE changes one
concept, ADD keeps the input and brings in one concept. Against the caption that the image came with, and its
other captions, the text must differ in meaning, and what it brings in must be said by none of them. All this
is on words: that the text is false for the image is likely, not certain.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, pairwise

from raycomp.language import lexicon as lex
from raycomp.language.concepts import Concept, Parsed, list_readings
from raycomp.language.lexicon import Lexicon, Token, Word
from raycomp.words import ADD, ATTRIBUTE, OBJECT, RELATION, REPLACE, SWAP

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


def check_form(text: str, known_text: str) -> str | None:
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

NEED_NOUN = {*lex.ARTICLES, "every", *lex.OWNERS}
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
INSIDE = {*lex.ADJECTIVE_TAGS, "RB", "RBR", "RBS", "CD", "VBG", "VBN", "VBD", "HYPH", "FW"}
NOMINAL = {"ROOT", *lex.SUBJECTS, "obj", "dobj", "pobj", "obl", "nmod", "conj"}


@lru_cache(maxsize=64)
def count_grammar_faults(tokens: tuple[Token, ...], lexicon: Lexicon) -> Counter[str]:
    """Count the faults of a text, by kind."""
    # A tokenizer may take "a." at the end for one word.
    words = [token.text.lower().rstrip(".") or "." for token in tokens]
    # What is too much for one sentence with a noun: stops inside, and the lack of a noun.
    has_noun = any(token.tag.startswith(("NN", "PRP")) or token.dep in lex.SUBJECTS for token in tokens)
    stops = sum(token.text in (*lex.STOPS, ";") for token in tokens[:-1])
    said = [word for word in words if word[0].isalnum()]
    is_cut_off = bool(said) and (said[-1] in LAST_NEVER or tokens[-1].text in (",", "-", "&"))
    faults = Counter({NO_SENTENCE: stops + (not has_noun), CUT_OFF: is_cut_off})
    for place, (word, token) in enumerate(zip(words, tokens, strict=True)):
        behind = tokens[place + 1] if place + 1 < len(tokens) else None
        if behind is not None and word == words[place + 1] and word[0].isalpha():
            faults[DOUBLED_WORD] += 1
        if word in ("a", "an") and behind is not None:
            # Letters and digits are spelt out.
            is_plain = behind.text.isalpha() and len(behind.text) > 1 and not behind.text.isupper()
            faults[WRONG_ARTICLE] += is_plain and lex.choose_article(behind.text) != word
        if word in NEED_NOUN and token.tag != "NNP" and not _reaches_noun(tokens, place, lexicon):
            faults[NO_NOUN] += 1
        if word in PREPOSITIONS:
            ends = behind is None or behind.text in (*lex.STOPS, ",", ";") or behind.tag in FINITE | {"CC"}
            faults[NO_OBJECT] += ends
        if word in lex.ONE | PLURAL and _disagrees(tokens, words, place, lexicon):
            faults[DISAGREEMENT] += 1
    return faults


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
    if words[place] in lex.ONE:
        head = next((step for step in nouns if tokens[step].dep in lex.SUBJECTS), nouns[-1])
        is_verb = len(nouns) > 1 and lexicon.find(words[head], RELATION) is not None
        is_verb = is_verb or (len(nouns) > 1 and tokens[head].dep == "ROOT")
        is_verb = is_verb or (head + 1 < len(words) and words[head + 1] in BEHIND_VERB)
        return tokens[head].tag == "NNS" and lexicon.is_plural(words[head]) and not is_verb
    first = place
    while first and tokens[first - 1].tag in INSIDE:
        first -= 1
    if (first and words[first - 1] in NEED_NOUN | {"one", "number"}) or words[place + 1] in UNITS | {"-"}:
        return False
    may_be_many = (
        tokens[step].tag == "NNS"
        or lexicon.is_plural(words[step])
        or lexicon.plural(words[step]) == words[step]
        for step in nouns
    )
    return not any(may_be_many)


UNCHANGED, RESTORED, COPY = "unchanged", "restored", "copy"
NOT_SWAP, NOT_REPLACE, NOT_ADD = "not_swap", "not_replace", "not_add"
PARAPHRASE, KIND_OF, IN_ORIGINAL, IN_OTHER = "paraphrase", "kind_of", "in_original", "in_other"
REASONS: dict[str, str] = {
    **FORM_FAULTS,
    UNCHANGED: "it equals its input",
    RESTORED: "it equals the original caption, which an earlier call had changed",
    COPY: "it equals another caption of the image",
    NOT_SWAP: "SWAP lost or gained a word, or left the order as it was",
    NOT_REPLACE: "REPLACE changed no concept, several, or one for another of a different class",
    NOT_ADD: "ADD changed its input, or brought in no concept or several",
    PARAPHRASE: "it says what the original, its input or another caption says",
    KIND_OF: "the new concept is a kind of the old one or a wider word for it, so both may be true",
    IN_ORIGINAL: "ADD brings in what the original caption already says",
    IN_OTHER: "the new concept is said by another caption of the image",
    **FAULTS,
}

# Words that a swap may lose or gain with the number of its nouns, and a replacement with its noun.
LOOSE = {"a", "the", "some", "is", "was"}
FREE = {*LOOSE, "and", "who", "that", "which", "there", "of", "its", "his", "her", "their", "has"}
# First letters of tags: nouns, verbs, prepositions, to.
SORTS = {"NN", "VB", "IN", "TO"}
NEW_KINDS = ((ATTRIBUTE,), (OBJECT,), (RELATION,), (OBJECT, RELATION), (OBJECT, RELATION, RELATION))


def judge_edit(
    op: str, before: Parsed, after: Parsed, original: Parsed, others: Sequence[Parsed], lexicon: Lexicon
) -> str | None:
    """Return why ``op`` from ``before`` to ``after`` is not a valid negative; None where it is.

    ``original`` is the image's caption, ``others`` the image's further captions. Any text will do: reasons of
    form come first, then the operator, the meaning, and the grammar, where a fault of the input is none.
    """
    plain = _strip(after.text)
    for copied, same in ((UNCHANGED, [before]), (RESTORED, [original]), (COPY, others)):
        if any(plain == _strip(text.text) for text in same):
            return copied
    if reason := check_form(after.text, before.text):
        return reason
    after = after._replace(tokens=_keep_tags(before.tokens, after.tokens))
    # The first fault that neither the input nor the original has as often.
    fault, faults = None, count_grammar_faults(after.tokens, lexicon)
    if +faults:
        own, first = (count_grammar_faults(tuple(text.tokens), lexicon) for text in (before, original))
        excused = own | first
        fault = next((fault for fault in FAULTS if faults[fault] > excused[fault]), None)
    if fault == CUT_OFF:
        return fault
    old, new = _read_words(before.text, lexicon), _read_words(after.text, lexicon)
    if op == SWAP:
        reason = _judge_swap(before, old, new)
    elif op == REPLACE:
        reason = _judge_replace(before, after, others, lexicon)
    else:
        # Where the added run has two places, as in "a ball and a [red ball and a] car", either will do.
        come = _find_added(after, old, new, lexicon)
        reason = None if come else NOT_ADD
        for why, texts in ((IN_ORIGINAL, (before, original)), (IN_OTHER, others)):
            reason = reason or (why if _is_said(texts, come[0], lexicon) else None)
    if reason or fault:
        return reason or fault
    _, readings = list_readings(after.tokens, lexicon)
    known = (before, original, *others)
    is_same = any(list_readings(tuple(text.tokens), lexicon)[0] in readings for text in known)
    return PARAPHRASE if is_same else None


def _strip(text: str) -> str:
    """Return a text without what does not make it another one: case, white space, final stop."""
    return " ".join(text.casefold().split()).rstrip(" .!")


def name_change(op: str, before: Parsed, after: Parsed, lexicon: Lexicon) -> tuple[str, tuple[str, ...]]:
    """Return the kind and the concepts of a call that ``judge_edit`` let pass, as the rules name their own.

    SWAP: the two that change places, a relation's sides where more moves along; REPLACE: the old and the new;
    ADD: the new. For any other change both are empty.
    """
    after = after._replace(tokens=_keep_tags(before.tokens, after.tokens))
    old, new = _read_words(before.text, lexicon), _read_words(after.text, lexicon)
    if op == ADD:
        come = _find_added(after, old, new, lexicon)
        # A relation with what it leads to, but "with a hat" is just one more object.
        relations = [one.word for one in come if one.kind == RELATION and one.word != "with"]
        others = [one for one in come if one.kind != RELATION]
        words = (*sorted(relations, key=len)[-1:], *(one.word for one in others))
        return (RELATION if relations else others[0].kind if others else OBJECT), words
    lost, gained = lex.cut_ends(old, new)
    gone, come = _find_concepts(before, lost, lexicon), _find_concepts(after, gained, lexicon)
    if len(gone) < (2 if op == SWAP else 1) or (op == REPLACE and not come):
        return OBJECT, ()
    first, last = gone[0], gone[-1]
    if op == REPLACE:
        return first.kind, (first.word, come[0].word)
    # The two ends, if just they changed places, else the sides of a relation.
    parts = [
        [word.base for word in old if start <= word.start < end and word.base not in LOOSE]
        for start, end in pairwise((0, first.start, first.end, last.start, last.end, old[-1].end + 1))
    ]
    exchanged = [base for part in (0, 3, 2, 1, 4) for base in parts[part]]
    if first.kind == last.kind and exchanged == [base for base in lex.list_bases(new) if base not in LOOSE]:
        return first.kind, (first.word, last.word)
    objects = [one for one in gone if one.kind == OBJECT] or gone
    return RELATION, (objects[0].word, objects[-1].word)


@lru_cache(maxsize=256)
def _read_words(text: str, lexicon: Lexicon) -> list[Word]:
    return [Word(lexicon.stem(one.group()), *one.span()) for one in WORD.finditer(text)]


def _keep_tags(old: Sequence[Token], new: Sequence[Token]) -> tuple[Token, ...]:
    """Give words that the input has once their tags and labels there: small parsers waver over an edit."""
    counts = Counter(token.text.lower() for token in old)
    known = {token.text.lower(): token for token in old if counts[token.text.lower()] == 1}
    pairs = [(token, known.get(token.text.lower(), token)) for token in new]
    return tuple(token._replace(tag=kept.tag, dep=kept.dep) for token, kept in pairs)


def _judge_swap(before: Parsed, old: Sequence[Word], new: Sequence[Word]) -> str | None:
    """Judge that all content words are kept and change places with words of their own kind.

    So the sequence of nouns, verbs and prepositions, by their tags in the input, stays; nouns side by side
    count as one, and attributes go where their nouns go.
    """
    olds, news = ([one.base for one in words if one.base not in LOOSE] for words in (old, new))
    if olds == news or sorted(olds) != sorted(news):
        return NOT_SWAP
    tags = {}
    attributes = [one for one in before.concepts if one.kind == ATTRIBUTE]
    for token in before.tokens:
        # What describes a noun, whatever its tag: "a [parked] car", "a row [of] houses".
        is_known = any(one.start <= token.start < one.end for one in attributes)
        is_participle = token.tag in ("VBN", "VBG") and token.dep == "amod"
        if not (is_known or is_participle or token.text == "of"):
            tags[token.start] = token.tag[:2]
    sorts = {word.base: tags.get(word.start, "") for word in old}
    old_sorts, new_sorts = (
        [sort for sort, _ in groupby(sorts[base] for base in bases if sorts[base] in SORTS)]
        for bases in (olds, news)
    )
    return None if old_sorts == new_sorts else NOT_SWAP


def _judge_replace(before: Parsed, after: Parsed, others: Sequence[Parsed], lexicon: Lexicon) -> str | None:
    """Judge that one concept gave way to another of its class, which is not true as well."""
    lost, gained = lex.cut_ends(_read_words(before.text, lexicon), _read_words(after.text, lexicon))
    gone, come = _find_concepts(before, lost, lexicon), _find_concepts(after, gained, lexicon)
    if len(gone) != 1 or len(come) != 1:
        return NOT_REPLACE
    (one,), (other,) = gone, come
    if one.kind != other.kind and not lexicon.find(other.word, one.kind):
        return NOT_REPLACE
    if one.kind == ATTRIBUTE and one.category and other.category not in ("", one.category):
        # Categories of attributes exclude each other only where the lexicon says so.
        entry = lexicon.find(one.word, ATTRIBUTE)
        if entry is None or other.word not in lexicon.siblings(entry):
            return NOT_REPLACE
    if lexicon.are_synonyms(one.word, other.word):
        return PARAPHRASE
    if lexicon.is_kind_of(one.word, other.word) or lexicon.is_kind_of(other.word, one.word):
        return KIND_OF
    return IN_OTHER if _is_said(others, other, lexicon) else None


def _find_added(after: Parsed, old: Sequence[Word], new: Sequence[Word], lexicon: Lexicon) -> list[Concept]:
    """Return what one run of words brings in, relations last; nothing where the texts differ otherwise."""
    lost, gained = lex.cut_ends(old, new)
    _, backward = lex.cut_ends(old[::-1], new[::-1])
    for run in () if lost else (gained, backward[::-1]):
        come = sorted(_find_concepts(after, run, lexicon), key=lambda concept: concept.kind)
        if tuple(concept.kind for concept in come) in NEW_KINDS:
            return come
    return []


def _find_concepts(parsed: Parsed, words: Sequence[Word], lexicon: Lexicon) -> list[Concept]:
    """Return the concepts that ``words`` touch; the tags classify those that the parse does not know.

    So are those of an object that the parse joins with words outside, as in "a robot [stands on a box]".
    Nouns side by side, one of them unknown, are one concept.
    """
    tags = {token.start: token.tag for token in parsed.tokens}
    named = [word for word in words if word.base not in LOOSE]
    if len(named) > 1 and lexicon.find(parsed.text[named[0].start : named[-1].end], OBJECT):
        return [_make_concept(parsed.text, named[0].start, named[-1].end, "NN", lexicon)]
    found: list[Concept] = []
    for word in words:
        known = next((one for one in parsed.concepts if one.start < word.end and word.start < one.end), None)
        if known and known.kind == OBJECT and not words[0].start <= known.start < known.end <= words[-1].end:
            known = None
        if known is None and word.base in FREE:
            continue
        concept = known or _make_concept(parsed.text, word.start, word.end, tags.get(word.start, ""), lexicon)
        if found and found[-1].end + 1 == word.start and found[-1].kind == concept.kind == OBJECT:
            whole = _make_concept(parsed.text, found[-1].start, word.end, "NN", lexicon)
            if whole.category or not (found[-1].category and concept.category):
                found.pop()
                concept = whole
        if concept not in found:
            found.append(concept)
    return found


def _make_concept(text: str, start: int, end: int, tag: str, lexicon: Lexicon) -> Concept:
    word = text[start:end].lower()
    entry = lexicon.find(word)
    if entry:
        return Concept(start, end, entry.kind, entry.word, entry.category, False, None, None)
    is_relation = tag.startswith(("VB", "IN", "TO", "RP"))
    kind = OBJECT if tag.startswith(("NN", "PRP")) else RELATION if is_relation else ATTRIBUTE
    return Concept(start, end, kind, word, "", False, None, None)


def _is_said(texts: Sequence[Parsed], concept: Concept, lexicon: Lexicon) -> bool:
    """Report whether one of the texts has the concept, a synonym or a kind of it."""
    wanted = [lexicon.stem(word) for word in concept.word.split()]
    for parsed in texts:
        for one in parsed.concepts:
            # The parse may join an object with a neighbouring word: "a [bike stops]".
            names = (one.word,) if one.category else (one.word, *one.word.split())
            if any(lexicon.is_kind_of(name, concept.word) for name in names):
                return True
        said = lex.list_bases(_read_words(parsed.text, lexicon))
        if any(said[i : i + len(wanted)] == wanted for i in range(len(said) - len(wanted) + 1)):
            return True
    return False
