"""Alignment alone, against peers from the package index: clip-retrieval and Data-Juicer. For information.

    python -m bench.peers ../shared --envs /tmp/peers [--rows 400] [--rounds 1]

Flickr8k photos with their first captions, ViT-B/32 in fp32, the same random weights. raycomp is a plain loop
of prepare and Align over tars; clip-retrieval its ``inference`` over the same tars, which ends in fp16
embeddings (their cosines are taken here, untimed); Data-Juicer its ``dj-process`` over the same bytes as
files, a process per core and a pair at a time. In turn, raycomp first. ``seconds`` is all of a run;
``rows_per_s`` leaves out the start (interpreter, imports, weights, warming up), which a run over few rows
prices, and so does ``cpu_ms_per_row``, of all cores together. ``--envs`` keeps an environment per peer, made
with uv where missing. A peer that fails is reported with its error in one line. Last line one JSON object.
"""

import argparse
import json
import resource
import subprocess
import tarfile
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

from PIL import Image

from bench.peers.tools import MODEL, PINS, TOOLS, Cosines, Place, install
from bench.peers.weights import write_weights
from jobs.real_photos import SETS, write_shards

PER_SHARD = 100
ROWS_OF_START = 20
SIDE = 224


@dataclass(frozen=True)
class Timing:
    """One tool in one round."""

    seconds: float
    rows_per_s: float
    cpu_ms_per_row: float


def write_pairs(shared: Path, folder: Path, rows: int) -> None:
    """Write the first pairs as tars, and the same bytes as files with the list that Data-Juicer reads."""
    write_shards(shared, folder, per_shard=PER_SHARD, limit=rows)
    (folder / SETS[0]).rename(folder / "tars")
    photos = folder / "photos"
    for path in sorted((folder / "tars").glob("*.tar")):
        with tarfile.open(path) as tar:
            tar.extractall(photos, filter="data")
    with (photos / "pairs.jsonl").open("w", encoding="utf-8") as lines:
        for path in sorted(photos.glob("*.jpg")):
            text = "<__dj__image> " + path.with_suffix(".txt").read_text("utf-8")
            lines.write(json.dumps({"key": path.stem, "text": text, "images": [str(path)]}) + "\n")


def run_timed(name: str, place: Place) -> tuple[float, float, Cosines]:
    """Return a run's seconds, its CPU seconds in all processes, and the cosines."""
    place.out.mkdir()
    cpu_before_s, started = _children_cpu_s(), time.perf_counter()
    read = TOOLS[name](place)
    return time.perf_counter() - started, _children_cpu_s() - cpu_before_s, read()


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_round(name: str, env: Path, work: Path, i: int) -> tuple[Timing, Cosines]:
    """Time a tool over few pairs, then over all."""
    places = [
        Place(env, work / "weights", work / size, work / f"{name}-{size}-{i}") for size in ("few", "all")
    ]
    few_s, few_cpu_s, few = run_timed(name, places[0])
    all_s, all_cpu_s, cosines = run_timed(name, places[1])
    rows = len(cosines) - len(few)
    return Timing(all_s, rows / (all_s - few_s), 1000 * (all_cpu_s - few_cpu_s) / rows), cosines


def compare(own: Cosines, other: Cosines, photos: Path) -> dict[str, float]:
    """Return the largest difference of cosines, apart for photos that transformers crops elsewhere.

    Where the picture's spare side is odd, torchvision centres the crop rounding half to even, transformers
    rounding down: in half of these cases a pixel apart.
    """
    if own.keys() != other.keys():
        raise RuntimeError(f"{len(other)} pairs scored, {len(own)} expected, or other keys")
    largest = {"same_crop": 0.0, "crop_a_pixel_apart": 0.0}
    for key in own:
        with Image.open(photos / f"{key}.jpg") as image:
            spare = SIDE * max(image.size) // min(image.size) - SIDE
        crop = "same_crop" if round(spare / 2) == spare // 2 else "crop_a_pixel_apart"
        largest[crop] = max(largest[crop], abs(own[key] - other[key]))
    return largest


def measure(envs: Path, work: Path, rounds: int) -> dict[str, dict]:
    """Run the tools in turn, raycomp first; return a report of each."""
    reports: dict[str, dict] = {name: {"pins": PINS[name]} if name in PINS else {} for name in TOOLS}
    timings: dict[str, list[Timing]] = {name: [] for name in TOOLS}
    own: Cosines = {}
    for i in range(rounds):
        for name, report in reports.items():
            if "error" in report:
                continue
            try:
                if name in PINS and i == 0:
                    install(name, envs / name, work / "weights")
                timing, cosines = run_round(name, envs / name, work, i)
                own = own or cosines
                report["largest_difference"] = compare(own, cosines, work / "all/photos")
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                if name not in PINS:
                    raise
                report["error"] = " ".join(str(error).split())[:300]
                continue
            timings[name].append(timing)
            print(f"{name}: {asdict(timing)}", flush=True)
    for name, report in reports.items():
        if "error" not in report:
            report.update({f: median(asdict(t)[f] for t in timings[name]) for f in Timing.__annotations__})
            ratios = [
                a.rows_per_s / b.rows_per_s for a, b in zip(timings["raycomp"], timings[name], strict=True)
            ]
            report["raycomp_over_it"] = median(ratios)
    return reports


def main() -> None:
    """Write weights and pairs, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shared", type=Path)
    parser.add_argument("--envs", type=Path, required=True, help="folder of the peers' virtual environments")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_weights(work / "weights", MODEL)
        write_pairs(args.shared, work / "few", ROWS_OF_START)
        write_pairs(args.shared, work / "all", args.rows)
        tools = measure(args.envs.resolve(), work, args.rounds)
    versions = {name: version(name) for name in ("torch", "open_clip_torch")}
    print(json.dumps({"rows": args.rows, "model": MODEL, "versions": versions, "tools": tools}))


if __name__ == "__main__":
    main()
