"""The dials of a curation."""

from dataclasses import dataclass, field
from math import inf

from raycomp.config.check import check, check_share
from raycomp.config.rules import DRAW, Rule, find_rule, name_draw

AGGREGATES = ("mean", "min", "max", "fraction_supported")
PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class ScorerConfig:
    """The CLIP model that scores. Defaults: Go et al. (arXiv 2605.22651), section 5.2."""

    model: str = "ViT-B-16"
    """An open_clip architecture name, or a path to an open_clip model config (json)."""
    weights: str = "openai"
    """An open_clip tag, a checkpoint path, or ``random:SEED`` for plumbing runs."""
    precision: str = "fp32"
    """fp32 or bf16; normalisation and the cosine are fp32 always."""
    batch_size: int | None = None
    """Pairs that a scorer takes at a time; none = 32 per thread on CPUs, 512 on GPUs. No score depends
    on it: the shape of a forward pass is fixed."""
    embedding_dtype: str = "float32"
    """float32 or float16: how image embeddings are stored. float16 drops are no longer exact."""

    def __post_init__(self) -> None:
        check(self.precision in PRECISIONS, "scorer.precision", self.precision, f"one of {PRECISIONS}")
        size = self.batch_size
        check(size is None or 1 <= size <= 65536, "scorer.batch_size", size, "between 1 and 65536")
        check(
            self.embedding_dtype in ("float32", "float16"),
            "scorer.embedding_dtype",
            self.embedding_dtype,
            "float32 or float16",
        )
        if self.weights.startswith("random:"):
            seed = self.weights[7:]
            fits = seed.isdecimal() and len(seed) <= 20 and int(seed) < 2**64
            check(fits, "scorer.weights", self.weights, "random:WHOLE_NUMBER, the number below 2^64")


@dataclass(frozen=True)
class PrepareConfig:
    """What the scorer sees of an image, made on CPU tasks or stored."""

    max_pixels: int = 100_000_000
    """Images of more pixels (width x height as declared) are refused before decoding. At most 178,956,970:
    what is larger Pillow refuses to whoever trains on it."""
    fast_decode: bool = False
    """Decode large JPEGs at 1/2, 1/4 or 1/8 of their size, never below the model's; scores change a little.
    On 200 web photos 2.7 times as fast; their embeddings (ViT-B/32, random weights) keep a cosine of 0.9997
    to the exact ones (0.996 at least), their alignments a correlation of 0.9996."""
    stored_embeddings: str | None = None
    """Take image embeddings that ``scorer`` made and that lie beside Parquet input; no image is read. Either
    ``clip_retrieval`` (``metadata/metadata_I.parquet``, ``img_emb/img_emb_I.npy``), or which array of
    ``STEM.npz`` beside ``STEM.parquet`` (DataComp has ``b32_img`` and ``l14_img``)."""

    def __post_init__(self) -> None:
        fits = 1 <= self.max_pixels <= 178_956_970
        check(fits, "prepare.max_pixels", self.max_pixels, "between 1 and 178,956,970")
        stored = self.stored_embeddings
        check(stored != "", "prepare.stored_embeddings", stored, "clip_retrieval or an array's name")


@dataclass(frozen=True)
class AlignConfig:
    """Gate 1, rho_1 of the paper's Eq. 6."""

    keep: float = 0.70
    """Share of the corpus that stays: exactly floor(keep * N), read as a decimal, 0 to 1."""

    def __post_init__(self) -> None:
        check_share("align.keep", self.keep)


@dataclass(frozen=True)
class AttributeConfig:
    """Phrase attribution (Eqs. 2, 3 and 5) and gate 2, rho_2."""

    keep: float = 0.50
    """Share of the corpus (not of the pool) that stays, 0 to 1."""
    pool: float | None = None
    """Share of the corpus that is attributed, best aligned first; none = what the rule needs."""
    aggregate: str = "mean"
    """How a sample's phrase drops become one score: mean, min, max, or fraction_supported (drop > 0)."""
    nonces: int = 2
    """Counterfactuals per phrase, 1 to 16; fewer where nonces are few (7 are plurals of one token)."""
    unseen: bool = False
    """Whether phrases count whose target no picture can show ("background", "day", "view"). They have drops
    either way, so ``select`` may change it; the column mean_pas is always without them."""

    def __post_init__(self) -> None:
        check_share("attribute.keep", self.keep)
        if self.pool is not None:
            check_share("attribute.pool", self.pool)
        check(self.aggregate in AGGREGATES, "attribute.aggregate", self.aggregate, f"one of {AGGREGATES}")
        check(1 <= self.nonces <= 16, "attribute.nonces", self.nonces, "between 1 and 16")


@dataclass(frozen=True)
class NonceConfig:
    """How nonces are drawn (section 4.3): the first are the same however many attribute.nonces asks for."""

    seed: int = 0
    """Changes every nonce."""
    key: str = "target"
    """target: a target has the same nonces in every caption; sample: drawn anew in every sample."""

    def __post_init__(self) -> None:
        check(self.key in ("target", "sample"), "nonce.key", self.key, "target or sample")


@dataclass(frozen=True)
class SelectConfig:
    """Which rule chooses the subset."""

    rule: str = "cpi"
    """cpi; or a control. Of the whole corpus: align_only and random keep attribute.keep, full all of it. Out
    of the rows that cpi ranks, and as many as it keeps: align70_random50 draws (its name says 100 align.keep
    and 100 attribute.keep), cpi_reverse takes the lowest PAS, length the longest captions (words),
    phrase_count the most phrases with a drop, displacement the largest mean text displacement, pas_residual
    the largest residual of PAS regressed on caption length, phrase count, alignment and displacement."""
    datacomp_compat: bool = False
    """Keep what DataComp's threshold rule keeps (k + 1 rows and ties) instead of exactly k."""

    def __post_init__(self) -> None:
        find_rule(self.rule)


@dataclass(frozen=True)
class ParserConfig:
    """The English parser behind phrases."""

    name: str = "raycomp"
    """``raycomp`` for the one in the package, else a spaCy pipeline by name or path."""


@dataclass(frozen=True)
class WavesConfig:
    """How work is cut into commits."""

    shards_per_wave: int = 64
    """Input shards committed together."""

    def __post_init__(self) -> None:
        check(self.shards_per_wave >= 1, "waves.shards_per_wave", self.shards_per_wave, "at least 1")


@dataclass(frozen=True)
class ClusterConfig:
    """The size of the work on Ray; no result depends on it."""

    address: str | None = None
    """Ray address; none = RAY_ADDRESS or the cluster of a submitted job, else this machine."""
    num_cpus: int | None = None
    """Logical CPUs of a cluster started here; none = as many as the stages need."""
    scorers: int | None = None
    """Scoring actors; none = one per GPU, or one on a machine without."""
    gpu: bool | None = None
    """Whether a scorer asks for a GPU; none = if the cluster has one now, true waits for an autoscaler."""
    block_rows: int = 64
    """Rows of a block between stages."""
    price_per_hour: float | None = None
    """What an hour of one worker costs, for ``raycomp plan``; in any currency."""

    def __post_init__(self) -> None:
        check(self.scorers is None or self.scorers >= 1, "cluster.scorers", self.scorers, "at least 1")
        check(self.num_cpus is None or self.num_cpus >= 2, "cluster.num_cpus", self.num_cpus, "at least 2")
        rows, price = self.block_rows, self.price_per_hour
        check(1 <= rows <= 1_000_000, "cluster.block_rows", rows, "between 1 and 1000000")
        is_price = price is None or 0 <= price < inf
        check(is_price, "cluster.price_per_hour", price, "at least 0, and finite")


@dataclass(frozen=True)
class CurateConfig:
    """Raw shards in, a chosen and explained subset out (arXiv 2605.22651, section 5)."""

    input: str = ""
    """Paths, globs, brace lists, ``s3://``; several joined with ``::``, each optionally ``name=``."""
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    align: AlignConfig = field(default_factory=AlignConfig)
    attribute: AttributeConfig = field(default_factory=AttributeConfig)
    nonce: NonceConfig = field(default_factory=NonceConfig)
    select: SelectConfig = field(default_factory=SelectConfig)
    parser: ParserConfig = field(default_factory=ParserConfig)
    waves: WavesConfig = field(default_factory=WavesConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    extra_columns: tuple[str, ...] = ()
    """Fields of the samples' json to carry into scores/, as text (json for what is not text)."""
    materialize: bool | None = None
    """Write the kept samples as shards; none = yes for local output, no for s3:// and stored embeddings."""
    max_bad_fraction: float = 0.05
    """Above this share of rows without an alignment the run stops (exit 3); duplicates do not count."""
    seed: int = 0
    """Draws the random rules and the samples shown in the report."""

    def __post_init__(self) -> None:
        check_share("max_bad_fraction", self.max_bad_fraction)
        if self.prepare.stored_embeddings is not None:
            wanted = "false or none with prepare.stored_embeddings, which comes without images"
            check(not self.materialize, "materialize", self.materialize, wanted)
        rule = find_rule(self.select.rule)
        if self.select.datacomp_compat:
            keeps = {"align.keep": self.align.keep} if rule.gate_2 else {}
            for path, keep in {**keeps, "attribute.keep": self.attribute.keep}.items():
                check(keep < 1, path, keep, "below 1 with select.datacomp_compat")
            check(not rule.keeps_all, "select.rule", self.select.rule, "no full with datacomp_compat")
        if rule.gate_2:
            self._check_gates(rule)

    def _check_gates(self, rule: Rule) -> None:
        first, second = self.align.keep, self.attribute.keep
        most = f"at most align.keep={first}; both are shares of the corpus"
        check(second <= first, "attribute.keep", second, most)
        check(self.pool >= first, "attribute.pool", self.pool, f"at least align.keep={first}")
        if rule.gate_2 == DRAW:
            name = name_draw(first, second)
            wanted = f"{name}, which says align.keep={first} and attribute.keep={second}"
            check(self.select.rule == name, "select.rule", self.select.rule, wanted)

    @property
    def pool(self) -> float:
        """Share of the corpus that is attributed; a rule without a gate 2 needs none."""
        if self.attribute.pool is not None:
            return self.attribute.pool
        return self.align.keep if find_rule(self.select.rule).gate_2 else 0.0
