"""Inputs that went wrong elsewhere, as people and other tools write them, each with its right rows."""

import gzip
import io
import json
import os
import re
import tarfile
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.config.options import ColumnsConfig
from raycomp.data.inputs import expand_input
from raycomp.data.reader import check_tables, read_shard
from tests.field.fuzz import run

SAYS = ["a brown dog", "two children", "a red bus", "a yellow umbrella", "a grey rock", "a white cat"]


class Case(NamedTuple):
    """Files of a folder (a path: a link), and its rows: captions, and faults' statuses; or its refusal."""

    files: dict[str, Any]
    right: list[str] | re.Pattern
    columns: dict[str, Any] = {}  # noqa: RUF012


def photo(i: int = 0) -> bytes:
    return b"\xff\xd8\xff" + bytes([i])


def pair(key: str, i: int = 0, text: str | None = None, **fields: Any) -> list[tuple[str, Any]]:
    found = [(f"{key}.jpg", photo(i)), (f"{key}.txt", SAYS[i] if text is None else text)]
    return [*found, (f"{key}.json", json.dumps(fields))] if fields else found


def tar(*members: tuple[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as out:
        for name, data in members:
            data = data.encode() if isinstance(data, str) else data
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return {"0.tar": file.getvalue()}


def parquet(columns: list[Any], names: str) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(list(map(pa.array, columns)), names.split()), file)
    return file.getvalue()


def photos(num: int = 6, **more: Any) -> dict[str, Any]:
    return {**{f"p{i}.jpg": photo(i) for i in range(num)}, **{f"a.{kind}": one for kind, one in more.items()}}


def listed(texts: list[str], between: str = ",", head: str = "image,caption") -> str:
    rows = [f"p{i}.jpg{between}{text}" for i, text in enumerate(texts)]
    return "\n".join([head.replace(",", between), *rows, ""])


def lines(texts: list[Any]) -> str:
    return "".join(json.dumps({"image": f"p{i}.jpg", "caption": t}) + "\n" for i, t in enumerate(texts))


PAIRS = [member for i in range(6) for member in pair(f"{i:05d}", i)]
APPLE = bytes.fromhex("00051607000200004d6163204f5320580000") + bytes(100)
BROKEN = {
    "gzip": gzip.compress(tar(*PAIRS)["0.tar"]),
    "a pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:abab\nsize 146946961\n",
    "html": b"<!DOCTYPE html><html><body>403 Forbidden</body></html>\n" * 12,
}
OPEN = ['"a, b"', '"a pizza', "a bus", '"a\nb"', '"x" y', '"c"']
CAFE = ["ein Caf\u00e9", *SAYS[1:]]
IMAGES = [{"id": 100 + i, "file_name": f"p{i}.jpg"} for i in range(3)]
NOTES = [{"image_id": 100 + n // 2, "caption": f"{SAYS[n // 2]} {n}"} for n in range(8)]
COCO = json.dumps({"images": IMAGES, "annotations": NOTES})
COCO_TEXTS = re.sub(r'"image_id": (\d+)', r'"image_id": "\1"', COCO)
NOTED = [f"{SAYS[i // 2]} {i}" for i in range(6)]
MISSING = ["", None, 2023, [], ["", "x"], [None, "x"], {"raw": "x"}, "nan"]
TOLD = ["empty_caption", *["no_caption"] * 3, "empty_caption", "x", "no_caption", "nan"]
MISSED = [(f"{i}.json", json.dumps({"caption": text})) for i, text in enumerate(MISSING)]
LEFT = {"p0.txt": "a", "p3.heic": b"", "p3.txt": "b", "p5.txt": "c", "P6.JPG": photo(), "P6.TXT": "d"}
NFC = ["caf\u00e9", "\u00fcber", "plain"]
NFD = {f"{unicodedata.normalize('NFD', name)}.jpg": photo() for name in NFC}
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
STRUCTS = pa.array([None, {"bytes": photo(), "path": "x"}], STRUCT)
NO_FILE, NO_COLUMN = re.compile("none of its first images is there"), re.compile("has none of the columns")

CASES = {
    "a quote that a CSV never closes": Case(
        photos(csv=listed(OPEN)), ["a, b", "bad_row", "a bus", "a\nb", "bad_row", "c"]),
    "a CSV in UTF-16": Case(photos(csv=listed(CAFE).encode("utf-16")), re.compile("is UTF-16")),
    "Flickr's tokens": Case(photos(tsv="image\tcaption\np0.jpg#0\ta dog\n"), NO_FILE),
    "members that are no neighbours": Case(
        tar(*PAIRS[::2], *PAIRS[1::2]), ["no_caption"] * 6 + ["no_image"] * 6),
    "an image that is written twice": Case(
        tar(*PAIRS[:2], PAIRS[0], *PAIRS[2:4]), [SAYS[0], "no_caption", SAYS[1]]),
    "what macOS and notebooks add to a folder": Case(
        {**dict(PAIRS), **{f"{place}{name}": APPLE for name, _ in PAIRS for place in ("__MACOSX/._", "._")},
         ".ipynb_checkpoints/0.jpg": photo()}, SAYS),
    **{f"a {kind} that is {name}": Case({f"0.{kind}": data}, ["unreadable_shard"])
       for kind in ("tar", "parquet") for name, data in BROKEN.items()},
    "shards without their content": Case(
        {**tar(*PAIRS), "1.tar": BROKEN["a pointer"], "2.tar": tar(*PAIRS)["0.tar"][:3000], "3.tar": b""},
        [*SAYS, "unreadable_shard", SAYS[0], "truncated_shard", "empty_shard"]),
    "a better caption in the json of a tar": Case(
        tar(*pair("0", re_caption="a dog")),
        re.compile("columns.caption='re_caption': has no effect on tar"), {"caption": "re_caption"}),
    "captions of a tar in another extension": Case(tar(("0.jpg", photo()), ("0.cap", "a")), ["no_caption"]),
    "captions that are missing in a tar": Case(
        tar(*(m for i, one in enumerate(MISSED) for m in ((f"{i}.jpg", photo()), one))), TOLD),
    "captions that are missing in a list": Case(photos(8, jsonl=lines(MISSING)), TOLD),
    "a hub's cache, whose files are links": Case(
        {"../blobs/0": photo(), "own/1": photo(), "p0.jpg": Path("../blobs/0"), "p1.jpg": Path("own/1"),
         "a.csv": listed(SAYS[:2])}, ["image_path_refused", SAYS[1]]),
    "leftovers in a folder": Case(
        {**LEFT, **photos(1), "p7.jpg": photo(), "p7.jpg.txt": "e", "p8.jpg": photo()},
        ["d", "a", "no_image", "no_image", "e", "no_caption"]),
    "names in two normal forms, listed": Case(
        {**NFD, "a.csv": "image,caption\n" + "".join(f"{name}.jpg,a dog\n" for name in NFC)},
        ["image_file_missing", "image_file_missing", "a dog"]),
    "names in two normal forms, as texts": Case(
        {**NFD, **{f"{name}.txt": "a dog" for name in NFC}},
        ["no_caption", "no_image", "a dog", "no_caption", "no_image"]),
    "annotations of images that are not listed": Case(
        {**photos(), "captions.json": COCO}, [*NOTED[::2], "no_image"]),
    "ids of images as texts": Case(
        {**photos(), "captions.json": COCO_TEXTS}, [*NOTED, *["no_image"] * 2], {"captions": "all"}),
    "a json list in a file of lines": Case(photos(jsonl='[{"image": "p0.jpg"}]'), ["bad_json"]),
    "lines of json with commas": Case(photos(jsonl=lines(SAYS[:2]).replace("\n", ",\n")), ["bad_json"] * 2),
    "two lists of one name": Case(
        photos(csv=listed(SAYS[:1]), jsonl=lines(SAYS[:1])), re.compile("two lists of one name")),
    "white space in a header": Case(photos(csv=listed(["a"], head="image, caption")), NO_COLUMN),
    "paths of Windows": Case(
        {**photos(1), "b/p1.jpg": photo(), "a.csv": "image,caption\np0.jpg,a\nb\\p1.jpg,b\n"},
        ["a", "image_file_missing"]),
    "columns of Parquet": Case(
        {"a.parquet": parquet([STRUCTS, pa.array(SAYS[:2]).dictionary_encode(), pa.nulls(2)], "jpg text a")},
        ["no_image", SAYS[1]]),
    **{f"Parquet with two columns {name}": Case(
        {"a.parquet": parquet([[photo()], ["a"], [column]], f"image caption {name}")},
        re.compile(f"two columns {name}")) for name, column in (("image", photo()), ("caption", "b"))},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_input_that_went_wrong_elsewhere_gives_its_right_rows(name, tmp_path):
    files, right, columns = CASES[name]
    for file, data in files.items():
        path = Path(os.path.normpath(tmp_path / "in" / file))
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, Path):
            path.symlink_to(data)
        else:
            path.write_bytes(data.encode() if isinstance(data, str) else data)
    try:
        shards = expand_input(str(tmp_path / "in"), columns=ColumnsConfig(**columns))
        check_tables(shards)
    except ValueError as error:
        assert isinstance(right, re.Pattern) and re.fullmatch(f".*{right.pattern}.*", str(error)), error
    else:
        rows = [row for shard in shards for table in read_shard(shard, 3) for row in table.to_pylist()]
        assert [row["caption"] if row["status"] == "ok" else row["status"] for row in rows] == right


@pytest.mark.parametrize("first", [0, pytest.param(20, marks=pytest.mark.slow)])
def test_every_layout_gives_the_counts_captions_and_statuses_of_one_table_of_truth(first):
    for number in range(first, first * 14 + 20):
        assert run(number)[0] == {}, f"draw {number}"
