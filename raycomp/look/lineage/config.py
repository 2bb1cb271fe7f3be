"""The options of a diff."""

from dataclasses import dataclass

from raycomp.config.check import check


@dataclass(frozen=True)
class DiffConfig:
    """Input: two curations or selections that share rows. Output: how the second differs from the first."""

    first: str = ""
    """The folder of the first, which the second is compared with."""
    second: str = ""
    """The folder of the second."""
    examples: int = 6
    """Maximum pictures on the page for gained rows, and for lost rows."""

    def __post_init__(self) -> None:
        check(0 <= self.examples <= 1000, "examples", self.examples, "between 0 and 1000")
