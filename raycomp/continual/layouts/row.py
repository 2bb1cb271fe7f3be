"""The row format of every data set of a stream: an image, its true text, its primitives."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from raycomp.evaluation.benchmarks.choice import is_text

# Number of candidates of a question without answers to choose from: the right one and the most common others.
NUM_CANDIDATES = 8
_WORDS_OF_KIND = 2
EXTENSIONS = (".jpg", ".jpeg", ".png")


class Edit(NamedTuple):
    """A false text of a sample, one edit away from its caption; results report the margin between both."""

    text: str
    primitives: tuple[str, ...]
    category: str
    """Operation and kind of the edit: SWAP attribute."""


class Row(NamedTuple):
    """A training or test sample."""

    image: str
    """The image's file name, relative to the folder that the images are published in."""
    caption: str
    """For a question, the right answer with the question before it; "" if there is none."""
    primitives: tuple[str, ...] | None = None
    """None if the files do not name them; the caption is then parsed."""
    box: tuple[int, int, int, int] | None = None
    """Left, top, width, height in pixels: the part of the image that the row describes; None for all."""
    candidates: tuple[str, ...] = ()
    kind: str = ""
    """Questions: the kind of question; same kind, same value."""
    edits: tuple[Edit, ...] = ()
    """Used in the tests of tasks."""


class QuestionRow(NamedTuple):
    """A question and its answer, as in the file."""

    image: str
    question: str
    answer: str | None


def offer_answers(asked: Sequence[QuestionRow]) -> list[Row]:
    """Return questions with candidate answers, each as the question followed by the answer.

    The data sets are made for generative models and have no candidates, so these are raycomp's own: the right
    answer and the most common answers to other questions of the same kind. The kind is a question's first two
    words. There are 8 candidates together, or fewer if there are not as many answers. ``kind`` allows a
    text-only baseline that knows the answers of each kind.
    """
    known: dict[str, Counter[str]] = defaultdict(Counter)
    for one in asked:
        if one.answer is not None:
            known[read_kind(one.question)][one.answer] += 1
    commonest = {
        kind: sorted(counts, key=lambda answer: (-counts[answer], answer)) for kind, counts in known.items()
    }
    rows = []
    for one in asked:
        kind = read_kind(one.question)
        if one.answer is None:
            rows.append(Row(one.image, "", kind=kind))
            continue
        others = [answer for answer in commonest[kind][:NUM_CANDIDATES] if answer != one.answer]
        offered = sorted([one.answer, *others[: NUM_CANDIDATES - 1]])
        texts = tuple(f"{one.question} {answer}" for answer in offered)
        rows.append(Row(one.image, f"{one.question} {one.answer}", candidates=texts, kind=kind))
    return rows


def read_kind(question: str) -> str:
    """Return the first words of a question."""
    return " ".join(question.lower().split()[:_WORDS_OF_KIND])


def take_words(record: Any, name: str, where: str) -> tuple[str, ...]:
    """Return a field that is a list of words, which may be empty. Raises ValueError that starts with the
    location."""
    if not isinstance(record, dict) or name not in record:
        raise ValueError(f"{where}: has no field {name!r}")
    value = record[name]
    if not isinstance(value, list) or not all(map(is_text, value)):
        raise ValueError(f"{where}: {name}={value!r:.80}: must be a list of words")
    return tuple(word.strip() for word in value)


def name_file(name: str | int) -> str:
    """Return the image file with this number, or with this name without the extension."""
    return f"{name}" if f"{name}".lower().endswith(EXTENSIONS) else f"{name}.jpg"


def add_article(words: str) -> str:
    """Return words with their article: "a red car"."""
    return f"{'an' if words[0].lower() in 'aeiou' else 'a'} {words}"
