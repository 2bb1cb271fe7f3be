"""What bench/gpu_kit.py measures: raycomp and open_clip on the same pairs, texts and batches, in turn.

What a scoring model is handed lies in memory: raycomp's uint8 pixels and tokens in Arrow tables, as a
curation hands them to a GPU; open_clip's images normalised in pinned memory, as its loader leaves them. With
scorer.overlap two threads call raycomp, as Ray does. Everything ends with numbers on the CPU.

K texts, N tokens of context, D embedding dims.
"""

import copy
import json
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import open_clip
import pyarrow as pa
import pytest
import torch
from torch import Tensor
from torch.autograd import DeviceType

from bench.gpu_kit import ALIGNMENT as ALIGNING
from bench.gpu_kit import (
    BUSY,
    CEILING,
    CUT,
    OPTIONS,
    PAS,
    PRODUCTS,
    ROOT,
    STOCK,
    TESTS,
    TRAINING,
    TRAININGS,
)
from bench.train_step import Pairs, compare_seconds, make_sides
from raycomp.config import ScorerConfig
from raycomp.core.alignment import normalise, pair_cosine
from raycomp.curation.score.stages import Align, Attribute
from raycomp.data.parquet import COUNTERFACTUALS, TOKENS, add_columns, to_fixed_lists, to_matrix
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    IMAGE_EMBEDDING,
    IMAGE_SHA256,
    MEAN_PAS,
    PIXELS,
    STATUS,
    UID,
)

Emit = Callable[[dict[str, Any]], None]
TINY = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}
NUM_COMPARED = 32  # pairs whose scores are compared
NUM_PRODUCTS = 10  # matrix products that a GPU is handed at a time


class Sizes(NamedTuple):
    """How much is measured."""

    scorer: str = "ViT-B-16"
    trained: str = "ViT-B-32"
    matmul: int = 8192
    pairs: int = 2048
    pairs_per_call: int = 512  # as a curation hands rows to a GPU
    captions: int = 3072
    captions_per_call: int = 1024
    batches: tuple[int, ...] = (64, 256, 512, 1024)
    pairs_per_product: int = 256
    share_of_batch: int = 1
    steps: int = 5
    rounds: int = 5
    budget_s: float = 6


def small(model: str) -> Sizes:
    """Return sizes for a CPU, of a tiny model."""
    return Sizes(model, model, 256, 64, 32, 32, 16, (16, 64), 8, 64, 2, 1, 0.2)


class Bench:
    """What the measurements of a process share; each emits its rows."""

    def __init__(self, texts: Path, device: str, is_small: bool):
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "device=cuda: torch finds no CUDA device; --device cpu tries the kit without one"
            )
        self.device, self.texts = device, texts
        self.folder = tempfile.TemporaryDirectory()
        tiny = Path(self.folder.name, "tiny.json")
        tiny.write_text(json.dumps(TINY))
        open_clip.add_model_config(tiny)
        self.sizes = small(str(tiny)) if is_small else Sizes()
        self.scorer = ScorerConfig(model=self.sizes.scorer, weights="random:0", precision="bf16")

    def describe(self) -> dict[str, Any]:
        """Return the columns that all rows share."""
        is_gpu = self.device == "cuda"
        name = torch.cuda.get_device_name() if is_gpu else f"cpu, {torch.get_num_threads()} threads"
        return {"device": name, "torch": torch.__version__}

    def measure(self, what: str, option: str, emit: Emit) -> None:
        """Measure one of the plan. Raises ValueError where an option is refused here."""
        run = {
            CEILING: self.multiply,
            PRODUCTS: self.multiply_weights,
            STOCK: self.encode,
            ALIGNING: self.align,
            PAS: self.attribute,
            BUSY: self.profile,
            TRAINING: self.train,
            TESTS: self.test,
        }
        started = time.monotonic()

        def add(
            option: str,
            value: Any,
            unit: str = "",
            ratio: float | None = None,
            baseline: str = "",
            **more: Any,
        ) -> None:
            row = {"what": what, "option": option, "value": value, "unit": unit, "ratio": ratio}
            emit({**row, "baseline": baseline, "seconds": time.monotonic() - started, **more})

        run[what](option, add)

    @torch.inference_mode()
    def multiply(self, option: str, add: Callable[..., None]) -> None:
        """Measure products of square matrices; the fastest of the rounds."""
        if option == "tf32" and self.device == "cpu":
            raise ValueError("precision=tf32: needs a CUDA device")
        size, dtype = self.sizes.matmul, {"bf16": torch.bfloat16, "fp16": torch.float16}.get(option)
        a, b = (torch.randn(size, size, device=self.device, dtype=dtype or torch.float32) for _ in range(2))

        def run() -> None:
            for _ in range(NUM_PRODUCTS):
                torch.mm(a, b)
            self.settle()

        torch.backends.cuda.matmul.allow_tf32 = option == "tf32"
        seconds = in_turn({"": run}, self.sizes.budget_s)[""]
        torch.backends.cuda.matmul.allow_tf32 = False
        add(option, 2e-12 * size**3 * NUM_PRODUCTS / float(seconds.min()), "TFLOP/s")

    def multiply_weights(self, option: str, add: Callable[..., None]) -> None:
        """Measure pairs per second if the products with both towers' weights were all there is to do."""
        clip, token_KN = self.default.clip, self.token_KN
        num = self.sizes.pairs_per_product
        places, positions = clip.model.visual.positional_embedding.shape[0], clip.text.num_positions
        image_s = self.time_products(clip.model.visual, num * places) / num
        text_s = self.time_products(clip.text.tower, positions) / positions
        pair_s = image_s + text_s * (1 + float(token_KN.argmax(1).float().mean()))
        add(option, 1 / pair_s, "pairs/s")

    @torch.inference_mode()
    def time_products(self, tower: Any, rows: int) -> float:
        """Return the seconds of the products of so many rows with the weights of all blocks of a tower."""
        first, num = tower.transformer.resblocks[0], len(tower.transformer.resblocks)
        weights = [first.attn.in_proj_weight, first.attn.out_proj.weight]
        weights += [first.mlp.c_fc.weight, first.mlp.c_proj.weight]
        inputs = [torch.randn(rows, w.shape[1], device=w.device, dtype=w.dtype) for w in weights]

        def run() -> None:
            for x, w in list(zip(inputs, weights, strict=True)) * num:
                torch.mm(x, w.T)
            self.settle()

        return float(np.median(in_turn({"": run}, self.sizes.budget_s / 2)[""]))

    def encode(self, option: str, add: Callable[..., None]) -> None:
        """Measure open_clip's own encoding of the pairs at its best batch."""
        best = self.best_batch
        pairs_per_s = self.sizes.pairs / float(np.median(self.stock_seconds[best]))
        add(f"{option} of {', '.join(map(str, self.stock_seconds))}: {best}", pairs_per_s, "pairs/s")

    def align(self, option: str, add: Callable[..., None]) -> None:
        """Measure alignment with an option against the default, and the default against open_clip."""
        is_default = option == "default"
        own = self.default if is_default else Align(replace(self.scorer, **OPTIONS[option]), self.spec)
        first = self.pairs.slice(0, NUM_COMPARED)
        found, again = (own(first)[ALIGNMENT].to_numpy() for _ in range(2))
        baseline = f"{STOCK}, batches of {self.best_batch}" if is_default else "default"
        base = self.encode_stock if is_default else partial(self.in_calls, self.default)
        ways = {"own": partial(self.in_calls, own), "base": base}
        seconds = in_turn(ways, self.sizes.budget_s)
        add(option, *rate(seconds, self.sizes.pairs, "pairs/s"), baseline)
        apart = float(np.abs(found - self.encode_stock(NUM_COMPARED)).max())
        error = "" if (found == again).all() else "a second call gave other bits"
        add(f"{option}: largest difference", apart, "cosine", None, STOCK, error=error)

    def attribute(self, option: str, add: Callable[..., None]) -> None:
        """Measure PAS with an option against the default, and the default against open_clip's encoding."""
        if option == CUT:
            ways = {"own": partial(self.encode_texts, True), "base": partial(self.in_calls, self.attributing)}
            seconds = in_turn(ways, self.sizes.budget_s)
            add(option, *rate(seconds, self.sizes.captions, "captions/s"), "default")
            return
        is_default = option == "default"
        more = {k: v for k, v in OPTIONS[option].items() if k in ("overlap", "text_widths", "attention")}
        own = self.attributing if is_default else Attribute(replace(self.scorer, **more))
        base = self.encode_texts if is_default else partial(self.in_calls, self.attributing)
        ways = {"own": partial(self.in_calls, own), "base": base}
        seconds = in_turn(ways, self.sizes.budget_s)
        baseline = f"{STOCK}, each text by itself" if is_default else "default"
        add(option, *rate(seconds, self.sizes.captions, "captions/s"), baseline)
        first = self.texts_table.slice(0, NUM_COMPARED)
        found, plain = (one(first)[MEAN_PAS].to_numpy() for one in (own, self.attributing))
        add(f"{option}: largest difference", float(np.nanmax(np.abs(found - plain))), "PAS", None, "default")

    def profile(self, option: str, add: Callable[..., None]) -> None:
        """Measure the share of the time in which kernels run, and the rate if they ran without gaps."""
        if self.device == "cpu":
            raise ValueError("device=cpu: kernels are those of a GPU")
        rows, unit = self.sizes.pairs, "pairs/s"
        if option == STOCK:
            run: Callable[[], object] = self.encode_stock
        elif option.startswith(PAS):
            rows, unit = self.sizes.captions, "captions/s"
            run = partial(self.in_calls, self.attributing)
        else:
            run = partial(self.in_calls, Align(replace(self.scorer, **OPTIONS[option]), self.spec))
        wall_s = float(np.median(in_turn({"": run}, self.sizes.budget_s / 2)[""]))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            self.settle()
        on_gpu = [one for one in profile.key_averages() if one.device_type == DeviceType.CUDA]
        kernels = [one for one in on_gpu if not one.key.startswith(("Memcpy", "Memset"))]
        busy_s = sum(one.self_device_time_total for one in kernels) / 1e6
        add(option, busy_s / wall_s, "of the time")
        add(f"{option}: kernels alone", rows / busy_s, unit)
        add(f"{option}: kernels", sum(one.count for one in kernels), "launches")

    def train(self, option: str, add: Callable[..., None]) -> None:
        """Measure a step, bf16, and its peak of GPU memory against those of open_clip_train."""
        sizes, (loss, pairs) = self.sizes, TRAININGS[option]
        args = Namespace(loss=loss, pairs=pairs // sizes.share_of_batch, device=self.device, autocast=True)
        args.rounds, args.steps = sizes.rounds, sizes.steps
        torch.manual_seed(0)
        model = open_clip.create_model(Path(sizes.trained).stem, output_dict=True)
        batches = [self.draw_batch(args, model.visual.image_size[0], step) for step in range(args.steps)]
        found = compare_seconds(partial(make_sides, copy.deepcopy(model), args), batches, args)
        own, theirs = (found["seconds"][name][0] for name in ("raycomp", "open_clip_train"))
        ratio = found["seconds"]["ratio_median_least_most"][0]
        add(option, 1000 * own, "ms", ratio, f"open_clip_train: {1000 * theirs:.1f} ms")
        if found["memory_mb"]:
            own, theirs = (found["memory_mb"][name] for name in ("raycomp", "open_clip_train"))
            add(f"{option}: peak memory", own, "MB", own / theirs, f"open_clip_train: {theirs} MB")

    def draw_batch(self, args: Namespace, size: int, step: int) -> Pairs:
        """Return a batch with random pixels; negatives are captions with their tokens in another order."""
        num = args.pairs * (2 if args.loss == "negclip" else 1)
        rng = np.random.default_rng(step)
        text_BN = self.token_KN[torch.from_numpy(rng.choice(len(self.token_KN), num))]
        negative_BN = text_BN.clone()
        for row_N in negative_BN:
            last = int(row_N.argmax())
            row_N[1:last] = row_N[1:last][torch.from_numpy(rng.permutation(last - 1))]
        noise = torch.Generator(self.device).manual_seed(step)
        image = torch.randn(num, 3, size, size, generator=noise, device=self.device)
        negative = negative_BN.to(self.device) if args.loss == "negclip" else None
        return Pairs(image, text_BN.to(self.device), negative)

    def test(self, option: str, add: Callable[..., None]) -> None:
        """Run the tests of a file that have the mark gpu; without a GPU each is collected and skipped."""
        results = Results(add, self.device == "cuda")
        options = ["-m", "gpu", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
        pytest.main([*options, str(ROOT / option)], plugins=[results])
        if not results.num:
            raise ValueError(f"{option}: no test ran")

    def settle(self) -> None:
        """Wait for the GPU."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def in_calls(self, run: Align | Attribute) -> pa.Table:
        """Return what a stage makes of its table, some rows at a time, in two threads where calls overlap."""
        is_align = isinstance(run, Align)
        table = self.pairs if is_align else self.texts_table
        rows = self.sizes.pairs_per_call if is_align else self.sizes.captions_per_call
        parts = [table.slice(start, rows) for start in range(0, len(table), rows)]
        with ThreadPoolExecutor(2 if run.device.overlaps else 1) as pool:
            return pa.concat_tables(pool.map(run, parts))

    @torch.inference_mode()
    def encode_stock(self, num: int | None = None, batch: int | None = None) -> np.ndarray:
        """Return the alignments of the first pairs, encoded by open_clip."""
        clip, batch = self.default.clip, batch or self.best_batch
        with as_shipped():
            parts = self.image[:num].split(batch)
            sent = (part.to(clip.device.place, clip.dtype, non_blocking=True) for part in parts)
            image_KD = normalise(torch.cat([clip.model.encode_image(part) for part in sent]).float())
            text_KD = embed_plain(clip, self.token_KN[: len(image_KD)], batch)
            return pair_cosine(image_KD, text_KD).cpu().numpy()

    @torch.inference_mode()
    def encode_texts(self, cut: bool = False) -> Tensor:
        """Return open_clip's embeddings of all captions and counterfactuals, each encoded by itself."""
        others = self.texts_table[COUNTERFACTUALS].combine_chunks().flatten()
        other_TN = torch.from_numpy(to_matrix(others).astype(np.int64))
        all_KN = torch.cat([self.token_KN[: self.sizes.captions], other_TN])
        with as_shipped():
            return embed_plain(self.default.clip, all_KN, self.best_batch, cut).cpu()

    @cached_property
    def spec(self) -> Any:
        return describe_scorer(self.scorer)

    @cached_property
    def default(self) -> Align:
        return Align(self.scorer, self.spec)

    @cached_property
    def attributing(self) -> Attribute:
        return Attribute(self.scorer)

    @cached_property
    def table(self) -> pa.Table:
        return pa.ipc.open_file(self.texts).read_all().combine_chunks()

    @cached_property
    def token_KN(self) -> Tensor:
        """Tokens of all captions, int64."""
        return torch.from_numpy(to_matrix(self.table[TOKENS]).astype(np.int64))

    @cached_property
    def pixels(self) -> np.ndarray:
        rng = np.random.default_rng(0)
        return rng.integers(0, 256, (self.sizes.pairs, self.spec.image.num_values), dtype=np.uint8)

    @cached_property
    def image(self) -> Tensor:
        """The pixels as open_clip's loader leaves them."""
        clip, size = self.default.clip, self.spec.image
        image = torch.from_numpy(self.pixels.reshape(-1, size.height, size.width, 3)).permute(0, 3, 1, 2)
        image = image.float().div(255).sub(clip.mean_3.cpu()).div(clip.std_3.cpu()).contiguous()
        return image.pin_memory() if self.device == "cuda" else image

    @cached_property
    def pairs(self) -> pa.Table:
        """What reaches ``Align``."""
        hashes = pa.array([str(i) for i in range(self.sizes.pairs)])
        columns = {PIXELS: to_fixed_lists(self.pixels), IMAGE_SHA256: hashes}
        table = add_columns(self.table.slice(0, self.sizes.pairs), columns)
        return table.select([UID, CAPTION, STATUS, IMAGE_SHA256, TOKENS, PIXELS])

    @cached_property
    def texts_table(self) -> pa.Table:
        """What reaches ``Attribute``."""
        table = self.table.slice(0, self.sizes.captions)
        embedding_ND = np.random.default_rng(0).normal(size=(len(table), self.spec.embedding_dim))
        embedding_ND /= np.linalg.norm(embedding_ND, axis=1, keepdims=True)
        alignment = pa.array(np.zeros(len(table), np.float32))
        embedding = to_fixed_lists(embedding_ND.astype(np.float16))
        return add_columns(table, {ALIGNMENT: alignment, IMAGE_EMBEDDING: embedding})

    @cached_property
    def stock_seconds(self) -> dict[int, np.ndarray]:
        """Seconds of open_clip's encoding of all pairs by its batch."""
        ways = {n: partial(self.encode_stock, None, n) for n in self.sizes.batches}
        return in_turn(ways, self.sizes.budget_s)

    @cached_property
    def best_batch(self) -> int:
        return min(self.stock_seconds, key=lambda name: np.median(self.stock_seconds[name]))


class Results:
    """A pytest plugin that adds a row for each test, and for each file that cannot be imported."""

    def __init__(self, add: Callable[..., None], has_gpu: bool):
        self.add, self.has_gpu, self.num = add, has_gpu, 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skip what needs a GPU where there is none."""
        for item in items if not self.has_gpu else ():
            item.add_marker(pytest.mark.skip("needs a CUDA device"))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Report a file that cannot be imported."""
        if report.failed:
            self.report(report.nodeid, "failed", str(report.longrepr).splitlines()[-1], 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Report a test by its call, or what failed or skipped around it."""
        if report.when == "call" or not report.passed:
            said = report.longrepr
            crash = getattr(said, "reprcrash", None)
            error = said[-1] if isinstance(said, tuple) else crash.message if crash else str(said or "")
            self.report(report.nodeid, report.outcome, error, report.duration)

    def report(self, test: str, outcome: str, error: str, seconds: float) -> None:
        """Add a row."""
        self.num += 1
        self.add(test, outcome, error=" ".join(error.split())[:300], seconds=seconds)


def in_turn(ways: dict[Any, Callable[[], object]], budget_s: float) -> dict[Any, np.ndarray]:
    """Return the seconds of each way over the same rounds, 2 to 7, after one that warms up."""
    for run in ways.values():
        run()
    seconds: dict[Any, list[float]] = {name: [] for name in ways}
    started = time.perf_counter()
    for i in range(7):
        if i >= 2 and time.perf_counter() > started + budget_s:
            break
        for name in list(ways)[:: 1 if i % 2 else -1]:
            before = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - before)
    return {name: np.array(values) for name, values in seconds.items()}


def rate(seconds: dict[str, np.ndarray], rows: int, unit: str) -> tuple[float, str, float]:
    """Return rows per second, their unit, and how many times as fast as the baseline."""
    return rows / float(np.median(seconds["own"])), unit, float(np.median(seconds["base"] / seconds["own"]))


@contextmanager
def as_shipped() -> Iterator[None]:
    """Let torch choose among all backends of attention in the block, as it does without raycomp."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(False)


def embed_plain(clip: Clip, token_KN: Tensor, batch: int, cut: bool = False) -> Tensor:
    """Return all texts' embeddings by open_clip, fp32 on the device; sorted by length and cut on request."""
    place = clip.device.place
    order_K = token_KN.argmax(1).argsort() if cut else torch.arange(len(token_KN))
    encode = partial(cut_context, clip) if cut else clip.model.encode_text
    parts = (encode(part.to(place, non_blocking=True)) for part in token_KN[order_K].split(batch))
    return normalise(torch.cat(list(parts)).float())[order_K.argsort().to(place)]


def cut_context(clip: Clip, token_BN: Tensor) -> Tensor:
    """Return open_clip's embeddings of a batch whose context is cut to its longest text."""
    model, last_B = clip.model, token_BN.argmax(1)
    longest = int(last_B.max()) + 1
    x = model.token_embedding(token_BN[:, :longest]).to(clip.dtype)
    x = x + model.positional_embedding[:longest].to(clip.dtype)
    x = model.transformer(x, attn_mask=model.attn_mask[:longest, :longest].to(clip.dtype))
    return model.ln_final(x)[torch.arange(len(token_BN), device=x.device), last_B] @ model.text_projection
