"""``raycomp update``: bring a finished curation, or the negatives of one, up to date.

The update is a run of its own in ``DIR/versions/next``, which takes over all rows that are the same; it can
be resumed like any other. Its result equals that of a run from scratch with the same options, byte for byte.
It then becomes the next version of DIR.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from raycomp.config import check_path, is_marked, override, override_all, to_dict
from raycomp.config.change import from_dict
from raycomp.config.check import check_choice
from raycomp.curation.command import curate
from raycomp.curation.config import CurateConfig, read_config
from raycomp.curation.removal import Removal, load_removed, write_removed
from raycomp.curation.reuse import Earlier
from raycomp.data.files import check_writable
from raycomp.data.folder import Folder
from raycomp.data.inputs import absolute_input, add_input
from raycomp.data.manifest import OBJECTS
from raycomp.data.paths import RUN, VERSIONS, absolute_uri
from raycomp.data.runs import read_finished, read_run
from raycomp.data.versions import NEXT, NUMBER
from raycomp.negatives.command import negatives
from raycomp.negatives.config import NegativesConfig
from raycomp.negatives.frozen import list_models
from raycomp.run.lease import hold_lease
from raycomp.update.publish import find_next, finish, publish
from raycomp.update.purge import find_removed, purge_run

Say = Callable[[str], None]
CHANGED = ("rescore", "refuse")


def update(
    source: str,
    add: str | None = None,
    remove: str | None = None,
    changed: str | None = None,
    settings: Mapping[str, Any] | None = None,
    refit: bool = False,
    say: Say = print,
) -> str:
    """Bring the run in ``source`` up to date; return a line on what its new version holds.

    A curation: shards that its input has gained are scored; with ``add`` those of another input, too.
    ``remove``: a list as that of the option ``removed``; its rows lose their content, in older versions too.
    ``changed``: rescore or refuse shards that hold other samples than before under the same name.
    ``settings``: options of selection by path. A run of negatives follows its input and takes no option but
    ``refit``: count and fit its models of the corpus anew, which rewrites all; else they stay (the option
    ``negatives.frozen``).

    Raises ValueError for errors the user can fix, and where another process updates the folder.
    """
    folder = Folder(absolute_uri(source))
    run = read_finished(folder.uri)
    if OBJECTS in run:
        raise ValueError(f"{source}: is a version, which stays as it is; update its run, or check it out")
    check_choice("changed", changed or CHANGED[0], CHANGED)
    check_writable(folder.uri)
    with hold_lease(folder) as lease:
        finish(folder, lease.check)
        run = read_finished(folder.uri)
        say = _quiet(say, find_next(folder).uri)
        if run["kind"] == "curate":
            config = _next_config(folder, run, add, remove, settings or {})
            _drop_other(folder, config)
            earlier = Earlier(folder.uri, changed or CHANGED[0])
            curate(config, find_next(folder).uri, say, earlier=earlier)
        elif run["kind"] == "negatives":
            if add or remove or changed or settings:
                raise ValueError(f"{source}: holds negatives, which follow their input; update that first")
            models = _freeze(from_dict(NegativesConfig(), run["config"]), folder, refit)
            _drop_other(folder, models)
            negatives(models, find_next(folder).uri, say, previous=folder.uri)
        else:
            raise ValueError(f"{source}: holds {run['kind']}; a curation or negatives can be updated")
        record = read_finished(find_next(folder).uri)
        is_same = record["manifest"]["results"] == run["manifest"].get("results")
        if is_same and record["config"] == run["config"]:
            folder.remove(VERSIONS, NEXT)
            return f"{folder.uri}: nothing has changed"
        found = publish(folder, lease.check)
        purge_run(folder, found, lease.check)
    return f"{folder.uri}@{found[NUMBER]}: {found['headline']}"


def _freeze(config: NegativesConfig, folder: Folder, refit: bool) -> NegativesConfig:
    """Return the config of a run that takes the models of the corpus from the one in ``folder``."""
    if refit or not list_models(config.negatives):
        return override(config, "negatives.frozen", None)
    return override(config, "negatives.frozen", config.negatives.frozen or folder.uri)


def _quiet(say: Say, staged: str) -> Say:
    """Return ``say`` without lines on the folder in which the update works."""
    return lambda line: None if staged in line else say(line)


def _next_config(
    folder: Folder, run: Mapping[str, Any], add: str | None, remove: str | None, settings: Mapping[str, Any]
) -> CurateConfig:
    """Return the config of a run from scratch that the update equals."""
    for path in settings:
        check_path(CurateConfig, path)
        if not is_marked(CurateConfig, path, "select"):
            raise ValueError(f"{path}: would change scores, which an update keeps; curate into a new folder")
    config = override_all(read_config(run["config"]), settings)
    config = replace(config, removed=find_removed(folder, run))
    if add is not None:
        config = replace(config, input=add_input(config.input, absolute_input(add)))
    if remove is not None:
        removal = load_removed(absolute_uri(remove))
        assert removal is not None
        known = load_removed(config.removed) or Removal({})
        config = replace(config, removed=folder.at(VERSIONS, f"removed-{run.get(NUMBER, 1) + 1}.parquet"))
        write_removed(known.merge(removal), str(config.removed))
    return config


def _drop_other(folder: Folder, config: Any) -> None:
    """Remove what an unfinished update with other options left."""
    staged = find_next(folder)
    run = read_run(staged) if staged.exists(RUN) else None
    if run is None or run["config"] != json.loads(json.dumps(to_dict(config))):
        folder.remove(VERSIONS, NEXT)
