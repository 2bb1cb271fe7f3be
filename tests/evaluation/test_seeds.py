"""A paper's table, filled with means over seeds: values by hand, missing figures, mistakes in the layout."""

import csv
from pathlib import Path

import numpy as np
import pytest

import raycomp
from raycomp.evaluation.seeds import measure_figures, read_layout, read_values
from raycomp.table import write_csv
from tests.drawn import WORLD
from tests.sealed import write_run

LAYOUT = """figure,metric,needs,full,half
SC,sugarcrepe.accuracy.micro,SugarCrepe,57.78 +- 0.09,58.49
Both,retrieval.i.test retrieval.t.test,,,12.30
IN-1K,zeroshot.acc1.in1k,ImageNet-1k validation images,7.27,7.43
"""


def write_table(folder: Path, kind: str, name: str, rows: list[tuple]) -> str:
    folder.mkdir(parents=True)
    (folder / name).write_text(write_csv(rows))
    config = {"model": {"name": "ViT-B-32", "weights": "a.pt"}, "benchmarks": [WORLD]}
    return write_run(folder, kind, outputs=(name,), config=config)


def write_evaluation(folder: Path, **values: float) -> str:
    rows = [("benchmark", "split", "metric", "value", "control")]
    names = {
        "sc": ("sugarcrepe", "micro", "accuracy"),
        "i": ("retrieval", "test", "i"),
        "t": ("retrieval", "test", "t"),
    }
    rows += [(*names[name], value, "") for name, value in values.items()]
    rows += [("sugarcrepe", "micro", "accuracy", 0.99, "bigram")]
    return write_table(folder, "evaluate", "table.csv", rows)


def test_means_and_differences_are_those_by_hand(tmp_path):
    layout = tmp_path / "layout.csv"
    layout.write_text("\ufeff# Drawn\n# data.\n" + LAYOUT)
    full = [write_evaluation(tmp_path / f"full{n}", sc=sc, i=0.1, t=0.3) for n, sc in enumerate((0.5, 0.52))]
    half = [write_evaluation(tmp_path / f"half{n}", sc=sc) for n, sc in enumerate((0.53, 0.57))]
    named = [*(f"full={one}" for one in full), *(f"half={one}" for one in half)]
    run = raycomp.compare(*named, table=layout, out=tmp_path / "out")
    rows = {(row["figure"], row["row"]): row for row in csv.DictReader((tmp_path / "out/table.csv").open())}
    own = {name: float(rows["SC", "half"][name]) for name in ("mean", "sd", "difference", "low", "high")}
    # Differences 3 and 5: mean 4, standard error 1, t(1) = 12.706.
    wanted = {"mean": 55, "sd": np.sqrt(8), "difference": 4, "low": 4 - 12.706, "high": 4 + 12.706}
    assert own == pytest.approx(wanted, abs=1e-3)
    assert rows["SC", "full"]["published"] == "57.78 +- 0.09" and rows["SC", "full"]["difference"] == ""
    assert float(rows["Both", "full"]["mean"]) == pytest.approx(20)
    assert rows["Both", "half"]["mean"] == "" and rows["Both", "half"]["needs"] == "a run of this row"
    assert rows["IN-1K", "half"]["needs"] == "ImageNet-1k validation images"
    assert run.record["funnel"]["dropped"] == {"missing": 3}
    said = (tmp_path / "out/report.html").read_text()
    assert (
        "55.00\u00a0\u00b1\u00a02.83" in said
        and "Drawn data. Mean" in said
        and "ImageNet-1k validation images" in said
    )
    assert run.figures()["SC, half"].value == pytest.approx(55)


def test_rows_of_a_continual_run_are_its_methods(tmp_path):
    layout = tmp_path / "layout.csv"
    layout.write_text("figure,metric,needs,frozen,realign\nAF,world.forgetting_best,,,3.2\n")
    rows = [("track", "method", "seed", "metric", "value")]
    rows += [("world", "frozen", seed, "forgetting_best", 0.0) for seed in (0, 1)]
    rows += [("world", "realign", 1, "forgetting_best", 4.0)]
    values = read_values([("", write_table(tmp_path / "run", "continual", "runs.csv", rows))])
    frozen, realign = measure_figures(read_layout(str(layout))[0], values)
    assert (frozen.mean, frozen.seeds, realign.mean, realign.seeds, realign.difference) == (0, 2, 4, 1, 4)


def test_mistakes_are_one_line(tmp_path):
    run = write_evaluation(tmp_path / "run", sc=0.5)
    layout = tmp_path / "layout.csv"
    for text, named, said in (
        (LAYOUT, f"third={run}", "'third': is not a row of"),
        (LAYOUT, run, "name each run ROW=FOLDER, with a row of full, half"),
        ("a,b\n1,2\n", f"full={run}", "must have the columns figure, metric, needs"),
        ("figure,metric,needs,full\nSC,,x,1\n", f"full={run}", "line 2 has no figure or no metric"),
        ("figure,metric,needs,full\nSC,a.b.c\n", f"full={run}", "line 2 of the table has not the 4 cells"),
    ):
        layout.write_text(text)
        with pytest.raises(ValueError, match=said):
            raycomp.compare(named, table=layout, out=tmp_path / "out")
    earlier = write_table(tmp_path / "earlier", "continual", "continual.csv", [("track",)])
    layout.write_text(LAYOUT)
    with pytest.raises(ValueError, match=r"has no runs\.csv, an earlier version wrote it; run it again"):
        raycomp.compare(earlier, table=layout, out=tmp_path / "out")
    with pytest.raises(ValueError, match="there is no such file"):
        raycomp.compare(f"full={run}", table=tmp_path / "none.csv", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
