"""``raycomp explore``: pages to look at the samples of a curation."""

import posixpath
import shlex
from contextlib import suppress
from functools import partial
from importlib.resources import files
from typing import Any

from raycomp.config import DryRun, as_setting, changed_options, flatten, list_options
from raycomp.curation.config import CurateConfig, read_config
from raycomp.curation.page import REASON_WORDS, reason_words
from raycomp.curation.select.filters import EXCLUDE
from raycomp.data.files import Folder, is_dry_run
from raycomp.data.inputs import check_output, expand_input
from raycomp.data.paths import ShardPath, absolute_uri, count_bytes
from raycomp.data.runs import SUBSET_KINDS, find_curation, identify, read_finished
from raycomp.look.cards import (
    DATA,
    NOT_DRAWN,
    NOT_SHOWN,
    ROWS_PER_FILE,
    SHOWN,
    Drawn,
    Indexed,
    Job,
    check_atlas,
    draw_rows,
    load_embeddings,
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

# Scripts of the page's own folder run as well: 'self' is for a server, file: for a disk.
_POLICY = f"{POLICY} 'self' file:"


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
    found, scores = open_source(made, source, config)
    curated, shards = read_config(made["config"]), dict[str, ShardPath]()
    if curated.prepare.stored_embeddings is None:
        with suppress(ValueError):  # the input may be gone
            shards = {one.name: one for one in expand_input(curated.input, None, curated.columns)}
    if atlas is not None:
        atlas = absolute_uri(atlas)
        check_atlas(atlas, config)

    size = partial(count_bytes, [*shards.values()] if config.thumbnails else [])
    connected = partial(connect, config.cluster, scores=False, say=say, num_bytes=size)

    def work(folder: Folder | None) -> tuple[Drawn, list[Job], list[Indexed]]:
        """Draw the rows; write their cards to the folder, if there is one, and the atlas."""
        drawn = draw_rows(found, scores, config.rows)
        embeddings = load_embeddings(drawn.shown)
        jobs, parts = plan_jobs(drawn.shown, embeddings, config), list[Indexed]()
        if folder is not None:
            parts += map_tasks(write_cards, jobs, found, config, shards, folder, label="cards")
        if atlas is not None:
            say(write_atlas(jobs, found, config, shards, embeddings, atlas))
        return drawn, jobs, parts

    if out is None:
        if is_dry_run():
            raise DryRun("dry run of explore: all checks passed, nothing was written")
        with connected():
            work(None)
        return None
    out = absolute_uri(str(out))
    check_output(curated.input, out)
    rerun = command_line(f"raycomp explore {shlex.quote(source)}", changed_options(config), out)

    def identify_source() -> dict[str, Any]:
        return {"run": identify(_read_source(source))}

    with start_run("explore", config, identify_source, out, say, rerun, outputs=(DATA,)) as run:
        if not run.is_finished:
            run.bind("cpu")
            with connected(run.folder, run.lease.check):
                drawn, jobs, parts = work(run.folder)
            facts = write_index(parts, run.folder) if parts else {}
            _close(run, made, source, drawn, jobs, facts, bool(shards))
    return run.record


def _read_source(source: str) -> dict[str, Any]:
    run = read_finished(source)
    if run["kind"] not in SUBSET_KINDS:
        raise ValueError(f"{source}: holds {run['kind']}; name a curation or selection")
    return run


def _close(
    run: Run,
    made: dict[str, Any],
    source: str,
    drawn: Drawn,
    jobs: list[Job],
    facts: dict[str, Any],
    has_photos: bool,
) -> None:
    """Count the rows; write the script, what it must know, and the page."""
    counts = {name: count for name, count in drawn.counts.items() if count or name == SHOWN}
    num, read = counts[SHOWN], sum(counts.values())
    run.close({OK: read}, counts, SHOWN)
    record, config, first_rows = run.record, run.record["config"], list[int]()
    for job in jobs:
        first = job.shown.first
        first_rows += range(first, first + len(job.shown.row_M), ROWS_PER_FILE)
    about = {
        **facts,
        "id": record["id"],
        "rows": num,
        "cards": first_rows,
        "all": dict(drawn.outcomes),
        "has_photos": has_photos,
        "source": source,
        "select": _write_select(made, source),
        "explain": f"raycomp explain {shlex.quote(source)}",
    }
    script = files("raycomp.look").joinpath("explore.js").read_bytes()
    run.folder.write_bytes(script, DATA, "explore.js")
    put(run.folder, "index/about", {**about, "words": REASON_WORDS})
    page = render_page(
        "look/explore.html.jinja",
        run={**record, "fingerprint": f"run {record['fingerprint']['run']}"},
        about=about,
        read=read,
        where=config["where"],
        drawn=read - counts.get(NOT_SHOWN, 0) if NOT_DRAWN in counts else None,
        seed=config["seed"],
        outcomes=[
            (reason_words(name), count)
            for name, count in sorted(drawn.outcomes.items(), key=lambda item: (-item[1], item[0]))
        ],
        policy=_POLICY,
        index_mark=Html(INDEX_MARK),
    )
    run.report(f"pages of {num:,} of {read:,} rows", page)


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
