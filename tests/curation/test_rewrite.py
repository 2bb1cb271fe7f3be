"""Rewritten samples as open_clip's own reader decodes them: as many, the scored pictures and texts."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import webdataset as wds
from open_clip_train.data import (
    filter_no_caption_or_no_image,
    get_dataset_size,
    group_by_keys_nothrow,
    log_and_continue,
)
from PIL import Image
from webdataset import autodecode
from webdataset.tariterators import tar_file_expander, url_opener

import raycomp
from raycomp.curation.config import SelectConfig
from raycomp.curation.write import DECODED, is_scored, rewrite
from raycomp.data.inputs import IMAGE_EXTENSIONS, expand_input
from raycomp.data.reader import read_shard
from raycomp.data.samples import write_tar
from raycomp.models.images import decode_image
from raycomp.training.pairs import load_shard
from tests.corpus import by_cpi
from tests.training.pairs import check_all, make_config

ORIENTATION = 0x0112


def draw(seed: int, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((40, 30)).convert(mode)


def encode(kind: str, seed: int = 0, mode: str = "RGB", orientation: int | None = None, **options) -> bytes:
    exif, buffer = Image.Exif(), io.BytesIO()
    if orientation is not None:
        exif[ORIENTATION] = orientation
        options["exif"] = exif
    draw(seed, mode).save(buffer, kind, **options)
    return buffer.getvalue()


def wide_grey() -> bytes:
    buffer = io.BytesIO()
    ramp = np.linspace(0, 65535, 30 * 40).reshape(30, 40).astype(np.uint16)
    Image.fromarray(ramp).save(buffer, "PNG")
    return buffer.getvalue()


# What a sample is read as, and under which name its image comes out; None where it becomes a PNG.
OWN_BYTES = {
    "jpg": ({"jpg": encode("JPEG")}, "jpg"),
    "jpeg": ({"jpeg": encode("JPEG")}, "jpeg"),
    "png": ({"png": encode("PNG", mode="RGBA")}, "png"),
    "palette": ({"png": encode("PNG", mode="P")}, "png"),
    "webp": ({"webp": encode("WEBP")}, "webp"),
    "cmyk": ({"jpg": encode("JPEG", mode="CMYK")}, "jpg"),
    "upright": ({"jpg": encode("JPEG", orientation=1)}, "jpg"),
    "jfif": ({"jfif": encode("JPEG")}, "jpg"),
    "a jpeg called gif": ({"gif": encode("JPEG")}, "jpg"),
    "a webp called bmp": ({"bmp": encode("WEBP")}, "webp"),
    "a gif called jpg": ({"jpg": encode("GIF", mode="P")}, "jpg"),
    "jpeg and png": ({"png": encode("PNG", seed=1), "jpeg": encode("JPEG")}, "jpeg"),
    "jpg and gif": ({"gif": encode("GIF", seed=1), "jpg": encode("JPEG")}, "jpg"),
    "webp and broken tif": ({"tif": b"II*\0", "webp": encode("WEBP")}, "webp"),
}
PICTURES = {
    "gif": {"gif": encode("GIF", mode="P")},
    "bmp": {"bmp": encode("BMP")},
    "tif": {"tif": encode("TIFF")},
    "tiff": {"tiff": encode("TIFF", mode="CMYK")},
    "avif": {"avif": encode("AVIF")},
    "gif and broken bmp": {"gif": encode("GIF", mode="P"), "bmp": b"BM"},
    "turned jpeg": {"jpg": encode("JPEG", orientation=6)},
    "turned png": {"png": encode("PNG", orientation=3)},
    "turned webp": {"webp": encode("WEBP", orientation=8)},
    "turned jfif": {"jfif": encode("JPEG", orientation=2)},
    "wide grey": {"png": wide_grey()},
}
MEMBERS = {
    "npy": b"no array", "npz": b"PK", "pyd": b"no pickle", "pkl": b"x", "pth": b"x", "cls": b"dog",
    "id": b"1.5", "index": b"9" * 5000, "seg.png": b"no mask", "en.txt": b"caf\xe9", "meta.json": b"{",
    "jpg.gz": b"no gzip", "mp": b"\xc1", "cbor": b"\xff", "ten": b"x", "tb": b"", "transcript": b"\xff",
    "tga": b"x", "__bad__": b"1", "__key__": b"other", "__url__": b"u", "npy.bytes": b"taken",
    "mp4": b"no film", "": b"x", "text": b"t", "image": b"i", "cls2": b" 7 ", "a.b.c": b"x",
}  # fmt: skip
READ_AS_THEY_ARE = ("mp4", "", "text", "image", "cls2", "a.b.c")


def corpus() -> dict[str, dict[str, bytes]]:
    """Return the members of every odd sample by a key."""
    images = {name: members for name, (members, _) in OWN_BYTES.items()} | PICTURES
    images |= {f"member {name}": {name: data, "jpg": encode("JPEG")} for name, data in MEMBERS.items()}
    images["every member"] = {**MEMBERS, "jpg": encode("JPEG")}
    samples = {}
    for i, (name, members) in enumerate(images.items()):
        text = {"json": f'{{"caption": "caf\\u00e9 {i}"}}'.encode()}
        text = {"txt": f" a dog\n{i}".encode()} if i % 2 else text
        samples[name.replace(" ", "-").replace(".", "_")] = {**members, **text}
    return samples


def to_samples(urls):
    """open_clip's tarfile_to_samples_nothrow, without the end marks of webdataset 1.0 that it cannot read."""
    streams = url_opener(urls, handler=log_and_continue)
    files = tar_file_expander(streams, handler=log_and_continue, eof_value=None)
    return group_by_keys_nothrow(files, handler=log_and_continue)


def read_by_open_clip(folder: Path) -> list[dict]:
    """Decode as open_clip_train.data.get_wds_dataset does before it resizes and tokenises."""
    pipeline = wds.DataPipeline(
        wds.SimpleShardList(str(folder / "00000000.tar")),
        to_samples,
        wds.select(filter_no_caption_or_no_image),
        wds.decode("pilrgb", handler=log_and_continue),
        wds.rename(image="jpg;png;jpeg;webp", text="txt"),
    )
    return list(pipeline)


def test_what_open_clip_decodes_alike_keeps_its_bytes():
    for name, (members, extension) in OWN_BYTES.items():  # of two images the first of the name is scored
        own = members.get(name.partition(" and ")[0], next(iter(members.values())))
        written, said = rewrite({**members, "txt": b"a"})
        assert written == {extension: own, "txt": b"a"}, name
        assert said["original_sha256"] == sha256(own), name
        as_png, same = rewrite({**members, "txt": b"a"}, as_png=True)
        assert list(as_png) == ["png", "txt"] and same == said, name
        pictures = [decode_image(data, 10**6) for data in (as_png["png"], own)]
        assert np.array_equal(*pictures) and (as_png["png"] == own) == (said["original_format"] == "png"), (
            name
        )


def test_what_open_clip_would_decode_otherwise_becomes_png():
    for name in PICTURES:
        members = PICTURES[name]
        original = next(iter(members.values()))
        written, said = rewrite({"txt": b"a", **members})
        assert list(written) == ["txt", "png"]
        assert np.array_equal(
            np.asarray(Image.open(io.BytesIO(written["png"]))), decode_image(original, 10**6)
        )
        assert said["original_sha256"] == hashlib.sha256(original).hexdigest()
        assert said["original_format"] in ("gif", "bmp", "tiff", "avif", "jpeg", "png", "webp")
        assert rewrite(written)[0] == written and rewrite({"txt": b"a", **members}) == (written, said)


def test_members_that_cannot_fail_keep_their_names():
    plain = {"txt", "text", "transcript", "cls", "cls2", "index", "inx", "id"}
    assert {*autodecode.decoders, *autodecode.IMAGE_EXTENSIONS} <= DECODED | plain
    members = {**MEMBERS, "jpg": encode("JPEG"), "txt": b"a", "json": b"{}"}
    written, _ = rewrite(members)
    assert sorted(written.values()) == sorted(members.values())
    kept = {name for name in members if written.get(name) is members[name]}
    assert kept == {*READ_AS_THEY_ARE, "jpg", "txt", "json"}
    assert {name.removesuffix(".bytes") for name in set(written) - kept} <= {*MEMBERS, "npy.bytes"}


def test_a_sample_is_the_scored_one_by_image_and_caption():
    image = encode("JPEG")
    sha256 = hashlib.sha256(image).hexdigest()
    members = {"png": b"other", "jpg": image, "json": json.dumps({"caption": ["a dog", "b"]}).encode()}
    assert is_scored(members, sha256, "a dog")
    assert not is_scored(members, sha256, "b")
    assert not is_scored({**members, "txt": b"a cat"}, sha256, "a dog")
    assert not is_scored({**members, "jpg": image + b"x"}, sha256, "a dog")
    assert not is_scored({"json": members["json"]}, sha256, "a dog")
    assert not is_scored({"jpg": image, "txt": b"\xff"}, sha256, "a dog")
    assert is_scored({"txt": b"a dog"}, None, "a dog") and not is_scored(members, None, "a dog")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_rows(folder: Path) -> dict[str, dict[str, Any]]:
    (shard,) = expand_input(str(folder))
    return {row["uid"]: row for table in read_shard(shard, 100) for row in table.to_pylist()}


def test_odd_samples_come_out_as_open_clip_reads_them(tiny_scorer, tmp_path):
    samples = corpus()
    odd_json = b'{"score": "mine", "similarity": NaN, "best": [1e400], "half": "\\ud800", '
    odd_json += b'"original_width": true, "best": 1}'
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
    assert len(found) == len(samples) - 1 == get_dataset_size(str(tmp_path / "out/shards/00000000.tar"))[0]
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
    # As the run reports; and every json has raycomp's own fields, with a user's field under another name.
    assert run["images_rewritten"] == len(rewritten)
    assert (
        f"{len(rewritten)} of {len(kept)} images rewritten as PNG"
        in (tmp_path / "out/report.html").read_text()
    )
    own = {"uid", "original_sha256", "original_format", "alignment", "mean_pas", "score"}
    jsons = [json.loads(row["json"]) for row in written.values()]
    assert all(own <= one.keys() for one in jsons)
    assert [one["original_score"] for one in jsons if "original_score" in one] == ["mine"]
    raycomp.select(str(tmp_path / "out"), {"shard_images": "png"}, str(tmp_path / "png"))
    with tarfile.open(tmp_path / "png/shards/00000000.tar") as tar:
        assert {name.partition(".")[2] for name in tar.getnames()} & {*IMAGE_EXTENSIONS} == {"png"}
    pairs, indices, _ = check_all(make_config(input=str(tmp_path / "out")))
    assert len(load_shard(pairs, 0, indices[0])) == len(kept)
