"""Results of training on the little world: retrieval, and how often captions are preferred to hard negatives.

    python -m bench.little_negatives out/demo/world/held_out out/demo-clip out/demo-negclip ...

The first argument is a folder of the world's shards that no training saw, the others are folders that
``raycomp train`` wrote. For each model: recall@1 among all pairs, and by operation and kind the share of
(image, caption, hard negative) in which the image is nearer to its caption; chance is 0.5. The negatives are
all one-edit negatives of each scene (``lab.worlds.negatives``): exact, in the words and templates of
captions, and not of the rules whose negatives a model was trained on. A scene's negatives weigh one
together; intervals are of a bootstrap over scenes (95 %, 1,000 draws, seed 0): how sure a figure is of this
model, not what training with another seed would give. The last line is one JSON object.
"""

import argparse
import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from lab.worlds.negatives import Negative, hard_negatives
from lab.worlds.tiny_clip import recall_at_1
from raycomp.config import ModelConfig
from raycomp.core.alignment import normalise
from raycomp.core.probe import Interval, bootstrap_ratio, two_way_choice
from raycomp.data.inputs import expand_input
from raycomp.data.reader import read_shard
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.images import prepare_image
from raycomp.words import CAPTION, IMAGE, JSON
from tests.corpus import scene_from_dict

MAX_PIXELS = 1_000_000
BLOCK_ROWS = 512
TEXTS_PER_PASS = 1024
NUM_DRAWS = 1000


class Held(NamedTuple):
    """S pairs that no training saw, with the V negatives of all of them."""

    images: list[bytes]
    captions: list[str]
    negatives: list[Negative]
    scene_V: np.ndarray
    """The pair that a negative belongs to."""


def read_held(folder: str) -> Held:
    """Return the pairs below ``folder`` with every one-edit negative of their scenes."""
    rows = list(_read_rows(folder))
    negatives: list[Negative] = []
    scene_v: list[int] = []
    for number, row in enumerate(rows):
        facts = json.loads(row[JSON])
        found = hard_negatives(scene_from_dict(facts["scene"]), facts["template"])
        negatives += found
        scene_v += [number] * len(found)
    return Held([row[IMAGE] for row in rows], [row[CAPTION] for row in rows], negatives, np.array(scene_v))


def _read_rows(folder: str) -> Iterator[dict]:
    for shard in expand_input(folder):
        for table in read_shard(shard, BLOCK_ROWS):
            yield from table.select([IMAGE, CAPTION, JSON]).to_pylist()


def measure(folder: str, held: Held) -> dict[str, tuple[float, ...]]:
    """Return every figure of a trained model: (value, low, high), (value,) where there is no interval."""
    place = f"{folder}/checkpoint"
    config = ModelConfig(name=f"{place}/model.json", weights=f"{place}/model.safetensors")
    clip, spec = Clip(config, device="cpu"), describe_scorer(config).image
    pixels = [prepare_image(data, spec, MAX_PIXELS, False)[0] for data in held.images]
    image_SD = clip.embed_pixels(np.stack(pixels))
    text_SD = embed_texts(clip, config, held.captions)
    negative_VD = embed_texts(clip, config, [negative.caption for negative in held.negatives])
    of_V = held.scene_V
    win_V = two_way_choice(image_SD[of_V].numpy(), text_SD[of_V].numpy(), negative_VD.numpy())
    found: dict[str, tuple[float, ...]] = {
        "image to text": (recall_at_1(image_SD, text_SD),),
        "text to image": (recall_at_1(text_SD, image_SD),),
    }
    kinds = [(negative.operation, negative.kind) for negative in held.negatives]
    groups: dict[str, list[bool]] = {"all negatives": [True] * len(kinds)}
    for op, kind in sorted(set(kinds)):
        groups[op] = [one[0] == op for one in kinds]
        groups[f"{op} {kind}"] = [one == (op, kind) for one in kinds]
    for name, own in groups.items():
        interval = prefer(win_V, of_V, np.array(own))
        found[name] = tuple(interval) if np.isfinite(interval).all() else interval[:1]
    return found


def prefer(win_V: np.ndarray, scene_V: np.ndarray, is_own_V: np.ndarray) -> Interval:
    """Return the mean over scenes of the share of preferred captions among a scene's own negatives."""
    win_V, scene_V = win_V[is_own_V], scene_V[is_own_V]
    weight_V = 1 / np.bincount(scene_V)[scene_V]
    return bootstrap_ratio(win_V * weight_V, weight_V, scene_V, np.random.default_rng(0), NUM_DRAWS)


@torch.inference_mode()
def embed_texts(clip: Clip, config: ModelConfig, texts: list[str]) -> torch.Tensor:
    """Return (T, D) of length 1."""
    token_TN = load_tokenizer(config)(texts)
    parts = token_TN.split(TEXTS_PER_PASS)
    return torch.cat([normalise(clip.model.encode_text(part).float()) for part in parts])


def main() -> None:
    """Measure every model, print a table and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("held_out", help="the world's shards that no training saw")
    parser.add_argument("folders", nargs="+", help="folders that raycomp train wrote")
    arguments = parser.parse_args()
    held = read_held(arguments.held_out)
    print(f"{len(held.captions):,} pairs, {len(held.negatives):,} negatives of them")
    found = {folder: measure(folder, held) for folder in arguments.folders}
    for name in next(iter(found.values())):
        reported = [_report(figures[name]) for figures in found.values()]
        print(f"{name:20}" + "".join(f"{text:>24}" for text in reported))
    print(json.dumps(found))


def _report(figure: tuple[float, ...]) -> str:
    value, *ends = figure
    return f"{value:.3f}" + (f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "")


if __name__ == "__main__":
    main()
