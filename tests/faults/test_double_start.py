"""Two starts of one run in the same folder."""

import signal

import pytest

from tests.faults.harness import check_promise, start, tell

pytestmark = pytest.mark.ray


def test_a_second_start_is_refused_while_the_first_runs(calm, out, joined):
    config, expected = calm
    with start(config, out.uri, joined) as first:
        assert first.wait_for(lambda: out.exists("run.json"))
        first.process.send_signal(signal.SIGSTOP)  # else it may end before the second begins
        with start(config, out.uri, joined) as second:
            code, said = second.wait()
        first.process.send_signal(signal.SIGCONT)
        assert code == 2 and said.startswith("raycomp: out=") and said.count("\n") == 1, said
        code, _ = first.wait()
    assert code == 0
    check_promise(out, expected)
    tell("second start in the same folder", "the first runs", f"exit 2: {said.strip()}; the first exit 0")
