"""``raycomp audit``: measure every row, count what is odd, show it with the option that drops it."""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc

from raycomp.core.selection import hash_uids, parse_uids
from raycomp.curation.publish import read_photos
from raycomp.data.files import check_writable
from raycomp.data.image_inputs import check_tables
from raycomp.data.inputs import check_output, expand_input
from raycomp.data.parquet import read_columns
from raycomp.data.paths import ShardPath, absolute_uri, count_bytes, fingerprint_shards
from raycomp.data.runs import digest
from raycomp.data.whole import with_absolute_paths
from raycomp.look.audit.checks import Check, find_phrases, list_checks
from raycomp.look.audit.config import AuditConfig
from raycomp.look.audit.measure import (
    ROWS,
    find_odd,
    find_repeats,
    measure_shard,
    merge_captions,
    name_rows,
    read_keys,
    read_usable,
    sample_captions,
)
from raycomp.models.describe import describe_scorer
from raycomp.report.page import render_page
from raycomp.run.bad_data import check_bad_rows, describe_dropped
from raycomp.run.run import Run, Say, start_run
from raycomp.run.session import connect
from raycomp.run.tasks import map_files, map_tasks
from raycomp.table import percent, write_csv
from raycomp.words import CAPTION, OK, POSITION, SHARD, STATUS, UID

FINDINGS = "findings.csv"
ODD, PLAIN = "odd", "not_odd"
_MAIN_SHARE = 0.5
_NO_WEIGHTS = "random:0"


@dataclass
class Finding:
    """What a check found."""

    check: Check
    rows: int
    of: int
    shown: list[tuple[str, str | None]]
    """Uid and caption of the rows that are shown."""

    @property
    def share(self) -> str:
        """The share of the usable rows."""
        return percent(self.rows, self.of)


def audit(config: AuditConfig, out: str, say: Say = print) -> dict[str, Any]:
    """Audit ``config.input`` into the folder or uri ``out``; return what run.json holds.

    ``rows/`` has every row with the columns that curate writes before its model runs, ``findings.csv`` a row
    for each check. Raises ValueError for errors the user can fix, UserError where no row can be used.
    """
    out, config = absolute_uri(str(out)), with_absolute_paths(config)
    check_output(config.input, out)
    shards = expand_input(config.input, None, config.columns)
    check_writable(out)
    check_tables(shards)
    spec = describe_scorer(replace(config.scorer, weights=_NO_WEIGHTS))

    def fingerprint() -> dict[str, Any]:
        return {"input": digest(fingerprint_shards(shards)), "shards": len(shards)}

    with start_run("audit", config, fingerprint, out, say, outputs=(ROWS, FINDINGS)) as run:
        if run.is_finished:
            return run.record
        run.bind("cpu")
        size = partial(count_bytes, shards)
        with connect(config.cluster, run.folder, run.lease.check, scores=False, say=say, num_bytes=size):
            statuses: Counter[str] = Counter()
            languages: Counter[str | None] = Counter()
            for found, spoken in map_tasks(measure_shard, shards, config, spec, run.folder, label="measure"):
                statuses.update(found)
                languages.update(spoken)
            check_bad_rows("input", statuses, config.max_bad_fraction)
            _report(run, config, shards, statuses, _find_main(languages), say)
    return run.record


def _find_main(languages: Counter[str | None]) -> str | None:
    """Return the language of more than half of the captions, None where there is none."""
    known = Counter({name: count for name, count in languages.items() if name is not None})
    name, count = known.most_common(1)[0] if known else (None, 0)
    return name if count > _MAIN_SHARE * known.total() else None


def _report(
    run: Run,
    config: AuditConfig,
    shards: list[ShardPath],
    statuses: Counter[str],
    language: str | None,
    say: Say,
) -> None:
    uris = [run.folder.at(ROWS, name_rows(shard.ordinal)) for shard in shards]
    captions = merge_captions(list(map_files(sample_captions, uris, config.seed, label="phrases")))
    phrases = find_phrases(captions, config.boilerplate, config.most_phrases)
    checks = list_checks(config, language, phrases)
    odd = _find_all(uris, checks)
    findings = _list_findings(uris, checks, odd, config, statuses[OK])
    photos = _fetch_photos(shards, uris, findings)
    rows = [(one.check.name, one.rows, one.rows / max(one.of, 1), one.check.option) for one in findings]
    run.folder.write_bytes(write_csv([("check", "rows", "share", "option"), *rows]).encode(), FINDINGS)
    names = [check.name for check in checks if not check.is_phrase]
    num_odd = int(sum(np.any([by_check[name] for name in names], axis=0).sum() for by_check in odd))
    bad = {status: count for status, count in statuses.items() if status != OK}
    run.close(statuses, {**bad, ODD: num_odd, PLAIN: statuses[OK] - num_odd}, PLAIN, statuses[OK])
    run.record["warnings"] = describe_dropped("input", statuses)
    for warning in run.record["warnings"]:
        say(warning)
    found = [one for one in findings if one.rows and not one.check.is_phrase]
    most = f"; the largest: {found[0].check.name}, {found[0].rows:,}" if found else ""
    number = sum(not one.check.is_phrase for one in findings)
    headline = (
        f"{len(found)} of {number} checks found something, in {num_odd:,} of {statuses[OK]:,} rows{most}"
    )
    page = render_page(
        "look/audit/page.html.jinja",
        run=run.record,
        headline=headline,
        found=found,
        phrases=[one for one in findings if one.check.is_phrase],
        nothing=[one.check.name for one in findings if not one.rows],
        statuses=sorted(statuses.items(), key=lambda item: (-item[1], item[0])),
        photos=photos,
    )
    run.report(headline, page)


def _find_all(uris: list[str], checks: list[Check]) -> list[dict[str, np.ndarray]]:
    """Return of each file which usable rows each check finds odd."""
    odd = list(map_files(find_odd, uris, checks, label="checks"))
    for check in checks:
        if check.rule is not None:
            keys = list(map_files(read_keys, uris, check.rule, label="repeats"))
            for by_check, odd_N in zip(odd, find_repeats(keys), strict=True):
                by_check[check.name] = odd_N
    return odd


def _list_findings(
    uris: list[str],
    checks: list[Check],
    odd: list[dict[str, np.ndarray]],
    config: AuditConfig,
    num_usable: int,
) -> list[Finding]:
    """Return what each check found, the most frequent first, with the rows to show, drawn by seed."""
    drawn: dict[str, list[tuple[int, str, str | None]]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for uri, by_check in zip(uris, odd, strict=True):
        table = read_usable(uri, [UID, CAPTION])
        if not len(table):
            continue
        hash_N = hash_uids(parse_uids(table[UID]), config.seed)
        for name, odd_N in by_check.items():
            counts[name] += int(odd_N.sum())
            rows = np.flatnonzero(odd_N)
            for row in rows[np.argsort(hash_N[rows], kind="stable")[: config.pictures]].tolist():
                drawn[name].append((int(hash_N[row]), table[UID][row].as_py(), table[CAPTION][row].as_py()))
            drawn[name] = sorted(drawn[name])[: config.pictures]
    found = [
        Finding(one, counts[one.name], num_usable, [row[1:] for row in drawn[one.name]]) for one in checks
    ]
    return sorted(found, key=lambda one: -one.rows)


def _fetch_photos(shards: list[ShardPath], uris: list[str], findings: list[Finding]) -> dict[str, bytes]:
    """Return the image bytes of the rows that are shown, by uid."""
    wanted = {uid for one in findings for uid, _ in one.shown}
    jobs = []
    for shard, uri in zip(shards, uris, strict=True):
        table = read_columns(uri, [UID, STATUS, POSITION, SHARD])
        table = table.filter(pc.equal(table[STATUS], OK))
        uids = dict(zip(table[POSITION].to_pylist(), table[UID].to_pylist(), strict=True))
        own = {position: uid for position, uid in uids.items() if uid in wanted}
        if own:
            jobs.append((shard, uri, own))
    return {uid: image for found in map_tasks(read_photos, jobs, label="photos") for uid, image in found}
