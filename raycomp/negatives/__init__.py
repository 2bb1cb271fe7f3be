"""Hard negatives of captions: propose candidates, judge them, choose the hardest."""

from raycomp.config.commands import Command

COMMANDS = {
    "negatives": Command(
        "write hard negatives of captions",
        "raycomp.negatives.command:negatives",
        "input job --set --out --verify",
        "raycomp.negatives.config:NegativesConfig",
        short={
            "--engine": "negatives.engine",
            "--calls": "negatives.calls",
            "--seed": "negatives.seed",
            "--model": "scorer.model",
            "--weights": "scorer.weights",
            "--llm": "llm.model",
            "--url": "llm.url",
            "--cpus": "cluster.num_cpus",
            "--executor": "cluster.executor",
        },
        matter="negatives.engine negatives.operations negatives.calls negatives.per_caption negatives.rank "
        "negatives.judge negatives.export llm.model llm.url",
        example="out/photos --out out/negatives --negatives.calls 2",
        writes="report.html, negatives/ (every negative with its status), exports/, run.json",
    ),
}
