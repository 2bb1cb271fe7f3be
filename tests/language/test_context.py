"""Counts of how a corpus uses words, and edits that are drawn by them."""

from collections import Counter

import pytest

from raycomp.language.changes import Case, race
from raycomp.language.judge import judge_edit
from raycomp.language.overlap import (
    CONCEPT,
    DESCRIBED,
    LEFT,
    NEAR,
    PRIOR,
    RIGHT,
    TOGETHER,
    Context,
    count_context,
    count_words,
    keep_commonest,
    no_context,
)
from raycomp.language.prompts import MOST_LONGER, list_removals, propose
from raycomp.models.parser import load_lexicon
from raycomp.words import ADD, OBJECT, REPLACE, SWAP
from tests.language.reading import parse


def test_a_corpus_of_known_counts():
    captions = parse("A red car near a dog", "A red car", "An old dog")
    found = count_context(captions).tables
    objects = {("object", "car"): 2, ("object", "dog"): 2, ("relation", "near"): 1}
    assert found[CONCEPT] == {("attribute", "red"): 2, ("attribute", "old"): 1, **objects}
    assert found[DESCRIBED] == {("car", "red"): 2, ("dog", "old"): 1}
    assert found[LEFT] == {("car", "near"): 1} and found[RIGHT] == {("near", "dog"): 1}
    assert found[TOGETHER] == {("car", "dog"): 1, ("dog", "car"): 1}
    assert found[NEAR]["<", "a"] == 3 and found[NEAR]["a", "red"] == 2 and found[NEAR]["dog", ">"] == 2
    parts = count_context(captions[:1])
    parts.add(count_context(captions[1:]))
    assert parts.tables == found
    tables = no_context().tables | {NEAR: Counter({("b", "a"): 2, ("a", "b"): 2, ("c", "c"): 3})}
    assert keep_commonest(Context(tables), 2).tables[NEAR] == {("c", "c"): 3, ("a", "b"): 2}, "ties by name"


def test_a_lift_is_the_ratio_of_shares_and_a_race_follows_weights():
    tables = no_context().tables | {DESCRIBED: Counter({("car", "red"): 6, ("dog", "brown"): 3})}
    context = Context(tables)
    share = (6 + 1) / (9 + 2 + 1)
    assert context.lift(DESCRIBED, "car", "red") == pytest.approx((6 / share + PRIOR) / (6 + PRIOR))
    assert context.lift(DESCRIBED, "car", "brown") == pytest.approx(PRIOR / (6 + PRIOR))
    assert context.lift(DESCRIBED, "horse", "red") == context.lift(DESCRIBED, "car", "x") * (11 / 5) == 1
    case = Case(parse("A red car")[0], load_lexicon(), 0, "0")
    weights = {"a": 1.0, "b": 2.0, "c": 7.0}
    firsts = Counter(race(case, weights, weights.get, seed)[0][1] for seed in range(4000))
    assert all(abs(firsts[word] / 4000 - weight / 10) < 0.03 for word, weight in weights.items())


def test_swaps_stay_within_a_realm_and_candidates_are_up_to_64():
    captions = parse(
        "A man walks behind a woman in the park",
        "A man sits on a chair",
        "A man in a red hat and a blue shirt sits on a wooden bench next to a dog and a cat",
    )
    context, lexicon = count_context(captions), load_lexicon()
    walks, sits = (
        {edit.concepts for edit in propose(one, SWAP, lexicon, 0, "0", 20, context=context)}
        for one in captions[:2]
    )
    assert ("man", "woman") in walks and not sits
    assert ("man", "chair") in {edit.concepts for edit in propose(captions[1], SWAP, lexicon, 0, "0", 20)}
    context = count_context(captions[2:])
    few, many = (propose(captions[2], REPLACE, lexicon, 0, "0", 64, context=one) for one in (None, context))
    assert len({edit.text for edit in many}) == len(many) == 64 > len(few)
    assert sum(edit.kind == OBJECT for edit in many) > 20


def test_true_parts_of_a_caption():
    for caption, parts in [
        ("A man in a red hat", {("A man in a hat", ("red",)), ("A man", ("in", "red", "hat"))}),
        ("A dog runs on the grass", {("A dog runs", ("on", "grass"))}),
        ("A dog is on the grass", set()),
        ("Two dogs", set()),
        ("A dog", set()),
    ]:
        case = Case(parse(caption)[0], load_lexicon(), 0, "")
        found = {
            (case.render([piece])[0], tuple(case.concepts[place].word for place in inside))
            for piece, inside, _ in list_removals(case)
        }
        assert found == parts


def test_an_add_to_a_part_of_the_caption_is_as_long_as_the_caption():
    captions = parse(
        "A man in a red hat is sitting on a wooden bench next to a dog",
        "A little girl in a pink dress holds a white cat",
        "Two boys play with a blue ball on the beach",
    )
    context, lexicon = count_context(captions), load_lexicon()
    edits = [
        (caption, edit)
        for caption in captions
        for edit in propose(caption, ADD, lexicon, 0, "0", 64, context=context)
        if edit.base is not None
    ]
    assert len(edits) > 20
    bases, texts = (parse(*names) for names in zip(*((one.base, one.text) for _, one in edits), strict=True))
    for (caption, edit), base, text in zip(edits, bases, texts, strict=True):
        assert abs(count_words(edit.text) - count_words(caption.text)) <= MOST_LONGER
        assert count_words(edit.base) < count_words(caption.text)
        assert any(word.startswith("-") for word in edit.concepts)
        assert judge_edit(ADD, base, text, caption, [], lexicon) is None, edit
