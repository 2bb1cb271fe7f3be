"""The options of the theory."""

from dataclasses import dataclass, field

from raycomp.config.options import OptionGroup, within


@dataclass(frozen=True)
class TheoryConfig(OptionGroup):
    """How often the theory is measured."""

    seeds: int = field(default=5, metadata=within("between 1 and 100"))
    """Number of worlds."""
