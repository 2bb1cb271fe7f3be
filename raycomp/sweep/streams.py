"""The streams of a sweep over continual learning, each made and embedded once for all trials."""

from dataclasses import replace
from functools import partial

from raycomp.continual.command import continual
from raycomp.continual.config import ContinualConfig
from raycomp.data.folder import Folder
from raycomp.run.lease import WAITING
from raycomp.run.run import Say
from raycomp.sweep.config import SweepConfig

_STREAMS, _MAKING = "streams", "making"


def describe_continual(config: SweepConfig, work: str) -> ContinualConfig:
    """Return what trials have of ``raycomp continual``: one seed, and the streams that all of them share."""
    shared = config.continual.prepared or Folder(work).at(_STREAMS)
    one = replace(config.continual, seeds=1, tune_seeds=1, first_seed=0)
    return replace(one, seed=config.seed, prepared=shared, cluster=config.cluster)


def make_streams(config: SweepConfig, work: str, say: Say) -> None:
    """Make what is missing of the streams, of all seeds: by a run that takes no step."""
    own = describe_continual(config, work)
    own = replace(own, head=replace(own.head, steps=0), tune=replace(own.tune, steps=0))
    seeds = config.seeds + config.report_seeds
    waits = partial(_say_waits, say)
    continual(replace(own, seeds=seeds, tune_seeds=seeds), Folder(work).at(_MAKING), waits)
    say("streams: embedded")


def _say_waits(say: Say, line: str) -> None:
    if line.startswith(WAITING):
        say(line)
