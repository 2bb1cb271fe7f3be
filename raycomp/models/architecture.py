"""A model without loading it: its config, checked; its description and fingerprint; its tokens and nonces.

A name that open_clip knows is trusted. A json file, and the ``open_clip_config.json`` of ``local-dir:`` and
``hf-hub:`` models, are untrusted input: numbers have ranges, and the model is first built without memory.
Weights also fit a model with another activation, which then scores worse without an error: so a fine-tuned
OpenAI model loses points when it is loaded by its path (open_clip, issue 771).

A description requires building the whole model. It is kept as a small file below ``RAYCOMP_CACHE`` (by
default ``~/.cache/raycomp``), under a key of everything that it depends on. Without that file, or where it is
damaged or the folder cannot be written, the model is built. This module imports neither torch nor open_clip.

Whether the model hub answers is known within seconds, and a download is announced with its size.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from pickle import UnpicklingError
from threading import Thread
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from zipfile import BadZipFile

import numpy as np
from safetensors import SafetensorError

from raycomp.language import phrases
from raycomp.models.deferred import load_without
from raycomp.models.images import DECODERS_FAIL, ImageSpec
from raycomp.models.stated import (
    HUB_CONFIG,
    NEEDED,
    SIZES,
    ClipConfig,
    check_config,
    find_file,
    list_config_files,
    read_model,
    resolve,
    sides,
)

LIBRARIES_FAIL = (
    *DECODERS_FAIL,
    *(ArithmeticError, AssertionError, AttributeError, ImportError, StopIteration),
    *(BadZipFile, SafetensorError, UnpicklingError),
)
"""What open_clip, torch, timm, transformers and spaCy raise over files that they cannot read."""
# open_clip's defaults for missing fields, and the allowed fields of two plain transformers.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "vision_cfg": {"layers": 12, "width": 768, "mlp_ratio": 4.0, "patch_size": 16, "image_size": 224},
    "text_cfg": {"layers": 12, "width": 512, "mlp_ratio": 4.0, "context_length": 77, "vocab_size": 49408},
}
_PLAIN = set("embed_dim vision_cfg text_cfg quick_gelu custom_text init_logit_scale init_logit_bias".split())
# Increase it when ScorerSpec, or how it is measured, changes.
_FORMAT = 2
# Fields of a tower's config that name files of another library, which the fingerprint does not cover.
_FOREIGN = {"timm_model_name", "hf_model_name", "hf_tokenizer_name", "tokenizer_kwargs"}
_CONTEXT_LENGTH = 77
SPARE_NONCES = 7
"""Nonces drawn beyond the requested count, in case some would change other tokens."""
_PLAIN_TEXT = re.compile("[ -%'-~]*")
"""Printable ASCII without "&": the tokenizer's cleaning only lower-cases it."""


@dataclass(frozen=True)
class ScorerSpec:
    """The facts on a model that the other stages need, without loading it."""

    image: ImageSpec
    context_length: int
    embedding_dim: int
    shares_prefixes: bool
    """Whether its text tower encodes a caption and its counterfactuals together; else each by itself."""


def one_line(error: BaseException) -> str:
    """Return the start of an error's message, without line breaks; its type where the message is empty."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= 200 else f"{said[:200].rpartition(' ')[0] or said[:200]} ..."


def say_bad(said: str, num_bad: int, num: int, noun: str, remedy: str = "name other weights") -> str:
    """Return the error message for a number of bad embeddings; ``said``: an option and its value."""
    bad = f"gives embeddings that are not finite or not of length 1 ({num_bad:,} of {num:,} {noun})"
    return f"{said}: {bad}; {remedy}"


def check_hub(model: str, said: str) -> dict[str, Any]:
    """Return the config of a ``hf-hub:`` model; ValueError where there is none, or it describes no model."""
    from open_clip.factory import get_model_config

    with ask_once(True) as answers:
        try:
            content = get_model_config(model)
        except LIBRARIES_FAIL as error:
            why = one_line(error) if answers else say_unreachable()
            raise ValueError(f"{said}: its config cannot be read ({why})") from error
    check_config(said, content)
    return content


def check_memory(name: str, said: str) -> None:
    """Build the model of a config without memory; raise ValueError where that fails, or it would not fit.

    ``name`` is its name in open_clip. Towers of timm and transformers refer to models of those libraries:
    their sizes are not user input, and not all of them can be built this way.
    """
    import open_clip
    import torch
    from open_clip.factory import get_model_config

    content = get_model_config(name)
    if "timm_model_name" in content["vision_cfg"] or "hf_model_name" in content["text_cfg"]:
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = bound_parameters(content)
    if most is not None and most * 4 < there / 10:
        return  # building it without memory imports torch._dynamo, which takes half as long as torch
    try:
        with torch.device("meta"):
            built = open_clip.create_model(name, load_weights=False, pretrained_text=False, device="meta")
    except LIBRARIES_FAIL as error:
        raise ValueError(f"{said}: no model can be built from it ({one_line(error)})") from error
    needed = sum(value.nbytes for value in (*built.parameters(), *built.buffers()))
    if needed > there:
        memory = f"this machine has {there / 1e9:,.1f} GB of memory"
        raise ValueError(f"{said}: needs {needed / 1e9:,.1f} GB for its weights, {memory}")


def bound_parameters(content: dict[str, Any]) -> int | None:
    """Return an upper bound of the number of values of a model of two plain transformers, buffers included.

    None for other towers: ResNets, a captioning decoder, pooling by attention.
    """
    towers = [{**default, **content[part]} for part, default in _DEFAULTS.items()]
    numbers = [content["embed_dim"], *(tower[name] for tower in towers for name in ("layers", "width"))]
    stated = [tower[name] for tower in towers for name in SIZES if name in tower]
    is_plain = set(content) <= _PLAIN and all(isinstance(number, int) for number in numbers)
    is_plain = is_plain and not any(size is None or size == [] for size in stated)
    if not is_plain or any(key.startswith(("attn", "attention")) for tower in towers for key in tower):
        return None
    total = 0.0
    for tower in towers:
        width, context = tower["width"], tower.get("context_length", 0)
        rows = tower.get("vocab_size", 0) + 2 * context + 4 * content["embed_dim"] + 16
        if "image_size" in tower:
            patch = tower["patch_size"]
            rows += (max(sides(tower["image_size"])) // min(sides(patch)) + 1) ** 2
            rows += 3 * max(sides(patch)) ** 2
        block = (4 + 2 * tower["mlp_ratio"]) * width**2 + (20 + 2 * tower["mlp_ratio"]) * width
        total += rows * width + tower["layers"] * block + context**2
    return int(total)


def fingerprint_folder(folder: Path) -> str:
    """Return the SHA-256, as hex digits, of the relative names and bytes of all files below ``folder``."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def describe_scorer(config: ClipConfig) -> ScorerSpec:
    """Check that the model and its weights are available, and describe it; from the cache if it is known.

    Raises ValueError with a user message: unknown model, unknown tag, weights that are missing, cannot be
    downloaded, or embed a text as zeros or NaN.
    """
    key = _make_key(config)

    def digest(spec: dict[str, Any]) -> str:
        return hashlib.sha256(f"{key} {json.dumps(spec, sort_keys=True)}".encode()).hexdigest()

    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(os.environ.get("RAYCOMP_CACHE") or Path(home, "raycomp"), "scorers", f"{key}.json")
    # A file that is missing, or not as it was written, is made anew.
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        kept = json.loads(path.read_text()) if key else {}
        if kept["sha256"] == digest(kept["spec"]):
            fields = kept["spec"]["image"].items()
            image: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in fields}
            return ScorerSpec(**kept["spec"] | {"image": ImageSpec(**image)})
    from raycomp.models.clip import measure_scorer  # which imports open_clip

    spec = measure_scorer(config)
    if key is None:
        return spec
    content = {"sha256": digest(asdict(spec)), "spec": asdict(spec)}
    with suppress(OSError):  # a folder that cannot be written
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with open(number, "w") as file:
                json.dump(content, file)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
    return spec


def fingerprint_scorer(config: ClipConfig) -> str:
    """Return an id that distinguishes scorers, without loading one.

    SHA-256 of a user's file or folder, name and revision of a hub's model, name of a tag or seed; then what
    else the last bits depend on, where it is not the default: size of a pass, kernels, widths of texts.
    """
    parts, extra = [], ""
    with suppress(ValueError):  # describing the model reports it
        found = resolve(config)
        has_schema = ":" in config.model
        if found.preprocessing and not has_schema:
            extra = f"+{json.dumps(found.preprocessing, sort_keys=True)}"
        if found.file and not has_schema and found.architecture != read_model(config.model, "")[0]:
            extra += f"+{json.dumps(found.architecture, sort_keys=True)}"
    for value, more in ((config.model, extra), (config.weights, "")):
        schema, _, place = value.partition(":")
        path = Path(value)
        if path.is_file():
            parts.append(_hash(path) + more)
        elif schema == "local-dir":
            parts.append(fingerprint_folder(Path(place)))
        elif schema == "hf-hub":
            from huggingface_hub import try_to_load_from_cache

            cached = try_to_load_from_cache(place, HUB_CONFIG)
            revision = Path(cached).parent.name if isinstance(cached, str) else "unknown revision"
            parts.append(f"{value}@{revision}")
        else:
            parts.append(value + more)
    if config.pass_size is not None:
        parts.append(f"pass_size={config.pass_size}")
    if config.compile:
        versions = {"torch": "none", "triton": "none"}
        for name in versions:
            with suppress(PackageNotFoundError):
                versions[name] = version(name)
        parts.append("compile=" + " ".join(f"{name}-{number}" for name, number in versions.items()))
    if config.graph:
        parts.append("graph")
    if config.attention:
        parts.append(f"attention={config.attention}")
    if config.text_widths:
        parts.append("text_widths=" + ",".join(map(str, config.text_widths)))
    return ":".join(parts)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make_key(config: ClipConfig) -> str | None:
    """Return a SHA-256 of everything that the description depends on; None where that is unknown."""
    weights = Path(config.weights)
    is_folder = config.model.startswith("local-dir:")
    # The fingerprint covers weights of a seed, of the model's folder, or of a file; a tag has no suffix.
    is_known = is_folder or config.weights.startswith("random:") or (weights.suffix and weights.is_file())
    try:
        # It covers the config of a file or folder (one without a model may have any content, so it is not
        # hashed), and one that open_clip ships.
        if is_folder:
            has_known_model = Path(config.model.removeprefix("local-dir:"), HUB_CONFIG).is_file()
        else:
            own = resolve(config).architecture
            has_known_model = own is not None and not any(_FOREIGN & {*own[part]} for part in NEEDED[1:])
        if not is_known or not has_known_model:
            return None
        companions = [*list_config_files(config.weights), str(Path(config.model).with_name(HUB_CONFIG))]
        found = {
            "format": _FORMAT,
            "fingerprint": fingerprint_scorer(config),
            "model": Path(config.model).name,
            "precision": config.precision,
            "companions": [_hash(Path(path)) if Path(path).is_file() else None for path in companions],
            "versions": [version(name) for name in ("open_clip_torch", "torch")],
        }
    except (ValueError, OSError, RecursionError):
        return None  # building the model reports it
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


@lru_cache(maxsize=2)
def load_tokens(config: ClipConfig) -> Any:
    """Return the model's tokenizer: texts to token ids, int32 (B, N), zeros after the end of each text.

    It has the other attributes of open_clip's, and raises as ``load_tokenizer`` does.
    CLIP's own tokenizer is loaded from its file alone; another one needs open_clip.
    """
    own = None if "siglip" in config.model.lower() else resolve(config).architecture
    text = {} if own is None else own["text_cfg"]
    if own is None or {"hf_tokenizer_name", "tokenizer_kwargs"} & set(text):
        from raycomp.models.clip import load_tokenizer  # which imports open_clip

        return _Tensors(load_tokenizer(config))
    return _load_class()(context_length=text.get("context_length", _CONTEXT_LENGTH))


def list_cut(config: ClipConfig, texts: Iterable[str]) -> list[str]:
    """Return the texts that the model's context cuts: with one place more their last token is another."""
    tokenize = load_tokens(config)
    size = tokenize([""]).shape[1]
    some = [text for text in texts if len(text.encode()) > size - 4] or [""]  # a token has at least a byte
    rows = zip(some, tokenize(some), tokenize(some, size + 1), strict=True)
    return [text for text, token_N, longer_N in rows if token_N[-1] != longer_N[-2]]


class _Tensors:
    """A tokenizer of open_clip's whose ids are an array."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def __call__(self, texts: list[str], *context_length: int) -> np.ndarray:
        return self.tokenizer(texts, *context_length).numpy().astype(np.int32)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


@cache
def _load_class() -> Any:
    """Return open_clip's ``SimpleTokenizer``, with its ids as an array."""
    simple: Any = load_without("torch", find_file("tokenizer.py")).SimpleTokenizer

    class SimpleTokenizer(simple):
        """CLIP's byte-pair encoding: lower case, cut at the end of the context."""

        def __call__(self, texts: list[str], context_length: int | None = None) -> np.ndarray:
            return place_ids(self, [self.words.encode(text) for text in texts], context_length)

        @cached_property
        def words(self) -> WordEncoder:
            return WordEncoder(self)

    return SimpleTokenizer


def place_ids(tokenizer: Any, found: Sequence[list[int]], size: int | None = None) -> np.ndarray:
    """Return what the tokenizer returns for texts of these ids: start and end around them, cut, zeros."""
    ids_BN = np.zeros((len(found), size or tokenizer.context_length), np.int32)
    for row_N, ids in zip(ids_BN, found, strict=True):
        kept = ids[: len(row_N) - 2]
        row_N[: len(kept) + 2] = [tokenizer.sot_token_id, *kept, tokenizer.eot_token_id]
    return ids_BN


class WordEncoder:
    """``encode`` of a lower-casing ``SimpleTokenizer`` of open_clip, several times as fast on plain text.

    Plain text is cut into words as it stands, so a word's ids can also be replaced without encoding the rest.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        # Another special token could join words.
        self.cuts = len(tokenizer.all_special_ids) == 2
        self._word_ids = lru_cache(1 << 16)(self._find_word_ids)
        self._places = lru_cache(4)(self._find_places)
        self.splice = lru_cache(1 << 10)(self._splice)

    def encode(self, text: str) -> list[int]:
        """Return what the tokenizer's own ``encode`` returns."""
        clean = text.lower() if _PLAIN_TEXT.fullmatch(text) else self.tokenizer.clean_fn(text)
        return [number for word in self.tokenizer.pat.findall(clean) for number in self._word_ids(word)]

    def _find_word_ids(self, word: str) -> list[int]:
        letters = "".join(self.tokenizer.byte_encoder[byte] for byte in word.encode())
        return [self.tokenizer.encoder[piece] for piece in self.tokenizer.bpe(letters).split(" ")]

    def _splice(self, text: str, start: int, end: int, other: str) -> list[int]:
        """Return ``encode(text[:start] + other + text[end:])``; ``other`` is text[start:end] with letters in
        place of letters.

        Where the text is plain and both places are between words, the ids before and behind are the text's.
        """
        ids, starts, ends = self._places(text)
        # An apostrophe before, or a letter behind, may form one word with the letters that it meets.
        is_apart = text[:start][-1:] != "'" and not text[end : end + 1].isalpha()
        if start in starts and end in ends and is_apart:
            return [*ids[: starts[start]], *self.encode(other), *ids[ends[end] :]]
        return self.encode(text[:start] + other + text[end:])

    def _find_places(self, text: str) -> tuple[list[int], dict[int, int], dict[int, int]]:
        """Return a text's ids, and how many of them are before each character at which a word starts or ends;
        no characters where the text is not plain."""
        ids: list[int] = []
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        if not (self.cuts and _PLAIN_TEXT.fullmatch(text)) or "<" in text:  # a special token starts with it
            return ids, starts, ends
        for word in self.tokenizer.pat.finditer(text.lower()):
            starts[word.start()] = len(ids)
            ids += self._word_ids(word[0])
            ends[word.end()] = len(ids)
        return ids, starts, ends


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
def load_nonce_pools() -> phrases.Pools:
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
        words = WordEncoder(tokenizer)
        self.encode, self.splice = words.encode, words.splice
        self._draw = lru_cache(1 << 16)(self._draw_nonces)

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
            nonces = (
                self._find(caption, tokens, start, end, count, key) if start < cut else phrases.PAST_CONTEXT
            )
            if nonces == phrases.PAST_CONTEXT:
                cut = start
            found.append(nonces)
        return found

    def _find(
        self, caption: str, tokens: list[int], start: int, end: int, count: int, key: str
    ) -> list[str] | str:
        target = caption[start:end]
        if not phrases.list_word_spans(target):
            return phrases.NOT_A_WORD
        drawn = self._draw(target, count + SPARE_NONCES, key, phrases.read_article(caption, start))
        if not drawn:
            return phrases.NO_NONCE_OF_LENGTH
        valid: list[str] = []
        for nonce in drawn:
            ids = self.splice(caption, start, end, nonce), self.encode(target), self.encode(nonce)
            fault = phrases.check_nonce(tokens, *ids, self.tokenizer.context_length)
            if fault == phrases.PAST_CONTEXT:
                return fault
            if fault is None:
                valid.append(nonce)
                if len(valid) == count:
                    break
        return valid or phrases.TOKENS_CHANGE

    def _draw_nonces(self, target: str, count: int, key: str, article: str) -> list[str]:
        pools = load_nonce_pools()
        return phrases.draw_nonces(
            target, lambda word: len(self.encode(word)), count, key, self.seed, pools, article
        )


_ANSWERS_WITHIN_S = 5.0
# For this long the hub counts as out of reach without being asked again.
_ASKED_AGAIN_AFTER_S = 60.0
_failed_at: list[float] = []


def is_reachable() -> bool:
    """Whether the hub answers within 5 s; False where HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if _failed_at and time.monotonic() - _failed_at[-1] < _ASKED_AGAIN_AFTER_S:
        return False
    answers: list[bool] = []

    def ask() -> None:
        try:
            urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=_ANSWERS_WITHIN_S).close()
        except HTTPError:  # an answer, too
            pass
        except (OSError, ValueError):
            return
        answers.append(True)

    asking = Thread(target=ask, daemon=True)  # a name server may take longer than the time limit
    asking.start()
    asking.join(_ANSWERS_WITHIN_S)
    _failed_at[:] = [] if answers else [time.monotonic()]
    return bool(answers)


def say_unreachable() -> str:
    """Return in words why the hub was not asked, or did not answer."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE and not _failed_at:
        return "it is not in the cache of this machine, and HF_HUB_OFFLINE is set"
    return f"it is not in the cache of this machine, and the model hub {constants.ENDPOINT} does not answer"


@contextmanager
def ask_once(is_needed: bool = True) -> Iterator[bool]:
    """Give the block whether the hub answers; if not, libraries use their caches alone in it.

    They would repeat each request for a minute. The hub is asked only if it ``is_needed``.
    """
    if not is_needed:
        yield True
        return
    from huggingface_hub import constants

    before, answers = constants.HF_HUB_OFFLINE, is_reachable()
    constants.HF_HUB_OFFLINE = before or not answers
    try:
        yield answers
    finally:
        constants.HF_HUB_OFFLINE = before


def announce_download(tag: Mapping[str, str], what: str) -> None:
    """Print the size of weights that open_clip will download, to standard error; ``tag`` is its entry."""
    from huggingface_hub import constants, try_to_load_from_cache
    from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME

    repository, _, name = tag.get("hf_hub", "").rpartition("/")
    names = (
        [f"{name.rpartition('.')[0]}.safetensors", name] if name else [HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME]
    )
    if not repository or any(isinstance(try_to_load_from_cache(repository, one), str) for one in names):
        return
    for one in names:
        with suppress(
            OSError, ValueError
        ):  # another name, or a failed download, which is an error of its own
            url = f"{constants.ENDPOINT}/{repository}/resolve/main/{one}"
            found = urlopen(Request(url, method="HEAD"), timeout=_ANSWERS_WITHIN_S)
            size = int(found.headers.get("Content-Length", 0)) / 1e6
            print(
                f"downloading {what}, {size:,.0f} MB, from {constants.ENDPOINT}", file=sys.stderr, flush=True
            )
            return
