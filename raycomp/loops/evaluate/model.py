"""Placeholder."""

from raycomp.config import ModelConfig


def find_model(config: ModelConfig) -> ModelConfig:
    """Return it."""
    return config
