"""Curate 1,200 real photos with their own captions: Flickr8k (800), Conceptual Captions at web size (400).

    python jobs/real_photos.py ../shared out/photos              # shards: one sample per image, first caption
    raycomp curate jobs/real_photos.py --out out/real            # ViT-B/32, random weights: a plumbing run
    raycomp curate jobs/real_photos.py:openai --out out/openai   # OpenAI's ViT-B/16; needs a model hub

Cost: 2 minutes on 2 cores with ViT-B/32. Expected with random weights: the counts add up, 1,200 read, 840
past the first gate, 600 kept; the scores are noise and the report says so.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from raycomp.config import ScorerConfig
from raycomp.curation.config import CurateConfig
from raycomp.data.samples import write_tar

SETS = ("flickr8k_800", "cc_web_400")
PER_SHARD = 200


def config() -> CurateConfig:
    """ViT-B/32 with random weights on the shards in out/photos."""
    return CurateConfig(
        input="flickr=out/photos/flickr8k_800/*.tar::cc=out/photos/cc_web_400/*.tar",
        scorer=ScorerConfig(model="ViT-B-32", weights="random:0"),
    )


def openai() -> CurateConfig:
    """The paper's scoring model."""
    return replace(config(), scorer=ScorerConfig())


def write_shards(shared: Path, out: Path, per_shard: int = PER_SHARD, limit: int | None = None) -> int:
    """Write both photo sets (the first ``limit`` of each) below ``out`` as tars; return the samples."""
    written = 0
    for name in SETS:
        folder = shared / "data" / name
        rows = [
            json.loads(line) for line in (folder / "captions.jsonl").read_text("utf-8").splitlines()[:limit]
        ]
        for start in range(0, len(rows), per_shard):
            samples = _samples(folder / "images", rows[start : start + per_shard], start)
            written += write_tar(str(out / name / f"{start // per_shard:05d}.tar"), samples)
    return written


def _samples(images: Path, rows: list[dict], start: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    for i, row in enumerate(rows, start):
        caption = row["captions"][0]
        fields = json.dumps({"image": row["image"], "caption": caption}).encode()
        data = (images / row["image"]).read_bytes()
        yield f"{i:09d}", {"jpg": data, "txt": caption.encode(), "json": fields}


if __name__ == "__main__":
    print(f"wrote {write_shards(Path(sys.argv[1]), Path(sys.argv[2])):,} samples")
