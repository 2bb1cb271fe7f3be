"""``raycomp evaluate`` and ``compare``: run a model on benchmarks, score and compare its results."""

from raycomp.config.commands import Command

COMMANDS = {
    "evaluate": Command(
        "test a model's composition, retrieval and zero-shot accuracy",
        "raycomp.evaluation.command:evaluate",
        "job --preset --set --out --verify",
        "raycomp.evaluation.config:EvaluateConfig",
        short={
            "--model": "model.name",
            "--weights": "model.weights",
            "--pretrained": "model.weights",
            "--cpus": "cluster.num_cpus",
            "--executor": "cluster.executor",
        },
        matter="model.weights model.name benchmarks sugarcrepe.annotations sugarcrepe.images retrieval.input "
        "zeroshot.input controls.captions trained_on",
        example="--weights out/clip --benchmarks retrieval --retrieval.input photos --out out/scores",
        writes="report.html, scores/ (every example's), table.csv, run.json",
    ),
    "index-eval": Command(
        "fingerprint test sets, so that curate leaves out their samples",
        "raycomp.evaluation.index:index_eval",
        "job --set --out --verify",
        "raycomp.evaluation.config:EvaluateConfig",
        matter="benchmarks sugarcrepe.annotations sugarcrepe.images retrieval.input zeroshot.input",
        example="--benchmarks retrieval --retrieval.input tests/photos --out out/index",
        writes="the index for curate's decontaminate.index, run.json",
    ),
    "compare": Command(
        "compare evaluations with the first of them, example by example, or with a paper's table",
        "raycomp.evaluation.compare:compare",
        "runs --table --out --verify",
        "raycomp.evaluation.config:CompareConfig",
    ),
}
