"""``train.held_out``: which pairs are held out; training stays the same; the curve survives a restart."""

import json
import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from raycomp.core.losses import clip_loss
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar
from raycomp.training.command import train
from raycomp.training.evaluations import measure
from raycomp.training.held_out import find_held_input, index_pairs
from raycomp.training.pairs import find_pairs, make_index
from raycomp.words import HELD_OUT_LOSS, HELD_OUT_MEASURES
from tests.conftest import without_ray
from tests.corpus import scenes
from tests.training.little import STEPS, World, count_heads, read_losses, refuse

WHERE = {"train.workers": 1, "train.checkpoint_steps": 6, "train.evaluate_steps": 8}


def list_uids(tables) -> list[str]:
    return [uid for uri in tables.uris for uid in pq.read_table(uri)["uid"].to_pylist()]


def index_held(world: World, work: Path, **options):
    config = world.config(**options)
    return index_pairs(find_pairs(config), find_held_input(config), config, Folder(str(work)))


def read_curve(out: Path) -> dict[int, list[float]]:
    """Return the held-out figures by step, from run.json."""
    run = json.loads((out / "run.json").read_text())
    return {row["step"]: [row[name] for name in HELD_OUT_MEASURES] for row in run["evaluations"]}


@pytest.fixture
def other(tmp_path) -> str:
    """Twelve pairs of another world, and four pairs that are trained on."""
    rows = [*scenes(12, seed=8), *scenes(4, seed=3)]
    write_tar(str(tmp_path / "other/0.tar"), [(f"h{i:02d}", members) for i, members in enumerate(rows)])
    return str(tmp_path / "other")


def test_a_share_leaves_out_exactly_its_floor(world, tmp_path, local):
    """The tables hold the rest; a second start finds the same pairs, as does a larger share."""
    whole = {*list_uids(make_index(find_pairs(world.config()), Folder(str(tmp_path / "all"))))}
    index, held = index_held(world, tmp_path / "a", **{"train.held_out": 0.29})
    kept = list_uids(index)
    assert held.num_pairs == math.floor(0.29 * 32) == 9 == len(whole) - len(kept) and {*kept} < whole
    assert index.reasons == Counter(ok=23, held_out=9, corrupt_image=1, no_caption=1, duplicate_uid=2)
    assert {*list_uids(held)} <= whole - {*kept}
    again, same = index_held(world, tmp_path / "a", **{"train.held_out": 0.29})
    assert again == index and list_uids(same) == list_uids(held)
    larger, half = index_held(world, tmp_path / "b", **{"train.held_out": 0.5})
    for name in ("image_sha256", "caption"):  # evaluated pairs share no image and no caption
        values = [value for uri in half.uris for value in pq.read_table(uri)[name].to_pylist()]
        assert len(values) == len({*values}) == len(half.image_E) > 8
    assert {*list_uids(larger)} < {*kept}
    other, _ = index_held(world, tmp_path / "c", **{"train.held_out": 0.29, "train.seed": 1})
    assert {*list_uids(other)} != {*kept}


def test_a_kill_between_the_shards_changes_no_pair(world, tmp_path, local):
    """The tables are those of a start that took out the pairs of the first shard alone."""
    whole, _ = index_held(world, tmp_path / "whole", **{"train.held_out": 0.29})
    make_index(find_pairs(world.config()), Folder(str(tmp_path / "half")))
    (tmp_path / "half/held_out").mkdir()
    for name in ("drawn.npy", "evaluated.npy", "00000.parquet"):
        shutil.copy(tmp_path / "whole/held_out" / name, tmp_path / "half/held_out" / name)
    shutil.copy(tmp_path / "whole/pairs/00000.parquet", tmp_path / "half/pairs/00000.parquet")
    half, _ = index_held(world, tmp_path / "half", **{"train.held_out": 0.29})
    assert list_uids(half) == list_uids(whole) and half.reasons == whole.reasons


def test_an_input_trains_the_same_model_and_counts_shared_images(world, trained, other, tmp_path):
    said: list[str] = []
    with without_ray():
        run = train(world.config(**WHERE, **{"train.held_out": other}), str(tmp_path / "out"), said.append)
    weights = [path / "checkpoint/model.safetensors" for path in (tmp_path / "out", trained[0])]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert read_losses(tmp_path / "out") == read_losses(trained[0])
    assert run["funnel"] == trained[1]["funnel"]
    found = run["held_out"]
    assert found["pairs"] == 16 and 10 <= found["evaluated"] <= 16 and found["images_in_training"] == 4
    line = (
        f"train.held_out: 4 of {found['evaluated']} evaluated images are among the images that the model is"
    )
    assert sum(one.startswith(line) for one in said) == 1 and any(line in one for one in run["warnings"])
    curve = read_curve(tmp_path / "out")
    assert [*curve] == [0, 8, 16, STEPS] and np.isfinite([*curve.values()]).all()
    assert (tmp_path / "out/report.html").read_text().count("Held-out loss") >= 1
    rows = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    written = {row["step"] + 1: row[HELD_OUT_LOSS] for row in rows if HELD_OUT_LOSS in row}
    assert written == {step: values[0] for step, values in curve.items() if step}


class Stop(Exception):
    pass


def _stop_at_8(clip, step: int) -> dict[str, float]:
    if step == 8:
        raise Stop
    return count_heads(clip, step)


def test_a_share_trains_the_model_of_the_other_pairs_alone_interrupted_or_not(world, tmp_path, local):
    """Bit-equal weights, the funnel has the held-out pairs, and without evaluate_steps ten evaluations."""
    options = {"cluster.executor": "local", "train.checkpoint_steps": 6, "train.window": 1}
    share = {"train.held_out": "0.29"}
    whole = train(world.config(**options, **share), str(tmp_path / "whole"), num_threads=1)
    kept, _ = index_held(world, tmp_path / "index", **share)
    pq.write_table(pa.table({"uid": list_uids(kept)}), tmp_path / "kept.parquet")
    options["subset"] = str(tmp_path / "kept.parquet")
    train(world.config(**options), str(tmp_path / "alone"), num_threads=1)
    del options["subset"]
    with pytest.raises(Stop):
        config = world.config(**options, **share, **{"train.evaluate_steps": 2})
        train(config, str(tmp_path / "cut"), evaluate=_stop_at_8, num_threads=1)
    cut = train(world.config(**options, **share), str(tmp_path / "cut"), num_threads=1)
    assert [start["step"] for start in cut["resumed"]] == [6]
    names = ("whole", "alone", "cut")
    weights = [(tmp_path / name / "checkpoint/model.safetensors").read_bytes() for name in names]
    assert weights[0] == weights[1] == weights[2]
    assert read_losses(tmp_path / "whole") == read_losses(tmp_path / "alone")
    assert read_curve(tmp_path / "cut").items() >= read_curve(tmp_path / "whole").items()
    assert [*read_curve(tmp_path / "whole")] == [*range(0, STEPS + 1, 2)]
    assert whole["funnel"]["dropped"]["held_out"] == 9 == whole["held_out"]["pairs"]
    assert whole["funnel"]["kept"] == 23 == whole["pairs"]


def test_the_figures_of_a_perfect_and_of_a_blank_model():
    """Own pairs alone alike: loss 0, all found. All alike: loss log E, nothing found, as ties are wrong."""
    perfect = measure(torch.eye(8), torch.eye(8), 1000.0)
    assert [*perfect.values()] == [0.0, 1.0, 1.0]
    same = torch.ones(8, 4) / 2
    blank = [*measure(same, same, 100.0).values()]
    assert blank[0] == pytest.approx(math.log(8)) and blank[1:] == [0.0, 0.0]
    generator = torch.Generator().manual_seed(0)
    image, text = torch.nn.functional.normalize(torch.randn(2, 8, 4, generator=generator), dim=-1)
    found = [*measure(image, text, 5.0).values()]
    assert found[0] == float(clip_loss(image, text, 5.0))
    assert found[1] == np.mean([int((image[i] @ text.T).argmax()) == i for i in range(8)])
    assert found[2] == np.mean([int((text[i] @ image.T).argmax()) == i for i in range(8)])


def test_what_cannot_be_held_out_is_refused(world, tmp_path, capsys):
    for value, told in [
        ("0.51", "train.held_out='0.51': must be a share above 0 and at most 0.5, or an input"),
        ("0.01", "train.held_out=0.01: holds out 0 of 32 pairs, must hold out at least 2"),
        ("/no/such", "train.held_out='/no/such': no such file or folder"),
    ]:
        refuse(world.line(tmp_path / "out", **{"train.held_out": value}), tmp_path / "out", capsys, told)
