"""Which stage holds the others up, and the line that says so."""

import io

import pytest

from raycomp.cluster.progress import Progress, name_bottleneck


@pytest.mark.parametrize(
    ("busy", "stage"),
    [
        ({"decode": 0.7, "image": 0.5, "text": 0.4}, "image"),  # the scorers are busy for 0.9 of the time
        ({"read": 0.3, "decode": 0.35, "write": 0.3, "image": 0.8}, "decode"),  # the other CPUs for 0.95
        ({"parse": 0.2, "attribute": 0.3, "device": 5.0}, "attribute"),
        ({"write": 0.1}, "write"),
        ({}, None),
    ],
)
def test_the_longest_stage_of_the_busiest_workers_is_the_bottleneck(busy, stage):
    assert name_bottleneck(busy) == stage


def test_the_line_names_the_bottleneck_by_worker():
    progress = Progress("align", 4, {"decode": 8, "image": 2})
    progress.stream = io.StringIO()
    progress.add(50, {"decode": 12.0, "image": 4.0, "device": 3.0})
    progress.show()
    assert progress.stream.getvalue().endswith(
        ", bottleneck image"
    )  # 1.5 s of each decoder, 2 s of each scorer
    progress.add(0, {"write": 9.0})
    progress.show()
    assert progress.stream.getvalue().endswith(", bottleneck write")
