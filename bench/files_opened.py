"""What one must open to follow a command: the files of raycomp/ of which a function runs.

    python -m bench.files_opened [curate train evaluate] [--csv bench/results/files_opened.csv]

Each command runs once on the smallest input: local curation of a folder of ten photos; training with two
ranks on Ray; evaluation of one benchmark, locally. A file counts where a function of it ran in any process
(the driver, its children, Ray's workers, the ranks), but not on behalf of an import: what decorators and
tables call while a module is imported does not count, nor do module code, class bodies, lambdas, and the
methods that dataclasses generate. Files are only counted, so the numbers do not depend on where they lie.
Prints the count for each command; writes a line for each file with its functions that ran, an inner one
under the name of the outermost function or method.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
NUM = 10
MODEL = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1},
}
SPLITS = "add_att add_obj replace_att replace_obj replace_rel swap_att swap_obj".split()
# Words of each command line, in the folder that ``write_inputs`` fills.
COMMANDS = {
    "curate": "input=photos scorer.model=model.json scorer.weights=random:0 cluster.executor=local",
    "train": "input=photos model.name=model.json model.weights=random:0 train.batch_size=4 train.steps=4"
    " train.workers=2 cluster.executor=ray cluster.num_cpus=4",
    "evaluate": "benchmarks=sugarcrepe sugarcrepe.annotations=crepe sugarcrepe.images=photos"
    " model.name=model.json model.weights=random:0 cluster.executor=local",
}


def write_inputs(folder: Path) -> None:
    """Write ten photos with captions.jsonl, SugarCrepe's seven files about them, and a tiny architecture."""
    for name in ("photos", "crepe"):
        (folder / name).mkdir()
    colors, rows = "red green blue yellow white black orange purple gray brown".split(), []
    for i, color in enumerate(colors):
        Image.effect_noise((64, 48), 40 + i).convert("RGB").save(folder / f"photos/{i}.jpg")
        rows.append({"image": f"{i}.jpg", "captions": [f"a {color} dog runs after a ball on the grass"]})
    (folder / "photos/captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for split in SPLITS:
        pairs = {
            str(i): {
                "filename": row["image"],
                "caption": row["captions"][0],
                "negative_caption": row["captions"][0].replace("dog", "cat"),
            }
            for i, row in enumerate(rows)
        }
        (folder / f"crepe/{split}.json").write_text(json.dumps(pairs))
    (folder / "model.json").write_text(json.dumps(MODEL))


def list_opened(name: str) -> dict[str, set[str]]:
    """Run a command; return the functions that ran in each file. Raises CalledProcessError where it fails."""
    with tempfile.TemporaryDirectory(prefix="opened-") as text:
        folder = Path(text)
        write_inputs(folder)
        (folder / "opened").mkdir()
        paths = [str(ROOT / "bench/opened"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        env = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "FILES_OPENED": str(folder / "opened")}
        line = [sys.executable, "-m", "raycomp", name, "--out", "out"]
        for option in COMMANDS[name].split():
            line += ["--set", option]
        subprocess.run(line, cwd=folder, env=os.environ | env, check=True, stdout=sys.stderr)
        opened: dict[str, set[str]] = defaultdict(set)
        for file in (folder / "opened").iterdir():
            for note in file.read_text().splitlines():
                path, function = note.split("\t")
                opened[path].add(function)
        return opened


def main() -> None:
    """Run the commands that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"{', '.join(COMMANDS)}; none: all")
    parser.add_argument("--csv", type=Path, default=ROOT / "bench/results/files_opened.csv")
    asked = parser.parse_args()
    rows = []
    for name in asked.commands or COMMANDS:
        opened = list_opened(name)
        num_functions = sum(map(len, opened.values()))
        print(f"{name}: {len(opened)} files, {num_functions} functions", flush=True)
        rows += [(name, file, " ".join(sorted(opened[file]))) for file in sorted(opened)]
    with asked.csv.open("w", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows([("scenario", "file", "functions"), *rows])


if __name__ == "__main__":
    main()
