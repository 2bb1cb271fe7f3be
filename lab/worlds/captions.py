"""Captions of the little world: their content and their wording."""

import dataclasses
import re
from dataclasses import dataclass

from lab.worlds.scenes import COLOURS, RELATIONS, SHAPES, SIZES, Claim, Scene, Thing, perpendicular


@dataclass(frozen=True)
class Template:
    """A wording of a claim: ``{a} {r} {b}`` in some order, with or without the sizes."""

    words: str
    names_sizes: bool = True


TEMPLATES = (
    Template("{a} {r} {b}"),
    Template("{a} is {r} {b}"),
    Template("a picture of {a} {r} {b}"),
    Template("the drawing shows {a} {r} {b}"),
    Template("there is {a} {r} {b}"),
    Template("a scene with {a} {r} {b}", names_sizes=False),
)
_THING = rf"an? (?:({'|'.join(SIZES)}) )?({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})"
_RELATION = f"({'|'.join(RELATIONS)})"
_TAIL = f"(?:, which is {_RELATION} {_THING})?"
_PATTERNS = [re.compile(one.words.format(a=_THING, r=_RELATION, b=_THING + _TAIL)) for one in TEMPLATES]


def claim_of(scene: Scene, template: int) -> Claim:
    """Return the claim about ``scene`` that its caption in template number ``template`` makes."""
    if TEMPLATES[template].names_sizes:
        return Claim(scene.things, scene.relations)
    return Claim(tuple(dataclasses.replace(thing, size=None) for thing in scene.things), scene.relations)


def say(claim: Claim, template: int) -> str:
    """Return ``claim`` in words: "a small red star above a large blue donut, which is below a red moon".

    Sizes are named if the claim has them, whatever the template.
    """
    first, second, *third = (say_thing(thing) for thing in claim.things)
    if third:
        second = f"{second}, which is {claim.relations[1]} {third[0]}"
    return TEMPLATES[template].words.format(a=first, r=claim.relations[0], b=second)


def say_thing(thing: Thing) -> str:
    """Return a thing as captions name it: "a small red circle"."""
    words = name_thing(thing)
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def name_thing(thing: Thing) -> str:
    """Return a thing by name: "small red circle"."""
    return " ".join(word for word in (thing.size, thing.colour, thing.shape) if word)


def read(text: str) -> Claim | None:
    """Return the claim that ``say`` writes in exactly these words; None if there is none.

    Only the templates are understood: no other word, and no third thing on the first one's axis.
    """
    for template, pattern in enumerate(_PATTERNS):
        if match := pattern.fullmatch(text):
            words = match.groups()
            things = tuple(Thing(*words[i : i + 3]) for i in (0, 4, 8) if words[i + 1])
            relations = tuple(word for word in words[3::4] if word)
            if len(relations) == 2 and relations[1] not in perpendicular(relations[0]):
                return None
            claim = Claim(things, relations)
            return claim if say(claim, template) == text else None
    return None


def describe(scene: Scene, template: int) -> str:
    """Return the caption of ``scene`` in template number ``template`` (0 to len(TEMPLATES) - 1)."""
    return say(claim_of(scene, template), template)


def primitives(scene: Scene) -> dict[str, tuple[str, ...]]:
    """Return the words of the scene's things, each once, in the caption's order, by kind."""
    attributes = [word for thing in scene.things for word in (thing.size, thing.colour) if word]
    return {
        "object": tuple(dict.fromkeys(thing.shape for thing in scene.things)),
        "attribute": tuple(dict.fromkeys(attributes)),
        "relation": tuple(dict.fromkeys(scene.relations)),
    }


def phrases(claim: Claim) -> tuple[str, ...]:
    """Return the things of a claim, or scene, by name, each once, in its order: "small red circle"."""
    return tuple(dict.fromkeys(name_thing(thing) for thing in claim.things))
