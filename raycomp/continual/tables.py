"""The tables of continual learning: what each method comes to, against frozen and the whole method, and all
figures as CSV."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raycomp.continual.cells import FULL, name_stream
from raycomp.continual.columns import as_estimate, tell_metrics
from raycomp.continual.controls import CHANCE, PRIOR, SHUFFLED
from raycomp.continual.head_tables import tell_heads
from raycomp.continual.judge import ANSWERS, SCORES
from raycomp.continual.published import tell_published
from raycomp.continual.results import Measured, Results, compare, estimate, list_groups
from raycomp.core.contrasts import Contrast
from raycomp.table import Cell, Column, Columns, Estimate, Plot, Table, number, write_csv
from raycomp.words import OK

FROZEN = "frozen"
MINUS_FROZEN = " minus frozen"
_SAID = "In percent; 95 % intervals by Student's t, over backbones where there are several, else over seeds."
MAIN = ("last", "learned", "forgetting_best", "transfer", "average")


def make_tables(results: Results, measured: Measured) -> list[Table]:
    """Return the tables of the page, stream by stream."""
    made = []
    for stream in dict.fromkeys(stream for stream, _ in list_groups(results)):
        methods = [method for other, method in list_groups(results) if other == stream]
        made += [
            tell_main(results, measured, stream, methods),
            tell_against(results, measured, stream, methods, FROZEN),
            tell_against(results, measured, stream, methods, FULL),
            tell_scores(results, measured, stream, methods),
            tell_binding(results, measured, stream, methods),
            tell_published(results, measured, stream, methods),
            *tell_heads(results, measured, stream, methods),
            *tell_matrices(results, stream, methods),
        ]
    return [table for table in made if table is not None and table.rows]


def tell_samples(streams: Mapping[str, Any]) -> Table | None:
    """Return how many samples each half of each task has, and how many of them figures are of; None where
    that is all of them. ``streams``: what was found in the making of each."""
    halves = {said: counts for facts in streams.values() for said, counts in facts["samples"].items()}
    rows: list[tuple[Cell, ...]] = [
        (said, counts.get(OK, 0), sum(counts.values())) for said, counts in halves.items()
    ]
    note = "Figures are of the samples used; the warnings above say why others are left out."
    is_whole = all(used == num for _, used, num in rows)
    return None if is_whole else Table("Samples used", ("Stream, task, half", "used", "of"), rows, note)


def tell_main(results: Results, measured: Measured, stream: str, methods: Sequence[str]) -> Table:
    """Return the figures of each method by the main score."""
    heads = {name.replace("_", " "): name for name in MAIN}
    columns, rows = tell_metrics(results, measured, stream, methods, {**heads, "ZSTD": "fused zstd"})
    asks = next(result for result in results.values() if result.cell.stream == stream).main
    what = (
        "Share of questions whose right answer scores above the other candidates"
        if asks.endswith(ANSWERS)
        else "Recall@1, the mean of both ways, among what all tasks ask together"
    )
    note = (
        f"{what}, by the fused score; a tie is wrong. {_SAID} Last: the mean over tasks after the last one. "
        "Learned: each task after itself. Forgetting: the best a task ever was, less what it is in the end. "
        "Transfer: tasks not yet learned (ZSCL). ZSTD: what the sets that are never learned gain, in points. "
        "Frozen trains nothing; joint sees all tasks at once. No method is told which task an image is of."
    )
    return Table(f"{name_stream(stream)}: what is left", columns, rows, note)


def tell_against(
    results: Results, measured: Measured, stream: str, methods: Sequence[str], other: str
) -> Table | None:
    """Return how much each method differs from another in runs of the same seed; none without that."""
    if other not in methods or len(methods) < 2:
        return None
    metrics = ("last", "forgetting_best", "learned")
    rows: list[tuple[Cell, ...]] = []
    for method in methods:
        found = [compare(results, measured, stream, (method, other), metric) for metric in metrics]
        if method != other and found[0] is not None:
            rows.append((method, found[0].num, *map(as_estimate, found), found[0].detectable))
    columns: Columns = (
        "Method",
        "runs",
        *(Column(name.replace("_", " "), "points", 1) for name in metrics),
        Column("detectable, last", "points", 1),
    )
    note = (
        "Paired by seed, which draws the order of tasks. Detectable: the least difference that as many runs "
        "would show in 80 % of studies, at 5 % two-sided. Not adjusted for the number of rows."
    )
    return Table(f"{name_stream(stream)}: minus {other}", columns, rows, note)


def tell_scores(results: Results, measured: Measured, stream: str, methods: Sequence[str]) -> Table:
    """Return Last and forgetting by each score and gallery."""
    main = next(result for result in results.values() if result.cell.stream == stream).main
    if main.endswith(ANSWERS):
        names = [f"{score} {ANSWERS}" for score in SCORES]
    else:
        names = [f"{score} {gallery} both" for score in SCORES for gallery in ("own", "merged")]
        names += ["fused merged image_to_text", "fused merged text_to_image"]
    metrics = {f"{name.removesuffix(' both')}, last".replace("_", " "): f"{name} last" for name in names}
    metrics |= {"composed, forgetting": f"{names[3] if len(names) > 3 else names[1]} forgetting_best"}
    if main.endswith(ANSWERS):
        blind = {"by prior": PRIOR, "another's picture": SHUFFLED, "by chance": CHANCE}
        metrics |= {head: f"{name} {ANSWERS} last" for head, name in blind.items()}
    columns, rows = tell_metrics(results, measured, stream, methods, metrics)
    note = (
        "By e_c, the caption's embedding; by e^_c, the composition of its primitives; fused, half of both. "
        "By e_c every head is frozen: only methods that train the model differ. A method without a head has "
        f"e_c for all three. Own: among what the task itself asks. By prior: as often as an answer was "
        f"right to such questions before; another's picture: fused, a task's pictures shuffled. {_SAID}"
    )
    return Table(f"{name_stream(stream)}: by score and gallery", columns, rows, note)


def tell_binding(results: Results, measured: Measured, stream: str, methods: Sequence[str]) -> Table:
    """Return CRR beside what it is made of."""
    heads = {"CRR": "crr", "pair": "a_pair", "attributes": "a_attribute", "objects": "a_object"}
    metrics = {head: f"fused {name}" for head, name in heads.items()}
    columns, rows = tell_metrics(results, measured, stream, methods, metrics)
    note = (
        "After the last task, of what images find in the merged gallery by the fused score, as shares: all "
        "primitives right, all attributes, all objects. CRR = pair / (attributes x objects) is 1 for what is "
        "right independently, by chance too: read it beside the pair."
    )
    return Table(f"{name_stream(stream)}: binding", [_in_shares(one) for one in columns], rows, note)


def _in_shares(column: str | Column) -> str | Column:
    return column._replace(digits=3) if isinstance(column, Column) else column


def tell_matrices(results: Results, stream: str, methods: Sequence[str]) -> Iterator[Table]:
    """Yield R[t, i] of each method, the mean over its runs, tasks in the order in which they were met."""
    for method in methods:
        own = [one for one in results.values() if (one.cell.stream, one.cell.method) == (stream, method)]
        mean_TT = np.mean([one.matrix(one.main) for one in own], axis=0)
        before_T = np.mean([one.before(one.main) for one in own], axis=0)
        rows: list[tuple[Cell, ...]] = [("none", *map(float, before_T))]
        rows += [(f"task {t + 1}", *map(float, row)) for t, row in enumerate(mean_TT)]
        columns = [Column(f"task {i + 1}", digits=1) for i in range(len(before_T))]
        yield Table(f"{name_stream(stream)}: {method}, task by task", ("After", *columns), rows)


def write_long(results: Results, measured: Measured) -> str:
    """Return all metrics as CSV: track, method, metric, mean, low, high, seeds."""
    lines: list[tuple[object, ...]] = [("track", "method", "metric", "mean", "low", "high", "seeds")]
    for stream, method in list_groups(results):
        own = [cell for cell in results if (cell.stream, cell.method) == (stream, method)]
        names = list(dict.fromkeys(name for cell in own for name in measured[cell]))
        for metric in [*names, *(f"{name}{MINUS_FROZEN}" for name in MAIN)]:
            plain, minus, _ = metric.partition(MINUS_FROZEN)
            found = (
                compare(results, measured, stream, (method, FROZEN), plain)
                if minus
                else estimate(results, measured, stream, method, metric)
            )
            if found is not None and not (minus and method == FROZEN):
                ends = (None if value != value else value for value in (found.low, found.high))
                lines.append((name_stream(stream), method, metric, found.value, *ends, found.num))
    return write_csv(lines)


def say_main(results: Results, measured: Measured) -> list[str]:
    """Return a sentence for each method of each stream: the main figure, less frozen's where that was run."""
    lines = []
    for stream, method in list_groups(results):
        last, lost = (
            estimate(results, measured, stream, method, name) for name in ("last", "forgetting_best")
        )
        against = compare(results, measured, stream, (method, FROZEN), "last")
        if last is None:
            continue
        said = f"{name_stream(stream)}, {method}: last {_say(last)}"
        said += f", forgetting {_say(lost)}" if lost is not None else ""
        if against is not None and method != FROZEN:
            said += f", last minus frozen {_say(against)}"
        lines.append(said)
    return lines


def _say(found: Contrast) -> str:
    ends = f" [{number(found.low, 1)}, {number(found.high, 1)}]" if found.low <= found.high else ""
    return number(found.value, 1) + ends


def list_plots(results: Results, measured: Measured) -> dict[str, Plot]:
    """Return what is drawn, by the name of the file that it is kept in."""
    plots = {}
    for stream in dict.fromkeys(stream for stream, _ in list_groups(results)):
        methods = [method for other, method in list_groups(results) if other == stream]
        rows = []
        for method in methods:
            found = compare(results, measured, stream, (method, FROZEN), "last")
            if found is not None and method != FROZEN:
                rows.append((method, Estimate(found.value, found.low, found.high)))
        if rows:
            name = name_stream(stream)
            unit = "points, with 95 % intervals"
            plots[name] = Plot(f"{name}: last minus frozen, fused", unit, rows, 0.0)
    return plots
