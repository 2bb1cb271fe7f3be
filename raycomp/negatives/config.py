"""The options of hard negatives."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from raycomp.config.options import (
    FREE,
    INPUT,
    PLACE,
    SHARE,
    Arguments,
    ClusterConfig,
    OptionGroup,
    ParserConfig,
    ScorerConfig,
    Seconds,
    Span,
    WavesConfig,
    check,
    checked_by,
    one_of,
    read_span,
    within,
)
from raycomp.words import OPERATIONS

RULES, SUGGEST = "rules", "suggest"
ENGINES = (RULES, SUGGEST, "vllm", "http")
PROMPTS = ("full", "short")
JUDGES = ("ngrams", "model")
EXPORTS = ("negclip", "triplet", "neighbours", "calls")
REFINEMENTS = ("none", "balance", "draw")


@dataclass(frozen=True)
class WritingConfig(OptionGroup, name="negatives"):
    """How hard negatives are written, judged and chosen (token-aware causal lens on CLIP, Algorithm 1)."""

    engine: str = field(default=RULES, metadata=one_of(ENGINES))
    """rules: from the parse, offline; suggest: by rules, for each place the words that are likeliest to the
    language model llm.model; vllm: an LLM in vLLM's engines; http: an OpenAI-compatible server."""
    operations: tuple[str, ...] = field(default=OPERATIONS, metadata=one_of(OPERATIONS))
    """The operations to use, of SWAP, REPLACE, ADD."""
    calls: int = field(default=1, metadata=within("between 1 and 8"))
    """Maximum number of operations in a row, 1 to 8; negatives of 1, 2, ... calls are all written."""
    per_caption: int = field(default=3, metadata=within("at least 1"))
    """Negatives kept for each number of calls: the hardest of each operation, operations taking turns."""
    candidates: int = field(default=4, metadata=within("at least 1"))
    """Maximum number of proposals of the rules for each operation. More calls have more sequences, and each
    sequence proportionally fewer proposals, but at least one."""
    context: bool = False
    """rules, suggest: count how the corpus's captions use words, then draw by these counts: replacements that
    it uses there, additions that such scenes hold, swaps of things of one sort, and ADDs as long as the
    caption. Every place has more candidates. The counts are written to ``context.parquet``."""
    rank: bool = True
    """Rank by the scorer's text encoder: the more similar to the caption, the harder. false needs no model
    and keeps the order of proposal."""
    judge: tuple[str, ...] = field(default=(), metadata=one_of(JUDGES))
    """Text-only judges, some of ngrams, model; each scores a negative by how much likelier its caption is.
    ngrams: words and pairs of neighbours in captions of other images; model: the model judge_model."""
    judge_model: str | None = None
    """The folder of the judge model, a causal language model with safetensors; it runs on CPUs."""
    refine: str = field(default="none", metadata=one_of(REFINEMENTS))
    """balance: keep negatives that the judges cannot distinguish from their captions: for each operation and
    kind, as many are likelier than their caption as less likely. draw: every caption keeps one of each
    operation, drawn so that the judges find as few as possible. Both keep at most one of each sequence."""
    coverage: float = field(default=2.0, metadata=within("between -20 and 20"))
    """refine=balance: log-odds of a negative against none, -20 to 20. A larger value draws negatives for more
    captions; the judges then find more of them, and more are cut to balance the rest."""
    screen: float = field(default=0.0, metadata=within("between 0 and 1000"))
    """Flag REPLACEs and ADDs that may be true of their photo: those whose new phrase, such as "red hat", fits
    the photo so well that a share of at most this many times the phrase's share of captions fits better. 0 =
    not screened. It needs a curation by the scorer. Relations between what is there are never flagged."""
    drop_suspects: bool = False
    """Drop the flagged negatives; false keeps them, with ``suspect``."""
    add_similarity: float | None = field(default=None, metadata=within("between -1 and 1"))
    """Minimum cos(g(base), g(augmented)) of an ADD, -1 to 1; none = any. With several calls each ADD is
    compared with its own input, the output of the calls before, and each must reach the minimum."""
    materialize: bool = False
    """Rewrite the curation's shards, each sample's json with its negatives."""
    export: tuple[str, ...] = field(default=(), metadata=one_of(EXPORTS))
    """Further files: negclip (a TSV for NegCLIP's trainer), triplet (shards for TripletCLIP's trainer),
    neighbours (for raycomp train's hard_images), calls (sets that compare numbers of calls)."""
    images: str | None = field(default=None, metadata=PLACE)
    """triplet: Parquet with a row for each negative that has an image: uid, negative (its text), and image
    (bytes) or path, as ``negative_images`` of raycomp train."""
    frozen: str | None = field(default=None, metadata=PLACE)
    """A folder of a finished run of negatives, whose counts (judges, contexts, photos) and fitted refinement
    are used instead of those of this input. Then the negatives of a caption depend on no other caption but
    those of its image."""
    seed: int = field(default=0, metadata=within("at least 0"))
    """Seed of the order in which rules propose."""

    @property
    def scores(self) -> bool:
        """Whether a model embeds or judges the candidates."""
        return self.rank or "model" in self.judge or self.engine == SUGGEST

    @property
    def by_rules(self) -> bool:
        """Whether rules propose, not replies."""
        return self.engine in (RULES, SUGGEST)

    @property
    def is_broad(self) -> bool:
        """Whether rules propose as many words for a place as are asked for."""
        return self.context or self.engine == SUGGEST

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = 0 < len(set(self.operations)) == len(self.operations)
        wanted = f"some of {', '.join(OPERATIONS)}, each once"
        check(fits, "negatives.operations", self.operations, wanted)
        fits = not self.context or self.by_rules
        check(fits, "negatives.context", self.context, "false without negatives.engine=rules or suggest")
        least = self.add_similarity
        check(least is None or self.rank, "negatives.add_similarity", least, "none without rank")
        check(not self.screen or self.rank, "negatives.screen", self.screen, "0 without rank")
        fits = not self.drop_suspects or self.screen > 0
        check(fits, "negatives.drop_suspects", self.drop_suspects, "false without negatives.screen")
        check(len(set(self.judge)) == len(self.judge), "negatives.judge", self.judge, "each judge once")
        needs, model = "model" in self.judge, self.judge_model
        wanted = "a folder with negatives.judge=model, else none"
        check(needs == (model is not None), "negatives.judge_model", model, wanted)
        if self.refine != "none":
            check(bool(self.judge), "negatives.judge", self.judge, "some judge with negatives.refine")
            check("calls" not in self.export, "negatives.export", self.export, "without calls to refine")
        fits = ("triplet" in self.export) == (self.images is not None)
        check(fits, "negatives.images", self.images, "Parquet with negatives.export=triplet, else none")
        if "calls" in self.export:
            check(self.calls >= 2, "negatives.calls", self.calls, "at least 2 with negatives.export=calls")


def _check_url(name: str, url: str) -> None:
    try:
        parts = urlsplit(url or "http://none")
        _ = parts.port  # raises if the port is invalid
    except ValueError as error:
        # The original message may hold the password.
        raise ValueError(f"{name}: must be like http://host:8000/v1") from error
    # It is written to run.json and to messages, so it may hold no secret.
    if "@" in parts.netloc or parts.query:
        raise ValueError(f"{name}: must hold no password and no query; a key goes into OPENAI_API_KEY")
    is_server = parts.scheme in ("http", "https") and bool(parts.hostname)
    check(is_server, name, url, "like http://host:8000/v1")


@dataclass(frozen=True)
class LlmConfig(OptionGroup, name="llm"):
    """The language model of the engines vllm, http and suggest."""

    model: str = "Qwen/Qwen2.5-7B-Instruct"
    """A hub name or folder for vllm; the server's name of the model for http; a folder with safetensors for
    suggest, which uses none of the other options."""
    url: str | None = field(default=None, metadata=FREE | checked_by(_check_url))
    """http: the server's base URL, as in ``http://host:8000/v1``. A key is read from OPENAI_API_KEY."""
    temperature: float = field(default=0.7, metadata=within("at least 0, and finite"))
    """Sampling temperature of replies; 0 = always the likeliest token."""
    prompts: str = field(default="full", metadata=one_of(PROMPTS))
    """full: asks for the whole negative. short, for models of less than about a billion parameters: the parse
    gives the place, and the model is asked for a word that fills the gap, or for two words to swap."""
    max_tokens: int = field(default=160, metadata=within("at least 16"))
    """Maximum length of one reply."""
    seed: int = field(default=0, metadata=within("at least 0"))
    """Seed of the replies."""
    tries: int = field(default=3, metadata=FREE | within("at least 1"))
    """Attempts per call for prompts without an answer; then a prompt counts as failed."""
    engines: Span = field(default=1, metadata=FREE | checked_by(read_span))
    """Number of parallel vLLM engines: N, or MIN..MAX of a pool that grows with the work and with the
    cluster. http: concurrent requests divided by 16; of a range the maximum is used."""
    tensor_parallel: int = field(default=1, metadata=within("at least 1"))
    """vllm: number of GPUs that compute each layer of an engine together."""
    pipeline_parallel: int = field(default=1, metadata=FREE | within("at least 1"))
    """vllm: number of groups of GPUs among which an engine's layers are divided. All GPUs of an engine, the
    product of the two, belong to one node."""
    context: int | None = None
    """vllm: maximum tokens of a prompt and its reply together; none = the model's maximum. A longer prompt
    counts as not answered. A smaller context leaves memory for more prompts at a time."""
    memory_share: float | None = field(default=None, metadata=FREE | within("above 0, at most 1"))
    """vllm: share of a GPU's memory that an engine takes, above 0, at most 1; none = vLLM's default, and on
    CPUs 1 GiB for keys and values."""
    quantization: str | None = None
    """vllm: quantization of the weights (fp8, awq, gptq, bitsandbytes ...); none = as the files specify."""
    engine: Arguments = field(default_factory=dict)
    """vllm: further arguments of its engine by their names, as in llm.engine.max_num_seqs=64."""
    timeout_s: Seconds = field(default=120.0, metadata=FREE | within("above 0, and finite"))
    """http: maximum duration of one request."""
    patience_s: Seconds = field(default=60.0, metadata=FREE | within("at least 0, and finite"))
    """http: how long a request is retried, with growing pauses, while the server is busy or unavailable."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.context is None or self.context > self.max_tokens
        check(fits, "llm.context", self.context, f"above llm.max_tokens={self.max_tokens}")

    @property
    def span(self) -> tuple[int, int]:
        """The minimum and the maximum number of engines."""
        return read_span("llm.engines", self.engines)

    @property
    def gpus_per_engine(self) -> int:
        """The number of GPUs that compute one engine together."""
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True)
class NegativesConfig(OptionGroup):
    """Write validated hard negatives of captions."""

    input: str = field(default="", metadata=INPUT)
    """A folder that ``raycomp curate`` or ``select`` wrote, or Parquet files with uid and caption (and
    optionally image_sha256: a text stated by another caption of the same image is not a negative)."""
    negatives: WritingConfig = field(default_factory=WritingConfig)
    llm: LlmConfig = field(default_factory=LlmConfig)
    scorer: ScorerConfig | None = None
    """The scoring model, whose text encoder ranks; none = the curation's scorer, for plain Parquet the
    default one. If one of its options is set, all of them count: the others have the values below."""
    parser: ParserConfig = field(default_factory=ParserConfig)
    waves: WavesConfig = field(default_factory=WavesConfig, metadata=FREE)
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)
    max_bad_fraction: float = field(default=0.05, metadata=FREE | SHARE)
    """Share of the captions of plain Parquet that may be missing, empty or not UTF-8, 0 to 1. Above it the
    run stops with exit code 3 before anything is written. A curation has its own limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.negatives.engine == "http":
            check(bool(self.llm.url), "llm.url", self.llm.url, "set with negatives.engine=http")

    @property
    def ranker(self) -> ScorerConfig:
        """The scorer that ranks, after inheritance is resolved."""
        return self.scorer or ScorerConfig()
