"""The aggregates of published tables on numbers worked by hand; several named sets in one evaluation."""

import json

import pyarrow as pa
import pytest

from raycomp.config import from_dict
from raycomp.evaluation.benchmarks.published import EDITS
from raycomp.evaluation.classification import PENALTY, open_linear_probe, open_zeroshot
from raycomp.evaluation.compare import compare_tables
from raycomp.evaluation.config import EvaluateConfig, LinearProbeConfig, ZeroshotConfig
from raycomp.evaluation.open import open_evaluations
from raycomp.evaluation.results import compute_outcomes, make_lines
from raycomp.schema import EXAMPLE_SCHEMA
from raycomp.sweep.plan import check_metric, list_metrics
from tests.evaluation.embedded import invent
from tests.evaluation.test_classification import make_folder

# Rows of each split, and how many of them are right.
SUGARCREPE = dict(zip(EDITS, [(2, 1), (4, 3), (1, 0), (2, 2), (4, 1), (1, 1), (4, 0)], strict=True))
VL_CHECKLIST = {"a": (8, 2), "b": (2, 2), "c": (4, 3), "d": (5, 4), "e": (15, 3)}
KINDS = {"a": "attribute", "b": "attribute", "c": "object", "d": "relation", "e": "relation"}


def make_table(benchmark: str, counts: dict, num_true: int = 1, more: int = 0) -> pa.Table:
    rows = []
    for split, (num, right) in counts.items():
        for i in range(num):
            row = dict.fromkeys(EXAMPLE_SCHEMA.names, "") | {"defects": [], "text_scores": [0.0] * 3}
            row |= {"benchmark": benchmark, "split": split, "kind": KINDS.get(split, ""), "id": str(i)}
            row |= {"image": f"{split}{i}", "positives": ["a"] * num_true, "negatives": ["b"]}
            row |= {"positive_scores": [float(i < right + more), 1.0][:num_true], "negative_scores": [0.5]}
            rows.append(row | {"status": "ok"})
    return pa.Table.from_pylist(rows, EXAMPLE_SCHEMA)


def list_lines(benchmark: str, table: pa.Table) -> dict:
    return {(line.metric, line.split): line for line in make_lines(benchmark, compute_outcomes(table))}


def test_aggregates_are_those_worked_by_hand():
    edits = {name: SUGARCREPE[name] for name in [*EDITS][2:]}
    both = {"replace": (0 + 1 + 1 / 4) / 3, "swap": (1 + 0) / 2}
    own = both | {"add": (1 / 2 + 3 / 4) / 2, "replace_add": 7 / 13}
    means = {"micro": 8 / 18, "macro": (1 / 2 + 3 / 4 + 0 + 1 + 1 / 4 + 1 + 0) / 7}
    aspects = {"object": 3 / 4, "attribute": 4 / 10, "relation": 7 / 20, "micro": 14 / 34}
    for name, counts, num_true, metric, expected in (
        ("sugarcrepe", SUGARCREPE, 1, "accuracy", means | own),
        ("sugarcrepe_pp", edits, 2, "itt", both | {"micro": 4 / 12, "macro": (0 + 1 + 1 / 4 + 1 + 0) / 5}),
        ("made", SUGARCREPE, 1, "accuracy", means),
        ("vl_checklist", VL_CHECKLIST, 1, "accuracy", aspects),
    ):
        lines = list_lines(name, make_table(name, counts, num_true))
        found = {key[1]: line.value for key, line in lines.items() if key[0] == metric}
        assert {split: found[split] for split in expected} == pytest.approx(expected)
        assert found.keys() <= {*counts, *expected, "macro"}
    one, other = (make_table("vl_checklist", VL_CHECKLIST, more=more) for more in (0, 1))
    relation = {line.split: line for line in compare_tables("vl_checklist", one, other)}["relation"]
    assert (relation.n, relation.only_reference, relation.only_run) == (20, 0, 2)
    assert relation.difference == pytest.approx(2 / 20)


@pytest.mark.parametrize(
    ("folder", "name", "kind"),
    [
        ("", "vg/Attribute/color", "attribute"),
        ("", "Relation/vg/object_action", "relation"),
        ("data/Relation/vg", "spatial", "relation"),
        ("", "vg/color", ""),
    ],
)
def test_folders_decide_the_aspect(tmp_path, folder, name, kind):
    top = tmp_path / "x" / folder
    for one in (name, "relation/one"):
        (top / one).parent.mkdir(parents=True, exist_ok=True)
        (top / f"{one}.json").write_text(json.dumps([["a.jpg", {"POS": ["a cat"], "NEG": ["a dog"]}]]))
    (tmp_path / "a.jpg").write_bytes(b"x")
    options = {"annotations": str(top), "images": str(tmp_path)}
    config = from_dict(EvaluateConfig(), {"benchmarks": ["vl_checklist"], "vl_checklist": options})
    (opened,) = open_evaluations(config, lambda line: None)
    assert {row.kind for row in opened.choices if row.split == name} == {kind}
    assert bool(opened.warnings) == (not kind) and all(name in line for line in opened.warnings)
    assert check_metric("vl_checklist.accuracy.relation", list_metrics(config))


def test_each_named_set_is_a_split_and_macro_their_mean(tmp_path):
    counts = {"in1k": {"a": 3, "b": 5}, "cifar10": {"b": 4, "a": 2, "c": 1}, "cifar100": {"a": 2, "b": 6}}
    folders = {name: make_folder(tmp_path / name, own) for name, own in counts.items()}
    spec = "::".join(f"{name}={folder}" for name, folder in folders.items())
    (tmp_path / "names.txt").write_text("one\ntwo\n")
    zeroshot = open_zeroshot(ZeroshotConfig(spec, f"cifar100={tmp_path}/names.txt"))
    embedded = invent(zeroshot)
    for sets in (zeroshot, open_linear_probe(LinearProbeConfig(spec, spec))):
        table = sets.grade(*embedded)
        lines = list_lines(sets.name, table)
        for name, part in sets.parts.items():
            alone = list_lines(sets.name, part.grade(*embedded))
            assert {split for _, split in alone} == {"test"}
            for (metric, _), line in alone.items():
                assert repr(lines[metric, name]._replace(split="test")) == repr(line)
        assert ("mean_per_class_recall", "micro") not in lines and lines["acc1", "micro"].n == 23
        compared = {(one.metric, one.split): one for one in compare_tables(sets.name, table, table)}
        for metric in ("acc1", "mean_per_class_recall"):
            values = [lines[metric, name].value for name in folders]
            assert lines[metric, "macro"].value == pytest.approx(sum(values) / 3)
            assert compared[metric, "macro"].run_value == lines[metric, "macro"].value
            if sets is zeroshot:
                assert lines[metric, "cifar"].value == pytest.approx(sum(values[1:]) / 2)
    assert f"{PENALTY.decode()}.in1k".encode() in table.schema.metadata


def test_sets_that_cannot_be_told_apart_are_refused():
    for option, value, said in (
        ("input", "a=x::y", "must be NAME=PATH::NAME=PATH"),
        ("input", "a=x::a=y", "must be NAME=PATH::NAME=PATH"),
        ("input", "macro=x::b=y", "names unlike train, test, micro, macro, cifar"),
        ("templates", "c=x.txt", "zeroshot.input has no set named 'c'"),
    ):
        with pytest.raises(ValueError, match=rf"^zeroshot\.{option}='.*{said}"):
            open_zeroshot(ZeroshotConfig(**{"input": "a=x::b=y", option: value}))
