"""A finished run as an object: ``raycomp.open``."""

from functools import cached_property
from typing import Any

import pyarrow as pa

from raycomp.config import find_config, from_dict
from raycomp.curation.config import read_config
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.data.paths import REPORT, absolute_uri
from raycomp.data.runs import SUBSET_KINDS, list_scores, read_finished
from raycomp.data.written import ResultFile
from raycomp.look.show.figures import Figure, find_figures
from raycomp.look.show.tables import name_tables, read_tables
from raycomp.report.markup import join, tag
from raycomp.table import Estimate, write_cell

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
        kind = find_config(self.kind)
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
            return read_tables(ResultFile(uri) for uri in list_scores(self.record, self.uri))
        return read_tables(self._tables[name])

    def figures(self) -> dict[str, Figure]:
        """Return the figures of the run's headline by name, each (value, low, high, unit).

        ``low`` and ``high`` are the ends of the 95 % interval, None where the run has none.
        """
        return find_figures(self.record, self._read_main)

    def _read_main(self) -> list[dict[str, Any]]:
        """Return the rows of the main table of the kind; none of a run that wrote no such table."""
        main = _MAIN.get(self.kind)
        return self.table(main).to_pylist() if main in self.tables else []

    def __repr__(self) -> str:
        return f"<raycomp run: {self.kind} in {self.uri}>"

    def _repr_html_(self) -> str:
        """Return a short summary as HTML; text from the run is escaped."""
        facts = [(name, self.record.get(name)) for name in ("started", "finished")]
        dropped = self.record["funnel"]["dropped"].items()
        rows = [
            *((name, value) for name, value in facts if value),
            *((name, _write(figure)) for name, figure in list(self.figures().items())[:_MOST_SHOWN]),
            *((f"dropped: {reason}", f"{count:,} rows") for reason, count in dropped),
            ("tables", ", ".join(self.tables)),
            *([("report", self.folder.at(REPORT))] if self.folder.exists(REPORT) else []),
            *(("warning", warning) for warning in self.record["warnings"]),
        ]
        cells = (tag("tr", tag("th", name), tag("td", value)) for name, value in rows)
        return tag("div", tag("b", f"{self.kind} in {self.uri}"), tag("table", join(cells)))


def _write(figure: Figure) -> str:
    """Return the text of a figure: "0.7123 [0.6801, 0.7432] share"."""
    nan = float("nan")
    low, high = (nan if end is None else end for end in (figure.low, figure.high))
    return f"{write_cell(Estimate(figure.value, low, high))} {figure.unit}".strip()
