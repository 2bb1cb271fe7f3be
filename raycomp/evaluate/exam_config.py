"""The dials of exams that are no benchmark of choices."""

from dataclasses import dataclass, field

from raycomp.config.check import check
from raycomp.config.dials import INPUT, PLACE


@dataclass(frozen=True)
class ZeroshotConfig:
    """Zero-shot classification: whether an image is nearest to the texts of its own class."""

    input: str = field(default="", metadata=INPUT)
    """A folder with a folder of images for every class, or shards whose samples have a class: ``cls``, a
    member of a tar, a column of Parquet or a field of the json, else ``label``. A whole number is the place
    of the class, from 0; any other text is its name."""
    classes: str | None = field(default=None, metadata=PLACE)
    """A file with the names of the classes, one a line or a JSON list (.json), in the order of their numbers
    or of the sorted folders; none = the folders' names with ``_`` as a space, and of shards classnames.txt
    beside them or one folder up."""
    templates: str | None = field(default=None, metadata=PLACE)
    """A file of texts with ``{}`` or ``{c}`` where the name goes, one a line or a JSON list (.json); none =
    "a photo of a {}.", and of shards zeroshot_classification_templates.txt beside them or one folder up."""


@dataclass(frozen=True)
class RetrievalConfig:
    """Retrieval: whether an image finds one of its captions among all, and a caption its image."""

    input: str = field(default="", metadata=INPUT)
    """A folder with captions.jsonl or captions.json, or such a file: {image, captions} a line, or a JSON list
    of them (``caption`` will do); images are looked for below the file's folder. Or shards: captions are the
    list ``captions`` or ``caption`` of the json, else the lines of the caption."""


@dataclass(frozen=True)
class LinearProbeConfig:
    """A linear classifier on image embeddings: fitted on one set of images, tested on another."""

    train: str = field(default="", metadata=INPUT)
    """Images with classes, as for ``zeroshot.input``; a fifth of every class chooses the penalty."""
    test: str = field(default="", metadata=INPUT)
    """Other images of these classes."""
    seed: int = 0
    """Draws the fifth."""

    def __post_init__(self) -> None:
        check(self.seed >= 0, "linear_probe.seed", self.seed, "at least 0")
