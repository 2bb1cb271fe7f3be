"""The packaged lexicon: large, well formed, and no sibling is a synonym, a wider or a narrower word."""

import itertools

from raycomp.language.lexicon import ABSTRACT, FIXED, OPPOSITE, RARE, VERB
from raycomp.models.parser import load_lexicon
from raycomp.words import ATTRIBUTE, OBJECT, RELATION


def test_it_knows_many_objects_of_many_categories():
    objects = [row for row in load_lexicon().rows.values() if row.kind == OBJECT and row.category != ABSTRACT]
    assert sum(len(row.words) for row in objects) > 1000
    assert len({row.category for row in objects}) >= 40


def test_siblings_are_known_and_never_alike():
    lexicon = load_lexicon()
    for row in lexicon.rows.values():
        for word in lexicon.siblings(lexicon.find(row.words[0], row.kind)):
            other = lexicon.find(word, row.kind)
            assert other is not None, f"{row.words[0]} -> {word}: no row"
            assert other.word == word and not {*row.words} & {*lexicon.row(other).words}
            for first, second in ((row.words[0], word), (word, row.words[0])):
                assert not lexicon.is_kind_of(first, second) or _is_other_kind(first, second, row.kind)


def _is_other_kind(first: str, second: str, kind: str) -> bool:
    """Report whether two words are alike only in another kind: the colour orange, and the fruit."""
    lexicon = load_lexicon()
    return any(
        lexicon.find(first, other) and lexicon.find(second, other)
        for other in (OBJECT, ATTRIBUTE, RELATION)
        if other != kind
    )


def test_parents_and_fits_are_words_that_lead_somewhere():
    lexicon = load_lexicon()
    wider = {word for row in lexicon.rows.values() for word in row.parents}
    categories = {row.category for row in lexicon.rows.values()}
    known = {word for row in lexicon.rows.values() for word in row.words}
    for row in lexicon.rows.values():
        assert {*row.fits} <= wider | categories | known, row
        assert not {*row.parents} & {*row.words}, row
        assert row.instead or OPPOSITE not in row.marks, row


def test_opposites_are_mutual_for_directions():
    lexicon = load_lexicon()
    for word in (
        "to the left of",
        "above",
        "in front of",
        "inside",
        "up",
        "into",
        "onto",
        "on",
        "small",
        "wet",
    ):
        other = lexicon.opposite(word)
        assert other not in (None, word)
        assert lexicon.are_synonyms(lexicon.opposite(other), word), (word, other)
    assert lexicon.opposite("red") is None


def test_nothing_stands_for_what_no_picture_can_show():
    lexicon = load_lexicon()
    rows = [row for row in lexicon.rows.values() if row.category in (ABSTRACT, FIXED)]
    assert {(row.kind, row.category) for row in rows} == {
        (OBJECT, ABSTRACT),
        (OBJECT, FIXED),
        (RELATION, ABSTRACT),
    }
    unwanted = {(row.kind, word) for row in rows for word in row.words}
    for row in lexicon.rows.values():
        entry = lexicon.find(row.words[0], row.kind)
        assert not unwanted & {(row.kind, word) for word in lexicon.siblings(entry)}, row
        assert row.category not in (ABSTRACT, FIXED) or not lexicon.siblings(entry)


def test_every_plural_leads_back():
    lexicon = load_lexicon()
    for row in lexicon.rows.values():
        for word in row.words if row.kind == OBJECT else ():
            plural = lexicon.plural(word)
            # Of "glass" and "glasses", "step" and "steps" the second is a thing of its own.
            assert lexicon.are_synonyms(plural, word) or lexicon.find(plural, OBJECT).word == plural


def test_verbs_inflect():
    for verb, forms in [
        ("hold", "holds holding held held"),
        ("carry", "carries carrying carried carried"),
        ("ride", "rides riding rode ridden"),
        ("hug", "hugs hugging hugged hugged"),
        ("tie", "ties tying tied tied"),
        ("push", "pushes pushing pushed pushed"),
        ("lower", "lowers lowering lowered lowered"),
        ("drop", "drops dropping dropped dropped"),
    ]:
        lexicon = load_lexicon()
        assert [lexicon.inflect(verb, tag) for tag in ("VBZ", "VBG", "VBD", "VBN")] == forms.split()
        assert all(lexicon.find(form, RELATION).word == verb for form in forms.split()), (verb, forms)


def test_verbs_that_replace_others_are_verbs():
    lexicon = load_lexicon()
    rows = [row for row in lexicon.rows.values() if row.category == VERB and RARE not in row.marks]
    found = {lexicon.find(word, RELATION).category for row in rows for word in row.instead}
    assert found == {VERB}


def test_categories_part_words_that_exclude_each_other():
    # What the rules rest on: no two words that stand for each other are of one sort of thing.
    lexicon = load_lexicon()
    for first, second in itertools.permutations(("dog", "cat", "puppy", "animal", "poodle"), 2):
        alike = lexicon.is_kind_of(first, second)
        assert alike == ((first, second) in KINDS), (first, second)


KINDS = {
    ("dog", "animal"),
    ("cat", "animal"),
    ("puppy", "animal"),
    ("poodle", "animal"),
    ("puppy", "dog"),
    ("poodle", "dog"),
}


def test_no_plural_has_a_plural_of_its_own():
    lexicon = load_lexicon()
    words = [entry.word for entry in lexicon._entries[OBJECT].values()]
    twice = {word: lexicon.plural(lexicon.plural(word)) for word in words if not word.endswith("i")}
    wrong = {word for word, made in twice.items() if made != lexicon.plural(word)}
    assert wrong <= {"cameraman", "cactus", "person of interest"} | {w for w in wrong if w.endswith("man")}
    assert [lexicon.plural(word) for word in ("stairs", "steps", "chest of drawers", "rhinoceros")] == [
        "stairs",
        "steps",
        "chests of drawers",
        "rhinoceroses",
    ]
    assert all(lexicon.is_plural(word) for word in ("stairs", "steps", "jeans"))
    assert not any(lexicon.is_plural(word) for word in ("chest of drawers", "rhinoceros", "bus", "glass"))
