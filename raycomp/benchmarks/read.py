"""Every benchmark that can be read, by name."""

from pathlib import Path

from raycomp.benchmarks import aro, sugarcrepe, sugarcrepe_pp, valse, vl_checklist
from raycomp.benchmarks.choice import Choice, mark_defects

READERS = {reader.NAME: reader.read for reader in (sugarcrepe, sugarcrepe_pp, valse, vl_checklist, aro)}


def read_benchmark(name: str, folder: str | Path) -> list[Choice]:
    """Return all rows of the benchmark ``name``, whose annotation files lie in ``folder``, defects marked.

    Raises ValueError on an unknown name and where a folder, file, row or field is missing or misshapen.
    """
    if name not in READERS:
        raise ValueError(f"benchmark={name!r}: must be one of {', '.join(READERS)}")
    if not Path(folder).is_dir():
        raise ValueError(f"{folder}: is not a folder; it should hold the annotation files of {name}")
    return list(mark_defects(READERS[name](Path(folder))))
