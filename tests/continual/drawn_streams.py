"""Small streams of the drawn world, as a file of a user's, FILE.py:NAME."""

from pathlib import Path

from lab.continual.streams import Sizes, draw_stream
from lab.words import FUNCTION, WORLD

SIZES = Sizes(backbone_pairs=64, backbone_steps=2, train=16, test=12)
world = draw_stream(WORLD, SIZES, 2)
questions_function = draw_stream(FUNCTION, SIZES, 2)

STREAM, QUESTIONS = (f"{Path(__file__).resolve()}:{name}" for name in ("world", "questions_function"))
"""Values of ``stream``."""
