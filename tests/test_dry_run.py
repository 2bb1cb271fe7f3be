"""``--dry-run``: every check of a command, its cost, and not one file."""

import json
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp import cli
from raycomp.config.commands import RAYCOMP
from raycomp.data.files import Folder
from raycomp.run.run import hold_lease
from tests.continual.drawn_streams import STREAM
from tests.corpus import scenes, write_world_shards


@pytest.fixture
def inputs(tmp_path, tiny_scorer, curated) -> dict[str, list[str]]:
    """The arguments of each command, of those that need no run but a curation."""
    shards = write_world_shards(tmp_path / "in", 8, 4)
    pq.write_table(pa.table({"uid": ["0" * 32], "caption": ["a dog"]}), tmp_path / "captions.parquet")
    for folder, images in (("pairs", scenes(2, seed=1)), ("corrupt", [{"jpg": b"x"}] * 2)):
        (tmp_path / folder).mkdir()
        rows = [{"image": f"{i}.jpg", "captions": [f"dog {i}"]} for i in range(2)]
        (tmp_path / folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
        for i, image in enumerate(images):
            (tmp_path / folder / f"{i}.jpg").write_bytes(image["jpg"])
    model = [f"model.name={tiny_scorer.model}", f"model.weights={tiny_scorer.weights}"]
    scorer = [f"scorer.model={tiny_scorer.model}", f"scorer.weights={tiny_scorer.weights}"]
    options = {
        "curate": [f"input={shards}", *scorer],
        "audit": [f"input={shards}"],
        "negatives": [f"input={tmp_path}/captions.parquet", "negatives.rank=false"],
        "train": [f"input={shards}", *model, "train.steps=4", "train.batch_size=4"],
        "evaluate": ["benchmarks=retrieval", f"retrieval.input={tmp_path}/pairs", *model],
        "index-eval": ["benchmarks=retrieval", f"retrieval.input={tmp_path}/pairs"],
        "continual": [f"stream={STREAM}", "seeds=1"],
        "sweep": ["space=train.learning_rate=grid(0.1,0.2)", f"input={shards}",
                  "evaluate.benchmarks=retrieval", f"evaluate.retrieval.input={tmp_path}/pairs",
                  "metric=retrieval.image_retrieval_recall@1", *model],
    }  # fmt: skip
    found = {name: [part for one in sets for part in ("--set", one)] for name, sets in options.items()}
    return (
        found
        | {name: [str(curated[1])] for name in ("select", "explore")}
        | {"probe": ["pas", "--set", f"input={curated[1]}"]}
    )


def list_all(folder: Path) -> dict[str, float]:
    """Return what lies in a folder, and when files were written; not the bytecode that Python keeps."""
    paths = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return {str(path): 0 if path.is_dir() else path.stat().st_mtime_ns for path in paths}


def test_every_command_is_checked_and_writes_nothing(inputs, tmp_path, curated, capsys):
    """These need runs of other commands: see their own tests."""
    known = {name for name, one in RAYCOMP.commands.items() if "--out" in one.arguments}
    assert known == {*inputs, "card", "compare", "diff", "publish"}
    before = list_all(tmp_path) | list_all(curated[1])
    for name, arguments in inputs.items():
        assert cli.main([name, *arguments, "--out", str(tmp_path / "out"), "--dry-run"]) == 0, name
        said = capsys.readouterr().out
        assert f"dry run of {name}" in said and "all checks passed, nothing was written" in said, said
        assert list_all(tmp_path) | list_all(curated[1]) == before, name


def test_a_dry_run_refuses_what_the_run_refuses_and_neither_leaves_a_folder(inputs, tmp_path, capsys):
    """In the same line. What is wrong is known from options, from counts, or from the input's rows."""
    uids = pa.table({"uid": ["0" * 32] * 2, "caption": ["a dog", "a cat"]})
    pq.write_table(uids, tmp_path / "twice.parquet")
    (tmp_path / "rules.py").write_text("def short(alignment):\n    return alignment[:1]\n")
    stream = {"tasks": [{"name": "a", "train": "pairs/captions.jsonl", "test": "corrupt/captions.jsonl"}]}
    (tmp_path / "stream.json").write_text(json.dumps(stream))
    model = inputs["evaluate"][-3::2]
    corrupt, nothing = f"{tmp_path}/corrupt", str(tmp_path)
    faults = {
        "curate": [(["input=" + corrupt], "input: none of 2 rows can be used (2 corrupt_image)")],
        "audit": [(["input=" + corrupt], "input: none of 2 rows can be used (2 corrupt_image)")],
        "select": [([f"select.rule={tmp_path}/rules.py:short"], "must return a number for each of")],
        "negatives": [([f"input={tmp_path}/twice.parquet"], "every row must have a unique uid")],
        "train": [(["train.batch_size=99"], "train.batch_size=99: "),
                  (["train.batch_size=2", "train.workers=3"], "train.workers=3: must be at most")],
        "evaluate": [([f"retrieval.input={corrupt}", "max_bad_fraction=1"], "0 of its 2 images can be"),
                     (["benchmarks=linear_probe", f"linear_probe.train={nothing}/train",
                       f"linear_probe.test={nothing}/test"], "1 of its classes are not in linear_probe")],
        "index-eval": [(["benchmarks=zeroshot", f"zeroshot.input={corrupt}"], "has no folders of images")],
        "continual": [([f"stream={tmp_path}/stream.json", *model], "none of 2 samples can be used")],
        "sweep": [(["metric=recall"], "metric='recall'")],
        "explore": [(["where=loudness > 1"], "loudness")],
        "probe": [([f"input={nothing}"], "holds no finished run")],
        "publish": [([], "holds no finished run")], "card": [([], "holds no finished run")],
        "compare": [([], "two evaluations or more")], "diff": [([], "B: is missing")],
    }  # fmt: skip
    for half, names in (("train", ("bee", "cat")), ("test", ("bee", "dog"))):
        for name in names:
            (tmp_path / half / name).mkdir(parents=True)
            for i, image in enumerate(scenes(2, seed=len(half + name))):
                (tmp_path / half / name / f"{i}.jpg").write_bytes(image["jpg"])
    assert {*faults} == {name for name, one in RAYCOMP.commands.items() if "--out" in one.arguments}
    before = list_all(tmp_path)
    for name, options, fault in ((name, *fault) for name, some in faults.items() for fault in some):
        line = [name, *inputs.get(name, [nothing]), *(part for one in options for part in ("--set", one))]
        said = []
        for more in (
            ["--dry-run"],
            ["--out", f"{tmp_path}/new/out", "--dry-run"],
            ["--out", f"{tmp_path}/new/out"],
        ):
            assert cli.main([*line, *more]) == 2, (line, more)
            said.append(capsys.readouterr().err.strip().splitlines()[-1])
            assert list_all(tmp_path) == before, (line, more)
        assert fault in said[0] and said[0] == said[1] == said[2], said


def test_a_dry_run_says_what_the_command_would_do_in_its_folder(curated, tmp_path, inputs, capsys):
    _, out, record = curated
    assert cli.main([*shlex.split(record["commands"]["Rerun"])[1:], "--dry-run"]) == 0
    assert "finished already, the command would do nothing" in capsys.readouterr().out
    (tmp_path / "file").write_text("mine")
    with hold_lease(Folder(str(tmp_path / "held"))):
        for place, code, said in (
            (tmp_path / "out", 0, ["it would start", "samples   about 8", "worker hours per million pairs"]),
            (out, 2, ["holds a run that differs in"]),
            (tmp_path / "held", 2, ["has been writing it since"]),
            (tmp_path / "file/out", 2, ["cannot be written"]),
        ):
            assert cli.main(["curate", *inputs["curate"], "--out", str(place), "--dry-run"]) == code, place
            shown = "".join(capsys.readouterr())
            assert all(part in shown for part in said), shown
    line = ["negatives", *inputs["negatives"], "--out", str(tmp_path / "next")]
    assert cli.main([*line, "--dry-run"]) == 0 and not (tmp_path / "next").exists()
    assert cli.main(line) == 0 and (tmp_path / "next/run.json").exists(), "what is dry ends with the command"
