"""Exceptions of third-party libraries on files that they cannot use, and one-line error messages."""

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
    """Return the start of an error's message, without line breaks; its type where the message is empty."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST].rpartition(' ')[0] or said[:_LONGEST]} ..."


def say_bad(said: str, num_bad: int, num: int, noun: str, remedy: str = "name other weights") -> str:
    """Return the error message for a number of bad embeddings; ``said``: an option and its value."""
    bad = f"gives embeddings that are not finite or not of length 1 ({num_bad:,} of {num:,} {noun})"
    return f"{said}: {bad}; {remedy}"
