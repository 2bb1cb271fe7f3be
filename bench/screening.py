"""What ``negatives.screen`` flags where truth is known: scenes of the little world.

    python -m bench.screening OUT.csv [--worlds 2] [--scenes 3000] [--steps 500] [--photos 1000]

A tiny CLIP is trained on captions that say everything. Captions of other scenes of three things then leave
out the last thing and all colours. An edit brings in a shape that its caption does not mention (REPLACE or
ADD of an object), or a colour of a shape that it mentions (ADD of an attribute): true if the scene has it.
Rates are those of captions that say the first two things with their colours. By kind and ``times`` (the
option): the share flagged, precision and recall, with 95 % intervals over scenes, and the mean cosine between
caption and edited caption of the flagged minus that of the others (hardness lost if they were dropped).
"""

import argparse
import csv
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.sight import make_world, to_pixels, train
from lab.worlds.render import encode_jpeg, render
from lab.worlds.samples import SIDE
from lab.worlds.scenes import COLOURS, SHAPES, Scene, draw_scene
from lab.worlds.tiny_clip import _normalise
from raycomp.core.alignment import find_ranks, is_suspect, normalise
from raycomp.core.intervals import compute_share
from raycomp.language.overlap import say_phrase

TIMES = (1.0, 2.0, 4.0)
FIELDS = (
    "world", "kind", "times", "pairs", "true", "flagged", "precision", "precision_low", "precision_high",
    "recall", "recall_low", "recall_high", "similarity",
)  # fmt: skip


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--worlds", type=int, default=2)
    parser.add_argument("--scenes", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--photos", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for seed in range(options.worlds):
            model, tokenize, spec = train(
                make_world(seed, options.scenes, strength=0.0), {}, "clip", seed, options.steps
            )
            writer.writerows(
                {"world": seed, **row} for row in screen(model, tokenize, spec, seed, options.photos)
            )
            file.flush()


def draw_scenes(seed: int, num: int) -> list[Scene]:
    """Return scenes of three things that no training saw."""
    rng, scenes = np.random.default_rng(41_000_000 + seed), []
    while len(scenes) < num:
        scene = draw_scene(rng)
        if len(scene.things) == 3:
            scenes.append(scene)
    return scenes


def list_edits(scene: Scene) -> list[tuple[str, tuple[str, ...], str, str, bool]]:
    """Return kind, new phrase, caption, edited caption and truth of every edit."""
    first, second, _ = scene.things
    caption = f"a {first.shape} and a {second.shape}"
    found = []
    shapes = {one.shape for one in scene.things}
    for shape in SHAPES:
        if shape not in (first.shape, second.shape):
            found.append(("object", (shape,), caption, f"{caption} and a {shape}", shape in shapes))
    for colour in COLOURS:
        is_true = any((one.shape, one.colour) == (first.shape, colour) for one in scene.things)
        edited = f"a {colour} {first.shape} and a {second.shape}"
        found.append(("attribute", (first.shape, colour), caption, edited, is_true))
    return found


@torch.inference_mode()
def screen(model: Any, tokenize: Any, spec: Any, seed: int, num: int) -> list[dict]:
    """Return the rows of one trained model."""

    def embed(texts: list[str]) -> torch.Tensor:
        return torch.cat([normalise(model.encode_text(part)) for part in tokenize(texts).split(1024)])

    scenes = draw_scenes(seed, num)
    pixels = to_pixels([encode_jpeg(render(scene, SIDE)) for scene in scenes], spec)
    parts = pixels.split(256)
    image_SD = torch.cat([normalise(model.encode_image(_normalise(part, spec))) for part in parts])
    mentioned = Counter(
        phrase
        for scene in scenes
        for phrase in {p for one in scene.things[:2] for p in ((one.shape,), (one.shape, one.colour))}
    )
    rows = [(place, *edit) for place, scene in enumerate(scenes) for edit in list_edits(scene)]
    phrases = list(dict.fromkeys(row[2] for row in rows))
    known = dict(zip(phrases, embed([say_phrase(phrase) for phrase in phrases]), strict=True))
    found = []
    for kind in ("object", "attribute"):
        own = [row for row in rows if row[1] == kind]
        scene_P, true_P = np.array([row[0] for row in own]), np.array([row[5] for row in own])
        rank_P = find_ranks(image_SD[scene_P], torch.stack([known[row[2]] for row in own]), image_SD)
        rate_P = np.array([mentioned[row[2]] / len(scenes) for row in own])
        close_P = (embed([row[3] for row in own]) * embed([row[4] for row in own])).sum(1).numpy()
        for times in TIMES:
            flag_P = is_suspect(rank_P, rate_P, times)
            precision = compute_share(true_P[flag_P], scene_P[flag_P])
            recall = compute_share(flag_P[true_P], scene_P[true_P])
            row = {"kind": kind, "times": times, "pairs": len(own), "true": round(float(true_P.mean()), 4)}
            row |= {"flagged": round(float(flag_P.mean()), 4)}
            for name, share in (("precision", precision), ("recall", recall)):
                row |= {name: round(share.value, 3), f"{name}_low": round(share.low, 3)}
                row[f"{name}_high"] = round(share.high, 3)
            row["similarity"] = round(float(close_P[flag_P].mean() - close_P[~flag_P].mean()), 3)
            found.append(row)
    return found


if __name__ == "__main__":
    main()
