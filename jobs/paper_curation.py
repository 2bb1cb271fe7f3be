"""Curate as the paper does (Go et al., arXiv 2605.22651): one nonce, mean drop of all nouns, 70 % and 50 %.

    raycomp curate jobs/paper_curation.py --set input='/data/cc3m/*.tar' --out out/paper

Everything else in raycomp is ours: two nonces a target, targets that a picture can show, PAS per
displacement, other words as targets, sums of alignment and PAS. The paper names no rules for its phrases;
ours are in raycomp/language/phrases.py.

Cost: alignment of every pair and one counterfactual caption a noun; docs/scale.md has the figures.
Expected: 50 % of the pairs with an alignment are kept, all of them among the 70 % best aligned.
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
    """The paper's reading of PAS and its gates; OpenAI's ViT-B/16 scores."""
    return override_all(CurateConfig(), PAPER)
