"""Compiled image towers: near the plain one, the same bits in any batch, an id of their own."""

import shutil
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
import torch

from raycomp.config import UserError
from raycomp.models.architecture import fingerprint_scorer
from raycomp.models.clip import Clip

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


def test_what_changes_bits_changes_the_fingerprint(tiny_scorer):
    variants = [
        tiny_scorer,
        replace(tiny_scorer, pass_size=8),
        replace(tiny_scorer, pass_size=256),
        replace(tiny_scorer, compile=True),
    ]
    found = [fingerprint_scorer(one) for one in variants]
    assert len(set(found)) == len(found) and f"torch-{version('torch')}" in found[-1]
    assert fingerprint_scorer(replace(tiny_scorer, overlap=True, batch_size=7)) == found[0]


@pytest.mark.parametrize("size", [1, 3, 64])
def test_a_pass_of_any_size_is_filled_up(tiny_scorer, size):
    clip = Clip(replace(tiny_scorer, pass_size=size))
    seen = []
    encode = clip.model.encode_image
    clip.model.encode_image = lambda x: seen.append(len(x)) or encode(x)
    found = clip.embed_pixels(PIXELS)
    assert set(seen) == {size} and len(seen) == -(-50 // size)
    assert (found - Clip(tiny_scorer).embed_pixels(PIXELS)).abs().max() < 1e-6


def test_a_size_that_is_none_is_refused(tiny_scorer):
    for size in ["0", "4097"]:
        with pytest.raises(ValueError, match=f"scorer.pass_size={size}: must be between 1 and 4096"):
            replace(tiny_scorer, pass_size=int(size))
