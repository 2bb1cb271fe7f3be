"""A row for every run of ``raycomp continual``: what the tables of its folder are computed from.

    python -m bench.continual_runs out/continual-heads bench/results/continual_heads_runs.csv

Development runs have the multiple of the learning rate that they tried in ``tried``; reported runs have the
selected one in ``rate`` and the selected weight of the fused score in ``weight``.
"""

import argparse
from pathlib import Path

from raycomp.config.commands import name_own
from raycomp.continual.data import StreamRun, name_stream
from raycomp.continual.scoring import RUNS, measure, read_result
from raycomp.data.files import Folder
from raycomp.table import write_csv

FIGURES = ("last", "learned", "forgetting_best", "gain", "fused crr_to_primitives", "fused zstd", "sigma_max")


def list_rows(folder: Folder) -> list[tuple[object, ...]]:
    """Return a row for every run in the folder, in the order of their names."""
    rows = []
    for name in sorted(name for name in folder.list_names(RUNS) if name.endswith(".json")):
        facts = folder.read_json(RUNS, name)
        one_run = StreamRun(**facts["cell"])
        found = measure(read_result(folder, one_run))
        known = name_stream(one_run.stream), name_own(one_run.method), one_run.seed, facts["backbone"]
        chosen = one_run.rate, facts["rate"], facts["weight"]
        rows.append((*known, *chosen, *(round(found[one], 4) if one in found else None for one in FIGURES)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("csv")
    arguments = parser.parse_args()
    names = ("track", "method", "seed", "backbone", "tried", "rate", "weight", *FIGURES)
    Path(arguments.csv).write_text(write_csv([names, *list_rows(Folder(arguments.folder))]))


if __name__ == "__main__":
    main()
