"""``raycomp.open``: what a finished run holds, from its folder alone; and show, explain, probe, publish."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

import raycomp
from raycomp.cli import main
from raycomp.config import get_config, to_dict
from raycomp.data.files import Folder
from raycomp.data.parquet import read_columns, write_table
from raycomp.look.show import Figure, FinishedRun
from raycomp.table import write_csv
from tests.sealed import seal


def write_run(folder: Path, kind: str, outputs: tuple[str, ...], **sections: object) -> FinishedRun:
    """Write a finished run of a kind around the files that lie in the folder; return it opened."""
    config = get_config(kind)
    record = {"kind": kind, "status": "finished", "started": "2026-01-01T00:00:00+00:00", "versions": {}}
    record |= {"config": to_dict(config()), "fingerprint": {}, "warnings": []}
    record |= {"funnel": {"read": 4, "corpus": 4, "kept": 3, "dropped": {"no_image": 1}}, **sections}
    Folder(str(folder)).write_json(record, "run.json")
    seal(Folder(str(folder)), outputs)
    return raycomp.open(folder)


def test_a_curation_opens_with_its_samples_and_counts(curated):
    config, folder, record = curated
    run = raycomp.open(folder)
    assert (run.kind, run.uri) == ("curate", str(folder))
    assert run.record == json.loads(json.dumps(record))
    assert run.config.scorer == config.scorer and run.config.attribute == config.attribute
    assert run.tables == ["kept", "metadata", "scores"]
    assert run.table().equals(read_columns(f"{folder}/subset/kept.parquet").combine_chunks())
    scores = run.table("scores")
    assert len(scores) == record["funnel"]["read"] and len(run.table()) == record["funnel"]["kept"]
    assert {*run.table()["uid"].to_pylist()} <= {*scores["uid"].to_pylist()}
    assert len(run.table().to_pandas()) == record["funnel"]["kept"]
    figures = run.figures()
    assert figures["rows kept"] == Figure(record["funnel"]["kept"], unit="rows")
    assert figures["scorer's AUC"] == Figure(record["scorer_check"]["auc"], unit="share")
    with pytest.raises(ValueError) as error:
        run.table("scorse")
    assert str(error.value) == f"table='scorse': not in {folder}; its tables are kept, metadata, scores"


def test_a_selection_opens_with_the_scores_that_it_chose_from(curated, tmp_path):
    _, folder, record = curated
    raycomp.select(folder, {"attribute.keep": 0.25, "cluster.executor": "local"}, tmp_path / "out")
    run = raycomp.open(tmp_path / "out")
    assert run.kind == "select" and run.tables == ["kept", "scores"]
    assert run.table("scores").equals(raycomp.open(folder).table("scores"))
    assert len(run.table()) == record["funnel"]["corpus"] // 4
    assert run.config.attribute.keep == 0.25


def test_a_run_in_a_store_opens_as_on_a_disk(curated, bucket, s3_store):
    _, folder, _ = curated
    fs.copy_files(str(folder), f"{bucket.removeprefix('s3://')}/run", destination_filesystem=s3_store)
    there, here = raycomp.open(f"{bucket}/run/"), raycomp.open(folder)
    assert there.table().equals(here.table()) and there.figures() == here.figures()


def test_a_summary_escapes_what_it_shows(curated, tmp_path):
    _, folder, record = curated
    shown = raycomp.open(folder)._repr_html_()
    assert f"curate in {folder}" in shown and f"{record['funnel']['kept']} rows" in shown
    run = write_run(tmp_path, "audit", (), warnings=["<script>alert(1)</script>"])
    assert "<script>" not in run._repr_html_() and "&lt;script&gt;" in run._repr_html_()
    with pytest.raises(ValueError, match="the run has no tables"):
        run.table()


def write_table_csv(folder: Path, rows: list[tuple[object, ...]], name: str = "table.csv") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(write_csv(rows))


def test_an_evaluation_opens_with_its_means_and_intervals(tmp_path):
    heads = ("benchmark", "split", "metric", "value", "low", "high", "control", "n")
    nan = float("nan")
    rows = [
        ("aro", "attribution", "accuracy", 0.5, 0.25, 0.75, "", 8),
        ("aro", "attribution", "accuracy", 0.625, nan, nan, "bigram", 8),
        ("aro", "relation", "accuracy", 0.75, 0.5, 1.0, "", 4),
        ("aro", "micro", "accuracy", 0.5, 0.375, 0.625, "", 12),
        ("aro", "macro", "accuracy", 0.625, nan, nan, "", 12),
        ("valse", "test", "accuracy", 1.0, 0.5, 1.0, "", 2),
        ("valse", "test", "brittleness", nan, nan, nan, "", 0),
    ]
    write_table_csv(tmp_path, [heads, *rows])
    config = {"benchmarks": [], "model": {"name": "RN50", "weights": "openai"}}
    run = write_run(tmp_path, "evaluate", ("table.csv",), config=config)
    table = run.table()
    assert table.schema.field("n").type == pa.int64() and table.schema.field("value").type == pa.float64()
    assert table["control"].to_pylist() == [row[-2] for row in rows]
    assert table["low"].to_pylist()[1] is None
    figures = run.figures()
    assert {name: figure for name, figure in figures.items() if not name.startswith("rows")} == {
        "aro: accuracy, micro": Figure(0.5, 0.375, 0.625, "share"),
        "aro: accuracy, macro": Figure(0.625, None, None, "share"),
        "valse: accuracy, test": Figure(1.0, 0.5, 1.0, "share"),
    }
    assert "0.5000 [0.3750, 0.6250] share" in run._repr_html_()


def test_a_comparison_opens_with_its_differences(tmp_path):
    heads = ("benchmark", "split", "metric", "reference", "run", "difference", "low", "high")
    write_table_csv(
        tmp_path / "a", [heads, ("valse", "test", "accuracy", "clip", "tuned", 0.25, 0.125, 0.375)]
    )
    found = write_run(tmp_path / "a", "compare", ("table.csv",)).figures()
    assert found["valse: accuracy, test, tuned minus clip"] == Figure(0.25, 0.125, 0.375, "share")


def test_a_stream_and_a_sweep_open_with_their_main_figures(tmp_path):
    heads = ("track", "method", "metric", "mean", "low", "high", "seeds")
    rows = [
        ("world", "frozen", "last", 50.0, 45.0, 55.0, 3),
        ("world", "realign", "last minus frozen", 2.5, 1.5, 3.5, 3),
        ("world", "realign", "seconds", 2.5, 1.5, 3.5, 3),
    ]
    write_table_csv(tmp_path / "a", [heads, *rows], "continual.csv")
    found = write_run(tmp_path / "a", "continual", ("continual.csv",)).figures()
    assert list(found.values())[2:] == [
        Figure(50.0, 45.0, 55.0, "percent"),
        Figure(2.5, 1.5, 3.5, "points"),
    ]
    schema = pa.schema([("trial", pa.string())])
    write_table(pa.table([["one"]], schema=schema), str(tmp_path / "b" / "trials.parquet"), schema)
    nan = float("nan")
    best = {"group": {"train.loss": "clip"}, "development": {"value": 0.5, "low": 0.25, "high": 0.75}}
    best |= {"report": {"value": nan, "low": nan, "high": nan}}
    run = write_run(tmp_path / "b", "sweep", ("trials.parquet",), metric="valse", best=[best])
    assert run.table()["trial"].to_pylist() == ["one"]
    assert list(run.figures().items())[2:] == [
        ("train.loss=clip: valse, development seeds", Figure(0.5, 0.25, 0.75))
    ]


def test_an_unknown_probe_is_refused(tmp_path):
    with pytest.raises(ValueError, match="probe='overlop'"):
        raycomp.probe("overlop", raycomp.ProbeConfig(), tmp_path / "other")


def test_show_and_explain_return_what_the_commands_print(curated, capsys):
    _, folder, _ = curated
    uid = raycomp.open(folder).table()["uid"][0].as_py()
    for line, text in (
        (["show"], raycomp.show(folder)),
        (["explain"], raycomp.explain(folder, uid)),
    ):
        more = [uid] if line == ["explain"] else []
        assert main([*line, str(folder), *more]) == 0
        assert capsys.readouterr().out == text + "\n"


@pytest.mark.parametrize("call", [raycomp.open, raycomp.show, lambda place: raycomp.publish(place, "out")])
def test_a_folder_that_is_no_run_is_refused_in_a_line(call, tmp_path):
    for place, said in ((tmp_path / "none", "no such folder"), (tmp_path, "no run.json")):
        with pytest.raises(ValueError) as error:
            call(place)
        assert said in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(TypeError, match="must be a path or uri"):
        raycomp.open(3)


def test_only_a_training_is_published(curated, tmp_path):
    with pytest.raises(ValueError, match="holds curate, must hold a training"):
        raycomp.publish(curated[1], tmp_path / "out")
