"""The options of audit, explore and diff."""

from dataclasses import dataclass, field

from raycomp.config.options import (
    FREE,
    INPUT,
    SHARE,
    ClusterConfig,
    ColumnsConfig,
    OptionGroup,
    ScorerConfig,
    check,
    one_of,
    within,
)
from raycomp.curation.config import PrepareConfig


@dataclass(frozen=True)
class AuditConfig(OptionGroup):
    """Limits beyond which a row is odd. An oddity is a reason to look, not a fault."""

    input: str = field(default="", metadata=INPUT)
    """As of curate: paths, globs or brace lists, local or in a store."""
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    """The scoring model of the later curate: pixels have its size. Its weights are not loaded."""
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    dark: float = field(default=0.1, metadata=SHARE)
    """A picture is dark below this brightness, 0 to 1."""
    bright: float = field(default=0.95, metadata=SHARE)
    """A picture is bright above this brightness, 0 to 1."""
    flat: float = field(default=2.0, metadata=within("at least 0"))
    """A picture has one colour, or nearly, below this sharpness (variance of the Laplacian)."""
    blurred: float = field(default=30.0, metadata=within("at least 0"))
    """A picture is blurred below this sharpness."""
    grey: float = field(default=1.0, metadata=within("at least 0"))
    """A picture is grey below this colourfulness."""
    side: int = field(default=100, metadata=within("at least 0"))
    """A picture is small if its shorter side has fewer pixels."""
    aspect: float = field(default=3.0, metadata=within("at least 1"))
    """A picture is long if its longer side is more than this multiple of the shorter one."""
    least_words: int = field(default=3, metadata=within("at least 0"))
    """A caption with fewer words is short."""
    most_words: int = field(default=60, metadata=within("at least 0"))
    """A caption with more words is long; the text towers of CLIP read about 60 words."""
    boilerplate: float = field(default=0.01, metadata=SHARE)
    """Phrases of two to six words that this share of captions have, and at least ten, are boilerplate."""
    most_phrases: int = field(default=10, metadata=within("0 to 100"))
    """At most so many phrases are listed."""
    pictures: int = field(default=8, metadata=within("at least 0"))
    """Pictures shown of each check."""
    seed: int = field(default=0, metadata=within("at least 0"))
    """Draws the pictures, and the captions whose phrases are counted if there are more than 100,000."""
    max_bad_fraction: float = field(default=1.0, metadata=FREE | SHARE)
    """Share of broken rows above which the command stops with exit code 3."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)

    def __post_init__(self) -> None:
        super().__post_init__()
        stored = self.prepare.stored_embeddings
        check(stored is None, "prepare.stored_embeddings", stored, "none: an audit reads the images")


PROJECTIONS = PCA, UMAP = "pca", "umap"
MOST_ROWS = 2_000_000


@dataclass(frozen=True)
class ExploreConfig(OptionGroup):
    """Which rows are shown, and with what."""

    where: str | None = None
    """A condition in SQL on the columns of a row, as for filter.where, and on ``outcome``: rows for which it
    is true are shown. None = all."""
    rows: int = field(default=100_000, metadata=within(f"1 to {MOST_ROWS:,}"))
    """At most so many rows are shown; of more, those of the smallest seeded hash of their uid."""
    thumbnails: bool = True
    """Whether a small copy of each photo is stored in the pages."""
    side: int = field(default=160, metadata=within("16 to 1024"))
    """Pixels of the longer side of a small copy."""
    neighbours: int = field(default=8, metadata=within("0 to 100"))
    """The nearest rows by image embedding that each card links to."""
    projection: str = field(default=PCA, metadata=one_of(PROJECTIONS))
    """The map of an atlas: pca, the two directions of largest variance, or umap, which needs the package
    umap-learn."""
    seed: int = field(default=0, metadata=within("at least 0"))
    """Draws the rows, and starts the search for neighbours and umap."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)


@dataclass(frozen=True)
class DiffConfig(OptionGroup):
    """Input: two curations or selections that share rows. Output: how the second differs from the first."""

    first: str = ""
    """The folder of the first, which the second is compared with."""
    second: str = ""
    """The folder of the second."""
    examples: int = field(default=6, metadata=within("between 0 and 1000"))
    """Maximum pictures on the page for gained rows, and for lost rows."""
