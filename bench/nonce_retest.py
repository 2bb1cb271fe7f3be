"""How well mean PAS repeats when other nonces are drawn, by the number of nonces per target; and the price.

    python -m bench.nonce_retest --set input=out/demo/world/curate \\
        --set scorer.model=out/demo/scorer/model.json --set scorer.weights=out/demo/scorer/model.safetensors
    python -m bench.nonce_retest --train ../shared out/flickr    # then --set input=out/flickr/train and so on

Every option of a curation may be set. The pool of the first gate is attributed once with 16 nonces per
target, or as many as there are; two disjoint sets of k of them then give two scores of every sample. Printed
for each k: the correlation of the two (``core.reliability``), what Spearman-Brown predicts for k from k = 1,
with 95 % intervals over samples (the captions of a photo drawn together), which share of one half's kept set
the other keeps, and texts and CPU seconds of the text tower on the first rows. One-token pools hold no 16
nonces, so the halves of 8 are what there is.

The rule by which an earlier default of attribute.nonces was chosen: the smallest of 1, 2 and 4 whose observed
reliability is at least 0.9 of what Spearman-Brown predicts for 8, in every set scored by a trained scorer; 4
where none is. The default is the paper's 1 now.

``--train`` writes a TINY_CLIP trained on the 4,000 caption and photo pairs of flickr8k_800 and these pairs as
shards: a small model trained on the very captions, whose scores are for this question alone. With random
weights the reliability is that of a random function. Last line one JSON object.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.pipeline import CAPTIONS_PER_CALL
from bench.precision import align_all
from lab.worlds.shards import FIT, World
from lab.worlds.tiny_clip import train_scorer
from raycomp.config import exact_share, override_all
from raycomp.core.reliability import measure_retest, spearman_brown, split_variance
from raycomp.curation.config import CurateConfig
from raycomp.curation.score.stages import Attribute, parse
from raycomp.data.samples import write_tar
from raycomp.words import ALIGNMENT, IMAGE_SHA256, PHRASES, UID

DRAWN = 16
COUNTS = (1, 2, 4, 8)
COST_ROWS = 256
ENOUGH = 0.9


def find_pool(config: CurateConfig) -> pa.Table:
    """Return the rows that pass the first gate."""
    table = align_all(config)
    order = np.lexsort((table[UID].to_numpy(), -table[ALIGNMENT].to_numpy()))
    return table.take(pa.array(np.sort(order[: exact_share(config.pool, len(table))])))


def attribute_pool(config: CurateConfig, pool: pa.Table, attribute: Attribute) -> tuple[pa.Table, float]:
    """Return the pool with drops, and the CPU seconds of the text tower."""
    parts, seconds = [], 0.0
    for start in range(0, len(pool), CAPTIONS_PER_CALL):
        part = pool.slice(start, CAPTIONS_PER_CALL)
        part = parse(part, config.parser, config.nonce, config.attribute, config.scorer)
        started = time.process_time()
        parts.append(attribute(part))
        seconds += time.process_time() - started
    return pa.concat_tables(parts), seconds


def take_drops(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return drops (P, 16), NaN where there is no nonce, and the offsets of samples' phrases (E)."""
    drops = [[phrase["drops"] for phrase in phrases] for phrases in table[PHRASES].to_pylist()]
    flat = [several for group in drops for several in group]
    drop_PT = np.full((len(flat), DRAWN), np.nan)
    for row, several in zip(drop_PT, flat, strict=True):
        row[: len(several)] = several
    return drop_PT, np.cumsum([0, *map(len, drops)])


def count_texts(table: pa.Table) -> int:
    return int((~np.isnan(take_drops(table)[0])).sum())


def measure(config: CurateConfig, num_draws: int) -> dict[str, object]:
    """Return everything about one set."""
    pool, attribute = find_pool(config), Attribute(config.scorer)
    with_nonces = {
        count: replace(config, attribute=replace(config.attribute, nonces=count))
        for count in (DRAWN, *COUNTS)
    }
    table, _ = attribute_pool(with_nonces[DRAWN], pool, attribute)
    drop_PT, offset_E = take_drops(table)
    keep = config.attribute.keep / config.pool
    group_B = table[IMAGE_SHA256].to_numpy()
    rng = np.random.default_rng(0)
    results = measure_retest(drop_PT, offset_E, COUNTS, keep, group_B, rng, num_draws)
    between, within = split_variance(drop_PT)
    rows = []
    for found in results:
        part, seconds = attribute_pool(with_nonces[found.count], pool.slice(0, COST_ROWS), attribute)
        in_half = np.minimum(found.count, (~np.isnan(drop_PT)).sum(axis=1) / 2).mean()
        cost = {"texts": count_texts(part), "text_s": round(seconds, 2)}
        rows.append({**asdict(found), "nonces_in_half": round(float(in_half), 2), **cost})
    best = spearman_brown(results[0].reliability[0], 8)
    enough = [found.count for found in results if found.reliability[0] >= ENOUGH * best]
    return {
        "pool": len(pool),
        "phrases": len(drop_PT),
        "chance": keep,
        "sd_of_phrases": between,
        "sd_of_nonces": within,
        "predicted_of_8": best,
        "smallest_enough": min(enough, default=None),
        "counts": rows,
    }


def write_pairs(shared: Path, captions: slice) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield every photo of flickr8k_800 with each of these of its captions."""
    folder = shared / "data" / "flickr8k_800"
    for i, line in enumerate((folder / "captions.jsonl").read_text("utf-8").splitlines()):
        row = json.loads(line)
        data = (folder / "images" / row["image"]).read_bytes()
        for j, caption in enumerate(row["captions"][captions]):
            fields = json.dumps({"caption": caption}).encode()
            yield f"{i:06d}{j:03d}", {"jpg": data, "txt": caption.encode(), "json": fields}


def train(shared: Path, out: Path, steps: int) -> None:
    """Train TINY_CLIP on all pairs; its retrieval is among the first captions, which it has seen."""
    world = World(*(str(out / part) for part in ("train", "none", "seen")))
    write_tar(str(Path(world.train) / "00000.tar"), write_pairs(shared, slice(None)))
    write_tar(str(Path(world.held_out) / "00000.tar"), write_pairs(shared, slice(1)))
    trained = train_scorer(world, out / "scorer", seed=0, config=replace(FIT, steps=steps))
    print(json.dumps({**asdict(trained), "losses": trained.losses[:: max(steps // 10, 1)]}))


def main() -> None:
    """Train where asked to, else measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", action="append", default=[], metavar="A.B=VALUE", dest="changes")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--train", type=Path, nargs=2, metavar=("SHARED", "OUT"))
    parser.add_argument("--steps", type=int, default=1500)
    args = parser.parse_args()
    if args.train:
        train(*args.train, args.steps)
        return
    config = override_all(CurateConfig(), dict(text.split("=", 1) for text in args.changes))
    print(json.dumps({"bench": "nonce_retest", "input": config.input, **measure(config, args.draws)}))


if __name__ == "__main__":
    main()
