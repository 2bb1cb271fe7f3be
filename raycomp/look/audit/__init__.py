"""The command ``audit``: what is odd about a data set, before any model runs."""

from raycomp.config.commands import Command

COMMANDS = {
    "audit": Command(
        "list what is odd about a data set, with pictures and the filter that drops it; runs no model",
        "raycomp.look.audit.command:audit",
        "job --set --out",
        "raycomp.look.audit.config:AuditConfig",
    ),
}
