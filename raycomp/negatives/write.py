"""Write hard negatives of captions: an engine proposes candidates, each call is judged, the rest is ranked.

An engine only proposes texts. This module decides whether a proposal is a negative, for rules and language
models alike: each call against its own input, and all of them against the caption.
"""

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import pyarrow as pa

from raycomp.config import ScorerConfig
from raycomp.core.refine import LOW_SIMILARITY, Candidate, choose_hardest, compare_calls, list_additions
from raycomp.data.parquet import (
    COUNTERFACTUALS,
    FAULTS,
    OTHERS,
    TOKENS,
    add_columns,
    nest,
    readable,
    to_fixed_lists,
)
from raycomp.language.judge import LONGEST_EDITED, TOO_LONG, judge_edit
from raycomp.language.overlap import Phrase, find_new_phrase
from raycomp.language.prompts import NOTHING_LEFT
from raycomp.language.propose import join_calls
from raycomp.models.nonces import load_tokens
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.negatives.judges import Chain, Reader, read_by_form
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
    SUSPECT,
    UID,
)


class Caption:
    """A caption and the others of its image, all parsed; the verdict on each edit is cached."""

    def __init__(self, uid: str, text: str, others: Sequence[str], reader: Reader):
        self.uid, self.text, self.reader = uid, text, reader
        self.parsed = reader.parsed[text]
        self._others = [reader.parsed[other] for other in others]
        self._reasons: dict[tuple[str, str, str], str | None] = {}

    @property
    def can_be_edited(self) -> bool:
        """Whether it has content, and is not too long."""
        return bool(self.text.strip()) and len(self.text) <= LONGEST_EDITED

    def judge(self, op: str, before: str, after: str) -> str | None:
        """Return why ``op`` from one parsed text to another is not a negative; None if it is."""
        step = op, before, after
        if step not in self._reasons:
            texts = (self.reader.parsed[before], self.reader.parsed[after], self.parsed)
            self._reasons[step] = judge_edit(op, *texts, self._others, self.reader.lexicon)
        return self._reasons[step]


TRUE_OF_PHOTO = "true_of_photo"
"""Reason of rejection: the negative may be true of its photo."""
ProposeChains = Callable[[Caption], tuple[list[Chain], list[str]]]
"""Caption -> chains, and counted reasons of missing chains."""


def write(table: pa.Table, config: NegativesConfig, reader: Reader, propose: ProposeChains) -> pa.Table:
    """Add valid candidates (in ``negatives``, all of them), status, and reasons of rejection.

    An existing status of a row stays.

    With ranking, the tokens of captions and candidates are added.
    """
    captions = read_captions(table, reader)
    texts = [caption.text for caption in captions]
    proposed = [_propose(caption, propose, config.negatives) for caption in captions]
    if config.negatives.is_broad:
        read_by_form(reader, texts, [chains for chains, _ in proposed])
    else:
        reader.read([edit.text for chains, _ in proposed for chain in chains for edit in chain])
    known = table[STATUS].to_pylist() if STATUS in table.column_names else [None] * len(table)
    candidates, faults, statuses = [], [], []
    rows = zip(known, table[CAPTION].to_pylist(), captions, proposed, strict=True)
    for status, given, caption, (chains, short) in rows:
        valid, rejected = _judge_chains(chains, caption)
        candidates.append(valid)
        faults.append([*short, *rejected])
        found = (
            NO_CAPTION if given is None else _status(caption, chains, valid, short, config.negatives.by_rules)
        )
        statuses.append(status or found)
    columns = {
        NEGATIVES: _to_array(candidates, config.negatives.engine),
        STATUS: pa.array(statuses),
        FAULTS: pa.array(faults, pa.list_(pa.string())),
    }
    if config.negatives.screen:
        phrases = [[_find_new(one, reader) for one in valid] for valid in candidates]
        columns[NEW_PHRASES] = pa.array(phrases, _PHRASES_TYPE)
    if config.negatives.rank:
        additions = config.negatives.add_similarity is not None
        columns |= add_tokens(texts, candidates, config.ranker, additions)
    return add_columns(table, columns)


def _find_new(candidate: Candidate, reader: Reader) -> Phrase:
    """Return what a negative of one call brings in; one of more calls is false if one of its edits is."""
    parsed = reader.parsed[candidate.text]
    return find_new_phrase(candidate.op, candidate.kind, candidate.concepts, parsed)


def read_captions(table: pa.Table, reader: Reader) -> list[Caption]:
    """Return the rows' captions, "" if missing, with the other captions of their images."""
    texts = [readable(caption or "") for caption in table[CAPTION].to_pylist()]
    others = [list(map(readable, context or ())) for context in table[OTHERS].to_pylist()]
    reader.read([*texts, *(text for context in others for text in context)])
    rows = zip(table[UID].to_pylist(), texts, others, strict=True)
    return [Caption(*row, reader) for row in rows]


def _propose(
    caption: Caption, propose: ProposeChains, config: WritingConfig
) -> tuple[list[Chain], list[str]]:
    if caption.can_be_edited:
        return propose(caption)
    return [], [f"{op}: {TOO_LONG}" for op in config.operations] if caption.text.strip() else []


def _judge_chains(chains: Sequence[Chain], caption: Caption) -> tuple[list[Candidate], list[str]]:
    """Return the valid chains as candidates and, for each other one, the call's operation and the reason."""
    valid, rejected = [], []
    for chain in chains:
        outputs = [edit.text for edit in chain]
        before = (caption.text, *outputs[:-1])
        inputs = [edit.base or text for edit, text in zip(chain, before, strict=True)]
        steps = zip(chain, inputs, outputs, strict=True)
        reasons = ((edit.op, caption.judge(edit.op, *pair)) for edit, *pair in steps)
        fault = next((f"{op}: {reason}" for op, reason in reasons if reason), None)
        if fault:
            rejected.append(fault)
            continue
        concepts = tuple(concept for edit in chain for concept in edit.concepts)
        op, kind = join_calls(chain)
        valid.append(Candidate(outputs[-1], op, kind, len(chain), concepts, inputs=tuple(inputs)))
    return valid, rejected


def _status(
    caption: Caption,
    chains: Sequence[Chain],
    valid: Sequence[Candidate],
    short: Sequence[str],
    by_rules: bool,
) -> str:
    if not caption.text.strip():
        return EMPTY_CAPTION
    if not chains and caption.can_be_edited:
        is_asked = not by_rules and not all(reason.endswith(NOTHING_LEFT) for reason in short)
        return NO_REPLY if is_asked else NO_CONCEPT
    return OK if valid else NO_NEGATIVE


def drop_far(table: pa.Table, config: WritingConfig) -> pa.Table:
    """Drop candidates of which an ADD leaves the neighbourhood of its own input; these are counted."""
    least = config.add_similarity
    if least is None:
        return table
    stays = [[one is None or one >= least for one in row] for row in table[ADD_SIMILARITY].to_pylist()]
    return drop_candidates(table, stays, lambda _: f"{ADD}: {LOW_SIMILARITY}").drop_columns([ADD_SIMILARITY])


def drop_suspects(table: pa.Table, config: WritingConfig) -> pa.Table:
    """Drop candidates that may be true of their photo; these are counted."""
    if not config.drop_suspects:
        return table
    stays = [[not one[SUSPECT] for one in row] for row in table[NEGATIVES].to_pylist()]
    return drop_candidates(table, stays, lambda one: f"{one['op']}: {TRUE_OF_PHOTO}")


def drop_candidates(
    table: pa.Table, stays: Sequence[Sequence[bool]], find_fault: Callable[[dict[str, Any]], str]
) -> pa.Table:
    """Return the table with the candidates that stay; each other one is counted by its fault."""
    names = [name for name in (NEGATIVES, ADD_SIMILARITY) if name in table.column_names]
    columns = {
        name: pa.array(
            [list(compress(row, own)) for row, own in zip(table[name].to_pylist(), stays, strict=True)],
            table[name].type,
        )
        for name in names
    }
    rows = zip(table[NEGATIVES].to_pylist(), stays, table[FAULTS].to_pylist(), strict=True)
    faults = [
        [*known, *(find_fault(one) for one, stay in zip(row, own, strict=True) if not stay)]
        for row, own, known in rows
    ]
    return add_columns(table, columns | {FAULTS: pa.array(faults, pa.list_(pa.string()))})


def choose_negatives(table: pa.Table, config: WritingConfig) -> pa.Table:
    """Keep each row's hardest candidates; a row of status ok that has none left has no negative.

    A comparison of numbers of calls is added: null if the candidates allow none.
    """
    kept, statuses, comparisons = [], [], []
    for rows, status in zip(table[NEGATIVES].to_pylist(), table[STATUS].to_pylist(), strict=True):
        candidates = [_to_candidate(row) for row in rows]
        kept.append(choose_hardest(candidates, config.per_caption))
        comparison = compare_calls(candidates)
        comparisons.append(comparison and comparison._asdict())
        statuses.append(NO_NEGATIVE if status == OK and not candidates else status)
    return add_columns(
        table,
        {
            NEGATIVES: _to_array(kept, config.engine),
            STATUS: pa.array(statuses, pa.string()),
            COMPARISON: pa.array(comparisons, COMPARISON_TYPE),
        },
    )


def _to_array(groups: Sequence[Sequence[Candidate]], source: str) -> pa.Array:
    rows = [[{**c._asdict(), "source": source} for c in group] for group in groups]
    return pa.array(rows, pa.list_(NEGATIVE_TYPE))


def _to_candidate(row: dict[str, Any]) -> Candidate:
    fields = {name: row[name] for name in Candidate._fields if name in row}
    return Candidate(**{**fields, "concepts": tuple(row["concepts"])})


# Passed between the stages, a value for each of a row's negatives, only if ``add_similarity`` is set: the
# indices of each ADD's input and output among the row's texts, the caption first; their minimum similarity.
ADDITIONS = "additions"
ADD_SIMILARITY = "add_similarity"
NEW_PHRASES = "new_phrases"
"""A column, only with ``screen``: for each of a row's negatives what it brings in; [] is not screened."""
_PHRASES_TYPE = pa.list_(pa.list_(pa.string()))
_ADDITIONS_TYPE = pa.list_(pa.list_(pa.list_(pa.int32())))
Steps = Sequence[Sequence[tuple[str, str]]]
"""The input and output of every ADD, for each of a row's candidates."""


def add_tokens(
    captions: Sequence[str],
    candidates: Sequence[Sequence[Candidate]],
    scorer: ScorerConfig,
    with_additions: bool,
) -> dict[str, pa.Array]:
    """Return the tokens of captions and candidates; with additions also of every ADD's input and output."""
    tokenize = load_tokens(scorer)
    texts = [[candidate.text for candidate in group] for group in candidates]
    columns: dict[str, pa.Array] = {}
    if with_additions:
        steps = [[list_additions(candidate) for candidate in group] for group in candidates]
        texts = list(map(_add_texts, captions, texts, steps))
        columns[ADDITIONS] = pa.array(list(map(_place, captions, texts, steps)), _ADDITIONS_TYPE)
    tokens_TL = tokenize([readable(text) for group in texts for text in group] or [""])
    columns[TOKENS] = to_fixed_lists(tokenize(list(captions)))
    columns[COUNTERFACTUALS] = nest(tokens_TL, [len(group) for group in texts])
    return columns


def _add_texts(caption: str, texts: Sequence[str], steps: Steps) -> list[str]:
    """Return ``texts`` followed by the steps' texts that are not among them."""
    known = {caption, *texts}
    more = (text for pairs in steps for pair in pairs for text in pair if text not in known)
    return [*texts, *dict.fromkeys(more)]


def _place(caption: str, texts: Sequence[str], steps: Steps) -> list[list[list[int]]]:
    """Return the steps with the index of each text, 0 for the caption."""
    places = {text: place for place, text in reversed([*enumerate([caption, *texts])])}
    return [[[places[before], places[after]] for before, after in pairs] for pairs in steps]
