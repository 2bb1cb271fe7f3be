"""Texts to token ids without torch or open_clip, and nonces for the phrases of captions."""

import importlib.util
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.config.change import parse_json
from raycomp.language.phrases import (
    NO_NONCE_OF_LENGTH,
    NOT_A_WORD,
    PAST_CONTEXT,
    TOKENS_CHANGE,
    Pools,
    check_nonce,
    draw_nonces,
    list_word_spans,
    make_counterfactual,
    read_article,
)
from raycomp.models.deferred import load_without

_CONTEXT_LENGTH = 77
SPARE_NONCES = 7
"""Nonces drawn beyond the requested count, in case some would change other tokens."""
_PLAIN = re.compile("[ -%'-~]*")
"""Printable ASCII without "&": the tokenizer's cleaning only lower-cases it."""


class Tokenizer(Protocol):
    """Texts to token ids, int32 (B, N); other attributes are those of open_clip's tokenizer."""

    def __call__(self, texts: list[str]) -> np.ndarray:
        """Return the ids, zeros after the end of each text."""

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of open_clip's tokenizer."""


@lru_cache(maxsize=2)
def load_tokens(config: ModelConfig | ScorerConfig) -> Tokenizer:
    """Return the model's tokenizer, with the ids and the errors of ``load_tokenizer``.

    CLIP's own tokenizer is loaded from its file alone; another one needs open_clip.
    """
    own = None if "siglip" in config.model.lower() else read_config(config.model)
    text = {} if own is None else own.get("text_cfg", {})
    if own is None or {"hf_tokenizer_name", "tokenizer_kwargs"} & set(text):
        from raycomp.models.clip import load_tokenizer  # which imports open_clip

        return _Tensors(load_tokenizer(config))
    return _load_class()(context_length=text.get("context_length", _CONTEXT_LENGTH))


class _Tensors:
    """A tokenizer of open_clip's whose ids are an array."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def __call__(self, texts: list[str]) -> np.ndarray:
        return self.tokenizer(texts).numpy().astype(np.int32)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


def read_config(name: str) -> dict[str, Any] | None:
    """Return open_clip's config of a model; None for ``hf-hub:``, ``local-dir:`` and unknown names.

    Raises ValueError where a json file cannot be read.
    """
    if ":" in name:
        return None
    is_file = Path(name).suffix == ".json"
    path = Path(name) if is_file else _find("model_configs") / f"{name.replace('/', '-')}.json"
    return parse_json(path.read_text("utf-8")) if path.is_file() else None


def _find(name: str) -> Path:
    """Return the path of a file in open_clip's package, which is not imported."""
    spec = importlib.util.find_spec("open_clip")
    assert spec and spec.origin
    return Path(spec.origin).parent / name


@cache
def _load_class() -> Any:
    """Return open_clip's ``SimpleTokenizer``, with its ids as an array."""
    simple: Any = load_without("torch", _find("tokenizer.py")).SimpleTokenizer

    class SimpleTokenizer(simple):
        """CLIP's byte-pair encoding: lower case, cut at the end of the context."""

        def __call__(self, texts: list[str]) -> np.ndarray:
            ids_BN = np.zeros((len(texts), self.context_length), np.int32)
            for row_N, text in zip(ids_BN, texts, strict=True):
                ids = [self.sot_token_id, *self.encode(text)][: len(row_N) - 1]
                row_N[: len(ids) + 1] = [*ids, self.eot_token_id]
            return ids_BN

    return SimpleTokenizer


class Nonce(NamedTuple):
    """A shipped nonce, in lower case, and the real words behind its BPE tokens.

    ``host`` is the English word, singular and plural together, with the largest share of the frequency of
    all words whose BPE holds the same token; for several tokens, of the token with the largest share.
    ``host_share`` is that share, in [0, 1]: 0, with "-" for the host, where no word holds a token.
    """

    num_tokens: int
    form: str
    word: str
    host_share: float
    host: str


@cache
def load_nonces() -> list[Nonce]:
    """Return the shipped nonces, num_tokens from 1 to 12; made by ``lab/makers/build_nonce_pool.py``."""
    table = files("raycomp.models").joinpath("data/nonces/nonces.tsv").read_text(encoding="ascii")
    rows = [line.split("\t") for line in table.splitlines()]
    return [Nonce(int(length), form, word, float(share), host) for length, form, word, share, host in rows]


@cache
def load_nonce_pools() -> Pools:
    """Return the shipped nonces by length and form, in the order of the file."""
    pools: dict[tuple[int, str], list[str]] = {}
    for nonce in load_nonces():
        pools.setdefault((nonce.num_tokens, nonce.form), []).append(nonce.word)
    return pools


class NonceMaker:
    """Finds the nonces of a caption's phrases and checks each on the whole caption.

    For models that read text with CLIP's own BPE, as open_clip's ``SimpleTokenizer`` does; the shipped
    nonces have their lengths under it alone. Raises ValueError naming the model for any other tokenizer.
    """

    def __init__(self, tokenizer: Any, seed: int = 0, model: str = "the model"):
        # CLIP's tokenizer by its name in open_clip, which need not be loaded for this.
        kind = type(getattr(tokenizer, "tokenizer", tokenizer)).__name__
        if kind != "SimpleTokenizer":
            said = f"nonces need CLIP's BPE tokenizer; this model has {kind}"
            raise ValueError(f"scorer.model={model!r}: {said}")
        if tokenizer.reduction_fn is not None or tokenizer.clean_fn(" A-b,  C ") != "a-b, c":
            raise ValueError(
                f"scorer.model={model!r}: nonces need a tokenizer that lower-cases and truncates as CLIP "
                "does; name a model with CLIP's own tokenizer"
            )
        self.tokenizer = tokenizer
        self.seed = seed
        self._word_ids = lru_cache(1 << 16)(self._find_word_ids)
        self._draw = lru_cache(1 << 16)(self._draw_nonces)

    def encode(self, text: str) -> list[int]:
        """Return what the tokenizer's own ``encode`` returns, several times as fast on plain text."""
        clean = text.lower() if _PLAIN.fullmatch(text) else self.tokenizer.clean_fn(text)
        return [number for word in self.tokenizer.pat.findall(clean) for number in self._word_ids(word)]

    def _find_word_ids(self, word: str) -> list[int]:
        letters = "".join(self.tokenizer.byte_encoder[byte] for byte in word.encode())
        return [self.tokenizer.encoder[piece] for piece in self.tokenizer.bpe(letters).split(" ")]

    def make(
        self, caption: str, targets: Sequence[tuple[int, int]], count: int, key: str = ""
    ) -> list[list[str] | str]:
        """Return for every (start, end) of ``targets`` its nonces, or why it has none (``language.nonce``).

        Offsets count characters of ``caption``. There are ``count`` distinct nonces, fewer only where others
        are invalid. ``key`` is "" for the same nonces in every caption, or a sample's own key for others in
        each.
        """
        tokens = self.encode(caption) if targets else []
        found: list[list[str] | str] = []
        cut = len(caption)
        for start, end in targets:
            nonces = self._find(caption, tokens, start, end, count, key) if start < cut else PAST_CONTEXT
            if nonces == PAST_CONTEXT:
                cut = start
            found.append(nonces)
        return found

    def _find(
        self, caption: str, tokens: list[int], start: int, end: int, count: int, key: str
    ) -> list[str] | str:
        target = caption[start:end]
        if not list_word_spans(target):
            return NOT_A_WORD
        drawn = self._draw(target, count + SPARE_NONCES, key, read_article(caption, start))
        if not drawn:
            return NO_NONCE_OF_LENGTH
        valid: list[str] = []
        for nonce in drawn:
            fault = check_nonce(
                tokens,
                self.encode(make_counterfactual(caption, start, end, nonce)),
                self.encode(target),
                self.encode(nonce),
                self.tokenizer.context_length,
            )
            if fault == PAST_CONTEXT:
                return fault
            if fault is None:
                valid.append(nonce)
                if len(valid) == count:
                    break
        return valid or TOKENS_CHANGE

    def _draw_nonces(self, target: str, count: int, key: str, article: str) -> list[str]:
        pools = load_nonce_pools()
        return draw_nonces(target, lambda word: len(self.encode(word)), count, key, self.seed, pools, article)
