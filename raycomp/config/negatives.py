"""The dials of hard negatives and of probes."""

from dataclasses import dataclass, field
from math import inf
from urllib.parse import urlsplit

from raycomp.config.check import check
from raycomp.config.curate import ClusterConfig, ParserConfig, ScorerConfig, WavesConfig

# As in schema.py, which loads pyarrow; the command line must not.
OPERATIONS = ("SWAP", "REPLACE", "ADD")
ENGINES = ("rules", "vllm", "http")


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
    """Least cos(g(base), g(augmented)) of an ADD, -1 to 1; none = any. With several calls each ADD is
    compared with its own input, which the calls before it made, and none may lie below."""
    materialize: bool = False
    """Write the curation's shards once more, each sample's json with its negatives."""
    export: tuple[str, ...] = ()
    """More files: negclip (a TSV for NegCLIP's trainer), calls (sets that compare numbers of calls)."""
    seed: int = 0
    """Changes what rules propose first."""

    def __post_init__(self) -> None:
        check(self.engine in ENGINES, "negatives.engine", self.engine, f"one of {ENGINES}")
        known = bool(self.operations) and set(self.operations) <= set(OPERATIONS)
        known = known and len(set(self.operations)) == len(self.operations)
        check(known, "negatives.operations", self.operations, f"some of {OPERATIONS}, each once")
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
    url: str | None = None
    """http: the server's base, as in ``http://host:8000/v1``. A key is read from OPENAI_API_KEY."""
    temperature: float = 0.7
    max_tokens: int = 160
    """Of one reply."""
    seed: int = 0
    tries: int = 3
    """How often, for each of the calls, what is not answered is asked again; then it counts as failed."""
    engines: int = 1
    """vLLM engines side by side, or requests to a server at a time times 16."""
    timeout_s: float = 120.0
    """http: how long one request may take."""
    patience_s: float = 60.0
    """http: how long a request is repeated, with growing pauses, while the server is busy or away."""

    def __post_init__(self) -> None:
        temperature, timeout_s, patience_s = self.temperature, self.timeout_s, self.patience_s
        check(0 <= temperature < inf, "llm.temperature", temperature, "at least 0, and finite")
        check(self.max_tokens >= 16, "llm.max_tokens", self.max_tokens, "at least 16")
        check(self.tries >= 1, "llm.tries", self.tries, "at least 1")
        check(self.engines >= 1, "llm.engines", self.engines, "at least 1")
        check(0 < timeout_s < inf, "llm.timeout_s", timeout_s, "above 0, and finite")
        check(0 <= patience_s < inf, "llm.patience_s", patience_s, "at least 0, and finite")
        self._check_url()

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

    input: str = ""
    """A folder that ``raycomp curate`` or ``select`` wrote, or Parquet files with uid and caption (and, if
    they have it, image_sha256: what another caption of the image in the same file says is no negative)."""
    negatives: WritingConfig = field(default_factory=WritingConfig)
    llm: LlmConfig = field(default_factory=LlmConfig)
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    """Its text encoder ranks. Left alone, it is the one that the curation scored with."""
    parser: ParserConfig = field(default_factory=ParserConfig)
    waves: WavesConfig = field(default_factory=WavesConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        if self.negatives.engine == "http":
            check(bool(self.llm.url), "llm.url", self.llm.url, "set with negatives.engine=http")


@dataclass(frozen=True)
class ProbeConfig:
    """What ``raycomp probe`` looks at."""

    input: str = ""
    """overlap: a folder with a folder for each benchmark; composition: what ``raycomp negatives`` wrote, or
    such a folder with benchmarks=sugarcrepe_pp; pas: what ``raycomp curate`` or ``select`` wrote."""
    benchmarks: tuple[str, ...] = ("sugarcrepe", "sugarcrepe_pp", "valse")
    """overlap: folders of ``input``: these, vl_checklist or aro. composition: sugarcrepe_pp alone probes with
    its captions, paraphrases and negatives, without images; anything else with the negatives in ``input``."""
    sample: int | None = None
    """Rows of each split, captions, or samples, at most; none = all."""
    seeds: int = 5
    """theory: worlds that are drawn."""
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    """composition: whose text encoder. Left alone, it is the one that scored ``images``, else the one that
    ranked the negatives. pas: where the one that scored the curation lies, if it was moved."""
    images: str | None = None
    """composition: a curation of the same images and captions by ``scorer``, which its image embeddings are
    taken from; none = the one behind the negatives, if ``scorer`` scored it. So a model can be compared
    before and after training: same negatives, same seed, one probe each."""
    pairs: int | None = None
    """composition: N, the pairs that every A-distance of the table is of, one of each of N captions, no
    caption and no edit twice; lines with fewer have none. none = as many as the smallest line of one call
    that has at least 100, at most 2,000; with no such line the smallest of all counts."""
    parser: ParserConfig = field(default_factory=ParserConfig)
    seed: int = 0
    """Draws samples, pairs, folds, resamples and, of pas, words, the same for every scorer."""

    def __post_init__(self) -> None:
        check(self.sample is None or self.sample >= 1, "sample", self.sample, "at least 1")
        check(self.pairs is None or self.pairs >= 10, "pairs", self.pairs, "at least 10")
        check(1 <= self.seeds <= 100, "seeds", self.seeds, "between 1 and 100")
        check(self.seed >= 0, "seed", self.seed, "at least 0")
