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


_LONGEST = 200


def one_line(error: BaseException) -> str:
    """Return the beginning of what an error says, without line breaks; its kind where it says nothing."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST].rpartition(' ')[0] or said[:_LONGEST]} ..."
