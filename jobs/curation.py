"""Curate by the default rule, or as in the paper.

    raycomp curate jobs/curation.py --set input='/data/cc3m/*.tar' --out out/cc3m
    raycomp curate jobs/curation.py:paper --set input='/data/cc3m/*.tar' --out out/cc3m-paper

``config``: the defaults. Pairs are ranked by the sum of alignment and PAS, where PAS is the minimum over a
caption's content words of the drop per displacement. This rule was registered and confirmed on drawn worlds
(docs/study_pas.md). It is not measured on web data.
``paper``: Go et al., arXiv 2605.22651: one nonce, mean drop of all nouns, gates of 70 and 50 %. The paper
names no rules for its phrases; ours are in raycomp/language/phrases.py.

Cost: alignment of every pair. For the 70 % best aligned, some two counterfactual captions per noun, and as
many for other content words; ``paper`` one per noun. docs/scale.md has the figures.
Expected: exactly half of the pairs that have an alignment.
"""

from raycomp.config import override_all
from raycomp.curate.config import CurateConfig
from raycomp.words import NOUNS, PER_TARGET

PAPER = {
    "align.keep": 0.7,
    "attribute.keep": 0.5,
    "attribute.nonces": 1,
    "attribute.targets": NOUNS,
    "attribute.unit": PER_TARGET,
    "attribute.aggregate": "mean",
    "select.rule": "cpi",
}


def config() -> CurateConfig:
    """The default rule, which the screen confirmed."""
    return CurateConfig()


def paper() -> CurateConfig:
    """The paper's reading of PAS and its gates."""
    return override_all(CurateConfig(), PAPER)
