"""How often forged rows are found by ``raycomp verify``, against the rate that its statement assumes.

    python -m bench.forgery [--rows 2000] [--trials 1000]

Rendered scenes are curated with a model of one and two layers. A share of the rows is forged: their
alignments are raised by 0.001, as a maker would to have them kept, who also makes the gates fit;
so only scoring again can find them. All rows are scored again once, by the functions of ``verify``; then its
draw is repeated with seeds 0, 1, 2, ... A draw finds the forgery if one of its rows differs. Expected: the
hypergeometric probability. Intervals are Wilson's, 95 %. Writes bench/results/forgery.csv; the last line is
one JSON object. Goal: the expected rate within the interval of each.
"""

import argparse
import csv
import json
import tempfile
from math import lgamma, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.update import write_scenes, write_tiny
from raycomp.config import ClusterConfig, override_all
from raycomp.curation.command import curate
from raycomp.curation.config import CurateConfig
from raycomp.curation.select.filters import list_shards
from raycomp.curation.select.select import is_attributed
from raycomp.curation.verify import Rescorer, compare_rows, draw_rows, read_and_count
from raycomp.data.parquet import add_columns
from raycomp.models.architecture import describe_scorer
from raycomp.run.executor import use
from raycomp.run.local import Local
from raycomp.words import ALIGNMENT, REMOVED, STATUS

RESULTS = Path(__file__).parent / "results" / "forgery.csv"
SHARES, DRAWS = (0.002, 0.005, 0.01, 0.02), (100, 300)
RAISED = 0.001


def list_drawable(scores: str) -> np.ndarray:
    """Return the positions of the rows of a scores file that can be scored again: all but removed ones."""
    statuses = pq.read_table(scores, columns=[STATUS])[STATUS].to_pylist()
    return np.flatnonzero([status != REMOVED for status in statuses])


def forge(place: Path, share: float, rng: np.random.Generator) -> int:
    """Raise the alignments of random rows; return how many."""
    paths = sorted((place / "run/scores").glob("*.parquet"))
    drawable = [list_drawable(str(path)) for path in paths]
    count = round(share * sum(map(len, drawable)))
    for path, positions in zip(paths, draw_rows(drawable, count, int(rng.integers(2**31))), strict=True):
        table = pq.read_table(path)
        values = table[ALIGNMENT].to_numpy(zero_copy_only=False).copy()
        values[positions] += np.float32(RAISED)
        target = place / "forged" / path.name
        target.parent.mkdir(exist_ok=True)
        pq.write_table(add_columns(table, {ALIGNMENT: [values]}).cast(table.schema), target)
    return count


def find_differing(place: Path, rescored: list[Any]) -> list[np.ndarray]:
    """Return the positions of the rows of each forged file that differ from what scoring again gives."""
    found = []
    for path, tables in zip(sorted((place / "forged").glob("*.parquet")), rescored, strict=True):
        uids = pq.read_table(path, columns=["uid"])["uid"].to_pylist()
        differing = {uid for table in tables for uid, *_ in compare_rows(str(path), table, None)}
        found.append(np.flatnonzero([uid in differing for uid in uids]))
    return found


def expect(total: int, forged: int, drawn: int) -> float:
    """Return the probability that one of the forged rows is drawn."""

    def choose(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    return 1 - float(np.exp(choose(total - forged, drawn) - choose(total, drawn)))


def wilson(found: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share."""
    z, share = 1.959964, found / trials
    centre, spread = (
        share + z * z / (2 * trials),
        z * sqrt(share * (1 - share) / trials + z * z / (4 * trials**2)),
    )
    return (centre - spread) / (1 + z * z / trials), (centre + spread) / (1 + z * z / trials)


def main() -> None:
    """Print and write a row for each share and number of drawn rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--trials", type=int, default=1000)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        for shard in range(4):
            write_scenes(place / "in", f"{shard:05d}", args.rows // 4, shard + 1)
        options = {"scorer.model": write_tiny(place), "scorer.weights": "random:0"}
        cluster = ClusterConfig(executor="local", num_cpus=2)
        config = override_all(CurateConfig(input=str(place / "in"), cluster=cluster), options)
        curate(config, str(place / "run"))
        with use(Local(2)):
            rescored = score_again(place, config)
            rng = np.random.default_rng(0)
            for share in SHARES:
                forged = forge(place, share, rng)
                differing = find_differing(place, rescored)
                assert sum(map(len, differing)) == forged, "each forged row differs, and no other"
                rows += [try_draws(place, differing, forged, drawn, args.trials) for drawn in DRAWS]
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print(json.dumps({"bench": "forgery", "rows": rows}))


def score_again(place: Path, config: CurateConfig) -> list[Any]:
    """Return the tables of all rows of each shard, scored again."""
    rescorer = Rescorer(config, describe_scorer(config.scorer))
    found = []
    for shard in list_shards(config):
        uri = str(place / "run/scores" / f"{shard.ordinal:05d}.parquet")
        positions = list_drawable(uri)
        samples, _ = read_and_count(shard, positions)
        found.append(list(rescorer.score(samples, is_attributed(uri)[positions])))
    return found


def try_draws(
    place: Path, differing: list[np.ndarray], forged: int, drawn: int, trials: int
) -> dict[str, Any]:
    """Return how many of the draws hold a forged row."""
    drawable = [list_drawable(str(path)) for path in sorted((place / "forged").glob("*.parquet"))]
    caught = 0
    for seed in range(trials):
        draws = draw_rows(drawable, drawn, seed)
        caught += any(np.isin(one, bad).any() for one, bad in zip(draws, differing, strict=True))
    low, high = wilson(caught, trials)
    total = sum(map(len, drawable))
    row = {
        "rows": total, "forged": forged, "drawn": drawn, "trials": trials, "caught": caught,
        "share": round(caught / trials, 4), "low": round(low, 4), "high": round(high, 4),
        "expected": round(expect(total, forged, drawn), 4),
    }  # fmt: skip
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
