"""How far refinement takes negatives: coverage against what judges of text alone can report.

    python -m bench.refinement candidates FOLDER [--candidates 16] [--judge-model MODEL] [--set OPTION=VALUE]
    python -m bench.refinement frontier FOLDER [--coverage -2,0,2,4] [--judges unigram,bigram] [--repeats 5]
        [--states MODEL] [--out OUT.csv]
    python -m bench.refinement figure docs/frontier.svg

``candidates``: ``raycomp negatives`` by rules, unranked, on the first captions of flickr8k_800 and cc_web_400
(RAYCOMP_SHARED), pooled, with all candidates kept and judged. ``frontier``: pairs of each operation, chosen
at random (unrefined) and by refinement with these judges at several values of ``negatives.coverage``. The
deciding judge took no part in the refinement: it is trained on the chosen pairs themselves (logistic
regression on differences of words, pairs and triples of neighbours, and length), five folds by image. A
judge that is left out of ``--judges`` is held out. Shares of pairs in which a judge takes the caption for the
true one, means over repeated draws, with the 95 % interval over images of the first. ``--states``: one more
deciding judge, logistic regression on the difference of a causal language model's mean last hidden states,
trained on the chosen pairs in the same folds. Last line one JSON object; ``--out`` appends the rows.
``figure``: coverage and shares of bench/results/refinement.csv.
"""

import argparse
import csv
import hashlib
import json
import os
import zlib
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import raycomp
from lab.pair_judge import judge_pairs, list_text_features
from raycomp.config import override_all
from raycomp.core.intervals import compute_share
from raycomp.core.refine import MOST_LONGER, assign_bins, balance, draw_one, tilt
from raycomp.negatives.config import NegativesConfig
from raycomp.negatives.judges import GAPS
from raycomp.negatives.refine import Pairs, fit, list_pairs
from raycomp.report.page import cut_out, response
from raycomp.table import Estimate

TABLE = Path(__file__).parent / "results" / "refinement.csv"
SOURCES = ("flickr8k_800", "cc_web_400")
NUM_FOLDS = 5


def main() -> None:
    """Write candidates, or print a table of coverage and of what judges can report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("candidates", "frontier", "figure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--judge-model")
    parser.add_argument("--coverage", default="-2,0,2,4")
    parser.add_argument("--judges", default="unigram,bigram")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--states")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    options = parser.parse_args()
    steps = {"candidates": write_candidates, "frontier": draw_frontier, "figure": draw_figure}
    steps[options.step](options)


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
        said = [(captions[row], texts[row][place]) for row, place in places]
        words = list_text_features(said)
        for choice in choices:
            share_T, bin_T = weigh(judged, choice)
            seeds = range(options.repeats)
            drawn = [draw(judged, share_T, bin_T, seed, len(captions)) for seed in seeds]
            states = find_states(options.states, said, drawn) if options.states else None
            rows += report(op, choice, pairs, words, drawn, len(captions), states)
    print(json.dumps(rows))
    if options.out:
        append(options.out, [{"judges": options.judges.replace(",", " "), **row} for row in rows])


def append(path: Path, rows: list[dict]) -> None:
    """Append rows to a table."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def find_states(folder: str, said: list[tuple[str, str]], drawn: list[np.ndarray]) -> Any:
    """Return the differences of mean last hidden states, caption minus negative, sparse (T, D).

    Each dimension is divided by its standard deviation. Pairs that no draw chose have zeros.
    """
    import torch
    from scipy.sparse import csr_matrix

    judge = _load_judge(folder)
    chosen = sorted({int(place) for place_K in drawn for place in place_K})
    texts = sorted({text for place in chosen for text in said[place]} - judge.known.keys(), key=len)
    with torch.inference_mode():
        for text in texts:
            token = torch.tensor([judge.model.tokenizer.encode(text)])
            state = judge.model.model(input_ids=token, output_hidden_states=True).hidden_states[-1]
            judge.known[text] = state[0].float().mean(0).numpy()
    found = np.zeros((len(said), len(judge.known[said[chosen[0]][0]])))
    for place in chosen:
        caption, negative = said[place]
        found[place] = judge.known[caption] - judge.known[negative]
    return csr_matrix(found / found[chosen].std(0).clip(1e-9))


class _Judge(NamedTuple):
    model: Any
    known: dict[str, np.ndarray]


@cache
def _load_judge(folder: str) -> _Judge:
    import torch

    from raycomp.models.language_model import LanguageModel

    return _Judge(LanguageModel(folder, "states", torch.device("cpu")), {})


def draw_figure(options: argparse.Namespace) -> None:
    """Draw the share of pairs that a trained judge and a held-out model find, over the coverage."""
    rows = [row for row in csv.DictReader(TABLE.open()) if row["kind"] == "all"]
    held_out = "unigram bigram"
    series = []
    for op in ("REPLACE", "SWAP"):
        for name, judge in (("trained on the pairs", "trained"), ("SmolLM2, held out", "language_model")):
            own = [
                row
                for row in rows
                if row["op"] == op and (row["judges"] == held_out or row["choice"] == "random")
            ]
            points = [
                (
                    float(row["coverage"]),
                    Estimate(*(float(row[judge + end]) for end in ("", "_low", "_high"))),
                )
                for row in own
                if row["choice"] != "draw"
            ]
            series.append((f"{op}: {name}", points))
    title = "Refined by n-grams: captions with a negative, and pairs that text alone finds"
    chart = response(
        title, "share of captions with a negative", "pairs found by text alone", series, is_apart=False
    )
    options.folder.write_text(cut_out(chart))


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
    return share_T, assign_bins(fitted.mean_gap(pairs), pairs.longer_T, fitted.grid, MOST_LONGER)


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
    op: str,
    choice: str,
    pairs: Pairs,
    words: Any,
    drawn: list[np.ndarray],
    num_captions: int,
    states: Any = None,
) -> list[dict]:
    """Return and print what each judge reports of one operation's pairs, all kinds and each."""
    rows = []
    kinds = ["all", *sorted(set(pairs.kind_T.tolist()))]
    found: dict[tuple[str, str], list[list[float]]] = {}
    for place_K in drawn:
        row_K, kind_K = pairs.row_T[place_K], pairs.kind_T[place_K]
        fold_K = np.array([zlib.crc32(str(row).encode()) % NUM_FOLDS for row in row_K])
        margins = {"trained": judge_pairs(words[place_K], fold_K)}
        if states is not None:
            margins["states"] = judge_pairs(states[place_K], fold_K)
        margins |= {name: pairs.gap_TJ[place_K, j] for j, name in enumerate(GAPS)}
        for kind in kinds:
            is_own_K = (kind_K == kind) | (kind == "all")
            found.setdefault((kind, "coverage"), []).append([is_own_K.sum() / num_captions])
            for judge, margin_K in margins.items():
                right_K = ((margin_K > 0) + (margin_K == 0) / 2)[is_own_K]
                share = compute_share(right_K, row_K[is_own_K])
                found.setdefault((kind, judge), []).append(list(share[:3]))
    for kind in kinds:
        row = {"op": op, "kind": kind, "choice": choice}
        for name in ("coverage", "trained", *(["states"] if states is not None else []), *GAPS):
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
