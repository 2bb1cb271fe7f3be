"""Scenes drawn for rule edits, judged by an interpreter that shares nothing with the world's own reader."""

from collections import Counter

import numpy as np

from lab.worlds.captions import TEMPLATES, describe
from lab.worlds.negative_images import ALSO_TRUE, OUTSIDE, SHOWN, show_negative
from lab.worlds.scenes import Scene, draw_scene
from raycomp.language.concepts import parse_concepts
from raycomp.language.prompts import propose
from raycomp.models.parser import load_lexicon, load_parser
from raycomp.words import ADD, OPERATIONS, SWAP
from tests.language.test_edits import AT_MOST, LINK, can_show, holds


def test_an_image_shows_the_edit_and_not_the_caption(capsys):
    rng = np.random.default_rng(13)
    texts = [describe(draw_scene(rng), i % len(TEMPLATES)) for i in range(150)]
    parser, lexicon = load_parser(), load_lexicon()
    counts: Counter[tuple[str, str]] = Counter()
    for i, (text, tokens) in enumerate(zip(texts, parser.tokens(texts), strict=True)):
        parsed = parse_concepts(text, tokens, lexicon, parser.labels)
        for op in OPERATIONS:
            for edit in propose(parsed, op, lexicon, 0, str(i), AT_MOST):
                found = show_negative(str(i), text, edit.text)
                if isinstance(found, Scene):
                    assert holds(edit.text, found) is True and holds(text, found) is False
                else:
                    is_shown = can_show(edit.text) and not {"and", "with"} & {*LINK.split(edit.text)}
                    assert found == ALSO_TRUE or not is_shown, (text, edit.text)
                counts[op, SHOWN if isinstance(found, Scene) else found] += 1
    with capsys.disabled():
        print(f"\nedits by operation and whether an image shows them: {dict(counts)}")
    assert counts[SWAP, SHOWN] > 200 and not counts[SWAP, OUTSIDE] and not counts[ADD, SHOWN]
