"""open_clip: load a model, embed pixels and token ids with shapes that never depend on Ray's blocks.

B pairs, H x W pixels, N tokens of context, D embedding dims.
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import open_clip
import torch
from open_clip.factory import get_model_config
from open_clip.pretrained import get_pretrained_cfg
from torch import Tensor

from raycomp.config import ModelConfig, UserError
from raycomp.core.alignment import normalise
from raycomp.models.architecture import (
    LIBRARIES_FAIL,
    ClipConfig,
    ScorerSpec,
    check_config_files,
    check_memory,
    check_schema,
    one_line,
    read_preprocessing,
    register_file,
)
from raycomp.models.device import Device, Graph, Sent, compile_tower, compiling
from raycomp.models.images import ImageSpec
from raycomp.models.text import TextEncoder, WeightsCheck, find_tower, refuse_bad

# open_clip_train's initial values for its siglip loss; Zhai et al. 2023 (arXiv:2303.15343).
SIGLIP = {"init_logit_scale": math.log(10), "init_logit_bias": -10.0}
# The shape of every forward pass, for any batch: another shape can change a score's last bits.
_IMAGES_PER_PASS = {"cpu": 8, "cuda": 64}


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


def _model_name(config: ClipConfig) -> str:
    """Return the open_clip name, registering a model config given as a json file."""
    if Path(config.model).suffix == ".json" and ":" not in config.model:
        return register_file(config.model, config.said_model)
    if ":" in config.model:
        return config.model
    name = config.model.replace("/", "-")
    if name not in open_clip.list_models():
        raise ValueError(f"{config.said_model}: not an open_clip model, see open_clip.list_models()")
    return name


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
    name = _model_name(config)
    if ":" in name:
        check_schema(name, config.said_model)
    architecture = get_model_config(name)
    tag = None if ":" in name else get_pretrained_cfg(name, config.weights)
    return {**architecture, "quick_gelu": True} if tag and tag.get("quick_gelu") else architecture


def _create(config: ClipConfig, with_bias: bool = False) -> torch.nn.Module:
    name = _model_name(config)
    is_random = config.weights.startswith("random:")
    has_schema = ":" in config.model
    tag = None if is_random else get_pretrained_cfg(name, config.weights)
    if not is_random and not has_schema and not tag and not Path(config.weights).is_file():
        known = open_clip.list_pretrained_tags_by_model(name)
        raise ValueError(
            f"{config.said_weights}: must be a file, random:SEED or a tag of {name}; "
            f"its tags are {', '.join(known) or 'none'}"
        )
    if not is_random and not has_schema and not tag:
        check_config_files(config, get_model_config(name))
    with _seeded_and_quiet(0):
        if has_schema:
            check_schema(config.model, config.said_model)
        if has_schema or name != config.model:
            check_memory(name, config.said_model)
    with _seeded_and_quiet(int(config.weights[7:]) if is_random else 0):
        try:
            model = open_clip.create_model(
                name,
                pretrained=None if is_random or has_schema else config.weights,
                load_weights=not is_random,
                precision="bf16" if config.precision == "bf16" else "fp32",
                # open_clip only warns where a tag was trained with QuickGELU and the model has none.
                force_quick_gelu=bool(tag and tag.get("quick_gelu")),
                pretrained_text=False,
                weights_only=True,
                force_preprocess_cfg=None if has_schema else read_preprocessing(config.model),
                **(SIGLIP if with_bias else {}),
            )
        except LIBRARIES_FAIL as error:
            is_model = is_random or has_schema
            blamed = config.said_model if is_model else f"{config.said_weights} of {name}"
            raise ValueError(
                f"{blamed}: cannot be loaded; name a checkpoint of this model, or connect to the "
                f"model hub ({one_line(error)})"
            ) from error
    for key, value in [] if is_random else model.state_dict().items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            said = f"{key} must be finite numbers, holds NaN or infinity"
            raise ValueError(f"{config.said_weights} of {config.model}: {said}")
    if with_bias:
        # Where weights have no bias, open_clip sets it to 0.
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
        image_BCHW = scale_pixels(byte_BHWC, self.mean_3, self.std_3).to(self.dtype)
        encode = self._compiled or self.model.encode_image
        return normalise(encode(image_BCHW).float())

    @torch.inference_mode()
    def _prepare(self, config: ClipConfig, size: int | tuple[int, int]) -> None:
        """Make the kernels of a pass as the options ask, and try them. Raises UserError if torch cannot."""
        if config.graph and not self.device.is_gpu:
            raise UserError("scorer.graph=true: needs a GPU, and torch finds none here; set it to false")
        if config.compile:
            self._compiled = compile_tower(self.model.encode_image)
        sides = [size, size] if isinstance(size, int) else size
        sent = self.device.gather(np.zeros((1, *sides, 3), np.uint8), np.arange(1), self.images_per_pass)
        with self.device.launch(), compiling() if config.compile else nullcontext():
            self.device.map(self._embed_pass, [sent])
        if config.graph:
            with self.device.launch(), self.device.computing():
                self._graph = Graph(self._embed_bytes, sent.tensor)


def scale_pixels(pixels_BHWC: Tensor, mean_3: Tensor, std_3: Tensor) -> Tensor:
    """Return uint8 pixels as the model's input, fp32 [B, 3, H, W]: open_clip's values, to the bit.

    Pixels are rearranged while they are bytes, a quarter of what numbers are.
    """
    return pixels_BHWC.permute(0, 3, 1, 2).contiguous().float().div_(255).sub_(mean_3).div_(std_3)


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
    name = _model_name(config)
    try:
        with _seeded_and_quiet(0):
            return open_clip.get_tokenizer(name)
    except LIBRARIES_FAIL as error:
        raise ValueError(
            f"{config.said_model}: its tokenizer could not be downloaded or read; connect to the model "
            f"hub once, or name a model with CLIP's own tokenizer ({one_line(error)})"
        ) from error
