"""A failed read goes on where it stopped: nothing lost, nothing doubled."""

import pyarrow as pa
import pytest

from raycomp.data.reader import read_again


class Flaky:
    """Yields six tables; fails at given calls after a given number of tables."""

    def __init__(self, *failures: int, error: Exception):
        self.failures = list(failures)
        self.error = error
        self.calls = 0

    def __call__(self, item):
        self.calls += 1
        fail_after = self.failures.pop(0) if self.failures else None
        for i in range(6):
            if i == fail_after:
                raise self.error
            yield pa.table({"item": [item], "i": [i]})


def test_reading_again_skips_what_was_yielded():
    for failures in [(), (0,), (3,), (3, 3), (2, 0), (3, 5), (5, 5)]:
        flaky = Flaky(*failures, error=OSError("reset"))
        tables = list(read_again(flaky, "a", first_pause_s=0))
        assert [table["i"][0].as_py() for table in tables] == list(range(6)), failures
        assert flaky.calls == len(failures) + 1, failures


def test_a_storage_that_stays_broken_is_an_error():
    with pytest.raises(OSError, match="reset"):
        list(read_again(Flaky(*[1] * 9, error=OSError("reset")), "a", first_pause_s=0))


def test_what_waiting_does_not_fix_fails_at_once():
    for error in [FileNotFoundError("gone"), PermissionError("no"), ValueError("a bug")]:
        flaky = Flaky(2, error=error)
        with pytest.raises(type(error)):
            list(read_again(flaky, "a", first_pause_s=0))
        assert flaky.calls == 1, error
