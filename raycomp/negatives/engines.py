"""Sources of proposals: rules over the parse, replies of a language model, or words that a model chooses.

A model that chooses words scores the whole caption with each word in its place, so it needs neither a prompt
nor a server.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import pyarrow as pa

from raycomp.data.parquet import add_columns
from raycomp.language.concepts import Edit
from raycomp.language.judge import name_change
from raycomp.language.overlap import Context, no_context
from raycomp.language.prompts import (
    CAPTION_FORM,
    NOT_ANSWERED,
    NOT_THERE,
    NOTHING_LEFT,
    WORDING,
    apply_calls,
    ask_for_caption,
    ask_for_words,
    read_reply,
    request_key,
)
from raycomp.language.prompts import GAP_WORDING as SHORT_WORDING
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.negatives.judges import Chain, Reader, compute_gaps, load_context, load_reader
from raycomp.negatives.write import Caption, drop_candidates, read_captions, write
from raycomp.words import CAPTION, NEGATIVES, REPLACE

MOST_SEQUENCES = 81
"""Maximum number of sequences that rules try for a caption, for each number of calls: all of three operations
up to 4 calls. At 8 calls there are 6,561, nearly all of which find no concept left to change."""
SUGGESTION = "suggestion"
"""Passed between the stages: log p(caption) - log p(negative) of each of a row's negatives, in nats."""
UNLIKELY = "unlikely"
"""Reason of rejection: other words are likelier in its place."""
MOST_PER_PLACE = 2


class Prompt(NamedTuple):
    """One call requested from a language model."""

    key: str
    uid: str
    messages: list[dict[str, str]]
    form: str


# By the value of ``llm.prompts``.
REQUESTS = {"full": ask_for_caption, "short": ask_for_words}


def hash_prompts(style: str) -> str:
    """Return the hash of all words in the prompts of a style, and of the schemas of their replies."""
    worded = [WORDING, SHORT_WORDING] if style == "short" else [WORDING]
    return hashlib.sha256(json.dumps(worded, sort_keys=True).encode()).hexdigest()


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
            found = apply_calls(caption.parsed, ops, lexicon, config.seed, caption.uid, at_most, context)
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


class ReplyTree:
    """The answers of a language model so far: chains of edits, and the next prompts.

    A call is requested on a caption, and on every valid text of the call before it. So the prompts of a
    second call are known once those of the first are answered.
    """

    def __init__(self, reader: Reader, config: NegativesConfig, replies: Mapping[str, str]):
        self.reader, self.replies = reader, replies
        self.writing, llm = config.negatives, config.llm
        self.ask = REQUESTS[llm.prompts]
        self.model = llm.model
        self.sampling = {"temperature": llm.temperature, "max_tokens": llm.max_tokens, "seed": llm.seed}
        whole = (read_reply(text, CAPTION_FORM) for text in replies.values())
        reader.read([fields[0] for fields in whole if not isinstance(fields, str)])

    def grow(self, caption: Caption) -> tuple[list[Chain], list[str], list[Prompt]]:
        """Return the chains from the replies, reasons of missing ones, and the prompts not yet answered."""
        chains: list[Chain] = []
        faults: list[str] = []
        prompts: list[Prompt] = []
        tips: list[Chain] = [()]
        for _ in range(self.writing.calls):
            proposed = []
            for tip, op in product(tips, self.writing.operations):
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
        parsed = self.reader.parsed[tip[-1].text if tip else caption.text]
        taken = [concept for edit in tip for concept in edit.concepts]
        request = self.ask(op, parsed, taken, self.reader.lexicon, caption.uid)
        if request is None:
            return None, NOTHING_LEFT
        key = request_key(caption.uid, request.messages, self.model, self.sampling)
        if key not in self.replies:
            prompts.append(Prompt(key, caption.uid, request.messages, request.form))
            return None, NOT_ANSWERED
        fields = read_reply(self.replies[key], request.form)
        return (None, fields) if isinstance(fields, str) else (request.write(fields), NOT_THERE)


def write_by_replies(table: pa.Table, config: NegativesConfig, replies: Mapping[str, str]) -> pa.Table:
    """Add candidates from a language model's replies, by key; see ``write``."""
    reader = load_reader(config.parser)
    tree = ReplyTree(reader, config, replies)

    return write(table, config, reader, lambda caption: tree.grow(caption)[:2])


def list_prompts(table: pa.Table, config: NegativesConfig, replies: Mapping[str, str]) -> list[Prompt]:
    """Return the prompts of these captions that ``replies`` do not answer."""
    reader = load_reader(config.parser)
    tree = ReplyTree(reader, config, replies)
    captions = [caption for caption in read_captions(table, reader) if caption.can_be_edited]
    return [prompt for caption in captions for prompt in tree.grow(caption)[2]]


def suggest(table: pa.Table, compute_likelihoods: Callable[[Sequence[str]], Any]) -> pa.Table:
    """Add the gaps of all candidates; a score does not depend on the other rows."""
    rows = zip(table[CAPTION].to_pylist(), table[NEGATIVES].to_pylist(), strict=True)
    gaps = [compute_gaps(caption, negatives, compute_likelihoods) for caption, negatives in rows]
    return add_columns(table, {SUGGESTION: pa.array(gaps, pa.list_(pa.float64()))})


def keep_likeliest(table: pa.Table) -> pa.Table:
    """Keep the likeliest candidates of each place of a caption; the others are counted.

    A place of a REPLACE is the concept that is replaced; SWAPs of one kind compete, and so do ADDs.
    """
    stays = []
    for negatives, gaps in zip(table[NEGATIVES].to_pylist(), table[SUGGESTION].to_pylist(), strict=True):
        taken: Counter[tuple] = Counter()
        stay = [False] * len(negatives)
        for _, place in sorted(zip(gaps, range(len(gaps)), strict=True)):
            one = negatives[place]
            slot = (one["op"], one["kind"], one["concepts"][0] if one["op"] == REPLACE else None)
            taken[slot] += 1
            stay[place] = taken[slot] <= MOST_PER_PLACE
        stays.append(stay)
    kept = drop_candidates(table, stays, lambda one: f"{one['op']}: {UNLIKELY}")
    return kept.drop_columns([SUGGESTION])
