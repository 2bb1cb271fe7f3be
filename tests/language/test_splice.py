"""Tokens of an edited text without a parser: against the parser's own."""

from raycomp.language.changes import splice_tokens
from raycomp.language.concepts import parse_concepts
from raycomp.language.judge import judge_edit
from raycomp.language.prompts import propose
from raycomp.models.parser import load_lexicon
from raycomp.words import ATTRIBUTE, OBJECT, REPLACE
from tests.language.reading import load

CAPTIONS = (
    "A man in a red hat is sitting on a wooden bench next to a dog",
    "Two boys play with a blue ball on the beach .",
    "The big brown bear's child sleeps under an old oak tree",
    "A black-and-white cat looks out of the window, and a bird flies by",
    "An Italian caf\u00e9 with green chairs",
)


def test_words_take_the_tags_of_those_whose_place_they_have():
    parser = load()
    for old, new in [
        ("A dog on a mat", "An owl on a mat"),
        ("A dog on a mat", "A dog on a rug"),
        ("A dog, a cat", "A doggy, a cat"),
        ("Two men sit.", "Two women sit."),
    ]:
        tokens, want = parser.tokens([old, new])
        places = [(one.text, one.start, one.end) for one in want]
        tags = [(one.tag, one.dep, one.head) for one in tokens]
        found = splice_tokens(tokens, old, new)
        assert [(one.text, one.start, one.end) for one in found] == places
        assert [(one.tag, one.dep, one.head) for one in found] == tags
    for old, new in [("A dog", "A guinea pig"), ("A dog", "A dog"), ("A dog runs", "A runs")]:
        assert splice_tokens(parser.tokens([old])[0], old, new) is None, new


def test_verdicts_are_those_of_a_parse():
    """Of objects and attributes that are replaced, nearly all: a small parser wavers over single words."""
    parser, lexicon = load(), load_lexicon()
    same = every = 0
    for caption in CAPTIONS:
        tokens = parser.tokens([caption])[0]
        parsed = parse_concepts(caption, tokens, lexicon, parser.labels)
        texts = [
            edit.text
            for edit in propose(parsed, REPLACE, lexicon, 0, "0", 30)
            if edit.kind in (OBJECT, ATTRIBUTE)
        ]
        for text, own in zip(texts, parser.tokens(texts), strict=True):
            spliced = splice_tokens(tokens, caption, text)
            if spliced is None:
                continue
            readings = (parse_concepts(text, one, lexicon, parser.labels) for one in (spliced, own))
            verdicts = [judge_edit(REPLACE, parsed, one, parsed, [], lexicon) for one in readings]
            same += verdicts[0] == verdicts[1]
            every += 1
    assert every > 40 and same >= 0.95 * every
