"""The micro-buffer: the same draw whatever comes when, and its limits."""

import json

import numpy as np
import pytest

from raycomp.core.continual import BufferEntry, MicroBuffer


def entries(num: int, task: int = 0) -> list[BufferEntry]:
    return [BufferEntry(f"a red cube {task}-{i}", ("red cube", f"thing {i}")) for i in range(num)]


def test_the_draw_hangs_neither_on_batches_nor_on_order_nor_on_repeats():
    seen, rng = entries(300), np.random.default_rng(0)
    whole = MicroBuffer(16, seed=3)
    whole.add(0, seen)
    for size in (1, 7, 300):
        buffer = MicroBuffer(16, seed=3)
        mixed = [seen[i] for i in rng.permutation(np.repeat(np.arange(300), 2))]
        for start in range(0, 600, size):
            buffer.add(0, mixed[start : start + size])
        assert buffer.entries() == whole.entries() and len(whole.entries()) == 16
    other = MicroBuffer(16, seed=4)
    other.add(0, seen)
    assert other.entries() != whole.entries()


def test_tasks_have_a_budget_and_a_draw_of_their_own():
    buffer = MicroBuffer(4, seed=0)
    for task in (2, 0, 1):
        buffer.add(task, [BufferEntry(f"same {i}", ()) for i in range(50)])
    assert len(buffer.entries()) == 12 and len(buffer.entries(before=2)) == 8
    assert buffer.entries()[:8] == buffer.entries(before=2) and buffer.entries(before=0) == []
    assert {*buffer.entries(before=1)} != {*buffer.entries(before=2)[4:]}


def test_without_a_budget_nothing_is_kept_or_drawn():
    for buffer in (MicroBuffer(0, seed=1), MicroBuffer(64, seed=1, max_bytes=0)):
        buffer.add(0, entries(9))
        assert buffer.entries() == [] == buffer.draw(4, np.random.default_rng(0))
        assert buffer.num_bytes == 0


def test_bytes_are_those_of_text_primitives_and_image():
    assert BufferEntry("a caf\u00e9", ("caf\u00e9", "cup")).num_bytes == 7 + 5 + 3
    assert BufferEntry("", (), bytes(512)).num_bytes == 512
    assert BufferEntry("a lone \udce9", ()).num_bytes == 10


def test_a_budget_of_bytes_holds_whatever_comes_when():
    seen = [BufferEntry("x" * (1 + i % 37), (str(i),)) for i in range(200)]
    found = []
    for step in (200, 11, 1):
        buffer = MicroBuffer(64, seed=2, max_bytes=400)
        for start in range(0, 200, step):
            buffer.add(0, seen[::-1][start : start + step])
        found.append(buffer.entries())
        assert 300 < buffer.num_bytes <= 400
    assert found[0] == found[1] == found[2] and len(found[0]) < 64
    large = MicroBuffer(64, seed=2, max_bytes=400)
    large.add(0, [*seen, *(BufferEntry("x" * 401, (str(i),)) for i in range(200))])
    assert large.entries() == found[0]
    free = MicroBuffer(64, seed=2)
    free.add(0, seen)
    assert free.entries()[: len(found[0])] == found[0]


def test_a_buffer_goes_on_from_what_was_saved():
    images = [BufferEntry(f"t\udce9{i}", ("a", "b"), bytes([i, 255])) for i in range(40)]
    straight, broken = MicroBuffer(8, seed=5, max_bytes=60), MicroBuffer(8, seed=5, max_bytes=60)
    straight.add(0, images)
    straight.add(1, images)
    broken.add(0, images[:20])
    broken = MicroBuffer.from_dict(json.loads(json.dumps(broken.to_dict())))
    broken.add(0, images[20:])
    broken.add(1, images)
    assert broken.entries() == straight.entries() and broken.to_dict() == straight.to_dict()


def test_a_draw_takes_each_entry_once_at_most_and_follows_its_generator():
    buffer = MicroBuffer(6, seed=0)
    buffer.add(0, entries(9))
    buffer.add(1, entries(9, task=1))
    drawn = [buffer.draw(5, np.random.default_rng(seed), before=1) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and len({*drawn[0]}) == 5
    assert {*buffer.draw(99, np.random.default_rng(0), before=1)} == {*buffer.entries(before=1)}


def test_budgets_below_nothing_are_refused():
    with pytest.raises(ValueError, match=r"buffer.per_task=-1: must be at least 0"):
        MicroBuffer(-1, seed=0)
    with pytest.raises(ValueError, match=r"buffer.max_bytes=-5: must be at least 0"):
        MicroBuffer(1, seed=0, max_bytes=-5)
