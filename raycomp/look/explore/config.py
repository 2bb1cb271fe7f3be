"""The options of explore."""

from dataclasses import dataclass, field

from raycomp.config.check import check, check_choice
from raycomp.config.shared import ClusterConfig

PROJECTIONS = PCA, UMAP = "pca", "umap"
MOST_ROWS = 2_000_000


@dataclass(frozen=True)
class ExploreConfig:
    """Which rows are shown, and with what."""

    where: str | None = None
    """A condition in SQL on the columns of a row, as for filter.where, and on ``outcome``: rows for which it
    is true are shown. None = all."""
    rows: int = 100_000
    """At most so many rows are shown; of more, those of the smallest seeded hash of their uid."""
    thumbnails: bool = True
    """Whether a small copy of each photo is stored in the pages."""
    side: int = 160
    """Pixels of the longer side of a small copy."""
    neighbours: int = 8
    """The nearest rows by image embedding that each card links to."""
    projection: str = PCA
    """The map of an atlas: pca, the two directions of largest variance, or umap, which needs the package
    umap-learn."""
    seed: int = 0
    """Draws the rows, and starts the search for neighbours and umap."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        check(1 <= self.rows <= MOST_ROWS, "rows", self.rows, f"1 to {MOST_ROWS:,}")
        check(16 <= self.side <= 1024, "side", self.side, "16 to 1024")
        check(0 <= self.neighbours <= 100, "neighbours", self.neighbours, "0 to 100")
        check(self.seed >= 0, "seed", self.seed, "at least 0")
        check_choice("projection", self.projection, PROJECTIONS)
