"""Make the report of a run: summaries mapped over scores files, a few photos fetched, one page written."""

import hashlib
from collections import defaultdict
from functools import reduce
from typing import Any

from raycomp.cluster.curate.choose import Choice
from raycomp.cluster.session import map_tasks
from raycomp.config import CurateConfig
from raycomp.language.nonce import REASONS
from raycomp.loops.curate.measures import corpus_columns
from raycomp.loops.curate.select import Gates, judge
from raycomp.report.markup import Table
from raycomp.report.pages.curate.funnel import close_funnel
from raycomp.report.pages.curate.page import render
from raycomp.report.pages.curate.summary import Summary, choose_shown, merge, summarise
from raycomp.shards.folder import Folder
from raycomp.shards.parquet import read_columns
from raycomp.shards.paths import ShardPath
from raycomp.shards.reader import extract
from raycomp.shards.tar import find_image
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    IMAGE_SHA256,
    KEY,
    MEAN_PAS,
    PHRASES,
    POSITION,
    SHARD,
    STATUS,
    UID,
    URL,
)

REPORT = "report.html"
_COLUMNS = (UID, KEY, SHARD, POSITION, URL, CAPTION, STATUS, ALIGNMENT, MEAN_PAS, PHRASES)


def publish_report(
    folder: Folder,
    run: dict[str, Any],
    config: CurateConfig,
    choice: Choice,
    scores: list[str],
    shards: list[ShardPath],
    extra_tables: list[Table],
) -> None:
    """Write report.html. Without ``shards`` the photos stay grey."""
    parts = map_tasks(summarise_scores, scores, config, choice.gates, label="report")
    summary = reduce(merge, parts, Summary())
    photos = _fetch_photos(summary, shards, scores)
    fingerprint = ", ".join(f"{name} {value}" for name, value in run["fingerprint"].items())
    # The page finds its own warnings out of the summary.
    shown = {**run, "fingerprint": fingerprint, "warnings": []}
    tables = [*extra_tables, *([_tell_coverage(run["coverage"])] if "coverage" in run else [])]
    page = render(summary, photos, shown, close_funnel(summary.reasons), tables)
    folder.write_bytes(page.encode(), REPORT)


def _tell_coverage(coverage: dict[str, Any]) -> Table:
    """Return how many captions got a valid counterfactual by both denominators, and why phrases did not."""
    captions, found = coverage["captions"], coverage["with_nonce"]
    rows = [
        ("captions attributed", captions, None),
        ("of these, with a phrase", coverage["with_phrase"], None),
        ("of these, with a valid nonce", found, None),
        ("share of all captions", None, coverage["of_captions"]),
        ("share of captions with a phrase", None, coverage["of_captions_with_phrase"]),
        *(
            (f"phrases without: {REASONS[why]}", n, None)
            for why, n in coverage["phrases_without_nonce"].items()
        ),
    ]
    note = "The paper reports 0.9979 of the captions processed (Go et al., arXiv 2605.22651)."
    return Table("Counterfactual coverage", ("What", "number", "share"), rows, note)


def summarise_scores(uri: str, config: CurateConfig, gates: Gates) -> Summary:
    """Return what the report says of one scores file; its samples are drawn apart from those of a rule."""
    table = read_columns(uri, _COLUMNS)
    reason_N, score_N = judge(table.select(corpus_columns(config, with_second=True)), config, gates)
    return summarise(table, reason_N, score_N, ~config.seed)


def _fetch_photos(summary: Summary, shards: list[ShardPath], scores: list[str]) -> dict[str, bytes]:
    """Return the image bytes of the samples that the page shows, by uid; none that was not scored."""
    by_name = {shard.name: shard for shard in shards}
    wanted: dict[str, dict[int, str]] = defaultdict(dict)
    for sample in choose_shown(summary).samples:
        if sample.shard in by_name and sample.position is not None:
            wanted[sample.shard][sample.position] = sample.uid
    jobs = [(by_name[name], scores[by_name[name].ordinal], uids) for name, uids in sorted(wanted.items())]
    return {uid: image for found in map_tasks(_read_photos, jobs, label="photos") for uid, image in found}


def _read_photos(job: tuple[ShardPath, str, dict[int, str]]) -> list[tuple[str, bytes]]:
    shard, uri, uids = job
    hashes = read_columns(uri, [IMAGE_SHA256])[IMAGE_SHA256]
    found = []
    for position, members in extract(shard, uids):
        image = members.get(find_image(members))
        if image is not None and hashlib.sha256(image).hexdigest() == hashes[position].as_py():
            found.append((uids[position], image))
    return found
