"""``raycomp audit``: what is odd about a data set, and the option that drops it, before any model runs.

Most are conditions on the columns that curate writes: a row is odd where its ``filter.where`` is false.
Kinds of pictures as in CleanVision (github.com/cleanlab/cleanvision).

Letters: N rows of a file, M of them drawn.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.core.selection import hash_uids, parse_uids
from raycomp.curation.command import read_photos
from raycomp.curation.score.stages import load_measures, prepare
from raycomp.curation.select.filters import add_short_names
from raycomp.curation.select.near import name_key
from raycomp.data import inputs
from raycomp.data.expression import evaluate, find_columns
from raycomp.data.files import absolute_uri, check_writable
from raycomp.data.inputs import ShardPath
from raycomp.data.parquet import aligned_schema, new_groups, read_columns
from raycomp.data.reader import check_tables, read_shard
from raycomp.data.runs import digest, order_reasons
from raycomp.look.config import AuditConfig
from raycomp.models.architecture import ScorerSpec, describe_scorer
from raycomp.report.page import render_page
from raycomp.run.executor import connect
from raycomp.run.progress import check_bad_rows, describe_dropped, name_dropped, note_examples
from raycomp.run.run import Run, Say, start_run
from raycomp.run.work import map_files, map_tasks
from raycomp.table import number, percent, write_csv

LEAST_CAPTIONS = 10
_PHRASE = "phrase: "
_LENGTHS = range(2, 7)
_WITHIN = 0.8


class Check(NamedTuple):
    """One kind of oddity; either ``where`` or ``rule`` is set."""

    name: str
    where: str | None = None
    """Rows for which it is true are not odd."""
    rule: str | None = None
    """A rule of ``near.rules``: one row of each group is not odd."""

    @property
    def is_phrase(self) -> bool:
        """Whether it is a frequent phrase, which need not be odd."""
        return self.name.startswith(_PHRASE)

    @property
    def option(self) -> str:
        """The option that drops the odd rows."""
        return f"near.rules={self.rule}" if self.where is None else f"filter.where={self.where}"


def list_checks(config: AuditConfig, language: str | None, phrases: Sequence[str]) -> list[Check]:
    """Return the checks; ``language``: the captions' main one; ``phrases``: their boilerplate, lower case."""
    low, high = f"1.0 / {config.aspect:g}", f"{config.aspect:g}"
    found = [
        Check("dark pictures", f"brightness >= {config.dark:g}"),
        Check("bright pictures", f"brightness <= {config.bright:g}"),
        Check("pictures of one colour", f"sharpness >= {config.flat:g}"),
        Check("blurred pictures", f"sharpness < {config.flat:g} OR sharpness >= {config.blurred:g}"),
        Check("grey pictures", f"colourfulness >= {config.grey:g}"),
        Check("small pictures", f"least(width, height) >= {config.side}"),
        Check("long pictures", f"aspect >= {low} AND aspect <= {high}"),
        Check("images that repeat, byte by byte", rule="exact"),
        Check("images that repeat in the model's pixels", rule="pixels"),
        Check("captions that repeat", rule="captions"),
        Check("short captions", f"words >= {config.least_words}"),
        Check("long captions", f"words <= {config.most_words}"),
    ]

    def quote(text: str) -> str:
        """Return a text as SQL writes it."""
        return "'" + text.replace("'", "''") + "'"

    if language is not None:
        found.append(Check(f"captions not in {language}", f"lang IS NULL OR lang = {quote(language)}"))
    for text in phrases:
        found.append(Check(_PHRASE + text, f"NOT contains(lower(caption), {quote(text)})"))
    return found


def find_phrases(captions: Iterable[str], share: float, most: int) -> list[str]:
    """Return the phrases of two to six words that most captions have, the most frequent first.

    A phrase is of words between white space, in lower case. It must be in ``share`` of the captions and in at
    least ten, start and end with a word of four letters or more, and not be a part of a longer one that at
    least 80 % of its captions have.
    """
    counts: Counter[str] = Counter()
    num = 0
    for caption in captions:
        counts.update(_list_parts(caption.lower().split()))
        num += 1
    least, frequent = max(LEAST_CAPTIONS, share * num), dict[str, int]()
    for text, count in counts.items():
        first, *_, last = text.split()
        if count >= least and all(len(word) >= 4 and word.isalpha() for word in (first, last)):
            frequent[text] = count
    within: set[str] = set()
    for text, count in frequent.items():
        parts = (_list_parts(text.split()) - {text}) & frequent.keys()
        within.update(part for part in parts if count >= _WITHIN * frequent[part])
    ranked = sorted(frequent.items(), key=lambda item: (-item[1], -len(item[0]), item[0]))
    return [text for text, _ in ranked if text not in within][:most]


def _list_parts(text: Sequence[str]) -> set[str]:
    """Return the phrases of two to six words."""
    return {" ".join(text[at : at + size]) for size in _LENGTHS for at in range(len(text) - size + 1)}


ROWS = "rows"
_SAMPLED_CAPTIONS = 100_000
_BLOCK_ROWS = 256
# The columns of scores/ that need no model.
SCHEMA = pa.schema(
    [one for one in aligned_schema(1, "float32") if one.name not in (words.ALIGNMENT, words.IMAGE_EMBEDDING)]
)
KEYS = {"exact": words.IMAGE_SHA256, "pixels": words.PIXELS_HASH, "captions": words.CAPTION}


def measure_shard(
    job: tuple[ShardPath, str], config: AuditConfig, spec: ScorerSpec
) -> tuple[Counter[str], Counter[str], dict[str, list[str]]]:
    """Write the rows of a shard to a file; return their statuses, the usable captions' languages, and the
    names of broken rows."""
    load_measures()
    shard, uri = job
    limit, is_fast = config.prepare.max_pixels, config.prepare.fast_decode
    statuses, languages, broken = Counter[str](), Counter[str](), dict[str, list[str]]()
    with new_groups(uri, SCHEMA) as write:
        for block in read_shard(shard, _BLOCK_ROWS):
            table = prepare(block, config.scorer, spec, limit, fast_decode=is_fast).select(SCHEMA.names)
            write(table)
            statuses.update(table[words.STATUS].to_pylist())
            for status, names in name_dropped(table, table[words.STATUS].to_pylist()).items():
                note_examples(broken, ((status, name) for name in names))
            usable = table.filter(pc.equal(table[words.STATUS], words.OK))
            languages.update(usable[words.CAPTION_LANGUAGE].drop_null().to_pylist())
    return statuses, languages, broken


def read_usable(uri: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a file that can be used, or some columns of them."""
    table = read_columns(uri, None if columns is None else [*columns, words.STATUS])
    return table.filter(pc.equal(table[words.STATUS], words.OK))


def sample_captions(uri: str, seed: int) -> tuple[np.ndarray, list[str]]:
    """Return the captions of the smallest seeded hashes of uids, with the hashes."""
    table = read_usable(uri, [words.UID, words.CAPTION])
    hash_N = hash_uids(parse_uids(table[words.UID]), seed) if len(table) else np.zeros(0, np.uint64)
    row_M = np.argsort(hash_N, kind="stable")[:_SAMPLED_CAPTIONS]
    return hash_N[row_M], table[words.CAPTION].take(pa.array(row_M)).to_pylist()


def read_keys(uri: str, rule: str) -> list[bytes | None]:
    """Return what a rule of near-duplicates compares, of the usable rows of a file."""
    values = read_usable(uri, [KEYS[rule]])[KEYS[rule]].to_pylist()
    return [None if value is None else name_key(rule, value) for value in values]


def find_odd(uri: str, checks: Sequence[Check]) -> dict[str, np.ndarray]:
    """Return for each check with a condition which usable rows of a file are odd, bool [N]."""
    table = read_usable(uri)
    columns = add_short_names({name: table[name] for name in table.column_names})
    found = {}
    for check in checks:
        if check.where is not None:
            used = find_columns(check.name, check.where, list(columns))
            value = evaluate(check.name, check.where, pa.table({name: columns[name] for name in used}))
            found[check.name] = ~pc.fill_null(value, False).to_numpy()
    return found


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
        return f"{percent(self.rows, self.of)} of {number(self.of)} usable rows"


def audit(config: AuditConfig, out: str, say: Say = print) -> dict[str, Any]:
    """Audit ``config.input`` into the folder or uri ``out``; return what run.json holds.

    ``rows/`` has every row with the columns that curate writes before its model runs, ``findings.csv`` a row
    for each check. Raises ValueError for errors the user can fix, UserError where no row can be used.
    """
    out, config = absolute_uri(str(out)), inputs.with_absolute_paths(config)
    inputs.check_output(config.input, out)
    shards = inputs.expand_input(config.input, None, config.columns)
    check_writable(out)
    check_tables(shards)
    spec = describe_scorer(replace(config.scorer, weights=_NO_WEIGHTS))

    def fingerprint() -> dict[str, Any]:
        return {"input": digest(inputs.fingerprint_shards(shards)), "shards": len(shards)}

    size, outputs = partial(inputs.count_bytes, shards), (ROWS, FINDINGS)
    with start_run("audit", config, fingerprint, out, say, outputs=outputs, num_bytes=size) as run:
        if run.is_finished:
            return run.record
        run.bind("cpu")
        with connect(config.cluster, run.folder, run.lease.check, scores=False, say=say, num_bytes=size):
            uris = [run.folder.at(ROWS, f"{shard.ordinal:05d}.parquet") for shard in shards]
            jobs = list(zip(shards, uris, strict=True))
            statuses, languages, broken = Counter[str](), Counter[str](), dict[str, list[str]]()
            for found, spoken, own in map_tasks(measure_shard, jobs, config, spec, label="measure"):
                statuses.update(found)
                languages.update(spoken)
                note_examples(broken, ((status, name) for status, names in own.items() for name in names))
            lost = [name for status in words.SHARD_STATUSES for name in broken.get(status, ())]
            check_bad_rows("input", statuses, config.max_bad_fraction, "rows", shards, lambda: lost)
            run.end_dry_run()
            name, count = (*languages.most_common(1), (None, 0))[0]
            main = name if count > _MAIN_SHARE * languages.total() else None
            _report(run, config, jobs, statuses, broken, main, say)
    return run.record


def _report(
    run: Run,
    config: AuditConfig,
    files: list[tuple[ShardPath, str]],
    statuses: Counter[str],
    broken: dict[str, list[str]],
    language: str | None,
    say: Say,
) -> None:
    """Run the checks over the files of rows; write the table and the page."""
    uris = [uri for _, uri in files]
    parts = list(map_files(sample_captions, uris, config.seed, label="phrases"))
    hash_M = np.concatenate([np.zeros(0, np.uint64), *(hashes for hashes, _ in parts)])
    captions = [caption for _, found in parts for caption in found]
    drawn = (captions[row] for row in np.argsort(hash_M, kind="stable")[:_SAMPLED_CAPTIONS])
    checks = list_checks(config, language, find_phrases(drawn, config.boilerplate, config.most_phrases))
    odd = list(map_files(find_odd, uris, checks, label="checks"))
    for check in checks:
        if check.rule is not None:  # this process holds every key, some 80 bytes each
            known: set[bytes | None] = {None}
            for by_check, keys in zip(
                odd, map_files(read_keys, uris, check.rule, label="repeats"), strict=True
            ):
                own: list[bool] = []
                for key in keys:
                    own.append(key is not None and key in known)
                    known.add(key)
                by_check[check.name] = np.array(own, bool)
    findings = _list_findings(uris, checks, odd, config, statuses[words.OK])
    wanted = {uid for one in findings for uid, _ in one.shown}
    jobs = []
    for shard, uri in files:
        rows = read_usable(uri, [words.UID, words.POSITION]).to_pylist()
        shown = {row[words.POSITION]: row[words.UID] for row in rows if row[words.UID] in wanted}
        jobs += [(shard, uri, shown)] if shown else []
    photos = {uid: image for found in map_tasks(read_photos, jobs, label="photos") for uid, image in found}
    lines = [(one.check.name, one.rows, one.rows / max(one.of, 1), one.check.option) for one in findings]
    run.folder.write_bytes(write_csv([("check", "rows", "share", "option"), *lines]).encode(), FINDINGS)
    names = [check.name for check in checks if not check.is_phrase]
    num_odd = int(sum(np.any([by_check[name] for name in names], axis=0).sum() for by_check in odd))
    bad = {status: count for status, count in statuses.items() if status != words.OK}
    run.close(statuses, {**bad, ODD: num_odd, PLAIN: statuses[words.OK] - num_odd}, PLAIN, statuses[words.OK])
    run.record["warnings"] = describe_dropped("input", statuses, examples=broken)
    for warning in run.record["warnings"]:
        say(warning)
    odd_ones = [one for one in findings if one.rows and not one.check.is_phrase]
    most = f"; the largest: {odd_ones[0].check.name}, {odd_ones[0].rows:,}" if odd_ones else ""
    something = f"{len(odd_ones)} of {len(names)} checks found something"
    headline = f"{something}, in {num_odd:,} of {statuses[words.OK]:,} rows{most}"
    page = render_page(
        "look/audit.html.jinja",
        run=run.record,
        headline=headline,
        found=odd_ones,
        phrases=[one for one in findings if one.check.is_phrase],
        nothing=[one.check.name for one in findings if not one.rows],
        statuses=[
            (status, count, words.STATUSES[status], ", ".join(broken.get(status, ())))
            for status, count in order_reasons(statuses).items()
        ],
        photos=photos,
    )
    run.report(headline, page)


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
        table = read_usable(uri, [words.UID, words.CAPTION])
        if not len(table):
            continue
        hash_N = hash_uids(parse_uids(table[words.UID]), config.seed)
        for name, odd_N in by_check.items():
            counts[name] += int(odd_N.sum())
            rows = np.flatnonzero(odd_N)
            for row in rows[np.argsort(hash_N[rows], kind="stable")[: config.pictures]].tolist():
                uid, caption = (table[one][row].as_py() for one in (words.UID, words.CAPTION))
                drawn[name].append((int(hash_N[row]), uid, caption))
            drawn[name] = sorted(drawn[name])[: config.pictures]
    shown = {name: [row[1:] for row in rows] for name, rows in drawn.items()}
    found = (Finding(one, counts[one.name], num_usable, shown.get(one.name, [])) for one in checks)
    return sorted(found, key=lambda one: -one.rows)
