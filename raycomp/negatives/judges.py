"""Text-only judges of negatives, and what a corpus says in which context.

With the counts of the n-gram judge, of contexts and of photos, and with what the refinement fitted, the
negatives of a caption depend on its own inputs alone. They are copied, so that a run is complete.

A judge scores a negative by its gap: the log-likelihood of the caption minus that of the negative, in nats.
Above 0 the judge takes the caption for the true one of the two, without the photo. N-gram models are
cross-fitted by image: the captions of an image are judged by counts of other images' captions only.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from heapq import nsmallest
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.config import ParserConfig
from raycomp.data import parquet
from raycomp.data.files import Folder, read_stamp
from raycomp.data.runs import check_results, digest, read_finished
from raycomp.language import overlap
from raycomp.language.changes import splice_tokens
from raycomp.language.concepts import Edit, Parsed, parse_concepts
from raycomp.language.judge import LONGEST_EDITED
from raycomp.language.lexicon import Lexicon
from raycomp.language.overlap import Context, Ngrams
from raycomp.models.parser import Parser, load_lexicon, load_parser
from raycomp.negatives.captions import FOLD, NUM_FOLDS, CaptionFile, draw_uid, load_captions
from raycomp.negatives.config import WritingConfig
from raycomp.run.work import map_files
from raycomp.schema import CONTEXT_SCHEMA, NEGATIVE_TYPE

Chain = Sequence[Edit]
"""Calls in order: each edit's text is the input of the next."""


class Reader:
    """Parses texts into concepts, each distinct text once in a batch."""

    def __init__(self, parser: Parser, lexicon: Lexicon):
        self.parser = parser
        self.lexicon = lexicon
        self.parsed: dict[str, Parsed] = {}

    def read(self, texts: Sequence[str]) -> None:
        """Parse the texts that are not parsed yet."""
        new = list(dict.fromkeys(text for text in texts if text not in self.parsed))
        for text, tokens in zip(new, self.parser.tokens(new), strict=True):
            self.parsed[text] = parse_concepts(text, tokens, self.lexicon, self.parser.labels)

    def splice(self, known: str, text: str) -> bool:
        """Read a text from one of the same form that is parsed; return False if the forms differ."""
        if text in self.parsed:
            return True
        tokens = splice_tokens(self.parsed[known].tokens, known, text)
        if tokens is not None:
            self.parsed[text] = parse_concepts(text, tokens, self.lexicon, self.parser.labels)
        return tokens is not None


_load_parser = lru_cache(maxsize=1)(load_parser)


def load_reader(parser: ParserConfig) -> Reader:
    """Return a new reader; what it needs is loaded once per process."""
    return Reader(_load_parser(parser.name), load_lexicon())


def read_by_form(reader: Reader, captions: Sequence[str], proposed: Sequence[Sequence[Chain]]) -> None:
    """Read all edits of captions; of the first calls that differ in a word only one is parsed.

    An object or attribute that is replaced has the form of its caption; ADDs of one place have one form.
    """
    parsed: list[str] = []
    alike: list[tuple[str, str]] = []
    for caption, chains in zip(captions, proposed, strict=True):
        forms: dict[tuple, str] = {}
        for first, *later in chains:
            parsed += [text for edit in (first, *later) for text in (edit.base,) if text]
            parsed += [edit.text for edit in later]
            if first.op == words.REPLACE:
                known, is_alike = caption, first.kind != words.RELATION
            else:
                form = first.op, first.kind, first.base, first.touched[0][0], len(first.text.split())
                known, is_alike = forms.setdefault(form, first.text), first.op == words.ADD
            if is_alike and known != first.text:
                alike.append((known, first.text))
            else:
                parsed.append(first.text)
    reader.read(parsed)
    reader.read([text for known, text in alike if not reader.splice(known, text)])


MOST_CONTEXT = 1_000_000
"""Captions that are counted, about; of more, some are drawn by their uids."""
# While files are merged, tables are cut where they have this many times the entries that are kept.
_SLACK = 8
NUM_PHOTOS = 1_000
"""Photos of the corpus that a photo is compared with, drawn by their uids."""
_PHOTOS = pa.schema([(words.IMAGE_EMBEDDING, pa.list_(pa.float32()))])
_CONTEXT_ROWS = 1_000


def write_context(sources: Sequence[CaptionFile], num_captions: int, parser: ParserConfig, uri: str) -> None:
    """Count the captions of all files and write the commonest pairs of each table."""
    limit = min(1.0, MOST_CONTEXT / max(num_captions, 1))
    context = overlap.no_context()
    for counted in map_files(_count_context, sources, limit, parser, label="count contexts"):
        context.add(counted)
        if max(map(len, context.tables.values())) > _SLACK * overlap.MOST_ENTRIES:
            context = overlap.keep_commonest(context, _SLACK // 2 * overlap.MOST_ENTRIES)
    tables = overlap.keep_commonest(context).tables
    rows = [(name, *pair, count) for name in overlap.TABLES for pair, count in sorted(tables[name].items())]
    parquet.write_table(parquet.from_rows(rows, CONTEXT_SCHEMA), uri, CONTEXT_SCHEMA)


def _count_context(source: CaptionFile, limit: float, parser: ParserConfig) -> Context:
    context = overlap.no_context()
    for table in load_captions(source, _CONTEXT_ROWS):
        rows = zip(table[words.UID].to_pylist(), table[words.CAPTION].to_pylist(), strict=True)
        texts = [parquet.readable(text) for uid, text in rows if text and draw_uid(uid, "context") < limit]
        texts = [text for text in texts if text.strip() and len(text) <= LONGEST_EDITED]
        reader = load_reader(parser)
        reader.read(texts)
        context.add(overlap.count_context(reader.parsed[text] for text in texts))
    return context


@lru_cache(maxsize=2)
def _load(make: Callable[[str], Any], uri: str, stamp: tuple[int | None, int | None]) -> Any:
    return make(uri)


def load_context(uri: str) -> Context:
    """Return the counts of a file that ``write_context`` wrote, loaded once per process."""
    return _load(_read_context, uri, read_stamp(uri))


def _read_context(uri: str) -> Context:
    context = overlap.no_context()
    for row in parquet.read_columns(uri).to_pylist():
        context.tables[row["table"]][row["first"], row["second"]] = row["count"]
    return context


def write_photos(sources: Sequence[CaptionFile], uri: str) -> None:
    """Write the embeddings of the photos that all are compared with."""
    found = [row for rows in map_files(_draw_photos, sources, label="draw photos") for row in rows]
    vectors = [vector for *_, vector in nsmallest(NUM_PHOTOS, found, key=lambda row: row[:2])]
    table = pa.table({words.IMAGE_EMBEDDING: pa.array(vectors, _PHOTOS.field(0).type)})
    parquet.write_table(table, uri, _PHOTOS)


def _draw_photos(source: CaptionFile) -> list[tuple[float, str, list[float]]]:
    kept: list[tuple[float, str, list[float]]] = []
    for table in load_captions(source, 10 * _CONTEXT_ROWS):
        uids, vectors = table[words.UID].to_pylist(), table[words.IMAGE_EMBEDDING]
        first = nsmallest(NUM_PHOTOS, [(draw_uid(uid, "screen"), uid, at) for at, uid in enumerate(uids)])
        found = [(draw, uid, vectors[at].as_py()) for draw, uid, at in first]
        kept = nsmallest(NUM_PHOTOS, [*kept, *found])
    return kept


NGRAMS_FILE, PHOTOS_FILE, CONTEXT_FILE = "judges/ngrams.parquet", "judges/photos.parquet", "context.parquet"
TILTING_FILE, THRESHOLDS_FILE = "judges/tilting.parquet", "judges/thresholds.json"


def list_models(config: WritingConfig) -> list[str]:
    """Return the files of the corpus that a run with these options counts or fits."""
    wanted = {
        NGRAMS_FILE: NGRAMS in config.judge,
        PHOTOS_FILE: config.screen > 0,
        CONTEXT_FILE: config.context or config.screen > 0,
        TILTING_FILE: config.refine != "none",
        THRESHOLDS_FILE: config.refine == "balance",
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


def is_by_row(config: WritingConfig) -> bool:
    """Whether the negatives of a caption depend on its own inputs alone, and no comparison is exported."""
    return (config.frozen is not None or not list_models(config)) and "calls" not in config.export


def find_models(config: WritingConfig) -> dict[str, Any]:
    """Return the files of ``negatives.frozen`` by name; empty without it.

    Raises ValueError where the folder holds no finished run of negatives, or one of other options.
    """
    if config.frozen is None:
        return {}
    run = read_finished(config.frozen)
    files = check_results(Folder(config.frozen), run) if run["kind"] == "negatives" else {}
    lacking = [name for name in list_models(config) if name not in files]
    if run["kind"] != "negatives" or lacking:
        what = f"has no {', '.join(lacking)}" if lacking else f"holds {run['kind']}"
        said = "name a run of negatives with the same options"
        raise ValueError(f"negatives.frozen={config.frozen!r}: {what}; {said}")
    return {name: files[name] for name in list_models(config)}


def fingerprint_frozen(config: WritingConfig) -> dict[str, str]:
    """Return a digest of the models that are taken."""
    models = find_models(config)
    return {"frozen": digest({name: file.sha256 for name, file in models.items()})} if models else {}


NGRAMS, MODEL = "ngrams", "model"
GAPS = (words.UNIGRAM, words.BIGRAM, words.LANGUAGE_MODEL)
"""Fields of a negative, null without that judge."""
MOST_COUNTED = 200_000
"""Captions that n-grams are counted in, about; of more, some are drawn by their uids."""
_ROWS = 10_000
_COUNTS = pa.schema(
    [(FOLD, pa.int32()), ("before", pa.string()), ("word", pa.string()), ("count", pa.int64())]
)


def write_ngrams(sources: Sequence[CaptionFile], num_captions: int, uri: str) -> None:
    """Write how often words, and pairs of neighbours, occur in the captions of each fold of images."""
    limit = min(1.0, MOST_COUNTED / max(num_captions, 1))
    folds = [Ngrams(Counter(), Counter()) for _ in range(NUM_FOLDS)]
    for counted in map_files(_count_file, sources, limit, label="count words"):
        folds = [one + other for one, other in zip(folds, counted, strict=True)]
    rows = [
        (fold, before, word, count)
        for fold, counts in enumerate(folds)
        for (before, word), count in [
            *(((None, word), count) for word, count in sorted(counts.words.items())),
            *sorted(counts.pairs.items()),
        ]
    ]
    parquet.write_table(parquet.from_rows(rows, _COUNTS), uri, _COUNTS)


def _count_file(source: CaptionFile, limit: float) -> list[Ngrams]:
    texts: list[list[str]] = [[] for _ in range(NUM_FOLDS)]
    for table in load_captions(source, _ROWS):
        columns = (table[name].to_pylist() for name in (words.UID, FOLD, words.CAPTION))
        for uid, fold, caption in zip(*columns, strict=True):
            if caption and draw_uid(uid, "words") < limit:
                texts[fold].append(caption)
    return [overlap.count_ngrams(captions) for captions in texts]


class NgramJudge:
    """Unigram and bigram gaps of negatives, by the counts that ``write_ngrams`` wrote."""

    def __init__(self, uri: str):
        folds = [Ngrams(Counter(), Counter()) for _ in range(NUM_FOLDS)]
        for row in parquet.read_columns(uri).to_pylist():
            counts = folds[row[FOLD]]
            if row["before"] is None:
                counts.words[row["word"]] = row["count"]
            else:
                counts.pairs[row["before"], row["word"]] = row["count"]
        whole = sum(folds, Ngrams(Counter(), Counter()))
        self.others = [overlap.leave_out(whole, counts) for counts in folds]

    def __call__(self, table: pa.Table) -> pa.Table:
        """Set ``unigram`` and ``bigram`` of every negative; null if no other image has a caption."""
        judges = {words.UNIGRAM: overlap.unigram_likelihood, words.BIGRAM: overlap.bigram_likelihood}
        gaps: dict[str, list[float | None]] = {name: [] for name in judges}
        columns = (table[name].to_pylist() for name in (words.CAPTION, FOLD, words.NEGATIVES))
        for caption, fold, negatives in zip(*columns, strict=True):
            counts = self.others[fold]
            for name, judge in judges.items():
                if not (negatives and counts.total):
                    gaps[name] += [None] * len(negatives)
                    continue
                own = judge(caption, counts)
                gaps[name] += [own - judge(negative["text"], counts) for negative in negatives]
        return set_fields(table, gaps)


def load_ngrams(uri: str) -> NgramJudge:
    """Return the judge, loaded once per process."""
    return _load(NgramJudge, uri, read_stamp(uri))


def judge_by_model(table: pa.Table, compute_likelihoods: Callable[[Sequence[str]], Any]) -> pa.Table:
    """Set ``language_model`` of every negative; a score does not depend on the other rows."""
    gaps: list[float | None] = []
    columns = (table[name].to_pylist() for name in (words.CAPTION, words.NEGATIVES))
    for caption, negatives in zip(*columns, strict=True):
        gaps += compute_gaps(caption, negatives, compute_likelihoods)
    return set_fields(table, {words.LANGUAGE_MODEL: gaps})


def compute_gaps(
    caption: str, negatives: Sequence[dict], compute_likelihoods: Callable[[Sequence[str]], Any]
) -> list[float]:
    """Return the gap of each negative of a caption; its texts are judged together and without others."""
    if not negatives:
        return []
    own, *others = compute_likelihoods([caption, *(negative["text"] for negative in negatives)])
    return [float(own - other) for other in others]


def set_fields(table: pa.Table, values: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Return the table with fields of its negatives replaced, in the order of all negatives."""
    lists = table[words.NEGATIVES].combine_chunks()
    fields = dict(zip(NEGATIVE_TYPE.names, lists.flatten().flatten(), strict=True))
    fields |= {name: pa.array(found, NEGATIVE_TYPE.field(name).type) for name, found in values.items()}
    filled = pa.StructArray.from_arrays(list(fields.values()), fields=list(NEGATIVE_TYPE))
    counts = pa.array([0, *lists.value_lengths().to_pylist()], pa.int32())
    offsets = pc.cumulative_sum(counts).cast(pa.int32())
    return parquet.add_columns(table, {words.NEGATIVES: pa.ListArray.from_arrays(offsets, filled)})
