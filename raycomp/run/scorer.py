"""Work on values in memory, without a run's folder; the last model loaded is kept."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from raycomp.config import ClusterConfig, ModelConfig, ScorerConfig
from raycomp.data.files import Folder
from raycomp.data.paths import ARCHITECTURE, RUN
from raycomp.data.runs import fetch_model, find_model
from raycomp.models.spec import ClipConfig
from raycomp.run.executor import find_current, use
from raycomp.run.local import Local

if TYPE_CHECKING:
    from raycomp.models.clip import Clip

Name = str | os.PathLike[str]


def find_scorer(scorer: ScorerConfig, model: Name | None, weights: Name | None) -> ScorerConfig:
    """Return ``scorer`` with another model or other weights; files of a store are copied to this machine.

    ``model`` is an architecture's name, a config file, or a folder that ``raycomp train`` wrote. Raises
    ValueError where the folder holds no complete model, or where another model than the folder's is named.
    """
    name, path = (None if value is None else os.fspath(value) for value in (model, weights))
    if name is not None and _holds_model(name):
        if path is not None:
            raise ValueError(f"weights={path!r}: {name} holds a model with its weights; leave weights out")
        name, path = None, name
    own = ModelConfig().name if path is not None and _holds_model(path) else scorer.model
    found = fetch_model(find_model(ModelConfig(name or own, path or scorer.weights)))
    return replace(scorer, model=found.name, weights=found.weights)


def _holds_model(name: str) -> bool:
    folder = Folder(name)
    return folder.is_folder() and any(map(folder.exists, (RUN, ARCHITECTURE)))


@contextmanager
def keep_model(scorer: ScorerConfig | None, cluster: ClusterConfig) -> Iterator[int]:
    """Give the block an executor that keeps the last model loaded, and the number of threads.

    A model is loaded again after another one was used, or after its files on the disk changed.
    """
    num_threads = cluster.num_cpus or len(os.sched_getaffinity(0))
    names = () if scorer is None else (scorer.model, scorer.weights)
    stats = [os.stat(name) for name in names if os.path.isfile(name)]
    files = tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)  # these change with the content
    with use(_make_executor(num_threads, files)):
        yield num_threads


@lru_cache(maxsize=1)
def _make_executor(num_threads: int, files: tuple[object, ...]) -> Local:
    return Local(num_threads)


def load_clip(config: ClipConfig, num_threads: int | None) -> "Clip":
    """Load a CLIP. On the local executor a later phase reuses the model of the phase before it."""
    from raycomp.models.clip import Clip

    load = partial(Clip, config, num_threads=num_threads)
    executor = find_current()
    return executor.keep((config, num_threads), load) if isinstance(executor, Local) else load()
