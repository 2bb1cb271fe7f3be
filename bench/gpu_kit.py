"""What only a GPU can show, in one command on a machine that has no package index.

    make gpu-kit                               # where spaCy is: writes out/gpu_kit/
    python -m bench.gpu_kit run --out OUT      # in a copy of that folder; on CPUs with --device cpu --small

There: Python 3.12 with torch, transformers, pyarrow, pillow, numpy and pytest. The kit has open_clip and what
it needs, this source, captions parsed and tokenized, and the parses that tests need; pixels and weights are
random. Where torchvision, scipy or spaCy are missing, ``stand_in`` replaces the names that are needed.

OUT/gpu_kit.csv has a line for each result of a measurement, for each test with the mark gpu and for each
failure; it is written after each. Measurements follow one another in a process of their group. One that
fails, exceeds its limit or ends the process is a line with its error; the next one runs, in a new process if
need be. What libraries and pytest print is in OUT/gpu_kit.log. ``ratio``: how many times as fast as
``baseline``, both in turn in one process; of memory, the part of the baseline's. ``seconds``: since the
measurement started; of a test, its own.
"""

import argparse
import csv
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from math import nan
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
WHEELS = ("open_clip_torch", "ftfy", "wcwidth", "py3langid")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
CAPTIONS = "data/flickr8k_800/captions.jsonl"
TEXTS, PARSES = "texts.arrow", "parses.json"
COLUMNS = "what option value unit ratio baseline seconds error device torch".split()

# Seconds that a process may take to import everything.
START_S = 150
Add = Callable[[dict[str, Any]], None]

WIDTHS = (32, 64, 128, 256)
ALL = {"overlap": True, "pass_size": 256, "text_widths": WIDTHS, "graph": True, "attention": "flash"}
# Options of ScorerConfig; precision is bf16 unless they name it.
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "overlap": {"overlap": True},
    "pass_size=256": {"pass_size": 256},
    "text_widths": {"text_widths": WIDTHS},
    **{f"attention={name}": {"attention": name} for name in ("flash", "efficient", "cudnn", "math")},
    "graph": {"graph": True},
    "all but compile": ALL,
    "all but compile, attention=efficient": ALL | {"attention": "efficient"},
    "all but compile, attention=cudnn": ALL | {"attention": "cudnn"},
    "overlap and graph": {"overlap": True, "graph": True},
    "overlap, graph, pass_size=256": {"overlap": True, "graph": True, "pass_size": 256},
    "precision=tf32": {"precision": "tf32"},
    "precision=fp32": {"precision": "fp32"},
    "compile": {"compile": True},
    "overlap and compile": {"overlap": True, "compile": True},
    "all": ALL | {"compile": True},
}
GROUPS = ("scoring", "training", "tests", "compiling")
OF_IMAGES = {"pass_size", "compile", "graph"}
# Loss and pairs; with negclip each pair has an alternative pair, so there are twice as many images.
TRAININGS = {
    "clip, 256 pairs": ("clip", 256),
    "clip, 1024 pairs": ("clip", 1024),
    "negclip, 256 pairs": ("negclip", 256),
}
ALIGNMENT, PAS, TRAINING, STOCK, TESTS = "alignment", "PAS", "training step", "open_clip", "tests"
CUT = "open_clip, texts sorted and cut to a batch's longest"
CEILING, PRODUCTS = "matmul", "products with the towers' weights"
BUSY = "GPU at work"
# Options of alignment, alignment by open_clip, options of PAS: what a profile takes apart.
PROFILED = ("default", "attention=flash", "overlap and graph", STOCK, "PAS, default")


class Measurement(NamedTuple):
    """One of the plan; those of a group share a process."""

    group: str
    what: str
    option: str
    limit_s: float


class End(NamedTuple):
    """How a measurement ended, and whether its process can do the next."""

    error: str
    can_follow: bool
    seconds: float


def make_plan() -> list[Measurement]:
    """Return all measurements in order: what takes long, and is needed least, comes last."""
    plan = [Measurement("scoring", CEILING, name, 60) for name in ("bf16", "fp16", "tf32", "fp32")]
    plan += [Measurement("scoring", PRODUCTS, "both", 60), Measurement("scoring", STOCK, "best batch", 60)]
    compiled = [name for name, more in OPTIONS.items() if "compile" in more]
    plan += [Measurement("scoring", ALIGNMENT, name, 60) for name in OPTIONS if name not in compiled]
    of_texts = [name for name, more in OPTIONS.items() if not more.keys() & (OF_IMAGES | {"precision"})]
    plan += [Measurement("scoring", PAS, name, 60) for name in (*of_texts, "all", CUT)]
    plan += [Measurement("scoring", BUSY, name, 60) for name in PROFILED]
    plan += [Measurement("training", TRAINING, name, 90) for name in TRAININGS]
    plan += [Measurement("tests", TESTS, str(path), 120) for path in find_tests()]
    return plan + [Measurement("compiling", ALIGNMENT, name, 200) for name in compiled]


def find_tests() -> list[Path]:
    """Return the files with tests that have the mark gpu."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path.relative_to(ROOT) for path in files if "mark.gpu" in path.read_text("utf-8")]


def pack(shared: Path, out: Path, wheels: list[str]) -> None:
    """Write the kit: wheels, source, texts, parses."""
    shutil.rmtree(out, ignore_errors=True)
    platforms = [part for name in PLATFORMS for part in ("--platform", name)]
    command = f"{sys.executable} -m pip download --quiet --disable-pip-version-check --no-deps".split()
    command += "--only-binary=:all: --python-version 3.12 --implementation cp".split() + platforms
    command += ["--constraint", str(ROOT / "constraints.txt"), "--dest", str(out / "wheels"), *wheels]
    subprocess.run(command, check=True)
    for folder in ("raycomp", "lab", "tests", "bench"):
        skipped = shutil.ignore_patterns("__pycache__", "results", "peers", "*.md", "parser")
        shutil.copytree(ROOT / folder, out / folder, ignore=skipped)
    shutil.copy(ROOT / "pyproject.toml", out)
    write_texts(shared, out / TEXTS)
    record_parses(out / PARSES)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size / 1e6:.1f} MB; wheels: {', '.join(sorted(p.name for p in out.glob('wheels/*')))}")


def write_texts(shared: Path, out: Path) -> None:
    """Write the captions that have phrases, parsed, with their counterfactuals."""
    import pyarrow as pa

    from raycomp.config import ParserConfig, ScorerConfig
    from raycomp.curation.config import AttributeConfig, NonceConfig
    from raycomp.curation.score.stages import parse
    from raycomp.words import CAPTION, OK, STATUS, UID

    lines = (shared / CAPTIONS).read_text("utf-8").splitlines()
    captions = [caption for line in lines for caption in json.loads(line)["captions"]]
    columns = {CAPTION: captions, UID: [str(i) for i in range(len(captions))], STATUS: [OK] * len(captions)}
    configs = ParserConfig(), NonceConfig(), AttributeConfig(), ScorerConfig(weights="random:0")
    table = parse(pa.table(columns), *configs)
    table = table.filter(pa.array([status == OK for status in table[STATUS].to_pylist()]))
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(out, table.schema, options=options) as file:
        file.write_table(table)


def record_parses(out: Path) -> None:
    """Write the phrases of the captions that tests of a GPU parse."""
    from raycomp.models.parser import load_parser
    from tests.corpus import scenes
    from tests.curation.test_gpu import NUM

    captions = [members["txt"].decode() for members in scenes(NUM, 0)]
    out.write_text(json.dumps(dict(zip(captions, load_parser().parse(captions), strict=True))))


class RecordedParser:
    """Stands for ``Parser`` where spaCy is missing: the phrases that it found before."""

    def __init__(self, path: Path):
        self.phrases = json.loads(path.read_text())

    def parse_content(self, captions: Sequence[str], with_content: bool) -> list[tuple[list, list]]:
        """Return the phrases of recorded captions."""
        from raycomp.language.phrases import Phrase

        assert not with_content
        return [([Phrase(*one) for one in self.phrases[caption]], []) for caption in captions]


class AbsentClass(type):
    """The class of a class that is named but not used."""

    def __getattr__(cls, name: str) -> str:
        return name


class AbsentModule(ModuleType):
    """A module whose names are imported but not used."""

    def __init__(self, name: str):
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or AbsentClass(name, (), {})


def stand_in() -> None:
    """Replace the libraries that are missing here.

    open_clip imports torchvision for transforms, which the kit's pixels do not need. Tests hash pictures by
    scipy's cosine transform and parse captions with spaCy: the same numbers, and recorded parses.
    """
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # of another torch it fails at torchvision::nms
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("", ".transforms", ".transforms.functional", ".ops", ".ops.misc"):
            sys.modules[f"torchvision{name}"] = AbsentModule(f"torchvision{name}")
    if find_spec("scipy") is None:
        sys.modules["scipy.fft"] = fft = ModuleType("scipy.fft")
        vars(fft)["dctn"] = transform_cosine
    if (ROOT / PARSES).exists():
        from raycomp.curation.score import stages

        vars(stages)["load_parser"] = lambda name: RecordedParser(ROOT / PARSES)


def transform_cosine(x_NN: Any) -> Any:
    """Return the two-dimensional DCT-II of a square picture, unnormalised as scipy.fft.dctn has it."""
    import numpy as np

    n_N = np.arange(len(x_NN))
    basis_NN = 2 * np.cos(np.pi * np.outer(n_N, 2 * n_N + 1) / (2 * len(x_NN)))
    return basis_NN @ x_NN @ basis_NN.T


def work(results: Connection, args: argparse.Namespace, plan: list[Measurement]) -> None:
    """Send rows, the device first, and the end of each measurement."""
    os.setsid()
    with args.log.open("ab", 0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    def start() -> None:
        nonlocal bench
        stand_in()
        from bench.gpu_measures import Bench

        bench = Bench(ROOT / TEXTS, args.device, args.small)
        results.send(bench.describe())

    bench: Any = None
    for one in (None, *plan):
        started = time.monotonic()
        try:
            if one:
                bench.measure(one.what, one.option, results.send)
            else:
                start()
            end = End("", True, 0)
        except Exception as error:
            traceback.print_exc()
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            # An option that is refused leaves the process as it was.
            can_follow = one is not None and isinstance(error, ValueError)
            end = End(said, can_follow, time.monotonic() - started)
        results.send(end)
        if not end.can_follow:
            return


def measure_all(args: argparse.Namespace, add: Callable[[dict[str, Any]], None]) -> None:
    """Run the plan, a process after the other; pass on each row and each failure."""
    plan = [one for one in make_plan() if one.group in args.groups]
    ends = time.monotonic() + args.limit_s
    while plan and time.monotonic() < ends:
        group = [one for one in plan if one.group == plan[0].group]
        results, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(target=work, args=(theirs, args, group))
        process.start()
        theirs.close()
        try:
            done = take_rows(results, group, ends, add)
            process.join(5)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # compilers too
            process.kill()
            process.join()
        plan = plan[done:]
    for one in plan:
        add({"what": one.what, "option": one.option, "error": f"not run: {args.limit_s:.0f} s have passed"})


def take_rows(results: Connection, group: list[Measurement], ends: float, add: Add) -> int:
    """Pass on the rows of a process until it ends or fails; return how many of its measurements are done."""
    shared: dict[str, Any] = {}
    end = take_until_end(results, min(START_S, ends - time.monotonic()), shared.update)
    if end.error:
        for one in group:
            add({"what": one.what, "option": one.option, "error": f"its process did not start: {end.error}"})
        return len(group)
    for number, one in enumerate(group, 1):
        limit_s = max(0, min(one.limit_s, ends - time.monotonic()))
        end = take_until_end(results, limit_s, lambda row: add(shared | row))
        if end.error:
            add(shared | {"what": one.what, "option": one.option, **end._asdict()})
        if not end.can_follow:
            return number
    return len(group)


def take_until_end(results: Connection, limit_s: float, send: Add) -> End:
    """Pass on rows until a measurement ends; return its end."""
    started = time.monotonic()
    while results.poll(max(0, started + limit_s - time.monotonic())):
        try:
            message = results.recv()
        except EOFError:
            return End("its process ended, see gpu_kit.log", False, time.monotonic() - started)
        if isinstance(message, End):
            return message
        send(message)
    return End(f"exceeded its limit of {limit_s:.0f} s", False, limit_s)


def run(args: argparse.Namespace) -> None:
    """Measure everything, keep the csv up to date, print the table."""
    args.out.mkdir(parents=True, exist_ok=True)
    args.log = args.out / "gpu_kit.log"
    rows: list[dict[str, Any]] = []
    with (args.out / "gpu_kit.csv").open("w", newline="") as file, tempfile.TemporaryDirectory() as folder:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()

        def add(row: dict[str, Any]) -> None:
            rows.append({name: show(row.get(name)) for name in COLUMNS})
            writer.writerow(rows[-1])
            file.flush()

        for wheel in sorted((ROOT / "wheels").glob("*.whl")):
            zipfile.ZipFile(wheel).extractall(folder)
        sys.path.append(folder)  # last: what is installed here comes first
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), folder])
        os.environ["RAYCOMP_CACHE"] = str(Path(folder, "cache"))
        if args.small:
            os.environ["OMP_NUM_THREADS"] = "1"  # threads on shared cores mostly wait for each other
        if args.device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        measure_all(args, add)
    print("\n".join([*render(rows), *judge(rows)]))


def show(value: Any) -> str:
    """Return a value for the table: numbers with three digits or more."""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return "" if value is None else str(value)


def render(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; tests that passed or were skipped are counted."""
    tests = Counter(
        row["value"] for row in rows if row["what"] == TESTS and row["value"] in ("passed", "skipped")
    )
    for device, version in sorted({(row["device"], row["torch"]) for row in rows if row["torch"]}):
        yield f"{device}, torch {version}"
    yield f"tests: {tests['passed']} passed, {tests['skipped']} skipped; the rest:"
    shown = COLUMNS[: COLUMNS.index("device")]
    yield f"\n| {' | '.join(shown)} |\n|{' --- |' * len(shown)}"
    for row in rows:
        if row["what"] != TESTS or row["value"] not in tests:
            yield f"| {' | '.join(row[name].replace('|', '/') for name in shown)} |"


def judge(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the goals of scoring, with the fastest options, where their results are there."""

    def pick(what: str) -> tuple[float, str]:
        rates = [row for row in rows if row["what"] == what and row["unit"].endswith("s/s")]
        found = [(float(row["value"]), row["option"]) for row in rates if row["option"] != CUT]
        return max(found, default=(nan, "no result"))

    (align, by), (caption, by_pas) = (pick(what) for what in (ALIGNMENT, PAS))
    over_stock, over_products = (align / pick(what)[0] for what in (STOCK, PRODUCTS))
    yield f"goal: alignment ({by}) over open_clip, at least 1.0: {over_stock:.2f}"
    yield f"goal: alignment ({by}) over the products with the weights, at least 0.5: {over_products:.2f}"
    yield f"goal: PAS of a caption ({by_pas}) over the time of a pair, at most 0.35: {align / caption:.2f}"


def main() -> None:
    """Pack, or run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    packed = commands.add_parser("pack")
    packed.add_argument("shared", type=Path)
    packed.add_argument("out", type=Path)
    packed.add_argument("--wheels", nargs="+", default=WHEELS)
    ran = commands.add_parser("run")
    ran.add_argument("--out", type=Path, required=True)
    ran.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    ran.add_argument("--small", action="store_true", help="a tiny model and few rows")
    ran.add_argument("--groups", nargs="+", default=GROUPS, choices=GROUPS)
    ran.add_argument("--limit-s", type=float, default=510, help="of all, in seconds")
    args = parser.parse_args()
    if args.command == "pack":
        if not (args.shared / CAPTIONS).is_file():
            parser.error(f"shared={args.shared}: has no file {CAPTIONS}; name a folder that has it")
        pack(args.shared, args.out, args.wheels)
    else:
        run(args)


if __name__ == "__main__":
    main()
