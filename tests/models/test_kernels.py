"""Attention backends and CUDA graphs: near the plain path, in order, an id of their own, else one line."""

from dataclasses import replace
from importlib.metadata import version
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from raycomp.config import ScorerConfig
from raycomp.models.architecture import fingerprint_scorer
from raycomp.models.clip import Clip
from raycomp.models.device import Graph, pinned
from tests.models.test_device import draw_pixels, draw_texts

WIDTHS = (16, 32, 64, 160)


def capture(monkeypatch) -> tuple[Graph, MagicMock, list[Any]]:
    """Return a graph that doubles its input, on a fake GPU, and the memory of its input and output."""
    cuda, memory = MagicMock(), []
    for name in ("current_stream", "Stream", "stream", "CUDAGraph", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))

    def double(x):
        cuda.run()
        memory[:] = [x, x * 2]
        return memory[1]

    graph = Graph(double, torch.ones(3))
    cuda.CUDAGraph().replay.side_effect = lambda: memory[1].copy_(memory[0] * 2)
    return graph, cuda, memory


def test_a_graph_is_captured_after_a_warm_up_and_replays_the_input_of_its_call(monkeypatch):
    graph, cuda, memory = capture(monkeypatch)
    told = [name for name, *_ in cuda.mock_calls if "wait" in name or name in ("run", "stream", "graph")]
    warm_up = ["Stream().wait_stream", "stream", "run", "run", "run", "current_stream().wait_stream"]
    assert told == [*warm_up, "graph", "run"]
    cuda.reset_mock()
    sent = torch.full((3,), 5.0)
    first, second = graph(sent), graph(torch.full((3,), 7.0))
    assert cuda.CUDAGraph().replay.call_count == 2 and not cuda.run.called
    assert first.tolist() == [10] * 3 and second.tolist() == [14] * 3
    assert sent.tolist() == [5] * 3 and memory[1].data_ptr() not in (first.data_ptr(), second.data_ptr())


def test_one_backend_is_on_in_the_block_and_all_are_as_before_after_it():
    def look() -> list[bool]:
        cuda, mha = torch.backends.cuda, torch.backends.mha
        backends = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()
        return [*backends, mha.get_fastpath_enabled()]

    before = look()
    # With a mask the efficient backend stands in for those that take none.
    for attention, has_mask, *on in [
        ("efficient", False, False, True),
        ("efficient", True, False, True),
        ("flash", False, True, False),
        ("flash", True, True, True),
        ("cudnn", True, False, True),
    ]:
        with pinned(attention, has_mask):
            assert look() == [*on, False, False], (attention, has_mask)
    with pinned(None, False):
        assert look() == before
    with pytest.raises(RuntimeError, match="of another kind"), pinned("math", False):
        raise RuntimeError("of another kind")
    assert look() == before


def test_options_that_do_not_fit_are_refused_in_one_line(tiny_scorer):
    for options, said in [
        ({"attention": "flash"}, "attention='flash': must be efficient or math, or scorer.precision"),
        ({"text_widths": (32, 16)}, "text_widths='32,16': must be up to 16 ascending multiples of 8"),
        ({"text_widths": (0, 160)}, "text_widths='0,160': must be"),
        ({"pass_size": 4097}, "pass_size=4097: must be between 1 and 4096"),
        ({"attention": "efficient"}, "attention=efficient: torch has no such kernel"),
        ({"attention": "cudnn", "precision": "bf16"}, "attention=cudnn: torch has no such kernel"),
        ({"graph": True}, "graph=true: needs a GPU.*set it to false$"),
    ]:
        with pytest.raises(ValueError, match=f"^scorer.{said}") as error:
            Clip(replace(tiny_scorer, **options), device="cpu")
        assert "\n" not in str(error.value), options


def embed(scorer: ScorerConfig, clip: Clip) -> torch.Tensor:
    """Return embeddings of images, of captions alone, and of captions with counterfactuals."""
    caption_GN, *others = draw_texts(scorer)
    texts = [*clip.text.embed(caption_GN), *clip.text.embed(caption_GN, *others)]
    return torch.cat([clip.embed_pixels(draw_pixels()), *texts])


def test_a_pinned_backend_embeds_as_torchs_own_choice(tiny_scorer):
    for attention, precision, widths, most in [
        ("math", "fp32", WIDTHS, 1e-6),
        ("math", "bf16", (), 2e-2),
        ("flash", "bf16", WIDTHS, 2e-2),
    ]:
        scorer = replace(tiny_scorer, precision=precision, text_widths=widths)
        own = Clip(replace(scorer, attention=attention), device="cpu")
        found = embed(scorer, own)
        assert (found - embed(scorer, Clip(scorer, device="cpu"))).abs().max() < most, (attention, precision)
        assert torch.equal(embed(scorer, own), found), (attention, precision)


def test_what_changes_bits_changes_the_fingerprint(tiny_scorer):
    bf16 = replace(tiny_scorer, precision="bf16")
    changes = [{}, {"graph": True}, {"pass_size": 8}, {"pass_size": 256}, {"compile": True}]
    changes += [{"attention": name} for name in ("flash", "efficient", "math", "cudnn")]
    changes += [{"text_widths": widths} for widths in (WIDTHS, (64, 160))]
    found = [fingerprint_scorer(replace(bf16, **change)) for change in changes]
    assert len({*found}) == len(found) and f"torch-{version('torch')}" in found[4]
    assert fingerprint_scorer(replace(bf16, overlap=True, batch_size=7)) == found[0]


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", [None, "efficient", "math", "flash", "cudnn"])
def test_all_options_together_embed_as_the_plain_path_on_a_gpu(tiny_scorer, attention, precision, graph):
    if precision == "fp32" and attention in ("flash", "cudnn"):
        return  # refused
    most = 1e-5 if precision == "fp32" else 2e-2
    scorer = replace(tiny_scorer, precision=precision)
    more = {"attention": attention, "text_widths": WIDTHS, "graph": graph}
    own = Clip(replace(scorer, **more), device="cuda")
    found = embed(scorer, own)
    assert (found - embed(scorer, Clip(scorer, device="cuda"))).abs().max() < most
    assert torch.equal(embed(scorer, own), found)
