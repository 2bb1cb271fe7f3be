"""The folder of a stream's arrays and its model, and the input of the process that executes a run."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from raycomp.config import ModelConfig, UserError, to_dict
from raycomp.config.own_code import call_own, is_own
from raycomp.continual.config import ContinualConfig
from raycomp.continual.method import MadeStream, find_maker, find_variant
from raycomp.continual.schedule import Choice, StreamRun, name_stream
from raycomp.data.files import Folder
from raycomp.data.runs import TIMES, digest, find_model

_OF_STREAMS = ("overlap", "seed", "primitives", "parser", "max_pixels", "reference")
_FACTS = "facts.json"
# In the record of a made stream, instead of the folder that has it.
_HERE = '"{folder}/'
# Version of the files: increased when they change, so that older files are not used.
_FORMAT = 3


@dataclass(frozen=True)
class MadeVariant:
    """A variant of a stream that the user's code makes."""

    stream: str
    number: int
    folder: str
    """The parent of its own folder and of its record, which is written last."""
    name: str

    @property
    def _quoted(self) -> str:
        """The start of a path below the folder, as json has it."""
        return json.dumps(f"{self.folder}/")[:-1]

    @property
    def is_made(self) -> bool:
        """Whether it is complete."""
        return Folder(self.folder).exists(f"{self.name}.json")

    def make(self, seed: int) -> None:
        """Call the user's code; raises UserError if it fails or returns something else."""
        import torch

        torch.set_num_threads(1)
        own = Folder(Folder(self.folder).at(self.name))
        own.remove()
        if own.is_local:
            os.makedirs(own.uri)
        made = call_own("stream", self.stream, find_maker(self.stream).make, own.uri, self.number, seed)
        if not isinstance(made, MadeStream):
            raise UserError(f"stream={self.stream}: must return MadeStream, returned {made!r:.80}")
        content = {**made._asdict(), "model": to_dict(find_model(made.model))}
        text = json.dumps(content).replace(self._quoted, _HERE)
        Folder(self.folder).write_bytes(text.encode(), f"{self.name}.json")

    def read(self) -> MadeStream:
        """Return the stream on disk, also if its folder was moved."""
        text = Folder(self.folder).read_bytes(f"{self.name}.json").decode()
        content = json.loads(text.replace(_HERE, self._quoted))
        return MadeStream(content["file"], ModelConfig(**content["model"]), content["reference"])


@dataclass(frozen=True)
class EmbeddedStream:
    """A variant of a stream as embedded by its backbone."""

    stream: str
    variant: int
    """0 of a json file."""
    folder: str
    made: MadeVariant | None = None
    """None for a json file: the backbone is then ``config.model``."""

    def has(self, one_run: StreamRun) -> bool:
        """Whether a run uses this place."""
        variant = find_variant(one_run.stream, one_run.seed)
        return (one_run.stream, variant) == (self.stream, self.variant)

    @property
    def files(self) -> Folder:
        return Folder(self.folder)

    @property
    def name(self) -> str:
        return self.folder.rpartition("/")[2]

    @property
    def is_made(self) -> bool:
        """Whether all its files exist."""
        return self.files.exists(_FACTS)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts recorded when it was built: samples by status, what halves share, warnings."""
        return self.files.read_json(_FACTS)

    def finish(self, facts: dict[str, Any]) -> None:
        """Write the recorded facts, which marks the place as built."""
        self.files.write_json(facts, _FACTS)


def find_place(
    one_run: StreamRun,
    config: ContinualConfig,
    folder: Folder,
    fingerprint: Mapping[str, Any],
    with_pixels: bool,
    gpu: Mapping[str, Any] | None = None,
) -> EmbeddedStream:
    """Return the place of a run's stream below ``folder``.

    ``fingerprint``: digests of inputs, models and parsers; ``with_pixels``: whether methods need them;
    ``gpu``: the device that embeds, as ``describe_gpu`` has it, none = a CPU. Embeddings of other GPUs, or of
    another precision, differ in bits: they have a place of their own.
    """
    stream, variant = one_run.stream, find_variant(one_run.stream, one_run.seed)
    name, made = f"{name_stream(stream)}-{variant:02d}", None
    values = to_dict(config)
    own = {name: values[name] for name in _OF_STREAMS}
    depends = [stream, "reference", "parser"]
    if is_own(stream):
        of_maker = digest([fingerprint.get(stream), config.seed])[:12]
        made = MadeVariant(stream, variant, folder.uri, f"made-{name}-{of_maker}")
    else:
        depends.append("model")
    content = {name: fingerprint.get(name) for name in depends}
    if made is None:
        content["precision"] = config.model.precision
    if gpu is not None:
        content["gpu"] = dict(gpu)
    # Another run may have built it from files that were since replaced by others of the same size.
    if times := {name: time for name, time in fingerprint.get(TIMES, {}).items() if name in depends}:
        content[TIMES] = times
    marks = digest([own, content, with_pixels, _FORMAT])[:12]
    return EmbeddedStream(stream, variant, folder.at(f"{name}-{marks}"), made)


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
