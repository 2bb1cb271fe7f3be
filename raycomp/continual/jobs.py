"""The input of a process that executes a run. Imports little, because Ray Train's controller reads it,
too."""

from typing import NamedTuple

from raycomp.config import ModelConfig
from raycomp.continual.config import ContinualConfig
from raycomp.continual.runs import Choice, StreamRun
from raycomp.continual.streams.place import EmbeddedStream
from raycomp.data.folder import Folder


class RunJob(NamedTuple):
    """A run, its settings, and the folders of its state and results."""

    one_run: StreamRun
    place: EmbeddedStream
    model: ModelConfig
    """The backbone."""
    config: ContinualConfig
    work: Folder
    out: Folder
    choice: Choice = Choice()
    """Values selected in development."""

    @property
    def state(self) -> Folder:
        """The folder of the state that the run resumes from."""
        return Folder(self.work.at(self.one_run.name))
