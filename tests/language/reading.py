"""Texts as the packaged parser and lexicon read them."""

from functools import cache

from raycomp.language.concepts import Parsed, parse_concepts
from raycomp.models.parser import load_lexicon, load_parser

load = cache(load_parser)


def parse(*texts: str) -> list[Parsed]:
    parser = load()
    tokens = parser.tokens(texts)
    pairs = zip(texts, tokens, strict=True)
    return [parse_concepts(text, own, load_lexicon(), parser.labels) for text, own in pairs]
