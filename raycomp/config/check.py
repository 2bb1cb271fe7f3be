"""What is wrong, in the user's words: a field, its value and its range."""

from typing import Any


class TooMuchBadData(Exception):
    """More rows without an alignment than ``max_bad_fraction`` allows."""


class LeaseLost(Exception):
    """Another run took the output folder over; nothing more may be committed there."""


def check(condition: bool, name: str, value: Any, wanted: str) -> None:
    """Raise ValueError unless a dial has a value that it can have."""
    if not condition:
        raise ValueError(f"{name}={value!r}: must be {wanted}")
