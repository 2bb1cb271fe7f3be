"""Samples read by their offsets as from the whole tar; reading again after an error of the storage."""

import io
import random
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from raycomp.data.inputs import expand_input
from raycomp.data.reader import READ_ATTEMPTS, extract, plan_ranges, read_again, read_shard


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(data))


def write_odd_tar(path: Path, form: int, seed: int = 0) -> None:
    """Write samples with long names, repeated keys and extensions, links, folders and metadata."""
    rng = random.Random(seed)
    with tarfile.open(path, "w", format=form) as tar:
        add(tar, "__meta__/info.json", b"{}")
        for i in range(12):
            key = f"{'long' * 40 if i % 4 == 1 else 'a'}{i - (i == 7):03d}\u00e9"
            if i % 5 == 2:
                add(tar, f"folder{i}", type=tarfile.DIRTYPE)
            add(tar, f"{key}.jpg", rng.randbytes(rng.choice([0, 1, 511, 512, 513, 5000])))
            if i % 3 == 0:
                add(tar, f"{key}.png", type=tarfile.LNKTYPE, linkname=f"{key}.jpg")
            add(tar, f"{key}.txt", b"a dog " * i)
            if i == 9:
                add(tar, f"{key}.txt", b"again")
        add(tar, "__end__", b"1")


def check(path: Path, seed: int = 0) -> int:
    """Compare both ways of reading some positions; return the number of rows with an offset."""
    (shard,) = expand_input(str(path))
    offsets = [one for table in read_shard(shard, 3) for one in table["offset"].to_pylist()]
    rng = random.Random(seed)
    picks = [set(), {0}, {12}, {13}, set(range(15)), *(set(rng.sample(range(13), 4)) for _ in range(6))]
    for pick in picks:
        assert list(extract(shard, pick, offsets)) == list(extract(shard, pick)), (path, pick)
    return sum(one is not None for one in offsets)


def test_ranges_give_what_the_whole_gives(tmp_path, monkeypatch):
    path = tmp_path / "a.tar"
    for gap in (0, 1 << 20):
        monkeypatch.setattr("raycomp.data.reader._DISK_BUFFER_BYTES", 2 * gap or 1)
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(14):
                add(tar, f"{i}.jpg", bytes([i]) * 600 * i)
                add(tar, f"{i}.json", b"{}")
        assert check(path) >= 13, gap
        for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            write_odd_tar(path, form)
            assert check(path) >= 13, (gap, form)
    # Of a tar that was replaced other bytes or none: the caller compares hashes.
    (shard,) = expand_input(str(path))
    offsets = [one for table in read_shard(shard, 3) for one in table["offset"].to_pylist()]
    path.write_bytes(path.read_bytes()[100:5000])
    assert list(extract(shard, {3, 9}, offsets)) == []


def test_a_cut_tar_gives_the_same_samples(tmp_path, monkeypatch):
    """Whether the last sample is whole depends on the one before it."""
    monkeypatch.setattr("raycomp.data.reader._DISK_BUFFER_BYTES", 1)
    path = tmp_path / "cut.tar"
    write_odd_tar(path, tarfile.GNU_FORMAT)
    data = path.read_bytes()
    for seed in range(20):
        rng = random.Random(seed)
        path.write_bytes(data[: rng.choice([rng.randrange(len(data)), rng.randrange(0, len(data), 512)])])
        check(path, seed)


def test_ranges_are_joined_over_small_gaps():
    offsets = [0, 1000, 2000, 3000, 10_000, 11_000, None]
    far = (4, 10_000, 11_000, [4])
    assert plan_ranges({0, 2, 4}, offsets, 1) == [(0, 0, 1000, [0]), (2, 2000, 3000, [2]), far]
    assert plan_ranges({0, 2, 4}, offsets, 1001) == [(0, 0, 3000, [0, 2]), far]
    assert plan_ranges({5}, offsets, 1) == [(4, 10_000, None, [5])]
    assert plan_ranges({6, 7}, offsets, 1) == []


class Flaky:
    """Yields six tables; fails at given calls after a given number of tables."""

    def __init__(self, failures: Sequence[int], error: Exception):
        self.failures, self.error, self.calls = list(failures), error, 0

    def __call__(self, item):
        self.calls += 1
        fail_after = self.failures.pop(0) if self.failures else None
        for i in range(6):
            if i == fail_after:
                raise self.error
            yield pa.table({"item": [item], "i": [i]})


def test_reading_again_skips_what_was_yielded():
    for failures in [(), (0,), (3, 3), (2, 0), (3, 5), (5, 5)]:
        flaky = Flaky(failures, OSError("reset"))
        tables = list(read_again(flaky, "a", first_pause_s=0))
        assert [table["i"][0].as_py() for table in tables] == list(range(6)), failures
        assert flaky.calls == len(failures) + 1, failures


def test_a_storage_that_stays_broken_and_what_waiting_does_not_fix_are_errors():
    for error, num_calls in [
        (OSError("reset"), READ_ATTEMPTS),
        (FileNotFoundError("gone"), 1),
        (PermissionError("no"), 1),
        (ValueError("a bug"), 1),
    ]:
        flaky = Flaky([2] * 20, error)
        with pytest.raises(type(error)):
            list(read_again(flaky, "a", first_pause_s=0))
        assert flaky.calls == num_calls, error
