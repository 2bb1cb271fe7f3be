"""Which towers are made of plain blocks, and what is said of others."""

import pytest

from raycomp.models.adapters import find_blocks
from raycomp.models.clip import load_start
from tests.training.fitting import ARCHITECTURE, write_model

RESNET = {"layers": [1, 1, 1, 1], "width": 8, "image_size": 32, "head_width": 16}


def test_a_tower_of_others_is_refused(tmp_path_factory):
    for tower, config in [
        ("image", {"vision_cfg": RESNET}),
        ("text", {"text_cfg": {**ARCHITECTURE["text_cfg"], "qk_norm": True}, "custom_text": True}),
    ]:
        tmp_path = tmp_path_factory.mktemp("case")
        clip = load_start(write_model(tmp_path, **config))
        with pytest.raises(ValueError, match=f"^method=diki: the {tower} tower of the model is not made of"):
            find_blocks(clip, "method=diki")
