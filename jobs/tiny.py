"""A paper's table in small: drawn pairs, a tiny model, and test sets in the layouts of the published ones.

The pairs are rendered scenes of coloured shapes with exact captions, a third of them with a planted fault
(lab/worlds). The numbers show that every step runs, nothing more.
"""

import json
from functools import partial
from pathlib import Path

from rows import DRAWN, Experiment

from lab.worlds.render import encode_jpeg, render
from lab.worlds.samples import SIDE
from lab.worlds.shards import FIT, HELD_OUT_SEED, TEST_SEED, make_world
from lab.worlds.test_set import EvaluationScene, draw_test_set
from lab.worlds.tiny_clip import train_scorer
from raycomp import AttributeConfig, CurateConfig, EvaluateConfig, NegativesConfig, TrainConfig, WritingConfig
from raycomp.config import ClusterConfig, ModelConfig, ScorerConfig
from raycomp.evaluation.config import BenchmarkConfig, LinearProbeConfig, RetrievalConfig, ZeroshotConfig
from raycomp.training.config import FitConfig

NUM_SCENES = 40
LOCAL = ClusterConfig(executor="local")
_SHORT = {"object": "obj", "attribute": "att", "relation": "rel"}
# Names of the drawn sets of images with classes: the word of a scene's first thing that is its class.
_CLASSES = {"in1k": "shape", "cifar10": "colour", "cifar100": "size"}


def make_tiny(out: str) -> Experiment:
    """Return a table's experiment on data that are drawn below OUT/drawn, unless they are there."""
    drawn = Path(out) / "drawn"
    architecture, sets = str(drawn / "scorer/model.json"), drawn / "sets"
    model = ModelConfig(name=architecture, weights="random:0")
    scorer = ScorerConfig(model=architecture, weights=str(drawn / "scorer/model.safetensors"))
    classes = "::".join(f"{name}={sets}/{name}/test" for name in _CLASSES)
    probes = [f"{name}={sets}/{name}" for name in ("cifar10", "cifar100")]
    evaluate = EvaluateConfig(
        model=model,
        benchmarks=("sugarcrepe", "sugarcrepe_pp", "vl_checklist", "retrieval", "zeroshot", "linear_probe"),
        sugarcrepe=BenchmarkConfig(f"{sets}/sugarcrepe", f"{sets}/images"),
        sugarcrepe_pp=BenchmarkConfig(f"{sets}/sugarcrepe_pp", f"{sets}/images"),
        vl_checklist=BenchmarkConfig(f"{sets}/vl_checklist", f"{sets}/images"),
        retrieval=RetrievalConfig(f"{drawn}/held_out"),
        zeroshot=ZeroshotConfig(classes),
        linear_probe=LinearProbeConfig(
            "::".join(f"{one}/train" for one in probes), "::".join(f"{one}/test" for one in probes)
        ),
        cluster=LOCAL,
    )
    fit = FitConfig(steps=10, batch_size=32, learning_rate=FIT.learning_rate, warmup=FIT.warmup, workers=1)
    return Experiment(
        curate=CurateConfig(
            input=f"{drawn}/curate", scorer=scorer, attribute=AttributeConfig(pool=1.0), cluster=LOCAL
        ),
        train=TrainConfig(model=model, train=fit, cluster=LOCAL),
        evaluate=evaluate,
        negatives={
            f"calls{calls}": NegativesConfig(
                negatives=WritingConfig(calls=calls, per_caption=4), cluster=LOCAL
            )
            for calls in (1, 2)
        },
        before=partial(draw, drawn),
        note=DRAWN,
    )


def draw(folder: Path) -> None:
    """Draw the pairs, the tiny scoring model and the test sets, unless they are there."""
    done = folder / "done"
    if done.exists():
        return
    world = make_world(folder, 0, num_train=2000, num_clean=400, num_faulty=200, num_held_out=100)
    train_scorer(world, folder / "scorer", 0, FitConfig(steps=100, batch_size=64, warmup=0.1))
    scenes = list(draw_test_set(NUM_SCENES, TEST_SEED))
    write_choices(folder / "sets", scenes)
    for name, word in _CLASSES.items():
        write_classes(folder / "sets" / name / "test", scenes, word)
        others = list(draw_test_set(NUM_SCENES, HELD_OUT_SEED))
        write_classes(folder / "sets" / name / "train", others, word)
    done.touch()


def write_choices(folder: Path, scenes: list[EvaluationScene]) -> None:
    """Write the scenes' negatives in the layouts of SugarCrepe, SugarCrepe++ and VL-CheckList."""
    rows: dict[str, list[dict]] = {}
    for place, scene in enumerate(scenes):
        image = f"{place:05d}.jpg"
        _write(folder / "images" / image, scene.image)
        for negative in scene.negatives:
            split = f"{negative.operation.lower()}_{_SHORT[negative.kind.lower()]}"
            texts = {"caption": scene.caption, "negative_caption": negative.caption}
            row = {"id": place, "filename": image, "caption2": scene.paraphrase, **texts}
            rows.setdefault(split, []).append(row)
    for split, own in rows.items():
        by_id = {str(row["id"]): row for row in own}
        _write(folder / "sugarcrepe" / f"{split}.json", json.dumps(by_id).encode())
        if not split.startswith("add"):
            _write(folder / "sugarcrepe_pp" / f"{split}.json", json.dumps(own).encode())
    for kind, short in _SHORT.items():
        pairs = [
            [row["filename"], {"POS": [row["caption"]], "NEG": [row["negative_caption"]]}]
            for row in rows[f"replace_{short}"]
        ]
        _write(folder / "vl_checklist" / f"{kind}/vg.json", json.dumps(pairs).encode())


def write_classes(folder: Path, scenes: list[EvaluationScene], word: str) -> None:
    """Write a folder of images for each class, the ``word`` of a scene's first thing."""
    for place, scene in enumerate(scenes):
        name = getattr(scene.scene.things[0], word)
        _write(folder / name / f"{place:05d}.jpg", encode_jpeg(render(scene.scene, SIDE)))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
