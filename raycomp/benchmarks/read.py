"""Every benchmark that can be read, by name."""

from collections.abc import Iterable, Iterator

from raycomp.benchmarks import aro, sugarcrepe, sugarcrepe_pp, valse, vl_checklist
from raycomp.benchmarks.choice import Choice, Folder, mark_defects
from raycomp.words import CONCEPT_KINDS, OPERATIONS

READERS = {reader.NAME: reader.read for reader in (sugarcrepe, sugarcrepe_pp, valse, vl_checklist, aro)}


def read_benchmark(name: str, folder: Folder) -> list[Choice]:
    """Return all rows of the benchmark ``name``, whose annotation files lie in ``folder``, defects marked.

    Raises ValueError on an unknown name and where a folder, file, row or field is missing or misshapen.
    """
    if name not in READERS:
        raise ValueError(f"benchmark={name!r}: must be one of {', '.join(READERS)}")
    if not folder.exists():
        raise ValueError(f"{folder.uri}: is not a folder; it should hold the annotation files of {name}")
    return list(mark_defects(_check_words(READERS[name](folder))))


def _check_words(choices: Iterable[Choice]) -> Iterator[Choice]:
    """Yield every row. Raises ValueError where one names an operation or kind that there is not."""
    for choice in choices:
        for name, value, known in (("op", choice.op, OPERATIONS), ("kind", choice.kind, CONCEPT_KINDS)):
            if value not in ("", *known):
                where = f"{choice.benchmark}: {choice.split}: row {choice.id!r}"
                raise ValueError(f"{where}: {name}={value!r}: must be one of {', '.join(known)}, or empty")
        yield choice
