"""What the embedding pass needs to know of a benchmark, benchmarks of choices, and their text-only baselines.

Is the image closer to its true captions than to its false ones? Embeddings are shared across benchmarks.
M pictures, T texts, N rows that have a picture, K captions of them all, D embedding dims.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from raycomp import words
from raycomp.config.options import ColumnsConfig
from raycomp.core import selection
from raycomp.core.selection import find_shared, key_images, merge_keys
from raycomp.data.files import Folder
from raycomp.data.inputs import ShardPath, expand_input
from raycomp.data.parquet import add_columns, to_matrix
from raycomp.data.reader import check_tables
from raycomp.data.runs import check_shards_of_runs
from raycomp.evaluation.benchmarks.choice import Choice, parse_text, read_text, take, take_texts
from raycomp.evaluation.config import ControlsConfig
from raycomp.language import overlap
from raycomp.models.architecture import fingerprint_folder
from raycomp.schema import example_schema
from raycomp.words import OK, STATUS


class Picture(NamedTuple):
    """An image file, or a part of it."""

    uri: str
    box: tuple[int, int, int, int] | None = None
    """Left, top, width, height in pixels; None for the whole image."""


@dataclass(frozen=True)
class Pictures:
    """The embeddings and statuses of pictures."""

    place: Mapping[Picture, int]
    """File -> its row."""
    status_M: Sequence[str]
    """ok, or the reason why there is no embedding."""
    image_MD: np.ndarray
    """fp32, of length 1; 0 where the status is not ok."""
    shards: Mapping[str, pa.Table]
    """Uri of a shard -> its rows, in order: uid, key, caption, json, status, image_sha256 and
    image_embedding."""
    key_M: np.ndarray
    """Keys of the files, see ``core.leaks``; none where the status is not ok."""
    barred_K: np.ndarray = field(default_factory=lambda: np.zeros(0, selection.KEY))
    """Sorted keys of images that are barred from tests."""

    def bar(self, key_N: np.ndarray) -> "Pictures":
        """Return the pictures with these keys barred from tests, too."""
        return replace(self, barred_K=merge_keys([self.barred_K, key_N]))

    @property
    def asked(self) -> "Pictures":
        """The pictures with the status contaminated for barred ones, as a test uses them."""
        if not len(self.barred_K):
            return self
        shards = {}
        for uri, table in self.shards.items():
            is_shared_N = find_shared(self.barred_K, key_pictures(table))
            statuses = pa.array(_mark(table[STATUS].to_pylist(), is_shared_N), pa.string())
            shards[uri] = add_columns(table, {STATUS: statuses})
        status_M = _mark(self.status_M, find_shared(self.barred_K, self.key_M))
        return replace(self, status_M=status_M, shards=shards)


def _mark(statuses: Sequence[str], is_shared_M: np.ndarray) -> list[str]:
    return [words.CONTAMINATED if shared else own for own, shared in zip(statuses, is_shared_M, strict=True)]


def key_pictures(table: pa.Table) -> np.ndarray:
    """Return the keys of embedded pictures, as ``core.leaks`` makes them; none where the status is not ok."""
    columns = (table[name].to_pylist() for name in (words.IMAGE_SHA256, STATUS))
    return key_images([sha256 if status == OK else None for sha256, status in zip(*columns, strict=True)])


@dataclass(frozen=True)
class Texts:
    """The embeddings of texts."""

    place: Mapping[str, int]
    """Text -> its row."""
    text_TD: np.ndarray
    """fp32, of length 1; 0 for bad texts."""
    bad: frozenset[str] = frozenset()
    """Texts without an embedding: every example with one of them has the status bad_embedding."""

    def take(self, texts: Sequence[str]) -> np.ndarray:
        """Return the rows of these texts."""
        return self.text_TD[[self.place[text] for text in texts]]


Statuses = Sequence[tuple[str, str]]
"""The name and the status of every image."""


class Needs(Protocol):
    """Pictures and texts to embed."""

    @property
    def pictures(self) -> Sequence[Picture]:
        """The image files that it needs; may repeat."""

    @property
    def shards(self) -> Sequence[ShardPath]:
        """The shards whose pictures it needs, all of them."""

    def list_texts(self, pictures: Pictures) -> list[str]:
        """Return the texts that it needs; may repeat."""


class Evaluation(Needs, Protocol):
    """A benchmark: its inputs, and the results that follow from their embeddings."""

    @property
    def name(self) -> str:
        """The name of its file of scores."""

    def find_statuses(self, pictures: Pictures) -> Mapping[str, Statuses]:
        """Return the statuses of every set of images, by the set's name in messages."""

    def grade(self, pictures: Pictures, texts: Texts) -> pa.Table:
        """Return a row for every example: at least benchmark, split, id and status."""


class ShardRow(NamedTuple):
    """One row of a shard."""

    id: str
    """The shard's name and the sample's key."""
    status: str
    caption: str | None
    json: str | None


def expand(
    spec: str, option: str, columns: ColumnsConfig | None = None, needs_captions: bool = True
) -> list[ShardPath]:
    """Return the shards that an option names; ValueError as ``expand_input``, naming the option."""
    try:
        shards = expand_input(spec, columns=columns)
        check_shards_of_runs(shards)
        check_tables(shards, needs_captions)
        return shards
    except ValueError as error:
        said = str(error)
        said = option + said.removeprefix("input") if said.startswith("input") else f"{option}: {said}"
        raise ValueError(said) from error


def read_samples(
    shards: Sequence[ShardPath], pictures: Pictures, option: str
) -> tuple[list[ShardRow], np.ndarray]:
    """Return all samples of the shards, and their embeddings, fp32 (N, D), 0 where the status is not ok.

    Raises ValueError, naming the option, where a shard is none or has no sample.
    """
    samples: list[ShardRow] = []
    image = []
    for shard in shards:
        table = pictures.shards[shard.place]
        columns = [table[name].to_pylist() for name in (words.KEY, STATUS, words.CAPTION, words.JSON)]
        found = [ShardRow(f"{shard.name}/{key}", *rest) for key, *rest in zip(*columns, strict=True)]
        for sample in found:
            if sample.status in (words.EMPTY_SHARD, words.UNREADABLE_SHARD):
                raise ValueError(f"{option}: {shard.name} is an {sample.status}")
        samples += found
        image.append(to_matrix(table[words.IMAGE_EMBEDDING]))
    return samples, np.concatenate(image)


# Rows of two matrices whose cosines are computed at once.
_BLOCK = 65_536


@dataclass(frozen=True)
class ChoiceEvaluation:
    """A benchmark's rows, and the places of their images."""

    name: str
    choices: Sequence[Choice]
    uris: Mapping[str, str]
    """Image uri by the name of a choice's image, for the images that were found."""
    score_texts: Callable[[Sequence[str]], Mapping[str, np.ndarray]]
    """Scores of T texts by the text-only baselines: by name, an array (T,)."""
    seed: int = 0
    """Seed of the draw of another image for each row, for the shuffled-image baseline."""
    shards: Sequence[ShardPath] = ()
    ambiguous: Collection[str] = ()
    """Image names that match several files."""

    @property
    def pictures(self) -> list[Picture]:
        named = ((self.uris.get(choice.image), choice.box) for choice in self.choices)
        return [Picture(uri, box) for uri, box in named if uri is not None]

    def list_texts(self, pictures: Pictures) -> list[str]:
        """Return the captions of the rows that have a picture."""
        judged = zip(self.choices, self._list_statuses(pictures), strict=True)
        return [text for choice, status in judged if status == OK for text in _list_captions(choice)]

    def _list_statuses(self, pictures: Pictures, bad: Collection[str] = ()) -> list[str]:
        """Return the status of every row; one with a ``bad`` text has the status bad_embedding."""
        statuses = []
        for choice in self.choices:
            uri = self.uris.get(choice.image)
            if uri is None:
                status = words.AMBIGUOUS_IMAGE if choice.image in self.ambiguous else words.NO_IMAGE
            else:
                status = pictures.status_M[pictures.place[Picture(uri, choice.box)]]
                if status == OK and any(text in bad for text in _list_captions(choice)):
                    status = words.BAD_EMBEDDING
            statuses.append(status)
        return statuses

    def find_statuses(self, pictures: Pictures) -> dict[str, Statuses]:
        """Return the status of every image; of one that is used in several boxes, the first fault."""
        found: dict[str, str] = {}
        for choice, status in zip(self.choices, self._list_statuses(pictures), strict=True):
            if found.get(choice.image, OK) == OK:
                found[choice.image] = status
        return {self.name: list(found.items())}

    def grade(self, pictures: Pictures, texts: Texts) -> pa.Table:
        """Return EXAMPLE_SCHEMA's rows in the benchmark's order, with the scores of the baselines.

        With a single image there are no baselines that use another image.
        """
        import torch

        from raycomp.core.alignment import normalise

        pictures = pictures.asked
        statuses = self._list_statuses(pictures, texts.bad)
        is_ok = [status == OK for status in statuses]
        rows = [choice for choice, has in zip(self.choices, is_ok, strict=True) if has]
        place_N = np.array([pictures.place[Picture(self.uris[row.image], row.box)] for row in rows], int)
        row_K = np.repeat(np.arange(len(rows)), [len(_list_captions(choice)) for choice in rows])
        text_K = np.array([texts.place[text] for choice in rows for text in _list_captions(choice)], int)
        score_K = {"": _compute_cosines(pictures.image_MD, place_N[row_K], texts.text_TD, text_K)}
        own, own_K = np.unique(text_K, return_inverse=True)
        names = np.array(list(texts.place), object)[own].tolist()
        text_only = self.score_texts(names) if names else {}
        score_K |= {name: score_T[own_K] for name, score_T in text_only.items()}
        images, first_U, which_N = np.unique(
            [row.image for row in rows], return_index=True, return_inverse=True
        )
        if len(images) > 1:  # another image for each row, and the mean of all images
            image_UD = pictures.image_MD[place_N[first_U]]
            rng = np.random.default_rng(self.seed)
            other_N = (which_N + rng.integers(1, len(images), len(rows))) % len(images)
            mean_1D = normalise(torch.from_numpy(image_UD.mean(axis=0, keepdims=True))).numpy()
            shown = (image_UD, other_N[row_K]), (mean_1D, np.zeros(len(row_K), int))
            for name, (image_OD, other_K) in zip(words.IMAGE_CONTROLS, shown, strict=True):
                score_K[name] = _compute_cosines(image_OD, other_K, texts.text_TD, text_K)
        columns: dict[str, list] = {
            name: [getattr(choice, name) for choice in self.choices] for name in Choice._fields
        }
        columns[STATUS] = statuses
        columns["text_scores"] = [[] for _ in is_ok]
        for name, scores in score_K.items():
            left = iter(scores.tolist())
            positives = columns[f"{name}_positives" if name else "positive_scores"] = [[] for _ in is_ok]
            negatives = columns[f"{name}_negatives" if name else "negative_scores"] = [[] for _ in is_ok]
            for i, choice in enumerate(self.choices):
                if is_ok[i]:
                    positives[i] = [next(left) for _ in choice.positives]
                    negatives[i] = [next(left) for _ in choice.negatives]
        for i, choice in enumerate(self.choices):
            if is_ok[i] and len(choice.positives) > 1:  # all pairs of the row's captions
                text_CD = texts.take(_list_captions(choice))
                first, second = np.triu_indices(len(text_CD), 1)
                columns["text_scores"][i] = _compute_cosines(text_CD, first, text_CD, second).tolist()
        schema = example_schema([name for name in score_K if name])
        return pa.table({field.name: pa.array(columns[field.name], field.type) for field in schema}, schema)


def _list_captions(choice: Choice) -> tuple[str, ...]:
    return choice.positives + choice.negatives


def _compute_cosines(
    first_MD: np.ndarray, first_K: np.ndarray, second_TD: np.ndarray, second_K: np.ndarray
) -> np.ndarray:
    """Return the cosines of K pairs of rows, fp32 (K,)."""
    import torch

    from raycomp.core.alignment import pair_cosine

    parts = [np.zeros(0, np.float32)]
    for start in range(0, len(first_K), _BLOCK):
        some = slice(start, start + _BLOCK)
        pair = (torch.from_numpy(first_MD[first_K[some]]), torch.from_numpy(second_TD[second_K[some]]))
        parts.append(pair_cosine(*pair).numpy())
    return np.concatenate(parts)


_OPTION = "controls.language_model"
# COCO's image files are named COCO_val2014_000000000042.jpg in 2014 and 000000000042.jpg in 2017.
_COCO = re.compile(r"^coco_(?:train|val|test)\d{4}_")


class Learned(NamedTuple):
    """The statistics of captions, and the number of captions left out."""

    counts: overlap.Ngrams
    num_used: int
    num_same_image: int
    """Left out: captions of an image that a test set uses."""
    num_same_words: int
    """Left out: other captions that occur word for word in a test set, ignoring case and punctuation."""


def open_controls(
    config: ControlsConfig, texts: Collection[str], test_images: Collection[str], say: Callable[[str], None]
) -> Callable[[Sequence[str]], dict[str, np.ndarray]]:
    """Return a function that scores texts of a test set, given all its ``texts`` and images; ``score_texts``.

    Reads the training captions; those of ``test_images`` and those among ``texts`` are left out, which is
    reported. Raises ValueError where an option names a file that cannot be used.
    """
    counts = None
    if config.captions:
        learned = learn_captions(config.captions, texts, test_images)
        counts = learned.counts
        say(
            f"unigram and bigram: fitted to {learned.num_used:,} captions of {config.captions}; left out: "
            f"{learned.num_same_image:,} captions of test images, {learned.num_same_words:,} captions that "
            "equal a test caption"
        )
    if config.language_model:
        # transformers takes seconds to import.
        from raycomp.models.language_model import check_language_model

        check_language_model(config.language_model, _OPTION)
    return partial(score_texts, config=config, counts=counts)


def fingerprint_controls(config: ControlsConfig) -> dict[str, str]:
    """Return by option a digest of each file and folder that baselines are trained on."""
    found = {}
    if config.captions:
        found["controls.captions"] = hashlib.sha256(Folder(config.captions).read_bytes()).hexdigest()
    if config.language_model:
        found["controls.language_model"] = fingerprint_folder(Path(config.language_model))
    return found


def score_texts(
    texts: Sequence[str], config: ControlsConfig, counts: overlap.Ngrams | None
) -> dict[str, np.ndarray]:
    """Return by baseline a score for every text, float64 (T,); a larger score is more likely.

    ``shorter_caption``: minus the number of words. ``unigram``, ``bigram``: nats, by the captions behind
    ``counts``; without ``counts`` these two are absent. ``language_model``: nats, where one is given.
    """
    scores = {words.SHORTER_CAPTION: np.array([-overlap.count_words(text) for text in texts], np.float64)}
    if counts is not None:
        judges = {words.UNIGRAM: overlap.unigram_likelihood, words.BIGRAM: overlap.bigram_likelihood}
        for name, judge in judges.items():
            scores[name] = np.array([judge(text, counts) for text in texts], np.float64)
    if config.language_model:
        import torch

        from raycomp.models.language_model import LanguageModel

        model = LanguageModel(config.language_model, _OPTION, torch.device("cpu"), config.precision)
        scores[words.LANGUAGE_MODEL] = model.compute_likelihoods(texts)
    return scores


def learn_captions(captions: str, texts: Collection[str], test_images: Collection[str]) -> Learned:
    """Return the statistics of a file's captions that share neither image nor words with a test set.

    Images are equal where their names are, without folders, extension and the 2014 prefix of COCO. Raises
    ValueError where the file cannot be read or no caption is left.
    """
    images = {_name_image(image) for image in test_images}
    known = {tuple(overlap.find_words(text)) for text in texts}
    used = []
    num_same_image = num_same_words = 0
    for image, caption in read_captions(captions):
        if image is not None and _name_image(image) in images:
            num_same_image += 1
        elif tuple(overlap.find_words(caption)) in known:
            num_same_words += 1
        else:
            used.append(caption)
    if not used:
        num = num_same_image + num_same_words
        problem = f"all {num} captions are of test images or equal test captions" if num else "has no caption"
        raise ValueError(f"controls.captions={captions!r}: {problem}; add other captions")
    return Learned(overlap.count_ngrams(used), len(used), num_same_image, num_same_words)


def _name_image(path: str) -> str:
    name = path.rpartition("/")[2].lower()
    return _COCO.sub("", name.rpartition(".")[0] or name)


def read_captions(source: str) -> Iterator[tuple[str | None, str]]:
    """Yield image (None where it is not given) and caption of a file on a disk or on S3.

    The extension gives the format: .jsonl, an object per line; .json, a list of objects; else a caption per
    line. Objects have ``image`` and ``caption`` or ``captions``, a text or a list of texts. Raises ValueError
    with the first place that has another form.
    """
    said = f"controls.captions={source!r}"
    text = read_text(source, said)
    # Not splitlines: a caption may contain Unicode line separators.
    lines = [(f"{said}: line {i}", line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if source.endswith(".jsonl"):
        rows = ((where, parse_text(line, where)) for where, line in lines)
    elif source.endswith(".json"):
        found = parse_text(text, said)
        if not isinstance(found, list):
            raise ValueError(f"{said}: must hold a JSON list, holds a {type(found).__name__}")
        rows = ((f"{said}: entry {i}", row) for i, row in enumerate(found))
    else:
        yield from ((None, line.strip()) for _, line in lines)
        return
    for where, row in rows:
        has_several = isinstance(row, dict) and words.CAPTIONS in row
        name, image = words.CAPTIONS if has_several else words.CAPTION, take(row, words.IMAGE, str, where)
        yield from ((image, caption) for caption in take_texts(row, name, where))
