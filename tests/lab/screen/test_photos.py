"""The screen on real photos: planted scorers, each of which only some rules can use, and real files."""

import csv
import json
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

from lab.screen.command import screen
from lab.screen.config import ScreenConfig
from lab.screen.judge import ALIGNMENT, PAPER, READINGS, auc_copies, keep_best, keep_copies
from lab.screen.photos import draw_copies
from raycomp.config import ClusterConfig, ScorerConfig
from raycomp.core.metrics import auc
from raycomp.evaluation.benchmarks.published import EDITS
from raycomp.evaluation.config import BenchmarkConfig
from raycomp.models.clip import Clip, TextEncoder

NUM = 20
LOCAL = ClusterConfig(executor="local", num_cpus=1)
COLOURS, THINGS = "red blue green white black".split(), "dog cat horse bird cow".split()
KINDS = {"background": "background", **dict.fromkeys(COLOURS, "colour"), **dict.fromkeys(THINGS, "animal")}
WORDS = {int(open_clip.tokenize([word])[0, 1]): kind for word, kind in KINDS.items()}
# What a planted scorer shows of a false caption, and whether a reading of PAS finds it; None: some do.
PLANTS = {
    "colour": lambda name: name.startswith("content"),
    "background": lambda name: not name.startswith("showable"),
    "displacement": lambda name: "per_displacement" in name,
    "animal": lambda name: None if "per_displacement" in name else name.endswith("min"),
    "first nonce": lambda name: None if "per_displacement" in name else name == PAPER,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, set[tuple[int, ...]]]:
    """SugarCrepe's seven files, negatives with another colour, and the tokens of all negatives."""
    folder, rng, false = tmp_path_factory.mktemp("sugarcrepe"), np.random.default_rng(0), []
    for number, split in enumerate(EDITS):
        rows = {}
        for i in range(NUM):
            name, (colour, other) = f"{NUM * number + i}", rng.choice(COLOURS, 2, replace=False)
            end = f"{rng.choice(THINGS)} stands near {name} trees in the background."
            Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(folder / f"{name}.png")
            true, false = f"A {colour} {end}", [*false, f"A {other} {end}"]
            rows[name] = {"filename": f"{name}.png", "caption": true, "negative_caption": false[-1]}
        (folder / f"{split}.json").write_text(json.dumps(rows))
    return folder, {tuple(row) for row in open_clip.tokenize(false).tolist()}


def plant(what: str, false: set[tuple[int, ...]], patch: pytest.MonkeyPatch) -> None:
    """Replace both towers: a text's embedding has its cosine with every image, then its own direction."""
    rng = np.random.default_rng(1)

    def place(cosine: float, angle: float) -> torch.Tensor:
        rest = np.sqrt(1 - cosine**2)
        return torch.tensor(
            [cosine, rest * np.cos(angle), rest * np.sin(angle), *[0.0] * 29], dtype=torch.float32
        )

    def embed(self, caption_GN, other_TN=(), count_G=0):
        is_false_G = [tuple(row) in false for row in caption_GN.tolist()]
        cosine_G = [0.5 + 0.1 * np.random.default_rng(row.astype(np.int64)).random() for row in caption_GN]
        if what == ALIGNMENT:
            cosine_G = [one - 0.2 * is_false for one, is_false in zip(cosine_G, is_false_G, strict=True)]
        others, seen = [torch.empty(0, 32)], set()
        for other_N, g in zip(other_TN, np.repeat(np.arange(len(caption_GN)), count_G), strict=True):
            at = int((other_N != caption_GN[g]).argmax())
            word, is_first = WORDS.get(int(caption_GN[g][at])), (g, at) not in seen
            seen.add((g, at))
            change = {
                what: -0.15 * (word == what),
                "animal": -0.2 if word == "animal" else 0.3,  # the others drop more
                "first nonce": -0.1 if is_first else 0.1,
            }[what]
            drop = 0.2 + 0.02 * rng.random() + change * is_false_G[g]
            angle = 2.0 if is_false_G[g] and what == "displacement" else 0.5
            others.append(place(cosine_G[g] - drop, angle)[None])
        return torch.stack([place(one, 0.0) for one in cosine_G]), torch.cat(others)

    patch.setattr(TextEncoder, "embed", embed)
    patch.setattr(Clip, "embed_pixels", lambda self, pixels, row_B: torch.eye(32)[[0] * len(row_B)])


@pytest.fixture(scope="module")
def scorer(tiny_scorer, tmp_path_factory) -> ScorerConfig:
    """The tiny scorer with weights in a file: its results are not marked as noise."""
    path = tmp_path_factory.mktemp("weights") / "tiny.pt"
    torch.save(Clip(tiny_scorer).model.state_dict(), path)
    return ScorerConfig(tiny_scorer.model, str(path))


def run_planted(what, files, scorer, out, patch) -> tuple[dict[str, float], str]:
    """Return the percentage of the false captions that each rule keeps, and the verdict."""
    plant(what, files[1], patch)
    config = ScreenConfig(sugarcrepe=BenchmarkConfig(str(files[0])), scorer=scorer, cluster=LOCAL)
    record = screen(config, str(out), lambda line: None)
    rows = list(csv.DictReader((out / "rules.csv").open()))
    assert {int(row["planted"]) for row in rows if row["kind"] != "all"} <= {6, 7}, "a third of every kind"
    return {
        row["rule"]: float(row["kept"]) for row in rows if (row["kind"], row["keep"]) == ("all", "0.5")
    }, record["headline"]


@pytest.mark.parametrize("what", PLANTS)
def test_the_rules_that_keep_the_fewest_are_those_that_read_what_was_planted(
    what, files, scorer, tmp_path, monkeypatch
):
    kept, verdict = run_planted(what, files, scorer, tmp_path / "out", monkeypatch)
    expected = {name: PLANTS[what](name) for name in (PAPER, *READINGS)}
    finders = {name for name, finds in expected.items() if finds}
    assert finders == {n for n, finds in expected.items() if finds is not None and kept[f"cpi {n}"] < 20}
    assert all(kept[f"cpi {name}"] < kept[f"{ALIGNMENT} + {name}"] < kept[ALIGNMENT] for name in finders)
    assert verdict.startswith("screened 140 pairs; cpi ") and " keeps the fewest false captions: " in verdict
    assert expected[verdict.split("cpi ")[1].split(" keeps")[0]] is not False


def test_where_alignment_finds_them_the_verdict_is_alignment(files, scorer, tmp_path, monkeypatch):
    kept, verdict = run_planted(ALIGNMENT, files, scorer, tmp_path / "out", monkeypatch)
    assert kept[ALIGNMENT] == 0 == kept[f"{ALIGNMENT} + {PAPER}"] < kept[f"cpi {PAPER}"]
    assert "; Undecided: alignment + " in verdict, "sums keep none either"


def test_copies_are_kept_as_pairs_are():
    rng = np.random.default_rng(0)
    score_N, draw_N, image_N = (
        rng.integers(0, 9, 60).astype(float),
        rng.permutation(60),
        rng.integers(0, 20, 60),
    )
    score_N[:5], false_N, copies_BN = np.nan, rng.random(60) < 0.3, draw_copies(image_N.astype(str).tolist())
    for copies_N in copies_BN[:4].astype(int):
        at = np.repeat(np.arange(60), copies_N)
        kept_N = keep_best(score_N[at], 0.5, np.ones(len(at), bool), draw_N[at])
        (own_N,) = keep_copies(score_N, copies_N[None], np.array([len(at) // 2]), draw_N)
        np.testing.assert_array_equal(own_N, np.bincount(at[kept_N], minlength=60))
        true, false = (score_N[at[side_N[at] & ~np.isnan(score_N[at])]] for side_N in (~false_N, false_N))
        (area,) = auc_copies(score_N, copies_N[None], ~false_N, false_N)
        assert area == pytest.approx(auc(true, false))
    assert (copies_BN[0] == 1).all() and all(len({*copies_BN[3][image_N == i]}) <= 1 for i in range(20))


@pytest.mark.data
def test_real_photos_with_random_weights_are_noise(shared, tiny_scorer, tmp_path):
    files = BenchmarkConfig(
        *(str(shared / "data" / name) for name in ("benchmarks/sugarcrepe", "coco_val_40"))
    )
    config = ScreenConfig(sugarcrepe=files, scorer=tiny_scorer, cluster=LOCAL)
    record = screen(config, str(tmp_path / "out"), lambda line: None)
    assert record["funnel"]["kept"] == 43
    pairs = list(csv.DictReader((tmp_path / "out" / "pairs.csv").open()))
    captions = {
        json.loads(line)["image"]: json.loads(line)["captions"]
        for line in (shared / "data/coco_val_40/captions.jsonl").open()
    }
    assert sum(row["is_false"] == "True" for row in pairs) == 15
    for row in pairs:
        assert (row["caption"] in map(str.strip, captions[row["image"]])) == (row["is_false"] == "False")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Noise: the scorer has random weights" in page and "1,545 of 1,560 images are not in" in page
