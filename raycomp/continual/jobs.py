"""What a process is given to run a cell. Light: Ray Train's controller reads it, too."""

from typing import NamedTuple

from raycomp.config import ModelConfig
from raycomp.continual.config import ContinualConfig
from raycomp.continual.runs import Choice, StreamRun
from raycomp.continual.streams.place import EmbeddedStream
from raycomp.data.folder import Folder


class RunJob(NamedTuple):
    """A cell, what it is run with, and where its state and its results lie."""

    one_run: StreamRun
    place: EmbeddedStream
    model: ModelConfig
    """The backbone."""
    config: ContinualConfig
    work: Folder
    out: Folder
    alpha: float | None = None
    """Of fixed-clip."""
    choice: Choice = Choice()
    """Of development."""

    @property
    def state(self) -> Folder:
        """The folder of the state that a cell resumes from."""
        return Folder(self.work.at(self.one_run.name))
