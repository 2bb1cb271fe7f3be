"""The options of hard negatives."""

from dataclasses import dataclass, field
from math import inf
from urllib.parse import urlsplit

from raycomp.config.check import check, check_choice, check_share, read_span
from raycomp.config.options import FREE, INPUT, Arguments, Seconds, Span
from raycomp.config.shared import ClusterConfig, ParserConfig, ScorerConfig, WavesConfig
from raycomp.words import OPERATIONS

ENGINES = ("rules", "vllm", "http")
PROMPTS = ("full", "short")


@dataclass(frozen=True)
class WritingConfig:
    """How hard negatives are written, judged and chosen (token-aware causal lens on CLIP, Algorithm 1)."""

    engine: str = "rules"
    """rules: from the parse, offline; vllm: an LLM in vLLM's engines; http: an OpenAI-compatible server."""
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
    """Least cos(g(base), g(augmented)) of an ADD, -1 to 1; none = any. With several calls each ADD is
    compared with its own input, which the calls before it made, and none may lie below."""
    materialize: bool = False
    """Write the curation's shards once more, each sample's json with its negatives."""
    export: tuple[str, ...] = ()
    """More files: negclip (a TSV for NegCLIP's trainer), calls (sets that compare numbers of calls)."""
    seed: int = 0
    """Changes what rules propose first."""

    def __post_init__(self) -> None:
        check_choice("negatives.engine", self.engine, ENGINES)
        for operation in self.operations:
            check_choice("negatives.operations", operation, OPERATIONS)
        fits = 0 < len(set(self.operations)) == len(self.operations)
        wanted = f"some of {', '.join(OPERATIONS)}, each once"
        check(fits, "negatives.operations", self.operations, wanted)
        check(self.seed >= 0, "negatives.seed", self.seed, "at least 0")
        check(1 <= self.calls <= 8, "negatives.calls", self.calls, "between 1 and 8")
        check(self.per_caption >= 1, "negatives.per_caption", self.per_caption, "at least 1")
        check(self.candidates >= 1, "negatives.candidates", self.candidates, "at least 1")
        least = self.add_similarity
        check(least is None or -1 <= least <= 1, "negatives.add_similarity", least, "between -1 and 1")
        check(least is None or self.rank, "negatives.add_similarity", least, "none without rank")
        check(set(self.export) <= {"negclip", "calls"}, "negatives.export", self.export, "negclip or calls")
        if "calls" in self.export:
            check(self.calls >= 2, "negatives.calls", self.calls, "at least 2 with negatives.export=calls")


@dataclass(frozen=True)
class LlmConfig:
    """The language model of the engines vllm and http."""

    model: str = "Qwen/Qwen2.5-7B-Instruct"
    """A hub name or folder for vllm; what the server calls it for http."""
    url: str | None = field(default=None, metadata=FREE)
    """http: the server's base, as in ``http://host:8000/v1``. A key is read from OPENAI_API_KEY."""
    temperature: float = 0.7
    """How freely replies are drawn; 0 = always the likeliest word."""
    prompts: str = "full"
    """full: asks for the whole negative. short, for models of less than a billion parameters or so: the parse
    says where, the model is asked for a word that fills the gap, or for the two that change places."""
    max_tokens: int = 160
    """Of one reply."""
    seed: int = 0
    """Draws the replies."""
    tries: int = field(default=3, metadata=FREE)
    """How often, for each of the calls, what is not answered is asked again; then it counts as failed."""
    engines: Span = field(default=1, metadata=FREE)
    """vLLM engines side by side: N, or MIN..MAX of a pool that grows with the work and with the cluster.
    http: requests to the server at a time times 16, of a range the most."""
    tensor_parallel: int = 1
    """vllm: GPUs that compute each layer of an engine together."""
    pipeline_parallel: int = field(default=1, metadata=FREE)
    """vllm: groups of GPUs that an engine's layers are shared out to. All GPUs of an engine, the product of
    the two, are of one node."""
    context: int | None = None
    """vllm: tokens of a prompt and its reply together at most; none = what the model takes. A longer prompt
    is counted as not answered; a smaller context leaves memory for more prompts at a time."""
    memory_share: float | None = field(default=None, metadata=FREE)
    """vllm: how much of a GPU's memory an engine takes, above 0, at most 1; none = vLLM's own share, and on
    CPUs 1 GiB for keys and values."""
    quantization: str | None = None
    """vllm: how weights are made smaller (fp8, awq, gptq, bitsandbytes ...); none = as the files say."""
    engine: Arguments = field(default_factory=dict)
    """vllm: any more arguments of its engine by their names, as in llm.engine.max_num_seqs=64."""
    timeout_s: Seconds = field(default=120.0, metadata=FREE)
    """http: how long one request may take."""
    patience_s: Seconds = field(default=60.0, metadata=FREE)
    """http: how long a request is repeated, with growing pauses, while the server is busy or away."""

    def __post_init__(self) -> None:
        temperature, timeout_s, patience_s = self.temperature, self.timeout_s, self.patience_s
        check(0 <= temperature < inf, "llm.temperature", temperature, "at least 0, and finite")
        check_choice("llm.prompts", self.prompts, PROMPTS)
        read_span("llm.engines", self.engines)
        lows = {"max_tokens": 16, "seed": 0, "tries": 1, "tensor_parallel": 1, "pipeline_parallel": 1}
        for name, low in lows.items():
            check(getattr(self, name) >= low, f"llm.{name}", getattr(self, name), f"at least {low}")
        context, share = self.context, self.memory_share
        fits = context is None or context > self.max_tokens
        check(fits, "llm.context", context, f"above llm.max_tokens={self.max_tokens}")
        check(share is None or 0 < share <= 1, "llm.memory_share", share, "above 0, at most 1")
        check(0 < timeout_s < inf, "llm.timeout_s", timeout_s, "above 0, and finite")
        check(0 <= patience_s < inf, "llm.patience_s", patience_s, "at least 0, and finite")
        self._check_url()

    @property
    def span(self) -> tuple[int, int]:
        """The fewest and the most engines."""
        return read_span("llm.engines", self.engines)

    def _check_url(self) -> None:
        try:
            parts = urlsplit(self.url or "http://none")
            _ = parts.port  # raises where it is none
        except ValueError as error:
            # Its words may hold the password.
            raise ValueError("llm.url: must be like http://host:8000/v1") from error
        # It stands in run.json and in messages, so it may hold no secret.
        if "@" in parts.netloc or parts.query:
            raise ValueError("llm.url: must hold no password and no query; a key goes into OPENAI_API_KEY")
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname)
        check(is_server, "llm.url", self.url, "like http://host:8000/v1")


@dataclass(frozen=True)
class NegativesConfig:
    """Captions in, validated hard negatives out."""

    input: str = field(default="", metadata=INPUT)
    """A folder that ``raycomp curate`` or ``select`` wrote, or Parquet files with uid and caption (and, if
    they have it, image_sha256: what another caption of the image in the same file says is no negative)."""
    negatives: WritingConfig = field(default_factory=WritingConfig)
    llm: LlmConfig = field(default_factory=LlmConfig)
    scorer: ScorerConfig | None = None
    """Its text encoder ranks; none = the one that the curation scored with, of plain Parquet the default one.
    Who sets one of its options chooses all of it: the others are then those below."""
    parser: ParserConfig = field(default_factory=ParserConfig)
    waves: WavesConfig = field(default_factory=WavesConfig, metadata=FREE)
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)
    max_bad_fraction: float = field(default=0.05, metadata=FREE)
    """Share of the captions of plain Parquet that may be missing, empty or not UTF-8, 0 to 1; above it the
    run stops with exit code 3 before anything is written. A curation has its own limit."""

    def __post_init__(self) -> None:
        check_share("max_bad_fraction", self.max_bad_fraction)
        if self.negatives.engine == "http":
            check(bool(self.llm.url), "llm.url", self.llm.url, "set with negatives.engine=http")

    @property
    def ranker(self) -> ScorerConfig:
        """The scorer that ranks, once what it may inherit is known."""
        return self.scorer or ScorerConfig()
