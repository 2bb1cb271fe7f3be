"""What processes cost before they do any work: CPU seconds and peak memory.

    python -m bench.start_up [--checkout DIR] [--rounds 3] [--only REGEX] [--out bench/results/start_up.csv]
    python -m bench.start_up --deferrals MODULE ... [--rounds 3] [--out bench/results/deferrals.csv]

Runs child processes and takes the kernel's figures of each: CPU seconds (user and system) and peak memory,
the median of ROUNDS. Measured are imports of libraries, a scorer, a decode and a parse worker, two refusals
of every command (a wrong path, an option out of its range) and ``raycomp select`` on a tiny curation.
With ``--checkout`` the same is measured with PYTHONPATH=DIR first ("before"), and this checkout is "after".
``--only`` keeps the measures whose names match a regular expression, and
``import torch``. Ratios are of the same run. The first round caches bytecode, so one round alone is too slow.
With ``--deferrals`` commands run on the local executor with all imports that raycomp defers
(``raycomp/models/deferred.py``), without those of each MODULE (A+B: of both), and without any, in turn.
"""

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from raycomp.models.deferred import LOADERS
from raycomp.table import Column, Table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
TINY = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}
# As a process that raycomp starts.
_INSTALL = "from raycomp.models import deferred\ndeferred.install()\n"
# Finds modules and names in either layout of the package.
_FIND = """
import importlib
from pathlib import Path
def find(*places):
    import raycomp
    root = Path(raycomp.__path__[0])
    for place in places:
        file = root.joinpath(*place.split(".")[1:])
        if file.with_suffix(".py").is_file() or file.is_dir():
            return importlib.import_module(place)
def get(name):
    config = find("raycomp.config")
    return getattr(config, name, None) or getattr(find("raycomp.curation.config"), name)
"""
_ROW = """
import io
import pyarrow as pa
from PIL import Image
from raycomp.config import ScorerConfig
from raycomp.schema import SAMPLE_SCHEMA
from raycomp.words import CAPTION, IMAGE, STATUS, UID
file = io.BytesIO()
Image.new("RGB", (320, 240), "red").save(file, "JPEG")
known = {CAPTION: "a red cube on a table", IMAGE: file.getvalue(), STATUS: "ok", UID: "0" * 32}
row = {name: known.get(name) for name in SAMPLE_SCHEMA.names}
table = pa.Table.from_pylist([row], schema=SAMPLE_SCHEMA)
scorer = ScorerConfig(model="ViT-B-32", weights="random:0")
"""
_DECODE = (
    "import ray.data\n"
    + _INSTALL
    + _FIND
    + "prepare = find('raycomp.curation.score.stages', 'raycomp.loops.curate.prepare').prepare\n"
    + _ROW
    + """
from raycomp.models.images import ImageSpec
from raycomp.models.spec import ScorerSpec
spec = ScorerSpec(ImageSpec(224, 224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), 77, 512, True)
assert prepare(table, scorer, spec, 1_000_000)["status"].to_pylist() == ["ok"]
"""
)
_PARSE = (
    _INSTALL
    + _FIND
    + "parse = find('raycomp.curation.score.stages', 'raycomp.loops.curate.parse').parse\n"
    + _ROW
    + """
configs = [get(name)() for name in ("ParserConfig", "NonceConfig", "AttributeConfig")]
assert parse(table.append_column("alignment", pa.array([0.3])), *configs, scorer)["phrases"].to_pylist()[0]
"""
)
_SCORER = (
    "import ray.data\n"
    + _INSTALL
    + _FIND
    + "import torch\n"
    + "find('raycomp.curation.score.stages', 'raycomp.loops.curate.align')\n"
    + "find('raycomp.curation.score.stages', 'raycomp.loops.curate.attribute')\n"
)
BASELINE = "import torch"
IMPORTS = {
    BASELINE: BASELINE,
    "import open_clip": "import open_clip",
    "import open_clip, deferred": f"{_INSTALL}import open_clip",
    "scorer: ray.data, align, attribute": _SCORER,
    "decode worker: an image, a caption": _DECODE,
    "parse worker: a caption": _PARSE,
}
# By command what comes before --out: refused by a path, and by the range of an option.
REFUSED = {
    "curate": (["--set", "input=nowhere"], ["--set", "align.keep=2"]),
    "plan": (["--set", "input=nowhere"], ["--set", "align.keep=2"]),
    "select": (["nowhere"], ["CURATED", "--set", "align.keep=2"]),
    "negatives": (["--set", "input=nowhere"], ["--set", "max_bad_fraction=2"]),
    "train": (["--set", "input=nowhere"], ["--set", "train.batch_size=0"]),
    "publish": (["nowhere"], ["CURATED"]),
    "evaluate": (
        ["--set", "benchmarks=sugarcrepe", "--set", "sugarcrepe.annotations=nowhere"],
        ["--set", "max_bad_fraction=2"],
    ),
    "continual": (["--set", "stream=nowhere"], ["--set", "seeds=0"]),
    "compare": (["nowhere", "nowhere"], ["CURATED", "CURATED"]),
    "show": (["nowhere"], ["nowhere/at/all"]),
    "explain": (["nowhere", "0" * 32], ["CURATED", "0" * 32]),
    "probe overlap": (["--set", "input=nowhere"], ["--set", "sample=0"]),
    "sweep": (
        [
            "--set",
            "evaluate.benchmarks=sugarcrepe",
            "--set",
            "curated=nowhere",
            "--space",
            "align.keep=grid(0.3,0.5)",
        ],
        ["--space", "align.keep=grid(2)"],
    ),
}
_NO_OUT = ("plan", "show", "explain")


class Spent(NamedTuple):
    """What a process took."""

    cpu_s: float
    peak_mb: float


class Checkout:
    """A checkout of raycomp, whose processes are measured in a folder of their own."""

    def __init__(self, root: Path, folder: Path, rounds: int, only: str):
        self.folder, self.rounds, self.only = folder, rounds, only
        (folder / "empty").mkdir(parents=True)
        (folder / "file").write_text("a file")
        (folder / "tiny.json").write_text(json.dumps(TINY))
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPATH": str(root),
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
            "RAYCOMP_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }

    def run(self, arguments: list[str], code: int = 0) -> Spent:
        """Run Python with these arguments; return what it took. It must exit with ``code``."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.stderr
        said = process.stderr.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != code:
            raise RuntimeError(f"{arguments}: exit code {process.returncode}, {said[-500:]}")
        return Spent(used.ru_utime + used.ru_stime, used.ru_maxrss / 1000)

    def measure(self, arguments: list[str], code: int = 0) -> Spent:
        """Return the medians of ``rounds`` runs."""
        spent = [self.run(arguments, code) for _ in range(self.rounds)]
        return Spent(*map(statistics.median, zip(*spent, strict=True)))

    def measure_all(self) -> dict[str, Spent]:
        """Return what every measure took."""
        found = {}
        for name, code in IMPORTS.items():
            if name == BASELINE or re.search(self.only, name):
                found[name] = self.measure(["-c", code])
                print(f"{name}: {found[name].cpu_s:.2f} s", file=sys.stderr)
        curated = self._curate()
        for command, refusals in REFUSED.items():
            for kind, rest in zip(("path", "option"), refusals, strict=True):
                rest = [curated if one == "CURATED" else one for one in rest]
                is_without = command in _NO_OUT or "--out" in rest
                out = [] if is_without else ["--out", "out"]
                line = ["-m", "raycomp", *command.split(), *rest, *out]
                name = f"{command}, refused by {kind}"
                if not re.search(self.only, name):
                    continue
                found[name] = self.measure(line, code=2)
                print(f"{name}: {found[name].cpu_s:.2f} s", file=sys.stderr)
        if re.search(self.only, "select"):
            found["select"] = self._measure_select(curated)
        return found

    def _curate(self) -> str:
        """Make a curation of 40 scenes, without Ray where the checkout can."""
        code = (
            "from raycomp.data.samples import write_tar\nfrom lab.worlds.samples import world_shards\n"
            "for name, samples in world_shards(40, 0, 0, per_shard=20): write_tar(f'in/{name}', samples)"
        )
        self.run(["-c", _FIND + code.replace("from raycomp.data.samples import write_tar", _WRITE)])
        line = ["-m", "raycomp", "curate"]
        for option in ("input=in", "scorer.model=tiny.json", "scorer.weights=random:0", *self._local()):
            line += ["--set", option]
        self.run([*line, "--out", "curated"])
        return "curated"

    def _local(self) -> list[str]:
        try:
            code = "from raycomp.config import ClusterConfig; ClusterConfig(executor='local')"
            self.run(["-c", code])
        except RuntimeError:
            return []
        return ["cluster.executor=local"]

    def _measure_select(self, curated: str) -> Spent:
        spent = []
        for i in range(self.rounds):
            line = ["-m", "raycomp", "select", curated, "--set", "align.keep=0.6", "--out", f"selected-{i}"]
            spent.append(self.run([*line, *(one for option in self._local() for one in ("--set", option))]))
        return Spent(*map(statistics.median, zip(*spent, strict=True)))

    def measure_deferrals(self, modules: Sequence[str]) -> Table:
        """Return what processes take in addition where imports of modules are not deferred.

        Each of ``modules`` is measured alone; a plus sign joins modules that import the same library.
        """
        scorer = [f"--set={one}" for one in ("scorer.model=tiny.json", "scorer.weights=random:0")]
        model = [f"--set={one}" for one in ("model.name=tiny.json", "model.weights=random:0")]
        lines = {
            "curate --help": ["curate", "--help"],
            "curate": ["curate", "--set=input=in", *scorer, *_ON_LOCAL],
            "evaluate": [
                "evaluate",
                "--set=benchmarks=retrieval",
                "--set=retrieval.input=in",
                *model,
                *_ON_LOCAL,
            ],
        }
        variants = {"none": [], **{one: one.split("+") for one in modules}, "all": [*LOADERS]}
        self._curate()  # writes the shards
        spent: dict[tuple[str, str], list[float]] = {}
        for i in range(self.rounds + 1):
            for measure in (*_DEFERRING, *lines):
                for name, off in variants.items():
                    if not i and name not in ("none", "all"):
                        continue  # the first round only caches bytecode
                    then = _DEFERRING.get(measure)
                    if then is None:
                        out = [] if "--help" in lines[measure] else ["--out", f"{measure}-{i}-{name}"]
                        then = (
                            f"from raycomp.cli import main\nraise SystemExit(main({lines[measure] + out!r}))"
                        )
                    took = self.run(["-c", _WITHOUT.format(off=off) + then]).cpu_s
                    print(f"{i} {measure}, not deferred: {name}: {took:.2f} s", file=sys.stderr)
                    spent.setdefault((measure, name), []).extend([took] if i else [])
        median = {key: statistics.median(seconds) for key, seconds in spent.items()}
        rows = [(*key, self.rounds, median[key], median[key] - median[key[0], "none"]) for key in spent]
        seconds = (Column("CPU s", digits=2), Column("more than with all deferred", digits=2))
        return Table("", ("measure", "not deferred", "rounds", *seconds), rows)


_ON_LOCAL = ("--set=cluster.executor=local",)
_DEFERRING = {
    "import open_clip": "import open_clip",
    "parse a caption": "from raycomp.models.parser import load_parser\nload_parser().parse(['A dog runs.'])",
}
# Before the code of a process: all deferrals but those of some modules.
_WITHOUT = """
from raycomp.models import deferred
deferred.install()
for name in {off!r}:
    deferred.LOADERS.pop(name)
"""
_WRITE = "write_tar = find('raycomp.data.samples', 'raycomp.shards.tar').write_tar"
Row = tuple[str, float | None, float | None, float | None, float | None, float | None, float | None]
COLUMNS = (
    "measure",
    Column("before", "CPU s", 2),
    Column("after", "CPU s", 2),
    Column("ratio", digits=2),
    Column("after over import torch", digits=2),
    Column("memory before", "MB", 0),
    Column("memory after", "MB", 0),
)


def make_rows(before: dict[str, Spent] | None, after: dict[str, Spent]) -> list[Row]:
    """Return a row for each measure."""
    torch = after[BASELINE].cpu_s
    rows: list[Row] = []
    for name, own in after.items():
        old = before.get(name) if before else None
        ratio = own.cpu_s / old.cpu_s if old else None
        first, peak = (old.cpu_s, old.peak_mb) if old else (None, None)
        rows.append((name, first, own.cpu_s, ratio, own.cpu_s / torch, peak, own.peak_mb))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--checkout", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--deferrals", nargs="+", metavar="MODULE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        after = Checkout(ROOT, Path(folder, "after"), args.rounds, args.only)
        out = args.out or RESULTS / ("deferrals.csv" if args.deferrals else "start_up.csv")
        if args.deferrals:
            table = after.measure_deferrals(args.deferrals)
        else:
            known = args.checkout and Checkout(
                args.checkout.resolve(), Path(folder, "before"), args.rounds, args.only
            )
            before = known.measure_all() if known else None
            table = Table("", COLUMNS, make_rows(before, after.measure_all()))
    print(table.to_text())
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(one.name if isinstance(one, Column) else one for one in table.columns)
        writer.writerows([x if not isinstance(x, float) else round(x, 3) for x in row] for row in table.rows)


if __name__ == "__main__":
    main()
