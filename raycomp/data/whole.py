"""Absolute paths for all options before a run starts: they are then valid on every worker, in any folder."""

import os
from typing import TypeVar

from raycomp.config import from_dict, list_options, override_all, to_dict
from raycomp.config.change import flatten
from raycomp.config.check import read_share_or_none
from raycomp.config.own_code import find_file, is_own, name_own
from raycomp.data.inputs import absolute_input
from raycomp.data.paths import ARCHITECTURE, RUN, absolute_uri

Config = TypeVar("Config")


def with_absolute_paths(config: Config) -> Config:
    """Return the config with absolute paths in every option that names a file or folder."""
    config = from_dict(config, to_dict(config))  # every option is read as --set reads it
    values = dict(flatten(to_dict(config)))
    named = [option for option in list_options(type(config), "path") if values.get(option.path)]
    return override_all(
        config, {option.path: _WHOLE[option.marks["path"]](values[option.path]) for option in named}
    )


def _whole_file(name: str) -> str:
    """Return the whole path of a file or a model's folder, also in ``local-dir:FOLDER``; another name as is.

    A folder that only shares the name of a model is not a model's folder.
    """
    schema, _, place = name.partition(":")
    if schema == "local-dir" and place:
        return f"{schema}:{absolute_uri(place)}"
    files = (name, *(os.path.join(name, one) for one in (RUN, ARCHITECTURE)))
    return absolute_uri(name) if any(map(os.path.isfile, files)) else name


def _whole_folder(name: str) -> str:
    return absolute_uri(name) if os.sep in name else name


def _whole_code(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if isinstance(value, tuple):
        return tuple(str(_whole_code(name)) for name in value)
    return f"{absolute_uri(find_file(value))}:{name_own(value)}" if is_own(value) else value


def _whole_held_out(value: str) -> str:
    return absolute_input(value) if read_share_or_none(value) is None else value


# By the metadata of an option, config/options.py.
_WHOLE = {
    "input": absolute_input,
    "file": _whole_file,
    "folder": _whole_folder,
    "place": absolute_uri,
    "code": _whole_code,
    "share_or_input": _whole_held_out,
}
