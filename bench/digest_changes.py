"""See that ``bench.digests`` notices changes: a threshold, a column, a message, an order.

    python -m bench.digest_changes [NAME ...] [--against TABLE.csv] [--csv bench/results/digest_changes.csv]

Applies each change of digest_changes.toml to a copy of the last commit, runs there the cases that it names
and compares them with the table of digests. Without a change they must agree; with it they must differ.
Exit code 1 unless all do.
"""

import argparse
import csv
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from bench.digests import ROOT, TABLE
from bench.mutations import copy_commit, find_lines, replace_lines

CHANGES = ROOT / "bench" / "digest_changes.toml"
COLUMNS = ("name", "cases", "result", "lines", "seconds")


def compare(table: Path, cases: str, find: str = "", replace: str = "") -> tuple[str, int]:
    """Return what became of a change, and the number of lines that differ from a table of digests."""
    with copy_commit() as folder:
        places = find_lines(folder, find) if find else []
        if find and len(places) != 1:
            return f"found {len(places)} times", 0
        if find and not replace_lines(places[0], replace):
            return "does not compile", 0
        program = [sys.executable, "-m", "bench.digests"]
        shared = os.environ.get("RAYCOMP_SHARED", str(ROOT.parent / "shared"))
        done = subprocess.run(
            [*program, folder.parent / "after.csv", "--only", cases, "--against", table],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "RAYCOMP_SHARED": shared},
            capture_output=True,
            text=True,
            check=False,
        )
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    if " lines differ, of " not in last:
        return f"no table: {done.stderr.strip()[-300:]}", 0
    differing = int(last.split()[0])
    return ("seen" if differing and done.returncode else "not seen"), differing


def main() -> int:
    """Try the changes that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="in digest_changes.toml; none: all")
    parser.add_argument("--against", type=Path, default=TABLE, help="the table of this commit")
    parser.add_argument("--csv", type=Path, help="write the results there, too")
    asked = parser.parse_args()
    changes = tomllib.loads(CHANGES.read_text())
    chosen = {name: changes[name] for name in asked.names or changes}
    rows = []
    trials = {"none": {"cases": ",".join(one["cases"] for one in chosen.values())}, **chosen}
    for name, change in trials.items():
        started = time.monotonic()
        result, differing = compare(asked.against.resolve(), **change)
        rows.append((name, change["cases"], result, differing, round(time.monotonic() - started)))
        print(*rows[-1], flush=True)
        if asked.csv:
            with asked.csv.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    return int(rows[0][2] != "not seen" or any(row[2] != "seen" for row in rows[1:]))


if __name__ == "__main__":
    sys.exit(main())
