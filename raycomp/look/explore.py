"""``raycomp explore``: pages to look at the samples of a curation."""

import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from raycomp.config import DryRun, as_setting, changed_options, flatten, list_options
from raycomp.curation.config import CurateConfig, read_config
from raycomp.curation.page import REASON_WORDS, reason_words
from raycomp.curation.select.filters import EXCLUDE
from raycomp.curation.select.measures import ScoresFile
from raycomp.data.files import Folder, is_dry_run
from raycomp.data.inputs import check_output, expand_input
from raycomp.data.paths import ShardPath, absolute_uri, count_bytes
from raycomp.data.runs import SUBSET_KINDS, find_curation, identify, read_finished
from raycomp.look.cards import (
    DATA,
    NOT_DRAWN,
    NOT_SHOWN,
    SHOWN,
    Drawn,
    Indexed,
    Job,
    Source,
    check_atlas,
    draw_rows,
    list_starts,
    load_embeddings,
    number_files,
    open_source,
    plan_jobs,
    put,
    write_atlas,
    write_cards,
    write_index,
)
from raycomp.look.config import ExploreConfig
from raycomp.report.charts import Html
from raycomp.report.page import INDEX_MARK, POLICY, render_page
from raycomp.run.run import Run, Say, command_line, start_run
from raycomp.run.session import connect
from raycomp.run.waves import map_tasks
from raycomp.words import OK

_SCRIPT = "explore.js"
# Scripts of the page's own folder run as well: 'self' is for a server, file: for a disk.
_POLICY = f"{POLICY} 'self' file:"


def write_assets(folder: Folder, about: Mapping[str, Any]) -> None:
    """Write the script, and what it must know, to ``data/`` of the folder."""
    folder.write_bytes(files("raycomp.look").joinpath(_SCRIPT).read_bytes(), DATA, _SCRIPT)
    put(folder, "index/about", {**about, "words": REASON_WORDS})


def draw_page(run: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Return the page of a run of ``explore`` with its row counts; ``about`` as in ``write_assets``."""
    funnel, config = run["funnel"], run["config"]
    drawn = funnel["read"] - funnel["dropped"].get(NOT_SHOWN, 0)
    outcomes = sorted(about["all"].items(), key=lambda item: (-item[1], item[0]))
    return render_page(
        "look/explore.html.jinja",
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


def explore(
    source: str, config: ExploreConfig, atlas: str | None, out: str | None, say: Say = print
) -> dict[str, Any] | None:
    """Write pages of the samples of the curation or selection in ``source`` to ``out``; return run.json.

    ``atlas`` is a Parquet file to write, of the same rows, instead of the pages or in addition to them; see
    ``write_atlas``. Raises ValueError where there is no finished curation or selection, and ValueError or
    UserError where the condition does not fit its columns.
    """
    source = absolute_uri(str(source))
    made = _read_source(source)
    found, files = open_source(made, source, config)
    shards = _find_shards(made)
    work = _Work(found, files, config, shards, atlas and absolute_uri(atlas))
    if work.atlas is not None:
        check_atlas(work.atlas, config)
    if out is None:
        if is_dry_run():
            raise DryRun("dry run of explore: all checks passed, nothing was written")
        with connect(config.cluster, scores=False, say=say, num_bytes=work.count_bytes):
            work.run(None, say)
        return None
    out = absolute_uri(str(out))
    check_output(str(made["config"]["input"]), out)
    rerun = command_line(f"raycomp explore {shlex.quote(source)}", changed_options(config), out)

    def identify_source() -> dict[str, Any]:
        return {"run": identify(_read_source(source))}

    with start_run("explore", config, identify_source, out, say, rerun, outputs=(DATA,)) as run:
        if not run.is_finished:
            run.bind("cpu")
            with connect(
                config.cluster, run.folder, run.lease.check, scores=False, say=say, num_bytes=work.count_bytes
            ):
                drawn, jobs, parts = work.run(run.folder, say)
            _close(
                run, made, source, drawn, jobs, write_index(parts, run.folder) if parts else {}, bool(shards)
            )
    return run.record


@dataclass(frozen=True)
class _Work:
    """What is computed on the executor."""

    source: Source
    files: list[ScoresFile]
    config: ExploreConfig
    shards: dict[str, ShardPath]
    atlas: str | None

    def count_bytes(self) -> int:
        """Return the size of the photos' shards, where photos are read."""
        return count_bytes([*self.shards.values()]) if self.config.thumbnails else 0

    def run(self, folder: Folder | None, say: Say) -> tuple[Drawn, list[Job], list[Indexed]]:
        """Draw the rows; write their cards to the folder, if there is one, and the atlas."""
        config = self.config
        drawn = draw_rows(self.source, self.files, config.rows)
        embeddings = load_embeddings(drawn.shown)
        jobs = plan_jobs(drawn.shown, embeddings, config)
        parts: list[Indexed] = []
        if folder is not None:
            shared = (self.source, config, self.shards, folder)
            parts += map_tasks(write_cards, number_files(jobs), *shared, label="cards")
        if self.atlas is not None:
            say(write_atlas(jobs, self.source, config, self.shards, embeddings, self.atlas))
        return drawn, jobs, parts


def _read_source(source: str) -> dict[str, Any]:
    run = read_finished(source)
    if run["kind"] not in SUBSET_KINDS:
        raise ValueError(f"{source}: holds {run['kind']}; name a curation or selection")
    return run


def _find_shards(run: dict[str, Any]) -> dict[str, ShardPath]:
    config = read_config(run["config"])
    if config.prepare.stored_embeddings is not None:
        return {}
    try:
        return {shard.name: shard for shard in expand_input(config.input, None, config.columns)}
    except ValueError:
        return {}


def _close(
    run: Run,
    made: dict[str, Any],
    source: str,
    drawn: Drawn,
    jobs: list[Job],
    facts: dict[str, Any],
    has_photos: bool,
) -> None:
    """Count the rows and draw the page."""
    counts = {name: count for name, count in drawn.counts.items() if count or name == SHOWN}
    num, read = counts[SHOWN], sum(counts.values())
    run.close({OK: read}, counts, SHOWN)
    about = {
        **facts,
        "id": run.record["id"],
        "rows": num,
        "cards": list_starts(jobs),
        "all": dict(drawn.outcomes),
        "has_photos": has_photos,
        "source": source,
        "select": _write_select(made, source),
        "explain": f"raycomp explain {shlex.quote(source)}",
    }
    write_assets(run.folder, about)
    run.report(f"pages of {num:,} of {read:,} rows", draw_page(run.record, about))


def _write_select(made: dict[str, Any], source: str) -> dict[str, str | None]:
    """Return the command that chooses again without the ticked rows, and the list that the run has now."""
    curation = posixpath.dirname(made["scores"]) if made["kind"] == "select" else source
    before = dict(flatten(find_curation(made, source)["config"]))
    free = {option.path for option in list_options(CurateConfig, "select")}
    changed = {path: value for path, value in flatten(made["config"]) if before.get(path) != value}
    options = {path: value for path, value in changed.items() if path in free}
    known = options.pop(EXCLUDE, before.get(EXCLUDE))
    start = f"raycomp select {shlex.quote(curation)}"
    line = command_line(start, {**options, EXCLUDE: "exclude.txt"}, f"{source}-2")
    return {"command": line, "exclude": known and as_setting(known)}
