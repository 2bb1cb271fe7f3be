"""Are rule edits false where they could be true? Counted are those in words that a scene can show.

Most of what the packaged lexicon brings into a caption of the little world ("a checkered circle") no scene
shows, so it is false by construction; here the rules draw from a lexicon of the world's own words. As the
world's captions say all there is, nothing added to them can be true: captions without colours show that the
count would see it.
"""

from collections import Counter

import numpy as np
from test_edits import AT_MOST, can_show, holds

from raycomp.language.concepts import parse_concepts
from raycomp.language.lexicon import ABSTRACT, Lexicon, SynonymSet
from raycomp.language.overlap import count_context
from raycomp.language.prompts import propose
from raycomp.models.parser import load_lexicon
from raycomp.words import ATTRIBUTE, OBJECT, OPERATIONS, RELATION
from tests.drawn import COLOURS, OPPOSITE, SHAPES, SIZES, TEMPLATES, Scene, describe, draw_scene
from tests.language.reading import load


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
    rng = np.random.default_rng(11)
    scenes = [draw_scene(rng) for _ in range(60)]
    texts = [describe(scene, i % len(TEMPLATES)) for i, scene in enumerate(scenes)]
    for op in OPERATIONS:
        for with_counts in (False, True):
            counts = count_truth(texts, scenes, op, with_counts)
            assert counts["true"] <= 0.01 * counts["shown"] and counts["shown"] > 4 * len(scenes), op
