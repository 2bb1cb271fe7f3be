"""Who proposes negatives: rules over the parse, or what a language model replied."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import pyarrow as pa

from raycomp.config import NegativesConfig, ParserConfig, WritingConfig
from raycomp.language.concepts import Edit, Parsed
from raycomp.language.edits.propose import apply_calls
from raycomp.language.judge.form import LONGEST_EDITED, TOO_LONG
from raycomp.language.judge.validity import judge
from raycomp.language.lexicon import Lexicon
from raycomp.language.prompts import NOT_ANSWERED, Reply, make_messages, read_reply, request_key
from raycomp.loops.negatives.write import Chain, ProposeChains, Reader, read_texts, write
from raycomp.models.lexicon import load_lexicon
from raycomp.models.parser import Parser, load_parser


class Prompt(NamedTuple):
    """One call that a language model is asked for."""

    key: str
    uid: str
    messages: list[dict[str, str]]


@lru_cache(maxsize=1)
def _tools(parser: ParserConfig) -> tuple[Parser, Lexicon]:
    """Load once in a process what reading needs."""
    return load_parser(parser.name), load_lexicon()


def propose_by_rules(reader: Reader, config: WritingConfig) -> ProposeChains:
    """Return the rules engine: chains of 1 to ``config.calls`` operations out of the caption's parse."""

    def propose(uid: str, parsed: Parsed, beside: Sequence[Parsed]) -> tuple[list[Chain], list[str]]:
        chains: list[Chain] = []
        short: list[str] = []
        if len(parsed.text) > LONGEST_EDITED:
            return [], _too_long(config)
        for calls in range(1, config.calls + 1):
            at_most = -(-config.candidates // len(config.operations) ** (calls - 1))
            for ops in product(config.operations, repeat=calls):
                found = apply_calls(parsed, ops, reader.lexicon, seed=config.seed, key=uid, at_most=at_most)
                whole = [chain for chain in found if len(chain) == calls]
                chains += whole
                if not whole:
                    short.append(f"{'+'.join(ops)}: no concept left to act on")
        return chains, short

    return propose


def _too_long(config: WritingConfig) -> list[str]:
    return [f"{op}: {TOO_LONG}" for op in config.operations]


def write_by_rules(table: pa.Table, config: NegativesConfig) -> pa.Table:
    """Add candidates by rules to rows of uid, caption and others; see ``write``."""
    reader = Reader(*_tools(config.parser))
    return write(table, config, reader, propose_by_rules(reader, config.negatives))


class ReplyTree:
    """What a language model has answered so far: chains of edits, and the prompts that come next.

    A call is asked for on a caption, and on every valid text of the call before it; so the prompts of a
    second call are known once those of the first are answered.
    """

    def __init__(self, reader: Reader, config: NegativesConfig, replies: Mapping[str, str]):
        self.reader = reader
        self.writing = config.negatives
        self.model = config.llm.model
        llm = config.llm
        self.sampling = {"temperature": llm.temperature, "max_tokens": llm.max_tokens, "seed": llm.seed}
        self.replies = {key: read_reply(text) for key, text in replies.items()}
        reader.read([reply.negative for reply in self.replies.values() if isinstance(reply, Reply)])

    def grow(
        self, uid: str, parsed: Parsed, beside: Sequence[Parsed]
    ) -> tuple[list[Chain], list[str], list[Prompt]]:
        """Return the chains that replies make, why others are missing, and the prompts not yet answered."""
        chains: list[Chain] = []
        faults: list[str] = []
        prompts: list[Prompt] = []
        if len(parsed.text) > LONGEST_EDITED:
            return [], _too_long(self.writing), []
        tips: list[Chain] = [()]
        for _ in range(self.writing.calls):
            grown = []
            for tip, op in product(tips, self.writing.operations):
                text = tip[-1].text if tip else parsed.text
                taken = [concept for edit in tip for concept in edit.concepts]
                messages = make_messages(op, text, taken)
                key = request_key(uid, messages, self.model, self.sampling)
                reply = self.replies.get(key, NOT_ANSWERED)
                if key not in self.replies:
                    prompts.append(Prompt(key, uid, messages))
                if not isinstance(reply, Reply):
                    faults.append(f"{op}: {reply}")
                elif {*map(str.lower, taken)} & {*map(str.lower, reply.concepts)}:
                    faults.append(f"{op}: acts on what an earlier call changed")
                else:
                    chain = (*tip, Edit(reply.negative, op, reply.kind, reply.concepts, ()))
                    chains.append(chain)
                    before = self.reader.parsed[text]
                    after = self.reader.parsed[reply.negative]
                    if judge(op, before, after, parsed, beside, self.reader.lexicon) is None:
                        grown.append(chain)
            tips = grown
        return chains, faults, prompts


def write_by_replies(table: pa.Table, config: NegativesConfig, replies: Mapping[str, str]) -> pa.Table:
    """Add candidates out of a language model's replies, by key; see ``write``."""
    reader = Reader(*_tools(config.parser))
    tree = ReplyTree(reader, config, replies)

    def propose(uid: str, parsed: Parsed, beside: Sequence[Parsed]) -> tuple[list[Chain], list[str]]:
        chains, faults, _ = tree.grow(uid, parsed, beside)
        return chains, faults

    return write(table, config, reader, propose)


def find_prompts(table: pa.Table, config: NegativesConfig, replies: Mapping[str, str]) -> list[Prompt]:
    """Return the prompts that these captions ask for and ``replies`` do not answer."""
    reader = Reader(*_tools(config.parser))
    tree = ReplyTree(reader, config, replies)
    uids, texts, others = read_texts(table, reader)
    return [
        prompt
        for uid, caption, beside in zip(uids, texts, others, strict=True)
        if caption.strip()
        for prompt in tree.grow(uid, reader.parsed[caption], [reader.parsed[text] for text in beside])[2]
    ]
