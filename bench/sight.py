"""Is the gain of hard negatives sight? NegCLIP on a little world whose captions have habits.

    python -m bench.sight OUT.csv [--worlds 10] [--first 0] [--scenes 3000] [--steps 500]

In the training scenes shapes have usual colours and usual places (``lab.worlds.habits``); negatives are
one-edit negatives of each caption (SWAP and REPLACE, one of each), most of which break a habit, so that a
judge of text alone finds the caption. The test set has no habits. Tiny CLIPs, equal seeds, batches and steps:

    clip        no negatives
    unrefined   a random negative of each operation
    refined     negatives that text alone does not find (``raycomp.core.refine``)
    thinned     unrefined ones, drawn at random to the number of the refined of each operation and kind, of
                the captions that have a refined one

Expected: unrefined gains on relations and attributes with the image, part of which the text tower has with
the mean image's embedding in place of the image (text-only baseline) as well; refined gains less or as much
with the image, and nothing without. Detectable: the paired sd of accuracies over worlds was 1.7 points in the
study of selection (docs/study_world.md); with 10 worlds a difference of 1.7 points is found with a power of
80 % (5 %, two-sided), and 2.3 points after Holm's correction of six contrasts.

A row for each world and choice is appended as it ends; a second call continues. ``python -m bench.sight
OUT.csv --worlds 0`` prints the contrasts only.
"""

import argparse
import csv
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.refinement import choose
from lab.pair_judge import judge_pairs, list_text_features, right_share
from lab.worlds.captions import TEMPLATES, describe
from lab.worlds.habits import draw_usual_scene
from lab.worlds.negatives import Negative, hard_negatives
from lab.worlds.render import encode_jpeg, render
from lab.worlds.samples import SIDE
from lab.worlds.scenes import Scene
from lab.worlds.test_set import EvaluationScene, draw_test_set
from lab.worlds.tiny_clip import _normalise, _write_architecture, draw_batches, recall_at_1
from raycomp.core.alignment import normalise
from raycomp.core.intervals import contrast, holm, judge_choices
from raycomp.language.overlap import Ngrams, bigram_likelihood, count_ngrams, leave_out, unigram_likelihood
from raycomp.models.architecture import ScorerSpec, describe_scorer
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.images import prepare_image
from raycomp.negatives.refine import Pairs, list_pairs
from raycomp.schema import NEGATIVE_TYPE
from raycomp.training.config import FitConfig
from raycomp.training.loop import Trainer
from raycomp.training.towers import Batch, PairsObjective
from raycomp.words import BRITTLENESS, REPLACE, SWAP

CHOICES = ("clip", "unrefined", "refined", "thinned")
STRENGTH = 0.8
OPERATIONS = (SWAP, REPLACE)
CANDIDATES = 8
"""Negatives of each operation, drawn among all of a caption, that the refinement may choose from."""
NUM_FOLDS = 5
NUM_TEST = 800
FIELDS = (
    "world",
    "choice",
    "pairs",
    "text_only",
    "relation",
    "attribute",
    "relation_blind",
    "attribute_blind",
    "recall",
    "brittleness",
    "seconds",
)
CONTRASTS = [
    (first, second, metric)
    for first, second in (("refined", "unrefined"), ("refined", "thinned"))
    for metric in ("relation", "attribute", "recall")
]


class World(NamedTuple):
    """The training pairs of one world, and candidates of each."""

    captions: list[str]
    scenes: list[Scene]
    negatives: list[list[dict]]


def main() -> None:
    """Train what is missing, then print the contrasts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--worlds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--scenes", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    done = {(int(row["world"]), row["choice"]) for row in read_rows(options.out)}
    for seed in range(options.first, options.first + options.worlds):
        if all((seed, choice) in done for choice in CHOICES):
            continue
        world = make_world(seed, options.scenes)
        chosen = choose_negatives(world, seed)
        for choice in CHOICES:
            if (seed, choice) not in done:
                write_row(options.out, measure(world, chosen[choice], choice, seed, options.steps))
    print_contrasts(read_rows(options.out))


def make_world(seed: int, num_scenes: int, strength: float = STRENGTH) -> World:
    """Draw scenes with habits; judge every negative by words and pairs of words of other scenes."""
    scenes = []
    for i in range(num_scenes):
        rng = np.random.default_rng([31_000_000 + seed, i])
        scenes.append((draw_usual_scene(rng, strength), int(rng.integers(len(TEMPLATES)))))
    captions = [describe(scene, template) for scene, template in scenes]
    folds = [count_ngrams(captions[fold::NUM_FOLDS]) for fold in range(NUM_FOLDS)]
    whole = sum(folds[1:], folds[0])
    others = [leave_out(whole, counts) for counts in folds]
    negatives = [
        _judge_negatives(_draw_negatives(scene, template, seed, i), captions[i], others[i % NUM_FOLDS])
        for i, (scene, template) in enumerate(scenes)
    ]
    return World(captions, [scene for scene, _ in scenes], negatives)


def _draw_negatives(scene: Scene, template: int, seed: int, place: int) -> list[Negative]:
    """Return some negatives of each operation."""
    rng = np.random.default_rng([32_000_000 + seed, place])
    every = hard_negatives(scene, template)
    found = []
    for op in OPERATIONS:
        own = [one for one in every if one.operation == op]
        found += [own[i] for i in rng.permutation(len(own))[:CANDIDATES]]
    return found


def _judge_negatives(negatives: list[Negative], caption: str, counts: Ngrams) -> list[dict]:
    own = unigram_likelihood(caption, counts), bigram_likelihood(caption, counts)
    rows = []
    for one in negatives:
        row = dict.fromkeys(NEGATIVE_TYPE.names) | {
            "text": one.caption,
            "op": one.operation,
            "kind": one.kind,
        }
        row["unigram"] = own[0] - unigram_likelihood(one.caption, counts)
        row["bigram"] = own[1] - bigram_likelihood(one.caption, counts)
        rows.append(row)
    return rows


def choose_negatives(world: World, seed: int) -> dict[str, dict[tuple[int, str], dict]]:
    """Return for each choice the negatives by (caption, operation)."""
    import pyarrow as pa

    table = pa.table(
        {"caption": world.captions, "negatives": pa.array(world.negatives, pa.list_(NEGATIVE_TYPE))}
    )
    found: dict[str, dict[tuple[int, str], dict]] = {choice: {} for choice in CHOICES}
    rng = np.random.default_rng(seed)
    for op, pairs in list_pairs(table).items():
        num = len(world.captions)
        for choice, rule in (("unrefined", "random"), ("refined", "balance 4")):
            for place in choose(pairs, rule, seed, num):
                row = int(pairs.row_T[place])
                found[choice][row, op] = world.negatives[row][pairs.candidate_T[place]]
        found["thinned"] |= thin(pairs, op, found, world, rng)
    return found


def thin(pairs: Pairs, op: str, found: dict, world: World, rng: np.random.Generator) -> dict:
    """Return a random negative of the refined one's kind for each caption that has a refined one."""
    drawn = {}
    for (row, of), one in found["refined"].items():
        if of == op:
            same = [
                other for other in world.negatives[row] if (other["op"], other["kind"]) == (op, one["kind"])
            ]
            drawn[row, op] = same[int(rng.integers(len(same)))]
    return drawn


def text_only_share(world: World, chosen: dict) -> float:
    """Return how often a judge that is trained on the pairs finds the caption."""
    rows = sorted(chosen)
    features = list_text_features([(world.captions[row], chosen[row, op]["text"]) for row, op in rows])
    folds = np.array([row % NUM_FOLDS for row, _ in rows])
    return right_share(judge_pairs(features, folds))


def measure(world: World, chosen: dict, choice: str, seed: int, steps: int) -> dict:
    """Train a tiny CLIP on these negatives; return its row."""
    started = time.time()
    model, tokenize, spec = train(world, chosen, choice, seed, steps)
    found = evaluate(model, tokenize, spec, seed)
    row = {"world": seed, "choice": choice, "pairs": len(chosen), **found, "seconds": time.time() - started}
    row["text_only"] = text_only_share(world, chosen) if chosen else 0.5
    return {name: round(row[name], 4) if isinstance(row[name], float) else row[name] for name in FIELDS}


def train(world: World, chosen: dict, choice: str, seed: int, steps: int) -> tuple[Any, Any, ScorerSpec]:
    """Return a trained tiny CLIP, its tokenizer, and what it expects."""
    with tempfile.TemporaryDirectory() as folder:
        start = _write_architecture(folder, seed)
        spec = describe_scorer(start)
        model = Clip(start, device="cpu").model
        tokenize = load_tokenizer(start)
        pixels = to_pixels([encode_jpeg(render(scene, SIDE)) for scene in world.scenes], spec)
        tokens = tokenize(world.captions)
        negative, valid = to_negatives(world, chosen, tokenize)
        config = FitConfig(
            steps=steps,
            batch_size=64,
            learning_rate=7e-4,
            warmup=0.1,
            loss="clip" if choice == "clip" else "negclip",
        )
        orders = draw_batches(len(pixels), config.batch_size, torch.Generator().manual_seed(seed))
        batches = (
            Batch(_normalise(pixels[row_B], spec), tokens[row_B])
            if choice == "clip"
            else Batch(_normalise(pixels[row_B], spec), tokens[row_B], negative[row_B], valid[row_B])
            for row_B in orders
        )
        for _ in Trainer(PairsObjective(model, config, steps, config.batch_size), steps).run(batches):
            pass
    return model.eval(), tokenize, spec


def to_pixels(images: list[bytes], spec) -> torch.Tensor:
    """Return uint8 pixels (S, H, W, 3)."""
    return torch.from_numpy(
        np.stack([prepare_image(data, spec.image, 1_000_000, False)[0] for data in images])
    )


def to_negatives(world: World, chosen: dict, tokenize) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens (S, 2, N) of the negatives of each operation, and which there are (S, 2)."""
    valid = torch.zeros(len(world.captions), len(OPERATIONS), dtype=torch.bool)
    texts = [["a"] * len(OPERATIONS) for _ in world.captions]
    for (row, op), one in chosen.items():
        place = OPERATIONS.index(op)
        texts[row][place], valid[row, place] = one["text"], True
    tokens = tokenize([text for row in texts for text in row])
    return tokens.reshape(len(texts), len(OPERATIONS), -1), valid


@torch.inference_mode()
def evaluate(model, tokenize, spec, seed: int) -> dict[str, float]:
    """Return the accuracies on scenes without habits, with their images and with the mean image."""
    scenes: list[EvaluationScene] = list(draw_test_set(NUM_TEST, 39_000_000 + seed))
    image_SD = normalise(model.encode_image(_normalise(to_pixels([one.image for one in scenes], spec), spec)))
    mean_SD = normalise(image_SD.mean(0, keepdim=True)).expand_as(image_SD)

    def embed(texts: list[str]) -> torch.Tensor:
        return normalise(model.encode_text(tokenize(texts)))

    text_SD, other_SD = embed([one.caption for one in scenes]), embed([one.paraphrase for one in scenes])
    rows = [(i, one) for i, scene in enumerate(scenes) for one in scene.negatives]
    negative_VD = embed([one.caption for _, one in rows])
    of_V = torch.tensor([i for i, _ in rows])
    found: dict[str, float] = {"recall": recall_at_1(image_SD, text_SD)}
    for suffix, seen_SD in (("", image_SD), ("_blind", mean_SD)):
        true_V = (seen_SD * text_SD).sum(1)[of_V]
        same_V = (seen_SD * other_SD).sum(1)[of_V]
        false_V = (seen_SD[of_V] * negative_VD).sum(1)
        for kind in ("relation", "attribute"):
            is_own = [one.kind == kind and one.operation in OPERATIONS for _, one in rows]
            found[kind + suffix] = float((true_V > false_V)[is_own].float().mean())
        if not suffix:
            positives = torch.stack([true_V, same_V], 1).tolist()
            judged = judge_choices(positives, [[value] for value in false_V.tolist()])
            found["brittleness"] = float(judged[BRITTLENESS].right_N.mean())
    return found


def read_rows(path: Path) -> list[dict]:
    """Return the rows so far."""
    return list(csv.DictReader(path.open())) if path.exists() else []


def write_row(path: Path, row: dict) -> None:
    """Append a row."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    print(row, flush=True)


def print_contrasts(rows: list[dict]) -> None:
    """Print means by choice, and paired differences over worlds with 95 % intervals, Holm-corrected."""
    values = {(row["choice"], row["world"]): row for row in rows}
    worlds = sorted({row["world"] for row in rows}, key=int)
    worlds = [world for world in worlds if all((choice, world) in values for choice in CHOICES)]
    for choice in CHOICES:
        means = {
            name: np.mean([float(values[choice, world][name]) for world in worlds]) for name in FIELDS[2:]
        }
        print(choice, {name: round(float(mean), 3) for name, mean in means.items()})
    if len(worlds) < 2:
        return
    found = []
    for first, second, metric in CONTRASTS:
        pairs = [[float(values[one, world][metric]) for one in (first, second)] for world in worlds]
        found.append(contrast([one - other for one, other in pairs]))
    for (first, second, metric), one, p in zip(CONTRASTS, found, holm([one.p for one in found]), strict=True):
        print(f"{first} - {second}, {metric}: {one}, Holm p {p:.3f}")


if __name__ == "__main__":
    main()
