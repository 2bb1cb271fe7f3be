"""Draw an image of each hard negative with diffusers, for ``train.loss=triplet`` (TripletCLIP, arXiv
2411.02545).

    python jobs/draw_negatives.py out/lens/negatives/llm1 --out data/negative_images/llm1

Needs a GPU and ``pip install diffusers``, which raycomp does not depend on. Writes a Parquet file of uid,
negative and image (JPEG) for each of the run's files; a file that is there is not drawn again. Several
processes share the work: ``--part 0/8`` to ``7/8``.

Cost: not measured here. TripletCLIP draws with SDXL-turbo in one step, 512 x 512 pixels. An image takes
some 40 kB. Expected: an image that shows the negative. TripletCLIP does not check it, and neither does
this file.
"""

import argparse
import io
from typing import Any

import pyarrow as pa
from PIL import Image

from raycomp.data.files import Folder, join_uri
from raycomp.data.parquet import read_columns, write_table
from raycomp.data.runs import list_negatives, read_finished
from raycomp.schema import NEGATIVE_IMAGE_SCHEMA


def main() -> None:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("negatives", help="a folder that raycomp negatives wrote")
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", default="stabilityai/sdxl-turbo")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--part", default="0/1", help="I/N: every N-th file, from the I-th, from 0")
    asked = parser.parse_args()
    part, num_parts = map(int, asked.part.split("/"))
    run = read_finished(asked.negatives)
    files = list(enumerate(list_negatives(run, asked.negatives)))
    pipeline = load(asked.model)
    for ordinal, uri in files[part::num_parts]:
        name = f"{ordinal:05d}.parquet"
        if Folder(asked.out).exists(name):
            continue
        found = read_columns(uri, ["uid", "negatives"]).to_pylist()
        rows = [
            {"uid": row["uid"], "negative": one["text"]} for row in found for one in row["negatives"] or ()
        ]
        for start in range(0, len(rows), asked.batch):
            some = rows[start : start + asked.batch]
            images = pipeline([row["negative"] for row in some], num_inference_steps=1, guidance_scale=0.0)
            for row, image in zip(some, images.images, strict=True):
                row["image"] = encode(image)
        table = pa.Table.from_pylist(rows, NEGATIVE_IMAGE_SCHEMA)
        write_table(table, join_uri(asked.out, name), NEGATIVE_IMAGE_SCHEMA)
        print(f"{name}: {len(rows):,} images", flush=True)


def load(model: str) -> Any:
    """Return a text-to-image pipeline on the GPU."""
    import torch
    from diffusers import AutoPipelineForText2Image  # type: ignore[import-not-found]

    return AutoPipelineForText2Image.from_pretrained(model, torch_dtype=torch.float16).to("cuda")


def encode(image: Image.Image) -> bytes:
    """Return a Pillow image as JPEG."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
