"""``raycomp verify``, ``prove`` and ``check``: whether a corpus is what its record states."""

from raycomp.config.commands import Command

COMMANDS = {
    "verify": Command(
        "recompute a curation's counts, gates and root, and the scores of random rows",
        "raycomp.verify.command:verify",
        "source --rows --seed",
    ),
    "prove": Command(
        "print a proof that a uid is in or out of a curation",
        "raycomp.verify.proofs:prove",
        "source uid",
    ),
    "check": Command(
        "check a proof against a root; needs no data",
        "raycomp.verify.proofs:check",
        "proof root",
    ),
}
