"""Streams to arrays: tiny backbones trained, pictures and texts embedded once, by evaluation's passes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raycomp.cluster.evaluate.embed import Job, embed_pictures, embed_texts
from raycomp.cluster.lease import is_held, queue_lease
from raycomp.cluster.run import Run, Say
from raycomp.cluster.session import Session
from raycomp.cluster.tasks import map_some
from raycomp.config import ContinualConfig, ModelConfig
from raycomp.config.continual import METHODS, TUNE, WORLD_STREAMS
from raycomp.loops.continual.cells import Cell
from raycomp.loops.continual.streams.assemble import Maker, find_all_samples, list_needed, make_arrays
from raycomp.loops.continual.streams.backbone import find_reference, find_tiny, is_made, make_backbone
from raycomp.loops.continual.streams.place import Place, find_place, place_backbone
from raycomp.loops.continual.streams.samples import check_counts
from raycomp.loops.continual.streams.sources import open_reference, open_stream
from raycomp.loops.evaluate.exam import Picture, Pictures
from raycomp.loops.model import fetch_model
from raycomp.models.clip import describe_scorer
from raycomp.shards.folder import Folder
from raycomp.shards.paths import ShardPath


@dataclass(frozen=True)
class Needed:
    """What is to be embedded of a stream."""

    pictures: Sequence[Picture] = ()
    shards: Sequence[ShardPath] = ()
    texts: tuple[str, ...] = ()

    def list_texts(self, pictures: Pictures) -> list[str]:
        return list(self.texts)


def prepare_streams(
    config: ContinualConfig, cells: Sequence[Cell], folder: Folder, run: Run, session: Session, say: Say
) -> list[Place]:
    """Return the places of cells below ``folder``, and make what is missing of them, one run at a time."""
    tuned = {cell.stream for cell in cells if METHODS[cell.method].trains == TUNE}
    known = run.record["fingerprint"]
    found = (find_place(cell, config, folder, known, cell.stream in tuned) for cell in cells)
    places = list(dict.fromkeys(found))
    if not all(place.is_made for place in places):
        if is_held(folder):
            say(f"{folder.uri}: another run is making streams there; waiting for it")
        with queue_lease(folder):
            left = [place for place in places if not place.is_made]
            _make_backbones(left, config, folder, run, session, say)
            _make_places(left, tuned, config, folder, run, session, say)
    for place in places:  # one that was there already may have been made with another limit
        for said, counts in place.facts["samples"].items():
            check_counts(said, counts, config.max_bad_fraction)
    return places


def _make_backbones(
    left: Sequence[Place], config: ContinualConfig, folder: Folder, run: Run, session: Session, say: Say
) -> None:
    """Train the tiny CLIPs that are missing of these places."""
    tiny = {place.backbone for place in left if place.stream in WORLD_STREAMS}
    unmade = {number: place_backbone(config, folder, number) for number in sorted(tiny)}
    jobs = [(config, own, number) for number, own in unmade.items() if not is_made(own)]
    for _, _, number in map_some(
        make_backbone, jobs, session.count_cores(), run.lease.check, "backbones", "backbone"
    ):
        say(f"backbone {number}: trained")


def _make_places(
    left: Sequence[Place],
    tuned: Collection[str],
    config: ContinualConfig,
    folder: Folder,
    run: Run,
    session: Session,
    say: Say,
) -> None:
    """Embed these places, and write their arrays."""
    for place in left:
        is_tiny = config.reference is None and place.stream in WORLD_STREAMS
        own = place_backbone(config, folder, place.backbone)
        asked = replace(
            config,
            model=find_backbone_of(place, config, folder),
            reference=find_reference(own) if is_tiny else config.reference,
        )
        _make_place(place, asked, run, session, place.stream in tuned)
        say(f"{place.name}: embedded")


def find_backbone_of(place: Place, config: ContinualConfig, folder: Folder) -> ModelConfig:
    """Return the backbone of a place below ``folder``."""
    is_tiny = place.stream in WORLD_STREAMS
    return find_tiny(place_backbone(config, folder, place.backbone)) if is_tiny else config.model


def _make_place(place: Place, config: ContinualConfig, run: Run, session: Session, with_pixels: bool) -> None:
    """Open a stream, embed it by ``config.model``, write its arrays."""
    files, spec = place.files, describe_scorer(fetch_model(config.model))
    job = Job(config, spec, Folder(files.at("embedded")), session, run.lease.check)
    source = open_stream(place.stream, config, files.at("shards"), place.backbone)
    kept = open_reference(config.reference) if with_pixels and config.reference else None
    beside = (kept,) if kept else ()
    pictures, _ = embed_pictures(job, [Needed(one.pictures, one.shards) for one in (source, *beside)])
    found = find_all_samples(source, pictures, config, kept)
    texts, _ = embed_texts(job, [Needed(texts=tuple(list_needed(found, config)))], pictures)
    facts = make_arrays(Maker(found, texts, config, spec, files, with_pixels))
    place.finish(facts)
    for name in ("embedded", "shards"):
        files.remove(name)


def describe_places(places: Sequence[Place]) -> Mapping[str, Any]:
    """Return what was found in the making of streams, by their folders' names."""
    return {place.name: place.facts for place in places}
