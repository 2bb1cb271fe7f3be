"""Readers of the published benchmarks: each yields ``Choice`` rows from the files that its authors publish.

Every reader raises ValueError, naming file and row, where a file or field is missing or malformed.
"""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import isfunction
from typing import Any

from raycomp import words
from raycomp.config.commands import call_own, load_own, name_own
from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks import choice
from raycomp.evaluation.benchmarks.choice import Choice, is_text, read_json, read_lines, take, take_texts
from raycomp.language.lexicon import ADJECTIVE_TAGS, NOUN_TAGS, Token
from raycomp.words import ADD, ATTRIBUTE, CONCEPT_KINDS, OBJECT, OPERATIONS, RELATION, REPLACE, SWAP

EDITS = {
    "add_att": (ADD, ATTRIBUTE),
    "add_obj": (ADD, OBJECT),
    "replace_att": (REPLACE, ATTRIBUTE),
    "replace_obj": (REPLACE, OBJECT),
    "replace_rel": (REPLACE, RELATION),
    "swap_att": (SWAP, ATTRIBUTE),
    "swap_obj": (SWAP, OBJECT),
}
"""The splits of SugarCrepe, and the edit of each."""


def _rows(folder: Folder, name: str, shape: type = list) -> Iterator[tuple[str, str, Any]]:
    """Yield place, key and content of a file's rows: of a JSON list, or of an object of rows by key."""
    rows = read_json(folder, name, shape)
    for key, record in rows.items() if shape is dict else enumerate(rows):
        yield f"{folder.at(name)}: row {key!r}", str(key), record


def _take_sides(record: Any, first: str, second: str, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return take_texts(record, first, where), take_texts(record, second, where)


def read_sugarcrepe(folder: Folder) -> Iterator[Choice]:
    """SugarCrepe (Hsieh et al. 2023, arXiv:2306.14610): captions of COCO val2017, negatives by ChatGPT.

    ``data/{split}.json``: id (with gaps) -> filename, caption, negative_caption.
    """
    for split, edit in EDITS.items():
        for where, key, record in _rows(folder, f"{split}.json", dict):
            image = take(record, "filename", str, where)
            positives, negatives = _take_sides(record, "caption", "negative_caption", where)
            yield Choice("sugarcrepe", split, key, image, positives, negatives, *edit)


def read_sugarcrepe_pp(folder: Folder) -> Iterator[Choice]:
    """SugarCrepe++ (Dumpala et al. 2024, arXiv:2406.11171): SugarCrepe's edits with two positives each.

    ``data/{split}.json``: a list of id, filename, caption, caption2 (a paraphrase), negative_caption. Some of
    the first captions were edited and differ from SugarCrepe's. Chance is 1/3: both positives above the
    negative.
    """
    for split in ("replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj"):
        for where, _, record in _rows(folder, f"{split}.json"):
            key, image = str(take(record, "id", int | str, where)), take(record, "filename", str, where)
            positives = take_texts(record, "caption", where) + take_texts(record, "caption2", where)
            negatives = take_texts(record, "negative_caption", where)
            yield Choice("sugarcrepe_pp", split, key, image, positives, negatives, *EDITS[split])


_VALSE = {  # for foils in answers, numbers, existence and plurality the paper names no edited concept
    "actant-swap": (SWAP, OBJECT),
    "action-replacement": (REPLACE, RELATION),
    "coreference-hard": ("", ""),
    "coreference-standard": ("", ""),
    "counting-adversarial": (REPLACE, ""),
    "counting-hard": (REPLACE, ""),
    "counting-small-quant": (REPLACE, ""),
    "existence": ("", ""),
    "foil-it": (REPLACE, OBJECT),
    "plurals": ("", ""),
    "relations": (REPLACE, RELATION),
}
_VOTES_NEEDED = 2


def read_valse(folder: Folder) -> Iterator[Choice]:
    """VALSE (Parcalabescu et al. 2022, arXiv:2112.07566): captions and foils for six linguistic phenomena.

    ``data/{piece}.json``: id -> image_file, caption, foil (or foils), mturk, the votes of three annotators
    for the caption, the foil or neither. Published scores use the rows with at least two votes for the
    caption; the others are read too, marked ``UNCONFIRMED``.
    """
    for split, edit in _VALSE.items():
        for where, key, record in _rows(folder, f"{split}.json", dict):
            votes = take(take(record, "mturk", dict, where), "caption", int, f"{where}: mturk")
            defects = () if votes >= _VOTES_NEEDED else (choice.UNCONFIRMED,)
            image, positives = take(record, "image_file", str, where), take_texts(record, "caption", where)
            negatives = take_texts(record, "foil" if "foil" in record else "foils", where)
            yield Choice("valse", split, key, image, positives, negatives, *edit, defects)


def read_vl_checklist(folder: Folder) -> Iterator[Choice]:
    """VL-CheckList (Zhao et al. 2022, arXiv:2207.00221): one word of a short caption replaced.

    Every ``*.json`` below the folder is a split of that name: a list of [image, {"POS": [...], "NEG":
    [...]}]. The published test takes the first caption of each, and the first 1,000 rows of each file. The
    outermost folder with object, attribute or relation in its name gives the aspect.
    """
    names = [name for name in folder.find_names() if name.endswith(".json")]
    if not names:
        raise ValueError(f"{folder.uri}: has no *.json file below it")
    for name in names:
        split = name.removesuffix(".json")
        places = [*split.lower().split("/"), *folder.uri.lower().rstrip("/").split("/")[:-3:-1]]
        kind = next((kind for place in places for kind in CONCEPT_KINDS if kind in place), "")
        for where, key, record in _rows(folder, name):
            if not isinstance(record, list) or len(record) != 2 or not is_text(record[0]):
                raise ValueError(f"{where}: must be [image, {{POS, NEG}}], is {record!r:.60}")
            positives, negatives = _take_sides(record[1], "POS", "NEG", where)
            yield Choice("vl_checklist", split, key, record[0], positives, negatives, REPLACE, kind)


_ARO = {
    "relation": ("visual_genome_relation.json", (SWAP, OBJECT)),
    "attribution": ("visual_genome_attribution.json", (SWAP, ATTRIBUTE)),
}


def read_aro(folder: Folder) -> Iterator[Choice]:
    """ARO (Yuksekgonul et al. 2023, arXiv:2210.01936): Visual Genome Relation and Attribution.

    The user downloads ``visual_genome_relation.json`` and ``visual_genome_attribution.json`` (one is enough):
    lists of image_path, true_caption, false_caption, and a box that the image is cropped to before scoring.
    """
    edits = dict(_ARO.values())
    for split, name in _list_splits(folder, {split: name for split, (name, _) in _ARO.items()}).items():
        for where, key, record in _rows(folder, name):
            sides = ("bbox_x", "bbox_y", "bbox_w", "bbox_h")
            left, top, width, height = (choice.take_pixels(record, side, where) for side in sides)
            image, box = take(record, "image_path", str, where), (left, top, width, height)
            positives, negatives = _take_sides(record, "true_caption", "false_caption", where)
            yield Choice("aro", split, key, image, positives, negatives, *edits[name], box=box)


def _list_splits(folder: Folder, files: dict[str, str]) -> dict[str, str]:
    """Return the files that the folder has, by split. Raises ValueError where it has none."""
    found = {split: name for split, name in files.items() if folder.exists(name)}
    if not found:
        raise ValueError(f"{folder.uri}: has neither {' nor '.join(files.values())}")
    return found


_TAGS = {"Object": OBJECT, "Relation": RELATION, "Both": ""}


def read_winoground(folder: Folder) -> Iterator[Choice]:
    """Winoground (Thrush et al. 2022, arXiv:2204.03162): two images, two captions of exactly the same words.

    ``data/examples.jsonl`` of ``facebook/winoground``, one item a line: id, image_0, image_1 (names without
    the ending), caption_0, caption_1, collapsed_tag (Object, Relation or Both). Its images.zip holds
    NAME.png.
    """
    for where, record in read_lines(folder, "examples.jsonl"):
        tag = take(record, "collapsed_tag", str, where)
        if tag not in _TAGS:
            raise ValueError(f"{where}: collapsed_tag={tag!r:.80}: must be one of {', '.join(_TAGS)}")
        key = str(take(record, "id", int | str, where))
        names = [take(record, name, str, where).removesuffix(".png") for name in ("image_0", "image_1")]
        images, captions = (
            [f"{name}.png" for name in names],
            _take_sides(record, "caption_0", "caption_1", where),
        )
        yield from choice.pair_up("winoground", "test", key, images, captions, SWAP, _TAGS[tag])


def read_bivlc(folder: Folder) -> Iterator[Choice]:
    """BiVLC (Miranda et al. 2024, arXiv:2406.09952): SugarCrepe's pairs, each with an image of the negative.

    It is published as Parquet with the images inside (``imirandam/BiVLC``, split test). This function reads
    ``bivlc.jsonl``, a line for each row with the published fields: caption, negative_caption, type (add,
    replace, swap), subtype (att, obj, rel), and image and negative_image as the names of files that hold
    their bytes. The ``datasets`` library writes it::

        rows = load_dataset("imirandam/BiVLC", split="test")
        for name in ("image", "negative_image"):
            rows = rows.cast_column(name, Image(decode=False))
        with open("bivlc.jsonl", "w") as file:
            for place, row in enumerate(rows):
                for name in ("image", "negative_image"):
                    path = f"{place}_{name}.jpg"
                    pathlib.Path("images", path).write_bytes(row[name]["bytes"])
                    row[name] = path
                file.write(json.dumps(row) + "\\n")
    """
    for place, (where, record) in enumerate(read_lines(folder, "bivlc.jsonl")):
        split = "_".join(take(record, name, str, where).lower() for name in ("type", "subtype"))
        if split not in EDITS:
            said = f"type and subtype give {split!r:.80}: must be one of {', '.join(EDITS)}"
            raise ValueError(f"{where}: {said}")
        images = [take(record, name, str, where) for name in ("image", "negative_image")]
        captions = _take_sides(record, "caption", "negative_caption", where)
        yield from choice.pair_up("bivlc", split, str(place), images, captions, *EDITS[split])


def read_cola(folder: Folder) -> Iterator[Choice]:
    """COLA, multi-object matching (Ray et al. 2023, arXiv:2305.03689): two captions swap attributes.

    ``data/COLA_multiobjects_matching_benchmark.json``: a list of [image 1, caption 1, image 2, caption 2]; an
    image is a URL that ends in the name of a Visual Genome file.
    """
    for where, key, record in _rows(folder, "COLA_multiobjects_matching_benchmark.json"):
        if not isinstance(record, list) or len(record) != 4 or not all(map(is_text, record)):
            raise ValueError(f"{where}: must be [image 1, caption 1, image 2, caption 2], is {record!r:.80}")
        images = [record[i].rpartition("/")[2] for i in (0, 2)]
        captions = [(record[i].strip(),) for i in (1, 3)]
        yield from choice.pair_up("cola", "multi_objects", key, images, captions, SWAP, ATTRIBUTE)


def read_hard_positives(folder: Folder) -> Iterator[Choice]:
    """Hard positives (Kamath et al. 2024, arXiv:2409.17958): a replaced word leaves the caption true.

    ``data/vl_checklist_{split}.json`` holds captions c and their hard negatives n, the same row of
    ``swapped_data/`` the hard positive p and n again, each with image_path: c and p must both lie above n.
    """
    for split, kind in {"attributes": ATTRIBUTE, "relations": RELATION}.items():
        names = [f"{part}/vl_checklist_{split}.json" for part in ("data", "swapped_data")]
        rows = [list(_rows(folder, name)) for name in names]
        if len(rows[0]) != len(rows[1]):
            counts = " and ".join(f"{len(some):,} in {name}" for some, name in zip(rows, names, strict=True))
            raise ValueError(f"{folder.uri}: the rows do not match: {counts}")
        for (where, key, first), (other, _, second) in zip(*rows, strict=True):
            for name in ("image_path", "false_caption"):
                if take(first, name, str, where) != take(second, name, str, other):
                    raise ValueError(f"{other}: {name}={second[name]!r:.80}: differs from {names[0]}")
            positives = take_texts(first, "true_caption", where) + take_texts(second, "true_caption", other)
            negatives = take_texts(first, "false_caption", where)
            image = first["image_path"].removeprefix("data/")
            yield Choice("hard_positives", split, key, image, positives, negatives, REPLACE, kind)


_MAX_WORDS = 30
_DROPPED = re.compile(r'[.!"()*#:;~]')

Tag = Callable[[Sequence[str]], Sequence[Sequence[Token]]]
"""Captions in, the tokens of each out: ``models.parser.Parser.tokens`` is one."""


def read_aro_order(folder: Folder, tag: Tag, seed: int = 0) -> Iterator[Choice]:
    """COCO-Order and Flickr30k-Order of ARO (Yuksekgonul et al. 2023, arXiv:2210.01936): four shuffles each.

    The user downloads ``coco_karpathy_test.json`` and ``flickr30k_test.json`` (one is enough): lists of
    image, caption (a list). The four negatives have the caption's tokens in another order: nouns and
    adjectives, each among themselves; all but these; within each three tokens; the threes. Texts are then
    lower-cased and cut to 30 words, as in the published code. Three things differ from that code. The draw
    has a seed. Tokens and tags are the given parser's. The true caption also has spaces between its tokens
    ("man 's"), so that only the order differs. A row whose caption a shuffle left unchanged has the defect
    ``EQUAL``; the published code counts it as right.
    """
    files = {"coco": "coco_karpathy_test.json", "flickr30k": "flickr30k_test.json"}
    for split, name in _list_splits(folder, files).items():
        keys, images, captions = [], [], []
        for where, place, record in _rows(folder, name):
            image = take(record, "image", str, where)
            for number, caption in enumerate(take_texts(record, "caption", where)):
                keys.append(f"{place}/{number}")
                images.append(image)
                captions.append(caption)
        for key, image, caption, tokens in zip(keys, images, captions, tag(captions), strict=True):
            orders = shuffle(tokens, f"{seed} {split} {key}")
            texts = (_DROPPED.sub(" ", " ".join(order).lower()).split()[:_MAX_WORDS] for order in orders)
            true, *shuffled = map(" ".join, texts)
            if not true:
                raise ValueError(f"{folder.at(name)}: caption {key}: {caption!r:.80}: has no word")
            yield Choice("aro_order", split, key, image, (true,), tuple(shuffled))


def shuffle(tokens: Sequence[Token], seed: str) -> list[list[str]]:
    """Return the tokens' texts in order, then shuffled in the four ways."""
    rng, texts = random.Random(seed), [token.text for token in tokens]

    def permute(texts: list[str], places: list[int]) -> list[str]:
        permuted = list(texts)
        for place, source in zip(places, rng.sample(places, len(places)), strict=True):
            permuted[place] = texts[source]
        return permuted

    nouns = [i for i, token in enumerate(tokens) if token.tag in NOUN_TAGS]
    adjectives = [i for i, token in enumerate(tokens) if token.tag in ADJECTIVE_TAGS]
    others = sorted({*range(len(tokens))} - {*nouns, *adjectives})
    threes = [texts[i : i + 3] for i in range(0, len(texts), 3)]
    within = [word for three in threes for word in rng.sample(three, len(three))]
    moved = [word for three in rng.sample(threes, len(threes)) for word in three]
    described = permute(permute(texts, nouns), adjectives)
    return [texts, described, permute(texts, others), within, moved]


READERS: dict[str, Callable[[Folder], Iterable[Choice]]] = {
    "sugarcrepe": read_sugarcrepe,
    "sugarcrepe_pp": read_sugarcrepe_pp,
    "valse": read_valse,
    "vl_checklist": read_vl_checklist,
    "aro": read_aro,
    "winoground": read_winoground,
    "bivlc": read_bivlc,
    "cola": read_cola,
    "hard_positives": read_hard_positives,
}
TAGGED = {"aro_order": read_aro_order}
"""Benchmarks whose negatives are made of tagged words."""
NAMES = (*READERS, *TAGGED)
_OPTION = "benchmarks"


def read_benchmark(
    name: str, folder: Folder, limit: int | None = None, tag: Tag | None = None, seed: int = 0
) -> list[Choice]:
    """Return the rows of the benchmark ``name`` from the annotation files in ``folder``, defects marked.

    With a ``limit`` only the first items of each split, up to that number. ``tag`` parses captions, for
    benchmarks in ``TAGGED``, and ``seed`` draws their negatives. Raises ValueError on an unknown name and
    where a folder, file, row or field is missing or malformed.
    """
    if name not in NAMES:
        raise ValueError(f"benchmark={name!r}: must be one of {', '.join(NAMES)}")
    if not folder.exists():
        raise ValueError(f"{folder.uri}: is not a folder; it should hold the annotation files of {name}")
    if name in READERS:
        return _finish_rows(READERS[name](folder), limit)
    if tag is None:
        raise ValueError(f"benchmark={name!r}: needs a parser; this call has none")
    return _finish_rows(TAGGED[name](folder, tag, seed), limit)


def read_own(name: str, folder: Folder, limit: int | None = None) -> list[Choice]:
    """Return the rows that the user's function yields for ``folder``, as ``read_benchmark``.

    ``name``: FILE.py:NAME. Raises ValueError, one line, where the function fails or yields something else.
    """
    read = load_own(_OPTION, name)
    if not isfunction(read):
        raise ValueError(f"{_OPTION}={name}: must name a function in that file")
    rows = call_own(_OPTION, name, lambda: list(read(folder)))
    for row in rows:
        if not isinstance(row, Choice):
            raise ValueError(f"{_OPTION}={name}: must yield Choice rows, yielded {row!r:.80}")
    return _finish_rows((row._replace(benchmark=name_own(name)) for row in rows), limit)


def _finish_rows(rows: Iterable[Choice], limit: int | None) -> list[Choice]:
    """Return the rows, defects marked; with a ``limit`` those of the first items of each split.

    Raises ValueError on a repeated id, and on an unknown operation or kind.
    """
    choices: list[Choice] = []
    ids = set()
    for row in rows:
        where = f"{row.benchmark}: {row.split}: row {row.id!r}"
        if (row.split, row.id) in ids:
            raise ValueError(f"{where}: an earlier row has this id")
        ids.add((row.split, row.id))
        if row.split in (words.MICRO, words.MACRO, choice.ALL):
            raise ValueError(f"{where}: split={row.split!r}: is a reserved name; rename the split")
        for name, value, known in (("op", row.op, OPERATIONS), ("kind", row.kind, CONCEPT_KINDS)):
            if value not in ("", *known):
                raise ValueError(f"{where}: {name}={value!r}: must be one of {', '.join(known)}, or empty")
        choices.append(row)
    items: defaultdict[str, set[str]] = defaultdict(set)
    first = []
    for row in choice.mark_defects(choices):
        kept, item = items[row.split], row.group or row.id
        if limit is None or item in kept or len(kept) < limit:
            kept.add(item)
            first.append(row)
    return first
