"""``raycomp card``: a subset's data card with Hugging Face's front matter, and croissant.json.

Format 1.0, http://mlcommons.org/croissant/1.0. Links are relative to the run's folder.
"""

import json
import posixpath
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from raycomp.config import DryRun
from raycomp.config.commands import is_own
from raycomp.curation.config import CurateConfig, describe_rule, get_rule
from raycomp.curation.page import LOWEST_AUC, make_funnel, reason_words
from raycomp.curation.summary import WordCounts
from raycomp.data import files as stored
from raycomp.data.files import KEPT_FILE, Folder, ResultFile, absolute_uri
from raycomp.data.runs import check_results, say_noise
from raycomp.look.diff import MOST_CONCEPTS, NOUN, Side, judge_files, list_concepts, open_side
from raycomp.schema import KEPT_SCHEMA
from raycomp.words import CAPTION, CAPTION_LANGUAGE, CAPTION_WORDS, KEPT, KEY, PHRASES, UID


@dataclass
class Rows:
    """Facts on the kept rows."""

    languages: Counter[str] = field(default_factory=Counter)
    """Rows by the most probable language of the caption."""
    words: int = 0
    """Words of all captions."""
    counted: int = 0
    """Rows with a number of words."""
    parsed: int = 0
    """Rows whose phrases are known."""
    concepts: WordCounts = field(default_factory=lambda: WordCounts(MOST_CONCEPTS, Counter(), 0))
    """Rows by noun."""


def describe_rows(side: Side) -> Rows:
    """Return the facts on a run's kept rows; one file is in memory at a time."""
    found = Rows()
    for reason_N, table in judge_files(side, (CAPTION_LANGUAGE, CAPTION_WORDS, PHRASES)):
        kept = table.filter(pa.array(reason_N == KEPT))
        found.languages.update(kept[CAPTION_LANGUAGE].drop_null().to_pylist())
        words = kept[CAPTION_WORDS].drop_null().to_numpy()
        found.words, found.counted = found.words + int(words.sum()), found.counted + len(words)
        nouns = (word for kind, word in list_concepts(kept[PHRASES].combine_chunks()) if kind == NOUN)
        found.concepts = found.concepts.merge(WordCounts.of(MOST_CONCEPTS, nouns))
        found.parsed += len(kept) - kept[PHRASES].null_count
    return found


CITATION = (
    "@misc{go2026counterfactual, title={What Does the Caption Really Say? Counterfactual Phrase Intervention "
    "for Compositional Data Selection in Vision-Language Pretraining}, author={Hyejin Go and Semi Lee and "
    "Hyesong Choi}, eprint={2605.22651}, archivePrefix={arXiv}}"
)
_CLIP = (
    "@inproceedings{radford2021learning, title={Learning Transferable Visual Models From Natural Language "
    "Supervision}, author={Alec Radford and Jong Wook Kim and Chris Hallacy and others}, "
    "booktitle={ICML}, year={2021}, eprint={2103.00020}, archivePrefix={arXiv}}"
)
# Hugging Face's size categories, each ten times the one before, in rows.
_SIZES = (
    "n<1K 1K<n<10K 10K<n<100K 100K<n<1M 1M<n<10M 10M<n<100M 100M<n<1B 1B<n<10B 10B<n<100B 100B<n<1T n>1T"
).split()
_LEAST_LANGUAGE = 0.01
_MOST_LANGUAGES, _MOST_CONCEPTS = 10, 30
_LANGUAGE = re.compile(r"[a-z]{2,3}")
_TODOS = (
    "Licence of the captions and of the selection",
    "Licence or terms of the images",
    "Source of the data, and how it may be used",
    "Personal data, consent and how a person can ask for removal",
    "Creator and contact",
)


def describe_in_a_line(side: Side) -> str:
    """Return one sentence on the subset."""
    funnel, config = side.run["funnel"], side.config
    return (
        f"{funnel['kept']:,} image-text pairs of {funnel['read']:,}, selected by raycomp with rule "
        f"{describe_rule(config)}, and scoring model {config.scorer.model} ({config.scorer.weights}). "
        f"{say_noise(side.run)}"
    ).strip()


def write_card(name: str, side: Side, rows: Rows, kept_bytes: int, shard_bytes: Sequence[int]) -> str:
    """Return the card; the sizes are of the table of kept rows and of each shard."""
    counts = ["| step | rows | dropped in this step |", "| --- | ---: | --- |"]
    funnel = side.run["funnel"]
    for step in make_funnel({KEPT: funnel["kept"], **funnel["dropped"]}):
        lost = ", ".join(f"{count:,} {reason_words(reason)}" for reason, count in step.lost)
        counts.append(f"| {step.name} | {step.rows:,} | {lost} |")
    sections = [
        _write_front(name, side, rows, bool(shard_bytes)),
        f"# {_text(name)}\n\n{_text(describe_in_a_line(side))}",
        _section("To complete before publication", [f"- **{what}:** {TODO}" for what in _TODOS]),
        _section("Files", _say_files(side, kept_bytes, shard_bytes)),
        _section("What was done, in order", [f"{i}. {step}" for i, step in enumerate(_list_steps(side), 1)]),
        _section("Counts", counts),
        _section("Content", _list_content(rows)),
        _section("Known limits", [f"- {line}" for line in _list_limits(side, rows)]),
        _section("How to reproduce", _list_commands(side)),
        _section("Citation", ["```bibtex", CITATION, "", _CLIP, "```"]),
    ]
    return "\n\n".join(sections) + "\n"


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", *lines])


def _text(text: object) -> str:
    """Return a text that Markdown and HTML show as it is, in one line."""
    line = " ".join(str(text).split())
    return re.sub(r"([\\`*_{}\[\]<>#|~&!])", lambda found: f"&#{ord(found[1])};", line)


def _code(text: object) -> str:
    """Return a text as a span of code; its backticks become quotes."""
    line = " ".join(str(text).split()).replace("`", "'")
    return f"`{line}`" if line else "none"


def _write_front(name: str, side: Side, rows: Rows, has_shards: bool) -> str:
    """Return the front matter: YAML whose texts are JSON strings, which YAML reads."""
    lines = ["---", f"pretty_name: {json.dumps(name)}", f"license: unknown  # {TODO}"]
    languages = [code for code, _ in _list_languages(rows) if _LANGUAGE.fullmatch(code)]
    if languages:
        lines += ["language:", *(f"- {json.dumps(code)}" for code in languages)]
    lines += ["task_categories:", "- image-to-text", "- text-to-image", "- zero-shot-image-classification"]
    size = bisect_right([10**power for power in range(3, 13)], side.run["funnel"]["kept"])
    lines += ["size_categories:", f"- {json.dumps(_SIZES[size])}"]
    lines += ["tags:", "- clip", "- image-text", "- raycomp", *(["- webdataset"] if has_shards else [])]
    # One: all configs of a repository are read by the loader of the first.
    config, path = ("shards", "shards/*.tar") if has_shards else ("subset", KEPT_FILE)
    lines += ["configs:", f"- config_name: {config}", "  data_files:", "  - split: train"]
    return "\n".join([*lines, f"    path: {json.dumps(path)}", "---"])


def _list_languages(rows: Rows) -> list[tuple[str, int]]:
    total = max(1, rows.languages.total())
    found = sorted(rows.languages.items(), key=lambda one: (-one[1], one[0]))
    return [one for one in found if one[1] / total >= _LEAST_LANGUAGE][:_MOST_LANGUAGES]


def _say_files(side: Side, kept_bytes: int, shard_bytes: Sequence[int]) -> list[str]:
    kept = side.run["funnel"]["kept"]
    images = "- No images: the table names them by `image_sha256`, `shard` and `key` of the input."
    if shard_bytes:
        number, size = len(shard_bytes), sum(shard_bytes)
        images = f"- `shards/`: images and captions as WebDataset tars, {number:,} of them, {size:,} bytes."
    load = f'load_dataset("OWNER/NAME", data_files="{KEPT_FILE}")'
    return [
        f"- `subset/kept.parquet`: a row per pair, {kept:,} rows, {kept_bytes:,} bytes. Columns: uid, key, "
        "shard, image_sha256, caption, alignment, mean_pas, score."
        + (
            f" `load_dataset` of this repository reads the shards; the table: `{load}`."
            if shard_bytes
            else ""
        ),
        images,
        "- `croissant.json`: the same files with their SHA-256, in MLCommons' Croissant format.",
    ]


def _list_steps(side: Side) -> Iterator[str]:
    """Yield what was done, in the order of the pipeline."""
    config, funnel, prints = side.config, side.run["funnel"], side.curated["fingerprint"]
    scorer, keep = config.scorer, f"attribute.keep={config.attribute.keep}"
    given = {name: f"fingerprint {_code(prints.get(name))}" for name in ("input", "scorer", "parser")}
    yield f"Read {funnel['read']:,} samples of {_code(config.input)}, {given['input']}."
    weights = f"weights {_code(scorer.weights)}, {given['scorer']}"
    yield f"Scored the cosine of image and caption with {_code(scorer.model)}, {weights}."
    yield from _list_drops(config)
    yield (
        f"Found the phrases of captions with parser {_code(config.parser.name)}, {given['parser']}, "
        f"replaced their words by {config.attribute.nonces} nonsense words each (nonces "
        f"{_code(prints.get('nonces'))}), and measured the drop of the cosine (PAS)."
    )
    yield f"Selected by rule {_code(describe_rule(config))}, seed {config.seed}."
    corpus, rule = f"a corpus of {funnel['corpus']:,} pairs", config.select.rule
    if (side.run.get("gates") or {}).get("attribute"):
        yield f"Gates: align.keep={config.align.keep}, {keep}, shares of {corpus}."
    elif is_own(rule) or not get_rule(rule).keeps_all:
        yield f"Kept the share {keep} of {corpus}."


def _list_drops(config: CurateConfig) -> Iterator[str]:
    """Yield the filters, near-duplicates and decontamination."""
    chosen, near, clean = config.filter, config.near, config.decontaminate
    when = "after the gates" if chosen.is_after else "before shares were counted"
    if chosen.join is not None:
        yield f"Joined a table of more columns, {_code(chosen.join)}."
    if chosen.where is not None:
        yield f"Dropped rows {when} for which this is not true: {_code(chosen.where)}."
    if chosen.exclude is not None:
        yield f"Dropped rows {when} that are in the list {_code(chosen.exclude)}; they stay in the scores."
    if clean.index is not None:
        what = "Dropped" if clean.action == "drop" else "Marked, but kept,"
        yield f"{what} rows that are in the test sets of {_code(clean.index)} (at most {clean.bits} bits)."
    if near.rules:
        what = "Dropped" if near.action == "drop" else "Marked, but kept,"
        limits = f"near.bits={near.bits}, near.cosine={near.cosine}"
        yield f"{what} near-duplicates by {_code(', '.join(near.rules))} ({limits})."
    if near.cap is not None:
        yield f"Kept at most {near.cap:,} rows of each of {near.clusters:,} clusters of image embeddings."


def _list_content(rows: Rows) -> list[str]:
    lines = [f"- Languages: {TODO} (the scores have none)"]
    total = rows.languages.total()
    if total:
        said = ", ".join(f"{code} {100 * n / total:.1f} %" for code, n in _list_languages(rows))
        lines = [f"- Languages, by py3langid, which is often wrong for short captions: {_text(said)}."]
    if rows.counted:
        lines.append(f"- Words of a caption: {rows.words / rows.counted:.1f} on average.")
    top = sorted(rows.concepts.counts.items(), key=lambda one: (-one[1], one[0]))[:_MOST_CONCEPTS]
    if top:
        said = ", ".join(f"{_code(word)} {count:,}" for word, count in top)
        of = f"in rows, of {rows.parsed:,} rows whose phrases are known"
        lines.append(f"- Most frequent nouns, {of}: {said}.")
    return lines


def _list_limits(side: Side, rows: Rows) -> Iterator[str]:
    check, noise = side.run.get("scorer_check"), say_noise(side.run)
    yield from filter(None, [noise])
    if check:
        warning = "" if check["auc"] >= LOWEST_AUC else " This is near chance: the selection means little."
        yield (
            f"The scoring model scores a pair above a shuffled pair in {100 * check['auc']:.1f} % of "
            f"{check['n']:,} cases; chance is 50 %.{warning}"
        )
    yield "Scores have the biases of the scoring model, and captions that it cannot read score low."
    yield "No person has looked at the pairs. Raycomp does not search for illegal, private or unsafe content."
    if side.config.decontaminate.index is None:
        yield "Test sets were not searched for: the subset may contain their images."
    if not side.config.near.rules:
        yield "Near-duplicates were not searched for."
    missing = side.run["funnel"]["kept"] - rows.parsed
    if missing:
        yield f"{missing:,} rows were not parsed; they are not in the counts of nouns."
    yield from (_text(warning) for warning in side.run["warnings"] if warning != noise)


def _list_commands(side: Side) -> list[str]:
    """Return the command lines, the curation that scored first."""
    runs = [side.curated, side.run] if side.curated is not side.run else [side.run]
    lines = [run.get("commands", {}).get("Rerun", "") for run in runs]
    fence = "```" if "```" not in "".join(lines) else "~~~~"
    shown = [" ".join(line.split()) for line in lines if line]
    version = side.curated["versions"].get("raycomp")
    return [f"With raycomp {version}; the paths are those of the run.", "", f"{fence}sh", *shown, fence]


TODO = "TODO by the publisher"
TABLE, ROWS = "kept.parquet", "rows"
IMAGES, CAPTIONS = "image-files", "caption-files"
# The names that Croissant's specification prescribes; those without an entry of their own are "cr:NAME".
_OWN_NAMES: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "sc": "https://schema.org/",
}
_NAMES = (
    "@language @vocab citeAs column conformsTo cr rai data dataType dct equivalentProperty examples extract "
    "field fileProperty fileObject fileSet format includes isLiveDataset jsonPath key md5 parentField path "
    "recordSet references regex repeated replace samplingRate sc separator source subField transform"
)
_CONTEXT = {name: _OWN_NAMES.get(name, f"cr:{name}") for name in _NAMES.split()}
_TYPES = {"string": "sc:Text", "float": "sc:Float"}
_COLUMNS = {
    "uid": "Identifier of the row, 32 hex digits.",
    "key": "The sample's key in its shard of the input.",
    "shard": "The shard of the input, relative to its root.",
    "image_sha256": "SHA-256 of the image's bytes.",
    "caption": "The caption that was scored.",
    "alignment": "Cosine of image and caption by the scoring model.",
    "mean_pas": "Mean drop of the cosine when a nonsense word replaces a noun that an image can show.",
    "score": "The value by which the last gate ranked the row; the larger stays.",
}
_IMAGES = "jpg jpeg png webp gif bmp tif tiff avif jfif"
# The files of shards, and what each sample of them holds: images and captions are two sets, to be joined by
# key, as mlcroissant 1.1 does not join two sets of files by parts of names.
_OF_SHARDS: tuple[tuple[str, str, Any, str, str, str], ...] = (
    (IMAGES, "image/*", [f"*.{end}" for end in _IMAGES.split()], "images", "image", "sc:ImageObject"),
    (CAPTIONS, "text/plain", "*.txt", "captions", CAPTION, "sc:Text"),
)


def describe(
    name: str,
    description: str,
    cite_as: str,
    created: str | None,
    kept: ResultFile,
    shards: Sequence[tuple[str, ResultFile]],
) -> dict[str, Any]:
    """Return the description of a subset: its table ``kept``, and its ``shards`` by their relative names.

    Licence and creator are left to the publisher, as text that says so.
    """
    tars = [(posixpath.basename(path), path, file, "application/x-tar") for path, file in shards]
    files = []
    for identity, path, file, form in ((TABLE, KEPT_FILE, kept, "application/x-parquet"), *tars):
        stored_as = {"contentUrl": path, "encodingFormat": form, "sha256": file.sha256}
        files.append(_make_node("FileObject", identity, posixpath.basename(path), **stored_as))
    columns = []
    for one in KEPT_SCHEMA:
        source: dict[str, Any] = {"fileObject": {"@id": TABLE}, "extract": {"column": one.name}}
        columns.append((one.name, _COLUMNS[one.name], _TYPES[str(one.type)], source))
    sets = [_describe_set(ROWS, "The rows of the subset, one per image-text pair.", UID, columns)]
    said = "The name of the sample in its shard: the row's uid, a hyphen and a number."
    within = [{"@id": identity} for identity, *_ in tars]
    for part, form, patterns, named, column, kind in _OF_SHARDS if shards else ():
        found = {"containedIn": within if len(within) > 1 else within[0], "encodingFormat": form}
        files.append(_make_node("FileSet", part, part, **found, includes=patterns))
        key, content = (
            {"fileSet": {"@id": part}, "extract": {"fileProperty": one}} for one in ("filename", "content")
        )
        named_by = (KEY, said, "sc:Text", {**key, "transform": {"regex": r"^(.+)\.\w+$"}})
        own = [named_by, (column, f"The {column} of the sample.", kind, content)]
        sets.append(_describe_set(named, f"The {named} of the shards.", KEY, own))
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": description,
        "license": TODO,
        "creator": {"@type": "sc:Organization", "name": TODO},
        "url": TODO,
        "version": "1.0.0",
        "citeAs": cite_as,
        **({"dateCreated": created, "datePublished": created} if created else {}),
        "distribution": files,
        "recordSet": sets,
    }


def _make_node(kind: str, identity: str, name: str, **more: Any) -> dict[str, Any]:
    return {"@type": f"cr:{kind}", "@id": identity, "name": name, **more}


def _describe_set(
    name: str, said: str, key: str, columns: Sequence[tuple[str, str, str, dict[str, Any]]]
) -> dict[str, Any]:
    """Return a set of records; ``columns``: name, description, type and source of each."""
    fields = [
        _make_node("Field", f"{name}/{column}", column, description=what, dataType=kind, source=source)
        for column, what, kind, source in columns
    ]
    key_node = {"@id": f"{name}/{key}"}
    return _make_node("RecordSet", name, name, description=said, key=key_node, field=fields)


CARD, CROISSANT = "README.md", "croissant.json"
"""README.md is the name under which a model hub shows a card."""


def card(source: str, out: str, say: Callable[[str], object] = print) -> None:
    """Write README.md and croissant.json of the subset in ``source`` to ``out``, which may be that folder.

    Their links to files are relative to the run's folder. Raises ValueError where ``source`` holds no
    finished curation or selection, its files differ from what it wrote, or ``out`` has one of the two files:
    its publisher may have edited it.
    """
    side, folder = open_side(source), Folder(absolute_uri(str(out)))
    there = [name for name in (CARD, CROISSANT) if folder.exists(name)]
    if there:
        raise ValueError(f"--out {out}: has {there[0]} already; move it, or name another folder")
    files = check_results(Folder(side.uri), side.run, "subset", "shards")
    if KEPT_FILE not in files:
        raise ValueError(f"{side.uri}: has no {KEPT_FILE}; run it again")
    kept, shards = files[KEPT_FILE], [one for one in sorted(files.items()) if one[0].endswith(".tar")]
    stored.check_writable(folder.uri)
    rows = describe_rows(side)
    sizes = {str(uri): size or 0 for uri, size in stored.size_files([kept, *(file for _, file in shards)])}
    name, line = posixpath.basename(side.uri), describe_in_a_line(side)
    created = str(side.run["finished"])[:10] if "finished" in side.run else None
    croissant = describe(name, line, CITATION, created, kept, shards)
    text = write_card(name, side, rows, sizes[kept], [sizes[file] for _, file in shards])
    if stored.is_dry_run():
        raise DryRun("dry run of card: all checks passed, nothing was written; 2 files would be")
    folder.write_json(croissant, CROISSANT)
    folder.write_bytes(text.encode(), CARD)
    say(f"{folder.at(CARD)}, {folder.at(CROISSANT)}: complete the lines with TODO before you publish")
    if noise := say_noise(side.run):
        say(noise)
