"""How far bf16 scores agree with fp32 scores, and what each selects.

    python -m bench.precision --set input=out/photos/flickr8k_800 --set scorer.model=ViT-B-32 \\
        --set scorer.weights=random:0

Every option of a curation may be set but the precision. Both precisions score the same rows in one process;
each attributes the pool of the fp32 alignment, so that the second gate is compared on the same rows. Overlap
of kept sets alone is misleading: two random choices of 5/7 of a pool share 0.71 of it; each has its
``chance``. Last line one JSON object.
"""

import argparse
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa

from bench.pipeline import CAPTIONS_PER_CALL, read_prepared
from raycomp.config import exact_share, override_all
from raycomp.core.metrics import pearson, spearman
from raycomp.curation.config import CurateConfig
from raycomp.curation.score.stages import Align, Attribute, parse
from raycomp.data.parquet import add_columns
from raycomp.models.architecture import describe_scorer
from raycomp.words import (
    ALIGNMENT,
    IMAGE_EMBEDDING,
    MEAN_PAS,
    OK,
    STATUS,
)


def align_all(config: CurateConfig) -> pa.Table:
    """Return the usable rows with their alignment."""
    spec = describe_scorer(config.scorer)
    align = Align(config.scorer, spec)
    table = pa.concat_tables([align(block) for block in read_prepared(config, spec)])
    return table.filter(pa.array([status == OK for status in table[STATUS].to_pylist()]))


def attribute_all(config: CurateConfig, pool: pa.Table) -> np.ndarray:
    """Return mean PAS of the pool's rows, NaN where a row has none."""
    attribute = Attribute(config.scorer)
    scores = []
    for start in range(0, len(pool), CAPTIONS_PER_CALL):
        part = pool.slice(start, CAPTIONS_PER_CALL)
        part = parse(part, config.parser, config.nonce, config.attribute, config.scorer)
        scores.append(attribute(part)[MEAN_PAS].to_numpy(zero_copy_only=False))
    return np.concatenate(scores)


def compare(full_N: np.ndarray, half_N: np.ndarray, num_kept: int) -> dict[str, float]:
    """Return correlations of two scores, and the share of what fp32 keeps and drops that bf16 does too."""
    ranks = [np.argsort(-score, kind="stable") for score in (full_N, half_N)]
    kept, dropped = (
        [set(r[part].tolist()) for r in ranks] for part in (slice(num_kept), slice(num_kept, None))
    )
    if not kept[0] or not dropped[0]:
        raise ValueError(
            f"keeping {num_kept} of {len(full_N)} rows compares nothing; keep some and drop some"
        )
    return {
        "spearman": float(spearman(full_N, half_N)),
        "pearson": float(pearson(full_N, half_N)),
        "max_abs_error": float(np.abs(full_N - half_N).max()),
        "kept_agreement": len(kept[0] & kept[1]) / len(kept[0]),
        "kept_chance": num_kept / len(full_N),
        "dropped_agreement": len(dropped[0] & dropped[1]) / len(dropped[0]),
        "dropped_chance": 1 - num_kept / len(full_N),
    }


def main() -> None:
    """Score in both precisions, compare both gates, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", action="append", default=[], metavar="a.b=value")
    settings = dict(text.split("=", 1) for text in parser.parse_args().set)
    config = override_all(CurateConfig(), settings)
    config, half = (
        replace(config, scorer=replace(config.scorer, precision=name)) for name in ("fp32", "bf16")
    )
    aligned = {"fp32": align_all(config), "bf16": align_all(half)}
    score = {name: table[ALIGNMENT].to_numpy() for name, table in aligned.items()}
    num_pool = exact_share(config.align.keep, len(score["fp32"]))
    pool = pa.array(np.sort(np.argsort(-score["fp32"], kind="stable")[:num_pool]))
    full_N = attribute_all(config, aligned["fp32"].take(pool))
    own = {name: aligned["bf16"][name] for name in (ALIGNMENT, IMAGE_EMBEDDING)}
    half_N = attribute_all(half, add_columns(aligned["fp32"], own).take(pool))
    valid_N = ~np.isnan(full_N)
    report = {
        "model": config.scorer.model,
        "weights": config.scorer.weights,
        "rows": len(score["fp32"]),
        "alignment": compare(score["fp32"], score["bf16"], num_pool),
        "mean_pas": compare(
            full_N[valid_N],
            half_N[valid_N],
            exact_share(config.attribute.keep, len(score["fp32"])),
        ),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
