"""How far refinement takes negatives: coverage against what judges of text alone can tell.

    python -m bench.refinement [--candidates 16] [--coverage -2,0,2,4] [--judge-model FOLDER] [--all-captions]

``raycomp negatives`` by rules on the captions of flickr8k_800 and cc_web_400 (RAYCOMP_SHARED), pooled, without
ranking: unrefined (a random candidate of each operation, and the first), and refined at several values of
``negatives.coverage``. The deciding judge took no part: it is trained on the pairs themselves (logistic
regression on differences of words, pairs and triples of neighbours, and length), five folds by image. With
``--held-out FOLDER`` another language model judges as well. Shares of pairs in which the judge takes the
caption for the true one, with 95 % intervals over images. Last line one JSON object.
"""

import argparse
import hashlib
import json
import os
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import raycomp
from raycomp.config import override_all
from raycomp.core.intervals import find_share
from raycomp.core.pair_judge import judge_pairs
from raycomp.core.refine import sparse_rows
from raycomp.core.text_classifier import list_features
from raycomp.negatives.config import NegativesConfig

SOURCES = ("flickr8k_800", "cc_web_400")
NUM_FOLDS = 5
COLUMNS = 1 << 18


def main() -> None:
    """Write negatives by each rule of choice; print a table of coverage and of what judges can tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--coverage", default="-2,0,2,4")
    parser.add_argument("--judge-model")
    parser.add_argument("--held-out")
    parser.add_argument("--all-captions", action="store_true", help="all five of a Flickr photo")
    parser.add_argument("--set", action="append", default=[], metavar="negatives.OPTION=VALUE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_captions(folder / "captions.parquet", options.all_captions)
        rows = [
            row
            for label, settings in list_settings(options)
            for row in measure(label, settings, folder, options)
        ]
    print(json.dumps(rows))


def list_settings(options: argparse.Namespace) -> list[tuple[str, dict[str, str]]]:
    """Return a label and the options of each way to choose."""
    judge = "ngrams,model" if options.judge_model else "ngrams"
    judged = {"negatives.judge": judge}
    if options.judge_model:
        judged["negatives.judge_model"] = options.judge_model
    found = [("first of each operation", judged)]
    for coverage in options.coverage.split(","):
        label = f"even, coverage {coverage}"
        found.append((label, {**judged, "negatives.refine": "even", "negatives.coverage": coverage}))
    return [*found, ("draw", {**judged, "negatives.refine": "draw"})]


def write_captions(target: Path, every: bool) -> None:
    """Write the photos' captions with uid and image hash as Parquet: the first of each, or every one."""
    shared, rows = Path(os.environ["RAYCOMP_SHARED"]) / "data", []
    for source in SOURCES:
        for line in (shared / source / "captions.jsonl").read_text().splitlines():
            row = json.loads(line)
            image = f"{source}/{row['image']}"
            for i, caption in enumerate(row["captions"] if every else row["captions"][:1]):
                rows.append((hashlib.md5(f"{image}#{i}".encode()).hexdigest(), caption, image))
    names = ("uid", "caption", "image_sha256")
    pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), target)


def measure(label: str, settings: dict[str, str], folder: Path, options: argparse.Namespace) -> list[dict]:
    """Run one choice; return a row for each operation and kind, and print them."""
    common = {
        "input": str(folder / "captions.parquet"),
        "negatives.rank": "false",
        "negatives.candidates": str(options.candidates),
        "cluster.executor": "local",
        **dict(pair.split("=", 1) for pair in options.set),
    }
    out, started = folder / label.replace(" ", "-"), time.time()
    raycomp.negatives(override_all(NegativesConfig(), {**common, **settings}), str(out))
    seconds = time.time() - started
    images = dict(zip(*pq.read_table(folder / "captions.parquet", columns=["uid", "image_sha256"]).to_pydict().values(), strict=True))
    table = pq.read_table(out / "negatives").to_pylist()
    pairs = [
        (row["caption"], one["text"], one["op"], one["kind"], images[row["uid"]], one)
        for row in table
        for one in first_of_each(row["negatives"])
    ]
    print(f"\n{label}: {len(pairs):,} pairs of {len(table):,} captions, {seconds:.0f} s")
    found = []
    for op in ("SWAP", "REPLACE", "ADD"):
        own = [pair for pair in pairs if pair[2] == op]
        if own:
            found += report(label, op, own, len(table), options)
    return found


def first_of_each(negatives: list[dict]) -> list[dict]:
    """Return the first negative of each operation."""
    return list({one["op"]: one for one in reversed(negatives)}.values())


def report(label: str, op: str, pairs: list[tuple], num_captions: int, options: argparse.Namespace) -> list[dict]:
    """Return and print what each judge can tell of one operation's pairs, by kind."""
    image_T = np.array([pair[4] for pair in pairs])
    fold_T = np.array([zlib.crc32(image.encode()) % NUM_FOLDS for image in image_T])
    feature_TF = sparse_rows([count_features(pair[0], pair[1]) for pair in pairs], COLUMNS)
    margins = {"trained": judge_pairs(feature_TF, fold_T)}
    for judge in ("unigram", "bigram", "language_model"):
        if pairs[0][5][judge] is not None:
            margins[judge] = np.array([pair[5][judge] for pair in pairs])
    if options.held_out:
        margins["held_out"] = judge_by_model(pairs, options.held_out)
    kind_T = np.array([pair[3] for pair in pairs])
    rows = []
    for kind in ("all", *sorted(set(kind_T.tolist()))):
        is_own_T = (kind_T == kind) | (kind == "all")
        row = {"choice": label, "op": op, "kind": kind, "pairs": int(is_own_T.sum()), "coverage": round(float(is_own_T.sum()) / num_captions, 3)}
        for judge, margin_T in margins.items():
            right_T = (margin_T > 0) + (margin_T == 0) / 2
            share = find_share(right_T[is_own_T].astype(float), image_T[is_own_T])
            row[judge] = [round(float(v), 3) for v in share[:3]]
        rows.append(row)
        print(row)
    return rows


def count_features(caption: str, negative: str) -> dict[int, float]:
    """Return the differences of two texts by hashed feature."""
    found: dict[int, float] = {}
    for text, sign in ((caption, 1), (negative, -1)):
        for feature in list_features(text):
            column = zlib.crc32(feature.encode()) % COLUMNS
            found[column] = found.get(column, 0) + sign
    return {column: value for column, value in found.items() if value}


def judge_by_model(pairs: list[tuple], folder: str) -> np.ndarray:
    """Return the log-likelihood of each caption minus that of its negative, by another language model."""
    import torch

    from raycomp.models.language_model import LanguageModel

    model = LanguageModel(folder, "--held-out", torch.device("cpu"))
    texts = sorted({text for pair in pairs for text in pair[:2]})
    found = dict(zip(texts, model.find_likelihoods(texts), strict=True))
    return np.array([found[pair[0]] - found[pair[1]] for pair in pairs])


if __name__ == "__main__":
    main()
