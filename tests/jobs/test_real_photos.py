"""Real photos with their own captions through the whole of curate, every count of the report checked."""

import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raycomp
from jobs.real_photos import config, write_shards
from raycomp.curation.score.score import plan
from tests.curation.test_curate_runs import check_parity


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
    # A caption without a noun has no PAS.
    lost = re.findall(r"-([\d,]+) (?:below|no score for) the attribution gate", page)
    assert sum(int(num.replace(",", "")) for num in lost) == pool - half
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
