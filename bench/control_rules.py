"""Samples that the control rules choose from a demo's scores, compared with cpi.

Command: OMP_NUM_THREADS=1 python bench/control_rules.py out/demo/curated   (seconds, one core, no model)

Every rule is applied in memory to scores/ with the options of the run. Of each: rows kept, the share of them
that cpi keeps too, how many have a planted fault, their mean PAS and alignment; and which share of the clean
rows past gate 1 stays, by the number of things and phrases and by shape, with Wilson's 95 % interval. A
rule that judged pairs alone would keep clean pairs of every kind alike. The last line is one JSON object.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lab.worlds.faults import NO_FAULT, group_traits
from raycomp.config import from_dict, override
from raycomp.core.metrics import share_interval, spearman
from raycomp.curation.config import RULES, CurateConfig, make_selection, name_draw
from raycomp.curation.select.select import choose_tables
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    DROPPED_ALIGNMENT,
    IMAGE_EMBEDDING,
    KEPT,
    MEAN_PAS,
    PHRASES,
    UNSEEN,
)


def name_rules(config: CurateConfig) -> list[str]:
    """Return cpi, align_only and every control with a second gate."""
    names = [name for name, rule in RULES.items() if rule.attribute_by and name != "align70_random50"]
    return [*names, name_draw(config.align.keep, config.attribute.keep), "align_only"]


def choose(tables: list[pa.Table], config: CurateConfig, rule: str) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return the reason and the score of every row under a rule, and its fit."""
    gates, judged = choose_tables(tables, make_selection(override(config, "select.rule", rule)))
    reason_N, score_N = (np.concatenate(parts) for parts in zip(*judged, strict=True))
    return reason_N, score_N, gates.fit and gates.fit.to_dict()


def keep_rates(kept_N: np.ndarray, among_N: np.ndarray, groups: dict[str, np.ndarray]) -> dict[str, str]:
    """Return the share of each group's rows ``among`` that stays, with Wilson's 95 % interval."""
    reported = {}
    for what, at_N in groups.items():
        count, kept = int((among_N & at_N).sum()), int((among_N & at_N & kept_N).sum())
        low, high = share_interval(kept, count)
        reported[what] = f"{kept / count:.3f} [{low:.3f}, {high:.3f}]" if count else "-"
    return reported


def main(source: Path) -> None:
    run = json.loads((source / "run.json").read_text())
    config = from_dict(CurateConfig(), run["config"])
    tables = [pq.read_table(path) for path in sorted((source / "scores").glob("*.parquet"))]
    table = pa.concat_tables([table.drop_columns([IMAGE_EMBEDDING]) for table in tables])
    alignment_N, pas_N = (np.array(table[name].to_pylist(), float) for name in (ALIGNMENT, MEAN_PAS))
    fault_N = np.array(table["fault"].to_pylist())
    counting = [[p for p in row or () if p["target_class"] != UNSEEN] for row in table[PHRASES].to_pylist()]
    drops_N = np.array([sum(p["drop"] is not None for p in row) for row in counting])
    groups = group_traits([caption or "" for caption in table[CAPTION].to_pylist()], drops_N)
    reason_N, _, _ = choose(tables, config, "cpi")
    cpi_N, pool_N = reason_N == KEPT, ~np.isnan(alignment_N) & (reason_N != DROPPED_ALIGNMENT)
    reported = {}
    for rule in name_rules(config):
        reason_N, score_N, fit = choose(tables, config, rule)
        kept_N, ranked_N = reason_N == KEPT, ~np.isnan(score_N)
        reported[rule] = {
            "kept": int(kept_N.sum()),
            "also kept by cpi": round(float((kept_N & cpi_N).sum() / kept_N.sum()), 3),
            "faulty kept": int((kept_N & (fault_N != NO_FAULT)).sum()),
            "faults kept": dict(sorted(Counter(fault_N[kept_N].tolist()).items())),
            "mean PAS": round(float(np.nanmean(pas_N[kept_N])), 4),
            "mean alignment": round(float(alignment_N[kept_N].mean()), 4),
            "rho(score, phrases)": round(spearman(score_N[ranked_N], drops_N[ranked_N]), 3),
            "fit": fit,
            **keep_rates(kept_N, pool_N & (fault_N == NO_FAULT), groups),
        }
        print(rule, *(f"{name}: {value}" for name, value in reported[rule].items()), sep="\n    ")
    print("faults in the pool", Counter(fault_N[pool_N].tolist()))
    print(json.dumps(reported))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
