"""One cell from its stream's arrays to its table: what a task of the cluster does."""

import time
from typing import Any

import torch

from raycomp.config import ModelConfig, override
from raycomp.continual.cells import Cell, Choice, make_config
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Stream
from raycomp.continual.loop import Walk
from raycomp.continual.method import METHODS, TUNE, Method
from raycomp.continual.methods.experts import Experts
from raycomp.continual.methods.frozen import Frozen
from raycomp.continual.methods.head import HeadLearner
from raycomp.continual.methods.learner import Learner
from raycomp.continual.methods.make_tuner import make_tuner
from raycomp.continual.methods.zscl import Reference
from raycomp.continual.results import CELLS
from raycomp.continual.streams.place import EmbeddedStream
from raycomp.continual.streams.store import read_stream
from raycomp.data.folder import Folder
from raycomp.data.model import fetch_model
from raycomp.data.parquet import write_table
from raycomp.models.clip import Clip
from raycomp.models.describe import describe_scorer
from raycomp.schema import CONTINUAL_SCHEMA


def run_cell(
    cell: Cell,
    place: EmbeddedStream,
    model: ModelConfig,
    config: ContinualConfig,
    work: Folder,
    out: Folder,
    alpha: float | None = None,
    choice: Choice = Choice(),  # noqa: B008
) -> dict[str, Any]:
    """Let a method learn a stream, on one thread; write cells/NAME.parquet, and NAME.json last: then it is
    done. One that was broken off goes on from its state below ``work``.

    ``model``: the backbone; ``alpha``: of fixed-clip; ``choice``: of development. The
    numbers depend on the cell, the stream, these and the config's options alone.
    """
    torch.set_num_threads(1)
    started = time.perf_counter()
    method = METHODS[cell.method]
    own = make_config(config, method, choice)
    own = own if alpha is None else override(own, "trust.alpha", alpha)
    stream = read_stream(place.files, method.trains == TUNE)
    state = Folder(work.at(cell.name))
    walk = Walk(cell, stream, own, _make_learner(method, stream, own, model, cell.seed))
    table = walk.run(state)
    write_table(table, out.at(CELLS, f"{cell.name}.parquet"), CONTINUAL_SCHEMA)
    facts = {
        "cell": vars(cell),
        "backbone": place.backbone,
        "order": walk.order,
        "tasks": [task.name for task in stream.tasks],
        "zero_shot": [task.name for task in stream.zero_shot],
        "alpha": alpha,
        "rate": choice.rate,
        "weight": own.weight,
        "steps": walk.steps,
        "seconds": time.perf_counter() - started,
    }
    out.write_json(facts, CELLS, f"{cell.name}.json")
    state.remove()
    return facts


def _make_learner(
    method: Method, stream: Stream, config: ContinualConfig, model: ModelConfig, seed: int
) -> Learner:
    own_seed = 1000 * config.seed + seed
    if method.learner == "frozen":
        return Frozen()
    if method.trains != TUNE:
        kind = Experts if method.learner == "experts" else HeadLearner
        return kind(config, stream, own_seed)
    fetched, kept = fetch_model(model), stream.reference
    reference = None
    if kept is not None:
        assert kept.pixels is not None and kept.token_TL is not None, "has pixels"
        reference = Reference(kept.pixels, kept.token_TL)
    return make_tuner(method.learner, Clip(fetched), describe_scorer(fetched), config, own_seed, reference)
