"""Ask for the replies of all prompts of a run's negatives, call by call."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa

from raycomp.data.parquet import read_groups, write_groups
from raycomp.data.paths import join_uri
from raycomp.negatives.ask import PromptSource, ask
from raycomp.negatives.captions import CaptionFile, load_captions
from raycomp.negatives.config import NegativesConfig
from raycomp.negatives.engines import find_prompts
from raycomp.negatives.replies import PROMPT_SCHEMA, compact_replies, read_replies, to_prompt_table
from raycomp.negatives.write_all import ROWS_WITH_REPLIES, Writing
from raycomp.run.tasks import map_tasks
from raycomp.words import KEY


def ask_all(writing: Writing) -> None:
    """Ask the engine until every prompt is answered or out of attempts; replies are stored in ``replies/``.

    The prompts of a later call follow from the replies to the earlier ones. Raises OSError if the engine no
    longer answers. Prompts that stay unanswered while others are answered are left out.
    """
    config, prompts_uri = writing.config, writing.work.at("prompts")
    for _ in range(config.negatives.calls * config.llm.tries):
        writing.lease.check()
        folders = config, writing.replies_uri, prompts_uri
        counts = list(map_tasks(write_prompts, writing.sources, *folders, label="prompts"))
        if not any(counts):
            return
        asked = [source.ordinal for source, count in zip(writing.sources, counts, strict=True) if count]
        writing.lease.check()
        load = partial(load_prompts, replies_uri=writing.replies_uri, prompts_uri=prompts_uri)
        prompts = PromptSource(asked, load, sum(counts))
        try:
            ask(prompts, config.llm, config.negatives.engine, writing.replies_uri, writing.session)
        except OSError:
            if not _still_answers(writing):
                raise
            return


def _still_answers(writing: Writing) -> bool:
    """Ask again for a prompt that was answered before: if it succeeds, the remaining prompts are at fault."""
    config = writing.config
    for source in writing.sources:
        replies = read_replies(writing.replies_uri, source.ordinal)
        for table in load_captions(source, ROWS_WITH_REPLIES) if replies else ():
            known = [prompt for prompt in find_prompts(table, config, {}) if prompt.key in replies][:1]
            if known:
                prompts = PromptSource([to_prompt_table(known, source.ordinal)], _yield_it, 1)
                uri = writing.work.at("asked-again")
                try:
                    asked = ask(prompts, config.llm, config.negatives.engine, uri, writing.session)
                except OSError:
                    return False
                return asked.answered == 1
    return False


def _yield_it(table: pa.Table) -> Iterator[pa.Table]:
    yield table


def write_prompts(source: CaptionFile, config: NegativesConfig, replies_uri: str, prompts_uri: str) -> int:
    """Write one file's prompts that are not answered yet; return their number."""
    compact_replies(replies_uri, source.ordinal)
    return write_groups(
        _find_blocks(source, config, replies_uri), _file(prompts_uri, source.ordinal), PROMPT_SCHEMA
    )


def load_prompts(ordinal: int, replies_uri: str, prompts_uri: str) -> Iterator[pa.Table]:
    """Yield the written prompts in blocks, without those answered since: the engine may have failed."""
    replies = read_replies(replies_uri, ordinal)
    for table in read_groups(_file(prompts_uri, ordinal)):
        yield table.filter(pa.array([key not in replies for key in table[KEY].to_pylist()]))


def _file(prompts_uri: str, ordinal: int) -> str:
    return join_uri(prompts_uri, f"{ordinal:05d}.parquet")


def _find_blocks(source: CaptionFile, config: NegativesConfig, replies_uri: str) -> Iterator[pa.Table]:
    replies = read_replies(replies_uri, source.ordinal)
    for table in load_captions(replace(source, with_images=False), ROWS_WITH_REPLIES):
        prompts = find_prompts(table, config, replies)
        for start in range(0, len(prompts), config.cluster.block_rows):
            yield to_prompt_table(prompts[start : start + config.cluster.block_rows], source.ordinal)
