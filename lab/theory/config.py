"""The options of the theory."""

from dataclasses import dataclass

from raycomp.config.options import check


@dataclass(frozen=True)
class TheoryConfig:
    """How often the theory is measured."""

    seeds: int = 5
    """Number of worlds."""

    def __post_init__(self) -> None:
        check(1 <= self.seeds <= 100, "seeds", self.seeds, "between 1 and 100")
