"""The options of continual learning."""

from dataclasses import dataclass, field
from math import inf

from raycomp.config.check import MOST, MOST_WEIGHT, check, check_choice, check_count, check_rate, check_share
from raycomp.config.options import FREE, INPUT, PLACE
from raycomp.config.shared import ClusterConfig, ModelConfig, ParserConfig, WavesConfig
from raycomp.continual.method import FULL, METHODS
from raycomp.words import OVERLAPS, WARN, WORLD, WORLD_STREAMS

GIVEN, RANDOM = "given", "random"
MOST_SEEDS = 1000
"""A run's own seed is 1000 * ``seed`` + the seed of a cell."""
_MOST_WIDE, _MOST_PARTS = 65_536, 1000
# Beyond them a logit is 0 or infinite in fp32.
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
    """How primitives become one: mean or attention."""
    shaped: bool = True
    """Whether primitives pass the adapter and the shaper."""
    synthetic: bool = True
    """Whether the composition is a positive beside the caption; without, nothing of the head is trained
    where ``text`` is literal."""
    text: str = "literal"
    """literal: captions are frozen; adapted: they pass the head, each as a composition of one."""
    c2v: str = "own"
    """From texts to images, which the paper calls symmetric: own = each view is a query of its own; joint =
    both in one quotient, which trains compositions away from images."""
    temperature: float = 0.07
    steps: int = 100
    """Of each task."""
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
    """What is kept of past tasks."""

    kind: str = "text"
    """text: captions and their primitives; image: the image's embedding beside them; random: no memory, but
    sets of primitives drawn anew from the names that were met; current: no memory, the batch's own captions,
    from the second task on; none."""
    size: int = 64
    """Entries of each task, at most; 0 = none."""
    max_bytes: int | None = None
    """A second limit of each task, in bytes; none = entries alone count."""
    draw: int = 64
    """Entries that a step draws, at most."""
    reading: str = "literal"
    """What a past text is for: literal = one more positive of the batch's samples with the same primitives,
    as the paper has it; anchored = it draws its own composition to itself; negatives = all images turn it
    away."""

    def __post_init__(self) -> None:
        check_choice("buffer.kind", self.kind, ("text", "image", "random", "current", "none"))
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
    """spectral: alpha = min(1, gamma / sigma_max); fixed: ``alpha`` always; off: 1."""
    power_steps: int | None = 1
    """Power iterations on J^T J that sigma is estimated by, 1 or 2 in the paper; none = exact, by autograd or
    in closed form. The Jacobian of a sample is one row, so that one iteration is exact but for rounding."""
    gamma: float | None = None
    """The largest sigma that leaves alpha at 1; none = ``quantile`` of the sigmas of the first ``first``
    steps."""
    quantile: float = 0.5
    first: int = 20
    reduce: str = "max"
    """max or mean of a batch's sigmas."""
    primitives: str = "raw"
    """Whose influence: raw = embeddings as they come, shaped = behind the shaper."""
    apply: str = "gradient"
    """gradient: alpha scales the gradient, as the paper has it, which Adam divides out where alpha is
    constant; update: alpha scales the optimiser's step."""
    alpha: float | None = None
    """fixed: the scale; none = the mean that compo-realign realised with the same seed."""

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
    """Of each task."""
    batch_size: int = 64
    learning_rate: float = 1e-4
    """Of AdamW; diki and cl-moe, whose weights are new, take ten times as much."""
    weight_decay: float = 0.0
    workers: int | None = field(default=None, metadata=FREE)
    """Processes that share a batch, started by Ray Train, as ``train.workers``; none = one for each run."""
    autocast: bool = False
    """Compute in bf16 where that is safe, as ``train.autocast``; weights and the optimizer stay fp32."""
    accumulate: int = 1
    """Parts in which a worker embeds its rows, to save memory, as ``train.accumulate``."""
    rank: int = 16
    """c-clip and cl-moe: of the low-rank adapters."""
    merge: float = 0.5
    """c-clip: share of a task's adapters that is added to the weights after it."""
    contexts: int = 8
    """diki: prompts of each layer."""
    depth: int = 8
    """diki: layers that have prompts, from the first; as many as there are, at most."""
    experts: int = 4
    """cl-moe: experts of each layer."""
    distil: float = 1.0
    """zscl: weight of each of its two distillations."""
    l2: float = 1.0
    """zscl: weight of the distance from the weights that the task began with."""
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
    """Learning rates and weights w, chosen for each method on development seeds; the others are reported."""

    seeds: int = 0
    """Development seeds, numbered after the reported ones; 0 = nothing is chosen. A method is developed on
    the first of ``stream`` that has it, by Last. In the little world each seed has a backbone of its own
    where ``little.backbones`` is at least the number of all seeds."""
    rates: tuple[float, ...] = (0.3, 1.0, 3.0)
    """Multiples of the method's learning rate that are tried, of heads and of models alike."""
    weights: tuple[float, ...] = (0.25, 0.5, 0.75)
    """Weights w of the fused score that are tried, of methods with compositions."""

    def __post_init__(self) -> None:
        check_count("develop.seeds", self.seeds, 0, MOST_SEEDS)
        for name, values, most in (("rates", self.rates, 1000), ("weights", self.weights, 1)):
            check(bool(values), f"develop.{name}", values, "at least one")
            for value in values:
                check(0 < value <= most, f"develop.{name}", value, f"above 0, and at most {most:,}")


@dataclass(frozen=True)
class LittleConfig:
    """The little world's streams, and the tiny CLIPs that meet them."""

    backbones: int = 1
    """Tiny CLIPs, each trained from weights and scenes of its own; seed s has backbone s modulo backbones."""
    backbone_pairs: int = 6000
    """Scenes that each of them is trained on, of 24 of the 64 pairs of colour and shape."""
    backbone_steps: int = 500
    train: int = 400
    """Scenes of a task to learn from."""
    test: int = 250
    """Scenes of a task to be asked about, no two of the same things."""

    def __post_init__(self) -> None:
        for name, least in (("backbone_pairs", 64), ("backbone_steps", 1), ("train", 2), ("test", 2)):
            check_count(f"little.{name}", getattr(self, name), least)
        check_count("little.backbones", self.backbones, 1, 100)


@dataclass(frozen=True)
class ContinualConfig:
    """Streams of tasks, methods that learn them one after another, and what is left at the end."""

    stream: tuple[str, ...] = (WORLD,)
    """Which, joined with commas: world, domains, questions-scene, questions-function of the little world; or
    a json file that lists tasks of yours (docs/continual.md)."""
    method: tuple[str, ...] = (FULL,)
    """Which, joined with commas; all = every method that the streams have."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The backbone of streams of yours; the little world's have tiny ones of their own."""
    seeds: int = 1
    """Runs of each method; a seed draws the head, the batches, the buffer and the order of tasks."""
    first_seed: int = 0
    """The first of them."""
    tune_seeds: int | None = None
    """Runs of those methods that train the model itself; none = as ``seeds``."""
    order: str = RANDOM
    """random: a seed's own order of the tasks; given: as the stream has them."""
    weight: float = 0.5
    """w of the fused score (1 - w) s(image, caption) + w s(image, composition). What the paper scores by is
    open."""
    primitives: str = "gold"
    """gold: as the stream's rows name them, parsed where they do not; parsed: always by the parser."""
    head: HeadConfig = field(default_factory=HeadConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    trust: TrustConfig = field(default_factory=TrustConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    develop: DevelopConfig = field(default_factory=DevelopConfig)
    little: LittleConfig = field(default_factory=LittleConfig)
    parser: ParserConfig = field(default_factory=ParserConfig)
    reference: str | None = field(default=None, metadata=INPUT)
    """zscl: pairs whose likenesses shall stay, as ``raycomp curate`` takes inputs. Streams of yours need
    some; none = in the little world pairs such as the backbone was trained on."""
    overlap: str = WARN
    """Test images that a task of the stream trains on. warn: counted and reported; drop: also left out of the
    tests, with the status contaminated. The same bytes are the same image."""
    prepared: str | None = field(default=None, metadata=FREE | PLACE)
    """A folder where streams are looked for as arrays of embeddings, and left for further runs; none = this
    run makes its own."""
    max_pixels: int = 100_000_000
    """Images with more pixels are dropped."""
    max_bad_fraction: float = field(default=0.05, metadata=FREE)
    """Share of the samples that may be bad, 0 to 1, of each half of a task and of ``reference``; above it the
    run stops with exit code 3. A sample without a primitive is bad, too."""
    seed: int = 0
    """Draws the little world's backbones and scenes; and with a run's own seed all that it draws."""
    checkpoint_steps: int = field(default=50, metadata=FREE)
    """Steps from one checkpoint to the next, within a task."""
    side_by_side: int | None = field(default=None, metadata=FREE)
    """Runs at a time, each on one CPU, or one GPU; none = as many as there is room for."""
    waves: WavesConfig = field(default_factory=WavesConfig, metadata=FREE)
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)

    def __post_init__(self) -> None:
        check(bool(self.stream), "stream", ",".join(self.stream), "at least one")
        for name in self.stream:
            if not name.endswith(".json"):
                check_choice("stream", name, WORLD_STREAMS, ", or a .json file that lists tasks")
        check(bool(self.method), "method", ",".join(self.method), "at least one")
        for name in self.method:
            check_choice("method", name, ("all", *METHODS))
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
