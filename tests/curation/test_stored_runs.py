"""A metadata folder with stored embeddings, as DataComp hands it out, through a whole run without images."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.config import ScorerConfig
from raycomp.curation.config import CurateConfig, PrepareConfig
from raycomp.curation.score.score import plan
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip
from raycomp.models.images import prepare_image
from tests.corpus import by_cpi, scenes

NUM = 40
BAD = 3


@pytest.fixture(scope="module")
def config(tiny_scorer: ScorerConfig, tmp_path_factory: pytest.TempPathFactory) -> CurateConfig:
    """Metadata of 40 scenes in two files, the embedding of row 3 being zero."""
    samples, folder = scenes(NUM, seed=3), tmp_path_factory.mktemp("metadata")
    images = [data for members in samples for name, data in members.items() if name in ("png", "jpg")]
    spec = describe_scorer(tiny_scorer).image
    pixels = np.stack([prepare_image(data, spec, 10**8)[0] for data in images])
    image_ND = Clip(tiny_scorer).embed_pixels(pixels).numpy().astype(np.float16)
    image_ND[BAD] = 0
    uids = [f"{i * 7919 % 40:016x}{i:016x}" for i in range(NUM)]
    for i, part in enumerate((slice(0, 30), slice(30, NUM))):
        captions = [members["txt"].decode() for members in samples[part]]
        columns = {"uid": uids[part], "url": ["http://x"] * len(captions), "text": captions}
        pq.write_table(pa.table(columns), folder / f"{i:02d}.parquet")
        np.savez(folder / f"{i:02d}.npz", b32_img=image_ND[part], b32_txt=image_ND[part])
    return by_cpi(input=str(folder), scorer=tiny_scorer, prepare=PrepareConfig(stored_embeddings="b32_img"))


@pytest.fixture(scope="module")
def curated(config, tmp_path_factory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("curated") / "out"
    return out, raycomp.curate(config, str(out))


def test_metadata_becomes_a_subset_without_shards(config, curated):
    out, run = curated
    assert "by bytes: 40 in" in plan(config)
    assert run["funnel"]["dropped"]["bad_embedding"] == 1
    assert (run["funnel"]["corpus"], run["funnel"]["kept"]) == (NUM - 1, 19)
    scores = [row for path in sorted((out / "scores").iterdir()) for row in pq.read_table(path).to_pylist()]
    assert [i for i, row in enumerate(scores) if row["status"] == "bad_embedding"] == [BAD]
    best = sorted((row for row in scores if row["mean_pas"] is not None), key=lambda row: -row["mean_pas"])
    kept = {row["uid"] for row in best[:19]}
    assert {row["uid"] for row in pq.read_table(out / "subset/kept.parquet").to_pylist()} == kept
    subset = np.load(out / "subset/subset.npy").tolist()
    assert subset == sorted((int(uid[:16], 16), int(uid[16:], 16)) for uid in kept)
    assert not (out / "shards").exists() and (out / "report.html").exists()


def test_choosing_again_needs_neither_images_nor_embeddings(config, curated, tmp_path):
    run = raycomp.select(str(curated[0]), {"attribute.keep": 0.2}, str(tmp_path / "again"))
    assert run["funnel"]["kept"] == 7 and not (tmp_path / "again/shards").exists()
    with pytest.raises(ValueError, match=r"materialize=True: must be false .* without images"):
        raycomp.select(str(curated[0]), {"materialize": True}, str(tmp_path / "no"))


def test_changed_embeddings_and_other_decoding_are_another_run(config, curated):
    with pytest.raises(ValueError, match=r"holds a run that differs in prepare\.fast_decode"):
        raycomp.curate(raycomp.override(config, "prepare.fast_decode", True), str(curated[0]))
    path = Path(config.input) / "01.npz"
    before = path.read_bytes()
    with np.load(path) as arrays:
        np.savez(path, b32_img=-arrays["b32_img"])
    with pytest.raises(ValueError, match="holds a run that differs in input"):
        raycomp.curate(config, str(curated[0]))
    path.write_bytes(before)


def test_what_does_not_fit_stops_before_any_work(config, tmp_path):
    wide = replace(config, scorer=ScorerConfig(model="ViT-B-32", weights="random:0"))
    for run in (plan, lambda config: raycomp.curate(config, str(tmp_path / "out"))):
        with pytest.raises(ValueError, match=r"'ViT-B-32': its embeddings have 512 values, those in .* 32;"):
            run(wide)
    assert not (tmp_path / "out/run.json").exists()
