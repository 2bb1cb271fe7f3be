"""Text-only baselines of a benchmark's captions, and the captions that they are trained on.

T texts.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import parse_text, take, take_texts
from raycomp.evaluation.config import ControlsConfig
from raycomp.language.text_only import (
    Ngrams,
    bigram_likelihood,
    count_ngrams,
    count_words,
    find_words,
    unigram_likelihood,
)
from raycomp.models.parser import fingerprint_folder
from raycomp.words import BIGRAM, CAPTION, CAPTIONS, IMAGE, LANGUAGE_MODEL, SHORTER_CAPTION, UNIGRAM

_OPTION = "controls.language_model"
# COCO's image files are named COCO_val2014_000000000042.jpg in 2014 and 000000000042.jpg in 2017.
_COCO = re.compile(r"^coco_(?:train|val|test)\d{4}_")


@dataclass(frozen=True)
class Learned:
    """The statistics of captions, and the number of captions left out."""

    counts: Ngrams
    num_used: int
    num_same_image: int
    """Left out: captions of an image that a test set uses."""
    num_same_words: int
    """Left out: other captions that occur word for word in a test set, ignoring case and punctuation."""


def open_controls(
    config: ControlsConfig, texts: Collection[str], test_images: Collection[str], say: Callable[[str], None]
) -> Callable[[Sequence[str]], dict[str, np.ndarray]]:
    """Return a function that scores texts of a test set, given all its ``texts`` and images; ``score_texts``.

    Reads the training captions; those of ``test_images`` and those among ``texts`` are left out, which is
    reported. Raises ValueError where an option names a file that cannot be used.
    """
    counts = None
    if config.captions:
        learned = learn_captions(config.captions, texts, test_images)
        counts = learned.counts
        say(
            f"unigram and bigram: fitted to {learned.num_used:,} captions of {config.captions}; left out: "
            f"{learned.num_same_image:,} captions of test images, {learned.num_same_words:,} captions that "
            "equal a test caption"
        )
    if config.language_model:
        # transformers takes seconds to import.
        from raycomp.models.language_model import check_language_model

        check_language_model(config.language_model, _OPTION)
    return partial(score_texts, config=config, counts=counts)


def fingerprint_controls(config: ControlsConfig) -> dict[str, str]:
    """Return by option a digest of each file and folder that baselines are trained on."""
    found = {}
    if config.captions:
        found["controls.captions"] = hashlib.sha256(Folder(config.captions).read_bytes()).hexdigest()
    if config.language_model:
        found["controls.language_model"] = fingerprint_folder(Path(config.language_model))
    return found


def score_texts(texts: Sequence[str], config: ControlsConfig, counts: Ngrams | None) -> dict[str, np.ndarray]:
    """Return by baseline a score for every text, float64 (T,); a larger score is more likely.

    ``shorter_caption``: minus the number of words. ``unigram``, ``bigram``: nats, by the captions behind
    ``counts``; without ``counts`` these two are absent. ``language_model``: nats, where one is given.
    """
    scores = {SHORTER_CAPTION: np.array([-count_words(text) for text in texts], np.float64)}
    if counts is not None:
        for name, judge in ((UNIGRAM, unigram_likelihood), (BIGRAM, bigram_likelihood)):
            scores[name] = np.array([judge(text, counts) for text in texts], np.float64)
    if config.language_model:
        import torch

        from raycomp.models.language_model import LanguageModel

        model = LanguageModel(config.language_model, _OPTION, torch.device("cpu"), config.precision)
        scores[LANGUAGE_MODEL] = model.compute_likelihoods(texts)
    return scores


def learn_captions(captions: str, texts: Collection[str], test_images: Collection[str]) -> Learned:
    """Return the statistics of a file's captions that share neither image nor words with a test set.

    Images are equal where their names are, without folders, extension and the 2014 prefix of COCO. Raises
    ValueError where the file cannot be read or no caption is left.
    """
    images = {_name_image(image) for image in test_images}
    words = {tuple(find_words(text)) for text in texts}
    used = []
    num_same_image = num_same_words = 0
    for image, caption in read_captions(captions):
        if image is not None and _name_image(image) in images:
            num_same_image += 1
        elif tuple(find_words(caption)) in words:
            num_same_words += 1
        else:
            used.append(caption)
    if not used:
        num = num_same_image + num_same_words
        problem = f"all {num} captions are of test images or equal test captions" if num else "has no caption"
        raise ValueError(f"controls.captions={captions!r}: {problem}; add other captions")
    return Learned(count_ngrams(used), len(used), num_same_image, num_same_words)


def _name_image(path: str) -> str:
    name = path.rpartition("/")[2].lower()
    return _COCO.sub("", name.rpartition(".")[0] or name)


def read_captions(source: str) -> Iterator[tuple[str | None, str]]:
    """Yield image (None where it is not given) and caption of a file on a disk or on S3.

    The extension gives the format: .jsonl, an object per line; .json, a list of objects; else a caption per
    line. Objects have ``image`` and ``caption`` or ``captions``, a text or a list of texts. Raises ValueError
    with the first place that has another form.
    """
    said = f"controls.captions={source!r}"
    try:
        text = Folder(source).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{said}: no such file") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{said}: cannot be read as UTF-8 ({' '.join(str(error).split())})") from error
    # Not splitlines: a caption may contain Unicode line separators.
    lines = [(f"{said}: line {i}", line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if source.endswith(".jsonl"):
        for where, line in lines:
            yield from _read_row(parse_text(line, where), where)
    elif source.endswith(".json"):
        found = parse_text(text, said)
        if not isinstance(found, list):
            raise ValueError(f"{said}: must hold a JSON list, holds a {type(found).__name__}")
        for i, row in enumerate(found):
            yield from _read_row(row, f"{said}: entry {i}")
    else:
        yield from ((None, line.strip()) for _, line in lines)


def _read_row(row: Any, where: str) -> Iterator[tuple[str, str]]:
    name = CAPTIONS if isinstance(row, dict) and CAPTIONS in row else CAPTION
    image = take(row, IMAGE, str, where)
    yield from ((image, caption) for caption in take_texts(row, name, where))
