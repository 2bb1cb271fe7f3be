"""The commands and the Python of the pages run, on small data with tiny random models, as they are shown.

A block of a page is ```sh (run), ```python (run; saved, where the sentence above it says so) or ```text (what
the block above it prints). A block without a language is only parsed (test_commands.py).
"""

import csv
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from raycomp.cli import main
from raycomp.config import ScorerConfig
from raycomp.config.commands import RAYCOMP, get_program
from raycomp.data.files import resolve
from raycomp.data.samples import write_tar
from tests.conftest import without_ray
from tests.corpus import scenes
from tests.docs.documents import ROOT, find_arguments, list_blocks, list_lines

# Lines of output that depend on neither weights, times nor folders.
_SURE = re.compile(r"^(executor: |kept \d|rule |\d+ samples | *-?\d+  \S)")
_SLURM = ROOT / "docs/howto/slurm.md"


@pytest.fixture(scope="module")
def runner(tiny_scorer: ScorerConfig) -> SimpleNamespace:
    """What runs a page in the current folder: with tiny models, and ``replace`` for what a reader has."""
    options = {
        "curate": {"scorer.model": tiny_scorer.model, "scorer.weights": "random:0"},
        "train": {
            "model.name": tiny_scorer.model,
            "model.weights": "random:0",
            "train.steps": 2,
            "train.batch_size": 4,
        },
        "evaluate": {"model.name": tiny_scorer.model, "benchmarks": "retrieval", "retrieval.input": "shards"},
        "continual": {
            "model.name": tiny_scorer.model,
            "model.weights": "random:0",
            "tune.steps": 1,
            "tune.batch_size": 4,
            "head.steps": 1,
            "head.batch_size": 4,
        },
    }

    def run(arguments: list[str]) -> None:
        named = {word.partition("=")[0].removeprefix("--") for word in arguments}
        own = options.get(arguments[0], {}).items()
        sets = [f"--set={path}={value}" for path, value in own if path not in named]
        assert main([*arguments, *sets], get_program(arguments[0]) or RAYCOMP) == 0, arguments

    return SimpleNamespace(run=run)


def run_page(path: Path, run: Callable, replace: Callable = str, read: Callable = lambda: "") -> None:
    """Run the blocks of a page; ``read`` returns what was printed since it was last called."""
    printed = ""
    for language, text, name in list_blocks(path):
        if language == "text":
            shown = [line for line in text.splitlines() if _SURE.match(line)]
            missing = [line for line in shown if line.partition("; report")[0] not in printed]
            assert not missing, printed
            continue
        read()
        if language == "python":
            if name:
                Path(name).write_text(text)
            exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
        for line in list_lines(text) if language == "sh" else []:
            arguments = find_arguments(replace(line))
            if arguments:
                run(arguments)
            else:
                subprocess.run(line, shell=True, check=True)
        printed = read()


@pytest.fixture
def read(capsys) -> Callable[[], str]:
    return lambda: capsys.readouterr().out


def name_uid(line: str, run: str = "out/ten") -> str:
    """Put the uid of a row of the run where the page has UID."""
    if "UID" not in line:
        return line
    return line.replace("UID", pq.read_table(f"{run}/subset/kept.parquet")["uid"][0].as_py())


@pytest.fixture(scope="module")
def ten(tmp_path_factory) -> Path:
    """A folder with ten images, and their captions in a CSV file."""
    folder = tmp_path_factory.mktemp("ten")
    (folder / "photos").mkdir()
    with open(folder / "photos/captions.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "caption"])
        for i, members in enumerate(scenes(10, seed=5)):
            image = next(name for name in members if name in ("jpg", "png"))
            (folder / f"photos/{i}.{image}").write_bytes(members[image])
            rows.writerow([f"{i}.{image}", members["txt"].decode()])
    return folder


def test_the_quickstart_runs_and_prints_what_it_shows(ten, runner, read, monkeypatch):
    monkeypatch.chdir(ten)
    run_page(ROOT / "docs/quickstart.md", runner.run, name_uid, read)
    shutil.rmtree("out/three")
    for page in ("select", "show", "explain"):
        run_page(ROOT / f"docs/commands/{page}.md", runner.run, name_uid, read)


def test_tar_makes_a_shard_of_captions_beside_images(tmp_path, runner, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for i, members in enumerate(scenes(4, seed=5)):
        for name in ("jpg", "png", "txt"):
            if name in members:
                (tmp_path / f"photos/{i}.{name}").write_bytes(members[name])
    page = ROOT / "docs/reference/inputs.md"
    lines = list_lines(next(block.text for block in list_blocks(page) if block.language == "sh"))
    assert any(line.startswith("tar ") for line in lines)
    for line in lines:
        subprocess.run(line, shell=True, check=True)
    runner.run(["curate", "--set", "input=shards", "--out", "out/ten"])
    run = json.loads(Path("out/ten/run.json").read_text())
    assert (run["funnel"]["read"], run["funnel"]["corpus"]) == (4, 4)


@pytest.fixture(scope="module")
def many(tmp_path_factory, runner) -> Iterator[Path]:
    """A folder with a curation, a training and two evaluations."""
    folder = tmp_path_factory.mktemp("many")
    found = scenes(24, seed=6)
    for i, members in enumerate(found):
        members["json"] = json.dumps({"language": ("en", "de")[i % 4 == 3], "license": "CC0"}).encode()
    write_tar(str(folder / "shards/0.tar"), [(f"{i:03d}", members) for i, members in enumerate(found)])
    with pytest.MonkeyPatch.context() as patch, without_ray():
        patch.chdir(folder)
        run_page(ROOT / "docs/howto/columns.md", runner.run)
        for seed, name in enumerate(("clip", "negclip")):
            weights = f"model.weights=random:{seed}"
            runner.run(["evaluate", "--set", weights, "--out", f"out/evaluated/{name}"])
    return folder


def test_rows_are_chosen_by_a_column(many):
    chosen = pq.read_table(many / "out/english.parquet")["uid"].to_pylist()
    scores = pq.read_table(many / "out/curated/scores", columns=["uid", "language"]).to_pylist()
    english = {row["uid"] for row in scores if row["language"] == "en"}
    kept = pq.read_table(many / "out/curated/subset/kept.parquet")["uid"].to_pylist()
    assert chosen == [uid for uid in kept if uid in english] and 0 < len(chosen) < len(kept)
    assert json.loads((many / "out/clip/run.json").read_text())["pairs"] == len(chosen)


def test_rows_are_filtered(many, runner, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shards").symlink_to(many / "shards")
    rows = pq.read_table(many / "out/curated/scores", columns=["uid", "image_sha256"]).to_pylist()
    lines = [f"{row['uid']},{i / 20}" for i, row in enumerate(rows[:20])]
    Path("nsfw.csv").write_text("\n".join(["uid,nsfw", *lines]))
    Path("optout.txt").write_text(rows[0]["image_sha256"])
    run_page(ROOT / "docs/howto/filter.md", runner.run, read=read)
    names = ("large", "safe", "without")
    corpora = [json.loads(Path(f"out/{name}/run.json").read_text())["funnel"]["corpus"] for name in names]
    assert corpora == [18, 10, 23]


def test_near_duplicates_are_dropped(many, runner, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shards").symlink_to(many / "shards")
    run_page(ROOT / "docs/howto/duplicates.md", runner.run, read=read)
    assert {"exact", "perceptual", "semantic"} < {
        *json.loads(Path("out/fewer/run.json").read_text())["near_duplicates"]
    }


def test_samples_are_looked_at(many, runner, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shards").symlink_to(many / "shards")
    runner.run(["curate", "--set", "input=shards", "--set", "attribute.pool=1", "--out", "out/photos"])
    run_page(ROOT / "docs/howto/explore.md", runner.run, read=read)
    assert json.loads(Path("out/pages/run.json").read_text())["funnel"]["kept"] == 24
    assert len(pq.read_table("out/rows.parquet")) == 24


def test_a_data_set_is_audited(many, runner, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shards").symlink_to(many / "shards")
    run_page(ROOT / "docs/howto/audit.md", runner.run, read=read)
    assert json.loads(Path("out/scored/run.json").read_text())["funnel"]["read"] == 24


def test_two_subsets_are_compared(many, runner, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shards").symlink_to(many / "shards")
    run_page(ROOT / "docs/howto/lineage.md", runner.run, read=read)
    assert Path("out/diff/concepts.csv").exists() and Path("out/card/croissant.json").exists()


def test_samples_are_rated(many, runner, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shards").symlink_to(many / "shards")
    Path("ratings.csv").write_text(
        "\n".join(["key,rating", *(f"{i:03d},{1 + 8 * (i % 2)}" for i in range(24))])
    )
    run_page(ROOT / "docs/howto/scorer.md", runner.run, read=read)
    rows = pq.read_table("out/rated/scores").to_pylist()
    above = [row["key"] for row in rows if row["aesthetic"] > 5]
    assert 0 < len(above) < 24 and sum(int(key) % 2 for key in above) > len(above) / 2
    assert json.loads(Path("out/fine/run.json").read_text())["funnel"]["corpus"] == len(above)


def test_test_samples_are_left_out(many, runner, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shards").symlink_to(many / "shards")
    Path("test").mkdir()
    members = scenes(24, seed=6)[0]
    Path("test/a.jpg").write_bytes(next(members[name] for name in members if name in ("jpg", "png")))
    Path("test/captions.jsonl").write_text(json.dumps({"image": "a.jpg", "captions": ["a shape"]}))
    run_page(ROOT / "docs/howto/decontaminate.md", runner.run, read=read)
    assert json.loads(Path("out/clean/run.json").read_text())["funnel"]["dropped"]["contaminated"] >= 1


def test_from_a_csv_to_a_trained_model(runner, read, tmp_path, monkeypatch):
    """Of forty scenes two are in the test set, two are copies, ten are unsafe; one opts out."""
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    Path("test").mkdir()
    lines: list[list[object]] = [["file_name", "caption", "nsfw", "source"]]
    images = []
    for i, members in enumerate(scenes(40, seed=8)):
        images.append(next(members[name] for name in members if name in ("jpg", "png")))
        Path(f"photos/{i}.png").write_bytes(images[1 if i in (10, 11) else i])
        lines.append([f"{i}.png", members["txt"].decode(), 0.9 if i >= 30 else 0.1, "ab"[i % 3 == 0]])
    with open("photos/pairs.csv", "w", newline="") as file:
        csv.writer(file).writerows(lines)
    for i in (20, 21):
        Path(f"test/{i}.png").write_bytes(images[i])
    rows = [json.dumps({"image": f"{i}.png", "captions": ["a shape"]}) for i in (20, 21)]
    Path("test/captions.jsonl").write_text("\n".join(rows))
    Path("optout.txt").write_text(hashlib.sha256(images[5]).hexdigest())
    run_page(ROOT / "docs/howto/afternoon.md", runner.run, read=read)
    dropped = json.loads(Path("out/scored/run.json").read_text())["funnel"]["dropped"]
    assert dropped["filtered"] == 10 and dropped["contaminated"] >= 2 and dropped["near_duplicate"] >= 2
    assert json.loads(Path("out/without/run.json").read_text())["funnel"]["dropped"]["excluded"] == 1
    assert json.loads(Path("out/tested/run.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("page", ["howto/rule", "howto/loss", "commands/publish", "commands/compare"])
def test_a_page_runs(page, many, runner, read, tmp_path, monkeypatch):
    """Each on its own copy of what the pages share."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    for name in ("shards", "out/curated", "out/evaluated", *(["out/clip"] if "publish" in page else [])):
        (tmp_path / name).symlink_to(many / name)
    run_page(ROOT / f"docs/{page}.md", runner.run, read=read)


def test_data_on_s3(many, runner, bucket, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store, path = resolve(f"{bucket}/pool/0.tar")
    with store.open_output_stream(path) as file:
        file.write((many / "shards/0.tar").read_bytes())
    run_page(ROOT / "docs/howto/s3.md", runner.run, lambda line: line.replace("s3://my-bucket", bucket), read)


def test_code_of_ones_own_runs(runner, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs/howto/own.md"
    found = scenes(8, seed=7)
    for i, members in enumerate(found):
        Path(f"{i}.png").write_bytes(next(members[name] for name in members if name in ("jpg", "png")))
    rows = [{"image": f"{i}.png", "caption": "a shape", "wrong": f"{i} shapes"} for i in range(8)]
    Path("counting.jsonl").write_text("\n".join(map(json.dumps, rows)))
    halves = [("train", "test")[i % 2] for i in range(8)]
    dishes = [{"photo": f"{i}.png", "dish": f"soup {i // 2}", "split": half} for i, half in enumerate(halves)]
    Path("dishes.json").write_text(json.dumps(dishes))
    blocks = list_blocks(page)
    Path("stream.json").write_text(next(block.text for block in blocks if block.language == "json"))
    Path("my_layout.py").write_text(next(block.text for block in blocks if block.name == "my_layout.py"))
    run_page(page, runner.run, lambda line: line.replace(" out/clip", " random:0"), read)
    assert len(pq.read_table("out/counted/scores/counting.parquet")) == 8
    assert Path("out/anchored/cells/stream.Anchored-00.json").is_file()


# Commands that need data or weights of others, a GPU or hours; test_commands.py parses them.
_ELSEWHERE = re.compile(
    r"llm\.model[= ]|judge_model|sugarcrepe|datacomp|/coco|jobs/|DIR|/data/benchmarks|stream[= ]|--preset|"
    "out/demo"
)


@pytest.mark.slow
def test_the_commands_of_the_long_pages_run(many, runner, tmp_path, monkeypatch):
    """In the order of the pipeline, each as it is shown, on small data with a tiny model."""
    monkeypatch.chdir(tmp_path)
    for folder in ("data/cc3m", "data/pool", "s3/bucket/pool"):
        Path(folder).mkdir(parents=True)
        shutil.copy(many / "shards/0.tar", f"{folder}/00000.tar")

    def place(line: str) -> str:
        line = line.replace("{00000..00331}", "{00000..00000}").replace("/data/", "data/")
        line = line.replace("s3://", "s3/").replace("weights openai", "weights random:0")
        line = line.replace("held_out 0.02", "held_out 0.3").replace("images out/after", "images out/cc3m")
        return name_uid(line, "out/cc3m")

    done = 0
    for page in ("curation", "negatives", "training", "probes", "scale"):
        for block in list_blocks(ROOT / f"docs/{page}.md"):
            for line in list_lines(block.text) if block.language in ("", "sh") else []:
                arguments = find_arguments(place(line)) if line.startswith("raycomp ") else None
                if arguments and not _ELSEWHERE.search(line):
                    runner.run(arguments)
                    done += 1
    assert done >= 12


@pytest.mark.slow
def test_the_experiments_run(runner, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / "docs/commands/studies.md", runner.run, read=read)


def test_the_slurm_script_is_one(tmp_path):
    """Bash reads it, and every node gets the cluster's address."""
    script = next(block.text for block in list_blocks(_SLURM) if block.language == "bash")
    subprocess.run(["bash", "-n"], input=script.encode(), check=True)
    command = next(line for line in list_lines(script) if "symmetric-run" in line)
    assert "ray symmetric-run --address" in command and " -- python -m raycomp " in re.sub(
        r"\s+", " ", command
    )
    arguments = find_arguments(command)
    assert arguments and arguments[arguments.index("--cluster.address") + 1] == "$ip:6379"
