"""Finished runs made by hand, with the manifest that a run writes."""

from raycomp.data.files import Folder
from raycomp.data.runs import FORMAT, write_manifest

OUTPUTS = ("scores", "subset", "shards", "negatives", "checkpoint")


def seal(folder: Folder, outputs: tuple[str, ...] = OUTPUTS) -> None:
    """Give the run in a folder the manifest of what lies there now."""
    manifest = write_manifest(folder, outputs, {})
    folder.write_json(folder.read_json("run.json") | {"format": FORMAT, "manifest": manifest}, "run.json")
