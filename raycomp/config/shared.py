"""The groups of options that several commands share, and search spaces.

    attribute.keep=grid(1.0,0.8,0.7,0.5) train.learning_rate=loguniform(1e-4,1e-3) select.rule=align_only

A search space has the values that a sweep tries for each option. An entry is OPTION=grid(A,B,...), whose
values are combined with those of all other grids; choice(A,B,...), uniform(A,B) or loguniform(A,B), which are
drawn from; or OPTION=VALUE, which all trials share. Use ``;`` between values that contain a comma.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, ClassVar

from raycomp.config import options
from raycomp.config.change import as_setting
from raycomp.config.options import FILE, FOLDER, FREE, PLACE, OptionGroup, Seconds, Span, one_of, within

PRECISIONS = ("fp32", "tf32", "bf16")
ATTENTIONS = ("flash", "efficient", "math", "cudnn")


def _check_weights(name: str, weights: str) -> None:
    start, _, seed = weights.partition(":")
    fits = seed.isdecimal() and len(seed) <= 20 and int(seed) < 2**64
    options.check(fits or start != "random", name, weights, "random:WHOLE_NUMBER, a number below 2^64")


@dataclass(frozen=True)
class ModelConfig(OptionGroup, name="model"):
    """The CLIP model that is trained or evaluated. The scoring model is set by scorer.model."""

    name: str = field(default="ViT-B-32", metadata=FILE)
    """An open_clip architecture name, or a path or s3:// uri of an open_clip model config (json)."""
    weights: str = field(default="openai", metadata=FILE | options.checked_by(_check_weights))
    """An open_clip tag, a checkpoint's path or s3:// uri, a folder that ``raycomp train`` wrote or that has
    ``open_clip_config.json``, which then also sets the name, or ``random:SEED``."""
    precision: str = field(default="fp32", metadata=one_of(PRECISIONS))
    """fp32, tf32 or bf16, as in ``scorer.precision``; a model is trained in fp32."""
    pass_size: ClassVar[int | None] = None
    overlap: ClassVar[bool] = False
    compile: ClassVar[bool] = False
    graph: ClassVar[bool] = False
    attention: ClassVar[str | None] = None
    text_widths: ClassVar[tuple[int, ...]] = ()

    @property
    def model(self) -> str:
        """The name, as in ``ScorerConfig``."""
        return self.name

    @property
    def said_model(self) -> str:
        """The name of the model for messages."""
        return f"model.name={self.name!r}"

    @property
    def said_weights(self) -> str:
        """The weights for messages."""
        return f"model.weights={self.weights!r}"


@dataclass(frozen=True)
class ScorerConfig(OptionGroup, name="scorer"):
    """The CLIP model that scores. Defaults: Go et al. (arXiv 2605.22651), section 5.2."""

    model: str = field(default="ViT-B-16", metadata=FILE)
    """An open_clip architecture name, or a path to an open_clip model config (json)."""
    weights: str = field(default="openai", metadata=FILE | options.checked_by(_check_weights))
    """An open_clip tag, a checkpoint path, or ``random:SEED`` for test runs."""
    precision: str = field(default="fp32", metadata=one_of(PRECISIONS))
    """fp32, tf32 or bf16; normalisation and the cosine are always fp32. tf32 rounds the factors of matrix
    products and convolutions on a GPU to 10 bits; fp32 rounds neither. On CPUs tf32 and fp32 are the same."""
    batch_size: int | None = field(default=None, metadata=FREE | within("between 1 and 65536"))
    """Pairs that a scorer takes at a time; none = 32 per thread on CPUs, 512 on GPUs. Scores do not depend
    on it: the shape of a forward pass is fixed."""
    embedding_dtype: str = field(default="float32", metadata=one_of(("float32", "float16")))
    """float32 or float16: the type of stored image embeddings. With float16, drops are not exact."""
    pass_size: int | None = field(default=None, metadata=within("between 1 and 4096"))
    """Images of a forward pass, a fixed number: the last pass is filled up. none = 8 on CPUs, 64 on GPUs.
    On an H100, 256 alone is not faster. The last bits of scores depend on it, so scores of another size are
    those of another scorer."""
    overlap: bool = field(default=False, metadata=FREE)
    """Whether a scorer on a GPU prepares its next images, and the next call, while it computes. Scores do not
    depend on it. It takes host memory for some passes and GPU memory for a second call."""
    compile: bool = False
    """Whether ``torch.compile`` makes the image tower's kernels, which fewer passes over memory need; each
    scorer then takes a minute to start. The last bits of scores depend on it and on the versions of torch and
    Triton, so such scores are those of another scorer. On CPUs it needs a C++ compiler."""
    graph: bool = False
    """Whether a GPU launches all kernels of a pass of images together, as one CUDA graph. It needs a GPU, and
    memory for a second pass. Such scores are those of another scorer."""
    attention: str | None = field(default=None, metadata=one_of(ATTENTIONS))
    """flash, efficient, math or cudnn: the only backend that torch may take for attention; none = torch
    chooses. flash and cudnn need precision bf16. Texts whose attention has a mask take efficient in place of
    flash and cudnn: all texts without ``text_widths``, with it those that are encoded with counterfactuals.
    Scores of another backend are those of another scorer."""
    text_widths: tuple[int, ...] = ()
    """Widths of attention rows of texts, in tokens, ascending multiples of 8, such as 32,64,128,256; the last
    is at least twice the model's context. A pass then has rows of one width, a fixed number of them, and
    captions alone need no mask. none = as many widths as the texts have, in steps of 16. Meant for GPUs: on
    CPUs texts take longer. Such scores are those of another scorer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        name, widths = self.attention, self.text_widths
        fits = name in (None, "efficient", "math") or self.precision == "bf16"
        options.check(fits, "scorer.attention", name, "efficient or math, or scorer.precision bf16")
        fits = all(8 <= width <= 8192 and width % 8 == 0 for width in widths) and len(widths) <= 16
        ascends = list(widths) == sorted(set(widths))
        said = ",".join(map(str, widths))
        options.check(
            fits and ascends, "scorer.text_widths", said, "up to 16 ascending multiples of 8, 8 to 8192"
        )

    @property
    def said_model(self) -> str:
        """The name of the model for messages."""
        return f"scorer.model={self.model!r}"

    @property
    def said_weights(self) -> str:
        """The weights for messages."""
        return f"scorer.weights={self.weights!r}"


@dataclass(frozen=True)
class ParserConfig(OptionGroup):
    """The English parser that finds phrases."""

    name: str = field(default="raycomp", metadata=FOLDER)
    """``raycomp`` for the parser in the package, else a spaCy pipeline by name or path."""


@dataclass(frozen=True)
class WavesConfig(OptionGroup, name="waves"):
    """How work is split into commits; results do not depend on it."""

    shards_per_wave: int = field(default=64, metadata=within("at least 1"))
    """Maximum number of input shards committed together."""
    commit_s: float = field(default=120.0, metadata=within("at least 0"))
    """Seconds after which the shards that are complete are committed, however few."""


@dataclass(frozen=True)
class ColumnsConfig(OptionGroup, name="columns"):
    """How tables of pairs are read: Parquet, CSV, TSV, JSON lines."""

    image: str | None = None
    """The column of images: bytes, paths, or Hugging Face's struct of both; none = the first of image, jpg,
    jpeg, png, webp, image_path, filepath, file_name, filename, file, path."""
    caption: str | None = None
    """The column of captions, a text or a list of texts; none = the first of caption, text, txt, TEXT,
    captions, title."""
    captions: str = field(default="first", metadata=one_of(("first", "longest", "all")))
    """Which of several captions of an image make a pair: first, longest, or all, each with a uid of its
    own (not with Parquet and tars)."""
    quotes: bool | None = None
    """Whether fields of CSV and TSV may stand in quotes, as RFC 4180 says; none = in CSV they may, in TSV a
    quote is a letter."""
    root: str | None = field(default=None, metadata=PLACE)
    """A folder that images may lie below, in addition to the folder of the table; paths are then relative to
    it, or absolute."""


@dataclass(frozen=True)
class ClusterConfig(OptionGroup, name="cluster"):
    """Where the work runs, and on how many resources; results do not depend on it."""

    executor: str = field(default="auto", metadata=one_of(("auto", "local", "ray")))
    """local: in this process, on CPUs, without Ray. ray: on a cluster, or on Ray started here. auto: local if
    no cluster is named, there is no GPU and the input is small. The first line reports the choice and its
    reason. Results are the same, and either executor resumes a run that the other started."""
    address: str | None = None
    """Ray address; none = RAY_ADDRESS or the cluster of a submitted job, else this machine."""
    num_cpus: int | None = field(default=None, metadata=within("at least 1"))
    """Threads of the local executor; none = one per core. Logical CPUs of Ray started here; none = as many as
    the stages need."""
    scorers: Span | None = field(default=None, metadata=options.checked_by(options.read_span))
    """Scoring actors: N, or MIN..MAX of a pool that grows with the work and with the cluster. none = one per
    GPU, including GPUs that the cluster's autoscaler may start; one without GPUs. Training has
    ``train.workers``."""
    gpu: bool | None = None
    """Whether scorers and training workers take a GPU each. none = if the cluster has one, or an autoscaler
    that offers one, for which the run waits ``cluster.wait_s``; true waits without end, false takes none."""
    mixed_gpus: bool = False
    """Whether scorers may have GPUs of several kinds. Scores of two kinds differ in the last bits, so such a
    run does not repeat to the same bytes. run.json counts the rows of each kind, logs/events.jsonl those of
    each shard."""
    wait_s: Seconds = field(default=900.0, metadata=within("at least 0, and finite"))
    """How long a run waits for the first GPU if ``cluster.gpu`` is none."""
    block_rows: int = field(default=64, metadata=within("between 1 and 1000000"))
    """Rows of a block between stages."""
    stall_s: float = field(default=1800.0, metadata=within("at least 1, and finite"))
    """Seconds without progress after which a phase is ended and restarted from its commits, at most three
    times in a row. Loading a model or reading up to a first block must take less."""
    price_per_hour: float | None = field(default=None, metadata=within("at least 0, and finite"))
    """Price of an hour of one worker, for ``--dry-run``; in any currency."""
    machines: tuple[str, ...] = field(default=(), metadata=options.checked_by(options.read_machine))
    """Kinds of machines that ``--dry-run`` compares, each NAME:CPUS:GPUS:PRICE; PRICE is per hour."""
    labels: tuple[str, ...] = field(default=(), metadata=options.checked_by(options.read_label))
    """Labels, each KEY=VALUE, of the nodes that run scorers, training workers and language models; none
    = any node. cluster.yaml labels its nodes ray.io/market-type=spot or on-demand."""

    @property
    def priced(self) -> list[options.Machine]:
        """The machines that are compared."""
        return [options.read_machine("cluster.machines", machine) for machine in self.machines]

    @property
    def selector(self) -> dict[str, str]:
        """The labels that are asked for, by key."""
        return dict(options.read_label("cluster.labels", label) for label in self.labels)

    @property
    def span(self) -> tuple[int, int] | None:
        """The fewest and the most scorers."""
        return None if self.scorers is None else options.read_span("cluster.scorers", self.scorers)


GRID, CHOICE, UNIFORM, LOGUNIFORM, FIXED = "grid", "choice", "uniform", "loguniform", "fixed"
KINDS = (GRID, CHOICE, UNIFORM, LOGUNIFORM)
_FORM = "OPTION=VALUE, or OPTION= and one of grid(A,B,...), choice(A,B,...), uniform(A,B), loguniform(A,B)"
_ENTRY = re.compile(
    r"(?P<option>[^\s=()]+)=(?:(?P<kind>\w+)\((?P<values>[^()]*)\)|(?P<value>[^\s()]+))(?:\s+|$)"
)


@dataclass(frozen=True)
class Domain:
    """The values tried for one option, as text that ``override`` reads; for a range both ends."""

    kind: str
    values: tuple[str, ...]

    @property
    def is_range(self) -> bool:
        """Whether it holds all numbers between two."""
        return self.kind in (UNIFORM, LOGUNIFORM)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest number of a range."""
        return float(self.values[0]), float(self.values[-1])

    def __str__(self) -> str:
        between = ";" if any("," in value for value in self.values) else ","
        return self.values[0] if self.kind == FIXED else f"{self.kind}({between.join(self.values)})"


def read_space(text: str) -> dict[str, Domain]:
    """Return the values tried for each option. Raises ValueError for an invalid entry, and an empty space."""
    found: dict[str, Domain] = {}
    text, start = text.strip(), 0
    while start < len(text):
        entry = _ENTRY.match(text, start)
        if entry is None:
            raise ValueError(f"space={text[start:]!r}: must be {_FORM}")
        if entry["option"] in found:
            raise ValueError(f"space: names {entry['option']} twice; remove one of them")
        found[entry["option"]] = _read_domain(entry)
        start = entry.end()
    if not found:
        raise ValueError(f"space: is empty, must have an entry: {_FORM}")
    return found


def write_space(space: Mapping[str, Domain]) -> str:
    """Return what ``read_space`` reads."""
    return " ".join(f"{option}={domain}" for option, domain in space.items())


def spell_values(option: str, domain: Domain, read: Callable[[str], Any]) -> Domain:
    """Return the domain of ``option`` with every value in canonical spelling.

    1e-3 and 0.001 become 0.001. ``read`` returns the value of a text.

    Raises ValueError, naming both, if two texts are one value, which would be tried twice.
    """
    found: dict[str, str] = {}
    for text in domain.values:
        spelled = spell_value(text, read(text))
        if spelled in found:
            said = f"{found[spelled]} and {text} are the same value"
            raise ValueError(f"space={option}={domain}: {said}; remove one of them")
        found[spelled] = text
    return replace(domain, values=tuple(found))


def spell_value(text: str, value: Any) -> str:
    """Return the canonical spelling of the value that was read from ``text``."""
    if isinstance(value, float) and value == 0:
        value = 0.0  # -0.0 is the same number
    return as_setting(value) or text  # a space has no entry for an empty list


def _read_domain(entry: re.Match[str]) -> Domain:
    said, kind = f"space={entry[0].strip()!r}", entry["kind"]
    if kind is None:
        return Domain(FIXED, (entry["value"],))
    if kind not in KINDS:
        raise ValueError(f"{said}: must be one of {', '.join(KINDS)}")
    between = ";" if ";" in entry["values"] else ","
    domain = Domain(kind, tuple(value.strip() for value in entry["values"].split(between)))
    if not all(domain.values):
        raise ValueError(f"{said}: must have a value before and after each {between!r}")
    if len({*domain.values}) < len(domain.values):
        raise ValueError(f"{said}: must have different values")
    if not domain.is_range:
        return domain
    with suppress(ValueError):
        low, high = map(float, domain.values)
        if isfinite(low) and isfinite(high) and low < high and (kind == UNIFORM or low > 0):
            return domain
    above = ", above 0" if kind == LOGUNIFORM else ""
    raise ValueError(f"{said}: must have two finite numbers{above}, the larger one last")
