"""A made stream: pictures are their things, turned, with noise; each task turns another way."""

import numpy as np

from raycomp.continual.data import Split, Stream, Task

DIM, NUM_NAMES = 16, 12
NAMES = tuple(f"small colour{i % 4} shape{i}" for i in range(NUM_NAMES))


def unit(value: np.ndarray) -> np.ndarray:
    return (value / np.linalg.norm(value, axis=-1, keepdims=True)).astype(np.float32)


def make_split(
    sets: list[tuple[str, ...]],
    embedded: dict[str, np.ndarray],
    turn_DD: np.ndarray,
    seed: int,
    questions: bool = False,
) -> Split:
    """One sample of each set; a text's embedding is the mean of its names, and noise."""
    rng = np.random.default_rng(seed)
    mean_TD = np.stack([np.mean([embedded[name] for name in names], axis=0) for names in sets])
    image_ND = unit(mean_TD @ turn_DD + 0.05 * rng.standard_normal(mean_TD.shape))
    asked = {}
    if questions:
        other_N = (np.arange(len(sets)) + 1) % len(sets)
        asked["candidate_NK"] = np.stack([np.arange(len(sets)), other_N, np.full(len(sets), -1)], 1)
        asked["kind_N"] = np.zeros(len(sets), np.int64)
    return Split(
        image_ND=image_ND,
        own_N=np.arange(len(sets), dtype=np.int64),
        texts=tuple(f"a picture of {' and '.join(names)}" for names in sets),
        text_TD=unit(mean_TD + 0.3 * rng.standard_normal(mean_TD.shape)),
        primitives=tuple(tuple(sorted(names)) for names in sets),
        **asked,
    )


def make_stream(num_tasks: int = 3, per_task: int = 20, dim: int = DIM, questions: bool = False) -> Stream:
    rng = np.random.default_rng(0)
    name_VD = unit(rng.standard_normal((NUM_NAMES, dim)))
    embedded = dict(zip(NAMES, name_VD, strict=True))
    tasks = []
    for task in range(num_tasks + 1):
        turn_DD, upper_DD = np.linalg.qr(np.eye(dim) + 0.3 * rng.standard_normal((dim, dim)))
        turn_DD = turn_DD * np.sign(np.diag(upper_DD))
        sets = draw_sets(rng, 2 * per_task)
        train, test = (
            make_split(some, embedded, turn_DD, 10 * task + i, questions)
            for i, some in enumerate((sets[:per_task], sets[per_task:]))
        )
        tasks.append(Task(f"task {task}", train, test))
    return Stream("made", tuple(tasks[:-1]), (tasks[-1],), NAMES, name_VD)


def draw_sets(rng: np.random.Generator, num: int) -> list[tuple[str, ...]]:
    found: dict[tuple[str, ...], None] = {}
    while len(found) < num:
        chosen = rng.choice(NUM_NAMES, int(rng.integers(2, 4)), replace=False)
        found.setdefault(tuple(sorted(NAMES[i] for i in chosen)))
    return list(found)
