"""What one table of truth says is what every layout gives."""

import pytest

from tests.field.fuzz import run


@pytest.mark.parametrize("first", [0, pytest.param(20, marks=pytest.mark.slow)])
def test_every_layout_gives_the_counts_captions_and_statuses_of_the_truth(first):
    for number in range(first, first * 14 + 20):
        assert run(number)[0] == {}, f"draw {number}"
