"""Whether this process is the kernel of a notebook, whose cells show a line that is written anew."""

import sys


def is_notebook() -> bool:
    """Whether IPython runs here with a kernel; in a terminal it has none. Imports nothing."""
    ipython = sys.modules.get("IPython")
    find_shell = getattr(ipython, "get_ipython", None)
    return find_shell is not None and hasattr(find_shell(), "kernel")
