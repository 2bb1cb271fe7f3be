"""Hard negatives: one small edit of a scene, its caption false for the scene that was edited."""

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from lab.worlds.captions import TEMPLATES, claim_of, say
from lab.worlds.scenes import (
    COLOURS,
    OPPOSITE,
    RELATIONS,
    SHAPES,
    SIZES,
    Claim,
    Pairs,
    Scene,
    Thing,
    is_true,
    is_within,
    perpendicular,
)
from raycomp.words import (
    ADD,
    ATTRIBUTE,
    OBJECT,
    RELATION,
    REPLACE,
    SWAP,
)


@dataclass(frozen=True)
class Negative:
    """A caption that is false for its original scene, and a scene that it is true of.

    Rendering ``scene`` gives the negative image. After ADD the caption of the original is still true of it:
    an addition contradicts in one direction only.
    """

    caption: str
    scene: Scene
    operation: str
    """SWAP, REPLACE or ADD."""
    kind: str
    """The kind of concept edited: object, attribute or relation."""


def hard_negatives(scene: Scene, template: int, pairs: Pairs | None = None) -> list[Negative]:
    """Return every one-edit negative of the scene's caption in template number ``template``.

    SWAP exchanges the colours, sizes or shapes of two things; REPLACE changes one colour, size, shape or
    relation; ADD names a wrong size if the template names none, or a third thing that is absent.
    Edits whose caption is true of ``scene`` are left out, and those that make a thing outside
    ``pairs``.
    """
    negatives = []
    for operation, kind, edited, claim in _edits(scene, template):
        if is_within(claim, pairs) and not is_true(claim, scene):
            negatives.append(Negative(say(claim, template), edited, operation, kind))
    return negatives


def _edits(scene: Scene, template: int) -> Iterator[tuple[str, str, Scene, Claim]]:
    sized = TEMPLATES[template].names_sizes
    for operation, kind, edited in (
        *_swaps(scene, ("colour", "size") if sized else ("colour",)),
        *_replacements(scene, sized),
        *_additions(scene),
    ):
        if len({(thing.colour, thing.shape) for thing in edited.things}) == len(edited.things):
            yield operation, kind, edited, claim_of(edited, template)
    if not sized:
        for i, thing in enumerate(scene.things):
            edited = _with(scene, i, size=_other_size(thing))
            said = list(claim_of(edited, template).things)
            said[i] = edited.things[i]
            yield ADD, ATTRIBUTE, edited, Claim(tuple(said), scene.relations)


def _swaps(scene: Scene, attributes: tuple[str, ...]) -> Iterator[tuple[str, str, Scene]]:
    for i, j in itertools.combinations(range(len(scene.things)), 2):
        for name in (*attributes, "shape"):
            first, second = (getattr(scene.things[k], name) for k in (i, j))
            if first != second:
                edited = _with(_with(scene, i, **{name: second}), j, **{name: first})
                yield SWAP, OBJECT if name == "shape" else ATTRIBUTE, edited


def _replacements(scene: Scene, sized: bool) -> Iterator[tuple[str, str, Scene]]:
    for i, thing in enumerate(scene.things):
        for shape in SHAPES:
            if shape != thing.shape:
                yield REPLACE, OBJECT, _with(scene, i, shape=shape)
        for colour in COLOURS:
            if colour != thing.colour:
                yield REPLACE, ATTRIBUTE, _with(scene, i, colour=colour)
        if sized:
            yield REPLACE, ATTRIBUTE, _with(scene, i, size=_other_size(thing))
    for i, relation in enumerate(scene.relations):
        # In a corner of three things only the opposite keeps the relations on different axes.
        for other in RELATIONS if len(scene.relations) == 1 else (OPPOSITE[relation],):
            if other != relation:
                relations = (*scene.relations[:i], other, *scene.relations[i + 1 :])
                yield REPLACE, RELATION, dataclasses.replace(scene, relations=relations)


def _additions(scene: Scene) -> Iterator[tuple[str, str, Scene]]:
    if len(scene.things) == 3:
        return
    colours = [colour for colour in COLOURS if all(colour != thing.colour for thing in scene.things)]
    shapes = [shape for shape in SHAPES if all(shape != thing.shape for thing in scene.things)]
    places = itertools.cycle(itertools.product(SIZES, perpendicular(scene.relations[0])))
    for colour, shape, (size, relation) in zip(colours, shapes, places, strict=False):
        things = (*scene.things, Thing(size, colour, shape))
        yield ADD, OBJECT, dataclasses.replace(scene, things=things, relations=(*scene.relations, relation))


def _with(scene: Scene, i: int, **changes: str) -> Scene:
    thing = dataclasses.replace(scene.things[i], **changes)
    return dataclasses.replace(scene, things=(*scene.things[:i], thing, *scene.things[i + 1 :]))


def _other_size(thing: Thing) -> str:
    return SIZES[1 - SIZES.index(thing.size)]
