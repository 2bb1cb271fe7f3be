"""The options of evaluation."""

from dataclasses import dataclass, field

from raycomp.config import options
from raycomp.config.commands import name_own
from raycomp.config.options import (
    CODE,
    FREE,
    INPUT,
    PLACE,
    SHARE,
    ClusterConfig,
    ColumnsConfig,
    ModelConfig,
    OptionGroup,
    ParserConfig,
    WavesConfig,
    one_of,
    within,
)
from raycomp.words import OVERLAPS, WARN


@dataclass(frozen=True)
class ZeroshotConfig(OptionGroup, name="zeroshot"):
    """Zero-shot classification: whether an image is nearest to the texts of its own class."""

    input: str = field(default="", metadata=INPUT)
    """A folder with a folder of images for every class, or shards whose samples have a class: ``cls``, a
    member of a tar, a column of Parquet or a field of the json, else ``label``. A whole number is the index
    of the class, from 0; any other text is its name. Several sets: NAME=PATH::NAME=PATH, each a split."""
    classes: str | None = field(default=None, metadata=INPUT)
    """A file with the names of the classes, one per line or a JSON list (.json), by number from 0; folders
    take lines by name or number, else in sorted order, with a warning. none = the folders' names with ``_``
    as a space, and for shards classnames.txt in their folder or its parent. Of sets: NAME=FILE::NAME=FILE."""
    templates: str | None = field(default=None, metadata=INPUT)
    """A file of texts with ``{}`` or ``{c}`` in place of the name, one per line or a JSON list (.json);
    none = "a photo of a {}.", and for shards zeroshot_classification_templates.txt in their folder or its
    parent. Of several sets: NAME=FILE::NAME=FILE; a FILE without a name is for all."""


@dataclass(frozen=True)
class RetrievalConfig(OptionGroup, name="retrieval"):
    """Retrieval: whether an image retrieves one of its captions among all, and a caption its image."""

    input: str = field(default="", metadata=INPUT)
    """A folder with captions.jsonl or captions.json, or such a file: {image, captions} per line, or a JSON
    list of them (``caption`` and other names are accepted, too; see ``columns``); images are found below the
    file's folder. Or any input of ``raycomp curate``: captions are the list ``captions`` or ``caption`` of
    the json, else the lines of the caption; rows of one image in a CSV are one image."""
    split: str | None = None
    """Of a json file with a field ``split``, such as Karpathy's dataset_coco.json: its images of this split;
    none = all."""


@dataclass(frozen=True)
class LinearProbeConfig(OptionGroup, name="linear_probe"):
    """A linear classifier on image embeddings: fitted on one set of images, tested on another."""

    train: str = field(default="", metadata=INPUT)
    """Images with classes, as for ``zeroshot.input``; a fifth of every class selects the penalty. Several
    sets: NAME=PATH::NAME=PATH, each with a test set of its name."""
    test: str = field(default="", metadata=INPUT)
    """Other images of these classes."""
    seed: int = field(default=0, metadata=within("at least 0"))
    """Seed of the draw of the fifth."""


@dataclass(frozen=True)
class BenchmarkConfig(OptionGroup):
    """A benchmark's files, as its authors publish them."""

    annotations: str | None = field(default=None, metadata=PLACE)
    """The folder of its annotation files."""
    images: str | None = field(default=None, metadata=PLACE)
    """The folder that contains its images under their published names; none = that of the annotations."""


@dataclass(frozen=True)
class ControlsConfig(OptionGroup, name="controls"):
    """Baselines in addition to the model: text-only baselines show what is solvable without the image."""

    captions: str | None = field(default=None, metadata=PLACE)
    """Captions that train the unigram and bigram baselines: json or jsonl with image and captions, or a text
    file with a caption per line. Captions of test images, and captions that occur word for word in the test
    set, are left out. none = without these baselines."""
    language_model: str | None = field(default=None, metadata=PLACE)
    """A folder with a causal language model, as transformers saves it; none = without this baseline."""
    precision: str = field(default="fp32", metadata=one_of(("fp32", "bf16")))
    """fp32 or bf16: the precision of the language model."""


@dataclass(frozen=True)
class EvaluateConfig(OptionGroup):
    """Input: a model and benchmarks. Output: a row for every example, and a table."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """The model. ``model.weights`` may be a folder that ``raycomp train`` wrote. Files on s3:// are copied to
    each machine once, below ~/.cache/raycomp."""
    benchmarks: tuple[str, ...] = field(default=(), metadata=CODE)
    """Names of benchmarks, separated by commas; each is a group of options below. FILE.py:NAME is your own:
    a function that yields its rows."""
    sugarcrepe: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """Seven edits of COCO captions. Hsieh et al. (arXiv 2306.14610)."""
    sugarcrepe_pp: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """SugarCrepe's edits with a paraphrase of each caption. Dumpala et al. (arXiv 2406.11171)."""
    vl_checklist: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """Replaced words of Visual Genome phrases. Zhao et al. (arXiv 2207.00221)."""
    aro: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """Relation and attribution in Visual Genome. Yuksekgonul et al. (arXiv 2210.01936)."""
    aro_order: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """Captions with their words in another order, by the authors of ARO."""
    valse: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """Foils for six linguistic phenomena. Parcalabescu et al. (arXiv 2112.07566)."""
    winoground: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """Two images, two captions of the same words. Thrush et al. (arXiv 2204.03162)."""
    bivlc: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """SugarCrepe with images of its negatives. Miranda et al. (arXiv 2406.09952)."""
    cola: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """Two images of several objects, a caption each. Ray et al. (arXiv 2305.03689)."""
    hard_positives: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """Changes that leave a caption true. Kamath et al. (arXiv 2409.17958)."""
    own: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """Your own benchmarks, FILE.py:NAME. Without ``annotations`` their files are in the folder of FILE.py."""
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    zeroshot: ZeroshotConfig = field(default_factory=ZeroshotConfig)
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)
    linear_probe: LinearProbeConfig = field(default_factory=LinearProbeConfig)
    controls: ControlsConfig = field(default_factory=ControlsConfig)
    overlap: str = field(default=WARN, metadata=one_of(OVERLAPS))
    """Test images that were training images of the linear probe or of a model that ``raycomp train`` made.
    warn: counted and reported; drop: also left out of the test set, with the status contaminated. Images are
    the same if their bytes are the same."""
    trained_on: str | None = field(default=None, metadata=PLACE)
    """A curation or selection with ``decontaminate.index`` that the model was trained on: each score is also
    given without the test examples that its kept samples contain. none = the input of the training that wrote
    the weights, where that is such a run."""
    rows: int | None = field(default=None, metadata=within("at least 1"))
    """Maximum rows of each split, from the first; none = all. VL-CheckList's own test uses 1000."""
    max_pixels: int = field(default=100_000_000, metadata=options.NUM_PIXELS)
    """Images with more pixels are not decoded, and counted."""
    max_bad_fraction: float = field(default=0.05, metadata=FREE | SHARE)
    """Maximum share of bad images among the images that are present, 0 to 1: they do not decode, are too
    large, or lack caption or class. Above it, in any set of images, the run stops with exit code 3."""
    max_missing_fraction: float = field(default=1.0, metadata=FREE | SHARE)
    """Maximum share of missing images among the named ones, 0 to 1; above it, in any set of images, the run
    stops with exit code 3. The default accepts a part of a benchmark's images."""
    parser: ParserConfig = field(default_factory=ParserConfig)
    """aro_order: the parser that finds nouns and adjectives."""
    seed: int = field(default=0, metadata=within("at least 0"))
    """Seed of the draw of another image for the shuffled-image baseline, and of aro_order's orders."""
    waves: WavesConfig = field(default_factory=WavesConfig, metadata=FREE)
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)

    def __post_init__(self) -> None:
        super().__post_init__()
        twice = len({*map(name_own, self.benchmarks)}) < len(self.benchmarks)
        options.check(not twice, "benchmarks", ",".join(self.benchmarks), "different names")


@dataclass(frozen=True)
class CompareConfig(OptionGroup):
    """Input: two or more evaluations of the same examples. Output: paired comparisons with the first."""

    runs: tuple[str, ...] = ()
    """Folders that ``raycomp evaluate`` wrote. The first is the reference."""
    names: tuple[str, ...] = ()
    """A name for each run."""
    table: str | None = None
    """A CSV file with the figures of a paper, which the runs fill with means over seeds."""
    examples: int = field(default=12, metadata=within("between 0 and 1000"))
    """Maximum examples on the page that one model alone has right, per benchmark and model."""
