"""``raycomp evaluate`` and ``compare``: run a model on benchmarks, score and compare its results."""

from raycomp.config.commands import Command

COMMANDS = {
    "evaluate": Command(
        "ask a model of composition, beside what is reached without looking",
        "evaluate.command:evaluate",
        "job --set --out --verify",
        "evaluate.config:EvaluateConfig",
    ),
    "compare": Command(
        "compare evaluations with the first of them, example by example",
        "evaluate.compare_command:compare",
        "runs --out --verify",
        "evaluate.config:CompareConfig",
    ),
}
