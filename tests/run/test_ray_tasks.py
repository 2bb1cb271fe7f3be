"""Tasks over files: results in order, whole numbers added up, rounded ones never; none outlives its run."""

from functools import partial
from time import monotonic, sleep

import numpy as np
import pytest

from raycomp.config import UserError
from raycomp.core.alignment import Moments
from raycomp.curation.outputs import Output, OutputFolder
from raycomp.data.files import Folder
from raycomp.run import work as waves
from raycomp.run.work import add_counts, map_files, map_some, map_tasks

NUM = 100


def add(item: int, more: int) -> int:
    return item + more


def count(item: int) -> np.ndarray:
    return np.bincount([item % 4], minlength=4)


def refuse(item: int) -> int:
    if item == 3:
        raise UserError("the fourth is amiss")
    return item


def test_only_whole_numbers_are_added_up():
    assert add_counts([1, 2, 3]) == [6] and add_counts([]) == []
    (total,) = add_counts([np.array([1, 2]), np.array([3, 4])])
    assert total.tolist() == [4, 6]
    moments = [Moments.of(np.array([value])) for value in (0.1, 0.2)]
    for rounded in ([0.1, 0.2], [np.array([0.1]), np.array([0.2])], moments):
        assert add_counts(rounded) is rounded


@pytest.mark.parametrize("least", [1, 32])
def test_results_come_in_the_order_of_the_items(ray_cluster, monkeypatch, least):
    """However many tasks wait and however many files each has."""
    monkeypatch.setattr(waves, "_LEAST_WAITING", least)
    monkeypatch.setattr(waves, "_WAITING_PER_CPU", 0)
    expected = [item + 5 for item in range(NUM)]
    assert list(map_tasks(add, range(NUM), 5)) == expected
    assert list(map_files(add, range(NUM), 5)) == expected
    counts = list(map_files(count, range(NUM), fold=add_counts))
    assert 1 < len(counts) < NUM and sum(counts).tolist() == [NUM // 4] * 4
    assert list(map_files(add, [], 5)) == list(map_tasks(add, [], 5)) == []


def write_slowly(job: int, out: Folder, work: Folder, error: type[Exception]) -> tuple[int, int]:
    """Change is found by the first task, while the second writes."""
    if job == 0:
        while not out.exists("begun"):
            sleep(0.1)
        raise error("input: changed")
    out.write_bytes(b"", "begun")
    out.write_bytes(b"", "shards", f"{job}-a")
    sleep(2)
    out.write_bytes(b"", "shards", f"{job}-b")
    return 1, 0


@pytest.mark.parametrize("error", [UserError, KeyError])
def test_no_task_writes_shards_once_a_run_has_ended(tmp_path, ray_cluster, error):
    out = Folder(str(tmp_path))
    folder = OutputFolder(out, Folder(str(tmp_path / "work")), [Output(0, 1, []), Output(1, 1, [])])
    with pytest.raises((UserError, KeyError), match=r"input: changed"):
        folder.write(partial(write_slowly, error=error), [0, 1], [])
    left = out.list_names()
    assert ("shards" in left) == (error is KeyError), "the next start removes them"
    sleep(2.5)
    assert out.list_names() == left and not out.exists("shards", "1-b")


def write_soon_or_late(job: int, out: Folder) -> None:
    out.write_bytes(b"", f"started-{job}")
    while not out.exists("started-1"):
        sleep(0.05)
    sleep(0 if job == 0 else 5)
    out.write_bytes(b"", f"ended-{job}")


class Cut(Exception):
    """Ends a run while its jobs run."""


def test_jobs_of_a_run_that_ends_write_nothing_afterwards(tmp_path, ray_cluster):
    out = Folder(str(tmp_path))
    with pytest.raises(Cut):
        for _ in map_some(write_soon_or_late, [(0, out), (1, out)], 2, lambda: None, "study", "cell"):
            started = monotonic()
            raise Cut
    assert monotonic() - started < 4, "it does not wait for them"
    sleep(5)
    assert not out.exists("ended-1")


@pytest.mark.parametrize("run", [map_tasks, map_files])
def test_what_the_user_can_fix_comes_as_it_was_raised(ray_cluster, run):
    with pytest.raises(UserError, match=r"^the fourth is amiss$"):
        list(run(refuse, range(NUM)))
