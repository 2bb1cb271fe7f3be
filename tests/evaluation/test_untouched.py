"""Scores of all examples and of those that the training samples do not contain."""

import csv
import json
from pathlib import Path

import pytest

import raycomp
from bench.decontaminate import encode
from raycomp.cli import main
from raycomp.config import ScorerConfig
from raycomp.data.samples import write_tar
from tests.corpus import by_cpi, mean_drop
from tests.curation.test_contamination import photos  # noqa: F401, a fixture
from tests.drawn import WORLD, write_test_set

NUM, IMAGES, TEXT = 12, (0, 1, 2), 4


def write_set(folder: Path, photos: list, numbers: list[int]) -> str:  # noqa: F811
    """Write some photos with their captions as a retrieval set."""
    folder.mkdir()
    lines = []
    for i in numbers:
        (folder / f"{i}.jpg").write_bytes(encode(photos[i][1], 90))
        lines.append(json.dumps({"image": f"{i}.jpg", "captions": photos[i][2]}))
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return str(folder)


@pytest.fixture(scope="module")
def made(photos, tiny_scorer, tmp_path_factory) -> Path:  # noqa: F811
    """A test set, and a curation that kept three of its images and a caption of a fourth."""
    folder = tmp_path_factory.mktemp("untouched")
    test = write_set(folder / "test", photos, list(range(NUM)))
    samples = [(f"copy/{i}", encode(photos[i][1], 90), f"copy number {i}") for i in IMAGES]
    samples += [("text/0", encode(photos[NUM][1], 90), photos[TEXT][2][0])]
    samples += [
        (f"other/{i}", encode(photos[i][1], 90), f"photo number {i}") for i in range(NUM + 1, NUM + 9)
    ]
    members = [(key, {"jpg": data, "txt": text.encode()}) for key, data, text in samples]
    write_tar(str(folder / "0.tar"), members)
    local = ["--set", "cluster.executor=local"]
    sets = ["--set", "benchmarks=retrieval", "--set", f"retrieval.input={test}"]
    assert main(["index-eval", *local, *sets, "--out", str(folder / "index")]) == 0
    whole = {"align.keep": 1.0, "attribute.keep": 1.0, "cluster.executor": "local"}
    config = by_cpi(input=str(folder / "0.tar"), scorer=tiny_scorer, attribute=mean_drop(pool=1.0))
    raycomp.curate(raycomp.override_all(config, whole), folder / "plain")
    flag = {"decontaminate.index": str(folder / "index"), "decontaminate.action": "flag"}
    run = raycomp.select(folder / "plain", flag | {"cluster.executor": "local"}, folder / "flagged")
    assert run["funnel"]["kept"] == len(samples)
    return folder


def evaluate(made: Path, model: object, name: str, **options: object) -> dict:
    sets = {"benchmarks": "retrieval", "retrieval.input": made / "test", "cluster.executor": "local"}
    if isinstance(model, ScorerConfig):
        sets |= {"model.name": model.model, "model.weights": model.weights}
    else:
        sets |= {"model.weights": model}
    words = [word for option, value in (sets | options).items() for word in ("--set", f"{option}={value}")]
    code = main(["evaluate", *words, "--out", str(made / name)])
    return {"code": code, "out": made / name}


def read_lines(path: Path) -> list[dict]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_untouched_examples_score_as_a_test_set_without_the_others(made, photos, tiny_scorer, capsys):  # noqa: F811
    run = evaluate(made, tiny_scorer, "scored", trained_on=made / "flagged")
    said = capsys.readouterr().out
    assert run["code"] == 0
    left = [i for i in range(NUM) if i not in (*IMAGES, TEXT)]
    assert f"on the {len(left)} of {NUM} untouched examples" in said
    less = write_set(made / "less", photos, left)
    alone = evaluate(made, tiny_scorer, "alone", **{"retrieval.input": less})
    untouched = read_lines(run["out"] / "untouched.csv")
    own = ("metric", "value", "n", "chance", "ties", "low", "high")
    shown = [[line[name] for name in own] for line in untouched]
    assert shown == [[line[name] for name in own] for line in read_lines(alone["out"] / "table.csv")]
    assert {line["num_all"] for line in untouched} == {str(NUM), str(5 * NUM)}
    assert not (alone["out"] / "untouched.csv").exists()
    page = (run["out"] / "report.html").read_text()
    assert "All examples and untouched ones" in page
    record = json.loads((run["out"] / "run.json").read_text())
    assert record["fingerprint"]["trained_on"] and record["funnel"]["kept"] == NUM + 5 * NUM


def test_the_curation_is_known_from_the_training(made, photos, tiny_scorer, capsys):  # noqa: F811
    sets = {"input": made / "flagged", "train.steps": 1, "train.batch_size": 4, "cluster.executor": "local"}
    sets |= {"model.name": tiny_scorer.model, "model.weights": tiny_scorer.weights}
    words = [word for option, value in sets.items() for word in ("--set", f"{option}={value}")]
    assert main(["train", *words, "--out", str(made / "trained")]) == 0
    run = evaluate(made, made / "trained", "by_training")
    assert run["code"] == 0 and (run["out"] / "untouched.csv").exists()
    assert "untouched examples" in capsys.readouterr().out
    (made / "index/texts.parquet").rename(made / "texts")
    lost = evaluate(made, made / "trained", "lost")
    (made / "texts").rename(made / "index/texts.parquet")
    assert lost["code"] == 0 and not (lost["out"] / "untouched.csv").exists()
    assert "its files are missing; index again; touched examples are unknown" in capsys.readouterr().out


def test_what_has_no_untouched_score_is_said(made, photos, tiny_scorer, tmp_path, capsys):  # noqa: F811
    write_test_set(str(tmp_path), 4, 0)
    options = {"benchmarks": WORLD, "own.annotations": tmp_path, "trained_on": made / "flagged"}
    run, said = evaluate(made, tiny_scorer, "lacks", **options), "its touched examples are unknown"
    assert run["code"] == 0 and said in capsys.readouterr().out
    assert said in json.loads((run["out"] / "run.json").read_text())["warnings"][0]
    touched = write_set(made / "touched", photos, [*IMAGES, TEXT])
    run = evaluate(made, tiny_scorer, "none", **{"retrieval.input": touched, "trained_on": made / "flagged"})
    assert run["code"] == 0 and "has no score of untouched examples" in capsys.readouterr().out


def test_a_run_that_cannot_tell_is_refused(made, tiny_scorer, capsys):
    for place, said in {
        "plain": "its samples were not compared with test sets; select again with decontaminate.index",
        "index": "holds index-eval, must hold a curation or a selection",
        "nowhere": "holds no finished run",
    }.items():
        run = evaluate(made, tiny_scorer, f"refused-{place}", trained_on=made / place)
        error = capsys.readouterr().err
        assert run["code"] == 2 and said in error and error.startswith("raycomp: trained_on="), place
