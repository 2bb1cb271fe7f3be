"""Commands that look at runs and data: show, list, explain, audit, explore, diff, card."""

from raycomp.config.commands import Command

COMMANDS = {
    "audit": Command(
        "list what is odd about a data set, with the filters that drop it",
        "raycomp.look.audit:audit",
        "input job --set --out",
        "raycomp.look.config:AuditConfig",
        short={"--model": "scorer.model", "--cpus": "cluster.num_cpus"},
        matter="columns.image columns.caption dark blurred side most_words boilerplate cluster.executor",
        example="photos --out out/audit",
        writes="report.html, findings by row, pictures, run.json",
    ),
    "explore": Command(
        "write pages to look at the samples of a curation",
        "raycomp.look.explore:explore",
        "source --set --atlas --out",
        "raycomp.look.config:ExploreConfig",
        matter="where rows thumbnails neighbours projection seed",
        example="out/photos --out out/pages --where 'alignment < 0.2'",
        writes="report.html and the pages of samples, run.json",
    ),
    "show": Command(
        "print the result, counts and warnings of a run", "raycomp.look.show:show", "source --verify"
    ),
    "list": Command(
        "list the runs in a folder, each with its result", "raycomp.look.show:list_runs", "parent"
    ),
    "explain": Command(
        "print every score and gate of one sample", "raycomp.look.show:explain", "source uid --verify"
    ),
    "diff": Command(
        "compare two curations or selections: options, rows, concepts",
        "raycomp.look.diff:diff",
        "first second --out --verify",
        "raycomp.look.config:DiffConfig",
    ),
    "card": Command(
        "write a subset's data card and Croissant description",
        "raycomp.look.card:card",
        "source --out --verify",
    ),
}
