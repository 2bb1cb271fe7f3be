"""What 408 hard negatives on real photos are, labelled by looking at the photos.

    python -m bench.labels OUT.csv [--labels FILE] [--examples docs/negatives_examples.md]

The labels are of final outputs of the rules (``negatives.rank=false``, other options as they are), with and
without ``negatives.context``: for each operation 34 drawn at random of flickr8k_800 and 34 of cc_web_400, one
of a photo, shuffled. Two passes of a large vision-language model, apart from each other, saw the photo, the
caption and the text, and neither the operation nor the setting; no person has checked them. Is the text false
of the photo (y, n, u for unclear), which operation is it, is it grammatical where the caption is, is it
plausible for some photo? By setting and operation: shares with 95 % intervals over the labels of both passes,
and how often the passes agree, with Cohen's kappa.
``--examples``: the page of examples, ten good and ten bad of each operation.
"""

import argparse
import csv
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raycomp.core.intervals import compute_share
from raycomp.core.metrics import find_kappa
from raycomp.words import OPERATIONS

PASSES = ("1", "2")
NAMES = ("false", "operation", "grammatical", "plausible")
NUM_EXAMPLES = 10
HEAD = """# Hard negatives: examples

The first ten good and ten bad ones of each operation in the list of labelled negatives
([how they were labelled](../bench/RESULTS.md#what-hard-negatives-are)). Good: in both passes false of the
photo, grammatical, and plausible for some photo. Bad: not so in at least one pass. Rules
wrote them, half with `negatives.context`; nothing was ranked, refined or screened."""
LABELS = Path(__file__).parents[1] / "tests" / "negatives" / "labels.csv"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--labels", type=Path, default=LABELS)
    parser.add_argument("--examples", type=Path)
    options = parser.parse_args()
    rows = list(csv.DictReader(options.labels.open()))
    groups = [(context, op) for context in ("false", "true") for op in OPERATIONS]
    found = [report(context, op, rows) for context, op in [*groups, ("all", "all")]]
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, found[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    if options.examples:
        options.examples.write_text(write_examples(rows))


def report(context: str, op: str, rows: Sequence[dict]) -> dict:
    """Return the shares of one setting and operation."""
    own = [row for row in rows if context in ("all", row["context"]) and op in ("all", row["op"])]
    found: dict = {"context": context, "op": op, "num": len(own)}
    shares = {
        "false": _collect(own, "false", "y", ("y", "n")),
        "unclear": _collect(own, "false", "u"),
        "right_operation": [(i, label == own[i]["op"]) for i, label in _list(own, "operation")],
        "grammatical": _collect(own, "grammatical", "y"),
        "plausible": _collect(own, "plausible", "y"),
    }
    for name, values in shares.items():
        share = compute_share(np.array([is_so for _, is_so in values]), np.array([i for i, _ in values]))
        found |= {name: round(share.value, 3), f"{name}_low": round(share.low, 3)}
        found[f"{name}_high"] = round(share.high, 3)
    for name in ("false", "grammatical", "plausible"):
        pairs = [(row[f"{name}_1"], row[f"{name}_2"]) for row in own]
        found[f"{name}_agreement"] = round(float(np.mean([one == other for one, other in pairs])), 3)
        found[f"{name}_kappa"] = round(find_kappa(pairs), 3)
    return found


def _list(rows: Sequence[dict], name: str) -> list[tuple[int, str]]:
    return [(i, row[f"{name}_{number}"]) for i, row in enumerate(rows) for number in PASSES]


def _collect(
    rows: Sequence[dict], name: str, wanted: str, among: Sequence[str] = ("y", "n", "u")
) -> list[tuple[int, bool]]:
    return [(i, label == wanted) for i, label in _list(rows, name) if label in among]


def write_examples(rows: Sequence[dict]) -> str:
    """Return a page with the first good and bad ones of each operation."""
    parts = [HEAD]
    for op in OPERATIONS:
        own = [row for row in rows if row["op"] == op]
        for name, wanted in (("Good", True), ("Bad", False)):
            chosen = [row for row in own if (not find_faults(row)) == wanted][:NUM_EXAMPLES]
            columns = "| caption | negative |" if wanted else "| caption | negative | what is wrong |"
            rule = re.sub(r"[^|]+", " --- ", columns)
            lines = [
                f"| {row['caption']} | {row['text']} |" + (f" {find_faults(row)} |" if not wanted else "")
                for row in chosen
            ]
            parts.append("\n".join([f"## {op}: {name.lower()}", "", columns, rule, *lines]))
    return "\n\n".join(parts) + "\n"


def find_faults(row: dict) -> str:
    """Return what one of the passes found wrong; empty where neither did."""
    found = []
    labels = {name: {row[f"{name}_{number}"] for number in PASSES} for name in NAMES}
    if "n" in labels["false"]:
        found.append("true of the photo")
    elif "u" in labels["false"]:
        found.append("the photo does not show whether it is true")
    if "n" in labels["grammatical"]:
        found.append("not grammatical")
    if "n" in labels["plausible"]:
        found.append("not plausible")
    if labels["operation"] != {row["op"]}:
        found.append("another operation")
    return ", ".join(found)


if __name__ == "__main__":
    main()
