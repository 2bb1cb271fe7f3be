"""The checks of an audit: what is odd, and the option of curate and select that drops it.

Most are conditions on the columns that curate writes: a row is odd where its ``filter.where`` is false.
Kinds of pictures as in CleanVision (github.com/cleanlab/cleanvision).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from raycomp.look.audit.config import AuditConfig

LEAST_CAPTIONS = 10
_PHRASE = "phrase: "
_LENGTHS = range(2, 7)
_WITHIN = 0.8


class Check(NamedTuple):
    """One kind of oddity; either ``where`` or ``rule`` is set."""

    name: str
    where: str | None = None
    """Rows for which it is true are not odd."""
    rule: str | None = None
    """A rule of ``near.rules``: one row of each group is not odd."""

    @property
    def is_phrase(self) -> bool:
        """Whether it is a frequent phrase, which need not be odd."""
        return self.name.startswith(_PHRASE)

    @property
    def option(self) -> str:
        """The option that drops the odd rows."""
        return f"near.rules={self.rule}" if self.where is None else f"filter.where={self.where}"


def list_checks(config: AuditConfig, language: str | None, phrases: Sequence[str]) -> list[Check]:
    """Return the checks; ``language``: the captions' main one; ``phrases``: their boilerplate, lower case."""
    low, high = f"1.0 / {config.aspect:g}", f"{config.aspect:g}"
    found = [
        Check("dark pictures", f"brightness >= {config.dark:g}"),
        Check("bright pictures", f"brightness <= {config.bright:g}"),
        Check("pictures of one colour", f"sharpness >= {config.flat:g}"),
        Check("blurred pictures", f"sharpness < {config.flat:g} OR sharpness >= {config.blurred:g}"),
        Check("grey pictures", f"colourfulness >= {config.grey:g}"),
        Check("small pictures", f"least(width, height) >= {config.side}"),
        Check("long pictures", f"aspect >= {low} AND aspect <= {high}"),
        Check("images that repeat, byte by byte", rule="exact"),
        Check("images that repeat in the model's pixels", rule="pixels"),
        Check("captions that repeat", rule="captions"),
        Check("short captions", f"words >= {config.least_words}"),
        Check("long captions", f"words <= {config.most_words}"),
    ]
    if language is not None:
        found.append(Check(f"captions not in {language}", f"lang IS NULL OR lang = {quote(language)}"))
    return [*found, *(Check(_PHRASE + text, write_phrase(text)) for text in phrases)]


def quote(text: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def write_phrase(text: str) -> str:
    """Return the condition that a caption does not have a phrase."""
    return f"NOT contains(lower(caption), {quote(text)})"


def find_phrases(captions: Iterable[str], share: float, most: int) -> list[str]:
    """Return the phrases of two to six words that most captions have, the most frequent first.

    A phrase is of words between white space, in lower case. It must be in ``share`` of the captions and in at
    least ten, start and end with a word of four letters or more, and not be a part of a longer one that at
    least 80 % of its captions have.
    """
    counts: Counter[str] = Counter()
    num = 0
    for caption in captions:
        words = caption.lower().split()
        num += 1
        counts.update(_list_parts(words))
    least = max(LEAST_CAPTIONS, share * num)
    frequent = {text: count for text, count in counts.items() if count >= least and _says_something(text)}
    within: set[str] = set()
    for text, count in frequent.items():
        parts = (_list_parts(text.split()) - {text}) & frequent.keys()
        within.update(part for part in parts if count >= _WITHIN * frequent[part])
    ranked = sorted(frequent.items(), key=lambda item: (-item[1], -len(item[0]), item[0]))
    return [text for text, _ in ranked if text not in within][:most]


def _list_parts(words: Sequence[str]) -> set[str]:
    """Return the phrases of two to six words."""
    return {" ".join(words[at : at + size]) for size in _LENGTHS for at in range(len(words) - size + 1)}


def _says_something(text: str) -> bool:
    words = text.split()
    return all(len(word) >= 4 and word.isalpha() for word in (words[0], words[-1]))
