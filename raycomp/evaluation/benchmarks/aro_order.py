"""COCO-Order and Flickr30k-Order of ARO (Yuksekgonul et al. 2023, arXiv:2210.01936): four shuffles a caption.

The user downloads ``coco_karpathy_test.json`` and ``flickr30k_test.json`` (one is enough): lists of image,
caption (a list). The four negatives have the caption's tokens in another order: nouns and adjectives, each
among themselves; all but these; within each three tokens; the threes. Texts are then lower-cased and cut to
30 words, as in the published code. Three things differ from that code. The draw has a seed. Tokens and tags
are the given parser's. The true caption also has spaces between its tokens ("man 's"), so that only the order
differs. A row whose caption a shuffle left unchanged has the defect ``EQUAL``; the published code counts it
as right.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import Choice, read_json, take, take_texts
from raycomp.language.lexicon import ADJECTIVE_TAGS, NOUN_TAGS, Token

NAME = "aro_order"
FILES = {"coco": "coco_karpathy_test.json", "flickr30k": "flickr30k_test.json"}
MAX_WORDS = 30
_DROPPED = re.compile(r'[.!"()*#:;~]')

Tag = Callable[[Sequence[str]], Sequence[Sequence[Token]]]
"""Captions in, the tokens of each out: ``models.parser.Parser.tokens`` is one."""


def read(folder: Folder, tag: Tag, seed: int = 0) -> Iterator[Choice]:
    """Yield a row for every caption; ValueError where there is no file or a field is missing."""
    found = {split: name for split, name in FILES.items() if folder.exists(name)}
    if not found:
        raise ValueError(f"{folder.uri}: has neither {' nor '.join(FILES.values())}")
    for split, name in found.items():
        keys, images, captions = [], [], []
        for place, record in enumerate(read_json(folder, name, list)):
            where = f"{folder.at(name)}: row {place}"
            image = take(record, "image", str, where)
            for number, caption in enumerate(take_texts(record, "caption", where)):
                keys.append(f"{place}/{number}")
                images.append(image)
                captions.append(caption)
        for key, image, caption, tokens in zip(keys, images, captions, tag(captions), strict=True):
            true, *shuffled = (clean(words) for words in shuffle(tokens, f"{seed} {split} {key}"))
            if not true:
                raise ValueError(f"{folder.at(name)}: caption {key}: {caption!r:.80}: has no word")
            yield Choice(NAME, split, key, image, (true,), tuple(shuffled))


def shuffle(tokens: Sequence[Token], seed: str) -> list[list[str]]:
    """Return the tokens' texts in order, then shuffled in the four ways."""
    rng, texts = random.Random(seed), [token.text for token in tokens]
    nouns = [i for i, token in enumerate(tokens) if token.tag in NOUN_TAGS]
    adjectives = [i for i, token in enumerate(tokens) if token.tag in ADJECTIVE_TAGS]
    others = sorted({*range(len(tokens))} - {*nouns, *adjectives})
    threes = [texts[i : i + 3] for i in range(0, len(texts), 3)]
    within = [word for three in threes for word in rng.sample(three, len(three))]
    moved = [word for three in rng.sample(threes, len(threes)) for word in three]
    described = _permute(_permute(texts, nouns, rng), adjectives, rng)
    return [texts, described, _permute(texts, others, rng), within, moved]


def _permute(texts: list[str], places: list[int], rng: random.Random) -> list[str]:
    permuted = list(texts)
    for place, source in zip(places, rng.sample(places, len(places)), strict=True):
        permuted[place] = texts[source]
    return permuted


def clean(words: Sequence[str]) -> str:
    """Return the words as one text, in lower case, without stops and brackets, at most ``MAX_WORDS``."""
    return " ".join(_DROPPED.sub(" ", " ".join(words).lower()).split()[:MAX_WORDS])
