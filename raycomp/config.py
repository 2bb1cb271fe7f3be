"""Every dial: frozen dataclasses, checked at birth, changed in one way (``override``)."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

RULES = ("cpi", "align_only", "random", "full")
AGGREGATES = ("mean", "min", "max", "fraction_supported")
PRECISIONS = ("fp32", "bf16")
# As in schema.py, which loads pyarrow; the command line must not.
OPERATIONS = ("SWAP", "REPLACE", "ADD")
ENGINES = ("rules", "vllm", "http")


class TooMuchBadData(Exception):
    """More rows without an alignment than ``max_bad_fraction`` allows."""


class LeaseLost(Exception):
    """Another run took the output folder over; nothing more may be committed there."""


def _check(condition: bool, name: str, value: Any, wanted: str) -> None:
    if not condition:
        raise ValueError(f"{name}={value!r}: must be {wanted}")


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
        _check(self.precision in PRECISIONS, "scorer.precision", self.precision, f"one of {PRECISIONS}")
        size = self.batch_size
        _check(size is None or 1 <= size <= 65536, "scorer.batch_size", size, "between 1 and 65536")
        _check(
            self.embedding_dtype in ("float32", "float16"),
            "scorer.embedding_dtype",
            self.embedding_dtype,
            "float32 or float16",
        )
        if self.weights.startswith("random:"):
            _check(self.weights[7:].isdigit(), "scorer.weights", self.weights, "random:WHOLE_NUMBER")


@dataclass(frozen=True)
class PrepareConfig:
    """What the scorer sees of an image, made on CPU tasks or stored."""

    max_pixels: int = 100_000_000
    """Images of more pixels (width x height as declared) are refused before decoding."""
    fast_decode: bool = False
    """Decode large JPEGs at 1/2, 1/4 or 1/8 of their size, never below the model's; scores change a little.
    On 200 web photos 2.7 times as fast; their embeddings (ViT-B/32, random weights) keep a cosine of 0.9997
    to the exact ones (0.996 at least), their alignments a correlation of 0.9996."""
    stored_embeddings: str | None = None
    """Take image embeddings that ``scorer`` made and that lie beside Parquet input; no image is read. Either
    ``clip_retrieval`` (``metadata/metadata_I.parquet``, ``img_emb/img_emb_I.npy``), or which array of
    ``STEM.npz`` beside ``STEM.parquet`` (DataComp has ``b32_img`` and ``l14_img``)."""

    def __post_init__(self) -> None:
        _check(self.max_pixels >= 1, "prepare.max_pixels", self.max_pixels, "at least 1")
        stored = self.stored_embeddings
        _check(stored != "", "prepare.stored_embeddings", stored, "clip_retrieval or an array's name")


@dataclass(frozen=True)
class AlignConfig:
    """Gate 1, rho_1 of the paper's Eq. 6."""

    keep: float = 0.70
    """Share of the corpus that stays: exactly floor(keep * N), read as a decimal, 0 to 1."""

    def __post_init__(self) -> None:
        _check(0 <= self.keep <= 1, "align.keep", self.keep, "between 0 and 1")


@dataclass(frozen=True)
class AttributeConfig:
    """Phrase attribution (Eqs. 2, 3 and 5) and gate 2, rho_2."""

    keep: float = 0.50
    """Share of the corpus (not of the pool) that stays, 0 to 1."""
    pool: float | None = None
    """Share of the corpus that is attributed, best aligned first; none = what the rule needs."""
    aggregate: str = "mean"
    """How a sample's phrase drops become one score: mean, min, max, or fraction_supported (drop > 0)."""
    nonces: int = 1
    """Counterfactuals per phrase, 1 to 16."""

    def __post_init__(self) -> None:
        _check(0 <= self.keep <= 1, "attribute.keep", self.keep, "between 0 and 1")
        _check(self.pool is None or 0 <= self.pool <= 1, "attribute.pool", self.pool, "between 0 and 1")
        _check(self.aggregate in AGGREGATES, "attribute.aggregate", self.aggregate, f"one of {AGGREGATES}")
        _check(1 <= self.nonces <= 16, "attribute.nonces", self.nonces, "between 1 and 16")


@dataclass(frozen=True)
class NonceConfig:
    """How nonces are drawn (section 4.3)."""

    seed: int = 0
    """Changes every nonce."""
    key: str = "target"
    """target: one nonce per target word everywhere; sample: drawn anew in every sample."""

    def __post_init__(self) -> None:
        _check(self.key in ("target", "sample"), "nonce.key", self.key, "target or sample")


@dataclass(frozen=True)
class SelectConfig:
    """Which rule chooses the subset."""

    rule: str = "cpi"
    """cpi; or a control that ignores PAS: align_only, random (both keep attribute.keep), full."""
    datacomp_compat: bool = False
    """Keep what DataComp's threshold rule keeps (k + 1 rows and ties) instead of exactly k."""

    def __post_init__(self) -> None:
        _check(self.rule in RULES, "select.rule", self.rule, f"one of {RULES}")


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
        _check(self.shards_per_wave >= 1, "waves.shards_per_wave", self.shards_per_wave, "at least 1")


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
        _check(self.scorers is None or self.scorers >= 1, "cluster.scorers", self.scorers, "at least 1")
        _check(self.num_cpus is None or self.num_cpus >= 2, "cluster.num_cpus", self.num_cpus, "at least 2")
        _check(self.block_rows >= 1, "cluster.block_rows", self.block_rows, "at least 1")


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
    """Draws the random rule and the samples shown in the report."""

    def __post_init__(self) -> None:
        _check(0 <= self.max_bad_fraction <= 1, "max_bad_fraction", self.max_bad_fraction, "between 0 and 1")
        if self.prepare.stored_embeddings is not None:
            wanted = "false or none with prepare.stored_embeddings, which comes without images"
            _check(not self.materialize, "materialize", self.materialize, wanted)
        if self.select.datacomp_compat:
            keeps = {"align.keep": self.align.keep} if self.select.rule == "cpi" else {}
            for path, keep in {**keeps, "attribute.keep": self.attribute.keep}.items():
                _check(keep < 1, path, keep, "below 1 with select.datacomp_compat")
            _check(
                self.select.rule != "full", "select.rule", self.select.rule, "no full with datacomp_compat"
            )
        if self.select.rule == "cpi":
            most = f"at most align.keep={self.align.keep}; both are shares of the corpus"
            _check(self.attribute.keep <= self.align.keep, "attribute.keep", self.attribute.keep, most)
            least = f"at least align.keep={self.align.keep}"
            _check(self.pool >= self.align.keep, "attribute.pool", self.pool, least)

    @property
    def pool(self) -> float:
        """Share of the corpus that is attributed; the controls need none."""
        if self.attribute.pool is not None:
            return self.attribute.pool
        return self.align.keep if self.select.rule == "cpi" else 0.0


@dataclass(frozen=True)
class WritingConfig:
    """How hard negatives are written, judged and chosen (token-aware causal lens on CLIP, Algorithm 1)."""

    engine: str = "rules"
    """rules: from the parse, offline; vllm: an LLM in Ray's engines; http: an OpenAI-compatible server."""
    operations: tuple[str, ...] = OPERATIONS
    """Which of SWAP, REPLACE, ADD."""
    calls: int = 1
    """Operations in a row at most; negatives of 1, 2, ... calls are all written. 1 to 8."""
    per_caption: int = 3
    """Negatives kept for each number of calls: the hardest of each operation, operations taking turns."""
    candidates: int = 4
    """What rules propose for each operation, at most. Of more calls there are more sequences, and of each
    sequence as many fewer, but at least one."""
    rank: bool = True
    """Rank by the scorer's text encoder: the more similar to the caption, the harder. false needs no model
    and keeps the order of proposal."""
    add_similarity: float | None = None
    """Least cos(g(base), g(augmented)) of an ADD, -1 to 1; none = reported, not enforced."""
    materialize: bool = False
    """Write the curation's shards once more, each sample's json with its negatives."""
    export: tuple[str, ...] = ()
    """More files: negclip (a TSV for NegCLIP's trainer), calls (sets that compare numbers of calls)."""
    seed: int = 0
    """Changes what rules propose first."""

    def __post_init__(self) -> None:
        _check(self.engine in ENGINES, "negatives.engine", self.engine, f"one of {ENGINES}")
        known = bool(self.operations) and set(self.operations) <= set(OPERATIONS)
        _check(known, "negatives.operations", self.operations, f"some of {OPERATIONS}")
        _check(1 <= self.calls <= 8, "negatives.calls", self.calls, "between 1 and 8")
        _check(self.per_caption >= 1, "negatives.per_caption", self.per_caption, "at least 1")
        _check(self.candidates >= 1, "negatives.candidates", self.candidates, "at least 1")
        least = self.add_similarity
        _check(least is None or -1 <= least <= 1, "negatives.add_similarity", least, "between -1 and 1")
        _check(
            least is None or self.rank, "negatives.add_similarity", least, "none with negatives.rank=false"
        )
        _check(set(self.export) <= {"negclip", "calls"}, "negatives.export", self.export, "negclip or calls")
        if "calls" in self.export:
            _check(self.calls >= 2, "negatives.calls", self.calls, "at least 2 with negatives.export=calls")


@dataclass(frozen=True)
class LlmConfig:
    """The language model of the engines vllm and http."""

    model: str = "Qwen/Qwen2.5-7B-Instruct"
    """A hub name or folder for vllm; what the server calls it for http."""
    url: str | None = None
    """http: the server's base, as in ``http://host:8000/v1``. A key is read from OPENAI_API_KEY."""
    temperature: float = 0.7
    max_tokens: int = 160
    """Of one reply."""
    seed: int = 0
    tries: int = 3
    """How often a prompt is asked before its row counts as failed, 1 or more."""
    engines: int = 1
    """vLLM engines side by side, or requests to a server at a time times 16."""
    timeout_s: float = 120.0
    """http: how long one request may take."""
    patience_s: float = 60.0
    """http: how long a request is repeated, with growing pauses, while the server is busy or away."""

    def __post_init__(self) -> None:
        _check(self.temperature >= 0, "llm.temperature", self.temperature, "at least 0")
        _check(self.max_tokens >= 16, "llm.max_tokens", self.max_tokens, "at least 16")
        _check(self.tries >= 1, "llm.tries", self.tries, "at least 1")
        _check(self.engines >= 1, "llm.engines", self.engines, "at least 1")
        _check(self.timeout_s > 0, "llm.timeout_s", self.timeout_s, "above 0")
        _check(self.patience_s >= 0, "llm.patience_s", self.patience_s, "at least 0")
        parts = urlsplit(self.url or "http://none")
        # It stands in run.json and in messages, so it may hold no secret.
        if "@" in parts.netloc or parts.query:
            raise ValueError("llm.url: must hold no password and no query; a key goes into OPENAI_API_KEY")
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname)
        _check(is_server, "llm.url", self.url, "like http://host:8000/v1")


@dataclass(frozen=True)
class NegativesConfig:
    """Captions in, validated hard negatives out."""

    input: str = ""
    """A folder that ``raycomp curate`` or ``select`` wrote, or Parquet files with uid and caption (and, if
    they have it, image_sha256: captions of one image are then kept apart)."""
    negatives: WritingConfig = field(default_factory=WritingConfig)
    llm: LlmConfig = field(default_factory=LlmConfig)
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    """Its text encoder ranks. Left alone, it is the one that the curation scored with."""
    parser: ParserConfig = field(default_factory=ParserConfig)
    waves: WavesConfig = field(default_factory=WavesConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        if self.negatives.engine == "http":
            _check(bool(self.llm.url), "llm.url", self.llm.url, "set with negatives.engine=http")


@dataclass(frozen=True)
class ProbeConfig:
    """What ``raycomp probe`` looks at."""

    input: str = ""
    """overlap: a folder with a folder for each benchmark; composition: what ``raycomp negatives`` wrote."""
    benchmarks: tuple[str, ...] = ("sugarcrepe", "sugarcrepe_pp", "valse")
    """overlap: folders of ``input``: these, vl_checklist or aro."""
    sample: int | None = None
    """Rows of each split, or captions, at most; none = all."""
    seeds: int = 5
    """theory: worlds that are drawn."""
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    """composition: whose text encoder. Left alone, it is the one that ranked the negatives."""
    parser: ParserConfig = field(default_factory=ParserConfig)
    seed: int = 0
    """Draws samples, folds and resamples."""

    def __post_init__(self) -> None:
        _check(self.sample is None or self.sample >= 1, "sample", self.sample, "at least 1")
        _check(1 <= self.seeds <= 100, "seeds", self.seeds, "between 1 and 100")


def exact_share(share: float, count: int) -> int:
    """Return floor(share * count) with ``share`` read as the decimal it prints as: 0.7 of 90 is 63."""
    return int(Decimal(str(share)) * count)


def override(config: Any, path: str, value: Any) -> Any:
    """Return a copy of ``config`` with the field at ``path`` ("align.keep") set.

    Text values are read as the field's type. Raises ValueError naming the valid fields where ``path`` does
    not lead to a field, and the wanted type where ``value`` does not fit.
    """
    return override_all(config, {path: value})


def override_all(config: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Return a copy of ``config`` with several fields set at once, checked together.

    Two dials that bound each other can so be moved in any order. Raises ValueError as ``override`` does.
    """
    hints = typing.get_type_hints(type(config))
    groups: dict[str, dict[str, Any]] = {}
    changes: dict[str, Any] = {}
    for path, value in values.items():
        name, _, below = path.partition(".")
        if name not in hints:
            raise ValueError(f"{prefix}{path}: no such dial; here are {', '.join(hints)}")
        is_group = dataclasses.is_dataclass(getattr(config, name))
        if is_group and not below:
            fields = ", ".join(f"{prefix}{name}.{f.name}" for f in dataclasses.fields(getattr(config, name)))
            raise ValueError(f"{prefix}{path}: names a group of dials; set one of {fields}")
        if below and not is_group:
            raise ValueError(f"{prefix}{path}: {prefix}{name} is a value and has no dial {below!r}")
        if is_group:
            groups.setdefault(name, {})[below] = value
        else:
            changes[name] = _read(prefix + path, hints[name], value)
    for name, inner in groups.items():
        changes[name] = override_all(getattr(config, name), inner, f"{prefix}{name}.")
    return dataclasses.replace(config, **changes)


def _read(path: str, hint: Any, value: Any) -> Any:
    """Read ``value`` as type ``hint``: bool, int, float, str, tuple[str, ...] or one of these | None."""
    options = typing.get_args(hint) if type(None) in typing.get_args(hint) else (hint,)
    if type(None) in options and (value is None or value in ("none", "None", "null")):
        return None
    kind = next(option for option in options if option is not type(None))
    if typing.get_origin(kind) is tuple:
        return tuple(part for part in value.split(",") if part) if isinstance(value, str) else tuple(value)
    if kind is bool:
        words = {"true": True, "false": False, "1": True, "0": False}
        if str(value).lower() in words:
            return words[str(value).lower()]
    else:
        try:
            return kind(str(value)) if kind in (int, float) else kind(value)
        except ValueError:
            pass
    raise ValueError(f"{path}={value!r}: must be of type {kind.__name__}")


def to_dict(config: Any) -> dict[str, Any]:
    """Return the config as plain nested dicts, as run.json holds it."""
    return dataclasses.asdict(config)


def from_dict(config: Any, values: Mapping[str, Any]) -> Any:
    """Return ``config`` with every field set as ``to_dict`` wrote it."""
    return override_all(config, dict(flatten(values)))


def changed_dials(config: Any) -> dict[str, Any]:
    """Return the dials that differ from the defaults, by path: what a command line must say."""
    default = dict(flatten(to_dict(type(config)())))
    return {path: value for path, value in flatten(to_dict(config)) if value != default[path]}


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of nested dicts, paths joined with dots."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
