"""Continual learning: streams of tasks, methods that learn them in order, metrics after each task."""

from raycomp.config.commands import Command

COMMANDS = {
    "continual": Command(
        "train methods task after task and measure forgetting",
        "raycomp.continual.command:continual",
        "job --set --out",
        "raycomp.continual.config:ContinualConfig",
        short={
            "--model": "model.name",
            "--weights": "model.weights",
            "--cpus": "cluster.num_cpus",
            "--executor": "cluster.executor",
        },
        matter="stream method seeds model.name model.weights buffer.size trust.gamma tune.steps "
        "tune.learning_rate",
        example="--stream tasks.json --method finetune,compo-realign --out out/continual",
        writes="report.html, continual.csv, figures/, run.json",
    ),
}
