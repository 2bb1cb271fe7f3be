"""``raycomp update``: bring a finished curation, or the negatives of one, up to date in its folder.

The update is the ordinary command in ``DIR/work/next``, which takes over every row that is still the same and
can be resumed like any other. Its result equals that of a run from scratch with the same input and options,
byte for byte. Then its files replace those of DIR. Meanwhile run.json has the status ``updating``: whatever
reads the folder is refused, and the next update finishes this one. So nothing of a removed row is left.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow.compute as pc

from raycomp.config import DryRun, check_path, exact_share, is_marked, override_all, to_dict
from raycomp.config.commands import from_dict, import_command, import_object
from raycomp.curation.config import CurateConfig, make_pool_selection, read_config
from raycomp.curation.score.reuse import find_reuse, has_attribution
from raycomp.curation.select import filters
from raycomp.curation.select.filters import MATCHED, REMOVABLE, Removal, load_removed
from raycomp.curation.select.measures import ScoresFile
from raycomp.curation.select.select import cut_pool
from raycomp.data import files, inputs, runs
from raycomp.data.files import RUN, WORK, Folder, absolute_uri, link_file
from raycomp.data.inputs import ShardPath
from raycomp.data.parquet import hash_images, read_columns, write_table
from raycomp.data.reader import read_shard
from raycomp.data.runs import FINISHED, UPDATING, read_finished, read_manifest, read_run
from raycomp.run.executor import use
from raycomp.run.local import Local
from raycomp.run.run import OUTPUTS, Say, check_free, hold_lease, tidy
from raycomp.run.work import map_files
from raycomp.words import ALIGNMENT, PHRASES, REMOVED, SHARD, STATUS, UID

NEXT = "next"
"""The folder below ``work`` in which an update works."""
REMOVED_LIST = "removed.parquet"
"""The rows and shards that updates have removed, as hashes: the option ``removed`` of the run."""
_REMOVE = "--remove"
_BLOCK_ROWS, _MOST_SHOWN = 256, 5


def update(
    source: str,
    add: str | None = None,
    remove: str | None = None,
    settings: Mapping[str, Any] | None = None,
    say: Say = print,
) -> str:
    """Bring the run in ``source`` up to date; return a line on what it holds now.

    A curation: shards that its input has gained or that have changed are scored, with ``add`` those of
    another input too. ``remove``: a list as that of the option ``removed``, which is added to the run's own.
    ``settings``: options of selection and attribution by path; only what they lack is attributed. A run of
    negatives follows its input and takes none of these. Raises ValueError for errors the user can fix, and
    where another process works in the folder; DryRun in a dry run.
    """
    folder = Folder(absolute_uri(source))
    found = read_run(folder)
    run = found if found and found["status"] == UPDATING else read_finished(folder.uri)
    if run["status"] == UPDATING and not folder.exists(WORK, NEXT, RUN):
        raise ValueError(f"{folder.uri}: its folder {WORK} is gone, which the update needs; curate it anew")
    if run["format"] != runs.FORMAT:
        raise ValueError(f"{folder.uri}: was written by an older version; curate it anew in another folder")
    if run["kind"] not in ("curate", "negatives"):
        raise ValueError(f"{source}: holds {run['kind']}; a curation or negatives can be updated")
    if run["kind"] == "negatives" and (add or remove or settings):
        raise ValueError(f"{source}: holds negatives, which follow their input; update that first")
    files.check_writable(folder.uri)
    if files.is_dry_run():
        check_free(folder)
        plan = _plan(folder, run, add, remove, settings or {})
        raise DryRun(f"dry run of update: all checks passed, nothing was written; it {plan}")
    with hold_lease(folder) as lease:
        staged = Folder(folder.at(WORK, NEXT))
        staged_run = read_run(staged)
        is_cut_off = staged_run is not None and staged_run["status"] == FINISHED
        if is_cut_off:
            publish(folder, lease.check)
        run = read_finished(folder.uri)
        runs.check_results(folder, run)
        config, removal = _next_config(folder, run, add, remove, settings or {})
        _stage(folder, config, removal)
        if remove is not None:
            with use(Local(len(os.sched_getaffinity(0)))):
                for line in _list_unmatched(folder, run, config, remove):
                    say(line)
        command = import_object(import_command(run["kind"]).function)

        def tell(line: str) -> None:
            if staged.uri not in line:
                say(line)

        command(config, staged.uri, tell, earlier=folder.uri)
        record = _move(folder, staged.read_json(RUN))
        if record["manifest"]["sha256"] == run["manifest"]["sha256"] and record["config"] == run["config"]:
            tidy(folder)
            return f"{folder.uri}: {run['headline'] if is_cut_off else 'nothing has changed'}"
        changes = ""
        if run["kind"] == "curate":
            taken, num = record["taken_over"], _count_present(run)
            removed, added = num - taken["present"], record["funnel"]["read"] - taken["rows"]
            changes = f"removed {removed:,} of {num:,} rows, added {added:,}; "
        return f"{folder.uri}: {changes}{publish(folder, lease.check)['headline']}"


def _next_config(
    folder: Folder, run: Mapping[str, Any], add: str | None, remove: str | None, settings: Mapping[str, Any]
) -> tuple[Any, Removal | None]:
    """Return the config of the run from scratch that the update equals, and the list to be written for it."""
    if run["kind"] == "negatives":
        return from_dict(import_command("negatives").config(), run["config"]), None
    for path in settings:
        check_path(CurateConfig, path)
        if not is_marked(CurateConfig, path, "update"):
            raise ValueError(f"{path}: would change scores, which an update keeps; curate into a new folder")
    config = override_all(read_config(run["config"]), settings).check_typed(settings)
    if folder.exists(REMOVED_LIST):
        config = replace(config, removed=folder.at(REMOVED_LIST))  # also after a move
    if add is not None:
        config = replace(config, input=inputs.add_input(config.input, inputs.absolute_input(add)))
    more = None if remove is None else load_removed(absolute_uri(remove), _REMOVE)
    if more is None:
        return config, None
    known = load_removed(config.removed) or Removal({})
    removal = Removal(filters.merge_lists([known.lists, more.lists]))
    if removal.digest() == known.digest():
        return config, None
    return replace(config, removed=folder.at(WORK, REMOVED_LIST)), removal


def _stage(folder: Folder, config: Any, removal: Removal | None) -> None:
    """Remove what an unfinished update with other options left; write the list of what is removed."""
    staged_run, listed = read_run(Folder(folder.at(WORK, NEXT))), folder.at(WORK, REMOVED_LIST)
    is_same = staged_run is not None and staged_run["config"] == json.loads(json.dumps(to_dict(config)))
    if is_same and removal is not None:
        known = load_removed(listed) if folder.exists(WORK, REMOVED_LIST) else None
        is_same = known is not None and known.digest() == removal.digest()
    if not is_same:
        folder.remove(WORK)
        if removal is not None:
            filters.write_removed(removal, listed)


def _move(folder: Folder, record: Any) -> Any:
    """Return a staged run's record with the places that its files will have."""
    text = json.dumps(record)
    for name, target in ((NEXT, folder.uri), (REMOVED_LIST, folder.at(REMOVED_LIST))):
        text = text.replace(json.dumps(folder.at(WORK, name))[1:-1], json.dumps(target)[1:-1])
    return json.loads(text)


def publish(folder: Folder, check: Callable[[], None]) -> dict[str, Any]:
    """Replace the files of ``folder`` by those of the finished run in ``work/next``; return its record.

    ``check`` raises where another process took the folder over. Safe to repeat after a kill at any moment.
    """
    staged, present = Folder(folder.at(WORK, NEXT)), folder.read_json(RUN)
    record = _move(folder, staged.read_json(RUN))
    if present["id"] != record["id"]:
        before = read_manifest(folder) if present["status"] == FINISHED else {}
        check()
        folder.write_json({**present, "status": UPDATING}, RUN)
        there = read_manifest(staged)
        for name, file in there.items():
            if name not in before or before[name].sha256 != file.sha256:
                link_file(file, folder.at(name))
        for name in folder.find_names():
            if name.partition("/")[0] in OUTPUTS and name not in there:
                folder.remove(name)
        if folder.exists(WORK, REMOVED_LIST):
            folder.write_bytes(folder.read_bytes(WORK, REMOVED_LIST), REMOVED_LIST)
        page = staged.read_bytes(files.REPORT).replace(staged.uri.encode(), folder.uri.encode())
        folder.write_bytes(page, files.REPORT)
        folder.write_bytes(staged.read_bytes(runs.MANIFEST), runs.MANIFEST)
        check()
        folder.write_json(record, RUN)
    tidy(folder)
    return record


def _plan(
    folder: Folder, run: dict[str, Any], add: str | None, remove: str | None, settings: Mapping[str, Any]
) -> str:
    """Return how many rows an update would remove, add and attribute; nothing is written to ``folder``."""
    if run["status"] == UPDATING:
        return "would first finish the update that was cut off"
    if run["kind"] == "negatives":
        input_folder, curated = runs.read_curation(run["config"]["input"])
        sources = [input_folder.at(files.KEPT_FILE)]
        if not curated:
            sources = [shard.uri for shard in inputs.expand_input(input_folder.uri)]
        then, now = (
            {uid for uri in uris for uid in read_columns(uri, [UID])[UID].to_pylist()}
            for uris in (runs.list_negatives(run, folder.uri), sources)
        )
        return f"would remove {len(then - now):,} captions and add {len(now - then):,}"
    config, removal = _next_config(folder, run, add, remove, settings)
    with TemporaryDirectory() as temporary, use(Local(len(os.sched_getaffinity(0)))):
        place = Folder(temporary)
        if removal is not None:
            config = replace(config, removed=place.at(REMOVED_LIST))
            filters.write_removed(removal, str(config.removed))
        shards = filters.list_shards(config)
        reuse = find_reuse(folder.uri, shards)
        jobs = list(reuse.scores.items())
        left = sum(map_files(_reduce, jobs, config, run["config"], place, label="count"))
        new = [shard for shard in shards if shard.ordinal not in reuse.scores]
        added = sum(map_files(lambda one: sum(map(len, read_shard(one, _BLOCK_ROWS))), new, label="count"))
        reduced = [ScoresFile(place.at(f"{ordinal:05d}.parquet")) for ordinal in reuse.scores]
        pool = make_pool_selection(config.pool, config.select.datacomp_compat)
        num = sum(cut_pool(reduced, pool)["sizes"]) if reduced else 0
        unmatched = [] if remove is None else _list_unmatched(folder, run, config, remove)
    num += exact_share(config.pool, added)
    before = _count_present(run)
    changes = f"remove {before - left:,} of {before:,} rows, add {added:,} and attribute about {num:,}"
    anew = [f"changed, so every row of it is scored anew: {name}" for name in reuse.changed[:_MOST_SHOWN]]
    return "; ".join([f"would {changes}", *anew, *unmatched])


def _reduce(
    job: tuple[int, files.Written], config: CurateConfig, then: Mapping[str, Any], place: Folder
) -> int:
    """Write what the gate of the pool reads of a scores file that is taken over; return how many of its rows
    are not removed."""
    ordinal, file = job
    table = read_columns(file.uri, [*MATCHED, ALIGNMENT, PHRASES])
    removal = load_removed(config.removed) or Removal({})
    is_removed_N = removal.find_rows(table)[0] | pc.equal(table[STATUS], REMOVED).to_numpy()
    has_phrases = pc.and_(table[PHRASES].is_valid(), has_attribution(file.uri, then, config))
    table = table.select([UID, STATUS, ALIGNMENT]).append_column(PHRASES, pc.if_else(has_phrases, True, None))
    table = filters.blank_rows(table, is_removed_N, [ALIGNMENT, PHRASES])
    write_table(table, place.at(f"{ordinal:05d}.parquet"), table.schema.remove_metadata())
    return int((~is_removed_N).sum())


def _count_present(run: Mapping[str, Any]) -> int:
    """Return the number of rows of a run that are not removed."""
    return int(run["funnel"]["read"] - run["funnel"]["dropped"].get(REMOVED, 0))


def _list_unmatched(folder: Folder, run: dict[str, Any], config: CurateConfig, remove: str) -> list[str]:
    """Return a line on entries of the list ``remove`` that no row has; new shards are read only for these."""
    uri = absolute_uri(remove)
    shards = filters.list_shards(replace(config, removed=None))
    named = {SHARD: filters.hash_keys(SHARD, [shard.name for shard in shards])}
    matched = [named, *map_files(_match, runs.list_scores(run, folder.uri), uri, label="match the list")]
    find = partial(filters.list_unmatched, _REMOVE, uri, kinds=REMOVABLE)
    if find(matched=filters.merge_lists(matched)):
        reused = find_reuse(folder.uri, shards).scores
        new = [shard for shard in shards if shard.ordinal not in reused]
        matched += map_files(_match, new, uri, label="match the list")
    return find(matched=filters.merge_lists(matched))


def _match(item: str | ShardPath, uri: str) -> dict[str, np.ndarray]:
    """Return the keys of a list that rows of a scores file, or of a shard, have, by kind."""
    removal = load_removed(uri, _REMOVE) or Removal({})
    if isinstance(item, str):
        return removal.find_rows(read_columns(item, MATCHED))[1]
    blocks = map(hash_images, read_shard(item, _BLOCK_ROWS))
    return filters.merge_lists(removal.find_rows(block)[1] for block in blocks)
