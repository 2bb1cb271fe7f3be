"""Writes the test set of the little world to a disk or a store; ``worlds/benchmark.py`` reads it."""

from lab.worlds.benchmark import FILE
from lab.worlds.scenes import Pairs
from lab.worlds.test_set import draw_test_set
from raycomp.data.files import Folder


def write_test_set(
    folder: str, num_scenes: int, seed: int, pairs: Pairs | None = None, some_of: Pairs | None = None
) -> int:
    """Write ``world.json`` and ``images/``; return the number of rows. Same arguments, same bytes.

    A picture for each scene and a row for each of its negatives, in a split named by operation and kind,
    "swap_object". ``pairs`` and ``some_of`` as in ``draw_test_set``. Raises ValueError where ``num_scenes``
    is below 1.
    """
    if num_scenes < 1:
        raise ValueError(f"num_scenes={num_scenes}: must be at least 1")
    target, rows = Folder(folder), []
    for place, row in enumerate(draw_test_set(num_scenes, seed, pairs, some_of)):
        image = f"{place:05d}.jpg"
        target.write_bytes(row.image, "images", image)
        for negative in row.negatives:
            split = f"{negative.operation}_{negative.kind}".lower()
            rows.append(
                {
                    "split": split,
                    "id": f"{place}",
                    "image": image,
                    "caption": row.caption,
                    "paraphrase": row.paraphrase,
                    "negative": negative.caption,
                    "op": negative.operation,
                    "kind": negative.kind,
                }
            )
    target.write_json(rows, FILE)
    return len(rows)
