"""Stored embeddings through read, prepare, align and attribute, against open_clip's own encoders."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

import raycomp
from raycomp.config import ScorerConfig
from raycomp.curation.config import CurateConfig, NearConfig, PrepareConfig
from raycomp.curation.score.score import plan
from raycomp.curation.score.stages import Align, prepare
from raycomp.data.inputs import expand_input
from raycomp.data.parquet import to_matrix
from raycomp.data.parquet_input import check_embeddings
from raycomp.data.reader import read_shard
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip
from raycomp.models.images import prepare_image
from raycomp.words import ALIGNMENT, IMAGE_EMBEDDING, ORIGINAL_WIDTH, PIXELS, STATUS
from tests.corpus import by_cpi
from tests.drawn import world_shards

NUM = 40
SAMPLES = [members for _, samples in world_shards(NUM, 0, 5, per_shard=NUM) for _, members in samples]
CAPTIONS = [members["txt"].decode().strip() for members in SAMPLES]
IMAGES = [data for members in SAMPLES for name, data in members.items() if name in ("png", "jpg")]


@pytest.fixture(scope="module")
def image_ND(tiny_scorer: ScorerConfig) -> np.ndarray:
    """What the scorer makes of the images: rows of length 1."""
    spec = describe_scorer(tiny_scorer).image
    pixels = np.stack([prepare_image(data, spec, 10**8)[0] for data in IMAGES])
    return Clip(tiny_scorer).embed_pixels(pixels).numpy()


def store(folder: Path, layout: str, embedding_ND: np.ndarray, **columns: list) -> None:
    """Write two shards of metadata with embeddings beside them."""
    for i, part in enumerate((slice(0, 25), slice(25, NUM))):
        given = {"caption": CAPTIONS, **columns}
        table = pa.table({name: values[part] for name, values in given.items()})
        if layout == "clip_retrieval":
            (folder / "metadata").mkdir(exist_ok=True, parents=True)
            (folder / "img_emb").mkdir(exist_ok=True)
            pq.write_table(table, folder / f"metadata/metadata_{i}.parquet")
            np.save(folder / f"img_emb/img_emb_{i}.npy", embedding_ND[part])
        else:
            folder.mkdir(exist_ok=True)
            pq.write_table(table, folder / f"{i}.parquet")
            np.savez(folder / f"{i}.npz", b32_img=embedding_ND[part], b32_txt=np.zeros(3))


def align_all(spec: str, stored: str | None, scorer: ScorerConfig) -> pa.Table:
    """Return what comes of every row of the input, without Ray."""
    shape = describe_scorer(scorer)
    shards = expand_input(spec, stored)
    check_embeddings(shards, scorer.model, shape.embedding_dim)
    align = Align(scorer, shape)

    def run() -> Iterator[pa.Table]:
        for shard in shards:
            for block in read_shard(shard, 16):
                prepared = prepare(block, scorer, shape, PrepareConfig().max_pixels)
                assert (PIXELS in prepared.column_names) == (stored is None)
                yield align(prepared)

    return pa.concat_tables(run())


def test_alignment_is_the_cosine_of_the_stored_vector(tiny_scorer, image_ND, tmp_path):
    with torch.inference_mode():
        text_ND = F.normalize(Clip(tiny_scorer).model.encode_text(open_clip.tokenize(CAPTIONS)), dim=-1)
    for layout, dtype in (("clip_retrieval", np.float16), ("b32_img", np.float32)):
        stored_ND = (image_ND * np.linspace(0.5, 20, NUM)[:, None]).astype(dtype)  # of any length
        store(tmp_path / layout, layout, stored_ND)
        found = align_all(str(tmp_path / layout), layout, tiny_scorer)
        direct_ND = F.normalize(torch.from_numpy(stored_ND).double(), dim=-1)
        assert found[STATUS].to_pylist() == ["ok"] * NUM
        assert np.abs(found[ALIGNMENT].to_numpy() - (direct_ND * text_ND).sum(-1).numpy()).max() < 1e-6
        assert np.abs(to_matrix(found[IMAGE_EMBEDDING]) - direct_ND.numpy()).max() < 1e-6


def test_a_vector_without_direction_is_a_counted_row_and_other_faults_come_first(
    tiny_scorer, image_ND, tmp_path
):
    captions = [*CAPTIONS[:2], None, " ", *CAPTIONS[4:]]
    sizes = {"original_width": [640] * NUM, "original_height": [480] * NUM}
    for dtype in (np.float16, np.float64):
        stored_ND, bad = image_ND.astype(dtype), [5, 7, 30]
        stored_ND[[2, 5]] = 0
        stored_ND[7, 2], stored_ND[30, 5] = np.nan, np.inf
        if dtype == np.float64:
            stored_ND[31], bad = 1e300, [*bad, 31]
        folder = tmp_path / np.dtype(dtype).name
        store(folder, "b32_img", stored_ND, caption=captions, **sizes)
        found = align_all(str(folder), "b32_img", tiny_scorer)
        expected = ["ok"] * NUM
        expected[2:4] = "no_caption", "empty_caption"
        for row in bad:
            expected[row] = "bad_embedding"
        assert found[STATUS].to_pylist() == expected
        for name in (ALIGNMENT, IMAGE_EMBEDDING):
            nulls = [i for i, value in enumerate(found[name].to_pylist()) if value is None]
            assert nulls == [i for i, status in enumerate(expected) if status != "ok"], name
        assert found[ORIGINAL_WIDTH].to_pylist() == [640] * NUM


BAD = 3


@pytest.fixture(scope="module")
def config(tiny_scorer, image_ND, tmp_path_factory) -> CurateConfig:
    """Metadata as DataComp hands it out, without images; the embedding of one row is zero."""
    folder, stored_ND = tmp_path_factory.mktemp("metadata"), image_ND.astype(np.float16)
    stored_ND[BAD] = 0
    store(folder / "in", "b32_img", stored_ND, uid=[f"{i * 7919 % 40:016x}{i:016x}" for i in range(NUM)])
    prepare = PrepareConfig(stored_embeddings="b32_img")
    return by_cpi(input=str(folder / "in"), scorer=tiny_scorer, prepare=prepare)


def test_metadata_becomes_a_subset_without_shards(config, tmp_path):
    """Choosing again needs neither images nor embeddings; other embeddings are another run."""
    out = tmp_path / "out"
    assert "by bytes: 40 in" in plan(config)
    funnel = raycomp.curate(config, str(out))["funnel"]
    assert (funnel["dropped"]["bad_embedding"], funnel["corpus"], funnel["kept"]) == (1, NUM - 1, 19)
    scores = [row for path in sorted((out / "scores").iterdir()) for row in pq.read_table(path).to_pylist()]
    assert [i for i, row in enumerate(scores) if row["status"] == "bad_embedding"] == [BAD]
    best = sorted((row for row in scores if row["mean_pas"] is not None), key=lambda row: -row["mean_pas"])
    kept = {row["uid"] for row in best[:19]}
    assert {*pq.read_table(out / "subset/kept.parquet")["uid"].to_pylist()} == kept
    subset = np.load(out / "subset/subset.npy").tolist()
    assert subset == sorted((int(uid[:16], 16), int(uid[16:], 16)) for uid in kept)
    assert not (out / "shards").exists() and (out / "report.html").exists()
    path = Path(config.input) / "1.npz"
    with np.load(path) as arrays:
        np.savez(path, b32_img=-arrays["b32_img"])
    with pytest.raises(ValueError, match="holds a run that differs in input"):
        raycomp.curate(config, str(out))
    run = raycomp.select(str(out), {"attribute.keep": 0.2}, str(tmp_path / "again"))
    assert run["funnel"]["kept"] == 7 and not (tmp_path / "again/shards").exists()
    with pytest.raises(ValueError, match=r"materialize=True: must be false .* without images"):
        raycomp.select(str(out), {"materialize": True}, str(tmp_path / "no"))


def test_what_does_not_fit_stops_before_any_work(config, tmp_path):
    wide = replace(config, scorer=ScorerConfig(model="ViT-B-32", weights="random:0"))
    for run in (plan, lambda config: raycomp.curate(config, str(tmp_path / "out"))):
        with pytest.raises(ValueError, match=r"'ViT-B-32': its embeddings have 512 values, those in .* 32;"):
            run(wide)
    with pytest.raises(ValueError, match=r"0\.npz: set prepare.stored_embeddings to the name of their array"):
        raycomp.curate(replace(config, prepare=PrepareConfig()), str(tmp_path / "out"))
    with pytest.raises(ValueError, match=r"near.rules='semantic,pixels': must be semantic or captions with"):
        replace(config, near=NearConfig(rules=("semantic", "pixels")))
    assert not (tmp_path / "out/run.json").exists()
