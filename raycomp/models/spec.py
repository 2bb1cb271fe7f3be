"""The description of a scorer for other stages; a process that only prepares inputs needs no torch for it."""

from dataclasses import dataclass

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.models.images import ImageSpec

ClipConfig = ModelConfig | ScorerConfig


@dataclass(frozen=True)
class ScorerSpec:
    """The facts on a model that the other stages need, without loading it."""

    image: ImageSpec
    context_length: int
    embedding_dim: int
    shares_prefixes: bool
    """Whether its text tower encodes a caption and its counterfactuals together; else each by itself."""
