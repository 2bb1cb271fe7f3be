"""Figures of texts alone, in about a minute, of docs/results.md: benchmarks, rules and words.

    RAYCOMP_SHARED=../shared python -m bench.texts bench/results/texts.csv

``explained``: negatives, or second true captions ("paraphrases"), that one or at most two calls of SWAP,
REPLACE and ADD explain. ``true caption found``: rows of SugarCrepe in which the true caption is the shorter
one, or the likelier under a bigram of the 4,000 captions of flickr8k_800; a tie is half. ``judge``: edits
labelled by hand (``bench.validity``, part "fresh"). ``heads``: head nouns of 200 hand-labelled captions
against the packaged parser. ``nonces``: captions of flickr8k_800 and cc_web_400 with a valid nonce. Intervals
are Wilson's, at 95 %.
"""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import open_clip

from bench.nonce_coverage import SETS, SHARED, read_captions
from bench.validity import LABELS, judge_all, score
from raycomp.core.metrics import wilson
from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import Choice
from raycomp.evaluation.benchmarks.published import read_benchmark
from raycomp.language.overlap import bigram_likelihood, count_ngrams, count_words
from raycomp.models.architecture import NonceMaker
from raycomp.models.parser import Parser, load_parser
from raycomp.probe.overlap import count_calls, measure_overlap, sum_rows
from tests.models.score_heads import score_heads

HEAD = ("what", "of", "rows", "value", "low", "high")
Line = tuple[str, str, float, float, float, float]


def _share(what: str, of: str, part: float, whole: int) -> Line:
    return what, of, whole, part / whole, *wilson(part / whole, whole)


def list_explained(benchmark: str, rows: list[Choice], parser: Parser) -> Iterator[Line]:
    """Yield the shares that one call, and at most two calls, explain."""
    (found,) = sum_rows(measure_overlap(rows, parser, None))
    for name, answers in (("negatives", found.explained), ("paraphrases", found.paraphrased)):
        if answers:
            for calls, num in zip(("one call", "one or two calls"), count_calls(answers), strict=True):
                yield _share(f"explained, {calls}", f"{benchmark}, {name}", num, answers.total())


def list_found(rows: list[Choice], captions: list[str]) -> Iterator[Line]:
    """Yield the shares of SugarCrepe's rows in which a score of text alone finds the true caption."""
    counts = count_ngrams(captions)
    judges: dict[str, Callable[[str], float]] = {
        "shorter": lambda text: -count_words(text),
        "bigram": lambda text: bigram_likelihood(text, counts),
    }
    sound = [row for row in rows if not row.defects]
    for split in ("all", "add_att", "add_obj"):
        own = [row for row in sound if split in ("all", row.split)]
        for name, judge in judges.items():
            margins = [judge(row.positives[0]) - judge(row.negatives[0]) for row in own]
            wins = sum(1.0 if one > 0 else 0.5 if one == 0 else 0.0 for one in margins)
            yield _share(f"true caption found, {name}", f"sugarcrepe, {split}", wins, len(own))


def list_lines() -> Iterator[Line]:
    """Yield every line of the table."""
    parser = load_parser("raycomp")
    captions = {name: read_captions(name) for name in SETS}
    for name in ("sugarcrepe", "sugarcrepe_pp", "valse"):
        rows = read_benchmark(name, Folder(str(SHARED / "data" / "benchmarks" / name)))
        yield from list_explained(name, rows, parser)
        if name == "sugarcrepe":
            yield from list_found(rows, captions["flickr8k_800"])
    labels = [json.loads(line) for line in LABELS.read_text(encoding="utf-8").splitlines()]
    fresh = [row for row in labels if row["part"] == "fresh"]
    judged = score(fresh, judge_all(fresh)[0])
    for what in ("precision", "recall"):
        value, low, high = judged[what]
        yield f"judge, {what}", "fresh edits", judged["edits"], value, low, high
    heads = score_heads(parser.parse)["both"]
    yield "heads, F1", "head nouns labelled by hand", heads["heads"], heads["f1"], float("nan"), float("nan")
    maker = NonceMaker(open_clip.get_tokenizer("ViT-B-32"))
    every = [caption for name in SETS for caption in captions[name]]
    spans = [[(one.target_start, one.target_end) for one in own] for own in parser.parse(every)]
    made = [maker.make(caption, own, 1) for caption, own in zip(every, spans, strict=True)]
    covered = sum(any(isinstance(one, list) for one in own) for own in made)
    yield _share("captions with a valid nonce", "both photo sets", covered, len(every))


def main() -> None:
    """Write the table."""
    with Path(sys.argv[1]).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for line in list_lines():
            row = [f"{one:.4f}" if isinstance(one, float) else one for one in line]
            print(*row, flush=True)
            writer.writerow("" if one == "nan" else one for one in row)


if __name__ == "__main__":
    main()
