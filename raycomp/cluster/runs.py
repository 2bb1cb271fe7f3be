"""What every command that writes results does around its work: begin or go on, and tidy up."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

from raycomp.cluster.record import find_run, refuse_other
from raycomp.config import from_dict, override_all, to_dict
from raycomp.shards.files import remove_temporary_files
from raycomp.shards.folder import Folder
from raycomp.shards.inputs import absolute_input
from raycomp.shards.paths import RUN, absolute_uri

Say = Callable[[str], None]
Config = TypeVar("Config")
_ROOMS = ("scores", "subset", "shards", "negatives", "exports")


def open_run(folder: Folder, run: dict[str, Any], say: Say) -> dict[str, Any] | None:
    """Begin ``run`` in the folder, or go on with it; return it if it is finished already."""
    previous = find_run(folder)
    if previous is not None:
        refuse_other(previous, run, folder)
        if previous["status"] == "finished":
            _check_results(folder, previous.get("results", {}))
            tidy(folder)  # it may have been killed just before it did
            say(f"{folder.uri} is finished already; nothing to do")
            return previous
    else:
        folder.write_json(run, RUN)
    return None


def count_results(folder: Folder) -> dict[str, int]:
    """Return how many files lie in every sub-folder that a run's results are in, but for hidden ones."""
    names = {room: [name for name in folder.list_names(room) if name[0] != "."] for room in _ROOMS}
    return {room: len(found) for room, found in names.items() if found}


def _check_results(folder: Folder, written: dict[str, int]) -> None:
    """Raise ValueError where a finished run's results are no longer all there."""
    found = count_results(folder)
    for room, count in written.items():
        if found.get(room, 0) < count:
            raise ValueError(
                f"out={folder.uri!r}: the run there was finished, but {room}/ holds {found.get(room, 0)} of "
                f"the {count} files that it wrote; remove the folder or name another to have them again"
            )


def tidy(folder: Folder) -> None:
    """Remove what only an unfinished run needs, and what killed writers left among the results."""
    folder.remove("work")
    remove_temporary_files(folder.uri)


def with_absolute_paths(config: Config) -> Config:
    """Return the config with its input, and a model, weights or parser that are files, named by whole paths:
    they then mean the same to every worker and from every working folder."""
    config = from_dict(config, to_dict(config))  # every dial read as --set would, whoever made it
    names = {"scorer.model": config.scorer.model, "scorer.weights": config.scorer.weights}
    files = {path: absolute_uri(name) for path, name in names.items() if os.path.isfile(name)}
    schema, _, place = config.scorer.model.partition(":")
    if schema == "local-dir" and place:
        files["scorer.model"] = f"{schema}:{absolute_uri(place)}"
    if os.sep in config.parser.name:
        files["parser.name"] = absolute_uri(config.parser.name)
    return override_all(config, {**files, "input": absolute_input(config.input)})


def check_unchanged(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise ValueError where what a run depends on is no longer what it was when the run began."""
    changed = [name for name in before if now[name] != before[name]]
    if changed:
        raise ValueError(
            f"{', '.join(changed)}: changed while the run went on, so its results are of neither and not "
            f"published; run again into another folder"
        )
