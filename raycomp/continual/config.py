"""The options of continual learning."""

from dataclasses import dataclass, field
from math import inf

from raycomp.config.options import (
    CODE,
    FREE,
    INPUT,
    MOST,
    MOST_WEIGHT,
    PLACE,
    check,
    check_choice,
    check_count,
    check_rate,
    check_share,
)
from raycomp.config.own_code import is_own, name_own
from raycomp.config.shared import ClusterConfig, ModelConfig, ParserConfig, WavesConfig
from raycomp.continual.method import FULL, METHODS, find_maker, find_method
from raycomp.words import OVERLAPS, WARN

GIVEN, RANDOM = "given", "random"
STREAMS = "a .json file that lists tasks, or FILE.py:NAME, a StreamMaker"
"""Values of ``stream``, in words."""
MOST_SEEDS = 1000
"""A run's own seed is 1000 * ``seed`` + the run's seed number."""
_MOST_WIDE, _MOST_PARTS = 65_536, 1000
# Outside this range a logit is 0 or infinite in fp32.
_TEMPERATURES = (1e-6, 1e6)


def _check_weight(name: str, value: float) -> None:
    check(0 <= value <= MOST_WEIGHT, name, value, f"between 0 and {MOST_WEIGHT:,.0f}")


@dataclass(frozen=True)
class HeadConfig:
    """The composer on frozen embeddings. COMPO-REALIGN (openreview.net/forum?id=eiTy6AYeQi)."""

    hidden: int = 64
    """Hidden units of the shaper phi."""
    mix: str = "cayley"
    """cayley: strictly orthogonal; linear: any matrix; identity: none."""
    pool: str = "mean"
    """Pooling of primitives into one embedding: mean or attention."""
    shaped: bool = True
    """Whether primitives pass the adapter and the shaper."""
    synthetic: bool = True
    """Whether the composition is a second positive, with the caption. Without it the head has nothing to
    train where ``text`` is literal."""
    text: str = "literal"
    """literal: captions are frozen; adapted: captions pass the head, each as a composition of one."""
    c2v: str = "own"
    """Loss from texts to images, which the paper calls symmetric. own: each view is a query of its own;
    joint: both in one quotient, which trains compositions away from images."""
    temperature: float = 0.07
    steps: int = 100
    """Steps per task."""
    batch_size: int = 64
    optimizer: str = "adamw"
    """adamw or sgd."""
    learning_rate: float = 1e-3
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name, choices in (
            ("mix", ("cayley", "linear", "identity")),
            ("pool", ("mean", "attention")),
            ("text", ("literal", "adapted")),
            ("c2v", ("own", "joint")),
            ("optimizer", ("adamw", "sgd")),
        ):
            check_choice(f"head.{name}", getattr(self, name), choices)
        check_count("head.hidden", self.hidden, 1, _MOST_WIDE)
        check_count("head.steps", self.steps, 0)
        check_count("head.batch_size", self.batch_size, 2)
        least, most = _TEMPERATURES
        fits = least <= self.temperature <= most
        check(fits, "head.temperature", self.temperature, f"between {least} and {most:,.0f}")
        check_rate("head.learning_rate", self.learning_rate)
        _check_weight("head.weight_decay", self.weight_decay)


@dataclass(frozen=True)
class BufferConfig:
    """Memory of past tasks."""

    kind: str = "text"
    """text: captions and their primitives; image: these and the image's embedding; none."""
    size: int = 64
    """Largest number of entries per task; 0 = none."""
    max_bytes: int | None = None
    """A second limit per task, in bytes; none = only the number of entries is limited."""
    draw: int = 64
    """Largest number of entries drawn per step."""
    reading: str = "literal"
    """Use of a past text. literal: one more positive of the batch's samples with the same primitives, as in
    the paper; anchored: the text attracts its own composition; negatives: a negative for all images."""

    def __post_init__(self) -> None:
        check_choice("buffer.kind", self.kind, ("text", "image", "none"))
        check_choice("buffer.reading", self.reading, ("anchored", "literal", "negatives"))
        check_count("buffer.size", self.size, 0)
        check_count("buffer.draw", self.draw, 1)
        most = self.max_bytes
        check(most is None or most >= 0, "buffer.max_bytes", most, "at least 0")


@dataclass(frozen=True)
class TrustConfig:
    """The spectral trust region: the head's gradient is scaled down where s(image, e^_c) is sensitive to the
    primitives."""

    mode: str = "spectral"
    """spectral: alpha = min(1, gamma / sigma_max); fixed: ``alpha`` always; off: alpha is 1."""
    power_steps: int | None = 1
    """Power iterations on J^T J for the estimate of sigma, 1 or 2 in the paper; none = exact, by autograd or
    in closed form. The Jacobian of a sample has one row, so one iteration is exact but for rounding."""
    gamma: float | None = None
    """The largest sigma that leaves alpha at 1; none = ``quantile`` of the sigmas of the first ``first``
    steps."""
    quantile: float = 0.5
    first: int = 20
    reduce: str = "max"
    """max or mean of a batch's sigmas."""
    primitives: str = "raw"
    """Primitives whose influence sigma measures: raw = embeddings as they are, shaped = output of the
    shaper."""
    apply: str = "gradient"
    """gradient: alpha scales the gradient, as in the paper; Adam cancels a constant alpha. update: alpha
    scales the optimiser's step."""
    alpha: float | None = None
    """The scale of ``mode=fixed``; none = 1."""

    def __post_init__(self) -> None:
        for name, choices in (
            ("mode", ("spectral", "fixed", "off")),
            ("reduce", ("max", "mean")),
            ("primitives", ("raw", "shaped")),
            ("apply", ("update", "gradient")),
        ):
            check_choice(f"trust.{name}", getattr(self, name), choices)
        gamma, alpha = self.gamma, self.alpha
        check(gamma is None or 0 < gamma < inf, "trust.gamma", gamma, "above 0, and finite")
        check_share("trust.quantile", self.quantile)
        check_count("trust.first", self.first, 1)
        if self.power_steps is not None:
            check_count("trust.power_steps", self.power_steps, 1, _MOST_PARTS)
        check(alpha is None or 0 < alpha <= 1, "trust.alpha", alpha, "above 0, and at most 1")


@dataclass(frozen=True)
class TuneConfig:
    """Methods that train the model itself."""

    steps: int = 60
    """Steps per task."""
    batch_size: int = 64
    learning_rate: float = 1e-4
    """Learning rate of AdamW; diki and cl-moe, whose weights are new, use ten times as much."""
    weight_decay: float = 0.0
    workers: int | None = field(default=None, metadata=FREE)
    """Processes that share a batch, started by Ray Train, as ``train.workers``; none = one process per
    run."""
    autocast: bool = False
    """Compute in bf16 where that is safe, as ``train.autocast``; weights and the optimizer stay fp32."""
    accumulate: int = 1
    """Parts in which a worker embeds its rows, to save memory, as ``train.accumulate``."""
    rank: int = 16
    """c-clip and cl-moe: rank of the low-rank adapters."""
    merge: float = 0.5
    """c-clip: share of a task's adapters that is added to the weights after the task."""
    contexts: int = 8
    """diki: prompts per layer."""
    depth: int = 8
    """diki: number of layers with prompts, counted from the first; at most all layers."""
    experts: int = 4
    """cl-moe: experts per layer."""
    distil: float = 1.0
    """zscl: weight of each of the two distillation losses."""
    l2: float = 1.0
    """zscl: weight of the distance from the weights at the start of the task."""
    ensemble: int = 10
    """zscl: steps from one weight ensemble to the next."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("steps", 0, MOST), ("batch_size", 2, MOST), ("ensemble", 1, MOST), ("rank", 1, _MOST_WIDE),
            ("contexts", 1, _MOST_PARTS), ("depth", 1, _MOST_PARTS), ("experts", 1, _MOST_PARTS),
            ("accumulate", 1, MOST),
        ):  # fmt: skip
            check_count(f"tune.{name}", getattr(self, name), least, most)
        fits = self.workers is None or 1 <= self.workers <= self.batch_size
        span = f"at least 1, and at most tune.batch_size={self.batch_size}, a sample for each"
        check(fits, "tune.workers", self.workers, span)
        check_rate("tune.learning_rate", self.learning_rate)
        for name in ("weight_decay", "distil", "l2"):
            _check_weight(f"tune.{name}", getattr(self, name))
        check_share("tune.merge", self.merge)


@dataclass(frozen=True)
class DevelopConfig:
    """Learning rates and weights w, selected for each method on development seeds; other seeds are
    reported."""

    seeds: int = 0
    """Number of development seeds, numbered after the reported ones; 0 = nothing is selected. Methods are
    developed on the first of ``stream``, by Last. For a stream with variants, each seed has its own variant
    if there are at least as many as seeds."""
    rates: tuple[float, ...] = (0.3, 1.0, 3.0)
    """Multiples of the method's learning rate to try, for heads and for methods that train the model."""
    weights: tuple[float, ...] = (0.25, 0.5, 0.75)
    """Weights w of the fused score to try, for methods with compositions."""

    def __post_init__(self) -> None:
        check_count("develop.seeds", self.seeds, 0, MOST_SEEDS)
        for name, values, most in (("rates", self.rates, 1000), ("weights", self.weights, 1)):
            check(bool(values), f"develop.{name}", values, "at least one")
            for value in values:
                check(0 < value <= most, f"develop.{name}", value, f"above 0, and at most {most:,}")


@dataclass(frozen=True)
class ContinualConfig:
    """Streams of tasks, the methods that learn them in order, and their seeds."""

    stream: tuple[str, ...] = field(default=(), metadata=CODE)
    """Streams, separated by commas: a json file that lists tasks, or FILE.py:NAME, a StreamMaker of yours
    (docs/continual.md)."""
    method: tuple[str, ...] = field(default=(FULL,), metadata=CODE)
    """Methods, separated by commas; all = every method but cl-moe, which is for questions. FILE.py:NAME is a
    class of yours, or a Method: a learner with settings."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The backbone of streams that are json files; a StreamMaker makes its own."""
    seeds: int = 1
    """Runs per method; a seed draws the head, the batches, the buffer and the order of tasks."""
    first_seed: int = 0
    """The first seed."""
    tune_seeds: int | None = None
    """Runs per method that trains the model itself; none = as ``seeds``."""
    order: str = RANDOM
    """Order of tasks. random: drawn by the seed; given: as listed in the stream."""
    weight: float = 0.5
    """w of the fused score (1 - w) s(image, caption) + w s(image, composition). The paper does not state its
    scoring."""
    primitives: str = "gold"
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
    overlap: str = WARN
    """Test images that a task of the stream trains on. warn: counted and reported; drop: also left out of the
    tests, with the status contaminated. Images with the same bytes are the same image."""
    prepared: str | None = field(default=None, metadata=FREE | PLACE)
    """A folder with streams as arrays of embeddings: read if present, else written for further runs; none =
    this run builds its own."""
    max_pixels: int = 100_000_000
    """Images with more pixels are dropped."""
    max_bad_fraction: float = field(default=0.05, metadata=FREE)
    """Largest share of bad samples, 0 to 1, of each half of a task and of ``reference``; above it the run
    stops with exit code 3. A sample without a primitive is bad, too."""
    seed: int = 0
    """Passed to a StreamMaker; with a run's own seed it draws everything random in the run."""
    checkpoint_steps: int = field(default=50, metadata=FREE)
    """Steps between two checkpoints, within a task."""
    side_by_side: int | None = field(default=None, metadata=FREE)
    """Number of concurrent runs, each on one CPU, or one GPU; none = as many as fit."""
    waves: WavesConfig = field(default_factory=WavesConfig, metadata=FREE)
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)

    def __post_init__(self) -> None:
        for name in self.stream:
            if is_own(name):
                find_maker(name)
            else:
                check(name.endswith(".json"), "stream", name, STREAMS)
        check(bool(self.method), "method", ",".join(self.method), "at least one")
        for name in self.method:
            if name != "all":
                find_method(name)
        own = [name_own(name) for name in {*self.method} if is_own(name)]
        for name in own:
            is_free = own.count(name) == 1 and name not in ("all", *METHODS)
            check(is_free, "method", name, "a name that no other method has")
        check_choice("order", self.order, (GIVEN, RANDOM))
        check_choice("overlap", self.overlap, OVERLAPS)
        check_choice("primitives", self.primitives, ("gold", "parsed"))
        check_share("weight", self.weight)
        check_share("max_bad_fraction", self.max_bad_fraction)
        check_count("first_seed", self.first_seed, 0, MOST_SEEDS - 1)
        most_seeds = MOST_SEEDS - self.first_seed
        for name, most in (("seeds", most_seeds), ("tune_seeds", most_seeds), ("side_by_side", MOST)):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1, most)
        last = self.first_seed + max(self.seeds, self.tune_seeds or 0) + self.develop.seeds
        check(
            last <= MOST_SEEDS, "develop.seeds", self.develop.seeds, f"so few that seeds end at {MOST_SEEDS}"
        )
        check_count("checkpoint_steps", self.checkpoint_steps, 1)
        check(0 <= self.seed < 10_000, "seed", self.seed, "from 0 to 9999")
        fits = 1 <= self.max_pixels <= 178_956_970
        check(fits, "max_pixels", self.max_pixels, "between 1 and 178,956,970")
