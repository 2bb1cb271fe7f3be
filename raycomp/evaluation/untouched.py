"""Scores without the examples that the training samples contain, as a curation's marks name them.

``contaminated_by`` in marks/ names for each sample the test images and rows that it contains. An example is
touched if its image is such an image, or one of its texts is a text of such a row. In retrieval, touched
images are no targets either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.core.leaks import key_images, merge_keys
from raycomp.core.selection import parse_uids
from raycomp.core.uids import find_keys, to_keys
from raycomp.curation.choose import SUBSET
from raycomp.curation.config import DecontaminateConfig
from raycomp.curation.contamination import OPTION, fingerprint_index, read_index
from raycomp.curation.marks import list_marked
from raycomp.data.datacomp import read_subset
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.data.parquet import read_columns
from raycomp.data.paths import CHECKPOINT, WEIGHTS
from raycomp.data.runs import SUBSET_KINDS, identify, read_finished, read_run
from raycomp.evaluation.config import EvaluateConfig
from raycomp.evaluation.evaluation import Evaluation, Pictures, Texts
from raycomp.evaluation.outcomes import find_outcomes
from raycomp.evaluation.table import Line, choose_main, make_lines
from raycomp.language.sources import normalise_caption
from raycomp.table import Cell, Column, Estimate, Table, plain, write_cell
from raycomp.words import CONTAMINATED_BY, UID

TRAINED_ON = "trained_on"


@dataclass(frozen=True)
class Touched:
    """What the kept samples of a curation contain of test sets."""

    source: str
    """The folder of the curation or selection."""
    image_K: np.ndarray
    """Sorted keys of test images, see ``core.leaks``."""
    texts: Mapping[str, frozenset[str]]
    """Normalised texts by benchmark; a benchmark that the index lacks is absent."""
    identity: Mapping[str, str]
    """Identifies the curation and the index in a fingerprint."""

    def grade(self, evaluation: Evaluation, pictures: Pictures, texts: Texts) -> list[Line]:
        """Return the lines of the untouched examples; ValueError where too few are left."""
        own = self.texts[evaluation.name]
        bad = frozenset(text for text in texts.place if normalise_caption(text) in own)
        left = replace(texts, bad=texts.bad | bad)
        table = evaluation.grade(pictures.bar(self.image_K), left)
        return make_lines(evaluation.name, find_outcomes(table))


def find_touched(config: EvaluateConfig) -> tuple[Touched | None, list[str]]:
    """Return what the samples behind the model contain of test sets, None where it is unknown; and warnings.

    The samples are those of ``trained_on``; else those of the training that wrote the weights, where its
    input is a curation or selection that compared its samples with test sets. Raises as ``read_touched`` for
    ``trained_on``.
    """
    if config.trained_on is not None:
        return read_touched(config.trained_on), []
    start, found, _ = config.model.weights.partition(f"/{CHECKPOINT}/{WEIGHTS}")
    training = read_run(Folder(start)) if found else None
    source = training["config"].get("input", "") if training and training["kind"] == "train" else ""
    try:
        run = read_finished(source)
    except (ValueError, OSError):
        return None, []
    if not _find_index(run) or training is None or identify(run) != training["fingerprint"].get("input"):
        return None, []
    try:
        return read_touched(source), []
    except (ValueError, OSError) as error:
        return None, [f"{error}; touched examples are unknown"]


def read_touched(source: str) -> Touched:
    """Return what the samples that the run in ``source`` kept contain of test sets.

    Raises ValueError, naming the option, where the run is not a curation or selection that compared its
    samples with test sets.
    """
    try:
        run = _read_run(source)
        keys = to_keys(read_subset(check_results(Folder(source), run, SUBSET[0])["/".join(SUBSET)]))
        marked = [file.marks for file in list_marked(run, source)]
    except ValueError as error:
        raise ValueError(f"{TRAINED_ON}={source!r}: {error}") from error
    hits = {hit for marks in marked if marks is not None for hit in _list_hits(marks, keys)}
    index = read_index(_find_index(run))
    sha256s = [row["sha256"] for row in _take(index.images, "image", hits)]
    found: dict[str, set[str]] = {name: set() for name in index.benchmarks}
    for row in _take(index.texts, "row", hits):
        found[row["benchmark"]].add(row["text"])
    texts = {name: frozenset(own) for name, own in found.items()}
    identity = {TRAINED_ON: identify(run), **fingerprint_index(DecontaminateConfig(_find_index(run)))}
    return Touched(source, merge_keys([key_images(sha256s)]), texts, identity)


def _read_run(source: str) -> dict[str, Any]:
    run = read_finished(source)
    if run["kind"] not in SUBSET_KINDS:
        raise ValueError(f"holds {run['kind']}, must hold a curation or a selection")
    if not _find_index(run):
        raise ValueError(f"its samples were not compared with test sets; select again with {OPTION}")
    return run


def _find_index(run: Mapping[str, Any]) -> str:
    return run["config"].get("decontaminate", {}).get("index") or ""


def _list_hits(marks: str, keys: np.ndarray) -> set[tuple[str, str]]:
    """Return the benchmark and the row of all evidence on the kept rows of a marks file."""
    table = read_columns(marks, [UID, CONTAMINATED_BY])
    table = table.filter(table[CONTAMINATED_BY].is_valid())
    kept_N = find_keys(keys, to_keys(parse_uids(table[UID]))) >= 0
    found = table[CONTAMINATED_BY].filter(pa.array(kept_N)).to_pylist()
    return {(hit["benchmark"], hit["row"]) for hits in found for hit in hits}


def _take(table: pa.Table, name: str, hits: set[tuple[str, str]]) -> list[dict[str, Any]]:
    pairs = zip(table["benchmark"].to_pylist(), table[name].to_pylist(), strict=True)
    return table.filter(pa.array([pair in hits for pair in pairs], pa.bool_())).to_pylist()


@dataclass(frozen=True)
class Untouched:
    """The scores of the untouched examples."""

    source: str
    lines: Sequence[Line]
    warnings: Sequence[str]
    """A line for each benchmark that has no such score."""

    def describe(self, every: Sequence[Line]) -> list[str]:
        """Return the lines that a command prints; ``every`` are the scores of all examples."""
        said = []
        for line, whole in self._pair(every):
            value = plain(write_cell(Estimate.of(line)))
            said.append(
                f"{line.benchmark}: {line.metric}, {line.split} {value} on the {line.n:,} of {whole.n:,} "
                "untouched examples"
            )
        return [*said, *self.warnings]

    def report(self, every: Sequence[Line]) -> Table:
        """Return a table with the scores of all examples and those of untouched ones."""
        rows: list[tuple[Cell, ...]] = [
            (f"{line.benchmark}: {line.metric}", line.split, Estimate.of(whole), Estimate.of(line),
             whole.n, whole.n - line.n)
            for line, whole in self._pair(every)
        ]  # fmt: skip
        columns = ("Score", "split", Column("all examples"), Column("untouched"), "n", "touched")
        note = (
            f"Touched: the image or a text is among the samples that {self.source} kept, by contaminated_by "
            "in its marks. In retrieval, touched images are no targets either."
        )
        return Table("All examples and untouched ones", columns, rows, note)

    def _pair(self, every: Sequence[Line]) -> list[tuple[Line, Line]]:
        whole = {(line.benchmark, line.metric, line.split): line for line in choose_main(every)}
        return [(line, whole[line.benchmark, line.metric, line.split]) for line in choose_main(self.lines)]


def grade_untouched(
    touched: Touched, evaluations: Sequence[Evaluation], pictures: Pictures, texts: Texts
) -> Untouched:
    """Return the scores of the untouched examples of all benchmarks."""
    lines: list[Line] = []
    warnings = []
    for evaluation in evaluations:
        if evaluation.name not in touched.texts:
            said = f"the index of {touched.source} lacks it, so its touched examples are unknown"
            warnings.append(f"{evaluation.name}: {said}")
            continue
        try:
            lines += touched.grade(evaluation, pictures, texts)
        except ValueError as error:
            warnings.append(f"{evaluation.name}: has no score of untouched examples ({error})")
    return Untouched(touched.source, lines, warnings)
