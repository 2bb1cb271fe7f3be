"""The commands and the Python of the pages run, on small data with tiny random models, as they are shown.

A block of a page is ```sh (run), ```python (run; saved, where the sentence above it says so) or ```text (what
the block above it prints). A block without a language is only parsed (test_commands.py).
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.cli import main
from raycomp.config import ScorerConfig
from raycomp.config.commands import RAYCOMP, get_program
from raycomp.data.files import resolve
from raycomp.data.samples import find_image, write_tar
from raycomp.models.clip import Clip, load_tokenizer
from tests.conftest import without_ray
from tests.corpus import scenes
from tests.docs.documents import ROOT, find_arguments, list_blocks, list_lines

# Lines of output that depend on neither weights, times nor folders.
_SURE = re.compile(r"^(executor: |kept \d|rule |\d+ samples | *-?\d+  \S)")


@pytest.fixture(scope="module")
def run(tiny_scorer: ScorerConfig) -> Callable[[list[str]], None]:
    """What runs a command of a page in the current folder, with tiny models."""
    model = {"model.name": tiny_scorer.model, "model.weights": "random:0"}
    tune = {"tune.steps": 1, "tune.batch_size": 4, "head.steps": 1, "head.batch_size": 4}
    options = {
        "curate": {"scorer.model": tiny_scorer.model, "scorer.weights": "random:0"},
        "train": {**model, "train.steps": 2, "train.batch_size": 4},
        "evaluate": {"model.name": tiny_scorer.model, "benchmarks": "retrieval", "retrieval.input": "shards"},
        "continual": {**model, **tune},
    }

    def run(arguments: list[str]) -> None:
        named = {word.partition("=")[0].removeprefix("--") for word in arguments}
        own = options.get(arguments[0], {}).items()
        sets = [f"--set={path}={value}" for path, value in own if path not in named]
        assert main([*arguments, *sets], get_program(arguments[0]) or RAYCOMP) == 0, arguments

    return run


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
def page(run, tmp_path, monkeypatch, capsys) -> Callable[..., None]:
    """What runs a page by its name, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)

    def run_it(name: str, replace: Callable = str) -> None:
        run_page(ROOT / f"docs/{name}.md", run, replace, lambda: capsys.readouterr().out)

    return run_it


@pytest.fixture
def shards(many, page) -> None:
    """The shards that the pages share, in the current folder."""
    Path("shards").symlink_to(many / "shards")


def read_run(name: str, part: str = "funnel") -> dict:
    return json.loads(Path(f"out/{name}/run.json").read_text())[part]


def write_image(path: str | Path, members: dict[str, bytes]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(members[find_image(members)])


def name_uid(line: str, run: str = "out/ten") -> str:
    """Put the uid of a row of the run where the page has UID."""
    if "UID" not in line:
        return line
    return line.replace("UID", pq.read_table(f"{run}/subset/kept.parquet")["uid"][0].as_py())


def test_the_quickstart_runs_and_prints_what_it_shows(page):
    lines = ["file,caption"]
    for i, members in enumerate(scenes(10, seed=5)):
        write_image(f"photos/{i}.png", members)
        lines.append(f'{i}.png,"{members["txt"].decode()}"')
    Path("photos/captions.csv").write_text("\n".join(lines))
    page("quickstart", name_uid)
    shutil.rmtree("out/three")
    for name in ("select", "show", "explain"):
        page(f"commands/{name}", name_uid)


def test_tar_makes_a_shard_of_captions_beside_images(page, run):
    for i, members in enumerate(scenes(4, seed=5)):
        write_image(f"photos/{i}.jpg", members)
        Path(f"photos/{i}.txt").write_bytes(members["txt"])
    blocks = list_blocks(ROOT / "docs/reference/inputs.md")
    lines = list_lines(next(block.text for block in blocks if block.language == "sh"))
    assert any(line.startswith("tar ") for line in lines)
    for line in lines:
        subprocess.run(line, shell=True, check=True)
    run(["curate", "--set", "input=shards", "--out", "out/ten"])
    assert (read_run("ten")["read"], read_run("ten")["corpus"]) == (4, 4)


@pytest.fixture(scope="module")
def many(tmp_path_factory, run) -> Iterator[Path]:
    """A folder with a curation, a training and two evaluations."""
    folder = tmp_path_factory.mktemp("many")
    found = scenes(24, seed=6)
    for i, members in enumerate(found):
        members["json"] = json.dumps({"language": ("en", "de")[i % 4 == 3], "license": "CC0"}).encode()
    write_tar(str(folder / "shards/0.tar"), [(f"{i:03d}", members) for i, members in enumerate(found)])
    with pytest.MonkeyPatch.context() as patch, without_ray():
        patch.chdir(folder)
        run_page(ROOT / "docs/howto/columns.md", run)
        for seed, name in enumerate(("clip", "negclip")):
            weights = f"model.weights=random:{seed}"
            run(["evaluate", "--set", weights, "--out", f"out/evaluated/{name}"])
    return folder


def test_rows_are_chosen_by_a_column(many):
    chosen = pq.read_table(many / "out/english.parquet")["uid"].to_pylist()
    scores = pq.read_table(many / "out/curated/scores", columns=["uid", "language"]).to_pylist()
    english = {row["uid"] for row in scores if row["language"] == "en"}
    kept = pq.read_table(many / "out/curated/subset/kept.parquet")["uid"].to_pylist()
    assert chosen == [uid for uid in kept if uid in english] and 0 < len(chosen) < len(kept)
    assert json.loads((many / "out/clip/run.json").read_text())["pairs"] == len(chosen)


def test_rows_are_filtered(many, shards, page):
    rows = pq.read_table(many / "out/curated/scores", columns=["uid", "image_sha256"]).to_pylist()
    lines = [f"{row['uid']},{i / 20}" for i, row in enumerate(rows[:20])]
    Path("nsfw.csv").write_text("\n".join(["uid,nsfw", *lines]))
    Path("exclude.txt").write_text(rows[0]["image_sha256"])
    page("howto/filter")
    assert [read_run(name)["corpus"] for name in ("large", "safe", "without")] == [18, 10, 23]


def test_samples_are_looked_at_audited_and_freed_of_near_duplicates(shards, page, run):
    run(["curate", "--set", "input=shards", "--set", "attribute.pool=1", "--out", "out/photos"])
    page("howto/explore")
    assert read_run("pages")["kept"] == len(pq.read_table("out/rows.parquet")) == 24
    page("howto/audit")
    assert read_run("scored")["read"] == 24
    shutil.rmtree("out/scored")
    page("howto/duplicates")
    assert {"exact", "perceptual", "semantic"} < {*read_run("fewer", "near_duplicates")}


def test_two_subsets_are_compared(shards, page):
    page("howto/lineage")
    assert Path("out/diff/concepts.csv").exists() and Path("out/card/croissant.json").exists()


def test_samples_are_rated(shards, page):
    lines = ["key,rating", *(f"{i:03d},{1 + 8 * (i % 2)}" for i in range(24))]
    Path("ratings.csv").write_text("\n".join(lines))
    page("howto/scorer")
    rows = pq.read_table("out/rated/scores").to_pylist()
    above = [row["key"] for row in rows if row["aesthetic"] > 5]
    assert 0 < len(above) < 24 and sum(int(key) % 2 for key in above) > len(above) / 2
    assert read_run("fine")["corpus"] == len(above)


def test_test_samples_are_left_out(shards, page):
    write_image("test/a.jpg", scenes(24, seed=6)[0])
    Path("test/captions.jsonl").write_text(json.dumps({"image": "a.jpg", "captions": ["a shape"]}))
    page("howto/decontaminate")
    assert read_run("clean")["dropped"]["contaminated"] >= 1


def test_from_a_csv_to_a_trained_model(page):
    """Of forty scenes two are in the test set, two are copies, ten are unsafe; one opts out."""
    found = scenes(40, seed=8)
    lines = ["file_name,caption,nsfw,source"]
    for i, members in enumerate(found):
        write_image(f"photos/{i}.png", found[1] if i in (10, 11) else members)
        lines.append(f'{i}.png,"{members["txt"].decode()}",{0.9 if i >= 30 else 0.1},{"ab"[i % 3 == 0]}')
    Path("photos/pairs.csv").write_text("\n".join(lines))
    for i in (20, 21):
        write_image(f"test/{i}.png", found[i])
    rows = [json.dumps({"image": f"{i}.png", "captions": ["a shape"]}) for i in (20, 21)]
    Path("test/captions.jsonl").write_text("\n".join(rows))
    Path("optout.txt").write_text("5.png")
    page("howto/afternoon")
    dropped = read_run("scored")["dropped"]
    assert dropped["filtered"] == 10 and dropped["contaminated"] >= 2 and dropped["near_duplicate"] >= 2
    assert read_run("scored")["dropped"]["removed"] == read_run("without")["dropped"]["removed"] == 1
    assert read_run("tested", "status") == "finished"


@pytest.mark.parametrize("name", ["howto/rule", "howto/loss", "commands/publish", "commands/compare"])
def test_a_page_runs(name, many, shards, page):
    Path("out").mkdir()
    for own in ("curated", "evaluated", *(["clip"] if "publish" in name else [])):
        Path(f"out/{own}").symlink_to(many / "out" / own)
    page(name)


def test_data_on_s3(many, page, bucket):
    store, path = resolve(f"{bucket}/pool/0.tar")
    with store.open_output_stream(path) as file:
        file.write((many / "shards/0.tar").read_bytes())
    page("howto/s3", lambda line: line.replace("s3://my-bucket", bucket))


def write_datacomp(folder: Path, num: int, scorer: ScorerConfig) -> dict[str, float]:
    """Write metadata as DataComp publishes it, two files of pairs that differ in how well they fit.

    Return the cosine of each uid.
    """
    rng = np.random.default_rng(0)
    things, places = "dog cat horse car table bird boat lamp".split(), "on under near behind".split()
    captions = [f"a {rng.choice(things)} {rng.choice(places)} a {rng.choice(things)}" for _ in range(num)]
    distinct = sorted({*captions})
    text_TD, _ = Clip(scorer).text.embed(load_tokenizer(scorer)(distinct).numpy().astype(np.int32))
    row = {caption: text_D for caption, text_D in zip(distinct, text_TD.numpy(), strict=True)}
    text_ND = np.stack([row[caption] for caption in captions])
    image_ND = (text_ND + rng.normal(0, 0.2, text_ND.shape)).astype(np.float16)
    cosine_N = (image_ND * text_ND).sum(1) / np.linalg.norm(image_ND.astype(np.float32), axis=1)
    uids = [rng.bytes(16).hex() for _ in range(num)]
    columns = {"uid": uids, "url": [f"https://example.org/{uid}.jpg" for uid in uids], "text": captions}
    columns |= {"original_width": [640] * num, "original_height": [480] * num}
    columns |= {"clip_l14_similarity_score": cosine_N, "face_bboxes": [[[0.1, 0.1, 0.2, 0.2]]] * num}
    table = pa.table(columns)
    folder.mkdir(parents=True)
    for i, stem in enumerate(("0005ed6f2b1a", "00a1f3c4d5e6")):
        part = slice(i * num // 2, (i + 1) * num // 2)
        pq.write_table(table[part], folder / f"{stem}.parquet")
        other_ND = np.zeros((num // 2, 4), np.float16)
        arrays = {"b32_img": other_ND, "b32_txt": other_ND, "l14_txt": text_ND[part]}
        np.savez(folder / f"{stem}.npz", **arrays, l14_img=image_ND[part])
    return dict(zip(uids, cosine_N.tolist(), strict=True))


def test_a_subset_of_datacomps_metadata(tiny_scorer, page):
    """Ten thousand rows: half is kept, all of it from the 70 % that DataComp's own cosine ranks highest."""
    cosines = write_datacomp(Path("pool/metadata/small"), 10_000, tiny_scorer)
    page("howto/datacomp", lambda line: line.replace("ViT-L-14", tiny_scorer.model))
    subset = np.load("out/datacomp/subset/subset.npy", mmap_mode="r")
    assert subset.dtype == np.dtype("u8,u8") and len(subset) == 5_000
    assert (np.sort(subset) == subset).all()
    kept = {f"{high:016x}{low:016x}" for high, low in subset.tolist()}
    gate = sorted(cosines.values())[3_000]
    assert min(cosines[uid] for uid in kept) > gate - 1e-6
    assert len([uid for uid in kept if cosines[uid] > np.median([*cosines.values()])]) < 4_500  # PAS ranks
    rows = pq.read_table("kept/metadata/small")
    assert {*rows["uid"].to_pylist()} == kept and rows.column_names[1:3] == ["url", "text"]
    assert read_run("clip-score-30")["kept"] == 3_000 and not Path("out/datacomp/shards").exists()


def test_code_of_ones_own_runs(page):
    for i, members in enumerate(scenes(8, seed=7)):
        write_image(f"{i}.png", members)
    rows = [{"image": f"{i}.png", "caption": "a shape", "wrong": f"{i} shapes"} for i in range(8)]
    Path("counting.jsonl").write_text("\n".join(map(json.dumps, rows)))
    halves = [("train", "test")[i % 2] for i in range(8)]
    dishes = [{"photo": f"{i}.png", "dish": f"soup {i // 2}", "split": half} for i, half in enumerate(halves)]
    Path("dishes.json").write_text(json.dumps(dishes))
    blocks = list_blocks(ROOT / "docs/howto/own.md")
    Path("stream.json").write_text(next(block.text for block in blocks if block.language == "json"))
    Path("my_layout.py").write_text(next(block.text for block in blocks if block.name == "my_layout.py"))
    page("howto/own", lambda line: line.replace(" out/clip", " random:0"))
    assert len(pq.read_table("out/counted/scores/counting.parquet")) == 8
    assert Path("out/anchored/cells/stream.Anchored-00.json").is_file()


def test_the_slurm_script_is_one():
    """Bash reads it, and every node gets the cluster's address."""
    script = next(
        block.text for block in list_blocks(ROOT / "docs/howto/slurm.md") if block.language == "bash"
    )
    subprocess.run(["bash", "-n"], input=script.encode(), check=True)
    command = " ".join(next(line for line in list_lines(script) if "symmetric-run" in line).split())
    assert "ray symmetric-run --address" in command and " -- python -m raycomp " in command
    arguments = find_arguments(command)
    assert arguments and arguments[arguments.index("--cluster.address") + 1] == "$ip:6379"
