"""What the tests of this folder share."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

NewFolder = Callable[[], Path]


@pytest.fixture
def new_folder(tmp_path_factory) -> NewFolder:
    """Makes an empty folder, for each case of a loop its own."""
    return lambda: tmp_path_factory.mktemp("case")


@pytest.fixture(scope="session")
def photos() -> list[tuple[bytes, str]]:
    """Sixty pictures as JPEG, each with a caption."""
    found = []
    for i in range(60):
        file = io.BytesIO()
        Image.effect_noise((40 + i, 60), 10 + i).convert("RGB").save(file, "JPEG")
        found.append((file.getvalue(), f"a dog and {i} cats"))
    return found
