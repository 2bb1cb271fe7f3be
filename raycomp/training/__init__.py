"""Training of CLIP on pairs and hard negatives, on one rank or many."""

from raycomp.config.commands import Command

COMMANDS = {
    "train": Command(
        "train a CLIP on pairs, with hard negatives or without",
        "raycomp.training.command:train",
        "input job --preset --set --out --verify",
        "raycomp.training.config:TrainConfig",
        short={
            "--epochs": "train.epochs",
            "--steps": "train.steps",
            "--lr": "train.learning_rate",
            "--batch-size": "train.batch_size",
            "--workers": "train.workers",
            "--seed": "train.seed",
            "--loss": "train.loss",
            "--model": "model.name",
            "--weights": "model.weights",
            "--pretrained": "model.weights",
            "--warmup": "train.warmup",
            "--wd": "train.weight_decay",
            "--held-out": "train.held_out",
            "--cpus": "cluster.num_cpus",
            "--executor": "cluster.executor",
        },
        matter="negatives model.name model.weights train.loss train.epochs train.steps train.batch_size "
        "train.learning_rate train.workers train.held_out",
        example="out/photos --out out/clip --epochs 3 --batch-size 256 --lr 5e-4",
        writes="report.html, checkpoint/ (the model, as evaluate and open_clip read it), metrics.jsonl, "
        "tensorboard/, run.json",
    ),
    "publish": Command(
        "write a trained model in the layout of open_clip's hub models",
        "raycomp.training.command:publish",
        "source --out --verify",
    ),
}
