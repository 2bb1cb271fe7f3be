"""Checks of user input; an error names the field, its value and its range."""

from collections.abc import Sequence
from difflib import get_close_matches
from math import copysign, inf
from typing import Any, NamedTuple

MOST = 10_000_000
"""Maximum of options that count rows, scenes or steps: a larger value is a typing error."""
MOST_RATE, MOST_WEIGHT = 1e30, 1e6
"""Maximum of learning rates, weight decays and weights of losses: their products stay within fp32."""
MOST_WHOLE = 2**53 - 1
"""Maximum magnitude of whole-number options: every json reader and every array can hold these."""
_MOST_DIGITS = len(str(MOST_WHOLE))


class UserError(ValueError):
    """An error found by a worker that the user can fix; a plain ValueError from there is a bug."""


class DryRun(Exception):
    """Ends a dry run after all checks; its text reports what would run and what it costs."""


class Terminated(KeyboardInterrupt):
    """A signal, by number, asked the process to end; handled like an interrupt, except for the exit code."""

    @property
    def exit_code(self) -> int:
        """The exit code that shells and clusters expect of such a process: 143 after SIGTERM."""
        return 128 + self.args[0]


class TooMuchBadData(Exception):
    """More of the input is bad than ``max_bad_fraction`` allows, or missing than ``max_missing_fraction``."""


class ClusterFailed(Exception):
    """Ray did not start, or lost nodes, workers or its head, so that the run cannot continue on it now."""

    exit_code = 5


class LeaseLost(Exception):
    """Another run took over the output folder; nothing more may be committed there."""


def check_share(name: str, value: float) -> None:
    """Raise ValueError unless an option is a share, 0 to 1; -0.0 is refused as a duplicate of 0.0."""
    check(0 <= value <= 1 and copysign(1, value) > 0, name, value, "between 0 and 1")


def read_share_or_none(value: str | float | None) -> float | None:
    """Return the number that a value is, none where it is none, as the name of an input."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def check_choice(name: str, value: str, choices: Sequence[str], more: str = "") -> None:
    """Raise ValueError, naming the closest valid value, unless an option has a valid value."""
    if value not in choices:
        by_lower = {choice.lower(): choice for choice in choices}
        closest = get_close_matches(str(value).lower(), by_lower, 1)
        hint = f"; the closest is {by_lower[closest[0]]}" if closest else ""
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(choices)}{more}{hint}")


def read_span(name: str, value: int | str) -> tuple[int, int]:
    """Return the least and the most of an option that holds N or MIN..MAX.

    Raises ValueError unless both are whole numbers and 1 <= MIN <= MAX.
    """
    least, dots, most = str(value).partition("..")
    parts = (least, most if dots else "1")
    fits = all(part.isdecimal() and part.isascii() and len(part) < _MOST_DIGITS for part in parts)
    span = (int(least), int(most or least)) if fits else (0, 0)
    check(1 <= span[0] <= span[1], name, value, "N or MIN..MAX, whole numbers, at least 1")
    return span


def check(condition: bool, name: str, value: Any, wanted: str) -> None:
    """Raise ValueError unless an option has a valid value."""
    if not condition:
        raise ValueError(f"{name}={value!r}: must be {wanted}")


def check_count(name: str, value: int, least: int, most: int = MOST) -> None:
    """Raise ValueError, with the range, unless a number is from ``least`` to ``most``."""
    check(least <= value <= most, name, value, f"between {least:,} and {most:,}")


def check_rate(name: str, value: float) -> None:
    """Raise ValueError unless fp32 weights can take a step with the learning rate."""
    check(0 < value <= MOST_RATE, name, value, f"above 0, and at most {MOST_RATE:.0e}")


class Machine(NamedTuple):
    """A kind of machine and what an hour of it costs."""

    name: str
    cpus: int
    gpus: int
    price_per_hour: float


def read_machine(name: str, value: str) -> Machine:
    """Parse NAME:CPUS:GPUS:PRICE. Raises ValueError naming the option."""
    parts = value.split(":")
    try:
        machine = Machine(parts[0], int(parts[1]), int(parts[2]), float(parts[3]))
        _, cpus, gpus, price = machine
        fits = len(parts) == 4 and cpus >= 1 and gpus >= 0 and 0 <= price < inf
    except (ValueError, IndexError):
        fits = False
    check(fits, name, value, "NAME:CPUS:GPUS:PRICE, as in g6.4xlarge:16:1:1.32")
    return machine


def read_label(name: str, value: str) -> tuple[str, str]:
    """Return key and value of KEY=VALUE. Raises ValueError naming the option."""
    key, equals, label = value.partition("=")
    check(bool(key and equals and label), name, value, "KEY=VALUE, as in ray.io/market-type=on-demand")
    return key, label
