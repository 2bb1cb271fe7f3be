"""What foreign libraries raise over files that they cannot use, and how it is said in one line."""

import struct
from pickle import UnpicklingError

from safetensors import SafetensorError

LIBRARIES_FAIL = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    SafetensorError,
    StopIteration,
    TypeError,
    UnpicklingError,
    ValueError,
    struct.error,
)
"""What open_clip, torch, timm, transformers and spaCy raise over files that they cannot read."""


def one_line(error: BaseException) -> str:
    """Return the beginning of what an error says, without line breaks; its kind where it says nothing."""
    return " ".join(str(error).split())[:200] or type(error).__name__
