"""A toy token-aware SCM whose composition is not identified (arXiv:2510.26302, Assumption 4, Theorems 5-9).

A scene is the shared content of image and caption: two objects, an attribute of each and a directed relation.
Its caption is five tokens in this order: attribute, object, relation, attribute, object ("red cube left-of
blue ball"). Every sequence of concepts has a meaning, z_inv = ``read_meaning``, but only few occur in the
data: in the support no three concepts occur together in two scenes. So the other words determine a caption's
order and any one of its words. Natural captions have a weak form of this shortcut; the toy has its extreme
form.

An image shows z_inv, a part that depends on it and a private part; a token shows its concept and a private
style (which of two synonyms, and noise), drawn given the style of the token before. Both are seen through
fixed random invertible maps. Two text encoders read the tokens' columns through the inverse maps:

- ``encode_by_order`` is g* = h of z_inv, of Theorem 5, compositional on any text.
- ``encode_by_votes`` is g**: h of the z_inv on which most tokens agree. Theorem 7 intersects, over the
  tokens, the sets of z_inv whose captions hold that token. On the support one z_inv is left, the right one;
  order plays no role, so a SWAP gives the same embedding. For REPLACE and ADD the intersection is empty, but
  the unchanged tokens still agree on one z_inv, and outvote the rest by four to at most three. So the text
  with a word and with its replacement have one g**, the condition of Theorem 8. Majority in place of
  intersection is specific to this toy. After two calls the scene may be outvoted; no claim covers them.

For ADD the toy shows the conclusion of Theorem 9, that g** is insensitive to it, but not from its premise, a
z_inv that g* reads out of both caption and ADD: here g* is invertible, and every added word moves z_inv, as
every other edit does (``premises.py`` gives the minimum).

So it is exact here that g** exists, aligns like g* and separates none of the three edits. The toy does not
prove three things. z_inv takes finitely many values, but the theorems assume positive densities. The theorems
leave open that training finds g** and not g* (``command.py`` trains and tests it). Natural captions may
not have so sparse a support. With ``mirrored`` scenes in the data the premise fails, and InfoNCE separates
both.

Letters: N texts or images, K = 6 columns of a text (the last is for what ADD inserts), V concepts, S scenes,
Z dims of z_inv, E dims of a column, I dims of an image, D = Z + 1 dims of an embedding.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from raycomp.words import (
    ADD,
    ATTRIBUTE,
    OBJECT,
    RELATION,
    REPLACE,
    SWAP,
)

NUM_ATTRIBUTES, NUM_OBJECTS, NUM_RELATIONS = 24, 24, 6
NUM_CONCEPTS = NUM_ATTRIBUTES + NUM_OBJECTS + NUM_RELATIONS
CLASS_V = np.repeat([0, 1, 2], [NUM_ATTRIBUTES, NUM_OBJECTS, NUM_RELATIONS])
_RELATION = 2
BASE_LENGTH, _LENGTH, _PAD = 5, 6, -1
ADD_PLACES = (0, 3)
_INVARIANT, _CONCEPT, STYLE_SIZE, _DEPENDENT, _PRIVATE = 16, 16, 2, 4, 4
_SLOPE = 0.3
# The source column of each column, when SWAP exchanges two attributes, objects or sides of the relation.
SWAPS = {
    ATTRIBUTE: (3, 1, 2, 0, 4, 5),
    OBJECT: (0, 4, 2, 3, 1, 5),
    RELATION: (3, 4, 2, 0, 1, 5),
}


class Mixing(NamedTuple):
    """A fixed invertible map of rows: linear, leaky, linear; its inverse is exact up to rounding."""

    inner: np.ndarray
    outer: np.ndarray

    @classmethod
    def draw(cls, size: int, rng: np.random.Generator) -> "Mixing":
        """Draw both linear maps as rotations with stretches from 1/2 to 2, so that inversion is stable."""
        rotations = [np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(4)]
        stretches = [np.exp2(rng.uniform(-1, 1, (size, 1))) for _ in range(2)]
        return cls(rotations[0] @ (stretches[0] * rotations[1]), rotations[2] @ (stretches[1] * rotations[3]))

    def mix(self, latent: np.ndarray) -> np.ndarray:
        """Return the observations of latents [..., size]."""
        hidden = latent @ self.inner
        return np.where(hidden < 0, _SLOPE * hidden, hidden) @ self.outer

    def unmix(self, observed: np.ndarray) -> np.ndarray:
        """Return the latents of observations [..., size]."""
        hidden = observed @ np.linalg.inv(self.outer)
        return np.where(hidden < 0, hidden / _SLOPE, hidden) @ np.linalg.inv(self.inner)


class Texts(NamedTuple):
    """The latents of N texts: each token's concept, -1 after a text's end, and its private style."""

    concept_NK: np.ndarray
    style_NKP: np.ndarray


@dataclass(frozen=True, eq=False)
class World:
    """One draw of all fixed parts: the support, meanings and maps."""

    support_S5: np.ndarray
    meaning_2VZ: np.ndarray
    """The addend of a concept in z_inv before and after the relation; half of it marks its presence."""
    concept_VC: np.ndarray
    dependent_ZP: np.ndarray
    token_map: Mixing
    image_map: Mixing


class Sample(NamedTuple):
    """N pairs: their latents, and the observed image, ``image_NI``."""

    scene_N: np.ndarray
    invariant_NZ: np.ndarray
    dependent_NP: np.ndarray
    private_NP: np.ndarray
    texts: Texts
    image_NI: np.ndarray


def draw_world(seed: int, num_scenes: int = 320, mirrored: float = 0.0) -> World:
    """Draw a world of ``num_scenes`` scenes, no three concepts together in two of them.

    ``mirrored`` in [0, 1] is the share of scenes that also bring the scene with exchanged attributes; the bag
    of words then no longer determines the scene. Raises ValueError if there is no room for so many.
    """
    if not 0 <= mirrored <= 1:
        raise ValueError(f"mirrored={mirrored}: must be in [0, 1]")
    rng = np.random.default_rng(seed)
    support_S5 = _draw_support(num_scenes, rng)
    mirrored_M5 = support_S5[: round(mirrored * num_scenes)][:, [3, 1, 2, 0, 4]]
    concept_VC = rng.standard_normal((NUM_CONCEPTS, _CONCEPT))
    spread = (1 / BASE_LENGTH / _INVARIANT) ** 0.5  # so that |z_inv|^2 is about 2
    presence_VZ = rng.standard_normal((NUM_CONCEPTS, _INVARIANT))
    side_2VZ = rng.standard_normal((2, NUM_CONCEPTS, _INVARIANT))
    return World(
        support_S5=np.concatenate([support_S5, mirrored_M5]),
        meaning_2VZ=(presence_VZ + side_2VZ) * spread,
        concept_VC=concept_VC / np.linalg.norm(concept_VC, axis=1, keepdims=True),
        dependent_ZP=rng.standard_normal((_INVARIANT, _DEPENDENT)),
        token_map=Mixing.draw(_CONCEPT + STYLE_SIZE, rng),
        image_map=Mixing.draw(_INVARIANT + _DEPENDENT + _PRIVATE, rng),
    )


def _draw_support(num_scenes: int, rng: np.random.Generator) -> np.ndarray:
    """Keep random scenes without a triple of concepts that is taken, until 1000 in a row are refused."""
    taken: set[tuple[int, ...]] = set()
    scenes: list[np.ndarray] = []
    num_refused = 0
    while len(scenes) < num_scenes:
        attributes = rng.choice(NUM_ATTRIBUTES, 2, replace=False)
        objects = NUM_ATTRIBUTES + rng.choice(NUM_OBJECTS, 2, replace=False)
        relation = NUM_ATTRIBUTES + NUM_OBJECTS + rng.integers(NUM_RELATIONS)
        scene = np.array([attributes[0], objects[0], relation, attributes[1], objects[1]])
        triples = set(combinations(sorted(scene.tolist()), 3))
        if taken.isdisjoint(triples):
            taken |= triples
            scenes.append(scene)
            num_refused = 0
        elif (num_refused := num_refused + 1) == 1000:
            raise ValueError(f"num_scenes={num_scenes}: must be at most about {len(scenes)}")
    return np.stack(scenes)


def draw_sample(world: World, num: int, rng: np.random.Generator) -> Sample:
    """Draw pairs as in Assumption 4: z_inv, then the tokens in order, then the private parts."""
    scene_N = rng.integers(len(world.support_S5), size=num)
    concept_NK = np.full((num, _LENGTH), _PAD)
    concept_NK[:, :BASE_LENGTH] = world.support_S5[scene_N]
    style_NKP = np.zeros((num, _LENGTH, STYLE_SIZE))
    style_NKP[:, 0] = draw_style(num, rng)
    for k in range(1, BASE_LENGTH):
        style_NKP[:, k] = draw_style(num, rng, style_NKP[:, k - 1])
    invariant_NZ = read_meaning(world, concept_NK)
    dependent_NP = np.tanh(invariant_NZ @ world.dependent_ZP) + 0.5 * rng.standard_normal((num, _DEPENDENT))
    private_NP = rng.standard_normal((num, _PRIVATE))
    latent_NI = np.concatenate([invariant_NZ, dependent_NP, private_NP], axis=1)
    return Sample(
        scene_N,
        invariant_NZ,
        dependent_NP,
        private_NP,
        Texts(concept_NK, style_NKP),
        world.image_map.mix(latent_NI),
    )


def draw_style(num: int, rng: np.random.Generator, before_NP: np.ndarray | None = None) -> np.ndarray:
    """Draw a token's private style (synonym +1 or -1, noise), float64 (N, 2), given the token before.

    A writer keeps the form with probability 0.8; the noise is autoregressive of variance 1.
    """
    fresh_NP = np.stack([rng.choice([-1.0, 1.0], num), rng.standard_normal(num)], axis=1)
    if before_NP is None:
        return fresh_NP
    form_N = np.where(rng.random(num) < 0.8, before_NP[:, 0], -before_NP[:, 0])
    return np.stack([form_N, 0.8 * before_NP[:, 1] + 0.6 * fresh_NP[:, 1]], axis=1)


def read_meaning(world: World, concept_NK: np.ndarray) -> np.ndarray:
    """Return z_inv of any texts, float64 (N, Z): the sum over tokens of concept vectors by side."""
    valid_NK = concept_NK >= 0
    is_relation_NK = valid_NK & (CLASS_V[concept_NK] == _RELATION)
    side_NK = np.minimum(np.cumsum(is_relation_NK, axis=1) - is_relation_NK, 1)
    part_NKZ = world.meaning_2VZ[side_NK, concept_NK] * valid_NK[..., None]
    return part_NKZ.sum(axis=1)


def observe_texts(world: World, texts: Texts) -> np.ndarray:
    """Return the tokens' columns, float64 (N, K, E); zeros after a text's end."""
    latent_NKE = np.concatenate([world.concept_VC[texts.concept_NK], texts.style_NKP], axis=2)
    return world.token_map.mix(latent_NKE) * (texts.concept_NK >= 0)[..., None]


def read_concepts(world: World, column_NKE: np.ndarray) -> np.ndarray:
    """Return each column's concept, int (N, K), -1 after a text's end; synonyms have one concept."""
    latent_NKE = world.token_map.unmix(column_NKE)
    nearest_NK = (latent_NKE[..., :_CONCEPT] @ world.concept_VC.T).argmax(axis=2)
    return np.where(np.abs(column_NKE).max(axis=2) > 0, nearest_NK, _PAD)


def to_sphere(latent_NZ: np.ndarray) -> np.ndarray:
    """Return h(z) = (z, 1) / |(z, 1)|: invertible and smooth, of length 1; h_f = h_g of Theorem 5."""
    raised_ND = np.concatenate([latent_NZ, np.ones((len(latent_NZ), 1))], axis=1)
    return raised_ND / np.linalg.norm(raised_ND, axis=1, keepdims=True)


def encode_images(world: World, image_NI: np.ndarray) -> np.ndarray:
    """Return f*: h of the invariant block of the inverted image map, float64 (N, D)."""
    return to_sphere(world.image_map.unmix(image_NI)[:, :_INVARIANT])


def encode_by_order(world: World, column_NKE: np.ndarray) -> np.ndarray:
    """Return g*: h of the meaning of the text, read token by token and side by side, float64 (N, D)."""
    return to_sphere(read_meaning(world, read_concepts(world, column_NKE)))


def encode_by_votes(world: World, column_NKE: np.ndarray) -> np.ndarray:
    """Return g**: h of the z_inv on which most tokens agree, the mean of them in a tie, float64 (N, D).

    A token votes for every scene of the support whose caption holds it, at any position.
    """
    vote_NS = count_concepts(read_concepts(world, column_NKE)) @ count_concepts(world.support_S5).T
    agreed_NS = vote_NS == vote_NS.max(axis=1, keepdims=True)
    pad_S6 = np.pad(world.support_S5, ((0, 0), (0, 1)), constant_values=_PAD)
    mean_NZ = agreed_NS @ read_meaning(world, pad_S6) / agreed_NS.sum(axis=1, keepdims=True)
    return to_sphere(mean_NZ)


def count_concepts(concept_NK: np.ndarray) -> np.ndarray:
    """Return how often each concept occurs in each text, float64 (N, V)."""
    count_NV = np.zeros((len(concept_NK), NUM_CONCEPTS))
    for concept_N in concept_NK.T:
        row_M = np.flatnonzero(concept_N >= 0)
        count_NV[row_M, concept_N[row_M]] += 1
    return count_NV


def swap(texts: Texts, rng: np.random.Generator) -> Texts:
    """Exchange in each text the two attributes, the two objects or the sides: X_pi of Theorem 7."""
    source_NK = np.array(list(SWAPS.values()))[rng.integers(len(SWAPS), size=len(texts.concept_NK))]
    return _gather(texts, source_NK)


def replace(texts: Texts, rng: np.random.Generator) -> Texts:
    """Exchange in each text one concept by another of its class that the text lacks: RF of Theorem 8."""
    row_N = np.arange(len(texts.concept_NK))
    at_N = rng.integers(BASE_LENGTH, size=len(row_N))
    concept_NK = texts.concept_NK.copy()
    concept_NK[row_N, at_N] = _draw_absent(concept_NK, CLASS_V[concept_NK[row_N, at_N]], rng)
    return Texts(concept_NK, texts.style_NKP)


def add(texts: Texts, rng: np.random.Generator) -> Texts:
    """Put before one of the two attributes of each text another that the text lacks: Theorem 9."""
    row_N = np.arange(len(texts.concept_NK))
    at_N = rng.choice(ADD_PLACES, size=len(row_N))
    column_K = np.arange(_LENGTH)
    grown = _gather(texts, column_K - (column_K > at_N[:, None]))
    grown.concept_NK[row_N, at_N] = _draw_absent(texts.concept_NK, np.zeros_like(at_N), rng)
    grown.style_NKP[row_N, at_N] = draw_style(len(row_N), rng)
    return grown


def paraphrase(texts: Texts) -> Texts:
    """Exchange every word by its synonym: the same concepts in the same order, the same z_inv."""
    return Texts(texts.concept_NK, texts.style_NKP * np.array([-1.0, 1.0]))


def _gather(texts: Texts, source_NK: np.ndarray) -> Texts:
    """Return new texts whose column k is the texts' column source[k]; a token keeps its style."""
    concept_NK = np.take_along_axis(texts.concept_NK, source_NK, axis=1)
    return Texts(concept_NK, np.take_along_axis(texts.style_NKP, source_NK[..., None], axis=1))


def _draw_absent(concept_NK: np.ndarray, class_N: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw for each text a concept of the given class that it lacks, evenly."""
    allowed_NV = allow_absent(concept_NK, class_N)
    return np.where(allowed_NV, rng.random(allowed_NV.shape), -1.0).argmax(axis=1)


def allow_absent(concept_NK: np.ndarray, class_N: np.ndarray) -> np.ndarray:
    """Return which concepts of a class each text lacks, bool (N, V)."""
    return (class_N[:, None] == CLASS_V) & (count_concepts(concept_NK) == 0)


OPERATORS = {SWAP: swap, REPLACE: replace, ADD: add}
