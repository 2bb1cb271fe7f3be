"""Little trainings: plain shards of which some samples are bad, and what trains on them."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raycomp.cli import main
from raycomp.config import override_all
from raycomp.data.samples import write_tar
from raycomp.training.config import TrainConfig
from tests.corpus import scenes

STEPS, BATCH = 20, 10  # three workers do not share ten pairs evenly
# One rounding error is one step of AdamW where a gradient is as small as eps.
OPTIONS = {
    "max_bad_fraction": 0.06,
    "model.weights": "random:0",
    "train.batch_size": BATCH,
    "train.steps": STEPS,
    "train.eps": 1e-4,
}


def describe_model(width: int = 16) -> dict:
    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": width, "heads": 2, "layers": 1}
    return {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}


@dataclass(frozen=True)
class World:
    """Plain shards of which some samples are bad, and what trains on them."""

    input: str
    model: str

    def config(self, **options) -> TrainConfig:
        return override_all(
            TrainConfig(), {"input": self.input, "model.name": self.model, **OPTIONS, **options}
        )

    def line(self, out: Path, **options) -> list[str]:
        """Return the command line."""
        whole = {"input": self.input, "model.name": self.model, **OPTIONS, **options}
        return ["train", *(f"--set={name}={value}" for name, value in whole.items()), "--out", str(out)]


def make_world(folder: Path) -> World:
    """32 good pairs, a corrupt image, one without a caption, and two samples again."""
    found = scenes(32, seed=3)
    own = {"json": json.dumps({"uid": "ab" * 16}).encode()}
    found[0] |= own
    mute = {name: data for name, data in found[1].items() if name not in ("txt", "json")}
    broken = [("corrupt", {"jpg": b"\xff\xd8 none", "txt": b"a cube"}), ("mute", mute)]
    rows = [(f"s{i:02d}", members) for i, members in enumerate(found)]
    write_tar(str(folder / "in/0.tar"), rows[:20] + broken)
    write_tar(str(folder / "in/1.tar"), [*rows[20:], ("again", found[0]), ("more", {**found[5], **own})])
    (folder / "tiny.json").write_text(json.dumps(describe_model()))
    return World(str(folder / "in"), str(folder / "tiny.json"))


def read_losses(out: Path) -> list[float]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(len(rows)))
    return [row["loss"] for row in rows]


def count_heads(clip, step: int) -> dict[str, float]:
    """Evaluate: tell where it stands, as a model in evaluation mode."""
    assert not clip.training
    return {"taken": step, "scale": float(clip.logit_scale.exp())}


def refuse(line: list[str], out: Path, capsys, message: str) -> None:
    """See that a command is refused in one line, and that another run may have its folder."""
    assert main(line) == 2
    # A busy machine also tells what it waits for.
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("train: step ")]
    assert len(said) == 1 and said[0].startswith("raycomp: ") and message in said[0], said
    assert not out.exists() or not os.listdir(out), os.listdir(out)


def as_datacomp(uid_N2: np.ndarray) -> np.ndarray:
    """Return uids as DataComp's subset files hold them."""
    found = np.empty(len(uid_N2), [("f0", "u8"), ("f1", "u8")])
    found["f0"], found["f1"] = uid_N2.T
    return np.sort(found)
