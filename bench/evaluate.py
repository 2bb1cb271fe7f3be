"""raycomp's scoring of a benchmark against the loop that SugarCrepe's authors publish, on the same rows.

    python -m bench.evaluate ../shared [--photos 60] [--rounds 3]

Rows are photos of Flickr8k with each of their five captions and, as the false one, a caption of another
photo: several rows an image, as SugarCrepe has them. The authors' loop (sugarcrepe_eval.py) prepares and
encodes image and both texts of every row, one row at a time; raycomp's stages embed every picture and text
once, in passes of a fixed shape. A ViT-B/32 with random weights in fp32, one process, as many threads as
there are cores; Ray, which deals the stages out, is not timed here. Rounds in turn; the ratio is of the sums.
The cosines of both must agree. Last line one JSON object.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pyarrow as pa
import torch
from PIL import Image

from raycomp.config import ModelConfig
from raycomp.data.parquet import to_matrix
from raycomp.evaluation.benchmarks.choice import Choice
from raycomp.evaluation.choices import ChoiceEvaluation, Pictures, Texts
from raycomp.evaluation.embed import (
    TEXT_EMBEDDING,
    EmbedPictures,
    EmbedTexts,
    Files,
    prepare_pixels,
    read_pictures,
    read_texts,
    tokenize,
)
from raycomp.models.architecture import describe_scorer
from raycomp.words import IMAGE_EMBEDDING, STATUS

MODEL = ModelConfig("ViT-B-32", "random:0")


def main() -> None:
    """Time both, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("shared", type=Path, help="folder with data/flickr8k_800")
    parser.add_argument("--photos", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    choices, uris = read_rows(arguments.shared / "data" / "flickr8k_800", arguments.photos)
    sides = {"authors": make_plain(choices, uris), "raycomp": make_raycomp(choices, uris)}
    seconds = dict.fromkeys(sides, 0.0)
    found: dict[str, np.ndarray] = {}
    for _ in range(arguments.rounds):
        for name, run in sides.items():
            started = time.perf_counter()
            found[name] = run()
            seconds[name] += time.perf_counter() - started
            print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
    apart = float(np.abs(found["authors"] - found["raycomp"]).max())
    assert apart < 1e-5, apart
    ratio = seconds["authors"] / seconds["raycomp"]
    print(
        f"{len(choices)} rows of {arguments.photos} photos: {ratio:.2f} x as fast, cosines {apart:.1e} apart"
    )
    print(json.dumps({"rows": len(choices), "ratio": ratio, "apart": apart, "seconds": seconds}))


def read_rows(folder: Path, num: int) -> tuple[list[Choice], dict[str, str]]:
    """Return rows of the first photos, and where these lie."""
    lines = (folder / "captions.jsonl").read_text().splitlines()[:num]
    photos = [json.loads(line) for line in lines]
    choices = [
        Choice("bench", "all", f"{i}-{j}", photo["image"], (caption,), (photos[i - 1]["captions"][j],))
        for i, photo in enumerate(photos)
        for j, caption in enumerate(photo["captions"])
    ]
    names = {path.name: str(path) for path in folder.rglob("*.jpg")}
    return choices, {photo["image"]: names[Path(photo["image"]).name] for photo in photos}


def make_plain(choices: list[Choice], uris: dict[str, str]) -> Callable[[], np.ndarray]:
    """Return what scores row by row, as the authors do."""
    torch.manual_seed(0)
    clip, _, preprocess = open_clip.create_model_and_transforms(MODEL.name)
    tokenizer, model = open_clip.get_tokenizer(MODEL.name), clip.eval()

    @torch.no_grad()
    def run() -> np.ndarray:
        return np.array([score_row(model, preprocess, tokenizer, uris[c.image], c) for c in choices])

    return run


def score_row(model: Any, preprocess: Any, tokenizer: Any, path: str, choice: Choice) -> list[float]:
    """Return the cosines of an image with its true and its false caption."""
    texts = [model.encode_text(tokenizer(text)) for text in (choice.positives[0], choice.negatives[0])]
    image = model.encode_image(preprocess(Image.open(path)).unsqueeze(dim=0))
    image /= image.norm(dim=-1, keepdim=True)
    return [float((image @ (text / text.norm(dim=-1, keepdim=True)).t())[0, 0]) for text in texts]


def make_raycomp(choices: list[Choice], uris: dict[str, str]) -> Callable[[], np.ndarray]:
    """Return what embeds every picture and text once, and grades."""
    spec = describe_scorer(MODEL)
    see, read = EmbedPictures(MODEL, spec), EmbedTexts(MODEL)
    evaluation = ChoiceEvaluation("bench", choices, uris, lambda texts: {})

    def run() -> np.ndarray:
        unique = tuple(dict.fromkeys(evaluation.pictures))
        tables = [
            see(prepare_pixels(table, spec, 10**8))
            for table in read_pictures(Files(0, unique), block_rows=64)
        ]
        table = pa.concat_tables(tables)
        statuses = table[STATUS].to_pylist()
        places = {picture: i for i, picture in enumerate(unique)}
        pictures = Pictures(places, statuses, to_matrix(table[IMAGE_EMBEDDING]), {})
        texts = list(dict.fromkeys(evaluation.list_texts(pictures)))
        parts = [read(tokenize(table, MODEL)) for table in read_texts((0, texts), block_rows=512)]
        text_TD = np.concatenate([to_matrix(part[TEXT_EMBEDDING]) for part in parts])
        rows = evaluation.grade(
            pictures, Texts({text: i for i, text in enumerate(texts)}, text_TD)
        ).to_pylist()
        return np.array([row["positive_scores"] + row["negative_scores"] for row in rows])

    return run


if __name__ == "__main__":
    main()
