"""Folders of classes on a disk and in a store."""

import pytest

from raycomp.data.files import Folder
from raycomp.data.inputs import list_classes

FILES = (
    "b/2.jpg",
    "b/1.PNG",
    "a/deep/er/3.jpeg",
    "a/notes.txt",
    "a/.hidden.jpg",
    ".cache/4.jpg",
    "readme.jpg",
)


def write(uri: str, names=FILES) -> str:
    for name in names:
        Folder(uri).write_bytes(b"x", name)
    return uri


def test_classes_are_those_of_torchvision(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    write(str(tmp_path), ("b/2.jpg", "b/1.PNG", "a/deep/er/3.jpeg", "a/notes.txt", "C/x y.bmp", "readme.jpg"))
    found = list_classes(str(tmp_path))
    counterpart = datasets.ImageFolder(str(tmp_path))
    assert list(found) == counterpart.classes
    listed = [(f"{tmp_path}/{file}", list(found).index(name)) for name in found for file in found[name]]
    assert sorted(listed) == sorted(counterpart.samples)


def test_a_store_lists_as_the_disk_does(bucket, tmp_path):
    here, there = list_classes(write(str(tmp_path))), list_classes(write(f"{bucket}/images"))
    assert here == there == {"a": ["a/deep/er/3.jpeg"], "b": ["b/1.PNG", "b/2.jpg"]}


def test_shards_and_what_is_no_folder_are_none(tmp_path):
    write(str(tmp_path), ("test/0.tar", "classnames.txt"))
    assert list_classes(str(tmp_path)) is None and list_classes(str(tmp_path / "none")) is None
    write(str(tmp_path), ("cat/0.jpg",))
    assert list_classes(str(tmp_path)) == {"cat": ["cat/0.jpg"], "test": []}
