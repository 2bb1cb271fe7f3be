"""What the control arms choose out of a demo's scores, beside cpi.

Command: OMP_NUM_THREADS=1 python bench/control_arms.py out/demo/curated   (seconds, one core, no model)

Every arm is chosen in memory from scores/ with the dials of the run. Of each: rows kept, the share of them
that cpi keeps too, how many have a planted fault, their mean PAS and alignment; and which share of the clean
rows past gate 1 stays, by the number of things in the caption and by shape, with Wilson's 95 % interval. A
rule that judged pairs alone would keep clean pairs of every kind alike. The last line is one JSON object.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raycomp.config import RULES, CurateConfig, from_dict, name_draw, override
from raycomp.core.metrics import spearman
from raycomp.loops.select import choose_tables
from raycomp.schema import ALIGNMENT, CAPTION, DROPPED_ALIGNMENT, IMAGE_EMBEDDING, KEPT, MEAN_PAS, PHRASES
from raycomp.worlds.faults import NO_FAULT
from raycomp.worlds.scenes import SHAPES

Z = 1.959964


def name_arms(config: CurateConfig) -> list[str]:
    """Return cpi, align_only and every control with a second gate."""
    names = [name for name, rule in RULES.items() if rule.gate_2 and name != "align70_random50"]
    return [*names, name_draw(config.align.keep, config.attribute.keep), "align_only"]


def choose(tables: list[pa.Table], config: CurateConfig, rule: str) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return the reason and the score of every row under a rule, and its fit."""
    gates, judged = choose_tables(tables, override(config, "select.rule", rule))
    reason_N, score_N = (np.concatenate(parts) for parts in zip(*judged, strict=True))
    return reason_N, score_N, gates.fit and gates.fit.to_dict()


def share(kept: int, count: int) -> str:
    """Return a share with Wilson's 95 % interval."""
    if not count:
        return "-"
    at, spread = kept / count, Z * Z / count
    half = Z * ((at * (1 - at) + spread / 4) / count) ** 0.5
    low, high = ((at + spread / 2 + sign * half) / (1 + spread) for sign in (-1, 1))
    return f"{at:.3f} [{low:.3f}, {high:.3f}]"


def keep_rates(kept_N: np.ndarray, among_N: np.ndarray, captions: list[str]) -> dict[str, str]:
    """Return the share of the rows ``among`` that stays, by number of things and by shape."""
    named = [[word for word in re.findall("[a-z]+", caption or "") if word in SHAPES] for caption in captions]
    groups = {f"{n} things": np.array([len(shapes) == n for shapes in named]) for n in (2, 3)}
    groups |= {shape: np.array([shape in shapes for shapes in named]) for shape in SHAPES}
    masks = {name: among_N & at_N for name, at_N in groups.items()}
    return {name: share(int((kept_N & at_N).sum()), int(at_N.sum())) for name, at_N in masks.items()}


def main(source: Path) -> None:
    run = json.loads((source / "run.json").read_text())
    config = from_dict(CurateConfig(), run["config"])
    tables = [pq.read_table(path) for path in sorted((source / "scores").glob("*.parquet"))]
    table = pa.concat_tables([table.drop_columns([IMAGE_EMBEDDING]) for table in tables])
    alignment_N, pas_N = (np.array(table[name].to_pylist(), float) for name in (ALIGNMENT, MEAN_PAS))
    fault_N, captions = np.array(table["fault"].to_pylist()), table[CAPTION].to_pylist()
    drops_N = np.array([sum(p["drop"] is not None for p in row or ()) for row in table[PHRASES].to_pylist()])
    reason_N, _, _ = choose(tables, config, "cpi")
    cpi_N, pool_N = reason_N == KEPT, ~np.isnan(alignment_N) & (reason_N != DROPPED_ALIGNMENT)
    told = {}
    for rule in name_arms(config):
        reason_N, score_N, fit = choose(tables, config, rule)
        kept_N, ranked_N = reason_N == KEPT, ~np.isnan(score_N)
        told[rule] = {
            "kept": int(kept_N.sum()),
            "also kept by cpi": round(float((kept_N & cpi_N).sum() / kept_N.sum()), 3),
            "faulty kept": int((kept_N & (fault_N != NO_FAULT)).sum()),
            "faults kept": dict(sorted(Counter(fault_N[kept_N].tolist()).items())),
            "mean PAS": round(float(np.nanmean(pas_N[kept_N])), 4),
            "mean alignment": round(float(alignment_N[kept_N].mean()), 4),
            "rho(score, phrases)": round(spearman(score_N[ranked_N], drops_N[ranked_N]), 3),
            "fit": fit,
            **keep_rates(kept_N, pool_N & (fault_N == NO_FAULT), captions),
        }
        print(rule, *(f"{name}: {value}" for name, value in told[rule].items()), sep="\n    ")
    print("faults in the pool", Counter(fault_N[pool_N].tolist()))
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
