"""PyArrow without pandas: to make an array of a list it imports pandas, half a second, to ask for its types.

A command of one process hands PyArrow nothing of pandas. Ray Data does, so a process that connects to a
cluster takes it back.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder

import pyarrow as pa
from pyarrow.lib import _pandas_api

_PANDAS = "pandas"


class _Refuse(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name == _PANDAS:
            raise ImportError(name)
        return None


def keep_pandas_out() -> None:
    """Let PyArrow look for pandas once, and not find it, unless this process has imported it."""
    if _PANDAS in sys.modules:
        return
    refuse = _Refuse()
    sys.meta_path.insert(0, refuse)
    try:
        pa.array([""])
    finally:
        sys.meta_path.remove(refuse)


def let_pandas_in() -> None:
    """Let PyArrow know of pandas again, where it is installed."""
    try:
        _ = _pandas_api.pd
    except ImportError:
        return
