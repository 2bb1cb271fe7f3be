"""A finished run from its files alone: its result, its tables, one row, the runs below a folder."""

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from raycomp.config import flatten, from_dict, get_config
from raycomp.config.commands import is_own
from raycomp.curation.config import Rule, describe_rule, get_rule, read_config
from raycomp.curation.page import explain_sample, say_corpus
from raycomp.curation.select.filters import has_entry
from raycomp.curation.select.marks import list_marked
from raycomp.data import runs
from raycomp.data.files import REPORT, RUN, Folder, ResultFile, absolute_uri
from raycomp.data.inputs import say_input
from raycomp.data.parquet import read_columns, read_schema
from raycomp.data.runs import FINISHED, STATE, SUBSET_KINDS, check_results, order_reasons, read_finished
from raycomp.data.samples import parse_uid
from raycomp.evaluation.results import is_main
from raycomp.language.overlap import normalise_caption
from raycomp.negatives.page import explain_caption
from raycomp.probe.pas import explain_targets
from raycomp.report.page import join, tag
from raycomp.table import Column, Estimate, Table, format_facts, plain, read_csv, write_cell
from raycomp.words import CAPTION, KEY, MACRO, UID, URL

MOST_LISTED = 20
_LETTERS = 80


def find_samples(run: dict[str, Any], source: str, text: str) -> pa.Table:
    """Return uid, key, url and caption, as far as a run has them, of the samples that ``text`` names.

    The first of these that names any counts: a key or url, the file name of a key, with or without its
    extension, a whole caption, whatever its case and spaces, a part of a caption.
    """
    name, caption = posixpath.basename(text), normalise_caption(text)

    def has_name(key: str) -> bool:
        own = re.sub(r"#\d+$", "", posixpath.basename(key))  # a further caption of an image
        return bool(name) and (
            name in (own, posixpath.splitext(own)[0]) or posixpath.splitext(name)[0] == own
        )

    ways: tuple[tuple[tuple[str, ...], Callable[[str], bool]], ...] = (
        ((KEY, URL), lambda value: value == text),
        ((KEY,), has_name),
        ((CAPTION,), lambda value: normalise_caption(value) == caption != ""),
        ((CAPTION,), lambda value: bool(caption) and caption in normalise_caption(value)),
    )
    files = runs.list_negatives(run, source) if run["kind"] == "negatives" else []
    uris = [file.uri for file in list_marked(run, source)] if run["kind"] in SUBSET_KINDS else files
    tables = []
    for uri in uris:
        known = read_schema(uri).names
        tables.append(read_columns(uri, [one for one in (UID, KEY, URL, CAPTION) if one in known]))
    if run["kind"] not in SUBSET_KINDS:  # keys and urls are in the run that it was written for
        with suppress(ValueError, OSError):
            curated = read_finished(origin := run["config"]["input"])
            if runs.identify(curated) == run["fingerprint"].get("input"):
                found = find_samples(curated, origin, text)
                own = [uid for table in tables for uid in table[UID].to_pylist()]
                found = found.filter(pc.is_in(found[UID], pa.array(own))) if own else found
                if len(found):
                    return found
    for columns, fits in ways:
        found = []
        for table in tables:
            fits_N = np.zeros(len(table), bool)
            for one in columns:
                if one in table.column_names:
                    fits_N |= [value is not None and fits(value) for value in table[one].to_pylist()]
            found.append(table.filter(pa.array(fits_N)))
        if any(map(len, found)):
            return pa.concat_tables(found)
    return pa.table({UID: pa.array([], pa.string())})


_DEPTH = 6


def list_runs(parent: str) -> str:
    """Return a table of the runs at or below ``parent``: folder, kind, status, when, and its result.

    A run's own folders are not searched. Raises ValueError where there is no run.
    """
    top = absolute_uri(parent).rstrip("/")

    def find(folder: Folder, depth: int) -> Iterator[Folder]:
        if folder.exists(RUN):
            yield folder
        elif depth:
            for name in folder.list_folders():
                yield from find(Folder(folder.at(name)), depth - 1)

    rows: list[tuple[str, ...]] = []
    for folder in find(Folder(top), _DEPTH):
        name = folder.uri.removeprefix(top).lstrip("/") or "."
        try:
            run = runs.read_run(folder) or {}
        except ValueError:
            rows.append((name, "-", "unreadable", "-", "-"))
            continue
        result = run.get("headline") if run["status"] == FINISHED else run.get("failed")
        when, line = str(run.get("finished", "-")), " ".join(str(result or "-").split())
        rows.append((name, run["kind"], run["status"], when, line))
    if not rows:
        raise ValueError(f"{parent}: holds no run of raycomp; name a folder above runs")
    return Table("", ("folder", "run", "status", "finished", "result"), rows).to_text()


# Folders whose Parquet files are not result tables: the input's samples, and what updates and proofs need.
_OTHERS = ("shards", STATE)


def name_tables(files: Mapping[str, ResultFile]) -> dict[str, list[ResultFile]]:
    """Return the files of each table, in order, by its name; the tables in the order of their names.

    Numbered files, such as scores/00000.parquet, form one table named after their folder; another file is
    named by its stem.
    """
    found: dict[str, list[ResultFile]] = {}
    for name in sorted(files):
        folder, base = posixpath.split(name)
        stem, suffix = posixpath.splitext(base)
        if suffix in _READERS and folder.partition("/")[0] not in _OTHERS:
            own = posixpath.basename(folder) if stem.isdecimal() and folder else stem
            found.setdefault(own, []).append(files[name])
    return dict(sorted(found.items()))


def read_tables(files: Iterable[ResultFile]) -> pa.Table:
    """Return the rows of one table's files. Raises ValueError if one differs from the file the run wrote."""
    tables = [_READERS[posixpath.splitext(file)[1]](file) for file in files]
    return pa.concat_tables(tables).combine_chunks()


def _read_csv(file: ResultFile) -> pa.Table:
    """Return a column of whole numbers, else numbers, with null for an empty text; else the texts."""
    rows = read_csv(runs.read_result(file).decode())
    columns: dict[str, pa.Array] = {}
    for name in list(rows[0]) if rows else []:
        texts = [row[name] for row in rows]
        columns[name] = pa.array(texts, pa.string())
        for read, kind in ((float, pa.float64()), (int, pa.int64())) if any(texts) else ():
            with suppress(ValueError, OverflowError):
                columns[name] = pa.array([read(text) if text else None for text in texts], kind)
    return pa.table(columns)


def _read_lines(file: ResultFile) -> pa.Table:
    try:
        return pyarrow.json.read_json(pa.BufferReader(runs.read_result(file)))
    except pa.ArrowException as error:
        line = " ".join(str(error).split())[:200]
        raise ValueError(f"{file}: holds no lines of JSON ({line})") from error


_READERS: dict[str, Callable[[ResultFile], pa.Table]] = {
    ".parquet": read_columns,
    ".csv": _read_csv,
    ".jsonl": _read_lines,
}


SHARE, PERCENT, POINTS = "share", "percent", "points"
Row = Mapping[str, Any]


class Figure(NamedTuple):
    """A value with its 95 % interval, None where there is none.

    ``unit``: the counted things ("rows"); share, 0 to 1; percent; points, a difference of percents; "" for
    values without a unit.
    """

    value: float
    low: float | None = None
    high: float | None = None
    unit: str = ""


def say_figure(figure: Figure) -> tuple[str, str]:
    """Return the value with its interval, and the unit."""
    low, high = (float("nan") if end is None else end for end in (figure.low, figure.high))
    return plain(write_cell(Estimate(figure.value, low, high))), figure.unit


def list_figures(run: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Figure]:
    """Return the figures of a run's headline by name, from its record or the ``rows`` of its main table.

    Of an evaluation or a comparison these are the means, and of benchmarks with one split that split's rows.
    A row of an evaluation has a value; one of a comparison the difference of two runs.
    """
    kind, found = run["kind"], dict[str, Figure]()
    if kind in SUBSET_KINDS:
        funnel, scorer = run["funnel"], run.get("scorer_check") or {}
        if funnel["corpus"]:
            found["kept of the corpus"] = Figure(funnel["kept"] / funnel["corpus"], unit=SHARE)
        if "auc" in scorer:
            found["scorer's AUC"] = Figure(scorer["auc"], unit=SHARE)
    elif kind == "negatives":
        by_op = {f"negatives, {op}": count for op, count in run["negatives"].items()}
        counts = {"negatives": run["written"], **by_op}
        found = {name: Figure(count, unit="negatives") for name, count in counts.items()}
    elif kind == "train":
        units = {"steps": "steps", "epochs": "epochs", "pairs": "pairs", "first_loss": "", "last_loss": ""}
        found = {name.replace("_", " "): Figure(run[name], unit=unit) for name, unit in units.items()}
        last = (run.get("evaluations") or [{}])[-1]
        found |= {name: Figure(value) for name, value in last.items() if name != "step"}
    elif kind == "sweep":
        for one in run["best"]:
            group = "".join(f"{name}={value}: " for name, value in one["group"].items())
            for split in ("development", "report"):
                found |= _figure(f"{group}{run['metric']}, {split} seeds", one[split], "value")
    elif kind == "continual":
        for row in rows:
            if row["metric"] in ("last", "forgetting_best", "last minus frozen"):
                name = f"{row['track']}, {row['method']}: {row['metric'].replace('_', ' ')}"
                found |= _figure(name, row, "mean", PERCENT if row["metric"] == "last" else POINTS)
    elif rows and "figure" in rows[0]:  # a comparison with a paper's table
        for row in rows:
            found |= _figure(f"{row['figure']}, {row['row']}", {"mean": row["mean"]}, "mean")
    else:
        with_means = {row["benchmark"] for row in rows if row["split"] == MACRO}
        means = [row for row in rows if is_main(row["benchmark"], row["split"], row["metric"], with_means)]
        for row in means:
            name = f"{row['benchmark']}: {row['metric']}, {row['split']}"
            if "difference" in row:
                two = f"{row['run']} minus {row['reference']}" if "run" in row else "second minus first"
                found |= _figure(f"{name}, {two}", row, "difference", SHARE)
            elif not row.get("control"):
                found |= _figure(name, row, "value", SHARE)
    return found


def _figure(name: str, row: Row, value: str, unit: str = "") -> dict[str, Figure]:
    """Return the figure of a row whose interval is ``low`` and ``high``, under its name; none for NaN."""
    numbers = (row.get(column) for column in (value, "low", "high"))
    found, low, high = (None if one in (None, "") or one != one else one for one in numbers)
    return {} if found is None else {name: Figure(found, low, high, unit)}


# The main table of a run by kind; for other kinds it is the first.
_MAIN = {
    "curate": "kept",
    "select": "kept",
    "negatives": "negatives",
    "train": "metrics",
    "evaluate": "table",
    "compare": "table",
    "continual": "continual",
    "sweep": "trials",
    "diff": "concepts",
}
_MOST_SHOWN = 20


class FinishedRun:
    """A finished run, read from its folder alone. Made by ``raycomp.open``.

    Shown in a notebook, it is a summary of its counts and figures.
    """

    def __init__(self, source: str):
        self.record: dict[str, Any] = read_finished(source)
        """The content of run.json."""
        self.folder = Folder(absolute_uri(source))
        self.uri = self.folder.uri
        """The folder: an absolute path, or the uri of a store."""

    @property
    def kind(self) -> str:
        """The command that wrote it ("curate"); for a probe with its name ("probe pas")."""
        return self.record["kind"]

    @cached_property
    def config(self) -> Any:
        """The config of the run, an object of the command's class; ``record["config"]`` is plain.

        Raises ValueError if another version wrote the run and its options are unknown to this version.
        """
        values = self.record["config"]
        if self.kind in SUBSET_KINDS:
            return read_config(values)
        kind = get_config(self.kind)
        return values if kind is None else from_dict(kind(), values)

    @cached_property
    def _tables(self) -> dict[str, list[ResultFile]]:
        return name_tables(check_results(self.folder, self.record))

    @property
    def tables(self) -> list[str]:
        """The names that ``table`` takes, the main one first."""
        names = [*self._tables, *(["scores"] if self.kind == "select" else [])]
        main = _MAIN.get(self.kind, names[0] if names else "")
        return sorted(names, key=lambda name: (name != main, name))

    def table(self, name: str | None = None) -> pa.Table:
        """Return a table of the run, whole in memory; by default its main one, ``tables[0]``.

        The tables of curate and select are kept (the chosen samples) and scores (all samples). Raises
        ValueError if there is no table of that name, or a file differs from the one that the run wrote.
        """
        names = self.tables
        if not names or name not in (None, *names):
            said = f"its tables are {', '.join(names)}" if names else "the run has no tables"
            raise ValueError(f"table={name!r}: not in {self.uri}; {said}")
        name = name or names[0]
        if name == "scores" and self.kind in SUBSET_KINDS:
            return read_tables(ResultFile(uri) for uri in runs.list_scores(self.record, self.uri))
        return read_tables(self._tables[name])

    def figures(self) -> dict[str, Figure]:
        """Return the figures of the run's headline by name, each (value, low, high, unit).

        ``low`` and ``high`` are the ends of the 95 % interval, None where the run has none.
        """
        funnel = self.record["funnel"]
        found = {f"rows {name}": Figure(funnel[name], unit="rows") for name in ("read", "kept")}
        return found | self.own_figures()

    def own_figures(self) -> dict[str, Figure]:
        """Return the figures without the counts of rows."""
        main = _MAIN.get(self.kind)
        is_in_table = self.kind in ("evaluate", "compare", "continual") and main in self.tables
        return list_figures(self.record, self.table(main).to_pylist() if is_in_table else ())

    def __getitem__(self, name: str) -> Any:
        """Return an entry of ``record``: ``run["funnel"]``."""
        return self.record[name]

    def __repr__(self) -> str:
        return f"<raycomp run: {self.kind} in {self.uri}>"

    def _repr_html_(self) -> str:
        """Return a short summary as HTML; text from the run is escaped."""
        facts = [(name, self.record.get(name)) for name in ("started", "finished")]
        dropped = order_reasons(self.record["funnel"]["dropped"]).items()
        shown = list(self.figures().items())[:_MOST_SHOWN]
        figures = [(name, " ".join(say_figure(figure)).strip()) for name, figure in shown]
        rows = [
            *((name, value) for name, value in facts if value),
            *figures,
            *((f"dropped: {reason}", f"{count:,} rows") for reason, count in dropped),
            ("tables", ", ".join(self.tables)),
            *([("report", self.folder.at(REPORT))] if self.folder.exists(REPORT) else []),
            *(("warning", warning) for warning in self.record["warnings"]),
        ]
        cells = (tag("tr", tag("th", name), tag("td", value)) for name, value in rows)
        return tag("div", tag("b", f"{self.kind} in {self.uri}"), tag("table", join(cells)))


_EXPLAIN = {"curate": explain_sample, "select": explain_sample, "negatives": explain_caption}
_EXPLAIN |= {"probe pas": explain_targets}


def show(source: str) -> Iterator[str]:
    """Yield a summary of the run in ``source``: its result, options, counts, phases, warnings, report's path.

    Raises ValueError if there is no finished run, and at the end if its files differ from those it wrote.
    """
    run, folder = read_finished(source), Folder(source)
    report = folder.at(REPORT) if folder.exists(REPORT) else None
    facts = {
        "run": run["kind"],
        "input": say_input(str(run["config"].get("input") or "")),
        "rule": _describe_rule(run),
    }
    if run["kind"] == "train":
        options = dict(flatten(run["config"]))
        facts |= {
            "model": f"{options.get('model.name')}, trained from {options.get('model.weights')}",
            "steps": f"{run['steps']:,}, {run['epochs']:.2f} epochs of {run['pairs']:,} pairs",
            "loss": f"{options.get('train.loss')}, {run['first_loss']:.4f} to {run['last_loss']:.4f}",
            "checkpoint": folder.at("checkpoint"),
        }
    facts |= {"started": run.get("started"), "finished": run.get("finished"), "report": report}
    parts = [run.get("headline"), format_facts({name: value for name, value in facts.items() if value})]
    figures = {} if run["kind"] in (*SUBSET_KINDS, "train") else FinishedRun(source).own_figures()
    if figures:
        cells = ((name, *say_figure(figure)) for name, figure in figures.items())
        parts.append(Table("", ("result", "value, 95 % interval", ""), [*cells]).to_text())
    funnel = run["funnel"]
    share = f"{100 * funnel['kept'] / funnel['corpus']:.1f} %" if funnel["corpus"] else "none"
    which = "read" if funnel["corpus"] == funnel["read"] else "that can be used"
    of = say_corpus(funnel) if run["kind"] in SUBSET_KINDS else f"the {funnel['corpus']:,} rows {which}"
    kept = f"kept ({share} of {of})"
    dropped = [(-count, reason) for reason, count in order_reasons(funnel["dropped"]).items()]
    counts = [(funnel["read"], "read"), *dropped, (funnel["kept"], kept)]
    parts.append(Table("", ("", ""), counts).to_text())
    if run.get("phases"):
        columns = ("phase", "rows", Column("time", "s", 1), Column("rate", "rows/s", 1), "bottleneck")
        rows = []
        for phase in run["phases"]:
            num, wall_s = phase["rows"], phase["wall_s"]
            rate = num / wall_s if wall_s else None
            rows.append((phase["phase"], num, wall_s, rate, phase["bottleneck"] or "-"))
        parts.append(Table("", columns, rows).to_text())
    parts.append("\n".join(f"warning: {warning}" for warning in run["warnings"]))
    yield "\n\n".join(part for part in parts if part)
    check_results(folder, run)


def _describe_rule(run: dict[str, Any]) -> str | None:
    """Return rule and reading of a curation or selection, and its shares; None for other runs."""
    options = dict(flatten(run["config"]))
    if "select.rule" not in options:
        return None
    name = str(options["select.rule"])
    # The file of the user's own rule may be gone.
    rule = Rule(attribute_by=(run.get("gates") or {}).get("attribute")) if is_own(name) else get_rule(name)
    shares = ["align.keep"] * bool(rule.attribute_by) + ["attribute.keep"] * (not rule.keeps_all)
    kept = ", ".join(f"{path} {options.get(path)}" for path in shares)
    said = run.get("rule") or (name if is_own(name) else describe_rule(read_config(run["config"])))
    return "; ".join(filter(None, (said, kept)))


def explain(source: str, uid: str) -> str:
    """Return the results of one sample in ``source``: its scores and gates, its negatives, its targets.

    ``uid`` may also be a key, a file name, a url or a caption; where several samples have it, they are
    listed. Raises ValueError if there is no finished run, or none of its samples has it.
    """
    try:
        uid.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{os.fsencode(uid)!r}: no such uid in {source}, which is UTF-8") from None
    run = read_finished(source)
    find = _EXPLAIN.get(run["kind"])
    if find is None:
        raise ValueError(f"{source}: holds {run['kind']}, which says nothing of single samples")
    # A user's own uids stay unchanged; uids that raycomp treats as equal are written in one spelling.
    reported = find(run, source, uid) or find(run, source, parse_uid(uid) or uid.lower())
    if reported is not None:
        return reported
    named = find_samples(run, source, uid)
    if not len(named):
        said = f"{uid}: no such uid, key, file name, url or caption in {source}"
        if has_entry(run["config"].get("removed"), uid):
            said += "; removed.parquet lists it: a row that was removed on request keeps its uid alone"
        raise ValueError(said)
    uids = list(dict.fromkeys(named[UID].to_pylist()))
    if len(uids) == 1:
        return find(run, source, uids[0]) or f"{source} holds nothing of {uids[0]}"
    names = tuple(name for name in (UID, KEY, CAPTION) if name in named.column_names)
    rows = [
        tuple(value if value is None else value[:_LETTERS] for value in row.values())
        for row in named.select(names).slice(0, MOST_LISTED).to_pylist()
    ]
    shown = f"the first {MOST_LISTED} of {len(named):,}" if len(named) > MOST_LISTED else f"{len(named)}"
    return f"{shown} samples fit {uid!r}; name one by its uid\n\n{Table('', names, rows).to_text()}"
