"""What an update costs, against a run from scratch.

    python -m bench.update stored [--rows 100000] [--folder DIR]
    python -m bench.update scenes [--rows 10000] [--layers 2] [--width 64]
    python -m bench.update removal [--rows 1000000 3000000 10000000]

stored: captions of rendered scenes with stored embeddings; scenes: rendered scenes. Both are scored by a
small model with random weights, which makes the whole cheap, so the share of an update large.
Each is curated, 1 % new rows are added as a shard of their own, then the run is updated, and curated from
scratch into another folder; all files of the two must be equal. removal: scores of random rows are generated
with captions of forty letters and embeddings of one number, as those of a finished curation; a list of 1,000
uids is then removed from it. All on the local executor with two threads. Writes bench/results/update_*.csv;
the last line is one JSON object. Goals: at most 5 % of the whole time; removal by the slope of three sizes.
"""

import argparse
import csv
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.selector import peak_mb
from lab.worlds.captions import TEMPLATES, describe
from lab.worlds.samples import world_shards
from lab.worlds.scenes import draw_scene
from raycomp.config import ClusterConfig, override_all
from raycomp.core.selection import format_uids
from raycomp.curation import command
from raycomp.curation.command import curate
from raycomp.curation.config import CurateConfig
from raycomp.curation.score.reuse import SHARDS, STATE
from raycomp.curation.score.score import state_schema
from raycomp.curation.select.filters import list_shards
from raycomp.curation.select.measures import ScoresFile
from raycomp.curation.update import update
from raycomp.data.files import Folder
from raycomp.data.inputs import describe_shards
from raycomp.data.parquet import aligned_schema, scores_schema, write_table
from raycomp.data.samples import write_tar
from raycomp.run.executor import connect
from raycomp.run.run import start_run

SCHEMA = scores_schema(aligned_schema(1, "float16"))
_INPUT = pa.schema([("uid", pa.string()), ("caption", pa.string()), ("image", pa.binary())])
BY_MEAN = {
    "attribute.aggregate": "mean", "attribute.unit": "drop", "attribute.targets": "showable",
    "select.rule": "cpi", "attribute.pool": 1.0, "materialize": False,
}  # fmt: skip
PER_FILE, NUM_REMOVED = 100_000, 1000
OUTPUTS = ("scores", "subset", "shards", "metadata", "marks")
DIM = 32


def write_tiny(folder: Path, dim: int = DIM, layers: int = 2, width: int = 64) -> str:
    """Write the config of a small model; return its path. The image tower has half the layers."""
    vision = {"image_size": 32, "layers": layers // 2, "width": width, "head_width": 32, "patch_size": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": width, "heads": width // 32, "layers": layers}
    path = folder / "tiny.json"
    path.write_text(json.dumps({"embed_dim": dim, "vision_cfg": vision, "text_cfg": text}))
    return str(path)


def write_stored(folder: Path, name: str, num: int, seed: int) -> None:
    """Write captions of scenes with random embeddings in DataComp's layout."""
    rng = np.random.default_rng(seed)
    uids = [f"{one:032x}" for one in np.arange(num) + seed * 10**7]
    texts = [describe(draw_scene(rng), int(rng.integers(len(TEMPLATES)))) for _ in range(num)]
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({"uid": uids, "url": ["http://x"] * num, "text": texts}), folder / f"{name}.parquet"
    )
    np.savez(folder / f"{name}.npz", b32_img=rng.normal(size=(num, DIM)).astype(np.float16))


def write_scenes(folder: Path, name: str, num: int, seed: int) -> None:
    """Write rendered scenes as a tar."""
    samples = [one for _, part in world_shards(num, 0, seed, per_shard=num) for one in part]
    write_tar(str(folder / f"{name}.tar"), iter(samples))


def read_all(folder: Path) -> dict[str, bytes]:
    paths = [path for name in OUTPUTS for path in (folder / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def time_it(step: Callable[[], Any]) -> float:
    started = time.perf_counter()
    step()
    return round(time.perf_counter() - started, 1)


def measure_added(
    place: Path,
    config: CurateConfig,
    write: Callable[[Path, str, int, int], None],
    rows: int,
    layers: int,
    width: int,
) -> dict[str, Any]:
    """Curate ``rows``, add 1 %, update, curate from scratch; return the seconds of each."""
    source, run = place / "in", place / "run"
    per_shard = rows // 10
    for shard in range(10):
        write(source, f"{shard:05d}", per_shard, shard + 1)
    first_s = time_it(lambda: curate(config, str(run)))
    write(source, "00010", rows // 100, 11)
    update_s = time_it(lambda: print(update(str(run))))
    whole_s = time_it(lambda: curate(config, str(place / "whole")))
    assert read_all(run) == read_all(place / "whole"), "the update differs from a run from scratch"
    seconds = {"first_s": first_s, "whole_s": whole_s, "update_s": update_s}
    facts = {"rows": rows, "layers": layers, "width": width, "added": rows // 100}
    return facts | seconds | {"share": round(update_s / whole_s, 4)}


def make_rows(ordinal: int, source: Folder, out: Folder) -> None:
    """Write the captions of a shard, its scores and its state."""
    rng, name, num = np.random.default_rng([1, ordinal]), f"{ordinal:05d}.parquet", PER_FILE
    uids = pa.array(format_uids(rng.integers(0, 2**64, (num, 2), dtype=np.uint64)))
    captions = pa.repeat("a caption of some forty letters of a photo", num)
    images = pa.nulls(num, pa.binary())
    write_table(pa.table([uids, captions, images], schema=_INPUT), source.at(name), _INPUT)
    columns = {
        "uid": uids,
        "shard": pa.repeat(name, num),
        "position": pa.array(np.arange(num, dtype=np.int32)),
        "caption": captions,
        "status": pa.repeat("ok", num),
        "alignment": pa.array(rng.normal(0.25, 0.05, num).astype(np.float32)),
        "mean_pas": pa.array(rng.normal(0.02, 0.02, num).astype(np.float32)),
        "phrases": pa.array([[]] * num, SCHEMA.field("phrases").type),
        "image_embedding": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(num, np.float16)), 1),
    }
    empty = {field.name: pa.nulls(num, field.type) for field in SCHEMA if field.name not in columns}
    table = pa.table({name: {**empty, **columns}[name] for name in SCHEMA.names})
    write_table(table, out.at("scores", name), SCHEMA)
    state = state_schema(SCHEMA)
    known = {field.name: pa.nulls(num, field.type) for field in state}
    write_table(pa.table(known), out.at(STATE, name), state)


def make_run(config: CurateConfig, out: str, rows: int) -> None:
    """Write a finished curation of generated rows into ``out``."""
    source = Folder(config.input)
    for ordinal in range(rows // PER_FILE):
        make_rows(ordinal, source, Folder(f"{out}-made"))
    shards = list_shards(config)
    with (
        start_run("curate", config, partial(command._fingerprint, config, shards), out) as run,
        connect(config.cluster, run.folder, run.lease.check),
    ):
        run.bind("cpu")
        for name in ("scores", STATE):
            os.rename(f"{out}-made/{name}", run.folder.at(name))
        run.folder.write_json(describe_shards(shards), STATE, SHARDS)
        scores = [run.folder.at("scores", f"{shard.ordinal:05d}.parquet") for shard in shards]
        files = [ScoresFile(uri) for uri in scores]
        sections = {"scores": run.folder.at("scores")}
        command._choose(run, config, command.Scored(files, shards, {"ok": rows}, sections), print)


def measure_removed(place: Path, config: CurateConfig, rows: int) -> dict[str, Any]:
    """Remove 1,000 uids from a finished curation; return the seconds, and what the process grew by."""
    run = place / "run"
    make_run(config, str(run), rows)
    uids = [
        uid for shard in list_shards(config) for uid in pq.read_table(shard.uri)["uid"].to_pylist()[:1000]
    ]
    listed = place / "removed.txt"
    listed.write_text("\n".join(uids[:: len(uids) // NUM_REMOVED][:NUM_REMOVED]))
    before, cpu_s = peak_mb(), time.process_time()
    seconds = time_it(lambda: print(update(str(run), remove=str(listed))))
    return {
        "rows": rows,
        "removed": NUM_REMOVED,
        "update_s": seconds,
        "cpu_s": round(time.process_time() - cpu_s, 1),
        "grew_mb": round(peak_mb() - before),
    }


def main() -> None:
    """Measure one of the three."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("stored", "scenes", "removal"))
    parser.add_argument("--rows", type=int, nargs="+")
    parser.add_argument("--layers", type=int, default=2, help="of the text tower; the image tower has half")
    parser.add_argument("--width", type=int, default=64, help="of both towers, a multiple of 32")
    parser.add_argument("--folder", help="where the temporary folder is made")
    args = parser.parse_args()
    cluster = ClusterConfig(executor="local", num_cpus=2)
    found = []
    for rows in (
        args.rows
        or {"stored": [100_000], "scenes": [10_000], "removal": [10**6, 3 * 10**6, 10**7]}[args.what]
    ):
        with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
            place = Path(temporary)
            config = CurateConfig(input=str(place / "in"), cluster=cluster)
            tiny = {
                "scorer.model": write_tiny(place, DIM, args.layers, args.width),
                "scorer.weights": "random:0",
            }
            if args.what == "stored":
                config = override_all(config, tiny | {"prepare.stored_embeddings": "b32_img"})
                found.append(measure_added(place, config, write_stored, rows, args.layers, args.width))
            elif args.what == "scenes":
                config = override_all(config, tiny)
                found.append(measure_added(place, config, write_scenes, rows, args.layers, args.width))
            else:
                tiny["scorer.model"] = write_tiny(place, dim=1)
                mean = {
                    "attribute.aggregate": "mean",
                    "attribute.unit": "drop",
                    "attribute.targets": "showable",
                }
                rule = {"select.rule": "cpi", "attribute.pool": 1.0, "materialize": False}
                found.append(measure_removed(place, override_all(config, tiny | mean | rule), rows))
            print(found[-1], flush=True)
    path = Path(__file__).parent / "results" / f"update_{args.what}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, found[0])
        writer.writeheader()
        writer.writerows(found)
    print(json.dumps({"bench": "update", "what": args.what, "rows": found}))


if __name__ == "__main__":
    main()
