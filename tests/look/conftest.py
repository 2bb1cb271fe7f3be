"""A curation to look at."""

from pathlib import Path

import pytest

from tests.conftest import without_ray
from tests.corpus import curate_with_metadata


@pytest.fixture(scope="session")
def curation(tiny_scorer, tmp_path_factory) -> Path:
    """A curation of 40 scenes in two shards, with metadata; every row was attributed."""
    with without_ray():
        return curate_with_metadata(tmp_path_factory.mktemp("explored"), tiny_scorer, 40)
