"""The one way to change a config, shared by ``--set``, jobs and sweeps; and to write one down."""

import dataclasses
import os
import typing
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any


def exact_share(share: float, count: int) -> int:
    """Return floor(share * count) with ``share`` read as the decimal it prints as: 0.7 of 90 is 63."""
    return int(Decimal(str(share)) * count)


def override(config: Any, path: str, value: Any) -> Any:
    """Return a copy of ``config`` with the field at ``path`` ("align.keep") set.

    Text values are read as the field's type. Raises ValueError naming the valid fields where ``path`` does
    not lead to a field, and the wanted type where ``value`` does not fit.
    """
    return override_all(config, {path: value})


def override_all(config: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Return a copy of ``config`` with several fields set at once, checked together.

    Two dials that bound each other can so be moved in any order. Raises ValueError as ``override`` does.
    """
    hints = typing.get_type_hints(type(config))
    groups: dict[str, dict[str, Any]] = {}
    changes: dict[str, Any] = {}
    for path, value in values.items():
        name, _, below = path.partition(".")
        if name not in hints:
            raise ValueError(f"{prefix + path!r}: no such dial; here are {', '.join(hints)}")
        is_group = dataclasses.is_dataclass(getattr(config, name))
        if is_group and not below:
            fields = ", ".join(f"{prefix}{name}.{f.name}" for f in dataclasses.fields(getattr(config, name)))
            raise ValueError(f"{prefix + path!r}: names a group of dials; set one of {fields}")
        if below and not is_group:
            raise ValueError(f"{prefix + path!r}: {prefix}{name} is a value and has no dial {below!r}")
        if is_group:
            groups.setdefault(name, {})[below] = value
        else:
            changes[name] = _read(prefix + path, hints[name], value)
    for name, inner in groups.items():
        changes[name] = override_all(getattr(config, name), inner, f"{prefix}{name}.")
    return dataclasses.replace(config, **changes)


def _read(path: str, hint: Any, value: Any) -> Any:
    """Read ``value`` as type ``hint``: bool, int, float, str, tuple[str, ...] or one of these | None."""
    options = typing.get_args(hint) if type(None) in typing.get_args(hint) else (hint,)
    if type(None) in options and (value is None or value in ("none", "None", "null")):
        return None
    kind = next(option for option in options if option is not type(None))
    try:
        return _convert(kind, value)
    except (ValueError, LookupError) as error:
        wanted = "text in UTF-8" if kind is str else f"of type {kind.__name__}"
        raise ValueError(f"{path}={value!r}: must be {wanted}") from error


def _convert(kind: Any, value: Any) -> Any:
    """Return ``value`` as bool, int, float, str or tuple of str. Raises ValueError or LookupError."""
    if typing.get_origin(kind) is tuple and isinstance(value, list | tuple | str):
        parts = [part for part in value.split(",") if part] if isinstance(value, str) else value
        return tuple(_convert(str, part) for part in parts)
    if kind is bool:
        return {"true": True, "false": False, "1": True, "0": False}[str(value).lower()]
    if kind in (int, float):
        return kind(str(value))
    if kind is str and isinstance(value, str | int | float | os.PathLike):
        return str(value).encode().decode()  # a path may hold bytes that are no text
    raise ValueError(value)


def to_dict(config: Any) -> dict[str, Any]:
    """Return the config as plain nested dicts, as run.json holds it."""
    return dataclasses.asdict(config)


def from_dict(config: Any, values: Mapping[str, Any]) -> Any:
    """Return ``config`` with every field set as ``to_dict`` wrote it."""
    return override_all(config, dict(flatten(values)))


def changed_dials(config: Any) -> dict[str, Any]:
    """Return the dials that differ from the defaults, by path: what a command line must say."""
    default = dict(flatten(to_dict(type(config)())))
    return {path: value for path, value in flatten(to_dict(config)) if value != default[path]}


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of nested dicts, paths joined with dots."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
