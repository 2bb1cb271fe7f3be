"""A corpus of odd but good samples, curated whole: open_clip reads every one of them as it was scored."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import raycomp
from raycomp.curation.config import SelectConfig
from raycomp.data.inputs import expand_input
from raycomp.data.reader import read_shard
from raycomp.data.samples import write_tar
from raycomp.models.images import decode_image
from raycomp.training.pairs import load_shard
from tests.corpus import by_cpi
from tests.curation.test_rewrite import corpus, encode, read_by_open_clip
from tests.training.pairs import check_all, make_config


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_rows(folder: Path) -> dict[str, dict[str, Any]]:
    (shard,) = expand_input(str(folder))
    return {row["uid"]: row for table in read_shard(shard, 100) for row in table.to_pylist()}


def test_odd_samples_come_out_as_open_clip_reads_them(tiny_scorer, tmp_path):
    samples = corpus()
    odd_json = b'{"similarity": NaN, "best": [1e400], "half": "\\ud800", "original_width": true, "best": 1}'
    samples["odd-json"] = {"jpg": encode("JPEG"), "txt": b"a dog", "json": odd_json}
    samples["broken"] = {"gif": b"GIF89a", "txt": b"a dog"}
    write_tar(str(tmp_path / "in/00000.tar"), samples.items())
    options = {"materialize": True, "extra_columns": ("similarity", "half"), "max_bad_fraction": 0.5}
    config = by_cpi(input=str(tmp_path / "in"), scorer=tiny_scorer, select=SelectConfig("full"), **options)
    run = raycomp.curate(config, str(tmp_path / "out"))
    assert run["funnel"]["kept"] == len(samples) - 1 and run["funnel"]["dropped"] == {"corrupt_image": 1}
    assert (tmp_path / "out/shards/__len__").read_text() == str(len(samples) - 1)
    rows = read_rows(tmp_path / "in")
    found = read_by_open_clip(tmp_path / "out/shards")
    assert len(found) == len(samples) - 1
    for sample in found:
        row = rows[sample["__key__"].removesuffix("-0")]
        assert np.array_equal(np.asarray(sample["image"]), np.asarray(decode_image(row["image"], 10**6)))
        assert sample["text"] == row["caption"]
    scores = pq.read_table(tmp_path / "out/scores/00000.parquet").to_pylist()
    (odd,) = (row for row in scores if row["key"] == "odd-json")
    assert (odd["similarity"], odd["half"], odd["original_width"]) == (None, "?", 40)
    # The SHA-256 in kept.parquet is of the image as it is written, rewritten or not.
    kept = {row["uid"]: row for row in pq.read_table(tmp_path / "out/subset/kept.parquet").to_pylist()}
    written = read_rows(tmp_path / "out/shards")
    said = {uid: (row["image_sha256"], row["caption"]) for uid, row in kept.items()}
    assert {uid: (sha256(row["image"]), row["caption"]) for uid, row in written.items()} == said
    rewritten = [row for row in scores if row["uid"] in kept and row["image_sha256"] != said[row["uid"]][0]]
    assert 0 < len(rewritten) < len(kept)
    pairs, indices, _ = check_all(make_config(input=str(tmp_path / "out")))
    assert len(load_shard(pairs, 0, indices[0])) == len(kept)
