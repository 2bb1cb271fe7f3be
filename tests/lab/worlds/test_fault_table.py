"""The fault table against known separations."""

import math

import numpy as np
import pytest

from lab.worlds.faults import fault_table

NAN = float("nan")


def test_known_separations_and_rows_without_scores() -> None:
    fault_N = ["none"] * 4 + ["wrong_object"] * 3 + ["corrupt_image"] * 2 + ["boilerplate_tail"] * 2
    alignment_N = np.array([4, 5, 6, NAN, 1, 2, 9, NAN, NAN, 5, 5])
    pas_N = np.array([0.4, 0.5, 0.6, 0.9, 0.1, 0.2, NAN, NAN, NAN, 0.9, 0.8])
    tail, corrupt, wrong = fault_table(fault_N, alignment_N, pas_N)
    assert (tail.fault, corrupt.fault, wrong.fault) == ("boilerplate_tail", "corrupt_image", "wrong_object")
    # The third faulty pair has no PAS: it counts for neither score, though its alignment is the highest.
    assert (wrong.num_planted, wrong.num_scored, wrong.num_clean) == (3, 2, 3)
    assert (wrong.alignment.value, wrong.mean_pas.value) == (1.0, 1.0)
    assert (tail.alignment.value, tail.mean_pas.value) == (0.5, 0.0)
    assert (corrupt.num_planted, corrupt.num_scored) == (2, 0)
    assert corrupt.alignment is None and corrupt.mean_pas is None


def test_auc_of_shifted_normals_lies_in_its_interval() -> None:
    rng = np.random.default_rng(0)
    clean_N, faulty_N = rng.normal(1, 1, 4000), rng.normal(0, 1, 4000)
    fault_N = np.repeat(["none", "wrong_relation"], 4000)
    (row,) = fault_table(fault_N, np.concatenate([clean_N, faulty_N]), np.concatenate([faulty_N, clean_N]))
    exact = 0.5 * (1 + math.erf(0.5))  # Phi(1 / sqrt 2)
    low, high = row.alignment.low, row.alignment.high
    assert low < row.alignment.value < high and high - low < 0.03
    assert row.alignment.value == pytest.approx(exact, abs=0.02)
    assert row.mean_pas.value == pytest.approx(1 - row.alignment.value, abs=1e-12)


def test_no_clean_rows_and_unequal_columns() -> None:
    (row,) = fault_table(["wrong_object"], np.array([1.0]), np.array([1.0]))
    assert row.num_clean == 0 and row.alignment is None
    with pytest.raises(ValueError, match="2, 1, 1"):
        fault_table(["none", "none"], np.ones(1), np.ones(1))
