"""All that a choice depends on beside the scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raycomp.config import check_path, is_marked, list_dials, override_all
from raycomp.curate.config import CurateConfig, read_config
from raycomp.curate.rules import (
    DISPLACEMENT,
    MINUS_PAS,
    NUM_PHRASES,
    NUM_WORDS,
    PAS,
    RESIDUAL,
    Rule,
    find_rule,
)
from raycomp.words import CONTENT, NOUNS, PER_DISPLACEMENT, PER_TARGET, SHOWABLE


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
    unit: str = PER_TARGET
    targets: str = SHOWABLE
    seed: int = 0

    @property
    def ranking(self) -> str:
        """What the last gate ranks by, as a reader says it."""
        pas = {"fraction_supported": "supported share"}.get(self.aggregate, f"{self.aggregate} PAS")
        pas += " per displacement" if self.unit == PER_DISPLACEMENT else ""
        pas += {NOUNS: " of all nouns", CONTENT: " of all content words"}.get(self.targets, "")
        words = {
            PAS: pas,
            MINUS_PAS: f"minus {pas}",
            NUM_WORDS: "words of the caption",
            NUM_PHRASES: "phrases with a drop",
            DISPLACEMENT: "mean displacement",
            RESIDUAL: f"residual of {pas}",
        }
        what = self.rule.attribute_by or self.rule.align_by
        return words.get(what, what)


def find_arm(config: CurateConfig) -> Arm:
    """Return the arm that the dials describe."""
    rule, how = find_rule(config.select.rule), config.attribute
    if rule.attribute_by:
        shares: tuple[float, float | None] = config.align.keep, how.keep
    else:
        shares = 1.0 if rule.keeps_all else how.keep, None
    reading = how.aggregate, how.unit, how.targets
    return Arm(rule, *shares, config.select.datacomp_compat, *reading, config.seed)


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
    scored = read_config(curated)
    config = override_all(scored, {"attribute.pool": None, **settings})
    if find_rule(config.select.rule).attribute_by and config.align.keep > scored.pool:
        raise ValueError(
            f"align.keep={config.align.keep}: must be at most {scored.pool}, the share of the corpus that "
            f"was attributed; curate with a larger attribute.pool"
        )
    if config.attribute.targets == CONTENT != scored.attribute.targets:
        raise ValueError(
            "attribute.targets='content': the scores have no adjectives, verbs, relation words: curate anew"
        )
    return config
