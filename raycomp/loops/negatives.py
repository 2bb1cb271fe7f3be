"""Write hard negatives of captions: candidates from an engine, each call judged, the rest ranked and chosen.

An engine only proposes: what a caption can be said instead. Whether a proposal is a negative is decided here,
for rules and language models alike, one call against its own input and all of them against the caption.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.config import NegativesConfig, ScorerConfig, WritingConfig
from raycomp.core.alignment import pair_cosine
from raycomp.core.concepts import Edit, Parsed, parse_concepts
from raycomp.core.edits import join_calls
from raycomp.core.form import LONGEST_EDITED
from raycomp.core.hardness import LOW_SIMILARITY, Candidate, choose_hardest, compare_calls
from raycomp.core.lexicon import Lexicon
from raycomp.core.validity import judge
from raycomp.loops.tables import (
    COUNTERFACTUALS,
    FAULTS,
    OTHERS,
    TOKENS,
    add_columns,
    add_seconds,
    nest,
    readable,
    to_fixed_lists,
    to_matrix,
)
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.parser import Parser
from raycomp.schema import (
    ADD,
    CAPTION,
    COMPARISON,
    COMPARISON_TYPE,
    EMPTY_CAPTION,
    NEGATIVE_TYPE,
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
        columns |= _tokenize(captions, candidates, config.scorer)
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
            valid.append(Candidate(before.text, op, kind, len(chain), concepts))
    return valid, rejected


def _status(caption: str | None, chains: Sequence[Chain], valid: Sequence[Candidate], engine: str) -> str:
    if caption is None:
        return NO_CAPTION
    if not caption.strip():
        return EMPTY_CAPTION
    if not chains and len(readable(caption)) <= LONGEST_EDITED:
        return NO_CONCEPT if engine == "rules" else NO_REPLY
    return OK if valid else NO_NEGATIVE


def _tokenize(
    captions: Sequence[str], candidates: Sequence[Sequence[Candidate]], scorer: ScorerConfig
) -> dict[str, pa.Array]:
    tokenize = load_tokenizer(scorer)
    texts = [candidate.text for group in candidates for candidate in group]
    tokens_TL = tokenize([readable(text) for text in texts] or [""]).numpy().astype(np.int32)
    return {
        TOKENS: to_fixed_lists(tokenize(list(captions)).numpy().astype(np.int32)),
        COUNTERFACTUALS: nest(tokens_TL, [len(group) for group in candidates]),
    }


class Rank:
    """One actor: load the text tower once, then add each candidate's similarity to its caption."""

    def __init__(self, config: ScorerConfig, num_threads: int | None = None):
        self.clip = Clip(config, num_threads=num_threads)

    def __call__(self, table: pa.Table) -> pa.Table:
        """``similarity`` = cos(g(caption), g(candidate)). N rows, T candidates of all of them."""
        started = time.perf_counter()
        others = table[COUNTERFACTUALS].combine_chunks()
        count_N = others.value_lengths().to_numpy(zero_copy_only=False)
        # Candidates differ from their caption in length, so each text is encoded by itself.
        text_KD, _ = self.clip.text.embed(
            np.concatenate([to_matrix(table[TOKENS]), to_matrix(others.flatten())])
        )
        row_T = np.repeat(np.arange(len(table)), count_N)
        similarity_T = pair_cosine(text_KD[row_T], text_KD[len(table) :]).numpy()
        lists = table[NEGATIVES].combine_chunks()
        fields = dict(zip(NEGATIVE_TYPE.names, lists.flatten().flatten(), strict=True))
        fields["similarity"] = pa.array(similarity_T)
        filled = pa.StructArray.from_arrays(list(fields.values()), fields=list(NEGATIVE_TYPE))
        offsets = pa.array(np.concatenate([[0], np.cumsum(count_N)]).astype(np.int32))
        columns = {NEGATIVES: pa.ListArray.from_arrays(offsets, filled)}
        table = add_columns(table.drop_columns([TOKENS, COUNTERFACTUALS]), columns)
        return add_seconds(table, "rank", time.perf_counter() - started)


def choose_negatives(table: pa.Table, config: WritingConfig) -> pa.Table:
    """Keep each row's hardest candidates; a row that loses all of them by similarity has no negative.

    A comparison of numbers of calls is added: null where the candidates allow none.
    """
    kept, faults, statuses, comparisons = [], [], [], []
    columns = (table[name].to_pylist() for name in (NEGATIVES, FAULTS, STATUS))
    for rows, reasons, status in zip(*columns, strict=True):
        candidates = [_to_candidate(row) for row in rows]
        near = [c for c in candidates if not _is_too_far(c, config.add_similarity)]
        kept.append(choose_hardest(near, config.per_caption))
        comparison = compare_calls(near)
        comparisons.append(comparison and comparison._asdict())
        faults.append([*reasons, *[f"{ADD}: {LOW_SIMILARITY}"] * (len(candidates) - len(near))])
        statuses.append(NO_NEGATIVE if candidates and not near else status)
    return add_columns(
        table,
        {
            NEGATIVES: _to_array(kept, config.engine),
            FAULTS: pa.array(faults, pa.list_(pa.string())),
            STATUS: pa.array(statuses, pa.string()),
            COMPARISON: pa.array(comparisons, COMPARISON_TYPE),
        },
    )


def _is_too_far(candidate: Candidate, least: float | None) -> bool:
    """Whether an ADD, which is then the only call, leaves the caption's neighbourhood."""
    return least is not None and candidate.op == ADD and candidate.similarity < least


def _to_array(groups: Sequence[Sequence[Candidate]], source: str) -> pa.Array:
    rows = [[{**c._asdict(), "source": source} for c in group] for group in groups]
    return pa.array(rows, pa.list_(NEGATIVE_TYPE))


def _to_candidate(row: dict[str, Any]) -> Candidate:
    fields = {name: row[name] for name in Candidate._fields}
    return Candidate(**{**fields, "concepts": tuple(row["concepts"])})
