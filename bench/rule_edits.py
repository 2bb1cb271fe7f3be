"""Coverage and speed of the rules' edits on the captions of both photo sets, and samples to be read.

Command: OMP_NUM_THREADS=1 python -m bench.rule_edits [--samples N] [--seed N]
RAYCOMP_SHARED names the folder of the photo sets (default ../shared). Prints the share of captions with at
least one edit, by operator and kind; captions per second of CPU time of one core, for parse, concepts and
each operator apart and for the whole of it as ``raycomp negatives`` does it, judging and parsing of all
candidates included; the share of captions that bear chains of two and three calls; and some edits per
operator. The last line is one JSON object.
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import product

import numpy as np
import pyarrow as pa

from bench.parsing import SETS, read_captions
from raycomp.data.parquet import OTHERS
from raycomp.language.concepts import Edit, Parsed, parse_concepts
from raycomp.language.prompts import apply_calls, propose
from raycomp.models.parser import load_lexicon, load_parser
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.negatives.write import write_by_rules
from raycomp.words import CAPTION, CONCEPT_KINDS, OPERATIONS, UID

AT_MOST = 6


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


def write_all(captions: list[str], block_rows: int = 64) -> list[pa.Table]:
    """Write negatives of all captions in blocks, as a worker does; no ranking."""
    config = NegativesConfig(negatives=WritingConfig(rank=False))
    uids = [f"{i:032x}" for i in range(len(captions))]
    none = pa.array([[]] * len(captions), pa.list_(pa.string()))
    table = pa.table({UID: uids, CAPTION: captions, OTHERS: none})
    blocks = [table.slice(start, block_rows) for start in range(0, len(table), block_rows)]
    return [row for block in blocks for row in [write_by_rules(block, config)] * len(block)]


def print_samples(op: str, parsed: list[Parsed], edits: list[list[Edit]], count: int, seed: int) -> None:
    """Print a caption and one of its first edits, ``count`` times."""
    rng = np.random.default_rng(seed)
    for place in rng.permutation([i for i, found in enumerate(edits) if found])[:count]:
        edit = edits[place][rng.integers(min(3, len(edits[place])))]
        print(f"{op} {edit.kind}: {' -> '.join(edit.concepts)}\n  {parsed[place].text}\n  {edit.text}")


def main() -> None:
    """Print coverage, speed and samples."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--samples", type=int, default=10)
    arguments.add_argument("--seed", type=int, default=0)
    args = arguments.parse_args()
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
            print_samples(op, parsed, edits, args.samples, args.seed)
        speeds["whole"] = round(measure(lambda captions=captions: write_all(captions))[1])
        chains = {str(calls): round(share_of_chains(parsed[:400], calls), 3) for calls in (2, 3)}
        result[source] = {"captions": len(captions), "coverage": coverage, "captions_per_s_per_core": speeds}
        result[source]["chains"] = chains
        print(source, json.dumps(result[source], indent=1))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
