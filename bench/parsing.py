"""Captions parsed per second on one core, phrases included, over all captions of both photo sets.

Command: OMP_NUM_THREADS=1 python bench/parsing.py [PARSER_NAME]
RAYCOMP_SHARED names the folder of the photo sets (default ../shared). Also prints how well the heads of
tests/files/heads.jsonl are found. The last line is one JSON object.
"""

import json
import os
import sys
import time
from pathlib import Path

from raycomp.models.parser import Parser, load_parser

HOME = Path(__file__).parents[1]
SHARED = Path(os.environ.get("RAYCOMP_SHARED", HOME.parent / "shared"))
SETS = ("flickr8k_800", "cc_web_400")
REPEATS = 5


def read_captions(source: str) -> list[str]:
    """Return all captions of a photo set."""
    lines = (SHARED / "data" / source / "captions.jsonl").read_text(encoding="utf-8").splitlines()
    return [caption for line in lines for caption in json.loads(line)["captions"]]


def measure(parser: Parser, captions: list[str]) -> float:
    """Return the best captions per second of CPU time of several rounds."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        parser.parse(captions)
        seconds.append(time.process_time() - start)
    return len(captions) / min(seconds)


def main() -> None:
    """Print speed and head scores."""
    sys.path.insert(0, str(HOME / "tests" / "models"))
    from score_heads import score_heads

    name = sys.argv[1] if len(sys.argv) > 1 else "raycomp"
    parser = load_parser(name)
    captions = [caption for source in SETS for caption in read_captions(source)]
    speed = measure(parser, captions)
    scores = score_heads(parser.parse)
    for source, values in scores.items():
        print(source, values)
    result = {"bench": "parsing", "parser": name, "captions": len(captions)}
    words = sum(len(caption.split()) for caption in captions)
    result |= {"words_per_caption": round(words / len(captions), 2), "captions_per_s_per_core": round(speed)}
    result |= {"head_f1": {source: values["f1"] for source, values in scores.items()}}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
