"""The options of audit: the input, and where each check's limit lies."""

from dataclasses import dataclass, field

from raycomp.config.check import check, check_share
from raycomp.config.options import FREE, INPUT
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
