"""Finished runs made by hand, with the manifest that a run writes."""

from pathlib import Path
from typing import Any

from raycomp.data.files import Folder
from raycomp.data.runs import FORMAT, write_manifest

OUTPUTS = ("scores", "subset", "shards", "negatives", "checkpoint")


def seal(folder: Folder, outputs: tuple[str, ...] = OUTPUTS) -> None:
    """Give the run in a folder the manifest of what lies there now."""
    manifest = write_manifest(folder, outputs, {})
    folder.write_json(folder.read_json("run.json") | {"format": FORMAT, "manifest": manifest}, "run.json")


def write_run(
    place: str | Path, kind: str, num: int = 1, outputs: tuple[str, ...] = OUTPUTS, **record: Any
) -> str:
    """Write the record of a finished run that read and kept so many rows, with more fields or others."""
    names = ("steps", "epochs", "pairs", "first_loss", "last_loss") if kind == "train" else ()
    run = {"kind": kind, "status": "finished", "warnings": [], **dict.fromkeys(names, 1)}
    run |= {"config": {}, "fingerprint": {}, "versions": {}}
    run |= {"funnel": {"read": num, "corpus": num, "kept": num, "dropped": {}}, **record}
    Folder(str(place)).write_json(run, "run.json")
    seal(Folder(str(place)), outputs)
    return str(place)
