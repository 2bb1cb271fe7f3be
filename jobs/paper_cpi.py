"""The tables of Counterfactual Phrase Intervention (Go et al., arXiv 2605.22651).

    python jobs/paper_cpi.py cpi_table1 --out out/cpi      all pairs, and the best 90 to 50 % by alignment
    python jobs/paper_cpi.py cpi_tables23 --out out/cpi    all, a random half, the best by alignment and CPI
    python jobs/paper_cpi.py cpi_table4 --out out/cpi      NegCLIP and CE-CLIP, on all pairs and on CPI's half
    python jobs/paper_cpi.py cpi_ablations --out out/cpi   aggregations, shares, other rankings of the pool
    ... --tiny                                             on drawn pairs, minutes on two cores
    ... --dry-run                                          the trainings and their cost

The tables share OUT: its curation, which scores every pair once (``attribute.pool=1``), and equal rows. A
killed run resumes by the same line. On a cluster: ``ray job submit --working-dir . -- python
jobs/paper_cpi.py ...`` with absolute paths.

Below ``--data`` (docs/benchmarks.md says where each set is had): cc3m/ (shards of img2dataset, about 2.2
million pairs with images), sugarcrepe/data, scpp/data, vl_checklist, coco/val2017, vg, flickr30k, in1k,
cifar10 and cifar100 (zero-shot and probe layout). A set that is not there leaves its figures missing; the
table names it.

What the paper states: ViT-B/32 from one checkpoint, equal optimisation and steps, 70 % by alignment, then
50 % by the mean drop of nouns, two seeds. Ours: three seeds, and what it leaves open. Batch (1,024), rate
(5e-4), warm-up and weight decay are those of TripletCLIP's public script, which pretrains at this size;
21,700 steps are ten passes over all 2,222,261 pairs, and every row takes as many. "The same checkpoint"
is read as one random start per seed; the paper does not say how it was made. Length and phrase count rank
the pool as the paper's rule does. The paper's "combined" aggregation is not defined, so it is not an row.

Cost: from measured rates, a training takes 1.1 hours of one H100 where reading and decoding keep up (21,700
steps of .19 s), NegCLIP 2.7; curation some 20 minutes. Tables 2 and 3: 12 trainings. 2 GB of disk for each.
Expected: the published values, which the table prints next to the measured ones: CPI's half above the best
half by alignment by .5 (SugarCrepe) and 1.0 points (relations). The paper's standard deviations over seeds
are .0 to .7. Of paired differences with one of .4, three seeds show 1.2 points in four of five cases. Not run
here at this size.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rows import Experiment, Row, main
from tiny import make_tiny

from raycomp import AttributeConfig, CurateConfig, EvaluateConfig, NegativesConfig, TrainConfig, WritingConfig
from raycomp.config.commands import list_presets, load_config
from raycomp.evaluation.config import BenchmarkConfig, LinearProbeConfig, RetrievalConfig, ZeroshotConfig

STEPS = 21_700
"""Of every row: ten passes over all pairs."""
ALL, RULE = {"select.rule": "full"}, {"select.rule": "cpi", "align.keep": 0.7, "attribute.keep": 0.5}
POOL = {"align.keep": 0.7, "attribute.keep": 0.5}


def by_alignment(keep: float) -> Row:
    return Row({"select.rule": "align_only", "attribute.keep": keep})


TABLE_1 = {"full": Row(ALL), **{f"top{keep}": by_alignment(keep / 100) for keep in range(90, 40, -10)}}
TABLES_23 = {
    "full": Row(ALL),
    "random50": Row({"select.rule": "random", "attribute.keep": 0.5}),
    "top50": by_alignment(0.5),
    "cpi50": Row(RULE),
}
_CECLIP = {"train.loss": "ceclip", "train.num_negatives": 4}
TABLE_4 = {
    "negclip_full": Row(ALL, {"train.loss": "negclip"}, "calls1"),
    "negclip_cpi50": Row(RULE, {"train.loss": "negclip"}, "calls1"),
    "ceclip_full": Row(ALL, _CECLIP, "calls1"),
    "ceclip_cpi50": Row(RULE, _CECLIP, "calls1"),
}
ABLATIONS = {
    "cpi50": Row(RULE),
    "max": Row({**RULE, "attribute.aggregate": "max"}),
    "min": Row({**RULE, "attribute.aggregate": "min"}),
    "supported": Row({**RULE, "attribute.aggregate": "fraction_supported"}),
    "keep60": Row({**RULE, "attribute.keep": 0.6}),
    "keep40": Row({**RULE, "attribute.keep": 0.4}),
    "keep30": Row({**RULE, "attribute.keep": 0.3}),
    "length": Row({**POOL, "select.rule": "length"}),
    "phrases": Row({**POOL, "select.rule": "phrase_count"}),
    "reverse": Row({**POOL, "select.rule": "cpi_reverse"}),
    "drawn": Row({**POOL, "select.rule": "align70_random50"}),
}
TABLES = {
    "cpi_table1": (TABLE_1, 3),
    "cpi_tables23": (TABLES_23, 3),
    "cpi_table4": (TABLE_4, 3),
    "cpi_ablations": (ABLATIONS, 3),
}


def make(data: str, table: str) -> Experiment:
    """Return the experiment of a table at the paper's size."""
    return make_on("cc3m", data)


def make_on(corpus: str, data: str) -> Experiment:
    """Return the experiment on a corpus below ``data``, with the test sets that are there."""
    at = Path(data)
    train = load_config(list_presets("train")["clip"], TrainConfig)
    fit = replace(train.train, epochs=None, steps=STEPS)
    return Experiment(
        curate=CurateConfig(input=f"{data}/{corpus}", attribute=AttributeConfig(pool=1.0)),
        train=replace(train, train=fit),
        evaluate=_list_sets(at),
        negatives={"calls1": NegativesConfig(negatives=WritingConfig(per_caption=4))},
    )


def _list_sets(at: Path) -> EvaluateConfig:
    """Return the evaluation on the test sets that are there."""
    groups: dict[str, Any] = {
        "sugarcrepe": BenchmarkConfig(f"{at}/sugarcrepe/data", f"{at}/coco/val2017"),
        "sugarcrepe_pp": BenchmarkConfig(f"{at}/scpp/data", f"{at}/coco/val2017"),
        "vl_checklist": BenchmarkConfig(f"{at}/vl_checklist", f"{at}/vg"),
        "retrieval": RetrievalConfig(f"{at}/flickr30k"),
    }
    places = {"sugarcrepe": "sugarcrepe", "sugarcrepe_pp": "scpp", "vl_checklist": "vl_checklist"}
    there = {name: one for name, one in groups.items() if (at / places.get(name, "flickr30k")).exists()}
    classes = [name for name in ("in1k", "cifar10", "cifar100") if (at / name / "test").exists()]
    if classes:
        there["zeroshot"] = ZeroshotConfig("::".join(f"{name}={at}/{name}/test" for name in classes))
    probes = [name for name in classes if (at / name / "train").exists()]
    if probes:
        parts = ["::".join(f"{name}={at}/{name}/{part}" for name in probes) for part in ("train", "test")]
        there["linear_probe"] = LinearProbeConfig(train=parts[0], test=parts[1])
    return EvaluateConfig(benchmarks=tuple(there), **there)


if __name__ == "__main__":
    assert __doc__
    main(__doc__, TABLES, make, make_tiny)
