"""PyArrow without pandas: to make an array of a list it imports pandas, half a second, to check types.

A command of one process passes no pandas objects to PyArrow. Ray Data does, so a process that connects to a
cluster restores the import.
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
    """Make PyArrow's check for pandas fail once and for all, unless this process has imported pandas."""
    if _PANDAS in sys.modules:
        return
    refuse = _Refuse()
    sys.meta_path.insert(0, refuse)
    try:
        pa.array([""])
    finally:
        sys.meta_path.remove(refuse)


def let_pandas_in() -> None:
    """Restore PyArrow's knowledge of pandas, where it is installed."""
    try:
        _ = _pandas_api.pd
    except ImportError:
        return
