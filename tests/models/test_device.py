"""Passes that overlap change no bit; compiled towers; busy seconds of a device."""

import itertools
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from raycomp.config import ScorerConfig, UserError
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.device import Device


def test_a_cpu_has_no_busy_seconds_to_report():
    device = Device("cpu")
    with device.computing():
        assert device.move(np.arange(6).reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert device.take_busy_seconds() is None


@pytest.mark.gpu
def test_a_gpu_counts_what_it_computed_once():
    device = Device("cuda")
    moved = device.move(np.ones((4096, 4096), np.float32))
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started.record()
    with device.computing():
        for _ in range(20):
            moved = moved @ moved / 4096
    ended.record()
    torch.cuda.synchronize()
    at_most_s = started.elapsed_time(ended) / 1000  # by the device's own clock
    assert 0.5 * at_most_s < device.take_busy_seconds() <= at_most_s
    assert device.take_busy_seconds() == 0
    assert moved.mean().item() == pytest.approx(1)


DEVICES = pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
PRECISIONS = pytest.mark.parametrize("precision", ["fp32", "bf16"])
NUM = 150
TIMEOUT_S = 60


def draw_pixels(num: int = NUM) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (num, 32, 32, 3), dtype=np.uint8)


def draw_texts(scorer: ScorerConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return captions, their counterfactuals and how many each has."""
    tokenize, words = load_tokenizer(scorer), ["red", "blue", "green", "small"]
    captions = [f"a {words[i % 4]} dog and {'many ' * (i % 9)}cats" for i in range(NUM)]
    others = [c.replace("dog", other) for c in captions for other in ("cat", "tree")]
    return tokenize(captions).numpy(), tokenize(others).numpy(), np.full(NUM, 2)


def at_once(call: Callable[[slice], Any], num: int = NUM) -> list[Any]:
    """Return what the calls of several parts return, made by two threads as Ray makes them."""
    parts = [slice(start, start + 30) for start in range(0, num, 30)]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(call, parts, timeout=TIMEOUT_S))


@DEVICES
@PRECISIONS
def test_passes_sent_ahead_and_calls_side_by_side_change_no_bit(tiny_scorer, place, precision):
    scorer = replace(tiny_scorer, precision=precision)
    plain, overlapping = (Clip(replace(scorer, overlap=on), device=place) for on in (False, True))
    pixels, (caption_GN, other_TN, count_G) = draw_pixels(), draw_texts(scorer)
    image_BD = plain.embed_pixels(pixels)
    assert torch.equal(overlapping.embed_pixels(pixels), image_BD)
    assert torch.equal(torch.cat(at_once(lambda part: overlapping.embed_pixels(pixels[part]))), image_BD)
    texts = plain.text.embed(caption_GN, other_TN, count_G)

    def embed(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        others = slice(2 * part.start, 2 * part.stop)
        return overlapping.text.embed(caption_GN[part], other_TN[others], count_G[part])

    for found in (overlapping.text.embed(caption_GN, other_TN, count_G), zip(*at_once(embed), strict=True)):
        for expected, parts in zip(texts, found, strict=True):
            assert torch.equal(parts if isinstance(parts, torch.Tensor) else torch.cat(parts), expected)


@DEVICES
def test_an_error_of_either_thread_reaches_the_caller_and_later_calls_work(tiny_scorer, monkeypatch, place):
    clip = Clip(replace(tiny_scorer, overlap=True), device=place)
    pixels, texts = draw_pixels(), draw_texts(tiny_scorer)
    expected, clip.text.num_positions = clip.embed_pixels(pixels), 200
    images, words = partial(clip.embed_pixels, pixels), partial(clip.text.embed, *texts)
    for owner, name, run in [
        (clip.device, "gather", images),
        (clip.model, "encode_image", images),
        (clip.text, "_run", words),
    ]:
        calls, work = itertools.count(), getattr(owner, name)

        def fail(*args: Any, calls=calls, work=work, **how: Any) -> Any:
            if next(calls) > 1:
                raise RuntimeError("it broke")
            return work(*args, **how)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            for call in (run, lambda run=run: at_once(lambda part: run())):
                with pytest.raises(RuntimeError, match="it broke"):
                    call()
        assert not clip.device.launching.locked(), name
        assert torch.equal(clip.embed_pixels(pixels), expected), name


@pytest.mark.gpu
def test_busy_seconds_of_overlapping_calls_are_counted_once(tiny_scorer):
    clip, pixels = Clip(replace(tiny_scorer, overlap=True)), draw_pixels()
    clip.embed_pixels(pixels)
    torch.cuda.synchronize()
    clip.device.take_busy_seconds()
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started.record()
    found = at_once(lambda part: (clip.embed_pixels(pixels[part]), clip.device.take_busy_seconds())[1])
    ended.record()
    torch.cuda.synchronize()
    total = sum(found) + clip.device.take_busy_seconds()
    assert 0 < total <= started.elapsed_time(ended) / 1000
    assert clip.device.take_busy_seconds() == 0


PIXELS = np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3), dtype=np.uint8)
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="there is no C++ compiler"
)


def check(scorer, place: str, most: float) -> None:
    plain, compiled = (Clip(replace(scorer, compile=on), device=place) for on in (False, True))
    together = compiled.embed_pixels(PIXELS)
    assert (together - plain.embed_pixels(PIXELS)).abs().max() < most
    for size in (1, 7, 33):
        parts = [compiled.embed_pixels(PIXELS[start : start + size]) for start in range(0, 50, size)]
        assert torch.equal(torch.cat(parts), together)


@needs_compiler
@pytest.mark.slow
def test_a_compiled_tower_embeds_as_the_plain_one(tiny_scorer):
    for precision, most in [("fp32", 1e-6), ("bf16", 2e-2)]:
        check(replace(tiny_scorer, precision=precision), "cpu", most)


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_a_compiled_tower_embeds_as_the_plain_one_on_a_gpu(tiny_scorer, precision, most):
    check(replace(tiny_scorer, precision=precision, overlap=True), "cuda", most)


def test_a_tower_that_cannot_be_compiled_is_one_line(tiny_scorer, monkeypatch):
    from torch._dynamo.exc import BackendCompilerFailed

    def fail(function, **options):
        def run(*args):
            raise BackendCompilerFailed(fail, ValueError("no compiler"), None)

        return run

    monkeypatch.setattr(torch, "compile", fail)
    with pytest.raises(UserError, match=r"^scorer\.compile=true: torch cannot compile") as error:
        Clip(replace(tiny_scorer, compile=True))
    assert "\n" not in str(error.value)


def test_a_pass_of_any_size_is_filled_up(tiny_scorer):
    expected = Clip(tiny_scorer).embed_pixels(PIXELS)
    for size in (1, 3, 64):
        clip, seen = Clip(replace(tiny_scorer, pass_size=size)), []
        encode = clip.model.encode_image
        clip.model.encode_image = lambda x, seen=seen, encode=encode: seen.append(len(x)) or encode(x)
        found = clip.embed_pixels(PIXELS)
        assert set(seen) == {size} and len(seen) == -(-50 // size)
        assert (found - expected).abs().max() < 1e-6
