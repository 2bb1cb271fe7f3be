"""Are rule edits false where they could be true? Counted apart: those in words that a scene can show.

Most of what the packaged lexicon brings into a caption of the little world ("a checkered circle", "and a
cube") no scene shows, so it is false by construction. So the rules also draw from a lexicon of the world's
own words. And as the world's captions say all there is, nothing added to them can be true: captions cut
short show that the count would see it, and what chance makes true there.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from test_edits import AT_MOST, NUM_SCENES, can_show, holds

from raycomp.language.concepts import Edit, Parsed, parse_concepts
from raycomp.language.lexicon import ABSTRACT, Lexicon, SynonymSet
from raycomp.language.overlap import count_context
from raycomp.language.prompts import propose
from raycomp.models.parser import load_lexicon, load_parser
from raycomp.words import (
    ADD,
    ATTRIBUTE,
    CONCEPT_KINDS,
    OBJECT,
    OPERATIONS,
    RELATION,
    REPLACE,
)
from tests.drawn import COLOURS, OPPOSITE, SHAPES, SIZES, TEMPLATES, Claim, Scene, describe, draw_scene, say

SIZED = 0


def world_lexicon() -> Lexicon:
    """Return a lexicon of nothing but what scenes show, each class one category."""
    none: frozenset[str] = frozenset()
    opposite = frozenset(["opposite"])
    rows = [SynonymSet(OBJECT, "shape", (word,), (), none, (), ()) for word in SHAPES]
    rows += [SynonymSet(ATTRIBUTE, "colour", (word,), (), none, (), ()) for word in COLOURS]
    rows += [
        SynonymSet(ATTRIBUTE, "size", pair[:1], (), opposite, pair[1:], ()) for pair in (SIZES, SIZES[::-1])
    ]
    rows += [SynonymSet(RELATION, "spatial", (a,), (), opposite, (b,), ()) for a, b in OPPOSITE.items()]
    rows += [
        SynonymSet(OBJECT, ABSTRACT, (word,), (), none, (), ()) for word in ("picture", "drawing", "scene")
    ]
    return Lexicon(rows, load_lexicon().forms)


LEXICONS = {"packaged": load_lexicon, "world": world_lexicon}


def without_colours(scene: Scene) -> str:
    return re.sub(rf"\b({'|'.join(COLOURS)}) ", "", say(scene, SIZED)).replace("an ", "a ")


def without_the_last(scene: Scene) -> str:
    return say(Claim(scene.things[:2], scene.relations[:1]), SIZED)


def edit_all(
    texts: list[str], op: str, lexicon: Lexicon, counts: bool = False
) -> Iterator[tuple[int, Parsed, Edit]]:
    """Yield every edit with the place of its caption; with ``counts`` drawn by what these captions say."""
    parser = load_parser()
    captions = [
        parse_concepts(text, tokens, lexicon, parser.labels)
        for text, tokens in zip(texts, parser.tokens(texts), strict=True)
    ]
    context = count_context(captions) if counts else None
    for i, parsed in enumerate(captions):
        for edit in propose(parsed, op, lexicon, 0, str(i), AT_MOST, context=context):
            yield i, parsed, edit


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    rng = np.random.default_rng(11)
    return [draw_scene(rng) for _ in range(NUM_SCENES)]


class Truth(NamedTuple):
    """Edits of one kind: all, those in words that a scene can show, and of these the ones not false."""

    num: int
    num_shown: int
    num_true: int


def count_truth(
    texts: list[str], scenes: list[Scene], op: str, lexicon: str, with_counts: bool = False
) -> dict[str, Truth]:
    counts: Counter = Counter()
    for i, parsed, edit in edit_all(texts, op, LEXICONS[lexicon](), with_counts):
        assert holds(parsed.text, scenes[i]) is True
        shown = can_show(edit.text)
        is_true = shown and holds(edit.text, scenes[i]) is not False
        counts.update({(edit.kind, 0): 1, (edit.kind, 1): shown, (edit.kind, 2): is_true})
        if is_true:
            print(op, edit.kind, parsed.text, edit.text, sep="\n  ")
    kinds = [kind for kind in CONCEPT_KINDS if counts[kind, 0]]
    return {kind: Truth(*(counts[kind, i] for i in range(3))) for kind in kinds}


def report(found: dict[str, Truth], *what: str) -> None:
    """Say how many of the edits could be true and how many of these are."""
    num, shown, true = (sum(one[i] for one in found.values()) for i in range(3))
    kinds = {kind: tuple(one) for kind, one in found.items()}
    print(f"\n{', '.join(what)}: {true} true of {shown} that could be, of {num}; by kind: {kinds}")


@pytest.mark.parametrize("with_counts", [False, True], ids=["", "counts"])
@pytest.mark.parametrize("lexicon", LEXICONS)
@pytest.mark.parametrize("op", OPERATIONS)
def test_edits_in_words_that_scenes_show_are_false(op, lexicon, with_counts, scenes, capsys):
    texts = [describe(scene, i % len(TEMPLATES)) for i, scene in enumerate(scenes)]
    found = count_truth(texts, scenes, op, lexicon, with_counts)
    with capsys.disabled():
        report(found, f"{lexicon} lexicon" + ", counts" * with_counts, op)
    shown, true = (sum(one[i] for one in found.values()) for i in (1, 2))
    assert true <= 0.01 * shown
    assert shown > 4 * NUM_SCENES or lexicon == "packaged"


@pytest.mark.parametrize("lexicon", LEXICONS)
def test_a_colour_added_where_none_is_said_is_true_by_chance_alone(lexicon, scenes, capsys):
    """One colour of eight is the thing's own; the packaged lexicon has many other attributes."""
    found = count_truth([without_colours(scene) for scene in scenes], scenes, ADD, lexicon)
    with capsys.disabled():
        report(found, "no colours said", f"{lexicon} lexicon", ADD)
    num, shown, true = found[ATTRIBUTE]
    assert abs(true / shown - 1 / len(COLOURS)) < 0.02
    assert shown == num if lexicon == "world" else true / num < 0.06


@pytest.mark.parametrize("lexicon", LEXICONS)
def test_a_thing_added_where_one_is_left_out_is_sometimes_true(lexicon, scenes, capsys):
    """One of six or seven shapes is the third thing's, and where it is put behind the first it must fit."""
    kept = [scene for scene in scenes if len(scene.things) == 3]
    found = count_truth([without_the_last(scene) for scene in kept], kept, ADD, lexicon)
    with capsys.disabled():
        report(found, "a thing left out", f"{lexicon} lexicon", ADD)
    num, shown, true = found[OBJECT]
    assert 0.02 < true / shown < 1 / 6
    assert lexicon == "world" or true / num < 0.01


@pytest.mark.parametrize("lexicon", LEXICONS)
@pytest.mark.parametrize("shorten", (without_colours, without_the_last))
def test_a_replacement_in_a_caption_cut_short_is_false(shorten, lexicon, scenes, capsys):
    kept = [scene for scene in scenes if shorten is without_colours or len(scene.things) == 3]
    found = count_truth([shorten(scene) for scene in kept], kept, REPLACE, lexicon)
    with capsys.disabled():
        report(found, shorten.__name__, f"{lexicon} lexicon", REPLACE)
    assert all(one.num_true < 0.01 * one.num_shown for one in found.values())
    assert all(one.num_shown > 100 for one in found.values())
