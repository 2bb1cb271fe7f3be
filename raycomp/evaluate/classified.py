"""What became of images that have a class: rows of CLASSIFIED_SCHEMA.

N examples, G of them judged, C classes, D dims.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.core.ranks import rank_items
from raycomp.evaluate.labelled import Examples
from raycomp.schema import CLASSIFIED_SCHEMA
from raycomp.words import IMAGE, OK, STATUS, TEST, TRAIN


def classify_images(
    benchmark: str,
    examples: Examples,
    label_G: np.ndarray,
    feature_GD: np.ndarray,
    weight_CD: np.ndarray,
    names: Sequence[str],
) -> pa.Table:
    """Return a row for every example; those judged are ranked by ``feature_GD @ weight_CD.T``.

    ``label_G`` are the places of their classes among ``names``.
    """
    classes_C = np.arange(len(names))
    ranks = rank_items(feature_GD, weight_CD, label_G, classes_C)
    predicted_G = np.where(ranks.rank_Q == 1, label_G, ranks.rival_Q)
    columns = _describe(benchmark, TEST, examples, range(len(examples.ids)))
    for g, i in enumerate(examples.good):
        columns["label"][i], columns["predicted"][i] = names[label_G[g]], names[predicted_G[g]]
        columns["rank"][i], columns["ties"][i] = int(ranks.rank_Q[g]), int(ranks.ties_Q[g])
        columns["margin"][i], columns["num_classes"][i] = float(ranks.margin_Q[g]), len(names)
    return pa.table(columns, CLASSIFIED_SCHEMA)


def list_unread(benchmark: str, examples: Examples) -> pa.Table:
    """Return rows of the split ``train`` that say what could not be learned from."""
    bad = [i for i, status in enumerate(examples.statuses) if status != OK]
    return pa.table(_describe(benchmark, TRAIN, examples, bad), CLASSIFIED_SCHEMA)


def _describe(benchmark: str, split: str, examples: Examples, which: Sequence[int]) -> dict[str, Any]:
    """Return the columns of some examples, those of their judgement null."""
    ids = [examples.ids[i] for i in which]
    return {name: [None] * len(which) for name in CLASSIFIED_SCHEMA.names} | {
        "benchmark": [benchmark] * len(which),
        "split": [split] * len(which),
        "id": ids,
        IMAGE: ids,
        STATUS: [examples.statuses[i] for i in which],
    }
