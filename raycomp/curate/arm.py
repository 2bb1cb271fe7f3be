"""All that a choice depends on beside the scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raycomp.config import check_path, from_dict, is_marked, list_dials, override_all
from raycomp.curate.config import CurateConfig
from raycomp.curate.rules import Rule, find_rule


@dataclass(frozen=True)
class Arm:
    """A rule and what it keeps."""

    rule: Rule
    align_share: float
    """What the align gate keeps of the corpus, 0 to 1."""
    attribute_share: float | None = None
    """What the attribute gate keeps of the corpus; none = there is no such gate."""
    datacomp_compat: bool = False
    aggregate: str = "mean"
    unseen: bool = False
    seed: int = 0


def find_arm(config: CurateConfig) -> Arm:
    """Return the arm that the dials describe."""
    rule, how = find_rule(config.select.rule), config.attribute
    if rule.attribute_by:
        shares: tuple[float, float | None] = config.align.keep, how.keep
    else:
        shares = 1.0 if rule.keeps_all else how.keep, None
    return Arm(rule, *shares, config.select.datacomp_compat, how.aggregate, how.unseen, config.seed)


def find_pool_arm(share: float, datacomp_compat: bool) -> Arm:
    """Return the arm that keeps the rows to be attributed: a share of the corpus, best aligned first."""
    # DataComp's rule keeps ties too, so only a pool cut by it holds all that its gate keeps.
    return Arm(Rule(), share, datacomp_compat=datacomp_compat and share < 1)


def choose_config(curated: Mapping[str, Any], settings: Mapping[str, Any]) -> CurateConfig:
    """Return the curation's config with ``settings``, or say why its scores cannot serve them."""
    for path in settings:
        check_path(CurateConfig, path)
        if not is_marked(CurateConfig, path, "select"):
            allowed = ", ".join(dial.path for dial in list_dials(CurateConfig, "select"))
            raise ValueError(f"{path}: select cannot change it, its dials are {allowed}; run curate instead")
    scored = from_dict(CurateConfig(), curated)
    config = override_all(scored, {"attribute.pool": None, **settings})
    if find_rule(config.select.rule).attribute_by and config.align.keep > scored.pool:
        raise ValueError(
            f"align.keep={config.align.keep}: must be at most {scored.pool}, the share of the corpus that "
            f"was attributed; curate with a larger attribute.pool"
        )
    return config
