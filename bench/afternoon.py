"""Wall time of docs/howto/afternoon.md: a CSV in, filtered, deduplicated, decontaminated, trained.

    python -m bench.afternoon scenes|FOLDER --out DIR [--pairs 10000]

scenes: rendered scenes of the little world, with a table of made-up nsfw scores and sources; every fiftieth
is a copy of the one before, every hundredth is in the test set. FOLDER: its photos, every twentieth in the
test set. The scoring and the trained model are a small CLIP with random weights, so that times are those of
everything else. Each command runs as a process, on this machine's cores. Prints seconds for each, and the
funnel of the first choice.
"""

import argparse
import csv
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from lab.worlds.samples import world_shards

PAGE = Path(__file__).parents[1] / "docs/howto/afternoon.md"
MODEL = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 64, "layers": 3, "width": 128, "head_width": 32, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 128, "heads": 4, "layers": 3},
}


def write_scenes(folder: Path, num_pairs: int) -> None:
    """Write the scenes' images and table, and the test set."""
    rows, last = [], b""
    samples = [one for _, some in world_shards(num_pairs, 0, 0, per_shard=1000) for one in some]
    tests = []
    for i, (_, members) in enumerate(samples):
        kind = next(name for name in members if name in ("jpg", "png"))
        image = last if i % 50 == 49 else members[kind]
        (folder / f"photos/{i}.{kind}").write_bytes(image)
        rows.append([f"{i}.{kind}", members["txt"].decode(), (i * 37 % 100) / 100, "ab"[i % 2]])
        if i % 100 == 0:
            (folder / f"test/{i}.{kind}").write_bytes(image)
            tests.append({"image": f"{i}.{kind}", "captions": [f"test caption {i}"]})
        last = image
    _write_tables(folder, rows, tests)


def write_photos(folder: Path, source: Path) -> None:
    """Write the photos of a folder, and every twentieth as a test set."""
    rows, tests = [], []
    for i, path in enumerate(sorted(source.rglob("*.jpg"))):
        (folder / f"photos/{i}.jpg").write_bytes(path.read_bytes())
        rows.append([f"{i}.jpg", f"a photo of number {i} in a folder", (i * 37 % 100) / 100, "ab"[i % 2]])
        if i % 20 == 0:
            (folder / f"test/{i}.jpg").write_bytes(path.read_bytes())
            tests.append({"image": f"{i}.jpg", "captions": [f"test caption {i}"]})
    _write_tables(folder, rows, tests)


def _write_tables(folder: Path, rows: list[list[object]], tests: list[dict[str, object]]) -> None:
    with open(folder / "photos/pairs.csv", "w", newline="") as file:
        csv.writer(file).writerows([["file_name", "caption", "nsfw", "source"], *rows])
    (folder / "test/captions.jsonl").write_text("\n".join(map(json.dumps, tests)))
    (folder / "optout.txt").write_text("example.org\n")
    (folder / "model.json").write_text(json.dumps(MODEL))


def list_commands() -> list[str]:
    """Return the commands of the page, with the little model."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    own = {
        "curate": "--set scorer.model=model.json --set scorer.weights=random:0",
        "train": "--set model.name=model.json --set model.weights=random:0 --set train.steps=100 "
        "--set train.batch_size=32",
    }
    return [f"{line} {own.get(line.split()[1], '')}".strip() for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="scenes, or a folder of photos")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=10_000)
    arguments = parser.parse_args()
    for name in ("photos", "test"):
        (arguments.out / name).mkdir(parents=True)
    if arguments.source == "scenes":
        write_scenes(arguments.out, arguments.pairs)
    else:
        write_photos(arguments.out, Path(arguments.source))
    whole = time.perf_counter()
    for command in list_commands():
        started = time.perf_counter()
        line = command.replace("raycomp", f"{sys.executable} -m raycomp", 1)
        ended = subprocess.run(line, shell=True, cwd=arguments.out, capture_output=True, text=True)
        print(f"{time.perf_counter() - started:7.1f} s  {command[:100]}", flush=True)
        if ended.returncode:
            print(ended.stderr[-500:])
            return
    print(f"{time.perf_counter() - whole:7.1f} s  in all")
    print(json.loads((arguments.out / "out/scored/run.json").read_text())["funnel"])


if __name__ == "__main__":
    main()
