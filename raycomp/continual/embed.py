"""Streams to arrays: make the variants of your own streams, embed pictures and texts once, by evaluation's
passes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from raycomp.config import UserError
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import StreamRun, name_stream
from raycomp.continual.method import get_method
from raycomp.continual.streams.build import Maker, check_texts, find_all_samples, list_needed, make_arrays
from raycomp.continual.streams.samples import EmbeddedStream, MadeVariant, find_place
from raycomp.continual.streams.sources import open_reference, read_stream
from raycomp.data.files import Folder, remove_temporary_files
from raycomp.data.inputs import ShardPath
from raycomp.data.runs import digest, fetch_model
from raycomp.evaluation.choices import Picture, Pictures
from raycomp.evaluation.embed import Embedder, embed_pictures, embed_texts
from raycomp.models.architecture import describe_scorer
from raycomp.run.lease import queue_lease
from raycomp.run.local import Session
from raycomp.run.run import Run, Say, check_bad_rows, describe_dropped
from raycomp.run.work import map_some
from raycomp.table import group_by


@dataclass(frozen=True)
class Needed:
    """The texts and pictures of a stream to embed."""

    pictures: Sequence[Picture] = ()
    shards: Sequence[ShardPath] = ()
    texts: tuple[str, ...] = ()

    def list_texts(self, pictures: Pictures) -> list[str]:
        return list(self.texts)


class Making(NamedTuple):
    """Shared context for embedding streams."""

    config: ContinualConfig
    folder: Folder
    """The parent folder of all of them."""
    tuned: Collection[str]
    """Streams with methods that train the model, which need pixels."""
    session: Session
    check: Callable[[], None]
    """Raises LeaseLost if the run may no longer write."""
    say: Say


def prepare_streams(
    config: ContinualConfig, runs: Sequence[StreamRun], folder: Folder, run: Run, session: Session, say: Say
) -> list[EmbeddedStream]:
    """Return the places of runs below ``folder``; build the missing ones, one run at a time."""
    tuned = {one_run.stream for one_run in runs if one_run.is_tuned}
    known, gpu = run.record["fingerprint"], session.gpu
    found = (find_place(one_run, config, folder, known, one_run.stream in tuned, gpu) for one_run in runs)
    places = list(dict.fromkeys(found))
    if all(place.is_made and (place.made is None or place.made.is_made) for place in places):
        _check_references(runs, places, config)
    else:
        with queue_lease(folder, say, run.lease.check) as lease:

            def check() -> None:
                run.lease.check()
                lease.check()

            for name in folder.list_folders():  # not at the top: other runs ask for the lease there
                remove_temporary_files(folder.at(name))
            made = [place.made for place in places if place.made]
            jobs = [(one, config.seed) for one in made if not one.is_made]
            cores = session.count_cores()  # each variant is made on one of them
            for one, _ in (
                map_some(MadeVariant.make, jobs, cores, check, "streams", "variant") if jobs else ()
            ):
                say(f"{one.name}: made")
            _check_references(runs, places, config)
            making = Making(config, folder, tuned, session, check, say)
            # Those of one made backbone are embedded together.
            groups = group_by(places, lambda one: one.made.read()[1:] if one.made else one.name)
            for group in groups.values():
                if not all(place.is_made for place in group):
                    _make_together(group, making)
    for place in places:  # an existing one may have been built with another limit
        for said, counts in place.facts["samples"].items():
            check_bad_rows(said, counts, config.max_bad_fraction, "samples")
    shared = (line for place in places for line in place.facts["warnings"])
    for line in dict.fromkeys([*list_dropped(describe_places(places)), *shared]):
        say(line)
    return places


def _check_references(
    runs: Sequence[StreamRun], places: Sequence[EmbeddedStream], config: ContinualConfig
) -> None:
    """Raise UserError if zscl has no reference on a made stream."""
    needed = {one_run.stream for one_run in runs if get_method(one_run.method).learner == "zscl"}
    for place in places:
        if place.made and place.stream in needed and not (config.reference or place.made.read().reference):
            raise UserError(
                f"reference=None: must be set for zscl on stream={place.stream}, which makes none"
            )


def find_backbone(place: EmbeddedStream, config: ContinualConfig) -> ContinualConfig:
    """Return the config with the model and the reference of a place."""
    if place.made is None:
        return config
    made = place.made.read()
    return replace(config, model=made.model, reference=config.reference or made.reference)


def list_dropped(streams: Mapping[str, Any]) -> list[str]:
    """Return a line for every status of dropped samples, for each half of every task."""
    halves = {said: counts for facts in streams.values() for said, counts in facts["samples"].items()}
    return [line for said, counts in halves.items() for line in describe_dropped(said, counts, "samples")]


def _make_together(places: Sequence[EmbeddedStream], making: Making) -> None:
    """Open the streams of one model, embed them in one pass, write the missing arrays.

    Existing streams are embedded, too, so that after a kill the same items have the same numbers.
    """
    config = find_backbone(places[0], making.config)
    spec = describe_scorer(fetch_model(config.model))
    embedded = Folder(making.folder.at(f"embedded-{digest([place.name for place in places])[:12]}"))
    embedder = Embedder(config, spec, embedded, making.session, making.check)
    files = [place.made.read().file if place.made else place.stream for place in places]
    names = [name_stream(place.stream) for place in places]
    sources = [replace(read_stream(file), name=name) for file, name in zip(files, names, strict=True)]
    kept = open_reference(config.reference) if config.reference else None
    references = [kept if place.stream in making.tuned else None for place in places]
    halves = [half for source in sources for half in source.halves] + [one for one in references if one]
    pictures, _ = embed_pictures(embedder, [Needed(half.pictures, half.shards) for half in halves])
    found = [
        find_all_samples(source, pictures, config, one)
        for source, one in zip(sources, references, strict=True)
    ]
    texts, _ = embed_texts(embedder, [Needed(texts=tuple(list_needed(one))) for one in found], pictures)
    check_texts(texts, config.model)
    made = {
        place: make_arrays(Maker(one, texts, config, spec, place.files, place.stream in making.tuned))
        for place, one in zip(places, found, strict=True)
        if not place.is_made
    }
    embedded.remove()
    making.check()
    for place, facts in made.items():
        place.finish(facts)
        making.say(f"{place.name}: embedded")


def describe_places(places: Sequence[EmbeddedStream]) -> Mapping[str, Any]:
    """Return the facts recorded when streams were built, by their folders' names."""
    return {place.name: place.facts for place in places}
