"""The results of ``raycomp probe pas`` for one sample, from its files alone."""

from typing import Any

from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.table import Table
from raycomp.words import UID

_COLUMNS = ("target", "kind", "nonces", "same category", "cross category")


def explain_targets(run: dict[str, Any], source: str, uid: str) -> str | None:
    """Return the words that replaced a sample's targets, and their drops; None where it has no target."""
    check_results(Folder(source), run, "pas.json")
    if not Folder(source).exists("pas.json"):
        raise ValueError(f"{source}: has no pas.json; run the probe again, into another folder")
    rows = [row for row in Folder(source).read_json("pas.json")["rows"]["targets"] if row[UID] == uid]
    if not rows:
        return None
    drops = [name for name, value in rows[0].items() if isinstance(value, float)]
    cells = [
        (row["target"], row["kind"], ", ".join(row["nonces"]), *row["words"], *(row[name] for name in drops))
        for row in rows
    ]
    heads = (f"drop: {name.replace('_', ' ')}" for name in drops)
    return Table("", (*_COLUMNS, *heads), cells).to_text()
