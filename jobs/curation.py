"""Curate by the paper's rule, which is the default, or by the sum that was chosen on drawn worlds.

    raycomp curate jobs/curation.py --set input='/data/cc3m/*.tar' --out out/cc3m
    raycomp curate jobs/curation.py:align_pas --set input='/data/cc3m/*.tar' --out out/cc3m-sum

``config``, also named ``paper``: Go et al., arXiv 2605.22651: one nonce, mean drop of all nouns, gates of 70
and 50 %. The paper names no rules for its phrases; ours are in raycomp/language/phrases.py.
``align_pas``, for drawn worlds only: pairs are ranked by the sum of alignment and PAS, where PAS is the least
drop per displacement of a caption's content words, over two nonces. This rule was registered and confirmed on
drawn worlds (docs/study_pas.md), whose faulty captions have exactly one false element. It is not measured on
web data.

Cost: alignment of every pair; for the 70 % best aligned a counterfactual caption per noun. ``align_pas``
takes two per noun, and as many for other content words. docs/scale.md has the figures.
Expected: exactly half of the pairs that have an alignment.
"""

from raycomp.config import override_all
from raycomp.curation.config import CurateConfig
from raycomp.words import CONTENT, PER_DISPLACEMENT

ALIGN_PAS = {
    "attribute.nonces": 2,
    "attribute.targets": CONTENT,
    "attribute.unit": PER_DISPLACEMENT,
    "attribute.aggregate": "min",
    "select.rule": "align_pas",
}


def config() -> CurateConfig:
    """The paper's rule."""
    return CurateConfig()


paper = config


def align_pas() -> CurateConfig:
    """The sum of alignment and PAS: drawn worlds only."""
    return override_all(CurateConfig(), ALIGN_PAS)
