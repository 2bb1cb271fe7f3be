"""What other stages must know of a scorer; a process that only prepares its inputs needs no torch for it."""

from dataclasses import dataclass

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.models.images import ImageSpec

ClipConfig = ModelConfig | ScorerConfig


@dataclass(frozen=True)
class ScorerSpec:
    """What the other stages must know of a model, without loading it."""

    image: ImageSpec
    context_length: int
    embedding_dim: int
    shares_prefixes: bool
    """Whether its text tower encodes a caption and its counterfactuals together; else each by itself."""
