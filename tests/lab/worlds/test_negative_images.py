"""Images of hard negatives show the negative and not the caption; what the world cannot show is counted."""

import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from lab.worlds.captions import TEMPLATES, claim_of, describe, read
from lab.worlds.negative_images import (
    ALSO_TRUE,
    OUTSIDE,
    SHOWN,
    show_negative,
    write_negative_images,
)
from lab.worlds.negatives import hard_negatives
from lab.worlds.scenes import Scene, draw_scene, is_true
from raycomp.data.files import Folder
from raycomp.schema import NEGATIVE_TYPE
from raycomp.words import ADD, REPLACE, SWAP
from tests.sealed import seal

SCENES = [draw_scene(np.random.default_rng([8, i])) for i in range(48)]
CAPTION = "a small red star above a large blue donut"
TEXTS = {
    "a large blue donut above a small red star": SWAP,
    "a small red star above a large blue moon": REPLACE,
    "a small red star next to a large blue donut": REPLACE,
    "a small red star above a large blue donut and a cube": ADD,
    "a small red star above a large blue donut, which is to the left of a small pink moon": ADD,
}


def test_every_edit_of_the_worlds_own_is_shown_unless_it_only_adds() -> None:
    counts: Counter[tuple[str, bool]] = Counter()
    for i, scene in enumerate(SCENES):
        template = i % len(TEMPLATES)
        caption = describe(scene, template)
        for negative in hard_negatives(scene, template):
            found = show_negative(str(i), caption, negative.caption)
            counts[negative.operation, isinstance(found, Scene)] += 1
            if isinstance(found, Scene):
                said = read(negative.caption)
                assert said and is_true(said, found) and not is_true(claim_of(scene, template), found)
            else:
                assert (negative.operation, found) == (ADD, ALSO_TRUE)
    assert set(counts) == {(SWAP, True), (REPLACE, True), (ADD, False)}


def write_run(folder: Path, kind: str = "negatives") -> None:
    """Write what a finished run leaves that a reader of its negatives looks at."""
    run = {"config": {"input": "elsewhere"}, "fingerprint": {}, "versions": {}}
    funnel = {"read": 3, "corpus": 3, "kept": 3, "dropped": {}}
    run |= {"kind": kind, "status": "finished", "warnings": [], "funnel": funnel}
    (folder / "negatives").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(run))
    negatives = [{"text": text, "op": op} for text, op in (*TEXTS.items(), *TEXTS.items())]
    columns = {
        "uid": ["a", "b", "c"],
        "caption": [CAPTION, "two dogs on a beach", CAPTION],
        "negatives": pa.array([negatives, negatives[:1], None], pa.list_(NEGATIVE_TYPE)),
    }
    pq.write_table(pa.table(columns), folder / "negatives/00000.parquet")
    pq.write_table(pa.table(columns).slice(2), folder / "negatives/00001.parquet")
    seal(Folder(str(folder)))


def test_a_table_has_an_image_for_what_can_be_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    counts = write_negative_images(str(tmp_path / "run"), str(tmp_path / "images"))
    assert counts == {
        (SWAP, SHOWN): 1,
        (REPLACE, SHOWN): 1,
        (REPLACE, OUTSIDE): 1,
        (ADD, OUTSIDE): 1,
        (ADD, ALSO_TRUE): 1,
        (SWAP, OUTSIDE): 1,
    }
    rows = pq.read_table(tmp_path / "images/00000.parquet").to_pylist()
    assert [(row["uid"], row["negative"]) for row in rows] == [("a", text) for text in list(TEXTS)[:2]]
    # The donut's blue is below the red star in the caption, above it after the swap.
    pixels = np.asarray(Image.open(io.BytesIO(rows[0]["image"])).convert("RGB")).astype(int)
    assert pixels.shape == (128, 128, 3)
    is_blue = (abs(pixels - (46, 112, 222)).max(-1) < 40).nonzero()[0].mean()
    is_red = (abs(pixels - (222, 52, 56)).max(-1) < 40).nonzero()[0].mean()
    assert is_blue < is_red - 30
    assert len(pq.read_table(tmp_path / "images/00001.parquet")) == 0
    write_negative_images(str(tmp_path / "run"), str(tmp_path / "again"))
    assert all(
        (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
        for path in (tmp_path / "images").iterdir()
    )


def test_a_folder_without_negatives_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "curate")
    with pytest.raises(ValueError, match=r"run.*(must be a folder that raycomp negatives wrote|missing)"):
        write_negative_images(str(tmp_path / "run"), str(tmp_path / "images"))
    with pytest.raises(ValueError, match="no such folder"):
        write_negative_images(str(tmp_path / "none"), str(tmp_path / "images"))
