"""Coverage and speed of the rules' edits on the captions of both photo sets, and samples to be read.

Command: OMP_NUM_THREADS=1 python bench/rule_edits.py [NUM_SAMPLES [SEED]]
RAYCOMP_SHARED names the folder of the photo sets (default ../shared). Prints the share of captions with at
least one edit, by operator and kind; captions per second of CPU time of one core, for parse, concepts and
each operator apart; the share of captions that bear chains of two and three calls; and NUM_SAMPLES (default
10) edits per operator. The last line is one JSON object.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np

from raycomp.core.concepts import Edit, Parsed, parse_concepts
from raycomp.core.edits import apply_calls, propose
from raycomp.models.lexicon import load_lexicon
from raycomp.models.parser import load_parser
from raycomp.schema import CONCEPT_KINDS, OPERATIONS

HOME = Path(__file__).parents[1]
SHARED = Path(os.environ.get("RAYCOMP_SHARED", HOME.parent / "shared"))
SETS = ("flickr8k_800", "cc_web_400")
AT_MOST = 6


def read_captions(source: str) -> list[str]:
    """Return all captions of a photo set."""
    lines = (SHARED / "data" / source / "captions.jsonl").read_text(encoding="utf-8").splitlines()
    return [caption for line in lines for caption in json.loads(line)["captions"]]


def measure(work: Callable[[], list]) -> tuple[list, float]:
    """Return what ``work`` returns and how many of these it made per second of CPU time."""
    start = time.process_time()
    made = work()
    return made, len(made) / (time.process_time() - start)


def edit_all(parsed: list[Parsed], op: str) -> list[list[Edit]]:
    """Return the edits of one operator of every caption."""
    lexicon = load_lexicon()
    return [propose(one, op, lexicon, 0, one.text, AT_MOST) for one in parsed]


def share_of_chains(parsed: list[Parsed], num_calls: int) -> float:
    """Return the share of (caption, operators) where that many calls all found a concept."""
    lexicon = load_lexicon()
    rows = [
        apply_calls(one, ops, lexicon, 0, one.text, 1)
        for one in parsed
        for ops in product(OPERATIONS, repeat=num_calls)
    ]
    return sum(any(len(chain) == num_calls for chain in chains) for chains in rows) / len(rows)


def print_samples(op: str, parsed: list[Parsed], edits: list[list[Edit]], count: int, seed: int) -> None:
    """Print a caption and one of its first edits, ``count`` times."""
    rng = np.random.default_rng(seed)
    for place in rng.permutation([i for i, found in enumerate(edits) if found])[:count]:
        edit = edits[place][rng.integers(min(3, len(edits[place])))]
        print(f"{op} {edit.kind}: {' -> '.join(edit.concepts)}\n  {parsed[place].text}\n  {edit.text}")


def main() -> None:
    """Print coverage, speed and samples."""
    count, seed = (int(value) for value in (*sys.argv[1:], *("10", "0")[len(sys.argv) - 1 :]))
    parser, lexicon = load_parser(), load_lexicon()
    result: dict = {"bench": "rule_edits"}
    for source in SETS:
        captions = read_captions(source)
        tokens, speed = measure(lambda captions=captions: parser.tokens(captions))
        pairs = list(zip(captions, tokens, strict=True))
        speeds = {"parse": round(speed)}
        parsed, speed = measure(
            lambda pairs=pairs: [parse_concepts(*pair, lexicon, parser.labels) for pair in pairs]
        )
        speeds["concepts"] = round(speed)
        coverage = {}
        for op in OPERATIONS:
            edits, speed = measure(lambda parsed=parsed, op=op: edit_all(parsed, op))
            speeds[op] = round(speed)
            found = [{edit.kind for edit in one} for one in edits]
            coverage[op] = {"any": round(sum(map(bool, found)) / len(found), 3)}
            coverage[op] |= {
                kind: round(sum(kind in kinds for kinds in found) / len(found), 3) for kind in CONCEPT_KINDS
            }
            print_samples(op, parsed, edits, count, seed)
        chains = {str(calls): round(share_of_chains(parsed[:400], calls), 3) for calls in (2, 3)}
        result[source] = {"captions": len(captions), "coverage": coverage, "captions_per_s_per_core": speeds}
        result[source]["chains"] = chains
        print(source, json.dumps(result[source], indent=1))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
