"""The packaged lexicon of visual concepts: raycomp's own tables, read once."""

from functools import cache
from importlib.resources import files

from raycomp.language.lexicon import Forms, Lexicon, SynonymSet
from raycomp.words import ATTRIBUTE, OBJECT, RELATION

TABLES = {OBJECT: "objects.tsv", ATTRIBUTE: "attributes.tsv", RELATION: "relations.tsv"}


@cache
def load_lexicon() -> Lexicon:
    """Return the lexicon of ``data/lexicon``; its NOTICE describes the columns."""
    rows = [
        SynonymSet(
            kind,
            category,
            _split(words),
            _split(parents),
            frozenset(_split(marks)),
            _split(instead),
            _split(fits),
        )
        for kind, name in TABLES.items()
        for category, words, parents, marks, instead, fits in _read(name)
    ]
    forms: dict[str, dict[str, str]] = {"plural": {}, "past": {}, "participle": {}, "double": {}}
    for form, word, inflected in _read("forms.tsv"):
        forms[form][word] = inflected
    double = frozenset(forms.pop("double"))
    return Lexicon(rows, Forms(**forms, double=double))


def _read(name: str) -> list[list[str]]:
    """Return the cells of a table without its first line, the names of the columns."""
    table = files("raycomp.models").joinpath("data/lexicon", name).read_text(encoding="ascii")
    return [line.split("\t") for line in table.splitlines()[1:]]


def _split(cell: str) -> tuple[str, ...]:
    return tuple(cell.split(", ")) if cell else ()
