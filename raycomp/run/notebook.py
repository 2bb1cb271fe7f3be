"""Detects a notebook kernel: a notebook can redraw a line of output."""

import sys


def is_notebook() -> bool:
    """Whether IPython runs here with a kernel; in a terminal it has none. Imports nothing."""
    ipython = sys.modules.get("IPython")
    find_shell = getattr(ipython, "get_ipython", None)
    return find_shell is not None and hasattr(find_shell(), "kernel")
