"""Figures of continual learning against values worked out by hand."""

import json
import math

import numpy as np
import pytest

from raycomp.core.continual import (
    BufferEntry,
    MicroBuffer,
    average_precision,
    compute_retention,
    cycle_errors,
    fuse,
    judge_read_out,
    measure_drift,
    score_by_prior,
    summarise,
    zero_shot_drift,
)

NAN = math.nan
MATRIX = np.array([[60.0, 10.0, 20.0], [70.0, 50.0, 14.0], [40.0, 44.0, 80.0]])
BEFORE = np.array([30.0, 12.0, 10.0])


def test_the_figures_of_a_matrix():
    found = summarise(MATRIX, BEFORE)
    # Task 1 scores 10 before it is learned, task 2 the mean of 20 and 14.
    assert found.transfer == pytest.approx((10 + 17) / 2)
    assert found.average == pytest.approx(388 / 9)
    assert found.last == pytest.approx(164 / 3)
    assert found.learned == pytest.approx(190 / 3)
    # Task 0: the best is 70, first 60, last 40; task 1: 50, 50, 44.
    assert found.forgetting_best == pytest.approx((30 + 6) / 2)
    assert found.forgetting_first == pytest.approx((20 + 6) / 2)
    # From task 0 to 1: -10 of task 0; from 1 to 2: 30 of task 0, 6 of task 1.
    assert found.forgetting_step == pytest.approx((-10 + 18) / 2)
    assert found.forward == pytest.approx(((10 - 12) + (14 - 10)) / 2)
    assert found.gain == pytest.approx(164 / 3 - 52 / 3)


def test_figures_that_a_stream_does_not_have_are_nan():
    alone = summarise(np.array([[7.0]]))
    assert (alone.average, alone.last, alone.learned) == (7, 7, 7)
    assert all(map(math.isnan, (alone.transfer, alone.forgetting_best, alone.forgetting_first)))
    assert all(map(math.isnan, (alone.forgetting_step, alone.forward, alone.gain)))
    for wrong in [np.zeros((0, 0)), np.zeros((2, 3)), np.zeros(4)]:
        with pytest.raises(ValueError, match=r"must be \(T, T\), T at least 1"):
            summarise(wrong)
    assert zero_shot_drift([60.0, 50.0], [57.0, 51.0]) == -1 and math.isnan(zero_shot_drift([], []))
    lower = summarise(np.where(np.tri(3, dtype=bool), MATRIX, NAN), BEFORE)
    full = summarise(MATRIX, BEFORE)
    assert all(map(math.isnan, (lower.transfer, lower.average, lower.forward)))
    for name in ("last", "learned", "forgetting_best", "forgetting_first", "forgetting_step", "gain"):
        assert getattr(lower, name) == getattr(full, name)


def test_retention_is_one_for_parts_that_are_right_by_chance():
    attribute_N, object_N = np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0])
    found = compute_retention(attribute_N * object_N, attribute_N, object_N)
    assert found == (1.0, 0.25, 0.5, 0.5)
    together = compute_retention(attribute_N, attribute_N, attribute_N)
    assert together == (2.0, 0.5, 0.5, 0.5)
    assert math.isnan(compute_retention(attribute_N * 0, attribute_N * 0, object_N).ratio)
    assert all(map(math.isnan, compute_retention(*[np.zeros(0)] * 3)))


def test_cycle_errors_of_primitives_at_right_angles_by_hand():
    primitive_BPD = np.stack([np.eye(4), np.eye(4)]) * 3
    primitive_BPD[1, 1:] = NAN
    valid_BP = np.array([[True] * 4, [True, False, False, False]])
    direction_BD = np.array([[0.5] * 4, [1.0, 0, 0, 0]])
    # Four at right angles: each lies sqrt(2 - 2 / sqrt(4)) = 1 from their mean.
    assert cycle_errors(direction_BD, primitive_BPD, valid_BP).tolist() == pytest.approx([1, 0])
    assert cycle_errors(-direction_BD, primitive_BPD, valid_BP)[1] == pytest.approx(2)


def test_average_precision_by_hand():
    for positive, negative, wanted in [
        ([9, 7, 4], [8, 6, 5, 1], (1 + 2 / 3 + 3 / 6) / 3),
        ([2, 1], [0], 1),
        ([1, 1], [1] * 6, 1 / 4),  # all tied: the share of positives
        ([5, 5, 3], [5, 5, 1], (2 / 4 * 2 + 3 / 5) / 3),  # ties with negatives count them all
    ]:
        assert average_precision(np.array(positive), np.array(negative)) == pytest.approx(wanted)


def test_a_read_out_is_judged_over_all_samples():
    score_BV = np.array([[0.9, 0.1, 0.2], [0.3, 0.8, 0.4]])
    own_BV = np.array([[True, False, False], [False, False, True]])
    found = judge_read_out(score_BV, own_BV)
    assert found.pr_auc == pytest.approx((1 + 2 / 3) / 2)
    assert found.roc_auc == pytest.approx(7 / 8)
    assert found.base == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="positive scores: must be at least 1, are 0"):
        judge_read_out(score_BV, np.zeros_like(own_BV))


def test_fused_scores_and_their_ends():
    rng = np.random.default_rng(0)
    text, composed = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    assert fuse(text, composed, 0.25) == pytest.approx(0.75 * text + 0.25 * composed)
    assert fuse(text, composed * NAN, 0.0) is text and fuse(text, composed, 1.0) is composed
    for weight in (-0.1, 1.1, NAN):
        with pytest.raises(ValueError, match=r"score.weight=.*: must be between 0 and 1"):
            fuse(text, composed, weight)


def test_answers_by_how_often_they_were_seen():
    seen, kind = np.array([1, 1, 2, 1, 3, 3]), np.array([0, 0, 0, 5, 5, 5])
    candidates = np.array([[2, 1, 3], [1, 3, -1], [1, 2, 3]])
    found = score_by_prior(seen, kind, np.array([0, 5, 9]), candidates)
    assert found.tolist() == [[1, 2, 0], [1, 2, -math.inf], [0, 0, 0]]
    assert score_by_prior(seen[:0], kind[:0], np.array([0]), candidates[:1]).tolist() == [[0, 0, 0]]
    assert score_by_prior(seen, kind, np.zeros(0, int), np.zeros((0, 3), int)).shape == (0, 3)


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
    drawn = [buffer.draw(3, np.random.default_rng(seed), before=1) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and len({*drawn[0]}) == 3
    assert {*buffer.draw(99, np.random.default_rng(0), before=1)} == {*buffer.entries(before=1)}
    with pytest.raises(ValueError, match=r"buffer.per_task=-1: must be at least 0"):
        MicroBuffer(-1, seed=0)


def test_a_budget_of_bytes_holds_whatever_comes_when():
    assert BufferEntry("a caf\u00e9", ("caf\u00e9", "cup"), bytes(9)).num_bytes == 7 + 5 + 3 + 9
    seen = [BufferEntry("x" * (1 + i % 37), (str(i),)) for i in range(200)]
    large = [BufferEntry("x" * 401, (str(i),)) for i in range(200)]
    free = MicroBuffer(64, seed=2)
    free.add(0, seen)
    for given, step in ((seen, 200), (seen[::-1], 11), ([*seen, *large], 400)):
        buffer = MicroBuffer(64, seed=2, max_bytes=400)
        for start in range(0, len(given), step):
            buffer.add(0, given[start : start + step])
        assert 300 < buffer.num_bytes <= 400 and len(buffer.entries()) < 64
        assert buffer.entries() == free.entries()[: len(buffer.entries())]
    none = MicroBuffer(64, seed=1, max_bytes=0)
    none.add(0, seen)
    assert none.entries() == [] == none.draw(4, np.random.default_rng(0)) and none.num_bytes == 0


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


def drift_slowly(start_ND: np.ndarray, now_ND: np.ndarray, num: int) -> tuple[float, float]:
    """Return the drift by eigenvectors of the covariances, and by angles: direction after direction."""
    bases = []
    for state_ND in (start_ND, now_ND):
        _, vector_DD = np.linalg.eigh(np.cov(state_ND.T))
        bases.append(vector_DD[:, ::-1][:, :num].T)
    cosines = np.linalg.svd(bases[0] @ bases[1].T, compute_uv=False)
    angles = [math.acos(min(1.0, cosine)) for cosine in cosines]
    apart = []
    for one_D, other_D in zip(start_ND, now_ND, strict=True):
        apart.append(1 - one_D @ other_D / math.sqrt(one_D @ one_D) / math.sqrt(other_D @ other_D))
    return sum(math.sin(angle) ** 2 for angle in angles) / num, sum(apart) / len(apart)


def test_the_drift_of_a_layer_equals_a_slow_loop():
    rng = np.random.default_rng(0)
    for num_texts, num_dims, num in ((40, 64, 16), (9, 64, 8), (30, 10, 5)):
        start_ND = rng.normal(size=(num_texts, num_dims)) + rng.normal(size=num_dims)
        now_ND = start_ND + 0.3 * rng.normal(size=start_ND.shape)
        found = measure_drift(start_ND, now_ND)
        assert found == pytest.approx(drift_slowly(start_ND, now_ND, num), rel=1e-9)
        assert 0 < found.subspace < 1 and 0 < found.distance < 2


def test_the_drift_of_states_that_stay_and_of_states_at_right_angles():
    rng = np.random.default_rng(1)
    state_ND, none_ND = rng.normal(size=(20, 6)), np.zeros((20, 6))
    start_ND = np.hstack([state_ND, none_ND])
    assert measure_drift(start_ND, start_ND) == pytest.approx((0, 0), abs=1e-12)
    assert measure_drift(start_ND, np.hstack([none_ND, state_ND])) == pytest.approx((1, 1))
    assert measure_drift(start_ND, -start_ND) == pytest.approx((0, 2), abs=1e-12)
    shifted = measure_drift(start_ND, 3 * start_ND + 5)
    assert shifted.subspace == pytest.approx(0, abs=1e-12) and shifted.distance > 0.1
    # Of six directions two are lost.
    lost = measure_drift(start_ND, start_ND * (np.arange(12) > 1))
    assert lost.subspace == pytest.approx(1 / 3)


@pytest.mark.parametrize("angle", [0.0, 0.2, 1.0, math.pi / 2])
def test_the_drift_of_a_rotation_is_the_squared_sine_of_its_angle(angle):
    """Two main directions in four dims, each turned into an own further one, by the same angle."""
    rng = np.random.default_rng(2)
    state_NS = rng.normal(size=(12, 2))
    start_ND = np.hstack([state_NS, np.zeros((12, 2))])
    now_ND = np.hstack([math.cos(angle) * state_NS, math.sin(angle) * state_NS])
    found = measure_drift(start_ND, now_ND)
    assert found == pytest.approx((math.sin(angle) ** 2, 1 - math.cos(angle)), abs=1e-9)


def test_the_drift_of_states_without_a_subspace_and_what_is_refused():
    same = measure_drift(np.ones((5, 4)), np.ones((5, 4)))
    assert math.isnan(same.subspace) and same.distance == pytest.approx(0)
    assert measure_drift(np.zeros((5, 4)), np.ones((5, 4))).distance == 1
    for start, now in (((3, 4), (4, 4)), ((3,), (3,)), ((0, 4), (0, 4))):
        with pytest.raises(ValueError, match=r"must be \(N, D\) both, N at least 1$"):
            measure_drift(np.zeros(start), np.zeros(now))
