"""``raycomp evaluate`` and ``compare``: run a model on benchmarks, score and compare its results."""

from raycomp.config.commands import Command

COMMANDS = {
    "evaluate": Command(
        "test a model's composition, retrieval and zero-shot accuracy against text-only baselines",
        "raycomp.evaluation.command:evaluate",
        "job --set --out --verify",
        "raycomp.evaluation.config:EvaluateConfig",
    ),
    "index-eval": Command(
        "fingerprint test sets, so that curate can leave out samples that are also in them",
        "raycomp.evaluation.index:index_eval",
        "job --set --out --verify",
        "raycomp.evaluation.config:EvaluateConfig",
    ),
    "compare": Command(
        "compare evaluations with the first of them, example by example",
        "raycomp.evaluation.compare:compare",
        "runs --out --verify",
        "raycomp.evaluation.config:CompareConfig",
    ),
}
