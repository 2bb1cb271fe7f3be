"""The one row of every data set of a stream: an image, what is true of it, what it is made of."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from raycomp.evaluate.benchmarks.choice import is_text

# Of a question without answers to choose from: the right one and the commonest others.
NUM_CANDIDATES = 8
_WORDS_OF_KIND = 2
EXTENSIONS = (".jpg", ".jpeg", ".png")


class Row(NamedTuple):
    """A sample to learn from, or to be asked about."""

    image: str
    """The image's file name, relative to the folder that the images are published in."""
    caption: str
    """Of a question the right answer, with the question before it; "" where there is none."""
    primitives: tuple[str, ...] | None = None
    """None where the files do not name them: then the caption is parsed."""
    box: tuple[int, int, int, int] | None = None
    """Left, top, width, height in pixels: the part of the image that the row is about; None for all."""
    candidates: tuple[str, ...] = ()
    kind: str = ""
    """Questions: the same for those that are asked alike."""


class QuestionRow(NamedTuple):
    """A question and its answer, as a file has them."""

    image: str
    question: str
    answer: str | None


def offer_answers(asked: Sequence[QuestionRow]) -> list[Row]:
    """Return questions with answers to choose from, each as the question with the answer behind it.

    The data sets are made for models that write, so these are raycomp's own: the right answer and the
    commonest others to questions of the same kind, which is a question's first two words; 8 together, fewer
    where there are not as many. Who knows the answers but not the picture is told by ``kind``.
    """
    known: dict[str, Counter[str]] = defaultdict(Counter)
    for one in asked:
        if one.answer is not None:
            known[find_kind(one.question)][one.answer] += 1
    commonest = {
        kind: sorted(counts, key=lambda answer: (-counts[answer], answer)) for kind, counts in known.items()
    }
    rows = []
    for one in asked:
        kind = find_kind(one.question)
        if one.answer is None:
            rows.append(Row(one.image, "", kind=kind))
            continue
        others = [answer for answer in commonest[kind][:NUM_CANDIDATES] if answer != one.answer]
        offered = sorted([one.answer, *others[: NUM_CANDIDATES - 1]])
        texts = tuple(f"{one.question} {answer}" for answer in offered)
        rows.append(Row(one.image, f"{one.question} {one.answer}", candidates=texts, kind=kind))
    return rows


def find_kind(question: str) -> str:
    """Return the first words of a question."""
    return " ".join(question.lower().split()[:_WORDS_OF_KIND])


def take_words(record: Any, name: str, where: str) -> tuple[str, ...]:
    """Return a field that is a list of words, which may be empty. Raises ValueError, beginning with where."""
    if not isinstance(record, dict) or name not in record:
        raise ValueError(f"{where}: has no field {name!r}")
    value = record[name]
    if not isinstance(value, list) or not all(map(is_text, value)):
        raise ValueError(f"{where}: {name}={value!r:.80}: must be a list of words")
    return tuple(word.strip() for word in value)


def name_file(name: str | int) -> str:
    """Return the file of an image that is known by its number, or by its name without the extension."""
    return f"{name}" if f"{name}".lower().endswith(EXTENSIONS) else f"{name}.jpg"


def add_article(words: str) -> str:
    """Return words with their article: "a red car"."""
    return f"{'an' if words[0].lower() in 'aeiou' else 'a'} {words}"
