"""Model configs and weights by anyone: described, or one line that names the option."""

import io
import json
import os
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from raycomp.config import ScorerConfig
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip
from tests.fuzz.child import run
from tests.fuzz.inputs import EDITS, JSON_VALUES, damage, refused, replace_within

pytestmark = pytest.mark.slow

VISION = {"image_size": 8, "layers": 1, "width": 16, "head_width": 8, "patch_size": 4}
TEXT = {"context_length": 8, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1}
TINY = {"embed_dim": 8, "vision_cfg": VISION, "text_cfg": TEXT}
NUMBERS = st.sampled_from([0, -1, 1, 3, 1.5, 10**9, 10**12, 2**63, 10**30, "16", None, [8, 8], [8], True])
CHANGES = st.lists(
    st.tuples(
        st.sampled_from([[], [0], *([part, at] for part in (1, 2) for at in range(5))]),
        NUMBERS | JSON_VALUES | st.just(...),
    ),
    min_size=1,
    max_size=2,
)
NAMES = st.sampled_from(["custom_text", "quick_gelu", "init_logit_scale", "nonsense", "mean"])
MORE = st.dictionaries(NAMES, NUMBERS, max_size=1)


@cache
def make_model() -> tuple[Path, dict[str, torch.Tensor]]:
    """Return a folder with a tiny model's config, and its weights."""
    folder = Path(os.path.realpath(tempfile.mkdtemp()))
    (folder / "tiny.json").write_text(json.dumps(TINY))
    model = Clip(ScorerConfig(model=str(folder / "tiny.json"), weights="random:0"), "cpu", 1).model
    return folder, {name: value.contiguous() for name, value in model.state_dict().items()}


def check(model: Path, weights: str) -> None:
    """Check what is said of a model and weights."""
    found = []
    line = refused(lambda: found.append(describe_scorer(ScorerConfig(model=str(model), weights=weights))))
    if line is not None:
        assert line.startswith(("scorer.model=", "scorer.weights=")), line
        return
    image = found[0].image
    assert 0 < image.height * image.width < 10**9 and found[0].context_length > 0
    assert found[0].embedding_dim > 0


@given(CHANGES, MORE, EDITS, st.booleans())
def model_configs(changes, more, edits, is_damaged):
    content = TINY
    for path, new in changes:
        content = replace_within(content, path, new)
    if isinstance(content, dict):
        content = {**content, **more}
    path = make_model()[0] / "changed.json"
    text = json.dumps(content).encode()
    path.write_bytes(damage(json.dumps(TINY).encode(), edits) if is_damaged else text)
    check(path, "random:0")


OBJECTS = st.sampled_from(
    [None, [], {}, 5, "text", {"state_dict": None}, {"state_dict": {}}, {"model": 1}, {"a": "b"}, {0: 1}]
)


@st.composite
def states(draw) -> object:
    """Draw what a checkpoint may hold: the tiny model's weights with a few changed, or anything else."""
    if draw(st.integers(0, 3)) == 0:
        return draw(OBJECTS)
    state = dict(make_model()[1])
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(sorted(state)))
        weight = make_model()[1][name]
        new = [torch.zeros(3), weight.double(), weight * float("nan"), weight.bool(), None, "x"]
        state[name] = new[draw(st.integers(0, len(new) - 1))]
    return state if draw(st.booleans()) else {"state_dict": state, "epoch": 1}


@given(states(), st.sampled_from(["pt", "pth", "safetensors", "npz", "bin", "json"]), st.just([]) | EDITS)
def weight_files(state, suffix, edits):
    tensors = isinstance(state, dict) and all(isinstance(value, torch.Tensor) for value in state.values())
    if suffix == "safetensors" and tensors:
        data = save(state)
    else:
        file = io.BytesIO()
        torch.save(state, file)
        data = file.getvalue()
    path = make_model()[0] / f"weights.{suffix}"
    path.write_bytes(damage(data, edits))
    check(make_model()[0] / "tiny.json", str(path))


load = make_model


def test_models():
    run(model_configs, 200, megabytes=1024)
    run(weight_files, 200, megabytes=1024)
