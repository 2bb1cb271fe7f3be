"""How options are declared, checked, changed (``override``) and described; each command defines its own."""

# This file hands out what it imports.
# ruff: noqa: F401

from importlib import import_module
from typing import TYPE_CHECKING, Any

from raycomp.config.commands import (
    changed_options,
    check_path,
    exact_share,
    flatten,
    from_dict,
    get_config,
    import_command,
    list_kinds,
    load_config,
    load_job,
    override,
    override_all,
    read_value,
    save_config,
    to_dict,
)
from raycomp.config.options import (
    PRECISIONS,
    ClusterConfig,
    ClusterFailed,
    Domain,
    DryRun,
    LeaseLost,
    ModelConfig,
    ParserConfig,
    ScorerConfig,
    Terminated,
    TooMuchBadData,
    UserError,
    WavesConfig,
    as_setting,
    is_marked,
    list_options,
    read_space,
    write_space,
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return a config class of a command by name: earlier config files import it from here."""
        if name.endswith("Config"):
            for place in dict.fromkeys(import_command(kind).config_class for kind in list_kinds()):
                module = import_module(place.partition(":")[0])
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
