"""A curation's or selection's sections of run.json, and its report.

The report: summaries are mapped over scores files, a few photos are fetched, one page is drawn.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from typing import Any

import numpy as np

from raycomp.core.metrics import auc
from raycomp.curation.choose import Chosen
from raycomp.curation.config import SelectionRule
from raycomp.curation.funnel import make_funnel
from raycomp.curation.measures import corpus_columns
from raycomp.curation.page import render_curate
from raycomp.curation.rules import PAS
from raycomp.curation.scored import ScoresFile
from raycomp.curation.select import Gates, describe_duplicates, judge_file, rank_attributed
from raycomp.curation.summary import Summary, choose_shown, merge, summarise
from raycomp.data.arrow import FAULTS, SHUFFLED_ALIGNMENT
from raycomp.data.parquet import read_columns
from raycomp.data.paths import ShardPath
from raycomp.data.reader import extract, read_offsets
from raycomp.data.tar import find_image
from raycomp.language.nonce import REASONS
from raycomp.run.bad_data import describe_dropped
from raycomp.run.parts import Stats
from raycomp.run.tasks import map_files, map_tasks
from raycomp.table import Column, Table
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    DUPLICATE_GROUP,
    IMAGE_SHA256,
    KEY,
    NEAR_DUPLICATE,
    NO_PHRASE,
    NO_SEEN_PHRASE,
    OK,
    PHRASES,
    POSITION,
    SHARD,
    STATUS,
    UID,
    URL,
)

_COLUMNS = (UID, KEY, SHARD, POSITION, URL, CAPTION, STATUS, ALIGNMENT, PHRASES)


def draw_report(
    run: dict[str, Any],
    selection: SelectionRule,
    choice: Chosen,
    scores: list[ScoresFile],
    shards: list[ShardPath],
    extra_tables: list[Table],
) -> str:
    """Return the page of the run with record ``run``. Without ``shards`` the photos are grey tiles."""
    parts = map_files(summarise_scores, scores, selection, choice.gates, label="report", fold=_merge_all)
    summary = reduce(merge, parts, Summary())
    photos = _fetch_photos(summary, shards, [file.uri for file in scores])
    fingerprint = ", ".join(f"{name} {value}" for name, value in run["fingerprint"].items())
    # The page derives the rows that a gate lacked from the summary.
    warnings = [
        *describe_dropped("input", choice.faults),
        *describe_duplicates(choice.reasons, choice.gates.num_corpus),
    ]
    shown = {**run, "fingerprint": fingerprint, "warnings": warnings}
    tables = [*extra_tables, *([_report_coverage(run["coverage"])] if "coverage" in run else [])]
    if "near_duplicates" in run:
        tables.append(_report_near(run["near_duplicates"], choice.gates.num_corpus, choice.reasons))
    return render_curate(summary, photos, shown, make_funnel(summary.reasons), tables)


def _report_coverage(coverage: dict[str, Any]) -> Table:
    """Return a table of captions with a valid counterfactual, by both denominators, and phrases by reason."""
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


def _report_near(near: dict[str, Any], num_corpus: int, reasons: Mapping[str, int]) -> Table:
    """Return a table of the groups of near-duplicates by rule, in rows that no filter dropped."""
    rows = num_corpus + reasons.get(NEAR_DUPLICATE, 0)
    lines = [
        (
            "all rules" if name == DUPLICATE_GROUP else name,
            one["groups"],
            one["rows"],
            one["rows"] / max(rows, 1),
        )
        for name, one in near.items()
    ]
    note = "Rows in a group of two or more, of those that have an alignment and pass the filters."
    return Table("Near-duplicates", ("Rule", "groups", "rows", Column("share", digits=4)), lines, note)


def describe_coverage(stats: Stats) -> dict[str, Any]:
    """Return the share of the pool's captions with a valid counterfactual, and the phrases without by reason.

    ``of_captions`` compares with the paper's 99.79 %.
    """
    captions, covered = stats.statuses.total(), stats.statuses[OK] + stats.statuses[NO_SEEN_PHRASE]
    with_phrase = captions - stats.statuses[NO_PHRASE]
    return {
        "captions": captions,
        "with_phrase": with_phrase,
        "with_nonce": covered,
        "of_captions": covered / captions if captions else None,
        "of_captions_with_phrase": covered / with_phrase if with_phrase else None,
        "phrases_without_nonce": dict(stats.counts.get(FAULTS, {})),
    }


def check_scorer(stats: Stats) -> dict[str, Any] | None:
    """Return how well alignments separate a sample of pairs from the same images with other captions."""
    matched, shuffled = (np.array(stats.samples.get(name, ())) for name in (ALIGNMENT, SHUFFLED_ALIGNMENT))
    if not len(matched):
        return None
    return {
        "n": len(matched),
        "matched_mean": float(matched.mean()),
        "shuffled_mean": float(shuffled.mean()),
        "auc": float(auc(matched, shuffled)),
    }


def summarise_scores(file: ScoresFile, selection: SelectionRule, gates: Gates) -> Summary:
    """Return the summary of one scores file; its samples are drawn independently of those of a rule."""
    columns = [*_COLUMNS, *corpus_columns(selection.by_pas, with_attribute=True)]
    table, reason_N, score_N = judge_file(file, selection, gates, columns)
    table = table.append_column(PAS, rank_attributed(table, selection, gates))
    return summarise(table, reason_N, score_N, ~selection.seed)


def _merge_all(summaries: list[Summary]) -> list[Summary]:
    return [reduce(merge, summaries, Summary())]


def _fetch_photos(summary: Summary, shards: list[ShardPath], scores: list[str]) -> dict[str, bytes]:
    """Return the image bytes of the samples that the page shows, by uid, if the image is the scored one."""
    by_name = {shard.name: shard for shard in shards}
    wanted: dict[str, dict[int, str]] = defaultdict(dict)
    for sample in choose_shown(summary).samples:
        if sample.shard in by_name and sample.position is not None:
            wanted[sample.shard][sample.position] = sample.uid
    jobs = [(by_name[name], scores[by_name[name].ordinal], uids) for name, uids in sorted(wanted.items())]
    return {uid: image for found in map_tasks(read_photos, jobs, label="photos") for uid, image in found}


def read_photos(job: tuple[ShardPath, str, dict[int, str]]) -> list[tuple[str, bytes]]:
    """Return (uid, image bytes) of samples of a shard by position, if the image is the scored one."""
    shard, uri, uids = job
    return [(uids[position], image) for position, image in stream_photos(shard, uri, uids)]


def stream_photos(shard: ShardPath, uri: str, positions: Collection[int]) -> Iterator[tuple[int, bytes]]:
    """Yield (position, image bytes) of samples of a shard, in order, if the image is the scored one.

    ``uri``: the shard's scores file.
    """
    hashes = read_columns(uri, [IMAGE_SHA256])[IMAGE_SHA256]
    for position, members in extract(shard, positions, read_offsets(uri)):
        name = find_image(members)
        image = members[name] if name else None
        if image is not None and hashlib.sha256(image).hexdigest() == hashes[position].as_py():
            yield position, image
