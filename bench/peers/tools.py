"""Three tools that align the same pairs: raycomp's stages in a loop, clip-retrieval, Data-Juicer.

Each ``run_*`` does the whole work in processes of its own and returns a function that reads the cosines, by
key: reading is not timed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.peers.weights import COMPARE
from raycomp.config import ScorerConfig
from raycomp.curation.config import PrepareConfig
from raycomp.curation.score.stages import Align, prepare
from raycomp.data.inputs import expand_input
from raycomp.data.reader import read_shard
from raycomp.models.architecture import describe_scorer
from raycomp.words import ALIGNMENT, KEY, OK, STATUS

MODEL = "ViT-B-32"
BLOCK_ROWS = 64
LONGEST_CALL_S = 1800
# What installs and runs together, each pin also overriding what other packages ask for: all-clip imports
# OpenAI's clip, which needs the pkg_resources of an older setuptools than torch wants. Data-Juicer's extra
# names this transformers.
PINS = {
    "clip-retrieval": "clip-retrieval==2.45.0 all-clip==1.3.0 open-clip-torch==2.32.0 transformers==4.57.6 "
    "webdataset==0.2.111 setuptools==69.5.1 torch==2.13.0 torchvision==0.28.0",
    "data-juicer": "py-data-juicer==1.6.1 datasets==5.0.1 transformers==4.57.1 torch==2.13.0 "
    "torchvision==0.28.0",
}
CLIP_RETRIEVAL_OPTIONS = {"batch_size": 64, "num_prepro_workers": 1}

Cosines = dict[str, float]


@dataclass(frozen=True)
class Place:
    """Where a tool finds its environment, weights and pairs, and where it may write."""

    env: Path
    weights: Path
    pairs: Path
    out: Path


def align_all(weights: Path, shards: Path) -> Cosines:
    """Align every pair in this process, as bench/pipeline.py's loop does."""
    scorer = ScorerConfig(model=MODEL, weights=str(weights))
    spec = describe_scorer(scorer)
    align = Align(scorer, spec)
    cosines: Cosines = {}
    for shard in expand_input(str(shards)):
        for block in read_shard(shard, BLOCK_ROWS):
            table = align(prepare(block, scorer, spec, PrepareConfig().max_pixels))
            assert set(table[STATUS].to_pylist()) == {OK}
            cosines.update(zip(table[KEY].to_pylist(), table[ALIGNMENT].to_pylist(), strict=True))
    return cosines


def run_raycomp(place: Place) -> Callable[[], Cosines]:
    """Align in a process that has imported nothing yet."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        cosines = pool.submit(align_all, place.weights / "weights.pt", place.pairs / "tars").result()
    return lambda: cosines


def run_clip_retrieval(place: Place) -> Callable[[], Cosines]:
    """Embed tars. What follows the first slash of ``clip_model`` goes to open_clip as it is: here a path."""
    tars = sorted(map(str, (place.pairs / "tars").glob("*.tar")))
    options = {
        "input_dataset": f"{{{','.join(tars)}}}" if len(tars) > 1 else tars[0],
        "output_folder": place.out,
        "input_format": "webdataset",
        "clip_model": f"open_clip:{MODEL}/{place.weights / 'weights.pt'}",
        **CLIP_RETRIEVAL_OPTIONS,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    call([place.env / "bin/clip-retrieval", "inference", *arguments], place.out)

    def read() -> Cosines:
        keys = pq.read_table(place.out / "metadata/metadata_0.parquet")["image_path"].to_pylist()
        files = [place.out / f"{tower}_emb/{tower}_emb_0.npy" for tower in ("img", "text")]
        image_ND, text_ND = (np.load(file).astype(np.float32) for file in files)
        return dict(zip(keys, (image_ND * text_ND).sum(1).tolist(), strict=True))

    return read


def run_data_juicer(place: Place) -> Callable[[], Cosines]:
    """Filter photos by a range that keeps all; a row's score is exported with its stats."""
    operator = {"hf_clip": str(place.weights / "clip"), "min_score": -1.0, "max_score": 1.0}
    config = {
        "dataset_path": str(place.pairs / "photos/pairs.jsonl"),
        "export_path": str(place.out / "kept.jsonl"),
        "np": os.cpu_count(),
        "keep_stats_in_res_ds": True,
        "use_cache": False,
        "process": [{"image_text_similarity_filter": operator}],
    }
    (place.out / "config.yaml").write_text(json.dumps(config))
    call([place.env / "bin/dj-process", "--config", place.out / "config.yaml"], place.out)

    def read() -> Cosines:
        rows = map(json.loads, (place.out / "kept.jsonl").read_text("utf-8").splitlines())
        return {row["key"]: row["__dj__stats__"]["image_text_similarity"][0] for row in rows}

    return read


TOOLS = {"raycomp": run_raycomp, "clip-retrieval": run_clip_retrieval, "data-juicer": run_data_juicer}


def install(name: str, env: Path, weights: Path) -> None:
    """Make a peer's environment if there is none, see that it holds what is pinned, and that it can embed.

    Raises RuntimeError too where the weights converted for it are another model.
    """
    env.mkdir(parents=True, exist_ok=True)
    uv = [sys.executable, "-m", "uv"]
    if not (env / "bin/python").exists():
        call([*uv, "venv", "--python", sys.executable, "--allow-existing", env], env)
    pins = env / "pins.txt"
    pins.write_text(PINS[name].replace(" ", "\n"))
    call([*uv, "pip", "install", "--python", env / "bin/python", "-r", pins, "--overrides", pins], env)
    if name == "data-juicer":
        call([env / "bin/python", "-c", COMPARE, weights], env)


def call(command: list[Any], folder: Path) -> None:
    """Run a command, with what it caches and logs in ``folder``. Raises RuntimeError with its last line."""
    cache = dict.fromkeys(("HF_HOME", "DATA_JUICER_CACHE_HOME"), str(folder / "cache"))
    log = folder / "log.txt"
    with log.open("wb") as output:
        done = subprocess.run(
            [str(part) for part in command],
            env={**os.environ, **cache, "HF_HUB_OFFLINE": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=LONGEST_CALL_S,
        )
    if done.returncode:
        said = log.read_text("utf-8", "replace").strip() or f"exit code {done.returncode}"
        raise RuntimeError(said.rsplit("\n", 1)[-1])
