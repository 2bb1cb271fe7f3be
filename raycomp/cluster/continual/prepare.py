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
from raycomp.shards.runs import digest

_SHARDS, _EMBEDDED = "shards", "embedded"


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
    """Embed these places, those of one tiny CLIP together, and write their arrays."""
    together: dict[int | str, list[Place]] = {}
    for place in left:
        together.setdefault(place.backbone if place.stream in WORLD_STREAMS else place.name, []).append(place)
    for places in together.values():
        model = find_backbone_of(places[0], config, folder)
        reference = config.reference
        if reference is None and places[0].stream in WORLD_STREAMS:
            reference = find_reference(place_backbone(config, folder, places[0].backbone))
        asked = replace(config, model=model, reference=reference)
        _make_together(places, tuned, asked, folder, run, session)
        for place in places:
            say(f"{place.name}: embedded")


def find_backbone_of(place: Place, config: ContinualConfig, folder: Folder) -> ModelConfig:
    """Return the backbone of a place below ``folder``."""
    is_tiny = place.stream in WORLD_STREAMS
    return find_tiny(place_backbone(config, folder, place.backbone)) if is_tiny else config.model


def _make_together(
    places: Sequence[Place],
    tuned: Collection[str],
    config: ContinualConfig,
    folder: Folder,
    run: Run,
    session: Session,
) -> None:
    """Open streams, embed them by ``config.model`` in one pass, write the arrays of each."""
    spec = describe_scorer(fetch_model(config.model))
    embedded = folder.at(_EMBEDDED, digest([place.name for place in places]))
    job = Job(config, spec, Folder(embedded), session, run.lease.check)
    sources = [open_stream(place.stream, config, place.files.at(_SHARDS), place.backbone) for place in places]
    beside = [
        open_reference(config.reference) if config.reference and place.stream in tuned else None
        for place in places
    ]
    halves = [half for source in sources for half in source.halves] + [one for one in beside if one]
    pictures, _ = embed_pictures(job, [Needed(half.pictures, half.shards) for half in halves])
    found = [
        find_all_samples(source, pictures, config, one) for source, one in zip(sources, beside, strict=True)
    ]
    texts, _ = embed_texts(job, [Needed(texts=tuple(list_needed(one, config))) for one in found], pictures)
    for place, one in zip(places, found, strict=True):
        place.finish(make_arrays(Maker(one, texts, config, spec, place.files, place.stream in tuned)))
        place.files.remove(_SHARDS)
    folder.remove(_EMBEDDED)


def describe_places(places: Sequence[Place]) -> Mapping[str, Any]:
    """Return what was found in the making of streams, by their folders' names."""
    return {place.name: place.facts for place in places}
