"""Passes prepared ahead in a thread, two calls at a time: the same bits; errors reach the caller."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from raycomp.config import ScorerConfig
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.device import Device

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
@pytest.mark.parametrize("broken", ["prepare", "compute", "launch text"])
def test_an_error_of_either_thread_reaches_the_caller_and_later_calls_work(
    tiny_scorer, monkeypatch, place, broken
):
    clip, pixels, texts = (
        Clip(replace(tiny_scorer, overlap=True), device=place),
        draw_pixels(),
        draw_texts(tiny_scorer),
    )
    expected = clip.embed_pixels(pixels)
    calls = []

    def fail(*args: Any, **how: Any) -> None:
        calls.append(args)
        if len(calls) > 2:
            raise RuntimeError("it broke")
        return work(*args, **how)

    owner, name = {
        "prepare": (clip.device, "gather"),
        "compute": (clip.model, "encode_image"),
        "launch text": (clip.text, "_run"),
    }[broken]
    work = getattr(owner, name)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        if broken == "launch text":
            clip.text.num_positions = 200
            run = partial(clip.text.embed, *texts)
        else:
            run = partial(clip.embed_pixels, pixels)
        with pytest.raises(RuntimeError, match="it broke"):
            run()
        with pytest.raises(RuntimeError, match="it broke"):
            at_once(lambda part: run())
    assert not clip.device.launching.locked()
    assert torch.equal(clip.embed_pixels(pixels), expected)


def test_nothing_is_sent_far_ahead():
    device, sent = Device("cpu", overlaps=True), []
    fed = device.feed(lambda item: sent.append(item) or item, range(100))
    assert next(fed) == 0
    fed.close()
    assert len(sent) <= 4


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
