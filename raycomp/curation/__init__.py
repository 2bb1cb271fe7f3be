"""Curation, stage by stage: score shards, choose a subset, keep it up to date, recompute what it states."""

from raycomp.config.commands import Command

COMMANDS = {
    "curate": Command(
        "score shards and choose a subset",
        "raycomp.curation.command:curate",
        "input job --preset --set --out",
        "raycomp.curation.config:CurateConfig",
        short={
            "--model": "scorer.model",
            "--weights": "scorer.weights",
            "--rule": "select.rule",
            "--batch-size": "scorer.batch_size",
            "--cpus": "cluster.num_cpus",
            "--executor": "cluster.executor",
        },
        matter="align.keep attribute.keep attribute.pool select.rule scorer.model scorer.weights "
        "filter.where near.rules materialize cluster.executor",
        example="photos --out out/photos --align.keep 0.6",
        writes="report.html, subset/ and subset.npy (the pairs kept), shards/ (with materialize), scores/ "
        "(every score of every pair), run.json",
    ),
    "select": Command(
        "choose again from the scores of a curation; loads no model",
        "raycomp.curation.command:select",
        "source --set --out --verify",
        "raycomp.curation.config:CurateConfig",
        mark="select",
        short={"--rule": "select.rule"},
        matter="align.keep attribute.keep select.rule filter.where filter.exclude near.rules near.action "
        "materialize",
        example="out/photos --out out/half --align.keep 0.5 --attribute.keep 0.3",
        writes="report.html, subset/, subset.npy, shards/ (with materialize), run.json",
    ),
    "update": Command(
        "bring a curation, or its negatives, up to date in place",
        "raycomp.curation.update:update",
        "source --add --remove --set --dry-run --verify",
        "raycomp.curation.config:CurateConfig",
        mark="update",
        matter="align.keep attribute.keep select.rule filter.where near.rules",
        example="out/photos --add new/ --remove opt-outs.txt",
        writes="the same files, brought up to date in place",
    ),
    "verify": Command(
        "recompute a curation's counts and gates, and some scores",
        "raycomp.curation.verify:verify",
        "source --set",
        "raycomp.curation.config:VerifyConfig",
        example="out/photos --rows 1000",
    ),
}
