"""Write hard negatives of captions: candidates from an engine, each call judged, the rest ranked and chosen.

An engine only proposes: what a caption can be said instead. Whether a proposal is a negative is decided here,
for rules and language models alike, one call against its own input and all of them against the caption.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from raycomp.config import NegativesConfig, WritingConfig
from raycomp.core.hardness import LOW_SIMILARITY, Candidate, choose_hardest, compare_calls
from raycomp.language.concepts import Edit, Parsed, parse_concepts
from raycomp.language.edits.propose import join_calls
from raycomp.language.judge.form import LONGEST_EDITED
from raycomp.language.judge.validity import judge
from raycomp.language.lexicon import Lexicon
from raycomp.loops.negatives.ranking import ADD_SIMILARITY, add_tokens
from raycomp.loops.tables import (
    FAULTS,
    OTHERS,
    add_columns,
    add_seconds,
    readable,
)
from raycomp.models.parser import Parser
from raycomp.schema import COMPARISON_TYPE, NEGATIVE_TYPE
from raycomp.words import (
    ADD,
    CAPTION,
    COMPARISON,
    EMPTY_CAPTION,
    NEGATIVES,
    NO_CAPTION,
    NO_CONCEPT,
    NO_NEGATIVE,
    NO_REPLY,
    OK,
    STATUS,
    UID,
)

Chain = Sequence[Edit]
"""Calls one after the other: each edit's text is the next one's input."""
ProposeChains = Callable[[str, Parsed, Sequence[Parsed]], tuple[list[Chain], list[str]]]
"""(uid, caption, others of its image) -> chains, and why there are not more of them, as counted reasons."""


class Reader:
    """Parses texts into concepts, each distinct text once in a batch."""

    def __init__(self, parser: Parser, lexicon: Lexicon):
        self.parser = parser
        self.lexicon = lexicon
        self.parsed: dict[str, Parsed] = {}

    def read(self, texts: Sequence[str]) -> None:
        """Parse what is not parsed yet."""
        new = list(dict.fromkeys(text for text in texts if text not in self.parsed))
        for text, tokens in zip(new, self.parser.tokens(new), strict=True):
            self.parsed[text] = parse_concepts(text, tokens, self.lexicon, self.parser.labels)


def write(table: pa.Table, config: NegativesConfig, reader: Reader, propose: ProposeChains) -> pa.Table:
    """Add valid candidates (in ``negatives``, all of them), status, and reasons of rejection.

    A status that a row brings along stays.

    With ranking, the tokens of captions and candidates come with them.
    """
    started = time.perf_counter()
    uids, captions, others = read_texts(table, reader)
    parsed = reader.parsed
    proposed = [
        propose(uid, parsed[caption], [parsed[text] for text in beside]) if caption.strip() else ([], [])
        for uid, caption, beside in zip(uids, captions, others, strict=True)
    ]
    reader.read([edit.text for chains, _ in proposed for chain in chains for edit in chain])
    candidates, faults = [], []
    for caption, texts, (chains, short) in zip(captions, others, proposed, strict=True):
        valid, rejected = _judge_chains(chains, caption, texts, reader)
        candidates.append(valid)
        faults.append([*short, *rejected])
    known = table[STATUS].to_pylist() if STATUS in table.column_names else [None] * len(table)
    columns = {
        NEGATIVES: _to_array(candidates, config.negatives.engine),
        STATUS: pa.array(
            [
                status or _status(caption, chains, valid, config.negatives.engine)
                for status, caption, (chains, _), valid in zip(
                    known,
                    table[CAPTION].to_pylist(),
                    proposed,
                    candidates,
                    strict=True,
                )
            ]
        ),
        FAULTS: pa.array(faults, pa.list_(pa.string())),
    }
    if config.negatives.rank:
        additions = config.negatives.add_similarity is not None
        columns |= add_tokens(captions, candidates, config.scorer, additions)
    return add_seconds(add_columns(table, columns), "edit", time.perf_counter() - started)


def read_texts(table: pa.Table, reader: Reader) -> tuple[list[str], list[str], list[list[str]]]:
    """Return uids, captions and the other captions of their images, all of them parsed."""
    captions = [readable(caption or "") for caption in table[CAPTION].to_pylist()]
    others = [list(map(readable, texts or ())) for texts in table[OTHERS].to_pylist()]
    reader.read([*captions, *(text for texts in others for text in texts)])
    return table[UID].to_pylist(), captions, others


def _judge_chains(
    chains: Sequence[Chain], caption: str, others: Sequence[str], reader: Reader
) -> tuple[list[Candidate], list[str]]:
    """Return the valid chains as candidates and, of each other one, the call's operation and its reason."""
    original = reader.parsed[caption]
    beside = [reader.parsed[text] for text in others]
    known: dict[tuple[str, str, str], str | None] = {}
    valid, rejected = [], []
    for chain in chains:
        before = original
        for edit in chain:
            step = (edit.op, before.text, edit.text)
            after = reader.parsed[edit.text]
            if step not in known:
                known[step] = judge(edit.op, before, after, original, beside, reader.lexicon)
            if known[step]:
                rejected.append(f"{edit.op}: {known[step]}")
                break
            before = after
        else:
            concepts = tuple(concept for edit in chain for concept in edit.concepts)
            op, kind = join_calls(chain)
            inputs = (caption, *(edit.text for edit in chain[:-1]))
            valid.append(Candidate(before.text, op, kind, len(chain), concepts, inputs=inputs))
    return valid, rejected


def _status(caption: str | None, chains: Sequence[Chain], valid: Sequence[Candidate], engine: str) -> str:
    if caption is None:
        return NO_CAPTION
    if not caption.strip():
        return EMPTY_CAPTION
    if not chains and len(readable(caption)) <= LONGEST_EDITED:
        return NO_CONCEPT if engine == "rules" else NO_REPLY
    return OK if valid else NO_NEGATIVE


def choose_negatives(table: pa.Table, config: WritingConfig) -> pa.Table:
    """Keep each row's hardest candidates; a row that loses all of them by similarity has no negative.

    A comparison of numbers of calls is added: null where the candidates allow none.
    """
    kept, faults, statuses, comparisons = [], [], [], []
    columns = (table[name].to_pylist() for name in (NEGATIVES, FAULTS, STATUS))
    for rows, reasons, status, is_near in zip(*columns, _mark_near(table, config), strict=True):
        near = [_to_candidate(row) for row, stays in zip(rows, is_near, strict=True) if stays]
        kept.append(choose_hardest(near, config.per_caption))
        comparison = compare_calls(near)
        comparisons.append(comparison and comparison._asdict())
        faults.append([*reasons, *[f"{ADD}: {LOW_SIMILARITY}"] * (len(rows) - len(near))])
        statuses.append(NO_NEGATIVE if rows and not near else status)
    return add_columns(
        table,
        {
            NEGATIVES: _to_array(kept, config.engine),
            FAULTS: pa.array(faults, pa.list_(pa.string())),
            STATUS: pa.array(statuses, pa.string()),
            COMPARISON: pa.array(comparisons, COMPARISON_TYPE),
        },
    )


def _mark_near(table: pa.Table, config: WritingConfig) -> list[list[bool]]:
    """Return of each row's candidates whether every ADD stays in the neighbourhood of its own input."""
    if config.add_similarity is None:
        return [[True] * len(rows) for rows in table[NEGATIVES].to_pylist()]
    least = config.add_similarity
    return [[one is None or one >= least for one in rows] for rows in table[ADD_SIMILARITY].to_pylist()]


def _to_array(groups: Sequence[Sequence[Candidate]], source: str) -> pa.Array:
    rows = [[{**c._asdict(), "source": source} for c in group] for group in groups]
    return pa.array(rows, pa.list_(NEGATIVE_TYPE))


def _to_candidate(row: dict[str, Any]) -> Candidate:
    fields = {name: row[name] for name in Candidate._fields if name in row}
    return Candidate(**{**fields, "concepts": tuple(row["concepts"])})
