"""``raycomp probe``: a probe as a run of its own, with rows, tables and a page."""

from typing import Any

from raycomp.config import to_dict
from raycomp.data.files import check_writable
from raycomp.data.folder import Folder
from raycomp.data.paths import absolute_uri
from raycomp.data.whole import with_absolute_paths
from raycomp.probe.config import ProbeConfig
from raycomp.probe.steps import ProbeOutput, open_probe
from raycomp.report.page import render_page
from raycomp.run.run import Say, begin
from raycomp.table import Table, join_text
from raycomp.words import OK


def probe(name: str, config: ProbeConfig, out: str, say: Say = print) -> dict[str, Any]:
    """Run the probe of that name into the folder ``out``, say its tables; return what run.json holds.

    A finished run of the same config is left as it is. Raises ValueError for what the user can mend.
    """
    out, config = absolute_uri(str(out)), with_absolute_paths(config)
    check_writable(out)  # before anything is loaded
    opened = open_probe(name, config)
    rooms = (*(f"{name}.{kind}" for kind in ("json", "txt", "svg")), "tables")
    with begin(f"probe {name}", config, opened.fingerprint, out, say, rooms=rooms) as run:
        if run.is_finished:
            return run.record
        if opened.device is not None:
            run.bind(opened.device)
        found = opened.measure()
        _write(run.folder, name, config, found)
        run.close({OK: found.num_read}, {why: num for why, num in found.came.items() if num}, OK)
        say(join_text(found.blocks))
        page = render_page("probe/page.html.jinja", run=run.record, blocks=found.blocks, plot=found.plot)
        run.tell(f"{found.came[OK]:,} of {found.num_read:,} took part", page)
    return run.record


def _write(folder: Folder, name: str, config: ProbeConfig, found: ProbeOutput) -> None:
    """Write rows, tables and plot of a probe."""
    folder.write_json({"config": to_dict(config), "rows": found.rows}, f"{name}.json")
    folder.write_bytes((join_text(found.blocks) + "\n").encode(), f"{name}.txt")
    tables = [block for block in found.blocks if isinstance(block, Table)]
    for i, table in enumerate(tables, 1):
        folder.write_bytes(table.to_csv().encode(), "tables", f"{name}-{i}.csv")
    if found.plot is not None:
        folder.write_bytes(found.plot.encode(), f"{name}.svg")
