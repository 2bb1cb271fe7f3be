"""Hard negatives of captions in memory, by the stages of ``raycomp negatives``: ``raycomp.negatives_of``."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from raycomp.config.options import check
from raycomp.data.parquet import FAULTS, OTHERS
from raycomp.data.samples import decode_text
from raycomp.models.architecture import describe_scorer
from raycomp.negatives.config import NegativesConfig
from raycomp.negatives.engines import write_by_rules
from raycomp.negatives.write import choose_negatives, drop_far
from raycomp.run.local import Name, find_scorer, keep_model
from raycomp.run.progress import Progress
from raycomp.schema import NEGATIVE_TYPE
from raycomp.words import BAD_ENCODING, CAPTION, NEGATIVE, NEGATIVES, STATUS, UID

INDEX, REASONS = "index", "reasons"
# Captions of a block, per thread of a CPU.
_ROWS = 64
# Fields of a negative in a row, by the names in NEGATIVE_TYPE.
_FIELDS = ("op", "kind", "concepts", "calls", "similarity")
_SCHEMA = pa.schema(
    [
        (INDEX, pa.int64()),
        (CAPTION, pa.string()),
        (STATUS, pa.string()),
        (NEGATIVE, pa.string()),
        *(NEGATIVE_TYPE.field(name) for name in _FIELDS),
        (REASONS, pa.list_(pa.string())),
    ]
)


def write_negatives_of(
    captions: Sequence[str | None],
    model: Name | None = None,
    weights: Name | None = None,
    config: NegativesConfig | None = None,
    uids: Sequence[str] | None = None,
) -> pa.Table:
    """Return a row per negative; ``raycomp.negatives_of`` describes arguments, columns and errors."""
    config = config or NegativesConfig()
    if isinstance(captions, str | bytes) or not hasattr(captions, "__len__"):
        kind = type(captions).__name__
        raise ValueError(f"captions: must be a list, is {kind}; put one value in brackets")
    for i, caption in enumerate(captions):
        if not (caption is None or isinstance(caption, str)):
            raise ValueError(f"captions[{i}]: must be a str or None, is {type(caption).__name__}")
    if uids is not None and len(uids) != len(captions):
        raise ValueError(
            f"captions and uids: must have equal lengths, have {len(captions):,} and {len(uids):,}"
        )
    check(config.negatives.engine == "rules", "negatives.engine", config.negatives.engine, "rules")
    for name, none in {"judge": "none", "screen": "0", "context": "false"}.items():
        value = getattr(config.negatives, name)
        check(not value, f"negatives.{name}", value, f"{none}: it needs a corpus")
    if not config.negatives.rank:
        for name, value in (("model", model), ("weights", weights)):
            check(value is None, name, value, "none with negatives.rank=false, which needs no model")
    else:
        config = replace(config, scorer=find_scorer(config.ranker, model, weights))
        describe_scorer(config.ranker)
    names = [name_caption(caption) for caption in captions] if uids is None else uids
    with keep_model(config.scorer if config.negatives.rank else None, config.cluster) as num_threads:
        rank = None
        if config.negatives.rank:
            from raycomp.negatives.ranking import Rank  # torch, only needed for ranking

            rank = Rank(config, num_threads)
        tables, done = [_SCHEMA.empty_table()], 0
        with Progress("negatives", len(captions), unit="caption") as progress:
            for block in _to_blocks(captions, names, _ROWS * num_threads):
                written = write_by_rules(block, config)
                if rank is not None:
                    written = drop_far(rank(written), config.negatives)
                written = choose_negatives(written, config.negatives)
                tables.append(_list_negatives(written, done))
                done += len(block)
                progress.reach(done, 1)
    return pa.concat_tables(tables).combine_chunks()


def name_caption(caption: str | None) -> str:
    """Return the default uid of a caption: 32 hex digits of its SHA-256 in UTF-8."""
    return hashlib.sha256((caption or "").encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _to_blocks(captions: Sequence[str | None], uids: Sequence[str], rows: int) -> Iterator[pa.Table]:
    """Yield the captions as ``load_captions`` yields those of a file."""
    for start in range(0, len(captions), rows):
        given = captions[start : start + rows]
        texts = list(map(decode_text, given))
        statuses = [
            BAD_ENCODING if text is None and caption is not None else None
            for text, caption in zip(texts, given, strict=True)
        ]
        yield pa.table(
            {
                UID: pa.array(uids[start : start + rows], pa.string()),
                CAPTION: pa.array(texts, pa.string()),
                OTHERS: pa.array([[]] * len(texts), pa.list_(pa.string())),
                STATUS: pa.array(statuses, pa.string()),
            }
        )


def _list_negatives(written: pa.Table, start: int) -> pa.Table:
    """Return a row for each negative, and one for each caption that has none."""
    rows = []
    for i, row in enumerate(written.select([CAPTION, STATUS, NEGATIVES, FAULTS]).to_pylist(), start):
        own = {INDEX: i, CAPTION: row[CAPTION], STATUS: row[STATUS]}
        found = row[NEGATIVES]
        rows += [{**own, NEGATIVE: one["text"], **{name: one[name] for name in _FIELDS}} for one in found]
        rows += [] if found else [{**own, REASONS: row[FAULTS]}]
    return pa.Table.from_pylist(rows, _SCHEMA)
