"""Prompts on Ray: blocks of prompts over engines, or over the one actor that is the client of a server."""

from functools import partial

from ray.data import ActorPoolStrategy, Dataset, read_datasource
from ray.exceptions import RayActorError, RayError, RaySystemError

from raycomp.negatives.ask import (
    ROWS_PER_BLOCK,
    SERVER_BLOCKS_AT_ONCE,
    AskServer,
    Died,
    PromptSource,
    Take,
    keep,
    read_key,
)
from raycomp.negatives.config import LlmConfig
from raycomp.negatives.vllm import build_engines
from raycomp.run.ray_passes import ItemSource, read_metadata
from raycomp.run.session import Session

_MAX_ERROR = 300


def ask_on_ray(
    prompts: PromptSource, config: LlmConfig, engine: str, replies_uri: str, session: Session, take: Take
) -> Died | None:
    """Ask all prompts; return the engine's final error if it failed for good."""
    items = list(prompts.items)
    source = ItemSource(items, prompts.load)
    rows = read_datasource(source, override_num_blocks=len(items), num_cpus=1)
    build = {"vllm": build_engines, "http": _build_server}[engine]
    asked = build(rows.repartition(target_num_rows_per_block=ROWS_PER_BLOCK), config, session)
    write = partial(keep, uri=replies_uri)
    kept = asked.map_batches(write, batch_size=None, batch_format="pyarrow", num_cpus=1)
    try:
        for all_metadata in read_metadata(kept):
            for metadata in all_metadata:
                take(metadata)
    except (RayActorError, RaySystemError) as error:
        return Died(_last_line(error), bool(getattr(error, "actor_init_failed", False)), error)
    return None


def _last_line(error: RayError) -> str:
    """Return the last line of a traceback inside an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if "Error: " in line), lines[-1] if lines else "")
    return f"{type(error).__name__}: {said}"[:_MAX_ERROR]


def _build_server(prompts: Dataset, config: LlmConfig, session: Session) -> Dataset:
    _, most = config.span
    return prompts.map_batches(
        AskServer,
        fn_constructor_args=(config, read_key()),
        batch_size=ROWS_PER_BLOCK,
        batch_format="pyarrow",
        num_cpus=int(session.most_cpus > 1),  # tasks need a CPU, too
        compute=ActorPoolStrategy(size=1, max_concurrent_calls_per_actor=SERVER_BLOCKS_AT_ONCE * most),
    )
