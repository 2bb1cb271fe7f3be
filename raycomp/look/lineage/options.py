"""What two runs differ in: options, versions, and the fingerprints of models and inputs."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from raycomp.config import as_setting, flatten, to_dict
from raycomp.data.runs import TIMES
from raycomp.look.lineage.sides import Side

_CODE = ("parser", "lexicon", "nonces")
"""Fingerprints of what finds phrases and replaces words."""
_LETTERS = 16


class Difference(NamedTuple):
    """An option or fact with its value in each run; None where a run lacks it."""

    what: str
    first: str | None
    second: str | None


def compare_options(first: Side, second: Side) -> list[Difference]:
    """Return what differs: options by path, then version, device, and fingerprints, cut to 16 letters."""
    found = _compare(_list_options(first), _list_options(second))
    # A selection takes the rows that its curation attributed, and records no pool of its own.
    is_selected = "select" in (first.run["kind"], second.run["kind"])
    return [one for one in found if not (is_selected and one.what == "attribute.pool")]


def _compare(first: dict[str, str | None], second: dict[str, str | None]) -> list[Difference]:
    names = dict.fromkeys([*first, *second])
    found = (Difference(name, first.get(name), second.get(name)) for name in names)
    return [one for one in found if one.first != one.second]


def _list_options(side: Side) -> dict[str, str | None]:
    # A run's config is read by the present version: an option that came later has its default.
    options = {name: as_setting(value) for name, value in flatten(to_dict(side.config))}
    return options | {name: value for name, value in _list_facts(side)}


def _list_facts(side: Side) -> Iterator[tuple[str, str | None]]:
    yield "command", side.run["kind"]
    yield "raycomp version", side.run["versions"].get("raycomp")
    yield "raycomp version that scored", side.curated["versions"].get("raycomp")
    yield "device that scored", _describe_device(side.curated)
    prints = {**side.curated["fingerprint"], **side.run["fingerprint"]}
    for name, value in prints.items():
        if name not in (TIMES, "scores"):
            yield f"fingerprint of {name}", _shorten(value)


def _describe_device(run: dict[str, Any]) -> str | None:
    gpu = run.get("gpu") or {}
    return " ".join(filter(None, (run.get("device"), str(next(iter(gpu.values()), ""))))) or None


def _shorten(value: Any) -> str:
    text = str(value)
    return text[:_LETTERS] if isinstance(value, str) and len(text) == 64 else text


def find_other_code(first: Side, second: Side) -> list[str]:
    """Return which of parser, lexicon and nonces differ: then phrases of one caption differ too."""
    prints = first.curated["fingerprint"], second.curated["fingerprint"]
    return [name for name in _CODE if prints[0].get(name) != prints[1].get(name)]
