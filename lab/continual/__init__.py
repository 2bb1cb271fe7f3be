"""Streams of the drawn world, their backbones, and the ablations of the paper."""
