"""Scorers over time: counted by a thread, added up over commits and restarts, drawn as steps."""

import time
from itertools import chain, repeat

import pytest

from raycomp.run.executor import Stats, There
from raycomp.run.progress import Growth, average
from raycomp.run.run import describe_phases

MOST = There(0.0, 4, 16)


def test_changes_are_noted_once_and_taken_once():
    reported = chain([(0, 4), (1, 4), (1, 4), (3, 12)], repeat((3, 12)))
    with Growth(lambda: next(reported), every_s=0.01) as growth:
        while len(growth.steps) < 4:
            time.sleep(0.01)
        first = growth.take()
    assert [step[1:] for step in first] == [(0, 0), (0, 4), (1, 4), (3, 12)]
    assert [step.since_s for step in first] == sorted(step.since_s for step in first)
    assert growth.take() == [There(0.0, 3, 12)]


def test_workers_that_come_and_go_offer_what_they_were_there_for():
    for steps, scorers, cpus in [
        ([There(0.0, 4, 16)], 1.0, 1.0),
        ([There(0.0, 0, 0), There(5.0, 4, 8)], 0.5, 0.25),
        ([There(0.0, 1, 4), There(4.0, 2, 8), There(8.0, 9, 99)], 1.0 * (4 + 8 + 18) / 40, 1.0),
    ]:
        shares = average(steps, 10.0, MOST)
        assert shares == pytest.approx({"scorers": scorers, "gpus": scorers, "cpus": cpus})


def test_a_phases_growth_goes_on_where_its_last_commit_left_it():
    stats = Stats()
    commits = [There(0.0, 0, 4), There(2.0, 1, 4)], [There(0.0, 1, 4), There(3.0, 2, 8)], [There(0.0, 2, 8)]
    for steps in commits:
        stats.add(Stats(growth=steps, wall_s=10.0).to_dict())
    assert stats.growth == [There(0.0, 0, 4), There(2.0, 1, 4), There(13.0, 2, 8)]
    [phase] = describe_phases({"align": stats})
    assert phase["growth"][-1] == [13.0, 2, 8]
    assert "growth" not in describe_phases({"align": Stats()})[0]
