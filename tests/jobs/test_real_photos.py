"""Real photos with their own captions through the whole of curate, every count of the report checked."""

import html
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import raycomp
from jobs.real_photos import config, write_shards
from raycomp.curation.score.score import plan
from raycomp.data.inputs import expand_input
from raycomp.data.reader import extract
from raycomp.models.clip import Clip


def check_counts(out: Path, count: int) -> None:
    """Compare every count on the page with the files."""
    scores = pa.concat_tables(pq.read_table(path) for path in sorted((out / "scores").iterdir()))
    kept = pq.read_table(out / "subset/kept.parquet")
    page = html.unescape(re.sub(r"<[^>]+>", " ", (out / "report.html").read_text()))
    page = re.sub(r"\s+", " ", page.replace("\u2212", "-"))
    pool, half = count * 7 // 10, count // 2
    assert len(scores) == scores["alignment"].drop_null().length() == count
    assert len(scores["phrases"].drop_null()) == pool and len(kept) == half
    assert re.search(rf"Kept {half:,} \(50\.0.{{0,3}}\) of {count:,} pairs", page)
    assert f"-{count - pool:,} below the alignment gate" in page
    assert f"-{pool - half:,} below the attribution gate" in page
    phrases = [p for row in scores["phrases"].drop_null().to_pylist() for p in row]
    for kind in ("object", "relation", "predicate"):
        of_kind = [p for p in phrases if p["kind"] == kind]
        with_nonce = [p for p in of_kind if p["drop"] is not None]
        cells = re.search(rf"{kind} ([\d,]+) ([\d,]+) ([\d,]+) ([\d,]+) -?[\d.]+ ([\d.]+)", page)
        numbers = [int(cell.replace(",", "")) for cell in cells.groups()[:4]]
        assert numbers[0] == numbers[1] + numbers[2] == len(of_kind)
        assert numbers[3] == len(with_nonce)
        assert float(cells[5]) == pytest.approx(100 * np.mean([p["drop"] > 0 for p in with_nonce]), abs=0.051)


@pytest.mark.parametrize("limit", [40, pytest.param(None, marks=pytest.mark.slow)])
def test_photos_of_both_sets(shared, tiny_scorer, tmp_path, limit):
    """Some with a tiny scorer, or all with the job's own, ViT-B/32."""
    count = write_shards(shared, tmp_path / "in", per_shard=20 if limit else 200, limit=limit)
    spec = f"flickr={tmp_path}/in/flickr8k_800/*.tar::cc={tmp_path}/in/cc_web_400/*.tar"
    photos = replace(config(), input=spec, scorer=tiny_scorer if limit else config().scorer)
    out = tmp_path / "out"
    run = raycomp.curate(photos, str(out)).record
    check_counts(out, count)
    check_parity(photos, out, 32 if limit else 224)
    assert run["coverage"]["of_captions"] > 0.97 and count == (2 * limit if limit else 1200)


def check_parity(photos: raycomp.CurateConfig, out: Path, side: int) -> None:
    """Alignments and drops of the first shard equal plain open_clip at 77 tokens within 1e-5."""
    model = Clip(photos.scorer).model
    transform = open_clip.image_transform((side, side), is_train=False)
    shard = expand_input(photos.input)[0]
    rows = pq.read_table(out / "scores/00000.parquet").to_pylist()
    pixels = [
        transform(Image.open(io.BytesIO(members["jpg"])).convert("RGB"))
        for _, members in extract(shard, range(len(rows)))
    ]
    texts, images, expected = [], [], []
    for i, row in enumerate(rows):
        texts, images, expected = [*texts, row["caption"]], [*images, i], [*expected, row["alignment"]]
        for phrase in row["phrases"] or []:
            for nonce, drop in zip(phrase["nonces"], phrase["drops"], strict=True):
                start, end = phrase["target_start"], phrase["target_end"]
                texts.append(row["caption"][:start] + nonce + row["caption"][end:])
                images.append(i)
                expected.append(row["alignment"] - drop)
    with torch.inference_mode():
        image_BD = F.normalize(model.encode_image(torch.stack(pixels)), dim=-1)
        text_TD = F.normalize(model.encode_text(open_clip.tokenize(texts)), dim=-1)
    assert len(texts) > 2 * len(rows)
    assert ((image_BD[images] * text_TD).sum(-1) - torch.tensor(expected)).abs().max() < 1e-5


def test_a_plan_writes_nothing(shared, tiny_scorer, tmp_path):
    write_shards(shared, tmp_path / "in", per_shard=20, limit=20)
    before = sorted(tmp_path.rglob("*"))
    priced = raycomp.override(config(), "cluster.price_per_hour", 2.5)
    text = plan(replace(priced, input=f"{tmp_path}/in", scorer=tiny_scorer))
    assert sorted(tmp_path.rglob("*")) == before
    assert "shards    2" in text and "price" in text
    million = {
        name: float(value.replace(",", "")) for name, value in re.findall(r"^(\w+) +([\d,]+)$", text, re.M)
    }
    assert {"read", "decode", "align", "parse", "attribute"} == set(million)
    hours = float(re.search(r"([\d.,]+) worker hours per million", text)[1].replace(",", ""))
    assert hours == pytest.approx(sum(million.values()) / 3600, rel=0.02, abs=0.06)
