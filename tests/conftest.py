"""Fixtures that every floor's tests share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real photos, captions and treebanks; never part of the project."""
    folder = Path(os.environ.get("RAYCOMP_SHARED", Path(__file__).parents[2] / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no real data: RAYCOMP_SHARED={folder} has no folder 'data'")
    return folder
