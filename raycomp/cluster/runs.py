"""What every command that writes results does around its work: begin or go on, and tidy up."""

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

from raycomp.cluster.record import read_run, refuse_other
from raycomp.config import override_all
from raycomp.loops.inspect import RUN
from raycomp.shards.files import remove_temporary_files
from raycomp.shards.folder import Folder
from raycomp.shards.paths import absolute_uri

Say = Callable[[str], None]
Config = TypeVar("Config")


def open_run(folder: Folder, run: dict[str, Any], say: Say) -> dict[str, Any] | None:
    """Begin ``run`` in the folder, or go on with it; return it if it is finished already."""
    previous = read_run(folder)
    if previous:
        refuse_other(previous, run, folder)
        if previous["status"] == "finished":
            tidy(folder)  # it may have been killed just before it did
            say(f"{folder.uri} is finished already; nothing to do")
            return previous
    else:
        folder.write_json(run, RUN)
    return None


def tidy(folder: Folder) -> None:
    """Remove what only an unfinished run needs, and what killed writers left among the results."""
    folder.remove("work")
    remove_temporary_files(folder.uri)


def with_absolute_paths(config: Config) -> Config:
    """Return the config with a model and weights that are files named so that every worker finds them."""
    names = {"scorer.model": config.scorer.model, "scorer.weights": config.scorer.weights}
    files = {path: absolute_uri(name) for path, name in names.items() if os.path.isfile(name)}
    return override_all(config, files)


def digest(content: Any) -> str:
    """Return the SHA-256 of what json can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
