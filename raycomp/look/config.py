"""The options of audit, explore and diff."""

from dataclasses import dataclass, field

from raycomp.config.options import FREE, INPUT, check, check_choice, check_share
from raycomp.config.shared import ClusterConfig, ColumnsConfig, ScorerConfig
from raycomp.curation.config import PrepareConfig


@dataclass(frozen=True)
class AuditConfig:
    """Limits beyond which a row is odd. An oddity is a reason to look, not a fault."""

    input: str = field(default="", metadata=INPUT)
    """As of curate: paths, globs or brace lists, local or in a store."""
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    """The scoring model of the later curate: pixels have its size. Its weights are not loaded."""
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    dark: float = 0.1
    """A picture is dark below this brightness, 0 to 1."""
    bright: float = 0.95
    """A picture is bright above this brightness, 0 to 1."""
    flat: float = 2.0
    """A picture has one colour, or nearly, below this sharpness (variance of the Laplacian)."""
    blurred: float = 30.0
    """A picture is blurred below this sharpness."""
    grey: float = 1.0
    """A picture is grey below this colourfulness."""
    side: int = 100
    """A picture is small if its shorter side has fewer pixels."""
    aspect: float = 3.0
    """A picture is long if its longer side is more than this multiple of the shorter one."""
    least_words: int = 3
    """A caption with fewer words is short."""
    most_words: int = 60
    """A caption with more words is long; the text towers of CLIP read about 60 words."""
    boilerplate: float = 0.01
    """Phrases of two to six words that this share of captions have, and at least ten, are boilerplate."""
    most_phrases: int = 10
    """At most so many phrases are listed."""
    pictures: int = 8
    """Pictures shown of each check."""
    seed: int = 0
    """Draws the pictures, and the captions whose phrases are counted if there are more than 100,000."""
    max_bad_fraction: float = field(default=1.0, metadata=FREE)
    """Share of broken rows above which the command stops with exit code 3."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)

    def __post_init__(self) -> None:
        for name in ("dark", "bright", "boilerplate", "max_bad_fraction"):
            check_share(name, getattr(self, name))
        for name in ("flat", "blurred", "grey", "side", "least_words", "most_words", "pictures", "seed"):
            check(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        stored = self.prepare.stored_embeddings
        check(stored is None, "prepare.stored_embeddings", stored, "none: an audit reads the images")
        check(self.aspect >= 1, "aspect", self.aspect, "at least 1")
        check(0 <= self.most_phrases <= 100, "most_phrases", self.most_phrases, "0 to 100")


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


@dataclass(frozen=True)
class DiffConfig:
    """Input: two curations or selections that share rows. Output: how the second differs from the first."""

    first: str = ""
    """The folder of the first, which the second is compared with."""
    second: str = ""
    """The folder of the second."""
    examples: int = 6
    """Maximum pictures on the page for gained rows, and for lost rows."""

    def __post_init__(self) -> None:
        check(0 <= self.examples <= 1000, "examples", self.examples, "between 0 and 1000")
