"""Readers of published continual-learning data sets: a file, or a folder, to rows of images and texts.

A reader takes a folder, a file's name in it and a half, train or test, where one place has both. Every reader
raises ValueError, which starts with the location, where a field is missing or misshapen.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import is_text, read_json, take, take_pixels, take_texts

EXTENSIONS = (".jpg", ".jpeg", ".png")
# Number of candidates of a question without answers to choose from: the right one and the most common others.
NUM_CANDIDATES = 8
_WORDS_OF_KIND = 2
_STATE_PAIRS = "compositional-split-natural/{}_pairs.txt"


class Edit(NamedTuple):
    """A false text of a sample, one edit away from its caption; results report the margin between both."""

    text: str
    primitives: tuple[str, ...]
    category: str
    """Operation and kind of the edit: SWAP attribute."""


class Row(NamedTuple):
    """A training or test sample."""

    image: str
    """The image's file name, relative to the folder that the images are published in."""
    caption: str
    """For a question, the right answer with the question before it; "" if there is none."""
    primitives: tuple[str, ...] | None = None
    """None if the files do not name them; the caption is then parsed."""
    box: tuple[int, int, int, int] | None = None
    """Left, top, width, height in pixels: the part of the image that the row describes; None for all."""
    candidates: tuple[str, ...] = ()
    kind: str = ""
    """Questions: the kind of question; same kind, same value."""
    edits: tuple[Edit, ...] = ()
    """Used in the tests of tasks."""


def offer_answers(asked: Sequence[tuple[str, str, str | None]]) -> list[Row]:
    """Return (image, question, answer) with candidate answers, each as the question followed by the answer.

    The data sets are made for generative models and have no candidates, so these are raycomp's own: the right
    answer and the most common answers to other questions of the same kind. The kind is a question's first two
    words. There are 8 candidates together, or fewer if there are not as many answers. ``kind`` allows a
    text-only baseline that knows the answers of each kind.
    """
    known: dict[str, Counter[str]] = defaultdict(Counter)
    kinds = [" ".join(question.lower().split()[:_WORDS_OF_KIND]) for _, question, _ in asked]
    for kind, (_, _, answer) in zip(kinds, asked, strict=True):
        if answer is not None:
            known[kind][answer] += 1
    common = {
        kind: sorted(num, key=lambda answer: (-num[answer], answer))[:NUM_CANDIDATES]
        for kind, num in known.items()
    }
    rows = []
    for kind, (image, question, answer) in zip(kinds, asked, strict=True):
        if answer is None:
            rows.append(Row(image, "", kind=kind))
            continue
        others = [other for other in common[kind] if other != answer]
        offered = sorted([answer, *others[: NUM_CANDIDATES - 1]])
        texts = tuple(f"{question} {one}" for one in offered)
        rows.append(Row(image, f"{question} {answer}", candidates=texts, kind=kind))
    return rows


def read_clevr(folder: Folder, name: str, half: str) -> Iterator[Row]:
    """CLEVR and CoGenT scenes (Johnson et al. 2017, arXiv:1612.06890): coloured solids on a table.

    ``CLEVR_*_scenes.json``: {"scenes": [{"image_filename", "split", "objects": [{"size", "color", "material",
    "shape"}]}]}; images are ``images/SPLIT/FILE``. The scenes have no captions. The caption lists the objects
    in the file's order, and they are the primitives, so the binding of attributes is kept.
    """
    scenes = take(read_json(folder, name, dict), "scenes", list, folder.at(name))
    for place, scene in enumerate(scenes):
        where = f"{folder.at(name)}: scene {place}"
        image, split = (take(scene, field, str, where) for field in ("image_filename", "split"))
        things = take(scene, "objects", list, where)
        words = ("size", "color", "material", "shape")
        named = [" ".join(take(thing, word, str, where) for word in words) for thing in things]
        yield Row(f"{split}/{image}", ", ".join(map(add_article, named)), tuple(dict.fromkeys(named)))


def read_clove(folder: Folder, name: str, half: str) -> Iterator[Row]:
    """CLOVE (Lei et al. 2023, arXiv:2208.12037): questions by scene or by function, one file per task.

    ``*.json``: a list of {question_id, image_id, question, answer, answers, stage, ...}; images are
    ``IMAGE_ID.jpg``. Scenes come as ShopAndDining, Workplace, HomeOrHotel, Transportation, SportAndLeisure,
    Outdoors; functions as object, attribute, relation, logical, knowledge, scenetext.
    """
    asked = []
    for where, record in _read_records(folder, name):
        question, answer = (take(record, field, str, where).strip() for field in ("question", "answer"))
        asked.append((_name_file(take(record, "image_id", str | int, where)), question, answer))
    yield from offer_answers(asked)


def read_construct_vl(folder: Folder, name: str, half: str) -> Iterator[Row]:
    """ConStruct-VL (Smith et al. 2023, arXiv:2211.09790): one file of VL-CheckList per task.

    A list of [image, {"POS": [...], "NEG": [...]}]: the first caption of each are the candidate answers. The
    images, each once in the file's order, are shuffled by seed 0: the first 80 % are for training, the last
    10 % for testing, and those between are unused.
    """
    records = list(_read_records(folder, name))
    for where, record in records:
        if not isinstance(record, list) or len(record) != 2 or not is_text(record[0]):
            raise ValueError(f"{where}: must be [image, {{POS, NEG}}], is {record!r:.60}")
    order = list(dict.fromkeys(record[0] for _, record in records))
    Random(0).shuffle(order)
    chosen = {*(order[: len(order) * 8 // 10] if half == "train" else order[len(order) * 9 // 10 :])}
    for where, (image, texts) in records:
        right, wrong = (take_texts(texts, side, where)[0] for side in ("POS", "NEG"))
        if image in chosen:
            yield Row(image, right, candidates=(right, wrong), kind=name.removesuffix(".json"))


def read_mit_states(folder: Folder, name: str, half: str) -> Iterator[Row]:
    """MIT-States (Isola et al. 2015): objects in states, "sliced apple", in the split of Purushwalkam et al.
    2019.

    ``images/ADJECTIVE NOUN/*.jpg`` (or with ``_`` for the space), and ``compositional-split-natural/`` with
    ``train_pairs.txt`` and ``test_pairs.txt``, a pair a line. For pairs in both lists, only a file in Torch's
    format assigns images to the halves. Therefore the test has only the pairs that are not in training. The
    adjective and the noun are the primitives.
    """
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
    name = _STATE_PAIRS.format(half)
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


def read_vaw(folder: Folder, name: str, half: str) -> Iterator[Row]:
    """VAW (Pham et al. 2021, arXiv:2106.09707): objects of Visual Genome with their attributes.

    ``*.json``: a list of {image_id, instance_id, instance_bbox, object_name, positive_attributes,
    negative_attributes}; images are Visual Genome's ``IMAGE_ID.jpg``, cut to the box. The caption has the
    attributes and the object, "a parked, red car"; they are the primitives.
    """
    for where, record in _read_records(folder, name):
        image = take(record, "image_id", str | int, where)
        thing = take(record, "object_name", str, where).strip()
        attributes = tuple(dict.fromkeys(take_words(record, "positive_attributes", where)))
        sides = take(record, "instance_bbox", list, where)
        if len(sides) != 4:
            raise ValueError(f"{where}: instance_bbox={sides!r:.80}: must be left, top, width, height")
        left, top, width, height = (
            take_pixels({"instance_bbox": one}, "instance_bbox", where) for one in sides
        )
        said = " ".join(part for part in (", ".join(attributes), thing) if part)
        yield Row(_name_file(image), add_article(said), (*attributes, thing), (left, top, width, height))


def read_vqacl(folder: Folder, name: str, half: str) -> Iterator[Row]:
    """VQACL (Zhang et al. 2023): ``karpathy_HALF_TASK.json`` in VL-T5's layout of VQA v2, a file per task.

    A list of {question_id, img_id, sent, label: {answer: its score}}; images are ``IMG_ID.jpg``. The answer
    with the highest score is used; a label without an answer gives an empty caption. Tested only on synthetic
    rows: the published files were not available.
    """
    asked = []
    for where, record in _read_records(folder, name):
        question, image = (take(record, field, str, where).strip() for field in ("sent", "img_id"))
        label = take(record, "label", dict, where)
        for answer, right in label.items():
            if not is_text(answer) or isinstance(right, bool) or not isinstance(right, int | float):
                raise ValueError(f"{where}: label={label!r:.80}: must be answers, each with a number")
        best = max(sorted(label), key=label.__getitem__) if label else None
        asked.append((_name_file(image), question, best))
    yield from offer_answers(asked)


Read = Callable[[Folder, str, str], Iterator[Row]]
OF_FILES: dict[str, Read] = {
    "clevr": read_clevr,
    "vaw": read_vaw,
    "construct_vl": read_construct_vl,
    "clove": read_clove,
    "vqacl": read_vqacl,
}
"""Layouts that are one file; the images are in the file's folder unless another folder is named."""
OF_FOLDERS: dict[str, Read] = {"mit_states": read_mit_states}
"""Layouts that are a folder with all their files."""


def _read_records(folder: Folder, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the records of a json list, each with its location."""
    for place, record in enumerate(read_json(folder, name, list)):
        yield f"{folder.at(name)}: row {place}", record


def take_words(record: Any, name: str, where: str) -> tuple[str, ...]:
    """Return a field that is a list of words, which may be empty. Raises ValueError that starts with the
    location."""
    if not isinstance(record, dict) or name not in record:
        raise ValueError(f"{where}: has no field {name!r}")
    value = record[name]
    if not isinstance(value, list) or not all(map(is_text, value)):
        raise ValueError(f"{where}: {name}={value!r:.80}: must be a list of words")
    return tuple(word.strip() for word in value)


def _name_file(name: str | int) -> str:
    """Return the image file with this number, or with this name without the extension."""
    return f"{name}" if f"{name}".lower().endswith(EXTENSIONS) else f"{name}.jpg"


def add_article(words: str) -> str:
    """Return words with their article: "a red car"."""
    return f"{'an' if words[0].lower() in 'aeiou' else 'a'} {words}"
