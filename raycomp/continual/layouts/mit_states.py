"""MIT-States (Isola et al. 2015): objects in states, "sliced apple", in the split of Purushwalkam et al.
2019.

``images/ADJECTIVE NOUN/*.jpg`` (or with ``_`` for the space), and ``compositional-split-natural/`` with
``train_pairs.txt`` and ``test_pairs.txt``, a pair a line. For pairs in both lists, only a file in Torch's
format assigns images to the halves. Therefore the test has only the pairs that are not in training. The
adjective and the noun are the primitives.
"""

from collections import defaultdict
from collections.abc import Iterator

from raycomp.continual.layouts.row import EXTENSIONS, Row, add_article
from raycomp.data.files import Folder

NAME = "mit_states"
_SPLIT = "compositional-split-natural/{}_pairs.txt"


def read(folder: Folder, name: str, half: str) -> Iterator[Row]:
    """Yield a row for every image; ValueError if a list is missing, or no image has a pair in it."""
    learned = _read_pairs(folder, "train")
    pairs = learned if half == "train" else [one for one in _read_pairs(folder, "test") if one not in learned]
    by_pair: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in folder.find_names():
        parts = path.split("/")
        if len(parts) == 3 and parts[0] == "images" and path.lower().endswith(EXTENSIONS):
            by_pair[tuple(parts[1].replace("_", " ").split(" ", 1))].append(path)
    if not any(pair in by_pair for pair in pairs):
        raise ValueError(f"{folder.uri}: has no images/ADJECTIVE NOUN/* of the {half} pairs")
    for pair in pairs:
        for path in by_pair[pair]:
            yield Row(path, add_article(" ".join(pair)), pair)


def _read_pairs(folder: Folder, half: str) -> list[tuple[str, ...]]:
    name = _SPLIT.format(half)
    try:
        lines = folder.read_bytes(name).decode("utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ValueError(f"{folder.uri}: has no file {name}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{folder.at(name)}: is not UTF-8: {error}") from error
    pairs = [tuple(line.split()) for line in lines if line.strip()]
    bad = next((pair for pair in pairs if len(pair) != 2), None)
    if bad is not None or not pairs:
        raise ValueError(f"{folder.at(name)}: must hold ADJECTIVE NOUN in each line, holds {bad}")
    return pairs
