"""The packaged lexicon: large, well formed, and no sibling is a synonym, a wider or a narrower word."""

from raycomp.language.lexicon import ABSTRACT, OPPOSITE
from raycomp.models.parser import load_lexicon
from raycomp.words import OBJECT, RELATION


def test_it_knows_many_objects_of_many_categories():
    objects = [row for row in load_lexicon().rows.values() if row.kind == OBJECT and row.category != ABSTRACT]
    assert sum(len(row.words) for row in objects) > 1000
    assert len({row.category for row in objects}) >= 40


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
