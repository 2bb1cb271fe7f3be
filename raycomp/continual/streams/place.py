"""The folder of a stream's arrays, and the model of its embeddings: the folder name has a digest of its
inputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.worlds.shards import TINY_CLIP
from raycomp.config import to_dict
from raycomp.continual.config import ContinualConfig
from raycomp.continual.runs import StreamRun, name_stream
from raycomp.continual.streams.samples import GOLD
from raycomp.data.folder import Folder
from raycomp.data.runs import TIMES, digest
from raycomp.words import WORLD_STREAMS

_OF_BACKBONES = ("backbone_pairs", "backbone_steps")
_OF_STREAMS = ("overlap", "seed", "primitives", "parser", "max_pixels", "reference", "little")
_FACTS = "facts.json"
# Version of the files: increased when they change, so that older files are not used.
_FORMAT = 2


@dataclass(frozen=True)
class EmbeddedStream:
    """A stream as embedded by one backbone."""

    stream: str
    backbone: int
    """0 if the stream is the user's: the backbone is then ``config.model``."""
    folder: str

    def has(self, one_run: StreamRun, config: ContinualConfig) -> bool:
        """Whether a run uses this place."""
        return (one_run.stream, find_backbone(one_run, config)) == (self.stream, self.backbone)

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


def find_backbone(one_run: StreamRun, config: ContinualConfig) -> int:
    """Return the number of a run's backbone."""
    return one_run.seed % config.little.backbones if one_run.stream in WORLD_STREAMS else 0


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
    backbone = find_backbone(one_run, config)
    values = to_dict(config)
    own = {name: values[name] for name in _OF_STREAMS}
    own |= {"little": {**own["little"], "backbones": None}, "architecture": TINY_CLIP}
    depends = ["reference"] if config.primitives == GOLD else ["reference", "parser"]
    if one_run.stream not in WORLD_STREAMS:
        depends = [one_run.stream, "model", "reference", "parser"]
    content = {name: fingerprint.get(name) for name in depends}
    if one_run.stream not in WORLD_STREAMS:  # a tiny CLIP is always fp32
        content["precision"] = config.model.precision
    if gpu is not None:
        content["gpu"] = dict(gpu)
    # Another run may have built it from files that were since replaced by others of the same size.
    if times := {name: time for name, time in fingerprint.get(TIMES, {}).items() if name in depends}:
        content[TIMES] = times
    name = f"{name_stream(one_run.stream)}-{backbone:02d}-{digest([own, content, with_pixels, _FORMAT])[:12]}"
    return EmbeddedStream(one_run.stream, backbone, folder.at(name))


def place_backbone(config: ContinualConfig, folder: Folder, backbone: int) -> Folder:
    """Return the folder of a tiny CLIP below ``folder``."""
    little = to_dict(config.little)
    own = [config.seed, TINY_CLIP, {name: little[name] for name in _OF_BACKBONES}]
    return Folder(folder.at(f"backbone-{backbone:02d}-{digest(own)[:12]}"))
