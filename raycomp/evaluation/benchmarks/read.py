"""Every benchmark that can be read, by name."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from inspect import isfunction

from raycomp.config.change import call_own, load_own, name_own
from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks import (
    aro,
    aro_order,
    bivlc,
    cola,
    hard_positives,
    sugarcrepe,
    sugarcrepe_pp,
    valse,
    vl_checklist,
    winoground,
)
from raycomp.evaluation.benchmarks.choice import ALL, Choice, mark_defects
from raycomp.words import CONCEPT_KINDS, MACRO, MICRO, OPERATIONS

READERS: dict[str, Callable[[Folder], Iterable[Choice]]] = {
    reader.NAME: reader.read
    for reader in (
        sugarcrepe,
        sugarcrepe_pp,
        valse,
        vl_checklist,
        aro,
        winoground,
        bivlc,
        cola,
        hard_positives,
    )
}
TAGGED = {aro_order.NAME: aro_order.read}
"""Benchmarks whose negatives are made of tagged words."""
NAMES = (*READERS, *TAGGED)
OPTION = "benchmarks"


def read_benchmark(
    name: str, folder: Folder, limit: int | None = None, tag: aro_order.Tag | None = None, seed: int = 0
) -> list[Choice]:
    """Return the rows of the benchmark ``name`` from the annotation files in ``folder``, defects marked.

    With a ``limit`` only the first items of each split, up to that number. ``tag`` parses captions, for
    benchmarks in ``TAGGED``, and ``seed`` draws their negatives. Raises ValueError on an unknown name and
    where a folder, file, row or field is missing or malformed.
    """
    if name not in READERS | TAGGED:
        raise ValueError(f"benchmark={name!r}: must be one of {', '.join(NAMES)}")
    if not folder.exists():
        raise ValueError(f"{folder.uri}: is not a folder; it should hold the annotation files of {name}")
    if name in READERS:
        rows = READERS[name](folder)
    elif tag is None:
        raise ValueError(f"benchmark={name!r}: needs a parser; this call has none")
    else:
        rows = TAGGED[name](folder, tag, seed)
    return _finish_rows(rows, limit)


def read_own(name: str, folder: Folder, limit: int | None = None) -> list[Choice]:
    """Return the rows that the user's function yields for ``folder``, as ``read_benchmark``.

    ``name``: FILE.py:NAME. Raises ValueError, one line, where the function fails or yields something else.
    """
    read = load_own(OPTION, name)
    if not isfunction(read):
        raise ValueError(f"{OPTION}={name}: must name a function in that file")
    rows = call_own(OPTION, name, lambda: list(read(folder)))
    for row in rows:
        if not isinstance(row, Choice):
            raise ValueError(f"{OPTION}={name}: must yield Choice rows, yielded {row!r:.80}")
    return _finish_rows((row._replace(benchmark=name_own(name)) for row in rows), limit)


def _finish_rows(rows: Iterable[Choice], limit: int | None) -> list[Choice]:
    """Return the rows, defects marked; with a ``limit`` those of the first items of each split."""
    choices = list(mark_defects(_check_rows(rows)))
    if limit is None:
        return choices
    items: defaultdict[str, set[str]] = defaultdict(set)
    first = []
    for choice in choices:
        kept, item = items[choice.split], choice.group or choice.id
        if item in kept or len(kept) < limit:
            kept.add(item)
            first.append(choice)
    return first


def _check_rows(choices: Iterable[Choice]) -> Iterator[Choice]:
    """Yield every row. Raises ValueError on a repeated id, and on an unknown operation or kind."""
    seen = set()
    for choice in choices:
        where = f"{choice.benchmark}: {choice.split}: row {choice.id!r}"
        if (choice.split, choice.id) in seen:
            raise ValueError(f"{where}: an earlier row has this id")
        seen.add((choice.split, choice.id))
        if choice.split in (MICRO, MACRO, ALL):
            raise ValueError(f"{where}: split={choice.split!r}: is a reserved name; rename the split")
        for name, value, known in (("op", choice.op, OPERATIONS), ("kind", choice.kind, CONCEPT_KINDS)):
            if value not in ("", *known):
                raise ValueError(f"{where}: {name}={value!r}: must be one of {', '.join(known)}, or empty")
        yield choice
