"""Write hard negatives of captions: an engine proposes candidates, each call is judged, the rest is ranked.

An engine only proposes texts: rules over the parse, replies of a language model, or words that a model
chooses (it scores the whole caption with each word in its place, so it needs neither a prompt nor a server).
This module decides whether a proposal is a negative, for all of them alike: each call against its own input,
and all of them against the caption.

``raycomp.negatives_of`` goes through the same stages in memory.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress, product
from typing import Any, NamedTuple

import pyarrow as pa

from raycomp import words
from raycomp.config import ScorerConfig
from raycomp.config.options import check
from raycomp.core.refine import LOW_SIMILARITY, Candidate, choose_hardest, compare_calls, list_additions
from raycomp.data import parquet
from raycomp.data.samples import decode_text
from raycomp.language import prompts as llm
from raycomp.language.concepts import Edit
from raycomp.language.judge import LONGEST_EDITED, TOO_LONG, judge_edit, name_change
from raycomp.language.overlap import Context, get_new_phrase, no_context
from raycomp.models.architecture import describe_scorer, list_cut, load_tokens
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.negatives.judges import Chain, Reader, compute_gaps, load_context, load_reader, read_by_form
from raycomp.run.local import Name, find_scorer, keep_model
from raycomp.run.progress import Progress
from raycomp.schema import COMPARISON_TYPE, NEGATIVE_TYPE

MOST_SEQUENCES = 81
"""Maximum number of sequences that rules try for a caption, for each number of calls: all of three operations
up to 4 calls. At 8 calls there are 6,561, nearly all of which find no concept left to change."""
MOST_PER_PLACE = 2
UNLIKELY, TRUE_OF_PHOTO, SAME = "unlikely", "true_of_photo", "same_tokens"
"""Reasons: other words are likelier there; it may be true of its photo; it has its caption's tokens."""
CUT = "caption: cut"  # counted with the rejected: a caption that is longer than the scorer's context
SUGGESTION = "suggestion"
"""Passed between the stages: log p(caption) - log p(negative) of each of a row's negatives, in nats."""
# Passed between the stages, a value for each of a row's negatives, only if ``add_similarity`` is set: the
# indices of each ADD's input and output among the row's texts, the caption first; their minimum similarity.
ADDITIONS = "additions"
ADD_SIMILARITY = "add_similarity"
NEW_PHRASES = "new_phrases"
"""A column, only with ``screen``: for each of a row's negatives what it brings in; [] is not screened."""


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


def read_captions(table: pa.Table, reader: Reader) -> list[Caption]:
    """Return the rows' captions, "" if missing, with the other captions of their images."""
    texts = [parquet.readable(caption or "") for caption in table[words.CAPTION].to_pylist()]
    others = [list(map(parquet.readable, context or ())) for context in table[parquet.OTHERS].to_pylist()]
    reader.read([*texts, *(text for context in others for text in context)])
    rows = zip(table[words.UID].to_pylist(), texts, others, strict=True)
    return [Caption(*row, reader) for row in rows]


def write(table: pa.Table, config: NegativesConfig, reader: Reader, propose: ProposeChains) -> pa.Table:
    """Add valid candidates (in ``negatives``, all of them), status, and reasons of rejection.

    An existing status of a row stays. With ranking, the tokens of captions and candidates are added.
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
        if given is None:
            found = words.NO_CAPTION
        elif not caption.text.strip():
            found = words.EMPTY_CAPTION
        elif not chains and caption.can_be_edited:
            has_nothing = all(reason.endswith(llm.NOTHING_LEFT) for reason in short)
            found = words.NO_CONCEPT if config.negatives.by_rules or has_nothing else words.NO_REPLY
        else:
            found = words.OK if valid else words.NO_NEGATIVE
        statuses.append(status or found)
    columns = {
        words.NEGATIVES: _to_array(candidates, config.negatives.engine),
        words.STATUS: pa.array(statuses),
    }
    if config.negatives.screen:
        # A negative of several calls is false if one of its edits is, so these bring in nothing.
        phrases = [
            [get_new_phrase(one.op, one.kind, one.concepts, reader.parsed[one.text]) for one in valid]
            for valid in candidates
        ]
        columns[NEW_PHRASES] = pa.array(phrases, pa.list_(pa.list_(pa.string())))
    if config.negatives.rank:
        additions = config.negatives.add_similarity is not None
        columns |= _add_tokens(texts, candidates, config.ranker, additions)
        cut = {*list_cut(config.ranker, texts)}
        faults = [[*own, *[CUT] * (text in cut)] for own, text in zip(faults, texts, strict=True)]
    columns[parquet.FAULTS] = pa.array(faults, pa.list_(pa.string()))
    return parquet.add_columns(table, columns)


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
        op, kind = llm.join_calls(chain)
        valid.append(Candidate(outputs[-1], op, kind, len(chain), concepts, inputs=tuple(inputs)))
    return valid, rejected


def _add_tokens(
    captions: Sequence[str], candidates: Sequence[Sequence[Candidate]], scorer: ScorerConfig, additions: bool
) -> dict[str, pa.Array]:
    """Return the tokens of captions and candidates; with additions also of every ADD's input and output."""
    tokenize = load_tokens(scorer)
    texts = [[candidate.text for candidate in group] for group in candidates]
    columns: dict[str, pa.Array] = {}
    if additions:
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


def _to_array(groups: Sequence[Sequence[Candidate]], source: str) -> pa.Array:
    rows = [[{**c._asdict(), "source": source} for c in group] for group in groups]
    return pa.array(rows, pa.list_(NEGATIVE_TYPE))


def propose_by_rules(
    caption: Caption, config: WritingConfig, context: Context | None = None
) -> tuple[list[Chain], list[str]]:
    """Return chains of 1 to ``config.calls`` operations out of the caption's parse; see ``ProposeChains``.

    If one number of calls has more than MOST_SEQUENCES sequences, some are drawn; the others are counted.
    """
    chains: list[Chain] = []
    short: list[str] = []
    for calls in range(1, config.calls + 1):
        at_most = -(-config.candidates // len(config.operations) ** (calls - 1))
        tried = draw_sequences(config.operations, calls, config.seed, caption.uid)
        if left_out := len(config.operations) ** calls - len(tried):
            short.append(f"{calls} calls: {left_out:,} sequences not tried")
        for ops in tried:
            lexicon = caption.reader.lexicon
            found = llm.apply_calls(caption.parsed, ops, lexicon, config.seed, caption.uid, at_most, context)
            whole = [chain for chain in found if len(chain) == calls]
            chains += whole
            if not whole:
                short.append(f"{'+'.join(ops)}: no concept left to edit")
    return chains, short


def draw_sequences(operations: Sequence[str], calls: int, seed: int, uid: str) -> list[tuple[str, ...]]:
    """Return the sequences of operations that are tried for a caption: all of them, else MOST_SEQUENCES.

    The choice is a function of seed and uid; the order stays.
    """
    every = list(product(operations, repeat=calls))
    if len(every) <= MOST_SEQUENCES:
        return every
    salt = f"{seed}\0{uid}\0"
    ranked = sorted(
        every, key=lambda ops: hashlib.blake2b((salt + "+".join(ops)).encode(), digest_size=8).digest()
    )
    drawn = {*ranked[:MOST_SEQUENCES]}
    return [ops for ops in every if ops in drawn]


def write_by_rules(table: pa.Table, config: NegativesConfig, context_uri: str | None = None) -> pa.Table:
    """Add candidates by rules to rows of uid, caption and others; see ``write``.

    ``context_uri`` names the counts of the corpus, with ``negatives.context``.
    """
    context = no_context() if config.negatives.is_broad else None
    if context_uri:
        context = load_context(context_uri)
    propose = partial(propose_by_rules, config=config.negatives, context=context)
    return write(table, config, load_reader(config.parser), propose)


class Prompt(NamedTuple):
    """One call requested from a language model."""

    key: str
    uid: str
    messages: list[dict[str, str]]
    form: str


def hash_prompts(style: str) -> str:
    """Return the hash of all words in the prompts of a style, and of the schemas of their replies."""
    worded = [llm.WORDING, llm.GAP_WORDING] if style == "short" else [llm.WORDING]
    return hashlib.sha256(json.dumps(worded, sort_keys=True).encode()).hexdigest()


class ReplyTree:
    """The answers of a language model so far: chains of edits, and the next prompts.

    A call is requested on a caption, and on every valid text of the call before it. So the prompts of a
    second call are known once those of the first are answered.
    """

    def __init__(self, config: NegativesConfig, replies: Mapping[str, str]):
        self.reader, self.replies, self.config = load_reader(config.parser), replies, config
        whole = (llm.read_reply(text, llm.CAPTION_FORM) for text in replies.values())
        self.reader.read([fields[0] for fields in whole if not isinstance(fields, str)])

    def grow(self, caption: Caption) -> tuple[list[Chain], list[str], list[Prompt]]:
        """Return the chains from the replies, reasons of missing ones, and the prompts not yet answered."""
        chains: list[Chain] = []
        faults: list[str] = []
        prompts: list[Prompt] = []
        tips: list[Chain] = [()]
        for _ in range(self.config.negatives.calls):
            proposed = []
            for tip, op in product(tips, self.config.negatives.operations):
                text, reason = self._propose(caption, tip, op, prompts)
                if text is None:
                    faults.append(f"{op}: {reason}")
                else:
                    proposed.append((tip, op, text))
            self.reader.read([text for *_, text in proposed])
            tips = []
            for tip, op, text in proposed:
                before = tip[-1].text if tip else caption.text
                parsed = self.reader.parsed
                kind, concepts = name_change(op, parsed[before], parsed[text], self.reader.lexicon)
                if any(concept in edit.concepts for edit in tip for concept in concepts):
                    faults.append(f"{op}: acts on what an earlier call changed")
                    continue
                chain: Chain = (*tip, Edit(text, op, kind, concepts, ()))
                chains.append(chain)
                if caption.judge(op, before, text) is None:
                    tips.append(chain)
        return chains, faults, prompts

    def _propose(
        self, caption: Caption, tip: Chain, op: str, prompts: list[Prompt]
    ) -> tuple[str | None, str]:
        """Return what the reply makes of a chain's text, or None and the reason why there is none.

        Without a reply the prompt is added to ``prompts``.
        """
        model = self.config.llm
        parsed = self.reader.parsed[tip[-1].text if tip else caption.text]
        taken = [concept for edit in tip for concept in edit.concepts]
        ask = llm.ask_for_words if model.prompts == "short" else llm.ask_for_caption
        request = ask(op, parsed, taken, self.reader.lexicon, caption.uid)
        if request is None:
            return None, llm.NOTHING_LEFT
        sampling = {"temperature": model.temperature, "max_tokens": model.max_tokens, "seed": model.seed}
        key = llm.request_key(caption.uid, request.messages, model.model, sampling)
        if key not in self.replies:
            prompts.append(Prompt(key, caption.uid, request.messages, request.form))
            return None, llm.NOT_ANSWERED
        fields = llm.read_reply(self.replies[key], request.form)
        return (None, fields) if isinstance(fields, str) else (request.write(fields), llm.NOT_THERE)


def write_by_replies(table: pa.Table, config: NegativesConfig, replies: Mapping[str, str]) -> pa.Table:
    """Add candidates from a language model's replies, by key; see ``write``."""
    tree = ReplyTree(config, replies)
    return write(table, config, tree.reader, lambda caption: tree.grow(caption)[:2])


def list_prompts(table: pa.Table, config: NegativesConfig, replies: Mapping[str, str]) -> list[Prompt]:
    """Return the prompts of these captions that ``replies`` do not answer."""
    tree = ReplyTree(config, replies)
    captions = [caption for caption in read_captions(table, tree.reader) if caption.can_be_edited]
    return [prompt for caption in captions for prompt in tree.grow(caption)[2]]


def suggest(table: pa.Table, compute_likelihoods: Callable[[Sequence[str]], Any]) -> pa.Table:
    """Add the gaps of all candidates; a score does not depend on the other rows."""
    rows = zip(table[words.CAPTION].to_pylist(), table[words.NEGATIVES].to_pylist(), strict=True)
    gaps = [compute_gaps(caption, negatives, compute_likelihoods) for caption, negatives in rows]
    return parquet.add_columns(table, {SUGGESTION: pa.array(gaps, pa.list_(pa.float64()))})


def keep_likeliest(table: pa.Table) -> pa.Table:
    """Keep the likeliest candidates of each place of a caption; the others are counted.

    A place of a REPLACE is the concept that is replaced; SWAPs of one kind compete, and so do ADDs.
    """
    stays = []
    rows = zip(table[words.NEGATIVES].to_pylist(), table[SUGGESTION].to_pylist(), strict=True)
    for negatives, gaps in rows:
        taken: Counter[tuple] = Counter()
        stay = [False] * len(negatives)
        for _, place in sorted(zip(gaps, range(len(gaps)), strict=True)):
            one = negatives[place]
            slot = (one["op"], one["kind"], one["concepts"][0] if one["op"] == words.REPLACE else None)
            taken[slot] += 1
            stay[place] = taken[slot] <= MOST_PER_PLACE
        stays.append(stay)
    kept = drop(table, stays, lambda one: f"{one['op']}: {UNLIKELY}")
    return kept.drop_columns([SUGGESTION])


def drop_unfit(table: pa.Table, config: WritingConfig) -> pa.Table:
    """Drop candidates of which an ADD leaves the neighbourhood of its own input, and those that may be true
    of their photo, if these are to be dropped; all are counted."""
    least = config.add_similarity
    if least is not None:
        stays = [[one is None or one >= least for one in row] for row in table[ADD_SIMILARITY].to_pylist()]
        table = drop(table, stays, lambda _: f"{words.ADD}: {LOW_SIMILARITY}").drop_columns([ADD_SIMILARITY])
    if config.drop_suspects:
        stays = [[not one[words.SUSPECT] for one in row] for row in table[words.NEGATIVES].to_pylist()]
        table = drop(table, stays, lambda one: f"{one['op']}: {TRUE_OF_PHOTO}")
    return table


def drop(
    table: pa.Table, stays: Sequence[Sequence[bool]], describe: Callable[[dict[str, Any]], str]
) -> pa.Table:
    """Return the table with the candidates that stay; each other one is counted by its fault."""
    columns: dict[str, pa.Array] = {}
    for name in (words.NEGATIVES, ADD_SIMILARITY):
        if name in table.column_names:
            kept = [list(compress(row, own)) for row, own in zip(table[name].to_pylist(), stays, strict=True)]
            columns[name] = pa.array(kept, table[name].type)
    rows = zip(table[words.NEGATIVES].to_pylist(), stays, table[parquet.FAULTS].to_pylist(), strict=True)
    faults = [
        [*known, *(describe(one) for one, stay in zip(row, own, strict=True) if not stay)]
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


INDEX, REASONS = "index", "reasons"
# Captions of a block, per thread of a CPU.
_ROWS = 64
# Fields of a negative in a row, by the names in NEGATIVE_TYPE.
_FIELDS = ("op", "kind", "concepts", "calls", "similarity")
_SCHEMA = pa.schema(
    [
        (INDEX, pa.int64()),
        *((name, pa.string()) for name in (words.CAPTION, words.STATUS, words.NEGATIVE)),
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
    if uids is None:
        data = [(caption or "").encode("utf-8", "surrogatepass") for caption in captions]
        uids = [hashlib.sha256(one).hexdigest()[:32] for one in data]
    if len(uids) != len(captions):
        lengths = f"{len(captions):,} and {len(uids):,}"
        raise ValueError(f"captions and uids: must have equal lengths, have {lengths}")
    check(config.negatives.engine == "rules", "negatives.engine", config.negatives.engine, "rules")
    for name, none in {"judge": "none", "screen": "0", "context": "false"}.items():
        value = getattr(config.negatives, name)
        check(not value, f"negatives.{name}", value, f"{none}: it needs a corpus")
    if config.negatives.rank:
        config = replace(config, scorer=find_scorer(config.ranker, model, weights))
        describe_scorer(config.ranker)
    else:
        for name, value in (("model", model), ("weights", weights)):
            check(value is None, name, value, "none with negatives.rank=false, which needs no model")
    with keep_model(config.scorer if config.negatives.rank else None, config.cluster) as num_threads:
        rank = None
        if config.negatives.rank:
            from raycomp.negatives.ranking import Rank  # torch, only needed for ranking

            rank = Rank(config, num_threads)
        tables, size = [_SCHEMA.empty_table()], _ROWS * num_threads
        with Progress("negatives", len(captions), unit="caption") as progress:
            for start in range(0, len(captions), size):
                block = _to_block(captions[start : start + size], uids[start : start + size])
                written = write_by_rules(block, config)
                written = drop_unfit(rank(written), config.negatives) if rank is not None else written
                tables.append(_list_negatives(choose_negatives(written, config.negatives), start))
                progress.reach(start + len(block), 1)
    return pa.concat_tables(tables).combine_chunks()


def _to_block(captions: Sequence[str | None], uids: Sequence[str]) -> pa.Table:
    """Return captions as ``load_captions`` yields those of a file."""
    texts = list(map(decode_text, captions))
    pairs = zip(texts, captions, strict=True)
    is_bad = [text is None and caption is not None for text, caption in pairs]
    return pa.table(
        {
            words.UID: pa.array(uids, pa.string()),
            words.CAPTION: pa.array(texts, pa.string()),
            parquet.OTHERS: pa.array([[]] * len(texts), pa.list_(pa.string())),
            words.STATUS: pa.array([words.BAD_ENCODING if bad else None for bad in is_bad], pa.string()),
        }
    )


def _list_negatives(written: pa.Table, start: int) -> pa.Table:
    """Return a row for each negative, and one for each caption that has none."""
    rows = []
    columns = [words.CAPTION, words.STATUS, words.NEGATIVES, parquet.FAULTS]
    for i, row in enumerate(written.select(columns).to_pylist(), start):
        own = {INDEX: i, words.CAPTION: row[words.CAPTION], words.STATUS: row[words.STATUS]}
        for one in row[words.NEGATIVES]:
            rows.append({**own, words.NEGATIVE: one["text"], **{name: one[name] for name in _FIELDS}})
        if not row[words.NEGATIVES]:
            rows.append({**own, REASONS: row[parquet.FAULTS]})
    return pa.Table.from_pylist(rows, _SCHEMA)
