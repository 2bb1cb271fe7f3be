"""From the options of an evaluation to its benchmarks: reads annotations, finds images, checks everything."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raycomp.config.commands import find_file, is_own, name_own
from raycomp.config.options import check_choice
from raycomp.data.files import Folder, size_files
from raycomp.data.inputs import check_output, fingerprint_shards, list_times
from raycomp.data.runs import digest
from raycomp.evaluation.benchmarks.choice import Choice
from raycomp.evaluation.benchmarks.published import NAMES, TAGGED, read_benchmark, read_own
from raycomp.evaluation.choices import ChoiceEvaluation, Evaluation, open_controls
from raycomp.evaluation.classification import open_linear_probe, open_zeroshot
from raycomp.evaluation.config import BenchmarkConfig, EvaluateConfig
from raycomp.evaluation.embed import find_images
from raycomp.evaluation.retrieval import open_retrieval
from raycomp.models.parser import load_parser

Say = Callable[[str], None]
# Benchmarks that are no choices between captions, by the name of their options.
_OTHERS: dict[str, Callable[[EvaluateConfig], Evaluation]] = {
    "zeroshot": lambda config: open_zeroshot(config.zeroshot, config.columns),
    "retrieval": lambda config: open_retrieval(config.retrieval, columns=config.columns),
    "linear_probe": lambda config: open_linear_probe(config.linear_probe, config.overlap, config.columns),
}
# Options whose folders are read whole, with any content.
_TAKES_ALL = (
    ("vl_checklist", "annotations"),
    ("zeroshot", "input"),
    ("retrieval", "input"),
    ("linear_probe", "train"),
    ("linear_probe", "test"),
)


@dataclass(frozen=True)
class Opened:
    """A benchmark, and the content of its files."""

    evaluation: Evaluation
    fingerprint: str
    """Fingerprint of all that was read and found."""
    choices: tuple[Choice, ...] = ()
    """Rows of a benchmark, defective ones included."""
    warnings: tuple[str, ...] = ()


def check_outside(config: EvaluateConfig, out: str) -> None:
    """Raise ValueError where the results in the folder ``out`` would be read as a part of a benchmark."""
    for name, field in _TAKES_ALL:
        if name in config.benchmarks and (spec := getattr(getattr(config, name), field)):
            check_output(spec, out, f"{name}.{field}")


def open_evaluations(config: EvaluateConfig, say: Say = print) -> list[Opened]:
    """Read and check the benchmarks in ``config.benchmarks``. Raises ValueError for errors of the user."""
    known = [*NAMES, *_OTHERS]
    if not config.benchmarks:
        raise ValueError(f"benchmarks: must name at least one of {', '.join(known)}")
    for name in config.benchmarks:
        if not is_own(name):
            check_choice("benchmarks", name, known, ", or FILE.py:NAME")
        elif name_own(name) in known:
            raise ValueError(f"benchmarks={name}: must have another name than {', '.join(known)}")
    return [
        _open_other(name, config) if name in _OTHERS else _open_choices(name, config, say)
        for name in config.benchmarks
    ]


def _open_other(name: str, config: EvaluateConfig) -> Opened:
    evaluation = _OTHERS[name](config)
    read = digest([repr(evaluation), fingerprint_shards(list(evaluation.shards)), _size_pictures(evaluation)])
    return Opened(evaluation, read, warnings=getattr(evaluation, "warnings", ()))


def _open_choices(named: str, config: EvaluateConfig, say: Say) -> Opened:
    name, options = name_own(named), find_options(named, config)
    if is_own(named):
        group, where = "own", f"benchmarks={named}"
        choices = read_own(named, Folder(options.annotations or "."), config.rows)
    elif options.annotations:
        group, where = name, f"{name}.annotations"
        tag: Any = load_parser(config.parser.name).tokens if name in TAGGED else None
        choices = read_benchmark(name, Folder(options.annotations), config.rows, tag, config.seed)
    else:
        raise ValueError(f"{name}.annotations: must name the folder of its annotation files")
    if not choices:
        raise ValueError(f"{where}: holds no row")
    place = options.images or options.annotations or "."
    try:
        found = find_images(Folder(place), [choice.image for choice in choices])
    except ValueError as error:
        hint = "" if options.images else f"; it is the folder of annotations by default; set --{group}.images"
        raise ValueError(f"{group}.images={place!r}: {error}{hint}") from error
    names = sorted({choice.image for choice in choices})
    texts = {text for choice in choices for text in choice.positives + choice.negatives}
    text_only = open_controls(config.controls, texts, names, say)
    uris, ambiguous = found.uris, found.ambiguous
    evaluation = ChoiceEvaluation(name, choices, uris, text_only, config.seed, ambiguous=ambiguous)
    read = digest([[repr(choice) for choice in choices], sorted(uris), _size_pictures(evaluation)])
    warnings = found.warn_by_base_name(name)
    without = {choice.split: 0 for choice in choices if not choice.kind}
    if name == "vl_checklist" and without:
        said = f"{name}: {len(without)} splits, such as {next(iter(without))}, have no aspect"
        warnings.append(f"{said}: none of their folders has object, attribute or relation in its name")
    return Opened(evaluation, read, tuple(choices), tuple(warnings))


def _size_pictures(evaluation: Evaluation) -> list[tuple[str, int | None]]:
    return size_files(sorted({picture.uri for picture in evaluation.pictures}))


def list_evaluation_times(opened: Sequence[Opened]) -> list[int | None]:
    """Return when the files of benchmarks were last modified, in ns."""
    shards = dict.fromkeys(shard for one in opened for shard in one.evaluation.shards)
    return list_times(shards, sorted({picture.uri for one in opened for picture in one.evaluation.pictures}))


def find_options(name: str, config: EvaluateConfig) -> BenchmarkConfig:
    """Return the options of a benchmark. Annotations of the user's own are next to its file by default."""
    if not is_own(name):
        return getattr(config, name)
    return replace(config.own, annotations=config.own.annotations or os.path.dirname(find_file(name)) or ".")
