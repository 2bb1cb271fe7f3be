"""What the rules of edits refuse, what they set right around an edit, and how calls compose."""

import re

import pytest

from raycomp.language.concepts import Parsed
from raycomp.language.prompts import propose
from raycomp.models.parser import load_lexicon
from raycomp.words import ADD, OBJECT, OPERATIONS, RELATION, REPLACE, SWAP
from tests.corpus import read_captions
from tests.language.reading import parse

MANY = 100


def edits(text: str, op: str, at_most: int = MANY) -> list[str]:
    return [edit.text for edit in propose(parse(text)[0], op, load_lexicon(), 0, "", at_most)]


@pytest.fixture(scope="module")
def real(shared) -> list[Parsed]:
    """Captions of both photo sets."""
    texts = []
    for source, step in (("flickr8k_800", 12), ("cc_web_400", 3)):
        texts += [some[0] for some in read_captions(shared, source)[::step]]
    return parse(*texts)


def test_no_swap_where_it_would_say_the_same():
    alike = "a cat and a dog; A cat, a dog and a bird; a cat next to a dog; a dog near a dog"
    alike += "; a red car and a red bus; a red car next to a blue car; a red hat and scarf; a dog"
    for text in (*alike.split("; "), "a puppy chasing a dog", "a man with no hat", ""):
        assert edits(text, SWAP) == [], text


def test_swaps():
    for text, expected in [
        ("a red car and a blue bus", {"a red bus and a blue car", "a blue car and a red bus"}),
        ("An owl on a bench .", {"A bench on an owl ."}),
        ("Two dogs behind a red car", {"Two cars behind a red dog", "A red car behind two dogs"}),
        ("A dog chases the cat .", {"A cat chases the dog .", "The cat chases a dog ."}),
    ]:
        assert {*edits(text, SWAP)} == expected


def test_edits_keep_all_but_what_they_touch(real):
    lexicon = load_lexicon()
    for parsed in real:
        before = _words(parsed.text)
        for op in OPERATIONS:
            for edit in propose(parsed, op, lexicon, 0, "", MANY):
                rest = edit.text
                for start, end in reversed(edit.touched):
                    assert edit.text[start:end] == edit.text[start:end].strip() != ""
                    rest = rest[:start] + rest[end:]
                assert _is_subsequence(_words(rest), before), (parsed.text, edit)
                if op == ADD:
                    assert _is_subsequence(before, _words(edit.text))
                    assert len(edit.touched) == 1
                if op == REPLACE:
                    assert len(edit.touched) == 1 and edit.concepts[0] != edit.concepts[1]
                assert edit.text.lower() != parsed.text.lower() and "  " not in edit.text[len(parsed.text) :]
                assert edit.text[:1].isupper() == parsed.text[:1].isupper()


def _words(text: str) -> list[str]:
    """Return the words in lower case; "a" and "an" are one."""
    return ["a" if word == "an" else word for word in re.findall(r"\w+", text.lower())]


def _is_subsequence(short: list[str], long: list[str]) -> bool:
    left = iter(long)
    return all(word in left for word in short)


def test_relations_are_replaced_by_their_opposites_first():
    """Of two dogs side by side one is to the right of the other; a small and a large one differ."""
    for text, first, num in (
        ("a dog to the left of a cat", "to the right of", None),
        ("A dog on the table .", "under", None),
        ("a cat inside a box", "outside", None),
        ("a dog to the left of a dog", None, 0),
        ("a cat next to a dog, which is behind a dog", "far from", 1),
        ("a small dog above a large dog", "below", 1),
    ):
        edits = propose(parse(text)[0], REPLACE, load_lexicon(), 0, "", MANY)
        found = [edit.concepts[1] for edit in edits if edit.kind == RELATION]
        assert (found or [None])[0] == first and num in (None, len(found)), text


def test_what_is_around_an_edit_stays_right():
    """Number, capitals, what is denied, and who "his" and "her" are."""
    for text, never in [
        ("Two dogs run up the steps next to the balls.", "stepses"),
        ("A child in a pink dress is climbing up a set of stairs.", "pink stairs"),
        ("One dog is biting the ear of the other dog.", "Two dog "),
        ("A crowd looks at one man with a camera.", "two man "),
        ("a boy on a bench without a hat", "out a red"),
    ]:
        made = [edit for op in OPERATIONS for edit in edits(text, op)]
        assert made and not any(never in edit for edit in made), text
    denied = [edit for op in (SWAP, REPLACE) for edit in edits("a boy on a bench with no hat", op)]
    assert denied and all(edit.endswith("no hat") for edit in denied)
    lexicon = load_lexicon()
    for text, sex in (("A woman walks with her dog .", "male"), ("A man walks with his dog .", "female")):
        found = propose(parse(text)[0], REPLACE, lexicon, 0, "", MANY)
        brought = [edit.concepts[1] for edit in found if edit.kind == OBJECT]
        assert brought and not any(lexicon.is_kind_of(word, sex) for word in brought)
    found = edits("Woman and man on a bench .", ADD) + edits("NASA rocket on a pad", ADD)
    assert any(re.fullmatch(r"[A-Z][a-z-]+ woman and man on a bench \.", text) for text in found)
    assert any(re.fullmatch(r"[A-Z][a-z-]+ NASA rocket on a pad", text) for text in found)
    assert all(text.isupper() for op in OPERATIONS for text in edits("A DOG ON A BENCH", op))
