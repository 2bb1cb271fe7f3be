"""How many captions get a valid nonce: all captions of both photo sets, our parser, CLIP's tokenizer.

Command: OMP_NUM_THREADS=1 python bench/nonce_coverage.py [PARSER_NAME]
RAYCOMP_SHARED names the folder of the photo sets (default ../shared). A caption is covered if at least one
of its phrases has a valid nonce. Two denominators: all captions processed, which is the paper's 99.79 % (Go
et al., arXiv 2605.22651, section 1), and captions with a phrase. Every phrase without a nonce is counted
under its reason. Everything for 1, 2 and 4 nonces per target, with the phrases that have so many. ``hosts``
is over the words put in place of words of one token: the share of a nonce's host in the mass of all words
that hold its token (``models.architecture.Nonce``), its mean, its deciles and how often it is above half.
The last line is one JSON object.
"""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import open_clip

from raycomp.language.phrases import Phrase, list_word_spans
from raycomp.models.architecture import NonceMaker, load_nonces
from raycomp.models.parser import load_parser

SHARED = Path(os.environ.get("RAYCOMP_SHARED", Path(__file__).parents[2] / "shared"))
SETS = ("flickr8k_800", "cc_web_400")
COUNTS = (1, 2, 4)
SHOWN = 12


def read_captions(source: str) -> list[str]:
    """Return all captions of a photo set."""
    lines = (SHARED / "data" / source / "captions.jsonl").read_text(encoding="utf-8").splitlines()
    return [caption for line in lines for caption in json.loads(line)["captions"]]


def measure(
    maker: NonceMaker, captions: list[str], phrases: list[list[Phrase]], count: int
) -> dict[str, Any]:
    """Return counts of captions, phrases and reasons, and captions per second of CPU time, memos cold."""
    targets = [[(phrase.target_start, phrase.target_end) for phrase in group] for group in phrases]
    start = time.process_time()
    made = [maker.make(caption, spans, count) for caption, spans in zip(captions, targets, strict=True)]
    seconds = time.process_time() - start
    outcomes = [
        (caption[first:last], outcome)
        for caption, spans, found in zip(captions, targets, made, strict=True)
        for (first, last), outcome in zip(spans, found, strict=True)
    ]
    print("  examples:", [pair for pair in outcomes[:: len(outcomes) // SHOWN] if isinstance(pair[1], list)])
    print("  without:", [pair for pair in outcomes if isinstance(pair[1], str)][:SHOWN])
    covered = sum(any(isinstance(outcome, list) for outcome in found) for found in made)
    with_phrase = sum(map(bool, targets))
    return {
        "captions": len(captions),
        "with_phrase": with_phrase,
        "covered": covered,
        "covered_of_all": round(covered / len(captions), 5),
        "covered_of_with_phrase": round(covered / with_phrase, 5),
        "phrases": len(outcomes),
        "phrases_with_nonce": sum(isinstance(outcome, list) for _, outcome in outcomes),
        "phrases_with_all": sum(
            isinstance(outcome, list) and len(outcome) == count for _, outcome in outcomes
        ),
        "hosts": describe_hosts(
            [nonce for _, outcome in outcomes if isinstance(outcome, list) for nonce in outcome]
        ),
        "reasons": dict(Counter(outcome for _, outcome in outcomes if isinstance(outcome, str))),
        "lengths": dict(sorted(Counter(len(maker.encode(target)) for target, _ in outcomes).items())),
        "captions_per_s_per_core": round(len(captions) / seconds),
    }


def describe_hosts(replacements: list[str]) -> dict[str, Any]:
    """Return the spread of ``host_share`` over the one-token words of what was put in place of targets."""
    share_of = {nonce.word: nonce.host_share for nonce in load_nonces() if nonce.num_tokens == 1}
    words = (text[start:last].lower() for text in replacements for start, last in list_word_spans(text))
    shares = np.array([share_of[word] for word in words if word in share_of])
    return {
        "words": len(shares),
        "mean": round(float(shares.mean()), 4),
        "deciles": np.percentile(shares, range(0, 101, 10)).round(3).tolist(),
        "above_half": round(float((shares > 0.5).mean()), 4),
    }


def main() -> None:
    """Print coverage of each photo set."""
    parser = load_parser(sys.argv[1] if len(sys.argv) > 1 else "raycomp")
    results: dict[str, dict[int, dict[str, Any]]] = {}
    for source in SETS:
        captions = read_captions(source)
        phrases = parser.parse(captions)
        results[source] = {}
        for count in COUNTS:
            print(source, count)
            maker = NonceMaker(open_clip.get_tokenizer("ViT-B-32"))
            results[source][count] = measure(maker, captions, phrases, count)
            for name, value in results[source][count].items():
                print(f"  {name}: {value}")
    print(json.dumps({"bench": "nonce_coverage", **results}))


if __name__ == "__main__":
    main()
