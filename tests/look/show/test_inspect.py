"""What show and explain say of any run, out of hand-made files."""

from pathlib import Path

import pyarrow as pa
import pytest

from raycomp.cli import USER_ERROR, main
from raycomp.config import override_all, to_dict
from raycomp.core.selection import Threshold
from raycomp.curation.config import CurateConfig, describe_rule
from raycomp.curation.select.select import Gates
from raycomp.data.files import Folder
from raycomp.data.parquet import read_columns, write_table
from raycomp.data.runs import identify
from raycomp.look import show as inspect
from raycomp.look.show import explain
from raycomp.negatives.config import NegativesConfig
from raycomp.schema import NEGATIVES_SCHEMA, aligned_schema, scores_schema
from raycomp.training.config import TrainConfig
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    IMAGE_EMBEDDING,
    MEAN_PAS,
    NO_SEEN_PHRASE,
    OK,
    PHRASES,
    POSITION,
    SHARD,
    STATUS,
    UID,
    UNSEEN,
)
from tests.corpus import by_cpi, mean_drop
from tests.sealed import seal

NOT_FOUND = "no such uid, key, file name, url or caption in"


def show(source: str) -> str:
    return "".join(inspect.show(source))


UIDS = [f"{i:032x}" for i in range(2)]
LOW = Threshold(2, 0x8000_0000)  # 0.0


def make_phrase(noun: str, target_class: str) -> dict:
    phrase = {"text": f"a {noun}", "start": 0, "end": 2 + len(noun), "kind": "object", "target": noun}
    phrase |= {"target_start": 2, "target_end": 2 + len(noun), "target_class": target_class}
    return phrase | {"nonces": ["blick"], "drops": [0.1], "drop": 0.1, "displacement": 0.2}


def write_run(folder: Folder, config: CurateConfig) -> None:
    """Write a finished run of a dog and of a view, which no gate cuts."""
    said = [("dog", "head", OK, 0.1), ("view", UNSEEN, NO_SEEN_PHRASE, None)]
    rows = [
        {"uid": uid, "caption": f"a {noun}", "status": status, "position": i, "alignment": 0.25}
        | {"mean_pas": pas, "image_embedding": [0.5] * 4, "phrases": [make_phrase(noun, target_class)]}
        for i, (uid, (noun, target_class, status, pas)) in enumerate(zip(UIDS, said, strict=True))
    ]
    kind = scores_schema(aligned_schema(4, "float32"))
    write_table(pa.Table.from_pylist(rows, kind), folder.at("scores", "00000.parquet"), kind)
    run = {
        "kind": "curate",
        "status": "finished",
        "started": "2026-01-01T00:00:00+00:00",
        "commands": {"Rerun": "raycomp curate"},
        "versions": {"raycomp": "0.1.0"},
        "machine": {"cores": 2},
        "config": to_dict(config),
        "fingerprint": {"input": "0" * 64, "shards": 1},
        "scores": folder.at("scores"),
        "funnel": {"read": 2, "corpus": 2, "kept": 1, "dropped": {"no_score_for_attribution_gate": 1}},
        "gates": Gates(2, LOW, LOW, 1).to_dict(),
        "warnings": [],
    }
    folder.write_json(run, "run.json")
    seal(folder)


@pytest.mark.parametrize("targets", ["showable", "nouns"])
def test_a_caption_that_no_picture_shows_is_explained(tmp_path: Path, targets):
    write_run(Folder(str(tmp_path)), by_cpi(attribute=mean_drop(targets=targets)))
    dog, view = (explain(str(tmp_path), uid) for uid in UIDS)
    assert "kept: yes" in dog and "no picture" not in dog
    assert "target 'view', which an image cannot show" in view
    if targets == "nouns":
        assert "gate 2: mean drop of nouns 0.100000" in view and "kept: yes" in view
    else:
        assert "gate 2: mean drop of showable nouns none" in view
        said = "(aligned, but no phrase with a valid nonce has a target that a picture can show)"
        assert f"kept: no, no_score_for_attribution_gate {said}" in view


@pytest.mark.parametrize(
    "column", [UID, SHARD, POSITION, CAPTION, STATUS, ALIGNMENT, MEAN_PAS, PHRASES, IMAGE_EMBEDDING]
)
def test_a_scores_file_that_lacks_a_column_is_said_in_one_line(tmp_path: Path, column, capsys):
    folder = Folder(str(tmp_path))
    write_run(folder, by_cpi())
    uri = folder.at("scores", "00000.parquet")
    table = read_columns(uri).drop_columns([column])
    write_table(table, uri, table.schema)
    seal(folder)
    assert main(["explain", str(tmp_path), UIDS[0]]) == USER_ERROR
    assert capsys.readouterr().err == f"raycomp: {uri}: has no column {column}\n"


def write_negatives(folder: Folder, source: str) -> None:
    """Write finished negatives of the two captions in ``source``, of which one has any."""
    made = {"text": "a cat", "op": "REPLACE", "kind": "object", "calls": 1, "source": "rules"}
    made |= {"similarity": 0.75, "image_drop": -0.125, "concepts": ["dog", "cat"]}
    rows = [
        {"uid": UIDS[0], "caption": "a dog", "negatives": [made], "status": OK},
        {"uid": UIDS[1], "caption": "a view", "negatives": [], "status": "no_concept"},
    ]
    table = pa.Table.from_pylist(rows, NEGATIVES_SCHEMA)
    write_table(table, folder.at("negatives", "00000.parquet"), NEGATIVES_SCHEMA)
    run = {"kind": "negatives", "status": "finished", "versions": {}, "warnings": ["one"]}
    run |= {
        "config": to_dict(NegativesConfig(input=source)),
        "started": "2026-01-01",
        "finished": "2026-01-02",
    }
    run["fingerprint"] = {"input": identify(Folder(source).read_json("run.json"))}
    run["funnel"] = {"read": 2, "corpus": 2, "kept": 1, "dropped": {"no_concept": 1}}
    run["phases"] = [{"phase": "negatives", "rows": 2, "wall_s": 0.5, "bottleneck": "edit"}]
    folder.write_json(run, "run.json")
    seal(folder)


@pytest.fixture
def written(tmp_path: Path) -> Folder:
    write_run(Folder(str(tmp_path / "curated")), by_cpi())
    write_negatives(Folder(str(tmp_path / "written")), str(tmp_path / "curated"))
    return Folder(str(tmp_path / "written"))


def test_any_run_is_shown_with_its_funnel_times_warnings_and_report(written):
    def lines() -> list[str]:
        return [" ".join(line.split()) for line in show(written.uri).splitlines()]

    head = [
        "run negatives",
        f"input {written.uri.replace('written', 'curated')}",
        "started 2026-01-01",
        "finished 2026-01-02",
    ]
    body = ["", "2 read", "-1 no_concept", "1 kept (50.0 % of the corpus of 2)", ""]
    body += ["phase rows time, s rate, rows/s bottleneck", "negatives 2 0.5 4.0 edit", "", "warning: one"]
    assert lines() == head + body
    written.write_bytes(b"<html>", "report.html")
    assert lines() == [*head, f"report {written.at('report.html')}", *body]


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({}, "cpi: mean drop of showable nouns, 1 nonce; align.keep 0.7, attribute.keep 0.5"),
        (
            {"attribute.targets": "nouns", "attribute.nonces": 3},
            "cpi: mean drop of nouns, 3 nonces; align.keep 0.7, attribute.keep 0.5",
        ),
        (
            {
                "select.rule": "align_pas",
                "attribute.targets": "content",
                "attribute.unit": "per_displacement",
                "attribute.aggregate": "min",
                "attribute.nonces": 2,
            },
            "align_pas: least drop per displacement of content words, 2 nonces; align.keep 0.7, "
            "attribute.keep 0.5",
        ),
        ({"select.rule": "align_only", "attribute.keep": 0.4}, "align_only: alignment; attribute.keep 0.4"),
        (
            {"select.rule": "length"},
            "length: words of the caption; align.keep 0.7, attribute.keep 0.5",
        ),
        ({"select.rule": "full"}, "full: all pairs"),
    ],
)
def test_a_choice_is_shown_with_its_rule_and_shares(settings, reported, tmp_path):
    write_run(Folder(str(tmp_path)), override_all(by_cpi(), settings))
    lines = [" ".join(line.split()) for line in show(str(tmp_path)).splitlines()]
    assert f"rule {reported}" in lines
    assert reported.partition(";")[0] == describe_rule(override_all(by_cpi(), settings))


def test_a_training_is_shown_with_its_loss_and_its_checkpoint(tmp_path, capsys):
    run = {"kind": "train", "status": "finished", "versions": {}, "fingerprint": {}, "warnings": []}
    run["config"] = to_dict(TrainConfig(input="in"))
    run["funnel"] = {"read": 9, "corpus": 9, "kept": 7, "dropped": {"not_in_subset": 2}}
    run |= {"steps": 1000, "epochs": 2.5, "pairs": 7, "first_loss": 5.25, "last_loss": 1}
    folder = Folder(str(tmp_path))
    folder.write_json(run, "run.json")
    seal(folder)
    run = folder.read_json("run.json")
    assert [" ".join(line.split()) for line in show(str(tmp_path)).splitlines()] == [
        "run train",
        "input in",
        "model ViT-B-32, trained from random:0",
        "steps 1,000, 2.50 epochs of 7 pairs",
        "loss clip, 5.2500 to 1.0000",
        f"checkpoint {tmp_path}/checkpoint",
        "",
        "9 read",
        "-2 not_in_subset",
        "7 kept (77.8 % of the corpus of 9)",
    ]
    assert main(["explain", str(tmp_path), UIDS[0]]) == USER_ERROR
    assert capsys.readouterr().err.endswith("holds train, which says nothing of single samples\n")
    folder.write_json({**run, "last_loss": "low"}, "run.json")
    with pytest.raises(ValueError, match="last_loss is missing or wrong"):
        show(str(tmp_path))


def test_where_no_run_lies_the_runs_below_are_named(written, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["show", str(tmp_path)]) == USER_ERROR
    said = "holds no finished run: no run.json; runs below it: curated, written\n"
    assert capsys.readouterr().err == f"raycomp: {tmp_path}: {said}"
    assert main(["show", str(tmp_path / "gone")]) == USER_ERROR
    assert capsys.readouterr().err.endswith("gone: holds no finished run: no such folder\n")
    for name in ("empty", "curated/run.json"):
        assert main(["show", str(tmp_path / name)]) == USER_ERROR
        assert capsys.readouterr().err.endswith("holds no finished run: no run.json\n")


def test_the_negatives_of_a_caption_are_explained_and_where_its_scores_lie(written):
    curated = written.uri.replace("written", "curated")
    dog, view = (explain(written.uri, uid.upper()) for uid in UIDS)
    row = next(line for line in dog.splitlines() if line.startswith("REPLACE")).split()
    assert row == ["REPLACE", "1", "0.7500", "-0.1250", "object", "dog", "->", "cat", "rules", "a", "cat"]
    assert "no_concept (no operation has anything" in view and "REPLACE" not in view
    for text, uid in ((dog, UIDS[0]), (view, UIDS[1])):
        assert text.endswith(f"raycomp explain {curated} {uid}")
    Path(curated, "run.json").rename(Path(curated, "moved.json"))
    assert "raycomp explain" not in explain(written.uri, UIDS[0])


@pytest.mark.parametrize("origin", ["curated", "http://127.0.0.1:1/curated"])
def test_a_caption_is_explained_whatever_its_curation_became(written, origin, tmp_path):
    """A run.json of something else, a place that no filesystem knows."""
    Path(tmp_path, "curated/run.json").write_text("{}")
    run = written.read_json("run.json")
    run["config"]["input"] = origin if "://" in origin else str(tmp_path / origin)
    written.write_json(run, "run.json")
    reported = explain(written.uri, UIDS[0])
    assert "REPLACE" in reported and "raycomp explain" not in reported


def test_a_uid_of_the_users_own_is_found_as_it_is_written(written, capsys):
    uri = written.at("negatives", "00000.parquet")
    table = read_columns(uri)
    write_table(table.set_column(0, UID, pa.array(["COCO_1", "coco_2"])), uri, table.schema)
    seal(written)
    assert "a dog" in explain(written.uri, "COCO_1") and "a view" in explain(written.uri, "COCO_2")
    assert main(["explain", written.uri, "coco_1"]) == USER_ERROR
    assert capsys.readouterr().err == f"raycomp: coco_1: {NOT_FOUND} {written.uri}\n"


def test_a_run_that_says_nothing_of_samples_is_refused_in_one_line(written, capsys):
    written.write_json(written.read_json("run.json") | {"kind": "probe overlap"}, "run.json")
    assert main(["explain", written.uri, UIDS[0]]) == USER_ERROR
    said = f"raycomp: {written.uri}: holds probe overlap, which says nothing of single samples\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("phases", [3, [3], [{"phase": "align"}], [{"phase": 1, "rows": 1, "wall_s": 1.0}]])
def test_phases_that_no_run_wrote_are_refused_in_one_line(written, phases, capsys):
    written.write_json(written.read_json("run.json") | {"phases": phases}, "run.json")
    assert main(["show", written.uri]) == USER_ERROR
    said = capsys.readouterr().err
    assert "not the record of a raycomp run: phases" in said and said.count("\n") == 1


def test_what_is_no_folder_or_uid_is_the_users_mistake(written, tmp_path, capsys):
    (tmp_path / "run.json").mkdir()
    cases = [("show", "s3://", "has no bucket"), ("show", "a" * 5000, "too long")]
    cases += [("show", str(tmp_path), "run.json: is a folder")]
    lines = [([command, place], words) for command, place, words in cases]
    lines += [(["explain", written.uri, "\udcff\udcfe"], r"b'\xff\xfe': no such uid")]
    lines += [(["compare", "s3://", "s3://", "--out", str(tmp_path / "out")], "has no bucket")]
    lines += [(["train", "--set", "input=s3://", "--out", str(tmp_path / "out")], "has no bucket")]
    for argv, words in lines:
        assert main(argv) == USER_ERROR, argv
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and words in said, said


@pytest.mark.parametrize(("kind", "config", "lack"), [
    ("evaluate", {"model": {"name": "a", "weights": "b"}}, "config.benchmarks"),
    ("evaluate", {"benchmarks": ["cola"]}, "config.model"),
    ("negatives", {}, "config.input"),
])  # fmt: skip
def test_a_config_that_lacks_what_is_read_is_reported(tmp_path, capsys, kind, config, lack):
    run = {"kind": kind, "status": "finished", "versions": {}, "fingerprint": {}, "warnings": []}
    run |= {"config": config, "funnel": {"read": 0, "corpus": 0, "kept": 0, "dropped": {}}}
    Folder(str(tmp_path)).write_json(run, "run.json")
    seal(Folder(str(tmp_path)))
    for argv in (["show", str(tmp_path)], ["compare", *[str(tmp_path)] * 2, "--out", str(tmp_path / "out")]):
        assert main(argv) == USER_ERROR
        assert f"raycomp run: {lack} is missing or wrong" in capsys.readouterr().err


def test_a_probe_without_its_rows_is_reported(tmp_path, capsys):
    run = {"kind": "probe pas", "status": "finished", "versions": {}, "fingerprint": {}, "warnings": []}
    run |= {"config": {}, "funnel": {"read": 0, "corpus": 0, "kept": 0, "dropped": {}}}
    Folder(str(tmp_path)).write_json(run, "run.json")
    seal(Folder(str(tmp_path)))
    assert main(["explain", str(tmp_path), "a"]) == USER_ERROR
    assert "has no pas.json; run the probe again" in capsys.readouterr().err
