"""How far refinement takes negatives: coverage against what judges of text alone can report.

    python -m bench.refinement candidates FOLDER [--candidates 16] [--judge-model MODEL] [--set OPTION=VALUE]
    python -m bench.refinement frontier FOLDER [--coverage -2,0,2,4] [--judges unigram,bigram] [--repeats 5]

``candidates``: ``raycomp negatives`` by rules, unranked, on the first captions of flickr8k_800 and cc_web_400
(RAYCOMP_SHARED), pooled, with all candidates kept and judged. ``frontier``: pairs of each operation, chosen
at random (unrefined) and by refinement with these judges at several values of ``negatives.coverage``. The
deciding judge took no part in the refinement: it is trained on the chosen pairs themselves (logistic
regression on differences of words, pairs and triples of neighbours, and length), five folds by image. A
judge that is left out of ``--judges`` is held out. Shares of pairs in which a judge takes the caption for the
true one, means over repeated draws, with the 95 % interval over images of the first. Last line one JSON
object.
"""

import argparse
import hashlib
import json
import os
import zlib
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import raycomp
from raycomp.config import override_all
from raycomp.core.intervals import find_share
from raycomp.core.pair_judge import judge_pairs, list_text_features
from raycomp.core.refine import MOST_LONGER, balance, draw_one, find_bins, tilt
from raycomp.negatives.config import NegativesConfig
from raycomp.negatives.judges import GAPS
from raycomp.negatives.tilting import Pairs, fit, list_pairs

SOURCES = ("flickr8k_800", "cc_web_400")
NUM_FOLDS = 5


def main() -> None:
    """Write candidates, or print a table of coverage and of what judges can report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("candidates", "frontier"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--judge-model")
    parser.add_argument("--coverage", default="-2,0,2,4")
    parser.add_argument("--judges", default="unigram,bigram")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    options = parser.parse_args()
    write_candidates(options) if options.step == "candidates" else draw_frontier(options)


def write_candidates(options: argparse.Namespace) -> None:
    """Write every candidate of every caption, with its gaps."""
    options.folder.mkdir(parents=True, exist_ok=True)
    captions = options.folder / "captions.parquet"
    write_captions(captions)
    judge = {"negatives.judge": "ngrams"}
    if options.judge_model:
        judge = {"negatives.judge": "ngrams,model", "negatives.judge_model": options.judge_model}
    settings = {
        "input": str(captions),
        "negatives.rank": "false",
        "negatives.candidates": str(options.candidates),
        "negatives.per_caption": str(3 * options.candidates),
        "cluster.executor": "local",
        **judge,
        **dict(pair.split("=", 1) for pair in options.set),
    }
    raycomp.negatives(override_all(NegativesConfig(), settings), str(options.folder / "out"))


def write_captions(target: Path) -> None:
    """Write the first caption of each photo with uid and image as Parquet."""
    shared, rows = Path(os.environ["RAYCOMP_SHARED"]) / "data", []
    for source in SOURCES:
        for line in (shared / source / "captions.jsonl").read_text().splitlines():
            row = json.loads(line)
            image = f"{source}/{row['image']}"
            rows.append((hashlib.md5(image.encode()).hexdigest(), row["captions"][0], image))
    columns = zip(("uid", "caption", "image_sha256"), map(list, zip(*rows, strict=True)), strict=True)
    pq.write_table(pa.table(dict(columns)), target)


def draw_frontier(options: argparse.Namespace) -> None:
    """Print for each operation what judges report of pairs chosen at random, and refined."""
    table = pq.read_table(options.folder / "out" / "negatives")
    captions = table["caption"].to_pylist()
    texts = [[one["text"] for one in negatives] for negatives in table["negatives"].to_pylist()]
    choices = ["random", *(f"balance {coverage}" for coverage in options.coverage.split(",")), "draw"]
    rows = []
    for op, pairs in list_pairs(table).items():
        judged = mask_judges(pairs, options.judges.split(","))
        places = zip(pairs.row_T, pairs.candidate_T, strict=True)
        words = list_text_features([(captions[row], texts[row][place]) for row, place in places])
        for choice in choices:
            share_T, bin_T = weigh(judged, choice)
            seeds = range(options.repeats)
            drawn = [draw(judged, share_T, bin_T, seed, len(captions)) for seed in seeds]
            rows += report(op, choice, pairs, words, drawn, len(captions))
    print(json.dumps(rows))


def mask_judges(pairs: Pairs, judges: list[str]) -> Pairs:
    """Return the pairs with the gaps of other judges set to 0: these take no part."""
    gap_TJ = pairs.gap_TJ * np.array([name in judges for name in GAPS])
    return pairs._replace(gap_TJ=gap_TJ)


def choose(pairs: Pairs, choice: str, seed: int, num_captions: int) -> np.ndarray:
    """Return the places of the chosen candidates, at most one of each caption."""
    return draw(pairs, *weigh(pairs, choice), seed, num_captions)


def weigh(pairs: Pairs, choice: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return each candidate's probability, and its bin if the draw is balanced."""
    if choice == "random":
        return 1 / np.bincount(pairs.row_T)[pairs.row_T], None
    coverage = inf if choice == "draw" else float(choice.split()[1])
    fitted = fit(pairs, coverage)
    share_T = tilt(fitted.features(pairs), pairs.row_T, pairs.prior_T, coverage, fitted.weight_F)
    if choice == "draw":
        return share_T, None
    return share_T, find_bins(fitted.mean_gap(pairs), pairs.longer_T, fitted.grid, MOST_LONGER)


def draw(
    pairs: Pairs, share_T: np.ndarray, bin_T: np.ndarray | None, seed: int, num_captions: int
) -> np.ndarray:
    """Return the places of at most one candidate of each caption, drawn, and balanced if there are bins."""
    uniform_N2 = np.random.default_rng(seed).random((num_captions, 2))
    place_K = np.flatnonzero(draw_one(share_T, pairs.row_T, uniform_N2[:, 0]))
    if bin_T is None:
        return place_K
    _, kind_T = np.unique(pairs.kind_T, return_inverse=True)
    return place_K[balance(kind_T[place_K], bin_T[place_K], uniform_N2[pairs.row_T[place_K], 1])]


def report(
    op: str, choice: str, pairs: Pairs, words: Any, drawn: list[np.ndarray], num_captions: int
) -> list[dict]:
    """Return and print what each judge reports of one operation's pairs, all kinds and each."""
    rows = []
    kinds = ["all", *sorted(set(pairs.kind_T.tolist()))]
    found: dict[tuple[str, str], list[list[float]]] = {}
    for place_K in drawn:
        row_K, kind_K = pairs.row_T[place_K], pairs.kind_T[place_K]
        fold_K = np.array([zlib.crc32(str(row).encode()) % NUM_FOLDS for row in row_K])
        margins = {"trained": judge_pairs(words[place_K], fold_K)}
        margins |= {name: pairs.gap_TJ[place_K, j] for j, name in enumerate(GAPS)}
        for kind in kinds:
            is_own_K = (kind_K == kind) | (kind == "all")
            found.setdefault((kind, "coverage"), []).append([is_own_K.sum() / num_captions])
            for judge, margin_K in margins.items():
                right_K = ((margin_K > 0) + (margin_K == 0) / 2)[is_own_K]
                share = find_share(right_K, row_K[is_own_K])
                found.setdefault((kind, judge), []).append(list(share[:3]))
    for kind in kinds:
        row = {"op": op, "kind": kind, "choice": choice}
        for name in ("coverage", "trained", *GAPS):
            first = found[kind, name][0]
            mean = float(np.mean([values[0] for values in found[kind, name]]))
            row[name] = round(mean, 3)
            if len(first) == 3:
                row |= {f"{name}_low": round(float(first[1]), 3), f"{name}_high": round(float(first[2]), 3)}
        rows.append(row)
        print(row, flush=True)
    return rows


if __name__ == "__main__":
    main()
