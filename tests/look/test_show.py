"""show, list, explain and ``raycomp.open``: of a real curation, and of any run out of files made by hand."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import raycomp
from raycomp.cli import USER_ERROR, main
from raycomp.config import get_config, to_dict
from raycomp.data.files import Folder
from raycomp.data.parquet import read_columns, write_table
from raycomp.data.runs import identify
from raycomp.look.show import Figure, FinishedRun, explain
from raycomp.negatives.config import NegativesConfig
from raycomp.schema import NEGATIVES_SCHEMA
from raycomp.table import write_csv
from raycomp.training.config import TrainConfig
from raycomp.words import NO_SEEN_PHRASE, OK, PHRASES, UID, UNSEEN
from tests.look.scored import make_phrase, write_curation
from tests.look.test_explore import read_scores
from tests.sealed import seal

UIDS = [f"{i:032x}" for i in range(2)]


def fail(capsys, *words: str) -> str:
    """Return the one line that a command ends with."""
    capsys.readouterr()
    assert main([*words]) == USER_ERROR, words
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def show(source: object) -> list[str]:
    return [" ".join(line.split()) for line in raycomp.show(source).splitlines()]


def write_record(
    folder: Path, kind: str, config: object, outputs: tuple[str, ...] = (), **more: object
) -> None:
    """Write the record of a finished run around the files that lie in the folder."""
    run = {"kind": kind, "status": "finished", "versions": {}, "fingerprint": {}, "warnings": []}
    run |= {"config": config if isinstance(config, dict) else to_dict(config)}
    run |= {"funnel": {"read": 4, "corpus": 4, "kept": 3, "dropped": {"no_image": 1}}, **more}
    Folder(str(folder)).write_json(run, "run.json")
    seal(Folder(str(folder)), *([outputs] if outputs else []))


def open_made(folder: Path, kind: str, *outputs: str, **more: object) -> FinishedRun:
    write_record(folder, kind, more.pop("config", None) or get_config(kind)(), outputs, **more)
    return raycomp.open(folder)


def test_a_curation_opens_with_its_samples_counts_and_figures(curated, tmp_path, capsys):
    config, folder, record = curated
    run = raycomp.open(folder)
    assert (run.kind, run.uri) == ("curate", str(folder)) and run.record == json.loads(json.dumps(record))
    assert run.config.scorer == config.scorer and run.config.attribute == config.attribute
    assert run.tables == ["kept", "metadata", "scores"]
    assert run.table().equals(read_columns(f"{folder}/subset/kept.parquet").combine_chunks())
    scores = run.table("scores")
    assert len(scores) == record["funnel"]["read"] and len(run.table()) == record["funnel"]["kept"]
    assert {*run.table()["uid"].to_pylist()} <= {*scores["uid"].to_pylist()}
    figures = run.figures()
    assert figures["rows kept"] == Figure(record["funnel"]["kept"], unit="rows")
    assert figures["scorer's AUC"] == Figure(record["scorer_check"]["auc"], unit="share")
    with pytest.raises(ValueError) as error:
        run.table("scorse")
    assert str(error.value) == f"table='scorse': not in {folder}; its tables are kept, metadata, scores"
    raycomp.select(folder, {"attribute.keep": 0.25, "cluster.executor": "local"}, tmp_path / "out")
    chosen = raycomp.open(tmp_path / "out")
    assert chosen.kind == "select" and chosen.tables == ["kept", "scores"]
    assert chosen.table("scores").equals(scores) and chosen.config.attribute.keep == 0.25
    assert len(chosen.table()) == record["funnel"]["corpus"] // 4
    uid = run.table()["uid"][0].as_py()
    for line, text in ((["show"], raycomp.show(folder)), (["explain", uid], raycomp.explain(folder, uid))):
        assert main([line[0], str(folder), *line[1:]]) == 0
        assert capsys.readouterr().out.endswith(text + "\n")
    headline = "kept 45 of 90 rows; random weights (random:0): every score and every choice by score is noise"
    assert raycomp.show(folder).splitlines()[0] == headline


def test_runs_of_other_kinds_open_with_their_main_figures(tmp_path):
    nan = float("nan")
    for kind, name, rows, figures in [
        ("evaluate", "table.csv", [
            ("benchmark", "split", "metric", "value", "low", "high", "control", "n"),
            ("aro", "attribution", "accuracy", 0.5, 0.25, 0.75, "", 8),
            ("aro", "attribution", "accuracy", 0.625, nan, nan, "bigram", 8),
            ("aro", "micro", "accuracy", 0.5, 0.375, 0.625, "", 12),
            ("aro", "macro", "accuracy", 0.625, nan, nan, "", 12),
            ("valse", "test", "accuracy", 1.0, 0.5, 1.0, "", 2),
            ("valse", "test", "brittleness", nan, nan, nan, "", 0),
        ], {
            "aro: accuracy, micro": Figure(0.5, 0.375, 0.625, "share"),
            "aro: accuracy, macro": Figure(0.625, None, None, "share"),
            "valse: accuracy, test": Figure(1.0, 0.5, 1.0, "share"),
        }),
        ("compare", "table.csv", [
            ("benchmark", "split", "metric", "reference", "run", "difference", "low", "high"),
            ("valse", "test", "accuracy", "clip", "tuned", 0.25, 0.125, 0.375),
        ], {"valse: accuracy, test, tuned minus clip": Figure(0.25, 0.125, 0.375, "share")}),
        ("continual", "continual.csv", [
            ("track", "method", "metric", "mean", "low", "high", "seeds"),
            ("world", "frozen", "last", 50.0, 45.0, 55.0, 3),
            ("world", "realign", "last minus frozen", 2.5, 1.5, 3.5, 3),
            ("world", "realign", "seconds", 2.5, 1.5, 3.5, 3),
        ], {
            "world, frozen: last": Figure(50.0, 45.0, 55.0, "percent"),
            "world, realign: last minus frozen": Figure(2.5, 1.5, 3.5, "points"),
        }),
    ]:  # fmt: skip
        (tmp_path / kind).mkdir()
        (tmp_path / kind / name).write_text(write_csv(rows))
        config = {"benchmarks": [], "model": {"name": "RN50", "weights": "openai"}}
        run = open_made(tmp_path / kind, kind, name, config=config if kind == "evaluate" else None)
        assert dict(list(run.figures().items())[2:]) == figures, kind
    run = raycomp.open(tmp_path / "evaluate")
    assert run.table().schema.field("n").type == pa.int64() and run.table()["low"].to_pylist()[1] is None
    assert "0.5000 [0.3750, 0.6250] share" in run._repr_html_()
    table = pa.table({"trial": ["one"]})
    write_table(table, str(tmp_path / "sweep" / "trials.parquet"), table.schema)
    best = {"group": {"train.loss": "clip"}, "development": {"value": 0.5, "low": 0.25, "high": 0.75}}
    best |= {"report": {"value": nan, "low": nan, "high": nan}}
    run = open_made(tmp_path / "sweep", "sweep", "trials.parquet", metric="valse", best=[best])
    assert run.table()["trial"].to_pylist() == ["one"]
    name = "train.loss=clip: valse, development seeds"
    assert list(run.figures().items())[2:] == [(name, Figure(0.5, 0.25, 0.75))]
    rows = [("track", "method", "metric", "mean", "low", "high"), ("world", "frozen", "last", -3.5, "", "")]
    (tmp_path / "continual/continual.csv").write_text(write_csv(rows))  # one seed: no interval
    open_made(tmp_path / "continual", "continual", "continual.csv")
    assert "world, frozen: last -3.5000 percent" in show(tmp_path / "continual")
    (tmp_path / "audit").mkdir()
    run = open_made(tmp_path / "audit", "audit", warnings=["<script>alert(1)</script>"])
    assert run.config == get_config("audit")()
    assert "<script>" not in run._repr_html_() and "&lt;script&gt;" in run._repr_html_()
    with pytest.raises(ValueError, match="the run has no tables"):
        run.table()


def test_arguments_that_name_no_such_run_are_refused_in_a_line(curated, tmp_path):
    with pytest.raises(TypeError, match="must be a path or uri"):
        raycomp.open(3)
    with pytest.raises(ValueError, match="holds curate, must hold a training"):
        raycomp.publish(curated[1], tmp_path / "out")
    with pytest.raises(ValueError, match="probe='overlop'"):
        raycomp.probe("overlop", raycomp.ProbeConfig(), tmp_path / "other")


def write_two(path: Path, **settings: object) -> None:
    """Write a finished curation of a dog and of a view, which no gate cuts."""
    said = [("dog", "head", OK, 0.1), ("view", UNSEEN, NO_SEEN_PHRASE, None)]
    rows = [
        {"uid": uid, "caption": f"a {noun}", "status": status, "alignment": 0.25, "mean_pas": pas}
        | {
            "key": f"{noun}.jpg",
            "image_embedding": [0.5] * 4,
            "phrases": [make_phrase(noun, 0.1) | {"target_class": target_class}],
        }
        for uid, (noun, target_class, status, pas) in zip(UIDS, said, strict=True)
    ]
    shares = {"align.keep": 1.0, "attribute.keep": 1.0}
    write_curation(str(path), rows, files=1, settings=shares | settings)


@pytest.fixture
def written(tmp_path: Path) -> Folder:
    """Finished negatives of the two captions of a curation, of which one has any."""
    write_two(tmp_path / "curated")
    source, folder = str(tmp_path / "curated"), Folder(str(tmp_path / "written"))
    made = {"text": "a cat", "op": "REPLACE", "kind": "object", "calls": 1, "source": "rules"}
    made |= {"similarity": 0.75, "image_drop": -0.125, "concepts": ["dog", "cat"]}
    rows = [
        {"uid": UIDS[0], "caption": "a dog", "negatives": [made], "status": OK},
        {"uid": UIDS[1], "caption": "a view", "negatives": [], "status": "no_concept"},
    ]
    table = pa.Table.from_pylist(rows, NEGATIVES_SCHEMA)
    write_table(table, folder.at("negatives", "00000.parquet"), NEGATIVES_SCHEMA)
    more = {"fingerprint": {"input": identify(Folder(source).read_json("run.json"))}, "warnings": ["one"]}
    more |= {"funnel": {"read": 2, "corpus": 2, "kept": 1, "dropped": {"no_concept": 1}}}
    more |= {"phases": [{"phase": "negatives", "rows": 2, "wall_s": 0.5, "bottleneck": "edit"}]}
    more |= {"started": "2026-01-01", "finished": "2026-01-02", "written": 1, "negatives": {"REPLACE": 1}}
    write_record(Path(folder.uri), "negatives", NegativesConfig(input=source), **more)
    return folder


def test_a_caption_that_no_picture_shows_is_explained(tmp_path, capsys):
    for targets in ("showable", "nouns"):
        write_two(tmp_path / targets, **{"attribute.targets": targets})
        dog, view = (explain(str(tmp_path / targets), uid) for uid in UIDS)
        assert "kept: yes" in dog and "no picture" not in dog
        assert "target 'view', which an image cannot show" in view
        if targets == "nouns":
            assert "gate 2: mean drop of nouns 0.100000" in view and "kept: yes" in view
        else:
            assert "gate 2: mean drop of showable nouns none" in view
            said = "aligned, but no phrase with a valid nonce has a target that a picture can show"
            assert "kept: no, no_score_for_attribution_gate" in view
            assert view.endswith(f"why: no mean drop of showable nouns: {said}")
    uri = f"{tmp_path}/nouns/scores/00000.parquet"
    table = read_columns(uri).drop_columns([PHRASES])
    write_table(table, uri, table.schema)
    seal(Folder(f"{tmp_path}/nouns"))
    assert fail(capsys, "explain", f"{tmp_path}/nouns", UIDS[0]).endswith("has no column phrases\n")


def test_any_run_is_shown_with_its_funnel_times_warnings_and_report(written):
    head = ["run negatives", f"input {written.uri.replace('written', 'curated')}"]
    head += ["started 2026-01-01", "finished 2026-01-02"]
    body = ["", "result value, 95 % interval", "negatives 1 negatives", "negatives, REPLACE 1 negatives"]
    body += ["", "2 read", "-1 no_concept", "1 kept (50.0 % of the 2 rows read)", ""]
    body += ["phase rows time, s rate, rows/s bottleneck", "negatives 2 0.5 4.0 edit", "", "warning: one"]
    assert show(written.uri) == head + body
    written.write_bytes(b"<html>", "report.html")
    assert show(written.uri) == [*head, f"report {written.at('report.html')}", *body]


def test_a_training_is_shown_with_its_loss_and_its_checkpoint(tmp_path, capsys):
    more = {"steps": 1000, "epochs": 2.5, "pairs": 7, "first_loss": 5.25, "last_loss": 1}
    write_record(tmp_path, "train", TrainConfig(input="in"), **more)
    shown = ["run train", "input in", "model ViT-B-32, trained from random:0"]
    shown += ["steps 1,000, 2.50 epochs of 7 pairs", "loss clip, 5.2500 to 1.0000"]
    shown += [f"checkpoint {tmp_path}/checkpoint", "", "4 read", "-1 no_image"]
    assert show(tmp_path) == [*shown, "3 kept (75.0 % of the 4 rows read)"]
    said = fail(capsys, "explain", str(tmp_path), UIDS[0])
    assert said.endswith("holds train, which says nothing of single samples\n")
    write_record(tmp_path, "train", TrainConfig(input="in"), **more | {"last_loss": "low"})
    assert "last_loss is missing or wrong" in fail(capsys, "show", str(tmp_path))


def test_the_negatives_of_a_caption_are_explained_and_where_its_scores_lie(written, tmp_path, capsys):
    curated = written.uri.replace("written", "curated")
    dog, view = (explain(written.uri, uid.upper()) for uid in UIDS)
    row = next(line for line in dog.splitlines() if line.startswith("REPLACE")).split()
    assert row == ["REPLACE", "1", "0.7500", "-0.1250", "object", "dog", "->", "cat", "rules", "a", "cat"]
    assert "no_concept (no operation has anything" in view and "REPLACE" not in view
    for text, uid in ((dog, UIDS[0]), (view, UIDS[1])):
        assert text.endswith(f"raycomp explain {curated} {uid}")
    assert explain(written.uri, "dog.jpg") == dog  # a key of the curation that they were written for
    run = written.read_json("run.json")
    Path(curated, "run.json").write_text("{}")  # something else is there now
    for origin in (curated, "http://127.0.0.1:1/curated"):
        run["config"]["input"] = origin
        written.write_json(run, "run.json")
        reported = explain(written.uri, UIDS[0])
        assert "REPLACE" in reported and "raycomp explain" not in reported, origin
    uri = written.at("negatives", "00000.parquet")
    table = read_columns(uri)
    write_table(table.set_column(0, UID, pa.array(["COCO_1", "coco_2"])), uri, table.schema)
    seal(written)
    assert "a dog" in explain(written.uri, "COCO_1") and "a view" in explain(written.uri, "COCO_2")
    said = f"raycomp: coco_1: no such uid, key, file name, url or caption in {written.uri}\n"
    assert fail(capsys, "explain", written.uri, "coco_1") == said
    assert r"b'\xff\xfe': no such uid" in fail(capsys, "explain", written.uri, "\udcff\udcfe")


def test_what_is_no_run_is_the_users_mistake_in_one_line(written, tmp_path, capsys):
    (tmp_path / "folder/run.json").mkdir(parents=True)
    for place, said in {
        str(tmp_path): "holds no finished run: no run.json; runs below it: curated, folder, written\n",
        str(tmp_path / "gone"): "gone: holds no finished run: no such folder\n",
        "s3://": "has no bucket",
        "a" * 5000: "too long",
        str(tmp_path / "folder"): "run.json: is a folder",
    }.items():
        assert said in fail(capsys, "show", place), place
    for phases in ([3], [{"phase": 1, "rows": 1, "wall_s": 1.0}]):
        written.write_json(written.read_json("run.json") | {"phases": phases}, "run.json")
        assert "not the record of a raycomp run: phases" in fail(capsys, "show", written.uri), phases
    place = tmp_path / "empty"
    place.mkdir()
    for kind, config, lack in (
        ("evaluate", {"model": {"name": "a", "weights": "b"}}, "config.benchmarks"),
        ("negatives", {}, "config.input"),
    ):
        write_record(place, kind, config)
        assert f"raycomp run: {lack} is missing or wrong" in fail(capsys, "show", str(place))
    write_record(place, "probe pas", {})
    assert "has no pas.json; run the probe again" in fail(capsys, "explain", str(place), "a")


def test_runs_are_listed_at_any_depth_with_their_results(curated, tmp_path, capsys):
    _, out, record = curated
    shutil.copytree(out, tmp_path / "a" / "b" / "good")
    shutil.copytree(out, tmp_path / "a" / "b" / "good" / "inner")  # a run's own folders are not searched
    failed = {**record, "status": "failed", "failed": "input: two\nlines"}
    for name, text in (("broken", "{"), ("failed", json.dumps(failed)), ("empty", None)):
        (tmp_path / name).mkdir()
        if text:
            (tmp_path / name / "run.json").write_text(text)
    assert main(["list", str(tmp_path)]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["a/b/good", "broken", "failed"]
    assert rows[0].split(maxsplit=4)[1:] == ["curate", "finished", record["finished"], record["headline"]]
    assert "unreadable" in rows[1] and "input: two lines" in rows[2]
    assert main(["list", str(out)]) == 0 and capsys.readouterr().out.splitlines()[1].startswith(".")
    assert "holds no run of raycomp" in fail(capsys, "list", str(tmp_path / "empty"))


def test_every_name_of_a_sample_explains_it_and_several_samples_are_listed(curation, capsys):
    rows = read_scores(curation)
    for row in rows[3:5]:
        own = raycomp.explain(curation, row["uid"])
        names = row["key"], f"some/where/{row['key']}.jpg", row["url"], row["caption"]
        for name in (*names, f"  {row['caption'].upper()} ", row["uid"].upper()):
            assert raycomp.explain(curation, name) == own, name
    fits = [row for row in rows if "a" in row["caption"]]
    said = raycomp.explain(curation, "a")
    assert said.startswith(f"the first 20 of {len(fits)} samples fit 'a'; name one by its uid")
    assert all(row["uid"] in said for row in fits[:20])
    for text in ("", " ", "nowhere", "/", "%", ".jpg"):
        assert "no such uid, key, file name, url or caption" in fail(capsys, "explain", str(curation), text)
