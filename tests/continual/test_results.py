"""From figures of cells to metrics, tables and CSV."""

import csv
import io
from dataclasses import replace
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycomp.config import override_all
from raycomp.continual import tables
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import StreamRun
from raycomp.continual.embed import find_place
from raycomp.continual.scoring import (
    BEFORE,
    METHOD,
    TASK,
    ZERO_SHOT,
    Result,
    correlate_tasks,
    is_done,
    list_retained,
    measure,
    read_result,
)
from raycomp.core.intervals import contrast
from raycomp.data.files import Folder
from raycomp.data.parquet import write_table
from raycomp.schema import CONTINUAL_SCHEMA
from raycomp.sweep.trials import read_stream_metrics
from tests.continual.drawn_streams import STREAM

MAIN = "fused merged both"


def make_result(method: str, seed: int, matrix: list[list[float]], backbone: int = 0, **more) -> Result:
    """A run of two tasks whose main figure is the matrix, which begins with the time before."""
    values = {
        (TASK, f"{score} {gallery} {way}"): {
            (after, i): value for after, row in enumerate(matrix, BEFORE) for i, value in enumerate(row)
        }
        for score in ("text", "composed", "fused")
        for gallery in ("own", "merged")
        for way in ("both", "image_to_text", "text_to_image")
    }
    values[ZERO_SHOT, "text own both"] = {(BEFORE, 0): 0.5, (0, 0): 0.5, (1, 0): 0.5}
    values[ZERO_SHOT, "fused own both"] = {(BEFORE, 0): 0.1, (0, 0): 0.9, (1, 0): 0.4}
    values |= {(METHOD, name): {(0, 0): value[0], (1, 0): value[1]} for name, value in more.items()}
    facts = {"order": [1, 0], "backbone": backbone, "seconds": 2.0}
    return Result(StreamRun("world", method, seed), facts, values)


def make_results() -> dict[StreamRun, Result]:
    made = []
    for seed in range(4):
        made.append(make_result("frozen", seed, [[0.5, 0.25]] * 3, seed % 2))
        matrix = [[0.5, 0.25], [0.75, 0.3 + seed / 100], [0.6, 0.7]]
        more = {"sigma_max": (1.0 + seed, 2.0), "cce_transpose": (0.1, 0.2), "alpha_realised": (0.9, 0.8)}
        made.append(make_result("compo-realign", seed, matrix, seed % 2, **more))
        made.append(
            make_result("no-trust", seed, [[0.5, 0.25], [0.5, 0.3], [0.4, 0.6 + seed / 50]], seed % 2)
        )
    return {one.one_run: one for one in made}


def test_the_metrics_of_a_matrix_by_hand():
    found = measure(make_result("m", 0, [[0.5, 0.25], [0.75, 0.25], [0.6, 0.7]], sigma_max=(3.0, 2.0)))
    assert found["last"] == pytest.approx(65) and found["learned"] == pytest.approx(72.5)
    assert found["forgetting_best"] == pytest.approx(15) and found["transfer"] == pytest.approx(25)
    assert found["gain"] == pytest.approx(65 - 37.5) and found["fused zstd"] == pytest.approx(-10)
    assert found["sigma_max"] == 3 and found[f"{MAIN} last"] == found["last"]


def test_correlations_over_the_tasks_of_a_run_by_hand():
    def after(*values: float) -> dict[tuple[int, int], float]:
        return {(t, i): value for t, value in enumerate(values) for i in range(3)}

    values = {
        (TASK, MAIN): after(0.8, 0.6, 0.4),
        (TASK, "fused crr"): after(0.4, 0.6, 0.5),
        (ZERO_SHOT, "text own both"): {(BEFORE, 0): 0.5},
        (ZERO_SHOT, "fused own both"): {(0, 0): 0.4, (1, 0): 0.7, (2, 0): 0.2},
        (METHOD, "sigma_max"): {(t, 0): t + 1.0 for t in range(3)},
        (METHOD, "cce_transpose"): {(t, 0): t / 10 for t in range(3)},
    }
    facts = {"order": [0, 1, 2], "backbone": 0, "seconds": 2.0}
    # Right after its task 0.5, 0.4 and 0.2; at the end 0.3, 0.3 and 0.2: of the first two 0.6 of 0.9 is left.
    pair_TT = [[0.5, 0, 0], [0.4, 0.4, 0], [0.3, 0.3, 0.2]]
    values[TASK, "fused a_pair"] = {(t, i): pair_TT[t][i] for t in range(3) for i in range(3)}
    result = Result(StreamRun("world", "m", 0), facts, values)
    assert list_retained(result, "fused") == pytest.approx([np.nan, 0.4 / 0.5, 0.6 / 0.9], nan_ok=True)
    found = correlate_tasks(result)
    assert found["sigma_recall_r"] == pytest.approx(-1) and found[
        "sigma_crr_to_primitives_r"
    ] == pytest.approx(0.5)
    assert found["cce_zstd_r"] == pytest.approx(1), "of the size of ZSTD: -10, 20 and -30 points"
    shown = measure(make_result("m", 0, [[0.5, 0.25]] * 3, sigma_max=(3.0, 2.0)))
    assert "sigma_recall_r" not in shown, "two tasks have no correlation"


@given(
    st.lists(st.text("a-.b", min_size=1, max_size=4), min_size=2, max_size=2, unique=True),
    st.lists(st.sampled_from(["b", "a-b", "b-a-b", "a"]), min_size=2, max_size=2),
)
def test_no_two_runs_share_a_file_whatever_streams_and_methods_are_called(streams, methods):
    with mock.patch("raycomp.continual.data.METHODS", ("a", "b", "a-b", "b-a-b")):
        names = {StreamRun(*both, 0).name for both in zip(streams, methods, strict=True)}
    assert len(names) == 2
    assert StreamRun("world", "zscl", 3, 0.3).name == "world-zscl-03-x0.3"
    assert StreamRun("a-joint.json", "finetune", 0).name == "a-joint.finetune-00"


def test_what_another_run_left_is_not_taken(tmp_path):
    folder, one_run = Folder(str(tmp_path)), StreamRun("a-joint", "finetune", 0)
    where = ("cells", f"{one_run.name}.json")
    assert not is_done(folder, one_run)
    empty = pa.Table.from_pylist([], CONTINUAL_SCHEMA)
    write_table(empty, folder.at("cells", f"{one_run.name}.parquet"), CONTINUAL_SCHEMA)
    folder.write_json({"cell": vars(one_run)}, *where)
    assert is_done(folder, one_run) and read_result(folder, one_run).one_run == one_run
    folder.write_json({"cell": {"stream": "a", "method": "joint-finetune", "seed": 0}}, *where)
    assert not is_done(folder, one_run)
    with pytest.raises(ValueError, match="belongs to another run than a-joint, finetune, seed 0; remove it"):
        read_result(folder, one_run)
    folder.write_bytes(b"{", *where)
    assert not is_done(folder, one_run)


def test_embeddings_of_another_precision_or_gpu_are_not_taken():
    def name(stream: str, gpu=None, precision: str = "fp32") -> str:
        config = override_all(ContinualConfig(), {"model.precision": precision})
        own = StreamRun(stream, "frozen", 0), config, Folder("/x"), {"model": "m"}, False, gpu
        return find_place(*own).name

    l4 = {"name": "L4", "cuda": "12.4"}
    names = [name("mine.json"), name("mine.json", None, "bf16"), name(STREAM), name(STREAM, l4)]
    names += [name("mine.json", {**l4, **more}) for more in ({}, {"name": "H200"}, {"cuda": "13"})]
    assert len({*names}) == len(names)
    assert name(STREAM, None, "bf16") == name(STREAM), "a made stream has its own model"


def test_a_metric_is_estimated_over_backbones_and_compared_by_seed():
    results = make_results()
    measured = {one_run: measure(one) for one_run, one in results.items()}
    lasts = [measured[StreamRun("world", "no-trust", seed)]["last"] for seed in range(4)]
    runs = tables.Runs("world", results, measured)
    found = runs.estimate("no-trust", "last")
    by_backbone = contrast([(lasts[0] + lasts[2]) / 2, (lasts[1] + lasts[3]) / 2])
    assert found.value == pytest.approx(np.mean(lasts)) and found.num == 4
    assert (found.low, found.high) == pytest.approx((by_backbone.low, by_backbone.high))
    against = runs.compare("no-trust", "frozen", "last")
    assert against.value == pytest.approx(np.mean(lasts) - 37.5)
    one = {one_run: measured[one_run] for one_run, result in results.items() if result.facts["backbone"] == 0}
    assert tables.Runs("world", results, one).estimate("no-trust", "last").num == 2
    assert runs.estimate("no-trust", "no such") is None


def test_the_csv_has_every_metric_and_the_tables_every_method(tmp_path):
    results = {
        replace(one_run, stream="=cmd(1).json"): replace(one, one_run=replace(one_run, stream="=cmd(1).json"))
        for one_run, one in make_results().items()
    }
    measured = {one_run: measure(one) for one_run, one in results.items()}
    text = tables.write_long(results, measured)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == ["track", "method", "metric", "mean", "low", "high", "seeds"]
    assert {row["track"] for row in rows} == {"\u00a0=cmd(1)"}, "no formula"
    (tmp_path / "continual.csv").write_text(text)
    assert "=cmd(1).last.all" in read_stream_metrics(Folder(str(tmp_path)), "continual.csv")
    last = {row["method"]: float(row["mean"]) for row in rows if row["metric"] == "last minus frozen"}
    assert last == pytest.approx({"compo-realign": 65 - 37.5, "no-trust": 51.5 - 37.5})
    made = tables.make_tables(results, measured)
    titles = [table.title.removeprefix("=cmd(1): ") for table in made]
    assert {"results by method", "minus frozen", "sigma and recall"} <= {*titles}
    assert sum(title.endswith("task by task") for title in titles) == 3
    lines = tables.say_main(results, measured)
    assert len(lines) == 3 and "last minus frozen" in lines[1] and "last minus frozen" not in lines[0]
    assert list(tables.list_plots(results, measured)) == ["=cmd(1)"]
    assert all(table.to_text() and table.to_csv() for table in made)


def test_samples_that_are_left_out_are_reported_half_by_half():
    facts = {"samples": {"one, a, train": {"ok": 17, "no_image": 3}, "one, a, test": {"ok": 5}}}
    (table,) = tables.report_samples({"one-00-abc": facts})
    assert list(table.rows) == [("one, a, train", 17, 20), ("one, a, test", 5, 5)]


def test_margins_are_compared_run_by_run():
    """All four runs one way: p is 2 / 2^4."""
    made = []
    for seed in range(4):
        for method, margin in (("compo-realign", 0.2), ("no-trust", 0.1 + seed / 100)):
            more = {f"{score} margin SWAP attribute": (0.0, margin) for score in ("composed", "fused")}
            made.append(make_result(method, seed, [[0.5, 0.25]] * 3, seed, **more))
    results = {one.one_run: one for one in made}
    measured = {one_run: measure(one) for one_run, one in results.items()}
    table = tables.report_margin_gaps(tables.Runs("world", results, measured))
    ((than, edit, num, gap, p, *fused),) = table.rows
    assert (than, edit, num, p) == ("no-trust", "SWAP attribute", 4, 0.125)
    assert gap.value == pytest.approx(0.085) and len(fused) == 2
    one = {one_run: result for one_run, result in results.items() if one_run.seed == 0}
    alone = {one_run: found for one_run, found in measured.items() if one_run.seed == 0}
    assert not tables.report_margin_gaps(tables.Runs("world", one, alone)).rows
