"""All that a choice depends on beside the scores."""

from dataclasses import dataclass

from raycomp.config import CurateConfig, Rule, find_rule


@dataclass(frozen=True)
class Arm:
    """A rule and what it keeps."""

    rule: Rule
    shares: tuple[float, ...]
    """The share of the corpus that each gate keeps, 0 to 1."""
    datacomp_compat: bool = False
    aggregate: str = "mean"
    unseen: bool = False
    seed: int = 0


def find_arm(config: CurateConfig) -> Arm:
    """Return the arm that the dials describe."""
    rule, keep = find_rule(config.select.rule), config.attribute.keep
    if rule.keeps_all:
        shares: tuple[float, ...] = (1.0,)
    else:
        shares = (config.align.keep, keep) if rule.gate_2 else (keep,)
    how = config.attribute
    return Arm(rule, shares, config.select.datacomp_compat, how.aggregate, how.unseen, config.seed)


def find_pool_arm(share: float, datacomp_compat: bool) -> Arm:
    """Return the arm that keeps the rows to be attributed: a share of the corpus, best aligned first."""
    # DataComp's rule keeps ties too, so only a pool cut by it holds all that its gate keeps.
    return Arm(Rule(), (share,), datacomp_compat and share < 1)
