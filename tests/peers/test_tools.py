"""Other people's tools on what raycomp wrote: as many samples, and the same numbers.

Each tool is installed in an environment of its own, which sees the project's packages, so that torch is not
installed again.
"""

import csv
import json
import os
import re
import site
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.cli import main
from raycomp.data.samples import write_tar
from raycomp.negatives.config import NegativesConfig, WritingConfig
from tests.corpus import scenes

# The trainer knows the architectures of its own package, and of folders that are added.
OPEN_CLIP = """
import sys, open_clip
open_clip.add_model_config(sys.argv[1])
from open_clip_train.main import main
main(sys.argv[2:])
"""
HUGGING_FACE = """
import json, sys
from datasets import load_dataset
pairs = load_dataset(sys.argv[1], split="train")
table = load_dataset(sys.argv[1], data_files="subset/kept.parquet", split="train")
names = [name for name in pairs.column_names if name in ("jpg", "png")]
lost = [name for name in names for image in pairs[name] if image is None]
print(json.dumps([[row["uid"] for row in pairs["json"]], list(table["uid"]), names, len(lost)]))
"""
CROISSANT = """
import json, sys
import mlcroissant
data = mlcroissant.Dataset(jsonld=sys.argv[1] + "/croissant.json")
print(json.dumps([row["rows/uid"].decode() for row in data.records("rows")]))
"""
WEBDATASET = """
import json, sys
import webdataset
keys = [sample["__key__"] for sample in webdataset.WebDataset(sys.argv[1:], shardshuffle=False)]
print(json.dumps(keys))
"""


@pytest.fixture(scope="module")
def install(tmp_path_factory) -> Callable[[str], Callable[..., str]]:
    """A function that installs packages in an environment of their own, and returns its Python."""

    def make(packages: str) -> Callable[..., str]:
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, symlinks=True)
        (own,) = folder.glob("lib/python*/site-packages")
        (own / "project.pth").write_text("\n".join(site.getsitepackages()))
        python = str(folder / "bin/python")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", *packages.split()]
        subprocess.run(pip, check=True, timeout=900)

        def run(*words: object, **options) -> str:
            environment = {**os.environ, "HF_HOME": str(folder / "hf"), "CUDA_VISIBLE_DEVICES": ""}
            done = subprocess.run(
                [python, *map(str, words)],
                capture_output=True,
                text=True,
                timeout=600,
                env=environment,
                **options,
            )
            assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
            return done.stdout + done.stderr

        return run

    return make


@pytest.fixture(scope="module")
def source(curated, tmp_path_factory) -> Path:
    """A selection with its card, written as one image format."""
    folder = tmp_path_factory.mktemp("peers") / "selected"
    raycomp.select(str(curated[1]), {"shard_images": "png"}, str(folder))
    assert main(["card", str(folder), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def uids(source) -> list[str]:
    return pq.read_table(source / "subset/kept.parquet")["uid"].to_pylist()


def last_json(said: str) -> list:
    return json.loads(next(line for line in reversed(said.splitlines()) if line.startswith("[")))


def test_hugging_face_loads_the_card_and_its_table(install, source, uids):
    of_shards, of_table, names, lost = last_json(install("datasets")("-c", HUGGING_FACE, source))
    assert of_shards == of_table == uids and names == ["png"] and lost == 0


def test_mlcroissant_reads_the_rows(install, source, uids):
    assert last_json(install("mlcroissant")("-c", CROISSANT, source)) == uids


def test_webdataset_reads_every_sample(install, source, uids):
    shards = sorted(map(str, source.glob("shards/*.tar")))
    assert last_json(install("webdataset")("-c", WEBDATASET, *shards)) == [f"{uid}-0" for uid in uids]


def test_open_clip_trains_on_all_samples_of_curated_shards_and_of_negatives(
    install, source, uids, tiny_scorer, tmp_path
):
    writing = WritingConfig(rank=False, materialize=True)
    raycomp.negatives(NegativesConfig(input=str(source), negatives=writing), str(tmp_path / "negatives"))
    (tmp_path / "models").mkdir()
    (tmp_path / "models/tiny.json").write_text(Path(tiny_scorer.model).read_text())
    run = install("open_clip_torch[training]")
    batch = -(-len(uids) // 2)  # two steps; open_clip fills the last batch
    for folder in (source, tmp_path / "negatives"):
        (tar,) = folder.glob("shards/*.tar")
        options = (
            f"--train-data {tar} --dataset-type webdataset --model tiny --batch-size {batch} --epochs 1 "
        )
        options += f"--workers 1 --device cpu --precision fp32 --warmup 1 --logs {tmp_path}/{folder.name}"
        said = run("-c", OPEN_CLIP, tmp_path / "models", *options.split())
        steps = re.findall(r"Train Epoch: 0 \[ *\d+/(\d+).* Loss: ([\d.]+)", said)
        assert {int(number) for number, _ in steps} == {2 * batch}, said[-2000:]
        assert all(0.5 < float(loss) < 10 for _, loss in steps)


def test_clip_benchmark_and_evaluate_agree(install, source, tiny_scorer, tmp_path):
    options = "--loss clip --train.steps 2 --train.batch_size 8 --executor local"
    trained = [
        "train",
        str(source),
        "--model",
        tiny_scorer.model,
        *options.split(),
        "--out",
        str(tmp_path / "trained"),
    ]
    assert main(trained) == 0
    assert main(["publish", str(tmp_path / "trained"), "--out", str(tmp_path / "model")]) == 0
    unique = {sample["txt"]: sample for sample in scenes(60, 5)}
    data = tmp_path / "data/test"
    write_tar(str(data / "0.tar"), ((f"{i:04d}", one) for i, one in enumerate(unique.values())))
    (data / "nshards.txt").write_text("1")
    (data.parent / "dataset_type.txt").write_text("retrieval")
    words = (
        f"-m clip_benchmark.cli eval --dataset wds/own --dataset_root {data.parent} --no_amp --num_workers 0 "
    )
    words += f"--task zeroshot_retrieval --recall_k 1 5 10 --model local-dir:{tmp_path}/model "
    install("clip-benchmark")(*words.split(), "--pretrained", "", "--output", tmp_path / "theirs.json")
    theirs = json.loads((tmp_path / "theirs.json").read_text())["metrics"]
    options = (
        f"--benchmarks retrieval --retrieval.input {data} --model.weights {tmp_path}/trained --executor local"
    )
    assert main(["evaluate", *options.split(), "--out", str(tmp_path / "ours")]) == 0
    with open(tmp_path / "ours/table.csv", newline="") as file:
        ours = {row["metric"]: float(row["value"]) for row in csv.DictReader(file) if row["metric"] in theirs}
    assert ours == pytest.approx(theirs, abs=1e-6) and len(ours) == 6
