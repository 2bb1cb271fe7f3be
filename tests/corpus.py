"""A small corpus for the tests of whole runs: rendered scenes, and shards with every kind of bad input."""

import io
import json
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import raycomp
from lab.worlds.samples import world_shards
from lab.worlds.scenes import Scene, Thing
from raycomp.config import ScorerConfig
from raycomp.curation.config import AttributeConfig, CurateConfig, SelectConfig
from raycomp.data.samples import write_tar
from raycomp.words import PER_TARGET, SHOWABLE

# Of the world that many tests share.
NUM, PER_SHARD = 90, 30


def mean_drop(**fields: Any) -> AttributeConfig:
    """Return options under which PAS is the mean drop of the showable nouns."""
    return AttributeConfig(**{"aggregate": "mean", "unit": PER_TARGET, "targets": SHOWABLE} | fields)


def by_cpi(**fields: Any) -> CurateConfig:
    """Return a config of the rule cpi over mean drops, but for ``fields``."""
    return CurateConfig(**{"attribute": mean_drop(), "select": SelectConfig("cpi")} | fields)


def write_world_shards(folder: Path, count: int, per_shard: int, seed: int = 0) -> str:
    """Write clean scenes; return the input spec."""
    for name, samples in world_shards(count, 0, seed, per_shard=per_shard):
        write_tar(str(folder / name), samples)
    return str(folder)


def scenes(count: int, seed: int) -> list[dict[str, bytes]]:
    """Return the members of clean scenes."""
    return [members for _, samples in world_shards(count, 0, seed, per_shard=count) for _, members in samples]


def read_captions(shared: Path, *sources: str) -> list[list[str]]:
    """Return the captions of each photo of sets of real photos."""
    files = (shared / "data" / source / "captions.jsonl" for source in sources)
    return [json.loads(line)["captions"] for file in files for line in file.read_text("utf-8").splitlines()]


def curate_with_metadata(folder: Path, scorer: ScorerConfig, num: int) -> Path:
    """Curate scenes whose json holds nsfw (not all), width and url, in two shards; return its folder."""
    rng = np.random.default_rng(0)
    found = scenes(num, seed=3)
    for i, members in enumerate(found):
        fields = {"nsfw": float(rng.random()), "width": 7, "url": f"https://img{i % 4}.example.org/{i}.jpg"}
        members["json"] = json.dumps(fields if i % 10 else {"url": fields["url"]}).encode()
    for shard in range(2):
        rows = [(f"{i:03d}", found[i]) for i in range(shard * num // 2, (shard + 1) * num // 2)]
        write_tar(str(folder / f"in/{shard}.tar"), rows)
    config = by_cpi(input=str(folder / "in"), scorer=scorer, attribute=mean_drop(pool=1.0))
    raycomp.curate(config, folder / "out")
    return folder / "out"


def write_png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG of colours that declares a size, with these chunks in it."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in [(b"IHDR", header), *chunks, (b"IEND", b"")]
    )
    return b"\x89PNG\r\n\x1a\n" + body


def write_bad_shards(folder: Path) -> dict[str, int]:
    """Write shards with every bad input there is; return the expected count of every status."""
    folder.mkdir(parents=True, exist_ok=True)
    good = iter(scenes(40, seed=9))
    write_tar(str(folder / "00-good.tar"), [(f"g{i:02d}", next(good)) for i in range(20)])
    sample = next(good)
    image_name, image = next((name, data) for name, data in sample.items() if name in ("png", "jpg"))
    long_caption, pixels = b"a red cube and " * 7000, (b"IDAT", zlib.compress(b"\0" * 100))
    odd = [
        ("no-image", {"txt": b"a red cube"}),
        ("no-text", {image_name: image}),
        ("empty-text", {image_name: image, "txt": b"  \n"}),
        ("not-utf8", {image_name: image, "txt": b"caf\xe9 \xff"}),
        ("long", {image_name: image, "txt": long_caption}),
        ("emoji", {image_name: image, "txt": "\U0001f600 \U0001f680".encode()}),
        ("rtl", {image_name: image, "txt": "\u05db\u05dc\u05d1 \u05d0\u05d3\u05d5\u05dd".encode()}),
        ("html", {image_name: image, "txt": b"<script>document.title='owned'</script> a red cube"}),
        ("corrupt", {image_name: b"\xff\xd8 no picture", "txt": b"a red cube"}),
        ("cut", {image_name: image[: len(image) // 2], "txt": b"a red cube"}),
        ("bomb", {"png": write_png(60_000, 60_000, pixels), "txt": b"a red cube"}),
        ("bad-json", {image_name: image, "txt": b"a red cube", "json": b"{not json"}),
        ("../../escape", {image_name: image, "txt": b"a blue cube beside a green ball"}),
    ]
    write_tar(str(folder / "01-odd.tar"), odd)
    twice = next(good)
    uid = json.dumps({"uid": "ab" * 16}).encode()
    write_tar(
        str(folder / "02-duplicates.tar"),
        [("same", twice), ("other", next(good)), ("same", twice), ("own-uid", {**next(good), "json": uid})],
    )
    _write_apart(folder / "03-apart.tar", next(good))
    write_tar(str(folder / "04-own-uid.tar"), [("again", {**next(good), "json": uid})])
    whole = (folder / "00-good.tar").read_bytes()
    (folder / "05-truncated.tar").write_bytes(_cut_inside(folder / "00-good.tar", whole, 5))
    (folder / "06-empty.tar").write_bytes(b"\0" * 10240)
    (folder / "07-no-tar.tar").write_bytes(b"this is no tar " * 100)
    return {
        # good + long, rtl, html, escape + first of "same", other, first of the own uid + five before the cut
        "aligned": 20 + 5 + 3 + 5,
        "no_image": 1 + 2,
        "no_caption": 1 + 1,
        "empty_caption": 1,
        "bad_encoding": 1,
        "corrupt_image": 2,
        "image_too_large": 1,
        "bad_json": 1,
        "duplicate_uid": 1,
        "uid_conflict": 1,
        "truncated_shard": 1,
        "empty_shard": 1,
        "unreadable_shard": 1,
    }


def _write_apart(path: Path, members: dict[str, bytes]) -> None:
    """Write one sample whose members do not stand together."""
    name, data = next((name, data) for name, data in members.items() if name in ("png", "jpg"))
    with tarfile.open(path, "w") as tar:
        for member, content in ((f"a.{name}", data), ("b.cls", b"0"), ("a.txt", members["txt"])):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def _cut_inside(path: Path, whole: bytes, num_samples: int) -> bytes:
    """Cut a tar in the middle of its member after ``num_samples`` whole samples."""
    keys: list[str] = []
    with tarfile.open(path) as tar:
        for member in tar:
            key = member.name.split(".")[0]
            if key not in keys:
                keys.append(key)
            if len(keys) > num_samples:
                return whole[: member.offset_data + member.size // 2]
    raise AssertionError("the tar has too few samples")


def scene_from_dict(values: dict[str, Any]) -> Scene:
    """Return the scene that ``scene_to_dict`` wrote, after a trip through json too."""
    things = tuple(Thing(**thing) for thing in values["things"])
    return Scene(**{**values, "things": things, "relations": tuple(values["relations"])})
