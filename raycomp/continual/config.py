"""The options of continual learning."""

from dataclasses import dataclass, field

from raycomp.config.commands import is_own, name_own
from raycomp.config.options import (
    CODE,
    FREE,
    INPUT,
    NUM_PIXELS,
    PLACE,
    RATE,
    SHARE,
    WEIGHT,
    ClusterConfig,
    ModelConfig,
    OptionGroup,
    ParserConfig,
    WavesConfig,
    check,
    checked_by,
    count_from,
    one_of,
    within,
)
from raycomp.continual.method import FULL, METHODS, find_maker, get_method
from raycomp.words import OVERLAPS, WARN

GIVEN, RANDOM = "given", "random"
STREAMS = "a .json file that lists tasks, or FILE.py:NAME, a StreamMaker"
"""Values of ``stream``, in words."""
MOST_SEEDS = 1000
"""A run's own seed is 1000 * ``seed`` + the run's seed number."""
_MOST_WIDE, _MOST_PARTS = 65_536, 1000
TEMPERATURE = within("between 1e-06 and 1,000,000")
"""Outside this range a logit is 0 or infinite in fp32."""


@dataclass(frozen=True)
class HeadConfig(OptionGroup, name="head"):
    """The composer on frozen embeddings. COMPO-REALIGN (openreview.net/forum?id=eiTy6AYeQi)."""

    hidden: int = field(default=64, metadata=count_from(1, _MOST_WIDE))
    """Hidden units of the shaper phi."""
    mix: str = field(default="cayley", metadata=one_of(("cayley", "linear", "identity")))
    """cayley: strictly orthogonal; linear: any matrix; identity: none."""
    pool: str = field(default="mean", metadata=one_of(("mean", "attention")))
    """Pooling of primitives into one embedding: mean or attention."""
    shaped: bool = True
    """Whether primitives pass the adapter and the shaper."""
    synthetic: bool = True
    """Whether the composition is a second positive, with the caption. Without it the head has nothing to
    train where ``text`` is literal."""
    text: str = field(default="literal", metadata=one_of(("literal", "adapted")))
    """literal: captions are frozen; adapted: captions pass the head, each as a composition of one."""
    c2v: str = field(default="own", metadata=one_of(("own", "joint")))
    """Loss from texts to images, which the paper calls symmetric. own: each view is a query of its own;
    joint: both in one quotient, which trains compositions away from images."""
    same: str = field(default="excluded", metadata=one_of(("excluded", "negatives")))
    """Other samples of the same composition in the loss's denominator. excluded: left out; negatives: kept,
    as in the paper's sum over "all samples in the batch"."""
    temperature: float = field(default=0.07, metadata=TEMPERATURE)
    steps: int = field(default=100, metadata=count_from(0))
    """Steps per task."""
    batch_size: int = field(default=64, metadata=count_from(2))
    optimizer: str = field(default="adamw", metadata=one_of(("adamw", "sgd")))
    """adamw or sgd."""
    learning_rate: float = field(default=1e-3, metadata=RATE)
    weight_decay: float = field(default=0.0, metadata=WEIGHT)


@dataclass(frozen=True)
class BufferConfig(OptionGroup, name="buffer"):
    """Memory of past tasks."""

    kind: str = field(default="text", metadata=one_of(("text", "image", "none")))
    """text: captions and their primitives; image: these and the image's embedding; none."""
    size: int = field(default=64, metadata=count_from(0))
    """Largest number of entries per task; 0 = none."""
    max_bytes: int | None = field(default=None, metadata=within("at least 0"))
    """A second limit per task, in bytes; none = only the number of entries is limited."""
    draw: int = field(default=64, metadata=count_from(1))
    """Largest number of entries drawn per step; paraphrases are drawn once a task instead."""
    reading: str = field(
        default="literal", metadata=one_of(("anchored", "literal", "negatives", "paraphrase"))
    )
    """Use of a past text, which the paper leaves open. literal: one more positive of the batch's samples with
    the same primitives. paraphrase: the same of every sample: a stored caption with as many primitives, their
    words replaced by the sample's; one is drawn for each composition of a task, and embedded by the frozen
    model. anchored: the text attracts its own composition. negatives: a negative for all images."""


@dataclass(frozen=True)
class TrustConfig(OptionGroup, name="trust"):
    """The spectral trust region: the head's gradient is scaled down where s(image, e^_c) is sensitive to the
    primitives."""

    mode: str = field(default="spectral", metadata=one_of(("spectral", "fixed", "off")))
    """spectral: alpha = min(1, gamma / sigma_max); fixed: ``alpha`` always; off: alpha is 1."""
    power_steps: int | None = field(default=1, metadata=count_from(1, _MOST_PARTS))
    """Power iterations on J^T J for the estimate of sigma, 1 or 2 in the paper; none = exact, by autograd or
    in closed form. The Jacobian of a sample has one row, so one iteration is exact but for rounding."""
    gamma: float | None = field(default=None, metadata=within("above 0, and finite"))
    """The largest sigma that leaves alpha at 1; none = ``quantile`` of the sigmas of the first ``first``
    steps."""
    quantile: float = field(default=0.5, metadata=SHARE)
    first: int = field(default=20, metadata=count_from(1))
    reduce: str = field(default="max", metadata=one_of(("max", "mean")))
    """max or mean of a batch's sigmas."""
    primitives: str = field(default="raw", metadata=one_of(("raw", "shaped")))
    """Primitives whose influence sigma measures: raw = embeddings as they are, shaped = output of the
    shaper."""
    apply: str = field(default="gradient", metadata=one_of(("update", "gradient")))
    """gradient: alpha scales the gradient, as in the paper; Adam cancels a constant alpha. update: alpha
    scales the optimiser's step."""
    alpha: float | None = field(default=None, metadata=within("above 0, and at most 1"))
    """The scale of ``mode=fixed``; none = 1."""


@dataclass(frozen=True)
class TuneConfig(OptionGroup, name="tune"):
    """Methods that train the model itself."""

    steps: int = field(default=60, metadata=count_from(0))
    """Steps per task."""
    batch_size: int = field(default=64, metadata=count_from(2))
    learning_rate: float = field(default=1e-4, metadata=RATE)
    """Learning rate of AdamW; diki and cl-moe, whose weights are new, use ten times as much."""
    weight_decay: float = field(default=0.0, metadata=WEIGHT)
    workers: int | None = field(default=None, metadata=FREE)
    """Processes that share a batch, started by Ray Train, as ``train.workers``; none = one process per
    run."""
    autocast: bool = False
    """Compute in bf16 where that is safe, as ``train.autocast``; weights and the optimizer stay fp32."""
    accumulate: int = field(default=1, metadata=count_from(1))
    """Parts in which a worker embeds its rows, to save memory, as ``train.accumulate``."""
    rank: int = field(default=16, metadata=count_from(1, _MOST_WIDE))
    """c-clip and cl-moe: rank of the low-rank adapters."""
    merge: float = field(default=0.5, metadata=SHARE)
    """c-clip: share of a task's adapters that is added to the weights after the task."""
    contexts: int = field(default=8, metadata=count_from(1, _MOST_PARTS))
    """diki: prompts per layer."""
    depth: int = field(default=8, metadata=count_from(1, _MOST_PARTS))
    """diki: number of layers with prompts, counted from the first; at most all layers."""
    experts: int = field(default=4, metadata=count_from(1, _MOST_PARTS))
    """cl-moe: experts per layer."""
    distil: float = field(default=1.0, metadata=WEIGHT)
    """zscl: weight of each of the two distillation losses."""
    l2: float = field(default=1.0, metadata=WEIGHT)
    """zscl: weight of the distance from the weights at the start of the task."""
    ensemble: int = field(default=10, metadata=count_from(1))
    """zscl: steps from one weight ensemble to the next."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.workers is None or 1 <= self.workers <= self.batch_size
        span = f"at least 1, and at most tune.batch_size={self.batch_size}, a sample for each"
        check(fits, "tune.workers", self.workers, span)


@dataclass(frozen=True)
class DevelopConfig(OptionGroup, name="develop"):
    """Learning rates and weights w, selected for each method on development seeds; other seeds are
    reported."""

    seeds: int = field(default=0, metadata=count_from(0, MOST_SEEDS))
    """Number of development seeds, numbered after the reported ones; 0 = nothing is selected. Methods are
    developed on the first of ``stream``, by Last. For a stream with variants, each seed has its own variant
    if there are at least as many as seeds."""
    rates: tuple[float, ...] = field(default=(0.3, 1.0, 3.0), metadata=within("above 0, and at most 1,000"))
    """Multiples of the method's learning rate to try, for heads and for methods that train the model."""
    weights: tuple[float, ...] = field(default=(0.25, 0.5, 0.75), metadata=within("above 0, and at most 1"))
    """Weights w of the fused score to try, for methods with compositions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(bool(self.rates), "develop.rates", self.rates, "at least one")
        check(bool(self.weights), "develop.weights", self.weights, "at least one")


def _check_stream(name: str, value: str) -> None:
    if is_own(value):
        find_maker(value)
    else:
        check(value.endswith(".json"), name, value, STREAMS)


def _check_method(_: str, value: str) -> None:
    if value != "all":
        get_method(value)


@dataclass(frozen=True)
class ContinualConfig(OptionGroup):
    """Streams of tasks, the methods that learn them in order, and their seeds."""

    stream: tuple[str, ...] = field(default=(), metadata=CODE | checked_by(_check_stream))
    """Streams, separated by commas: a json file that lists tasks, or FILE.py:NAME, a StreamMaker of yours
    (docs/continual.md)."""
    method: tuple[str, ...] = field(default=(FULL,), metadata=CODE | checked_by(_check_method))
    """Methods, separated by commas; all = every method but cl-moe, which is for questions. FILE.py:NAME is a
    class of yours, or a Method: a learner with settings."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The backbone of streams that are json files; a StreamMaker makes its own."""
    seeds: int = 1
    """Runs per method; a seed draws the head, the batches, the buffer and the order of tasks."""
    first_seed: int = field(default=0, metadata=count_from(0, MOST_SEEDS - 1))
    """The first seed."""
    tune_seeds: int | None = None
    """Runs per method that trains the model itself; none = as ``seeds``."""
    order: str = field(default=RANDOM, metadata=one_of((GIVEN, RANDOM)))
    """Order of tasks. random: drawn by the seed; given: as listed in the stream."""
    weight: float = field(default=0.5, metadata=SHARE)
    """w of the fused score (1 - w) s(image, caption) + w s(image, composition). The paper does not state its
    scoring."""
    primitives: str = field(default="gold", metadata=one_of(("gold", "parsed")))
    """gold: primitives named in the stream's rows, parsed where a row names none; parsed: always from the
    parser."""
    head: HeadConfig = field(default_factory=HeadConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    trust: TrustConfig = field(default_factory=TrustConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    develop: DevelopConfig = field(default_factory=DevelopConfig)
    parser: ParserConfig = field(default_factory=ParserConfig)
    reference: str | None = field(default=None, metadata=INPUT)
    """zscl: pairs whose similarities are preserved, given as inputs of ``raycomp curate``. Required for json
    files; none = those of the StreamMaker."""
    overlap: str = field(default=WARN, metadata=one_of(OVERLAPS))
    """Test images that a task of the stream trains on. warn: counted and reported; drop: also left out of the
    tests, with the status contaminated. Images with the same bytes are the same image."""
    prepared: str | None = field(default=None, metadata=FREE | PLACE)
    """A folder with streams as arrays of embeddings: read if present, else written for further runs; none =
    this run builds its own."""
    max_pixels: int = field(default=100_000_000, metadata=NUM_PIXELS)
    """Images with more pixels are dropped."""
    max_bad_fraction: float = field(default=0.05, metadata=FREE | SHARE)
    """Largest share of bad samples, 0 to 1, of each half of a task and of ``reference``; above it the run
    stops with exit code 3. A sample without a primitive is left out, and is not bad."""
    seed: int = field(default=0, metadata=within("from 0 to 9999"))
    """Passed to a StreamMaker; with a run's own seed it draws everything random in the run."""
    checkpoint_steps: int = field(default=50, metadata=FREE | count_from(1))
    """Steps between two checkpoints, within a task."""
    side_by_side: int | None = field(default=None, metadata=FREE | count_from(1))
    """Number of concurrent runs, each on one CPU, or one GPU; none = as many as fit."""
    waves: WavesConfig = field(default_factory=WavesConfig, metadata=FREE)
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(bool(self.method), "method", ",".join(self.method), "at least one")
        own = [name_own(name) for name in {*self.method} if is_own(name)]
        for name in own:
            is_free = own.count(name) == 1 and name not in ("all", *METHODS)
            check(is_free, "method", name, "a name that no other method has")
        most = MOST_SEEDS - self.first_seed
        for name, value in (("seeds", self.seeds), ("tune_seeds", self.tune_seeds)):
            check(value is None or 1 <= value <= most, name, value, f"between 1 and {most:,}")
        last = self.first_seed + max(self.seeds, self.tune_seeds or 0) + self.develop.seeds
        wanted = f"so few that seeds end at {MOST_SEEDS}"
        check(last <= MOST_SEEDS, "develop.seeds", self.develop.seeds, wanted)
