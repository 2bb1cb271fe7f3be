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

DEVICES = pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
PRECISIONS = pytest.mark.parametrize("precision", ["fp32", "bf16"])
MARKS = (("cpu", "slow"), ("cuda", "gpu"))
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


def test_a_gpu_without_the_memory_is_one_line(tiny_scorer, monkeypatch):
    def refuse(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 9 GiB")

    clip = Clip(tiny_scorer, "cpu")
    monkeypatch.setattr(clip.model, "encode_image", refuse)
    with pytest.raises(UserError, match=r"more memory than the GPU has; lower scorer\.pass_size.*9 GiB"):
        clip.embed_pixels(draw_pixels(2))


def test_a_pass_of_any_size_is_filled_up(tiny_scorer):
    pixels, plain = draw_pixels(50), Clip(tiny_scorer)
    for size in (1, 3, 64):
        clip, seen = Clip(replace(tiny_scorer, pass_size=size)), []
        encode = clip.model.encode_image
        clip.model.encode_image = lambda x, seen=seen, encode=encode: seen.append(len(x)) or encode(x)
        found = clip.embed_pixels(pixels)
        assert set(seen) == {size} and len(seen) == -(-50 // size)
        assert (found - plain.embed_pixels(pixels)).abs().max() < 1e-6
    assert plain.device.take_busy_seconds() is None, "a CPU has none to report"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("place", [pytest.param(p, marks=getattr(pytest.mark, m)) for p, m in MARKS])
def test_a_compiled_tower_embeds_as_the_plain_one(tiny_scorer, place, precision):
    if place == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("there is no C++ compiler")
    scorer = replace(tiny_scorer, precision=precision, overlap=place == "cuda")
    plain, compiled = (Clip(replace(scorer, compile=on), device=place) for on in (False, True))
    pixels = draw_pixels(50)
    together = compiled.embed_pixels(pixels)
    difference = (together - plain.embed_pixels(pixels)).abs().max()
    assert difference < (2e-2 if precision == "bf16" else 1e-6 if place == "cpu" else 1e-5)
    for size in (1, 7, 33):
        parts = [compiled.embed_pixels(pixels[start : start + size]) for start in range(0, 50, size)]
        assert torch.equal(torch.cat(parts), together)
