"""The page that shows the rows: its frame, its script, and what the script must know."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from raycomp.curation.funnel import REASON_WORDS, reason_words
from raycomp.data.folder import Folder
from raycomp.look.explore.cards import DATA, put
from raycomp.look.explore.rows import NOT_DRAWN, NOT_SHOWN
from raycomp.report.frame import INDEX_MARK, POLICY
from raycomp.report.markup import Html
from raycomp.report.page import render_page

_SCRIPT = "explore.js"
# Scripts of the page's own folder run as well: 'self' is for a server, file: for a disk.
_POLICY = f"{POLICY} 'self' file:"


def write_assets(folder: Folder, about: Mapping[str, Any]) -> None:
    """Write the script, and what it must know, to ``data/`` of the folder."""
    folder.write_bytes(files("raycomp.look.explore").joinpath(_SCRIPT).read_bytes(), DATA, _SCRIPT)
    put(folder, "index/about", {**about, "words": REASON_WORDS})


def draw_page(run: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Return the page of a run of ``explore`` with its row counts; ``about`` as in ``write_assets``."""
    funnel, config = run["funnel"], run["config"]
    drawn = funnel["read"] - funnel["dropped"].get(NOT_SHOWN, 0)
    outcomes = sorted(about["all"].items(), key=lambda item: (-item[1], item[0]))
    return render_page(
        "look/explore/page.html.jinja",
        run={**run, "fingerprint": f"run {run['fingerprint']['run']}"},
        about=about,
        read=funnel["read"],
        where=config["where"],
        drawn=drawn if NOT_DRAWN in funnel["dropped"] else None,
        seed=config["seed"],
        outcomes=[(reason_words(name), count) for name, count in outcomes],
        policy=_POLICY,
        index_mark=Html(INDEX_MARK),
    )
