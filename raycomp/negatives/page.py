"""The page of ``raycomp negatives``, and the negatives of one caption from the files alone."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from difflib import SequenceMatcher
from heapq import nsmallest
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.config.options import ColumnsConfig
from raycomp.core.metrics import share_interval
from raycomp.core.refine import LOW_SIMILARITY
from raycomp.curation.command import read_photos
from raycomp.data import runs
from raycomp.data.files import Folder, absolute_uri
from raycomp.data.inputs import expand_input
from raycomp.data.parquet import find_rows, read_columns
from raycomp.language.judge import REASONS
from raycomp.language.prompts import NOTHING_LEFT, REPLY_REASONS
from raycomp.negatives.judges import GAPS
from raycomp.negatives.write import SAME, TRUE_OF_PHOTO, UNLIKELY
from raycomp.report.page import render_page
from raycomp.run.work import map_files
from raycomp.table import Numeral, Table, format_facts, number, percent

SHOWN = 50
NUM_CARDS = 12
"""Negatives of each sequence that are shown with their photo."""
_SUSPECT = ", may be true of the photo"
_MEANINGS = {
    **REASONS,
    **REPLY_REASONS,
    LOW_SIMILARITY: "an ADD is less similar to its input than add_similarity requires",
    UNLIKELY: "other words are likelier there",
    TRUE_OF_PHOTO: "may be true of the photo",
    SAME: "the scoring model reads it as its caption: it differs behind the context",
}
_STATUSES = words.STATUSES | words.NEGATIVE_STATUSES | {"ok": "has at least one negative"}
UNREFINED = (
    "Unrefined negatives hurt where text alone finds the caption far more often than 50 %: at 82 %, on drawn "
    "worlds, they cost .14 of recall@1, refined ones nothing (--negatives.refine balance; docs/negatives.md)."
)
_COLUMNS = ("operations", "calls", "similarity", "image drop", "kind", "concepts", "by", "negative")


def fetch_photos(
    run: dict[str, Any], source: str, scores: Sequence[str], uids: Sequence[str]
) -> dict[str, bytes]:
    """Return image bytes by uid of samples of the curation or selection in ``source`` with record ``run``.

    ``scores``: its scores files. A photo whose shard is missing or has changed is left out: the page shows a
    grey tile instead.
    """
    places = [place for some in map_files(_find_places, scores, uids, label="photos") for place in some]
    try:
        config = runs.find_curation(run, source)["config"]
        columns = ColumnsConfig(**config.get("columns", {}))
        shards = {shard.name: shard for shard in expand_input(config["input"], columns=columns)}
        by_shard: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        for uid, name, position, uri in places:
            if name in shards:
                by_shard[name, uri][position] = uid
        jobs = [(shards[name], uri, at) for (name, uri), at in sorted(by_shard.items())]
        return {uid: image for job in jobs for uid, image in read_photos(job)}
    except (OSError, ValueError):
        return {}


def _find_places(scores: str, uids: Sequence[str]) -> list[tuple[str, str, int, str]]:
    """Return uid, shard, position and scores file of the samples that a scores file has."""
    columns = [words.UID, words.SHARD, words.POSITION]
    rows = read_columns(scores, columns)
    rows = rows.filter(pc.is_in(rows[words.UID], value_set=pa.array(uids, rows[words.UID].type)))
    found = zip(*(rows[name].to_pylist() for name in columns), strict=True)
    return [(uid, shard, position, scores) for uid, shard, position in found if position is not None]


def explain_caption(run: dict[str, Any], source: str, uid: str) -> str | None:
    """Return status and negatives of one caption of the run in ``source``, if present.

    Also return its curation's explanation, if the curation is still at its path and readable.
    """
    columns = [words.UID, words.CAPTION, words.STATUS, words.NEGATIVES]
    names = ("op", "calls", "similarity", "image_drop", "kind")
    reported: list[str] = []
    for uri in runs.list_negatives(run, source):
        for at in find_rows(uri, words.UID, uid):
            (row,) = read_columns(uri, columns).slice(at, 1).to_pylist()
            status = f"{row[words.STATUS]} ({_STATUSES[row[words.STATUS]]})"
            facts = {words.UID: uid, words.CAPTION: row[words.CAPTION], words.STATUS: status}
            negatives = [
                (*(one[name] for name in names), " -> ".join(one["concepts"]), one["source"], one["text"])
                for one in row[words.NEGATIVES]
            ]
            reported.append(format_facts(facts))
            reported += [Table("", _COLUMNS, negatives).to_text()] if negatives else []
    if not reported:
        return None
    origin, curated = Folder(absolute_uri(run["config"]["input"])), None
    with suppress(ValueError, OSError):
        curated = runs.read_run(origin)
    if curated and runs.identify(curated) == run["fingerprint"].get("input"):
        reported.append(f"its scores and gates: raycomp explain {shlex.quote(origin.uri)} {uid}")
    return "\n\n".join(reported)


Sample = tuple[str, str, str, str, str, float | None]
"""uid, caption, negative, kind, concepts, similarity."""


@dataclass
class Tally:
    """Statistics of files of negatives, counted and sampled; mergeable, bounded."""

    statuses: Counter = field(default_factory=Counter)
    negatives: Counter = field(default_factory=Counter)
    """Negatives by sequence of operations."""
    captions: Counter = field(default_factory=Counter)
    """Captions that have a negative of each sequence."""
    similarity: Any = field(default_factory=Counter)
    """Sum of the similarities to their captions of each sequence's negatives; 0 without ranking."""
    seen: Counter = field(default_factory=Counter)
    """Number of each sequence's negatives that were compared with the image,"""
    nearer: Counter = field(default_factory=Counter)
    """and of those that the scoring model places at least as near to the image as the caption."""
    gaps: Counter = field(default_factory=Counter)
    """Negatives by (operations, kind, judge, sign of the gap)."""
    screened: Counter = field(default_factory=Counter)
    """Screened negatives by (operations, kind, whether suspect)."""
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    """The negatives of the smallest uids of each sequence: a random draw, because uids are hashes."""

    def add(self, other: "Tally") -> None:
        """Add the statistics of another file."""
        for name in (one.name for one in fields(self) if one.name != "samples"):
            getattr(self, name).update(getattr(other, name))
        for op, samples in other.samples.items():
            self.samples[op] = nsmallest(SHOWN, self.samples.get(op, []) + samples)


def tally_negatives(rows: pa.Table) -> Tally:
    """Count and sample one file. Only the first negative of a caption and sequence is shown."""
    tally = Tally()
    tally.statuses.update(rows[words.STATUS].to_pylist())
    columns = (rows[name].to_pylist() for name in (words.UID, words.CAPTION, words.NEGATIVES))
    found: dict[str, list[Sample]] = {}
    for uid, caption, negatives in zip(*columns, strict=True):
        for negative in negatives:
            op, kind, drop = (negative[name] for name in ("op", "kind", "image_drop"))
            tally.negatives[op] += 1
            tally.similarity[op] += negative["similarity"] or 0.0
            tally.seen[op] += drop is not None
            tally.nearer[op] += drop is not None and drop <= 0
            if (suspect := negative[words.SUSPECT]) is not None:
                tally.screened[op, kind, suspect] += 1
            for judge in GAPS:
                if (gap := negative[judge]) is not None:
                    tally.gaps[op, kind, judge, (gap > 0) - (gap < 0)] += 1
        ops = {negative["op"]: negative for negative in reversed(negatives)}
        tally.captions.update(ops.keys())
        ops |= {f"{one['op']}{_SUSPECT}": one for one in reversed(negatives) if one[words.SUSPECT]}
        for op, negative in ops.items():
            said = " \u2192 ".join(negative["concepts"])
            sample = (uid, caption, negative["text"], negative["kind"], said, negative["similarity"])
            found.setdefault(op, []).append(sample)
    tally.samples = {op: nsmallest(SHOWN, samples, key=lambda s: s[0]) for op, samples in found.items()}
    return tally


def tally_files(uris: Sequence[str]) -> Tally:
    """Count and sample files of negatives."""
    tally = Tally()
    for part in map_files(_tally_file, uris, label="report"):
        tally.add(part)
    return tally


def _tally_file(uri: str) -> Tally:
    return tally_negatives(read_columns(uri))


def warn_of_replies(model: str, rejected: Mapping[str, int], num_written: int) -> list[str]:
    """Return a line where more replies of a language model are refused than are read."""
    reasons = Counter[str]()
    for reported, count in rejected.items():
        reasons[reported.rpartition(": ")[2]] += count
    total = reasons.total() - reasons.pop(NOTHING_LEFT, 0) + num_written
    refused = Counter({why: reasons[why] for why in REPLY_REASONS})
    (why, _), *_ = refused.most_common(1)
    counts = f"{refused.total():,} of {total:,} replies were refused, most as {why} ({REPLY_REASONS[why]})"
    return [f"llm.model={model!r}: {counts}; they are in replies/"] * (2 * refused.total() > total)


def describe_gaps(gaps: Mapping[tuple[str, str, str, int], int]) -> list[dict[str, Any]]:
    """Return for each sequence, kind and judge how many negatives are less likely than their caption, equally
    likely, and likelier."""
    keys = sorted({key[:3] for key in gaps})
    names = ("op", "kind", "judge")
    signs = (("caption_likelier", 1), ("equal", 0), ("negative_likelier", -1))
    return [
        dict(zip(names, key, strict=True)) | {name: gaps.get((*key, sign), 0) for name, sign in signs}
        for key in keys
    ]


def render_negatives(run: Mapping[str, Any], tally: Tally, photos: Mapping[str, bytes] | None = None) -> str:
    """Return the page as text to be written as UTF-8.

    ``run``: the content of run.json. ``photos``: image bytes by uid; a missing one is a grey tile.
    """
    by_op = sorted(tally.samples.items(), key=_by_calls)
    note = "captions drawn by uid, with the first negative of each."
    columns = ("Caption", "negative", "kind", "concepts", "similarity")
    samples = {
        op: Table(f"{op}: samples", columns, [one[1:] for one in drawn], f"{len(drawn)} {note}")
        for op, drawn in by_op
    }
    total, num_rejected = tally.statuses.total(), sum(run["rejected"].values())
    statuses = [
        (status, count, Numeral(percent(count, total)), _STATUSES[status])
        for status, count in tally.statuses.most_common()
    ]
    rejected = []
    for reported, count in run["rejected"].items():
        op, why = reported.split(": ", 1)
        rejected.append((op, _MEANINGS.get(why, why), count, Numeral(percent(count, num_rejected))))
    judged = "The judge checks each call against its input, the caption and the other captions of the image."
    # The shares that qualify the number of negatives.
    answer = f"{_say_share(run['funnel']['kept'], total)} of the captions have at least one. "
    answer += f"The judge rejected {number(num_rejected)} candidates."
    if run["config"]["negatives"].get("refine", "none") == "none":
        measured = "" if tally.gaps else " Not measured here: --negatives.judge ngrams does."
        answer += f" {UNREFINED}{measured}"
    nearer, seen = tally.nearer.total(), tally.seen.total()
    if noise := runs.say_noise(run):
        answer += f" {noise}"
    elif seen:
        answer += (
            f" The scoring model places {_say_share(nearer, seen)} of {number(seen)} compared negatives at "
            "least as near to the photo as their caption; some of these may be true of the photo."
        )
    return render_page(
        "negatives/page.html.jinja",
        run=run,
        tally=tally,
        answer=answer,
        tables=[
            _report_operations(tally),
            *([_report_gaps(tally)] if tally.gaps else []),
            *([_report_screened(tally)] if tally.screened else []),
            Table("Captions by status", ("Status", "captions", "of all", "meaning"), statuses),
            Table("Rejected candidates", ("Operation", "reason", "candidates", "of all"), rejected, judged),
        ],
        cards={op: samples[:NUM_CARDS] for op, samples in by_op},
        samples=samples,
        photos=photos or {},
        mark_changes=mark_changes,
    )


def mark_changes(text: str, other: str) -> list[tuple[str, bool]]:
    """Return the words of a text and whether each is absent from, or moved in, the other text."""
    own, others = text.split(), other.split()
    same: set[int] = set()
    for start, _, size in SequenceMatcher(None, own, others, autojunk=False).get_matching_blocks():
        same.update(range(start, start + size))
    return [(word, i not in same) for i, word in enumerate(own)]


def _say_share(part: int, whole: int) -> str:
    """Return "12.0 % [9.1, 15.5]"."""
    return f"{percent(part, whole)} {_say_interval(part, whole)}" if whole else "none"


def _say_interval(part: int, whole: int) -> str:
    low, high = share_interval(part, whole)
    return f"[{number(100 * low, 1)}, {number(100 * high, 1)}]"


def _by_calls(entry: tuple[str, Any]) -> tuple[int, str]:
    return entry[0].count("+"), entry[0]


def _report_operations(tally: Tally) -> Table:
    total = tally.statuses.total()
    rows = []
    for op, count in sorted(tally.negatives.items(), key=_by_calls):
        captions, near = tally.captions[op], "not compared"
        if tally.seen[op]:
            near = percent(tally.nearer[op], tally.seen[op])
        mean = tally.similarity[op] / count if tally.similarity[op] else None
        rows.append((op, count, captions, Numeral(percent(captions, total)), mean, Numeral(near)))
    note = (
        "A sequence such as SWAP+ADD is two calls: the second edits words that the first left unchanged. "
        "Similarity is the cosine of caption and negative in the scoring model's text encoder. The judge "
        "decides that a negative is false from the captions of its photo, not from the photo: the photo may "
        "show what no caption mentions, and the negative of a wrong caption may be true. As near as the "
        "caption: the share of negatives with at least the caption's cosine to the photo. It is an upper "
        "estimate of the negatives that may be true, and no filter: a scoring model that is blind to "
        "composition gives a large share."
    )
    columns = ("Operations", "negatives", "captions with a negative", "of all captions", "mean similarity")
    return Table("Operations", (*columns, "as near as the caption"), rows, note)


def _report_gaps(tally: Tally) -> Table:
    """Return how often text-only judges find the caption; 50 % is chance."""
    rows = []
    for one in describe_gaps(tally.gaps):
        right, equal, wrong = (one[name] for name in ("caption_likelier", "equal", "negative_likelier"))
        total = right + equal + wrong
        said = percent(right + equal / 2, total), _say_interval(round(right + equal / 2), total)
        judge = one["judge"].replace("_", " ")
        rows.append((one["op"], one["kind"], judge, total, *map(Numeral, said)))
    note = (
        "Share of negatives that are less likely than their caption, by a judge that reads the texts only; "
        "equal ones count half. 50 % is chance. Judges that took part in the "
        "refinement are near 50 % by construction: another judge, or one trained on these negatives, may "
        "find more."
    )
    columns = ("Operations", "kind", "judge", "negatives", "caption likelier", "95 % interval")
    return Table("Captions found without the photo", columns, rows, note)


def _report_screened(tally: Tally) -> Table:
    """Return how many negatives may be true of their photo."""
    groups = sorted({key[:2] for key in tally.screened})
    counts = [(*group, *(tally.screened[*group, flag] for flag in (False, True))) for group in groups]
    rows = [
        (op, kind, fine + flagged, flagged, Numeral(percent(flagged, fine + flagged)))
        for op, kind, fine, flagged in counts
    ]
    note = (
        "A negative is flagged if its new phrase fits the photo better than nearly all other photos, as many "
        "as captions mention it (negatives.screen). Flagged negatives stay, unless negatives.drop_suspects "
        "is set. SWAPs and relations of what is there are not screened."
    )
    columns = ("Operation", "kind", "screened", "may be true of the photo", "of those screened")
    return Table("Negatives that may be true of their photo", columns, rows, note)
