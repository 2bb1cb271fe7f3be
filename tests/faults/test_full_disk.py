"""An output whose disk is full: one line that names it, and a restart once there is room."""

import pytest

from raycomp.cli import STORAGE_FAILED
from raycomp.data.files import Folder
from tests.faults.harness import finish, mount, start

pytestmark = pytest.mark.slow


# What the whole output takes is about 1 MB, its work as much again.
@pytest.mark.parametrize("size_kb", [48, 160, 400])
def test_a_full_disk_is_one_line_and_a_restart_goes_on(calm, disk, joined, size_kb):
    config, expected = calm
    out = Folder(str(disk / "out"))
    mount(disk, f"remount,size={size_kb}k")
    with start(config, out.uri, joined) as run:
        assert out.uri in run.end_in_a_line(STORAGE_FAILED, "raycomp: ")
    mount(disk, "remount,size=64m")
    finish(config, out, expected, joined)
