"""Small streams of the drawn world, and methods with settings, as a file of a user's, FILE.py:NAME."""

from pathlib import Path

from lab.continual.streams import Sizes, draw_stream
from lab.words import FUNCTION, WORLD
from raycomp.continual.method import Method

SIZES = Sizes(backbone_pairs=64, backbone_steps=2, train=8, test=8)
world = draw_stream(WORLD, SIZES, 2)
questions_function = draw_stream(FUNCTION, SIZES, 1)
untrained = Method("head", {"head.steps": 0, "buffer.kind": "none", "trust.mode": "off"})
sgd = Method("head", {"head.optimizer": "sgd", "head.learning_rate": 0.3})
merged = Method("c-clip", {"tune.merge": 1.0})
unknown = Method("heads")
misnamed = Method("head", {"head.stesp": 1})

STREAM, QUESTIONS = (f"{Path(__file__).resolve()}:{name}" for name in ("world", "questions_function"))
"""Values of ``stream``."""
