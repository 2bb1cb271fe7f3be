"""The published curve of what is kept by alignment alone: Go et al., arXiv 2605.22651, Table 1.

CLIP ViT-B/32 from scratch on the best aligned shares of CC3M, one seed: the authors call it exploratory.
"""

from typing import NamedTuple

SOURCE = "Go et al. (arXiv 2605.22651), Table 1: CC3M, ViT-B/32, one seed"


class Kept(NamedTuple):
    """A row of the table; figures in percent."""

    keep: float
    """Share of the corpus, 0 to 1."""
    sugarcrepe: float
    """Overall."""
    sugarcrepe_pp: float
    """Overall."""
    imagenet: float
    """Zero-shot, top 1."""
    text_to_image: float
    """Flickr recall@1."""


TABLE_1 = (
    Kept(1.0, 57.69, 45.32, 7.413, 10.260),
    Kept(0.9, 57.86, 45.64, 7.492, 10.700),
    Kept(0.8, 57.82, 45.36, 7.458, 10.700),
    Kept(0.7, 58.34, 45.95, 7.558, 11.020),
    Kept(0.6, 58.10, 45.72, 7.592, 10.560),
    Kept(0.5, 57.92, 45.69, 7.477, 10.225),
)
