"""Random histories of updates, each of which must end where a run from scratch does.

    python -m bench.histories [--seeds 20] [--first 3]

A corpus of small shards is curated; then three times something happens to it (shards come, change or go, rows
and shards are removed, another input is added, options change), and the curation is updated by a command that
is killed at random writes, up to three times, and run again. At the end it is curated from scratch into
another folder: all files must be equal, and no caption, image or url of a row that is not there any more, be
it removed, replaced or deleted, may be in any file.
Writes bench/results/update_histories.csv, a line for each history; the last line printed is one JSON object.
Goal: all equal. The first three seeds are tests.
"""

import argparse
import csv
import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.update import write_tiny
from raycomp.config import ScorerConfig
from raycomp.curation import outputs
from raycomp.words import REMOVED
from tests.curation.histories import History
from tests.curation.test_update_runs import find_bytes

RESULTS = Path(__file__).parent / "results" / "update_histories.csv"
STEPS = 3


def sha256(sample: dict[str, bytes]) -> str:
    return hashlib.sha256(sample["jpg"]).hexdigest()


def run_history(place: Path, scorer: ScorerConfig, seed: int) -> dict[str, Any]:
    """Return a line on one history."""
    started, history = time.perf_counter(), History(place, scorer, seed)
    kills = [history.random.choice([0, 1, 2, 3]) for _ in range(STEPS)]
    for count in kills:
        history.update(count)
    rows = [row for path in (history.run / "scores").glob("*") for row in pq.read_table(path).to_pylist()]
    there = {name: {row[name] for row in rows if row[name]} for name in ("caption", "url", "image_sha256")}
    secrets: set[bytes] = set()
    for one in history.written:
        caption, url = one["txt"].decode(), json.loads(one["json"])["url"]
        secrets |= {one["jpg"][-200:]} - {
            other["jpg"][-200:] for other in history.written if sha256(other) in there["image_sha256"]
        }
        secrets |= set() if url in there["url"] else {url.encode()}
        secrets |= set() if any(caption in text for text in there["caption"]) else {caption.encode()}
    found = find_bytes(history.run, sorted(secrets))
    is_equal = history.read(history.run) == history.read(history.from_scratch())
    return {
        "seed": seed,
        "steps": " ".join(history.steps),
        "kills": sum(kills),
        "rows": len(rows),
        "removed": sum(row["status"] == REMOVED for row in rows),
        "texts_and_images_searched": len(secrets),
        "equal": is_equal,
        "found": len(found),
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> None:
    """Run the histories; write a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=3)
    args = parser.parse_args()
    outputs.SPAN = 4  # written shards of few rows, so that several are touched or not
    lines: list[dict[str, Any]] = []
    for seed in range(args.first, args.first + args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            model = write_tiny(Path(folder))
            lines.append(run_history(Path(folder), ScorerConfig(model, "random:0"), seed))
        print(lines[-1], flush=True)
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    same = sum(line["equal"] and not line["found"] for line in lines)
    print(json.dumps({"histories": len(lines), "equal_and_clean": same}))


if __name__ == "__main__":
    main()
