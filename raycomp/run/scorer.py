"""A scorer's model, loaded once where all phases of a run share a process."""

from functools import partial

from raycomp.models.clip import Clip
from raycomp.models.spec import ClipConfig
from raycomp.run.executor import find_current
from raycomp.run.local import Local


def load_clip(config: ClipConfig, num_threads: int | None) -> Clip:
    """Load a CLIP. On the local executor a later phase reuses the model of the phase before it."""
    load = partial(Clip, config, num_threads=num_threads)
    executor = find_current()
    return executor.keep((config, num_threads), load) if isinstance(executor, Local) else load()
