"""Who proposes negatives: rules over the parse, or what a language model replied."""

from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import product
from typing import NamedTuple

import pyarrow as pa

from raycomp.config import NegativesConfig, ParserConfig, WritingConfig
from raycomp.language.concepts import Edit
from raycomp.language.edits.propose import apply_calls
from raycomp.language.lexicon import Lexicon
from raycomp.language.prompts import NOT_ANSWERED, Reply, make_messages, read_reply, request_key
from raycomp.loops.negatives.write import Caption, Chain, Reader, read_captions, write
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


def propose_by_rules(caption: Caption, config: WritingConfig) -> tuple[list[Chain], list[str]]:
    """Return chains of 1 to ``config.calls`` operations out of the caption's parse; see ``ProposeChains``."""
    chains: list[Chain] = []
    short: list[str] = []
    for calls in range(1, config.calls + 1):
        at_most = -(-config.candidates // len(config.operations) ** (calls - 1))
        for ops in product(config.operations, repeat=calls):
            lexicon = caption.reader.lexicon
            found = apply_calls(caption.parsed, ops, lexicon, config.seed, caption.uid, at_most)
            whole = [chain for chain in found if len(chain) == calls]
            chains += whole
            if not whole:
                short.append(f"{'+'.join(ops)}: no concept left to act on")
    return chains, short


def write_by_rules(table: pa.Table, config: NegativesConfig) -> pa.Table:
    """Add candidates by rules to rows of uid, caption and others; see ``write``."""
    propose = partial(propose_by_rules, config=config.negatives)
    return write(table, config, Reader(*_tools(config.parser)), propose)


class ReplyTree:
    """What a language model has answered so far: chains of edits, and the prompts that come next.

    A call is asked for on a caption, and on every valid text of the call before it; so the prompts of a
    second call are known once those of the first are answered.
    """

    def __init__(self, reader: Reader, config: NegativesConfig, replies: Mapping[str, str]):
        self.writing = config.negatives
        self.model = config.llm.model
        llm = config.llm
        self.sampling = {"temperature": llm.temperature, "max_tokens": llm.max_tokens, "seed": llm.seed}
        self.replies = {key: read_reply(text) for key, text in replies.items()}
        reader.read([reply.negative for reply in self.replies.values() if isinstance(reply, Reply)])

    def grow(self, caption: Caption) -> tuple[list[Chain], list[str], list[Prompt]]:
        """Return the chains that replies make, why others are missing, and the prompts not yet answered."""
        chains: list[Chain] = []
        faults: list[str] = []
        prompts: list[Prompt] = []
        tips: list[Chain] = [()]
        for _ in range(self.writing.calls):
            grown: list[Chain] = []
            for tip, op in product(tips, self.writing.operations):
                text = tip[-1].text if tip else caption.text
                taken = [concept for edit in tip for concept in edit.concepts]
                messages = make_messages(op, text, taken)
                key = request_key(caption.uid, messages, self.model, self.sampling)
                reply = self.replies.get(key, NOT_ANSWERED)
                if key not in self.replies:
                    prompts.append(Prompt(key, caption.uid, messages))
                if not isinstance(reply, Reply):
                    faults.append(f"{op}: {reply}")
                elif {*map(str.lower, taken)} & {*map(str.lower, reply.concepts)}:
                    faults.append(f"{op}: acts on what an earlier call changed")
                else:
                    chain: Chain = (*tip, Edit(reply.negative, op, reply.kind, reply.concepts, ()))
                    chains.append(chain)
                    if caption.judge(op, text, reply.negative) is None:
                        grown.append(chain)
            tips = grown
        return chains, faults, prompts


def write_by_replies(table: pa.Table, config: NegativesConfig, replies: Mapping[str, str]) -> pa.Table:
    """Add candidates out of a language model's replies, by key; see ``write``."""
    reader = Reader(*_tools(config.parser))
    tree = ReplyTree(reader, config, replies)

    return write(table, config, reader, lambda caption: tree.grow(caption)[:2])


def find_prompts(table: pa.Table, config: NegativesConfig, replies: Mapping[str, str]) -> list[Prompt]:
    """Return the prompts that these captions ask for and ``replies`` do not answer."""
    reader = Reader(*_tools(config.parser))
    tree = ReplyTree(reader, config, replies)
    captions = [caption for caption in read_captions(table, reader) if caption.can_be_edited]
    return [prompt for caption in captions for prompt in tree.grow(caption)[2]]
