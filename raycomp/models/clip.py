"""open_clip: load a model, embed pixels and token ids with shapes that never depend on Ray's blocks.

The text tower: a causal tower reads its result at the end-of-text token, and a counterfactual shares every
position before its target with its caption. So a caption is encoded once, and of a counterfactual only the
suffix from the first changed token, which attends to the caption's prefix and to itself. Positions after
end-of-text have no effect and are cut. The start token, the same in every text, occurs once in a pass. The
first block's queries, keys and values depend on token and place alone and are computed once for each such
pair. The last block finishes the end-of-text positions only. Nothing is approximated.

Everything but attention runs on passes of a fixed number of positions, attention on rows as wide as their own
part needs. A text's result then depends on its caption's group alone, not on the rest of its batch.

B pairs or texts, H x W pixels, G captions, T counterfactuals, S segments of them, M positions of a pass, R
rows of W positions, P texts of a part, U distinct pairs of token and place, N tokens of context, D embedding
dims, E = 3 D.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from open_clip import factory
from open_clip.factory import get_model_config
from open_clip.pretrained import get_pretrained_cfg
from torch import Tensor, nn

from raycomp.config import ModelConfig, UserError
from raycomp.config.options import say_if_slow
from raycomp.core.alignment import has_unit_length, normalise
from raycomp.core.batches import PackedPass, cut_segments, may_attend, pack
from raycomp.models import architecture, stated
from raycomp.models.architecture import (
    LIBRARIES_FAIL,
    ScorerSpec,
    announce_download,
    ask_once,
    one_line,
    say_bad,
    say_unreachable,
)
from raycomp.models.device import Device, Graph, Sent, compiling
from raycomp.models.images import ImageSpec
from raycomp.models.stated import SIGLIP, ClipConfig
from raycomp.models.weights import load_file

# The shape of every forward pass, for any batch: another shape can change a score's last bits.
_IMAGES_PER_PASS = {"cpu": 8, "cuda": 64}
# A single row may be an unusual sample, in any table.
_ENOUGH = 2
_POSITIONS_PER_PASS = {"cpu": 512, "cuda": 8192}
_TEXTS_PER_CHUNK = 128
# A text tower, or one of its blocks, as open_clip builds it: nn.Module's type lacks its parts.
Tower = Any
# Half of a batch's texts are a third as long as the longest: in four parts, captions have half the positions.
_PARTS = 4


def measure_scorer(config: ClipConfig) -> ScorerSpec:
    """Build the model, check that its weights embed a text, and describe it.

    Raises ValueError with a user message: unknown model, unknown tag, weights that are missing, cannot be
    downloaded, or embed a text as zeros or NaN.
    """
    model: Any = _create(config)
    cfg = open_clip.get_model_preprocess_cfg(model)
    size = cfg["size"]
    height, width = (size, size) if isinstance(size, int) else size
    text = getattr(model, "text", model)
    tokens = load_tokenizer(config)(["a photo"])
    try:
        with torch.inference_mode():
            text_1D = model.encode_text(tokens)
    except LIBRARIES_FAIL as error:
        said = "its text tower does not take what its tokenizer makes"
        raise ValueError(f"{config.said_model}: {said} ({one_line(error)})") from error
    refuse_bad(normalise(text_1D), config.said_weights, "texts")
    how = {name: cfg[name] for name in ("interpolation", "resize_mode", "fill_color")}
    image = ImageSpec(height, width, tuple(cfg["mean"]), tuple(cfg["std"]), **how)
    return ScorerSpec(image, text.context_length, text_1D.shape[-1], find_tower(model) is not None)


@contextmanager
def _seeded_and_quiet(seed: int) -> Iterator[None]:
    """Run with torch's global generator at ``seed`` and without open_clip's messages; restore both."""
    logging.disable(logging.ERROR)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        logging.disable(logging.NOTSET)


def _register(found: stated.Model) -> str:
    """Return open_clip's name of a model; an architecture of no such name gets one of its own there."""
    name = found.name
    if found.architecture is not None and found.architecture != get_model_config(name):
        content = json.dumps(found.architecture, sort_keys=True)
        name = f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
        factory._MODEL_CONFIGS[name] = deepcopy(found.architecture)
    return name


def _resolve(config: ClipConfig) -> stated.Model:
    found = stated.resolve(config)
    if found.architecture is None and not config.model.startswith("hf-hub:"):
        said = "not an open_clip model, see open_clip.list_models()"
        raise ValueError(f"{config.said_model}: {said}")
    return found


def load_start(config: ModelConfig, with_bias: bool = False) -> Any:
    """Return the model that training starts from, on the CPU.

    With ``with_bias`` a model without a bias gets one, -10, and the scale 10, open_clip_train's initial
    values: weights that were trained without bias do not determine the scale of logits. Raises ValueError
    with a user message.
    """
    is_added = with_bias and read_architecture(config).get("init_logit_bias") is None
    model: Any = _create(config, is_added)
    if hasattr(model, "text_decoder"):
        raise ValueError(f"{config.said_model}: captioning models cannot be trained here; name a CLIP model")
    return model


def describe_start(config: ModelConfig, with_bias: bool = False) -> dict[str, Any]:
    """Return open_clip's config of the model that ``load_start`` returns."""
    found = read_architecture(config)
    return {**found, **SIGLIP} if with_bias and found.get("init_logit_bias") is None else found


def read_architecture(config: ClipConfig) -> dict[str, Any]:
    """Return open_clip's config of a model, with QuickGELU where a tag's weights need it.

    open_clip itself derives that from the tag. A model that was trained from the weights and is loaded by its
    path needs it in the config.
    """
    found = _resolve(config)
    if found.architecture is None:
        return architecture.check_hub(config.model, config.said_model)
    tag = None if found.file else get_pretrained_cfg(found.name, config.weights)
    return {**found.architecture, "quick_gelu": True} if tag and tag.get("quick_gelu") else found.architecture


def _needs_hub(found: stated.Model) -> bool:
    """Whether a part of the model may be on the hub alone, whatever its weights."""
    own = found.architecture
    return own is None or any(key.startswith("hf_") for key in own["text_cfg"])


def _create(config: ClipConfig, with_bias: bool = False) -> torch.nn.Module:
    found = _resolve(config)
    is_random, is_hub = config.weights.startswith("random:"), found.architecture is None
    tag = None if is_random or is_hub or found.file else get_pretrained_cfg(found.name, config.weights)
    if not is_random and not is_hub and not tag and not found.file:
        known = open_clip.list_pretrained_tags_by_model(found.name)
        raise ValueError(
            f"{config.said_weights}: must be a file, random:SEED or a tag of {found.name}; "
            f"its tags are {', '.join(known) or 'none'}"
        )
    with ask_once(tag is not None or _needs_hub(found)) as answers:
        if tag and answers:
            announce_download(tag, f"the weights {config.weights!r} of {found.name}")
        name = config.model if is_hub else _register(found)
        with _seeded_and_quiet(0):
            if is_hub:
                architecture.check_hub(name, config.said_model)
            if name != config.model.replace("/", "-"):
                architecture.check_memory(name, config.said_model)
        slow = say_if_slow(f"loading the model {config.model}")
        with slow, _seeded_and_quiet(int(config.weights[7:]) if is_random else 0):
            try:
                model: Any = open_clip.create_model(
                    name,
                    pretrained=config.weights if tag else None,
                    load_weights=not is_random,
                    precision="bf16" if config.precision == "bf16" else "fp32",
                    # open_clip only warns where a tag was trained with QuickGELU and the model has none.
                    force_quick_gelu=bool(tag and tag.get("quick_gelu")),
                    pretrained_text=False,
                    weights_only=True,
                    force_preprocess_cfg=found.preprocessing,
                    require_pretrained=is_hub and not is_random,
                    **(SIGLIP if with_bias else {}),
                )
                if found.file:
                    load_file(model, found.file, found.run)
            except LIBRARIES_FAIL as error:
                blamed = config.said_model if is_random or ":" in config.model else config.said_weights
                if isinstance(error, UserError):
                    raise UserError(f"{blamed}: {error}") from error
                of_model = f" of {found.name}" if blamed == config.said_weights else ""
                why = one_line(error) if answers else say_unreachable()
                option = config.said_weights.partition("=")[0]
                raise ValueError(
                    f"{blamed}{of_model}: cannot be loaded ({why}); name a checkpoint of this model, or try "
                    f"{option}=random:0, whose scores are noise"
                ) from error
    for key, value in [] if is_random else model.state_dict().items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            said = f"{key} must be finite numbers, holds NaN or infinity"
            raise ValueError(f"{config.said_weights} of {config.model}: {said}")
    if with_bias:
        # Where weights have no bias, it is set to 0.
        torch.nn.init.constant_(model.logit_scale, SIGLIP["init_logit_scale"])
        torch.nn.init.constant_(model.logit_bias, SIGLIP["init_logit_bias"])
    return model.eval()


class Clip:
    """A loaded model. Every forward pass has the same shape, so a row's result depends on that row alone."""

    def __init__(self, config: ClipConfig, device: str | None = None, num_threads: int | None = None):
        with_tf32 = config.precision == "tf32"
        self.device = Device(device, num_threads, with_tf32, config.overlap, config.attention)
        self.model: Any = _create(config).to(self.device.place)
        self.images_per_pass = config.pass_size or _IMAGES_PER_PASS[self.device.place.type]
        self.dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
        self.check = WeightsCheck(config.said_weights, "images")
        self.text = TextEncoder(self.model, self.device, config.said_weights, config.text_widths)
        cfg = open_clip.get_model_preprocess_cfg(self.model)
        self.mean_3 = torch.tensor(cfg["mean"], device=self.device.place).view(3, 1, 1)
        self.std_3 = torch.tensor(cfg["std"], device=self.device.place).view(3, 1, 1)
        self._compiled: Callable[[Tensor], Tensor] | None = None
        self._graph: Graph | None = None
        if config.compile or config.graph or config.attention:
            self._prepare(config, cfg["size"])

    @torch.inference_mode()
    def embed_pixels(self, pixels_NHWC: np.ndarray, row_B: np.ndarray | None = None) -> Tensor:
        """Embed uint8 pixels; returns fp32 [B, D] of length 1 except for bad rows, on the CPU.

        ``row_B``: the rows to embed, in this order; None = all. A row that overflows, or whose embedding
        vanishes, is zeros or NaN: see ``has_unit_length``. Raises UserError, naming the weights, where all of
        the first rows are bad.
        """
        row_B = np.arange(len(pixels_NHWC)) if row_B is None else row_B
        size = self.images_per_pass
        passes = [row_B[start : start + size] for start in range(0, len(row_B), size)]
        gather = partial(self.device.gather, pixels_NHWC, size=size)
        with self.device.launch(), closing(self.device.feed(gather, passes)) as fed:
            image_BD = torch.cat(self.device.map(self._embed_pass, fed))[: len(row_B)]
            fetch = self.device.fetch(image_BD)
        image_BD = fetch()
        self.check.watch(image_BD)
        return image_BD

    def _embed_pass(self, sent: Sent) -> Tensor:
        moved_BHWC = self.device.receive(sent)
        with self.device.computing():
            return (self._graph or self._embed_bytes)(moved_BHWC)

    def _embed_bytes(self, byte_BHWC: Tensor) -> Tensor:
        # open_clip's values, to the bit; rearranged while they are bytes, a quarter of what numbers are.
        image_BCHW = byte_BHWC.permute(0, 3, 1, 2).contiguous().float()
        image_BCHW = image_BCHW.div_(255).sub_(self.mean_3).div_(self.std_3).to(self.dtype)
        encode = self._compiled or self.model.encode_image
        return normalise(encode(image_BCHW).float())

    @torch.inference_mode()
    def _prepare(self, config: ClipConfig, size: int | tuple[int, int]) -> None:
        """Make the kernels of a pass as the options ask, and try them. Raises UserError if torch cannot."""
        if config.graph and not self.device.is_gpu:
            raise UserError("scorer.graph=true: needs a GPU, and torch finds none here; set it to false")
        if config.compile:
            # Compiled at its first call, for the shape of that call alone. Nothing is chosen by time, and
            # another shape would be an error: bits must repeat.
            how: dict[str, Any] = {"fullgraph": True, "dynamic": False, "options": {"deterministic": True}}
            self._compiled = torch.compile(self.model.encode_image, **how)
        sides = [size, size] if isinstance(size, int) else size
        sent = self.device.gather(np.zeros((1, *sides, 3), np.uint8), np.arange(1), self.images_per_pass)
        with self.device.launch(), compiling() if config.compile else nullcontext():
            self.device.map(self._embed_pass, [sent])
        if config.graph:
            with self.device.launch(), self.device.computing():
                self._graph = Graph(self._embed_bytes, sent.tensor)


def describe_preprocessing(model: Any) -> dict[str, Any]:
    """Return the image preprocessing of a loaded model, in the form of open_clip's hub config."""
    cfg = open_clip.get_model_preprocess_cfg(model)
    return {name: cfg[name] for name in ("mean", "std", "interpolation", "resize_mode", "fill_color")}


def pack_tokenizer(config: ClipConfig) -> dict[str, bytes]:
    """Return the files of a model's own tokenizer by name; empty for CLIP's, which open_clip includes."""
    tokenizer = load_tokenizer(config)
    if not hasattr(tokenizer, "save_pretrained"):
        return {}
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


def load_tokenizer(config: ClipConfig) -> Any:
    """Return the model's tokenizer: a callable list[str] -> int64 [B, N].

    Raises ValueError where a hub's tokenizer is available neither from the hub nor from the disk.
    """
    found = _resolve(config)
    name = f"local-dir:{found.tokenizer}" if found.tokenizer else config.model
    with ask_once(_needs_hub(found) and not found.tokenizer) as answers, _seeded_and_quiet(0):
        try:
            is_named = not found.tokenizer and found.architecture is not None
            return open_clip.get_tokenizer(_register(found) if is_named else name)
        except LIBRARIES_FAIL as error:
            why = one_line(error) if answers else say_unreachable()
            raise ValueError(
                f"{config.said_model}: its tokenizer could not be downloaded or read; connect to the model "
                f"hub once, or name a model with CLIP's own tokenizer ({why})"
            ) from error


class WeightsCheck:
    """Checks the rows that one tower embeds, until the first good one."""

    def __init__(self, said_weights: str, noun: str):
        """``said_weights``: the option and its value; ``noun``: what is embedded, in the plural."""
        self.said_weights, self.noun = said_weights, noun
        self.num_bad, self.is_settled = 0, False
        self._lock = Lock()  # two calls may run at a time

    def watch(self, *parts: Tensor) -> None:
        """Raise UserError, one line that names the weights, where the first rows are all bad.

        ``parts``: (B, D) each. The caller finds a bad row among good ones, by ``has_unit_length``.
        """
        with self._lock:
            if self.is_settled:
                return
            self.num_bad += sum(map(len, parts))
            self.is_settled = any(bool(has_unit_length(x_BD).any()) for x_BD in parts)
            if not self.is_settled and self.num_bad >= _ENOUGH:
                raise UserError(say_bad(self.said_weights, self.num_bad, self.num_bad, self.noun))


def refuse_bad(x_BD: Tensor, said: str, noun: str, remedy: str = "name other weights") -> None:
    """Raise UserError where any row is bad: for a result that cannot leave out rows."""
    num_bad = int((~has_unit_length(x_BD)).sum())
    if num_bad:
        raise UserError(say_bad(said, num_bad, len(x_BD), noun, remedy))


def find_tower(model: nn.Module) -> Tower | None:
    """Return the text tower if prefixes are exact in it, and its blocks are plain ones."""
    tower = find_causal_tower(model)
    if tower is None:
        return None
    kinds = (getattr(block, "attn", None) for block in tower.transformer.resblocks)
    return tower if all(isinstance(kind, nn.MultiheadAttention) for kind in kinds) else None


def find_causal_tower(model: nn.Module) -> Tower | None:
    """Return the text tower if positions after a text's end have no effect: causal, pooled at the highest id.

    That is CLIP's end-of-text token. With CLIP's tokens every text starts with the same token.
    """
    tower = getattr(model, "text", model)
    pool = getattr(tower, "text_pool_type", getattr(tower, "pool_type", None))
    is_causal = (
        hasattr(getattr(tower, "transformer", None), "resblocks")
        and pool == "argmax"
        and getattr(tower, "attn_mask", None) is not None
        and getattr(tower, "cls_emb", None) is None
    )
    return tower if is_causal else None


@torch.inference_mode()
def list_text_states(model: Any, token_BN: Tensor) -> Tensor | None:
    """Return the hidden states at the end-of-text token after each block of the text tower, fp32 (K, B, D).

    None for a tower without a list of blocks that is pooled at this token (``find_causal_tower``).
    """
    tower = find_causal_tower(model)
    if tower is None:
        return None
    row_B, end_B = torch.arange(len(token_BN), device=token_BN.device), token_BN.argmax(1)
    found: list[Tensor] = []

    def take(block: nn.Module, inputs: Any, state_BND: Tensor) -> None:
        found.append(state_BND[row_B, end_B].float())

    hooks = [block.register_forward_hook(take) for block in tower.transformer.resblocks]
    try:
        model.encode_text(token_BN)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found)


class TextEncoder:
    """Embed captions with their counterfactuals. A tower that cannot share prefixes exactly encodes every
    text by itself.
    """

    def __init__(
        self, model: Tower, device: Device, said_weights: str = "model.weights", widths: tuple[int, ...] = ()
    ):
        self.model = model
        self.device = device
        self.check = WeightsCheck(said_weights, "texts")
        self.tower: Tower = find_tower(model)
        whole: Tower = getattr(model, "text", model)
        self.num_positions: int = max(
            _POSITIONS_PER_PASS[device.place.type], 2 * whole.context_length, *widths[-1:]
        )
        self.widths = widths
        said = f"scorer.text_widths={','.join(map(str, widths))}"
        if widths and self.tower is None:
            raise UserError(f"{said}: this model's text tower encodes each text by itself; leave it out")
        if widths and widths[-1] < 2 * whole.context_length:
            least = 2 * whole.context_length
            raise UserError(f"{said}: the last must be at least twice the model's context, {least}")

    @torch.inference_mode()
    def embed(
        self, caption_GN: np.ndarray, other_TN: np.ndarray | None = None, count_G: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return fp32 [G, D] of captions and [T, D] of counterfactuals, of length 1 except for bad rows, on
        the CPU.

        Token ids are padded by the tokenizer. ``count_G`` of the counterfactuals (None = there are none), in
        order, belong to each caption and have its number of tokens (Go et al., arXiv 2605.22651, Eq. 4), else
        ValueError. A bad row is zeros or NaN; where all of the first ones are, UserError names the weights.
        """
        is_causal = bool(self.widths) and count_G is None
        if other_TN is None or count_G is None:
            other_TN, count_G = caption_GN[:0], np.zeros(len(caption_GN), np.int64)
        token_KN = np.concatenate([caption_GN, other_TN])
        if self.tower is None or not len(token_KN):

            def encode(token: Tensor) -> Tensor:
                with self.device.computing():
                    return normalise(self.model.encode_text(token).float())

            size = _TEXTS_PER_CHUNK if len(token_KN) else 1  # an empty list still has a width
            with self.device.launch(has_mask=True):
                moved = self.device.move(token_KN.astype(np.int64))
                fetch = self.device.fetch(self._in_chunks(encode, size, moved))
            text_KD = fetch()
            self.check.watch(text_KD)
            return text_KD[: len(caption_GN)], text_KD[len(caption_GN) :]
        length_K = token_KN.argmax(1) + 1
        owner_T = np.repeat(np.arange(len(caption_GN)), count_G)
        length_T = length_K[len(caption_GN) :]
        for t in np.flatnonzero(length_T != length_K[owner_T])[:1]:
            lengths = f"{length_K[owner_T[t]]} tokens, one of its counterfactuals {length_T[t]}"
            raise ValueError(f"caption {owner_T[t]} has {lengths}: must be equal")
        if (token_KN[:, 0] != token_KN[0, 0]).any() or length_K.min() < 2:
            raise ValueError("tokens: every text must have the same start token and at least one more token")
        changed_TN = token_KN[len(caption_GN) :] != token_KN[owner_T]
        last_T = length_K[owner_T] - 1
        first_T = np.where(changed_TN.any(1), np.minimum(changed_TN.argmax(1), last_T), last_T)
        most = (self.widths or (self.num_positions,))[-1]
        segments = cut_segments(length_K[: len(caption_GN)], count_G, first_T, most)
        passes = list(pack(segments, self.num_positions, self.widths))
        with self.device.launch(has_mask=not is_causal):
            fetch = self._embed_segments(token_KN, passes, is_causal)
        text_SD = fetch()[np.argsort(np.concatenate([packed.segment_S for packed in passes]))]
        is_caption_S = segments.text_S < len(caption_GN)
        _, first_S = np.unique(segments.text_S[is_caption_S], return_index=True)  # parts repeat a caption
        caption_GD, other_TD = text_SD[is_caption_S][first_S], text_SD[~is_caption_S]
        self.check.watch(caption_GD, other_TD)
        return caption_GD, other_TD

    def _embed_segments(
        self, token_KN: np.ndarray, passes: list[PackedPass], is_causal: bool
    ) -> Callable[[], Tensor]:
        """Return a call that returns fp32 [S, D] in the order of the passes."""
        token_K = np.concatenate([token_KN[packed.text_M, packed.place_M] for packed in passes])
        *pair_U, inverse = _find_pairs(token_K, np.concatenate([packed.place_M for packed in passes]))
        token_U, place_U = map(self.device.move, pair_U)
        tower, blocks = self.tower, self.tower.transformer.resblocks
        with self.device.computing():
            # Embeddings, and the first block's queries, keys and values, of pairs of token and place.
            dtype = tower.transformer.get_cast_dtype()
            x_UD = tower.token_embedding(token_U).to(dtype) + tower.positional_embedding.to(dtype)[place_U]
            qkv_UE = self._in_chunks(lambda x: project(blocks[0], x), self.num_positions, x_UD)
        run = partial(self._run, x_UD, qkv_UE, is_causal)

        def send(packed: PackedPass, index_M: np.ndarray) -> Sent:
            """Send the numbers of a pass together; ``index_M``: the pair of token and place of each."""
            ids = (packed.source_M, packed.last_S, packed.prefix_M, packed.begin_M, *packed.rows)
            return self.device.send(np.concatenate([index_M, *(part.reshape(-1) for part in ids)]))

        with closing(self.device.feed(send, passes, np.split(inverse, len(passes)))) as sent:
            pooled = self.device.map(run, passes, sent)

        def finish(x_SD: Tensor, mixed_SD: Tensor) -> Tensor:
            return normalise(_project_out(tower, mix_block(blocks[-1], x_SD, mixed_SD)).float())

        with self.device.computing():
            x_SD, mixed_SD = (torch.cat(parts) for parts in zip(*pooled, strict=True))
            embedded = self._in_chunks(finish, _TEXTS_PER_CHUNK, x_SD, mixed_SD)
        return self.device.fetch(embedded)

    def _run(
        self, x_UD: Tensor, qkv_UE: Tensor, is_causal: bool, packed: PackedPass, sent: Sent
    ) -> tuple[Tensor, Tensor]:
        """Return for each segment's last position the input of the last block and its attention output.

        ``is_causal``: all parts are captions alone, whose rows need no mask.
        """
        moved, num = self.device.receive(sent), len(packed.source_M)
        blocks = self.tower.transformer.resblocks
        with self.device.computing():
            sizes = [num, num, len(packed.last_S), num, num, *(index_RW.size for index_RW in packed.rows)]
            at_M, source_M, last_S, prefix_M, begin_M, *indexes = moved.split(sizes)
            rows = [
                (index, None if is_causal else _mask(index, prefix_M, begin_M, x_UD.dtype))
                for index in map(Tensor.view, indexes, (index_RW.shape for index_RW in packed.rows))
            ]

            def attend(block: Tower, qkv_ME: Tensor) -> Tensor:
                """Return the attention output at the positions of all rows, before the output projection."""
                mixed = [_attend_rows(block.attn, qkv_ME[at_RW], at_RW.shape, mask) for at_RW, mask in rows]
                return torch.cat(mixed)

            x_MD, qkv_ME = x_UD[at_M], qkv_UE[at_M]
            for block, after in pairwise(blocks):
                x_MD = mix_block(block, x_MD, attend(block, qkv_ME)[source_M])
                qkv_ME = project(after, x_MD)
            return x_MD[last_S], attend(blocks[-1], qkv_ME)[source_M[last_S]]

    def _in_chunks(self, run: Callable[..., Tensor], size: int, *tensors: Tensor) -> Tensor:
        """Return ``run(*tensors)`` on rows padded to chunks of one size: a row depends on itself alone."""

        def run_chunk(*parts: Tensor) -> Tensor:
            return run(*(F.pad(part, (0, 0, 0, size - len(part))) for part in parts))

        chunks = self.device.map(run_chunk, *(tensor.split(size) for tensor in tensors))
        return torch.cat(chunks)[: len(tensors[0])]


def _find_pairs(token_K: np.ndarray, place_K: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return token and place of each distinct pair, ordered by token, and each pair's number among them.

    In linear time: ``np.unique`` sorts.
    """
    token_V, rank_K = _count_off(token_K)
    num_places = int(place_K.max()) + 1
    pair_U, pair_K = _count_off(rank_K * num_places + place_K)
    return token_V[pair_U // num_places], pair_U % num_places, pair_K


def _count_off(id_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ids, sorted, and each id's number among them."""
    is_there = np.bincount(id_K) > 0
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[id_K]


def project(block: Tower, x_MD: Tensor) -> Tensor:
    """Return the block's queries, keys and values [M, 3 D]."""
    return F.linear(block.ln_1(x_MD), block.attn.in_proj_weight, block.attn.in_proj_bias)


def _mask(index_RW: Tensor, prefix_M: Tensor, begin_M: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to the attention of rows, [R, 1, W, W]: 0 or -infinity.

    All layers share it; of a boolean mask torch makes the same in each of them.
    """
    columns = torch.arange(index_RW.shape[1], device=index_RW.device)
    mask_RWW = may_attend(prefix_M[index_RW], begin_M[index_RW], columns)
    added_RWW = torch.zeros(mask_RWW.shape, dtype=dtype, device=mask_RWW.device)
    return added_RWW.masked_fill_(~mask_RWW, -torch.inf)[:, None]


def _attend_rows(
    attention: nn.MultiheadAttention, qkv: Tensor, shape: Sequence[int], mask: Tensor | None = None
) -> Tensor:
    """Return the attention output of rows of equal width, (R, W), rows joined; causal without a mask."""
    q, k, v = qkv.view(*shape, 3, attention.num_heads, attention.head_dim).permute(2, 0, 3, 1, 4)
    mixed_RHWd = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    return mixed_RHWd.transpose(1, 2).reshape(shape[0] * shape[1], -1)


def mix_block(block: Tower, x_MD: Tensor, mixed_MD: Tensor) -> Tensor:
    """Return the block's output from its input and its attention output."""
    x_MD = x_MD + block.ls_1(block.attn.out_proj(mixed_MD))
    return x_MD + block.ls_2(block.mlp(block.ln_2(x_MD)))


def encode_text(model: Any, token_BN: Tensor) -> Tensor:
    """Return the result of ``model.encode_text``, (B, D), with gradients.

    A causal tower that reads its result at the end-of-text token does not depend on later positions: these
    are cut, while open_clip's own method only takes the whole context. Texts through plain blocks are sorted
    by length into parts, each as wide as its longest text. Through other blocks, such as adapters make, all
    are as wide as the longest. Any other tower gets the whole context.

    ``token_BN`` may stay on the CPU while the model is on a GPU, which avoids waiting for the GPU.
    """
    tower = find_causal_tower(model)
    if tower is None:
        return model.encode_text(token_BN)
    if find_tower(model) is not None:
        return _project_out(tower, _run_parts(tower, token_BN))
    end_B = token_BN.argmax(1)
    num = int(end_B.max()) + 1
    x_BWD = _embed(tower, token_BN[:, :num], torch.arange(num))
    x_BWD = tower.transformer(x_BWD, attn_mask=tower.attn_mask[:num, :num])
    return _project_out(tower, x_BWD[torch.arange(len(x_BWD)), end_B])


def _project_out(tower: Tower, x_BD: Tensor) -> Tensor:
    """Return the final norm and projection of the last block's output."""
    x_BD = tower.ln_final(x_BD)
    if isinstance(tower.text_projection, nn.Linear):
        return tower.text_projection(x_BD)
    return x_BD if tower.text_projection is None else x_BD @ tower.text_projection


def _run_parts(tower: Any, token_BN: Tensor) -> Tensor:
    """Return the output of the last block at the end-of-text positions, (B, D).

    Only attention runs part by part; the last block finishes those positions alone.
    """
    end_B = token_BN.argmax(1)
    order_B = end_B.argsort(stable=True)
    orders = order_B.split(max(1, -(-len(token_BN) // _PARTS)))
    shapes = [(len(rows_P), int(end_B[rows_P[-1]]) + 1) for rows_P in orders]
    tokens = [token_BN[rows_P, :width].flatten() for rows_P, (_, width) in zip(orders, shapes, strict=True)]
    place_M = torch.cat([torch.arange(width).repeat(num) for num, width in shapes])
    width_B = torch.cat([torch.full((num,), width) for num, width in shapes])
    last_B = end_B[order_B] + (width_B.cumsum(0) - width_B).to(end_B.device)
    x_MD = _embed(tower, torch.cat(tokens), place_M)
    last_B = last_B.to(x_MD.device, non_blocking=True)

    def attend(block: Tower, x_MD: Tensor) -> Tensor:
        parts = project(block, x_MD).split([num * width for num, width in shapes])
        pairs = zip(parts, shapes, strict=True)
        return torch.cat([_attend_rows(block.attn, part_ME, shape) for part_ME, shape in pairs])

    *blocks, last = tower.transformer.resblocks
    for block in blocks:
        x_MD = mix_block(block, x_MD, attend(block, x_MD))
    mixed_MD = attend(last, x_MD)
    x_BD = mix_block(last, x_MD[last_B], mixed_MD[last_B])
    return x_BD[order_B.argsort().to(x_BD.device, non_blocking=True)]


def _embed(tower: Any, token: Tensor, place: Tensor) -> Tensor:
    device, dtype = tower.positional_embedding.device, tower.transformer.get_cast_dtype()
    token, place = (ids.to(device, non_blocking=True) for ids in (token, place))
    # Indexing would sum gradients in another order each time.
    place_MD = F.embedding(place, tower.positional_embedding)
    return tower.token_embedding(token).to(dtype) + place_MD.to(dtype)
