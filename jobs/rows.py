"""The rows of a paper's table over seeds: select, train and evaluate each, then print the table.

Used by the files paper_*.py next to it. Each command writes into a folder of its own below OUT, and a
finished one is not repeated: the same line resumes a killed experiment, and tables with one OUT share its
curation and rows. All rows train for the same number of steps. In each seed they start from one file of
weights, OUT/start/SEED.
"""

import argparse
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import raycomp
from raycomp import CurateConfig, EvaluateConfig, NegativesConfig, TrainConfig, override_all

TABLES = Path(__file__).resolve().parent / "tables"
# Seconds of a step of 1,024 pairs, ViT-B/32, on one H100, without reading and decoding (bench/RESULTS.md).
_STEP_S = {"clip": 0.19, "negclip": 0.44}
DRAWN = "Drawn pairs and test sets: the figures show that every step runs, nothing of the paper's."
"""The note of a table in small."""


@dataclass(frozen=True)
class Row:
    """One row of a table: a subset, and how a model is trained on it."""

    select: Mapping[str, Any]
    """Options of ``raycomp select``, by path."""
    train: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``raycomp train`` in addition to those of the experiment."""
    negatives: str | None = None
    """Which of the experiment's negatives it trains with."""
    needs_images: bool = False
    """Whether it trains with an image of each negative."""


@dataclass(frozen=True)
class Experiment:
    """What the rows of an experiment share."""

    curate: CurateConfig
    train: TrainConfig
    evaluate: EvaluateConfig
    negatives: Mapping[str, NegativesConfig] = field(default_factory=dict)
    """By name. The input is set: every pair of the curation that could be scored."""
    before: Callable[[], object] = lambda: None
    """Writes the data, where they are drawn."""
    note: str = ""
    """Printed with the table."""
    find_images: Callable[[str, str], str | None] = lambda name, folder: None
    """Takes the name and the folder of negatives; returns the folder with their images, none = there is
    none: rows that need it are left out, and their figures are missing."""

    def is_ready(self) -> bool:
        """Whether the pairs to curate are there."""
        return "://" in self.curate.input or Path(self.curate.input).exists()


def run_table(experiment: Experiment, table: str, rows: Mapping[str, Row], seeds: int, out: str) -> None:
    """Run all rows over all seeds, and write the table into OUT/TABLE."""
    with step("data", out):
        experiment.before()
    with step("curated", out):
        curated = raycomp.curate(experiment.curate, f"{out}/curated").uri
    evaluated = []
    for name, row in rows.items():
        with step(f"{name}: selected", out):
            subset = select_row(curated, row, out)
            options = dict(row.train)
            if row.negatives:
                options["negatives"] = write_negatives(experiment, row.negatives, curated, out)
            images = None
            if row.negatives and row.needs_images:
                images = experiment.find_images(row.negatives, options["negatives"])
                options["negative_images"] = images
        if row.needs_images and images is None:
            print(f"{name}: left out, for there are no images of its negatives")
            continue
        for seed in range(seeds):
            folder = f"{out}/{name}/{seed}"
            with step(f"{name}, seed {seed}: trained", out):
                model = replace(experiment.train.model, weights=save_start(experiment.train, seed, out))
                config = replace(experiment.train, input=subset, model=model)
                trained = raycomp.train(
                    override_all(config, {**options, "train.seed": seed}), f"{folder}/trained"
                ).uri
            with step(f"{name}, seed {seed}: evaluated", out):
                scored = replace(experiment.evaluate.model, weights=trained)
                raycomp.evaluate(replace(experiment.evaluate, model=scored), f"{folder}/evaluated")
            evaluated.append(f"{name}={folder}/evaluated")
    write_table(evaluated, table, out, experiment.note)


def write_table(runs: Sequence[str], table: str, out: str, note: str) -> None:
    """Write the table of these runs, with the note, into OUT/TABLE."""
    layout = TABLES / f"{table}.csv"
    if note:
        noted = Path(out) / "layouts" / layout.name
        noted.parent.mkdir(exist_ok=True)
        noted.write_text(f"# {note}\n{layout.read_text(encoding='utf-8')}", encoding="utf-8")
        layout = noted
    shutil.rmtree(f"{out}/{table}", ignore_errors=True)  # of other seeds
    raycomp.compare(*runs, table=layout, out=f"{out}/{table}")


@contextmanager
def step(said: str, out: str) -> Iterator[None]:
    """Put what a command prints into OUT/log.txt, and print one line when it has ended."""
    Path(out).mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with open(f"{out}/log.txt", "a", encoding="utf-8") as log, redirect_stdout(log):
        yield
    print(f"{said} ({time.perf_counter() - started:,.0f} s)", flush=True)


def select_row(curated: str, row: Row, out: str) -> str:
    """Return the folder of the row's subset, named by its options: rows with equal ones share it."""
    said = "_".join(f"{path}-{value}" for path, value in row.select.items())
    return raycomp.select(curated, row.select, f"{out}/selected/{said}").uri


def write_negatives(experiment: Experiment, name: str, curated: str, out: str) -> str:
    """Return the folder of negatives of every scored pair: each row of the table needs some of them."""
    every = select_row(curated, Row({"select.rule": "full"}), out)
    return raycomp.negatives(replace(experiment.negatives[name], input=every), f"{out}/negatives/{name}").uri


def save_start(config: TrainConfig, seed: int, out: str) -> str:
    """Return the file of a seed's initial weights, of a seeded draw; it is written once."""
    import safetensors.torch

    from raycomp.models.clip import Clip

    path = Path(out) / "start" / f"{seed}.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        model = Clip(replace(config.model, weights=f"random:{seed}"), device="cpu").model
        state = {name: value.contiguous() for name, value in model.state_dict().items()}
        safetensors.torch.save_file(state, f"{path}.part")
        Path(f"{path}.part").rename(path)
    return str(path)


def describe(experiment: Experiment, table: str, rows: Mapping[str, Row], seeds: int) -> str:
    """Return what a table costs: its trainings, and their hours on one H100 where that was measured."""
    fit = experiment.train.train
    losses = [str(row.train.get("train.loss", fit.loss)) for row in rows.values()]
    steps = fit.steps or 0
    lines = [
        f"{table}: {len(rows)} rows x {seeds} seeds: {len(rows) * seeds} trainings of {steps:,} steps "
        f"x {fit.batch_size:,} pairs, {experiment.train.model.name}",
        f"rows: {', '.join(rows)}",
        f"pairs: {experiment.curate.input}" + ("" if experiment.is_ready() else " (not there yet)"),
    ]
    if experiment.train.model.name == "ViT-B-32" and fit.batch_size == 1024:
        known = [_STEP_S.get(loss, _STEP_S["negclip"]) for loss in losses]
        hours = sum(known) * seeds * steps / 3600
        lines.append(f"trainings: about {hours:,.0f} hours of one H100, where reading and decoding keep up")
        lines.append(f"disk: {0.6 * 3 * len(rows) * seeds:,.0f} GB of checkpoints and weights")
    return "\n".join(lines)


def main(
    text: str,
    tables: Mapping[str, tuple[Mapping[str, Row], int]],
    make: Callable[[str, str], Experiment],
    make_tiny: Callable[[str], Experiment],
    argv: Sequence[str] | None = None,
) -> None:
    """Parse the command line of a paper's file and run one of its tables.

    ``tables``: by name the rows and the number of seeds. ``make`` returns the experiment at the paper's size
    for a folder of data and a table, ``make_tiny`` a small one for the output folder.
    """

    def run(asked: argparse.Namespace) -> None:
        rows, seeds = tables[asked.table]
        seeds = asked.seeds or (2 if asked.tiny else seeds)
        experiment = make_tiny(asked.out) if asked.tiny else make(asked.data, asked.table)
        if asked.dry_run:
            print(describe(experiment, asked.table, rows, seeds))
        else:
            run_table(experiment, asked.table, rows, seeds, asked.out)

    run_command(text, tables, run, argv)


def run_command(
    text: str,
    tables: Iterable[str],
    run: Callable[[argparse.Namespace], None],
    argv: Sequence[str] | None = None,
) -> None:
    """Parse the command line of a paper's file, and ``run`` what it asks for or refuse it in one line."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=list(tables))
    parser.add_argument("--out", required=True, help="folder of all runs; the table goes to OUT/TABLE")
    parser.add_argument("--data", default="data", help="folder of the downloads")
    tiny = "drawn pairs and a tiny model: minutes on two cores"
    parser.add_argument("--tiny", action="store_true", help=tiny)
    parser.add_argument("--seeds", type=int, help="trainings of each row")
    parser.add_argument("--dry-run", action="store_true", help="print the trainings and their cost")
    asked, started = parser.parse_args(argv), time.perf_counter()
    try:
        run(asked)
    except ValueError as error:
        parser.error(" ".join(str(error).split()))
    if asked.dry_run:
        return
    print(f"{asked.table}: {time.perf_counter() - started:,.0f} s; {asked.out}/{asked.table}/report.html")
