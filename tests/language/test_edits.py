"""Rule edits against the renderer's truth: false for the scene, and of the type that they say they are."""

import dataclasses
import itertools
import re
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

from raycomp.language.changes import Case, State
from raycomp.language.concepts import Edit, Parsed, parse_concepts
from raycomp.language.lexicon import ABSTRACT, Lexicon, SynonymSet
from raycomp.language.overlap import count_context
from raycomp.language.prompts import _steps, apply_calls, propose
from raycomp.models.parser import load_lexicon
from raycomp.words import ADD, ATTRIBUTE, OBJECT, OPERATIONS, RELATION, REPLACE, SWAP
from tests.drawn import (
    COLOURS,
    OPPOSITE,
    RELATIONS,
    SHAPES,
    SIZES,
    TEMPLATES,
    Claim,
    Scene,
    describe,
    draw_scene,
    is_true,
    place,
    stands,
)
from tests.language.reading import load, parse

NUM_SCENES = 130
AT_MOST = 9
FRAME = re.compile(r"(?:a picture of |the drawing shows |there is |a scene with )?(.+)")
LINKS = (*RELATIONS, "next to", "in front of", "behind", "far from", "and", "with")
LINK = re.compile(rf",? (?:which )?(?:is )?({'|'.join(LINKS)}) (?=an? )")
OTHER_COLOURS = ("black", "white", "gray")
NOUN_PHRASE = re.compile(r"an? (.+)")


class Said(NamedTuple):
    """What a caption of the little world says, links between each thing and the next."""

    attributes: tuple[tuple[str, ...], ...]
    nouns: tuple[str, ...]
    links: tuple[str, ...]


def read(text: str) -> Said:
    """Interpret a caption that follows a template, with words of any kind in its places."""
    parts = LINK.split(FRAME.fullmatch(text)[1])
    phrases = [NOUN_PHRASE.fullmatch(part)[1].split() for part in parts[::2]]
    known = {*COLOURS, *SIZES, *OTHER_COLOURS}
    heads = [max((i + 1 for i, word in enumerate(words) if word in known), default=0) for words in phrases]
    nouns = tuple(" ".join(words[head:]) for words, head in zip(phrases, heads, strict=True))
    attributes = tuple(tuple(words[:head]) for words, head in zip(phrases, heads, strict=True))
    return Said(attributes, nouns, tuple(parts[1::2]))


def holds(text: str, scene: Scene) -> bool | None:
    """Report whether a caption is true of a scene, read generously; None where the world cannot say.

    A scene shows shapes, their colours, sizes and where they stand, nothing else. "and" and "with" say that
    both are there. None is for a relation of another kind between things that are there.
    """
    said = read(text)
    centres, _ = place(scene)
    can_be = False
    for chosen in itertools.permutations(range(len(scene.things)), len(said.nouns)):
        things = [scene.things[i] for i in chosen]
        fits = zip(said.nouns, said.attributes, things, strict=True)
        if not all(noun == one.shape and {*words} <= {one.colour, one.size} for noun, words, one in fits):
            continue
        links = list(zip(chosen, said.links, chosen[1:], strict=False))
        known = [(i, link, j) for i, link, j in links if link in RELATIONS]
        if all(stands(centres[i], link, centres[j]) for i, link, j in known):
            if all(link in (*RELATIONS, "and", "with") for link in said.links):
                return True
            can_be = True
    return None if can_be else False


def can_show(text: str) -> bool:
    """Report whether there is a scene of which a caption is true, as far as its words go."""
    said = read(text)
    attributes = {word for words in said.attributes for word in words}
    known = {*said.nouns} <= {*SHAPES} and attributes <= {*COLOURS, *SIZES}
    return known and {*said.links} <= {*RELATIONS, "and", "with"}


def differing(before: tuple, after: tuple) -> list[int]:
    return [i for i, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]


def classify(before: Said, after: Said) -> set[tuple[str, str]]:
    """Return every (operator, kind) whose single call leads from one text to the other."""
    found = set()
    if len(after.nouns) == len(before.nouns) + 1:
        for i in range(1, len(after.nouns)):
            without = Said(
                *(part[: i - k] + part[i + 1 - k :] for part, k in zip(after, (0, 0, 1), strict=True))
            )
            if without == before:
                found.add((ADD, OBJECT if after.links[i - 1] in ("and", "with") else RELATION))
        return found
    attributes, nouns, links = (differing(*pair) for pair in zip(before, after, strict=True))
    if not links and not attributes and len(nouns) == 1:
        long, short = after.nouns[nouns[0]], before.nouns[nouns[0]]
        found.add((ADD, ATTRIBUTE) if long.endswith(" " + short) else (REPLACE, OBJECT))
    if not attributes and not nouns and len(links) == 1:
        found.add((REPLACE, RELATION))
    if not links and not nouns and len(attributes) == 1:
        old, new = before.attributes[attributes[0]], after.attributes[attributes[0]]
        if len(old) == len(new) and len(differing(old, new)) == 1:
            found.add((REPLACE, ATTRIBUTE))
        if len(new) == len(old) + 1 and [word for word in new if word in old] == [*old]:
            found.add((ADD, ATTRIBUTE))
    if links:
        return found
    for i, j in itertools.combinations(range(len(before.nouns)), 2):
        if _swap(before.nouns, i, j) == after.nouns and not attributes:
            found.add((SWAP, OBJECT))
        if _swap(before.nouns, i, j) == after.nouns and _swap(before.attributes, i, j) == after.attributes:
            found.add((SWAP, RELATION))
        if not nouns and _swaps_attributes(before.attributes, after.attributes, i, j):
            found.add((SWAP, ATTRIBUTE))
    return found


def _swap(items: tuple, i: int, j: int) -> tuple:
    changed = list(items)
    changed[i], changed[j] = changed[j], changed[i]
    return tuple(changed)


def _swaps_attributes(before: tuple, after: tuple, i: int, j: int) -> bool:
    for a, b in itertools.product(range(len(before[i])), range(len(before[j]))):
        one, two = list(before[i]), list(before[j])
        one[a], two[b] = two[b], one[a]
        changed = [*before]
        changed[i], changed[j] = tuple(one), tuple(two)
        if tuple(changed) == after:
            return True
    return False


@pytest.fixture(scope="module")
def world() -> list[tuple[Scene, Parsed]]:
    """Scenes with their captions, parsed by the packaged parser, in all templates."""
    rng = np.random.default_rng(5)
    scenes = [draw_scene(rng) for _ in range(NUM_SCENES)]
    texts = [describe(scene, i % len(TEMPLATES)) for i, scene in enumerate(scenes)]
    return list(zip(scenes, parse(*texts), strict=True))


def test_the_interpreter_agrees_with_the_world(world):
    # An oracle needs one of its own: captions hold for their scene, and their claims decide for others.
    for (scene, parsed), (other, _) in itertools.pairwise(world):
        assert holds(parsed.text, scene) is True
        said = Claim(
            tuple(
                thing if str(thing.size) in parsed.text else dataclasses.replace(thing, size=None)
                for thing in scene.things
            ),
            scene.relations,
        )
        assert holds(parsed.text, other) is is_true(said, other)


def test_edits_agree_with_the_renderer(world):
    for op in OPERATIONS:
        counts: Counter = Counter()
        for i, (scene, parsed) in enumerate(world):
            for edit in propose(parsed, op, load_lexicon(), 0, str(i), AT_MOST):
                types = classify(read(parsed.text), read(edit.text))
                counts[edit.kind, holds(edit.text, scene) is False and (edit.op, edit.kind) in types] += 1
        good = [counts[kind, True] for kind in (OBJECT, ATTRIBUTE, RELATION)]
        assert sum(good) >= 0.99 * sum(counts.values()) and min(good) > NUM_SCENES / 2, (op, counts)


def test_every_call_of_a_chain_agrees_with_the_renderer(world):
    num = 0
    for i, (scene, parsed) in enumerate(world[::3]):
        for ops in itertools.product(OPERATIONS, repeat=2):
            for chain in apply_calls(parsed, ops, load_lexicon(), 0, str(i), 1):
                texts = [parsed.text, *(edit.text for edit in chain)]
                for (before, after), edit in zip(itertools.pairwise(texts), chain, strict=True):
                    assert (edit.op, edit.kind) in classify(read(before), read(after)), texts
                    assert holds(after, scene) is False, texts
                    num += 1
    assert num > 3 * NUM_SCENES


def every_pair(parsed: Parsed, ops: tuple[str, str]) -> list[tuple[Edit, Edit]]:
    """Return every chain of two calls: ``apply_calls`` takes one of the second ones by hash."""
    case = Case(parsed, load_lexicon(), 0, "")
    return [
        (first, second)
        for first, state in _steps(case, ops[0], State(), 100)
        for second, _ in _steps(case, ops[1], state, 100)
    ]


def make_alike(scene: Scene, turn: int) -> Scene:
    """Give one thing the shape, the colour or both of another of the scene, then the other size."""
    things = list(scene.things)
    first, second = ((0, 1), (1, -1), (0, -1))[turn % 3]
    if things[first] is things[second]:
        first, second = 0, 1
    one, alike = things[first], ("shape", "colour", "both")[turn // 3 % 3]
    same = {name: getattr(one, name) for name in ("shape", "colour") if alike in (name, "both")}
    things[second] = dataclasses.replace(things[second], **same)
    if things[second].shape == one.shape and things[second].colour == one.colour:
        things[second] = dataclasses.replace(things[second], size=SIZES[one.size == SIZES[0]])
    return dataclasses.replace(scene, things=tuple(things))


def test_no_chain_says_again_what_the_scene_shows():
    """Two things of one shape do not tell which is which: swap their colours, turn their relation, and the
    caption says again what the scene shows. So every scene has such a pair."""
    rng = np.random.default_rng(17)
    scenes = [make_alike(draw_scene(rng), i) for i in range(9)]
    texts = [describe(scene, i % len(TEMPLATES)) for i, scene in enumerate(scenes)]
    world = list(zip(scenes, parse(*texts), strict=True))
    for ops in itertools.product(OPERATIONS, repeat=2):
        chains = [(scene, parsed, chain) for scene, parsed in world for chain in every_pair(parsed, ops)]
        true = [
            (parsed.text, *(edit.text for edit in chain))
            for scene, parsed, chain in chains
            if holds(chain[-1].text, scene) is not False
        ]
        assert true == []
        assert len(chains) > 4 * len(scenes)


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


def count_truth(texts: list[str], scenes: list[Scene], op: str, with_counts: bool) -> Counter:
    """Count edits: shown where a scene can show the words, true where not false."""
    parser, lexicon, counts = load(), world_lexicon(), Counter()
    captions = [
        parse_concepts(text, tokens, lexicon, parser.labels)
        for text, tokens in zip(texts, parser.tokens(texts), strict=True)
    ]
    context = count_context(captions) if with_counts else None
    for i, parsed in enumerate(captions):
        assert holds(parsed.text, scenes[i]) is True
        for edit in propose(parsed, op, lexicon, 0, str(i), AT_MOST, context=context):
            shown = can_show(edit.text)
            counts.update(shown=shown, true=shown and holds(edit.text, scenes[i]) is not False)
    return counts


def test_edits_in_words_that_scenes_show_are_false():
    """Are rule edits false where they could be true? Counted are those in words that a scene can show.

    Most of what the packaged lexicon brings into a caption of the little world ("a checkered circle") no
    scene shows, so it is false by construction; here the rules draw from a lexicon of the world's own words.
    As the world's captions say all there is, nothing added to them can be true: captions without colours show
    that the count would see it.
    """
    rng = np.random.default_rng(11)
    scenes = [draw_scene(rng) for _ in range(60)]
    texts = [describe(scene, i % len(TEMPLATES)) for i, scene in enumerate(scenes)]
    for op in OPERATIONS:
        for with_counts in (False, True):
            counts = count_truth(texts, scenes, op, with_counts)
            assert counts["true"] <= 0.01 * counts["shown"] and counts["shown"] > 4 * len(scenes), op
