"""Streams to arrays: make the variants of your own streams, embed pictures and texts once, by evaluation's
passes; the folders of these arrays, and the input of the process that executes a run."""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from raycomp.config import ModelConfig, UserError, to_dict
from raycomp.config.commands import call_own, is_own
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Choice, StreamRun, name_stream
from raycomp.continual.method import MadeStream, find_maker, find_variant, get_method
from raycomp.continual.streams.build import Maker, check_texts, find_all_samples
from raycomp.continual.streams.sources import open_reference, read_stream
from raycomp.data.files import Folder, is_dry_run, remove_temporary_files
from raycomp.data.inputs import ShardPath
from raycomp.data.runs import TIMES, digest, fetch_model, find_model
from raycomp.evaluation.choices import Picture, Pictures
from raycomp.evaluation.embed import Embedder, embed_pictures, embed_texts
from raycomp.models.architecture import describe_scorer
from raycomp.run.executor import Session
from raycomp.run.progress import check_bad_rows, describe_dropped
from raycomp.run.run import Run, Say, queue_lease
from raycomp.run.work import map_some
from raycomp.table import group_by

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

    def adapt(self, config: ContinualConfig) -> ContinualConfig:
        """Return the config with the model and the reference of this place."""
        if self.made is None:
            return config
        made = self.made.read()
        return replace(config, model=made.model, reference=config.reference or made.reference)

    @property
    def files(self) -> Folder:
        return Folder(self.folder)

    @property
    def name(self) -> str:
        return self.folder.rpartition("/")[2]

    @property
    def is_made(self) -> bool:
        """Whether all its files exist: the recorded facts are written last."""
        return self.files.exists(_FACTS)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts recorded when it was built: samples by status, what halves share, warnings."""
        return self.files.read_json(_FACTS)


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


@dataclass(frozen=True)
class Needed:
    """The texts and pictures of a stream to embed."""

    pictures: Sequence[Picture] = ()
    shards: Sequence[ShardPath] = ()
    texts: tuple[str, ...] = ()

    def list_texts(self, pictures: Pictures) -> list[str]:
        return list(self.texts)


def prepare_streams(
    config: ContinualConfig, runs: Sequence[StreamRun], folder: Folder, run: Run, session: Session, say: Say
) -> list[EmbeddedStream]:
    """Return the places of runs below ``folder``; build the missing ones, one run at a time.

    Raises UserError if zscl has no reference on a made stream.
    """
    tuned = {one_run.stream for one_run in runs if one_run.is_tuned}
    known, gpu = run.record["fingerprint"], session.gpu
    found = (find_place(one_run, config, folder, known, one_run.stream in tuned, gpu) for one_run in runs)
    places = list(dict.fromkeys(found))

    def check_references() -> None:
        needed = {one_run.stream for one_run in runs if get_method(one_run.method).learner == "zscl"}
        for place in places:
            if place.made and place.stream in needed and not place.adapt(config).reference:
                raise UserError(
                    f"reference=None: must be set for zscl on stream={place.stream}, which makes none"
                )

    if all(place.is_made and (place.made is None or place.made.is_made) for place in places):
        check_references()
    else:
        folder = run.work if is_dry_run() else folder
        with queue_lease(folder, say, run.lease.check) as lease:

            def check() -> None:
                run.lease.check()
                lease.check()

            for name in folder.list_folders():  # not at the top: other runs ask for the lease there
                remove_temporary_files(folder.at(name))
            jobs = [(place.made, config.seed) for place in places if place.made and not place.made.is_made]
            cores = session.count_cores()  # each variant is made on one of them
            if jobs:
                run.end_dry_run()
                for one, _ in map_some(MadeVariant.make, jobs, cores, check, "streams", "variant"):
                    say(f"{one.name}: made")
            check_references()
            # Those of one made backbone are embedded together.
            groups = group_by(places, lambda one: one.made.read()[1:] if one.made else one.name)
            for group in groups.values():
                if not all(place.is_made for place in group):
                    _embed_together(group, config, folder, tuned, session, check, say)
            run.end_dry_run()
    for place in places:  # an existing one may have been built with another limit
        for said, counts in place.facts["samples"].items():
            check_bad_rows(said, counts, config.max_bad_fraction, "samples")
    for line in dict.fromkeys(list_warnings({place.name: place.facts for place in places})):
        say(line)
    return places


def list_warnings(streams: Mapping[str, Any]) -> list[str]:
    """Return a line for every status of dropped samples, for each half of every task, then the warnings
    recorded when the streams were built."""
    halves = {said: counts for facts in streams.values() for said, counts in facts["samples"].items()}
    lines = [line for said, counts in halves.items() for line in describe_dropped(said, counts, "samples")]
    return [*lines, *(line for facts in streams.values() for line in facts["warnings"])]


def _embed_together(
    places: Sequence[EmbeddedStream],
    config: ContinualConfig,
    folder: Folder,
    tuned: Collection[str],
    session: Session,
    check: Callable[[], None],
    say: Say,
) -> None:
    """Open the streams of one model, embed them in one pass, write the missing arrays below ``folder``.

    ``tuned``: streams with methods that train the model, which need pixels. Existing streams are embedded,
    too, so that after a kill the same items have the same numbers.
    """
    config = places[0].adapt(config)
    spec = describe_scorer(fetch_model(config.model))
    embedded = Folder(folder.at(f"embedded-{digest([place.name for place in places])[:12]}"))
    embedder = Embedder(config, spec, embedded, session, check)
    sources = []
    for place in places:
        file = place.made.read().file if place.made else place.stream
        sources.append(replace(read_stream(file), name=name_stream(place.stream)))
    kept = open_reference(config.reference) if config.reference else None
    references = [kept if place.stream in tuned else None for place in places]
    halves = [half for source in sources for half in source.halves] + [one for one in references if one]
    pictures, _ = embed_pictures(embedder, [Needed(half.pictures, half.shards) for half in halves])
    found = [
        find_all_samples(source, pictures, config, one)
        for source, one in zip(sources, references, strict=True)
    ]
    if is_dry_run():
        return
    texts, _ = embed_texts(embedder, [Needed(texts=tuple(one.list_texts())) for one in found], pictures)
    check_texts(texts, config.model)
    made = {
        place: Maker(one, texts, config, spec, place.files, place.stream in tuned).make_arrays()
        for place, one in zip(places, found, strict=True)
        if not place.is_made
    }
    embedded.remove()
    check()
    for place, facts in made.items():
        place.files.write_json(facts, _FACTS)
        say(f"{place.name}: embedded")
