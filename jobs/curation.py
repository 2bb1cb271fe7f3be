"""Curate by the rule that kept the fewest faulty pairs where faults are known, or as the paper does.

    raycomp curate jobs/curation.py --set input='/data/cc3m/*.tar' --out out/cc3m
    raycomp curate jobs/curation.py:paper --set input='/data/cc3m/*.tar' --out out/cc3m-paper

``config``: the sum of alignment and PAS, PAS being the least of all content words per displacement of the
text. It was chosen and confirmed on drawn worlds (docs/study_pas.md); on web data it is not measured.
``paper``: Go et al., arXiv 2605.22651: one nonce, mean drop of all nouns, gates of 70 and 50 %. The paper
names no rules for its phrases; ours are in raycomp/language/phrases.py.

Cost: alignment of every pair and, of the 70 % best aligned, some two counterfactual captions a noun, and as
many for other content words; ``paper`` one a noun. docs/scale.md has the figures.
Expected: exactly half of the pairs that have an alignment.
"""

from raycomp.config import override_all
from raycomp.curate.config import CurateConfig
from raycomp.words import CONTENT, NOUNS, PER_DISPLACEMENT, PER_TARGET

SUM = {
    "attribute.targets": CONTENT,
    "attribute.unit": PER_DISPLACEMENT,
    "attribute.aggregate": "min",
    "select.rule": "align_pas",
}
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
    """The rule that the screen confirmed."""
    return override_all(CurateConfig(), SUM)


def paper() -> CurateConfig:
    """The paper's reading of PAS and its gates."""
    return override_all(CurateConfig(), PAPER)
