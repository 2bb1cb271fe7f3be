"""What the tests of this folder share: a maker of raw tars and a way to read them back as rows."""

import io
import tarfile
from collections.abc import Callable

import pytest
from PIL import Image

from raycomp.data.inputs import ShardPath
from raycomp.data.samples import read_tar

RawTar = Callable[..., bytes]


@pytest.fixture
def raw_tar() -> RawTar:
    """(name, bytes) members as a tar of any layout, duplicates and climbing names included."""

    def build(members: list[tuple[str, bytes]], layout: int = tarfile.USTAR_FORMAT) -> bytes:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=layout) as tar:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return file.getvalue()

    return build


@pytest.fixture
def rows() -> Callable[..., list[dict]]:
    """The rows of a tar given as bytes."""

    def read(data: bytes, name: str = "00000.tar", block_rows: int = 3) -> list[dict]:
        shard = ShardPath(7, name, name, "tar")
        tables = list(read_tar(io.BytesIO(data), shard, block_rows))
        return [row for table in tables for row in table.to_pylist()]

    return read


@pytest.fixture(scope="session")
def photos() -> list[tuple[bytes, str]]:
    """Sixty pictures as JPEG, each with a caption."""
    found = []
    for i in range(60):
        file = io.BytesIO()
        Image.effect_noise((40 + i, 60), 10 + i).convert("RGB").save(file, "JPEG")
        found.append((file.getvalue(), f"a dog and {i} cats"))
    return found
