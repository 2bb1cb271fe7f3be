"""Write hard negatives of captions: an engine proposes candidates, each call is judged, the rest is ranked.

An engine only proposes texts. This module decides whether a proposal is a negative, for rules and language
models alike: each call against its own input, and all of them against the caption.
"""

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import pyarrow as pa

from raycomp import words
from raycomp.config import ScorerConfig
from raycomp.core.refine import LOW_SIMILARITY, Candidate, choose_hardest, compare_calls, list_additions
from raycomp.data import parquet
from raycomp.language.judge import LONGEST_EDITED, TOO_LONG, judge_edit
from raycomp.language.overlap import get_new_phrase
from raycomp.language.prompts import NOTHING_LEFT, join_calls
from raycomp.models.architecture import load_tokens
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.negatives.judges import Chain, Reader, read_by_form
from raycomp.schema import COMPARISON_TYPE, NEGATIVE_TYPE

TRUE_OF_PHOTO = "true_of_photo"
"""Reason of rejection: the negative may be true of its photo."""
# Passed between the stages, a value for each of a row's negatives, only if ``add_similarity`` is set: the
# indices of each ADD's input and output among the row's texts, the caption first; their minimum similarity.
ADDITIONS = "additions"
ADD_SIMILARITY = "add_similarity"
NEW_PHRASES = "new_phrases"
"""A column, only with ``screen``: for each of a row's negatives what it brings in; [] is not screened."""
_PHRASES_TYPE = pa.list_(pa.list_(pa.string()))


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


ProposeChains = Callable[[Caption], tuple[list[Chain], list[str]]]
"""Caption -> chains, and counted reasons of missing chains."""


def write(table: pa.Table, config: NegativesConfig, reader: Reader, propose: ProposeChains) -> pa.Table:
    """Add valid candidates (in ``negatives``, all of them), status, and reasons of rejection.

    An existing status of a row stays.

    With ranking, the tokens of captions and candidates are added.
    """
    captions = read_captions(table, reader)
    texts = [caption.text for caption in captions]
    too_long = [f"{op}: {TOO_LONG}" for op in config.negatives.operations]
    proposed = [
        propose(caption) if caption.can_be_edited else ([], too_long if caption.text.strip() else [])
        for caption in captions
    ]
    if config.negatives.is_broad:
        read_by_form(reader, texts, [chains for chains, _ in proposed])
    else:
        reader.read([edit.text for chains, _ in proposed for chain in chains for edit in chain])
    known = table[words.STATUS].to_pylist() if words.STATUS in table.column_names else [None] * len(table)
    candidates, faults, statuses = [], [], []
    rows = zip(known, table[words.CAPTION].to_pylist(), captions, proposed, strict=True)
    for status, given, caption, (chains, short) in rows:
        valid, rejected = _judge_chains(chains, caption)
        candidates.append(valid)
        faults.append([*short, *rejected])
        found = _status(given, caption, bool(chains), bool(valid), short, config.negatives.by_rules)
        statuses.append(status or found)
    columns = {
        words.NEGATIVES: _to_array(candidates, config.negatives.engine),
        words.STATUS: pa.array(statuses),
        parquet.FAULTS: pa.array(faults, pa.list_(pa.string())),
    }
    if config.negatives.screen:
        # A negative of several calls is false if one of its edits is, so these bring in nothing.
        phrases = [
            [get_new_phrase(one.op, one.kind, one.concepts, reader.parsed[one.text]) for one in valid]
            for valid in candidates
        ]
        columns[NEW_PHRASES] = pa.array(phrases, _PHRASES_TYPE)
    if config.negatives.rank:
        additions = config.negatives.add_similarity is not None
        columns |= add_tokens(texts, candidates, config.ranker, additions)
    return parquet.add_columns(table, columns)


def read_captions(table: pa.Table, reader: Reader) -> list[Caption]:
    """Return the rows' captions, "" if missing, with the other captions of their images."""
    texts = [parquet.readable(caption or "") for caption in table[words.CAPTION].to_pylist()]
    others = [list(map(parquet.readable, context or ())) for context in table[parquet.OTHERS].to_pylist()]
    reader.read([*texts, *(text for context in others for text in context)])
    rows = zip(table[words.UID].to_pylist(), texts, others, strict=True)
    return [Caption(*row, reader) for row in rows]


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
    given: str | None,
    caption: Caption,
    has_chains: bool,
    has_valid: bool,
    short: Sequence[str],
    by_rules: bool,
) -> str:
    if given is None:
        return words.NO_CAPTION
    if not caption.text.strip():
        return words.EMPTY_CAPTION
    if not has_chains and caption.can_be_edited:
        is_asked = not by_rules and not all(reason.endswith(NOTHING_LEFT) for reason in short)
        return words.NO_REPLY if is_asked else words.NO_CONCEPT
    return words.OK if has_valid else words.NO_NEGATIVE


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
        placed = []
        for caption, own, group in zip(captions, texts, candidates, strict=True):
            steps = [list_additions(candidate) for candidate in group]
            known, said = {caption, *own}, (text for pairs in steps for pair in pairs for text in pair)
            own += [text for text in dict.fromkeys(said) if text not in known]
            places = {text: place for place, text in reversed([*enumerate([caption, *own])])}
            placed.append([[[places[before], places[after]] for before, after in one] for one in steps])
        columns[ADDITIONS] = pa.array(placed, pa.list_(pa.list_(pa.list_(pa.int32()))))
    tokens_TL = tokenize([parquet.readable(text) for group in texts for text in group] or [""])
    columns[parquet.TOKENS] = parquet.to_fixed_lists(tokenize(list(captions)))
    columns[parquet.COUNTERFACTUALS] = parquet.nest(tokens_TL, [len(group) for group in texts])
    return columns


def drop_far(table: pa.Table, config: WritingConfig) -> pa.Table:
    """Drop candidates of which an ADD leaves the neighbourhood of its own input; these are counted."""
    least = config.add_similarity
    if least is None:
        return table
    stays = [[one is None or one >= least for one in row] for row in table[ADD_SIMILARITY].to_pylist()]
    return drop_candidates(table, stays, lambda _: f"{words.ADD}: {LOW_SIMILARITY}").drop_columns(
        [ADD_SIMILARITY]
    )


def drop_suspects(table: pa.Table, config: WritingConfig) -> pa.Table:
    """Drop candidates that may be true of their photo; these are counted."""
    if not config.drop_suspects:
        return table
    stays = [[not one[words.SUSPECT] for one in row] for row in table[words.NEGATIVES].to_pylist()]
    return drop_candidates(table, stays, lambda one: f"{one['op']}: {TRUE_OF_PHOTO}")


def drop_candidates(
    table: pa.Table, stays: Sequence[Sequence[bool]], check_nonce: Callable[[dict[str, Any]], str]
) -> pa.Table:
    """Return the table with the candidates that stay; each other one is counted by its fault."""
    names = [name for name in (words.NEGATIVES, ADD_SIMILARITY) if name in table.column_names]
    columns: dict[str, pa.Array] = {}
    for name in names:
        kept = [list(compress(row, own)) for row, own in zip(table[name].to_pylist(), stays, strict=True)]
        columns[name] = pa.array(kept, table[name].type)
    rows = zip(table[words.NEGATIVES].to_pylist(), stays, table[parquet.FAULTS].to_pylist(), strict=True)
    faults = [
        [*known, *(check_nonce(one) for one, stay in zip(row, own, strict=True) if not stay)]
        for row, own, known in rows
    ]
    return parquet.add_columns(table, columns | {parquet.FAULTS: pa.array(faults, pa.list_(pa.string()))})


def choose_negatives(table: pa.Table, config: WritingConfig) -> pa.Table:
    """Keep each row's hardest candidates; a row of status ok that has none left has no negative.

    A comparison of numbers of calls is added: null if the candidates allow none.
    """
    kept, statuses, comparisons = [], [], []
    for rows, status in zip(table[words.NEGATIVES].to_pylist(), table[words.STATUS].to_pylist(), strict=True):
        known = [{name: row[name] for name in Candidate._fields if name in row} for row in rows]
        candidates = [Candidate(**{**one, "concepts": tuple(one["concepts"])}) for one in known]
        kept.append(choose_hardest(candidates, config.per_caption))
        comparison = compare_calls(candidates)
        comparisons.append(comparison and comparison._asdict())
        statuses.append(words.NO_NEGATIVE if status == words.OK and not candidates else status)
    columns = {words.NEGATIVES: _to_array(kept, config.engine), words.STATUS: pa.array(statuses, pa.string())}
    return parquet.add_columns(table, {**columns, words.COMPARISON: pa.array(comparisons, COMPARISON_TYPE)})


def _to_array(groups: Sequence[Sequence[Candidate]], source: str) -> pa.Array:
    rows = [[{**c._asdict(), "source": source} for c in group] for group in groups]
    return pa.array(rows, pa.list_(NEGATIVE_TYPE))
