"""Attention backends and CUDA graphs: near the plain path, in order, an id of their own, else one line."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import pytest
import torch

from raycomp.config import ScorerConfig, UserError
from raycomp.models.architecture import fingerprint_scorer
from raycomp.models.clip import Clip
from raycomp.models.device import Graph, pinned
from tests.models.test_device import at_once, draw_pixels, draw_texts

WIDTHS = (16, 32, 64, 160)


class FakeCuda:
    """Notes in ``told`` what is asked of torch.cuda; a replay computes as the captured function did."""

    def __init__(self, told: list[str]):
        self.told, self.ran = told, lambda: None

    def current_stream(self) -> Any:
        return self._stream("current")

    def Stream(self) -> Any:
        return self._stream("side")

    def _stream(self, name: str) -> Any:
        wait = lambda stream, other: self.told.append(f"{name} waits for {other.name}")  # noqa: E731
        return type("Stream", (), {"name": name, "wait_stream": wait})()

    def stream(self, stream: Any) -> Any:
        self.told.append(f"on {stream.name}")
        return nullcontext()

    def CUDAGraph(self) -> Any:
        replay = lambda graph: (self.told.append("replay"), self.ran())  # noqa: E731
        return type("CUDAGraph", (), {"replay": replay})()

    @contextmanager
    def graph(self, graph: Any, **how: Any) -> Iterator[None]:
        self.told.append("capture")
        yield
        self.told.append("captured")


def capture(monkeypatch) -> tuple[Graph, FakeCuda, list[Any]]:
    """Return a graph that doubles its input, on a fake GPU, and the memory of its input and output."""
    told: list[str] = []
    cuda, memory = FakeCuda(told), []
    for name in ("current_stream", "Stream", "stream", "CUDAGraph", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))

    def double(x):
        told.append("run")
        memory[:] = [x, x * 2]
        return memory[1]

    graph = Graph(double, torch.ones(3))
    cuda.ran = lambda: memory[1].copy_(memory[0] * 2)
    return graph, cuda, memory


def test_a_graph_is_captured_once_after_a_warm_up_on_another_stream(monkeypatch):
    _, cuda, _ = capture(monkeypatch)
    warm_up = ["side waits for current", "on side", "run", "run", "run", "current waits for side"]
    assert cuda.told == [*warm_up, "capture", "run", "captured"]


def test_a_replay_reads_the_input_of_its_call_and_overwrites_no_result(monkeypatch):
    graph, cuda, memory = capture(monkeypatch)
    cuda.told.clear()
    sent = torch.full((3,), 5.0)
    first, second = graph(sent), graph(torch.full((3,), 7.0))
    assert cuda.told == ["replay", "replay"]  # what was captured does not run again
    assert first.tolist() == [10] * 3 and second.tolist() == [14] * 3
    assert sent.tolist() == [5] * 3 and memory[1].data_ptr() not in (first.data_ptr(), second.data_ptr())


def test_a_graph_needs_a_gpu(tiny_scorer):
    with pytest.raises(UserError, match=r"^scorer\.graph=true: needs a GPU.*set it to false$"):
        Clip(replace(tiny_scorer, graph=True), device="cpu")


def test_one_backend_is_on_in_the_block_and_all_are_as_before_after_it():
    def look() -> list[bool]:
        cuda, mha = torch.backends.cuda, torch.backends.mha
        backends = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()
        return [*backends, mha.get_fastpath_enabled()]

    before = look()
    # With a mask the efficient backend stands in for those that take none.
    cases = [
        ("efficient", False, False, True),
        ("efficient", True, False, True),
        ("flash", False, True, False),
    ]
    for attention, has_mask, *on in [*cases, ("flash", True, True, True), ("cudnn", True, False, True)]:
        with pinned(attention, has_mask):
            assert look() == [*on, False, False], (attention, has_mask)
    with pinned(None, False):
        assert look() == before
    with pytest.raises(RuntimeError, match="of another kind"), pinned("math", False):
        raise RuntimeError("of another kind")
    assert look() == before


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


def test_a_backend_that_the_device_lacks_is_one_line_at_the_start(tiny_scorer):
    for attention, precision in [("efficient", "fp32"), ("cudnn", "bf16")]:
        with pytest.raises(
            UserError, match=f"^scorer.attention={attention}: torch has no such kernel"
        ) as error:
            Clip(replace(tiny_scorer, attention=attention, precision=precision), device="cpu")
        assert "\n" not in str(error.value), (attention, precision)


def test_options_that_do_not_fit_are_refused(tiny_scorer):
    for options, said in [
        ({"attention": "flash"}, "attention='flash': must be efficient or math, or scorer.precision"),
        ({"text_widths": (32, 16)}, "text_widths='32,16': must be up to 16 ascending multiples of 8"),
        ({"text_widths": (0, 160)}, "text_widths='0,160': must be"),
        ({"pass_size": 4097}, "pass_size=4097: must be between 1 and 4096"),
    ]:
        with pytest.raises(ValueError, match=f"^scorer.{said}"):
            replace(tiny_scorer, **options)


def test_what_changes_bits_changes_the_fingerprint(tiny_scorer):
    bf16 = replace(tiny_scorer, precision="bf16")
    changes = [{}, {"graph": True}, {"pass_size": 8}, {"pass_size": 256}, {"compile": True}]
    changes += [{"attention": name} for name in ("flash", "efficient", "math", "cudnn")]
    changes += [{"text_widths": widths} for widths in (WIDTHS, (64, 160))]
    found = [fingerprint_scorer(replace(bf16, **change)) for change in changes]
    assert len({*found}) == len(found) and f"torch-{version('torch')}" in found[4]
    assert fingerprint_scorer(replace(bf16, overlap=True, batch_size=7)) == found[0]


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-5), ("bf16", 2e-2)])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_graph_embeds_as_the_plain_path_and_to_the_same_bits_again(tiny_scorer, precision, most, compiled):
    scorer, pixels = replace(tiny_scorer, precision=precision, overlap=True), draw_pixels()
    clip = Clip(replace(scorer, graph=True, compile=compiled), device="cuda")
    found = clip.embed_pixels(pixels)
    assert (found - Clip(scorer, device="cuda").embed_pixels(pixels)).abs().max() < most
    for _ in range(3):
        assert torch.equal(clip.embed_pixels(pixels), found)
        assert torch.equal(torch.cat(at_once(lambda part: clip.embed_pixels(pixels[part]))), found)


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
