"""Lists of single images, and folders of images with texts: what is a sample, and what is wrong with it."""

import io
import json
import os
import re
import tarfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.config.options import ColumnsConfig
from raycomp.data import inputs, reader
from raycomp.data.inputs import expand_input, fingerprint_shards
from raycomp.data.reader import check_tables, explain_faults, read_shard
from raycomp.run.progress import check_bad_rows

CAPTIONS = ["a dog", "two cats", "a red ball"]


def read(spec: object, **columns: str) -> list[dict]:
    shards = expand_input(str(spec), columns=ColumnsConfig(**columns))
    return [row for shard in shards for table in read_shard(shard, 2) for row in table.to_pylist()]


def write_images(folder: Path, count: int = 3) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (folder / f"{i}.jpg").write_bytes(b"\xff\xd8\xff" + bytes([i]))


def test_texts_next_to_images(tmp_path):
    for folder, text in (("a", CAPTIONS[0]), ("b/c", CAPTIONS[1])):
        write_images(tmp_path / folder, 2)
        for i in range(2):
            (tmp_path / folder / f"{i}.txt").write_text(f"{text} {i}\n")
    (tmp_path / "a/0.json").write_text('{"nsfw": 0.5, "url": "https://a.org/0"}')
    (tmp_path / "a/1.txt").unlink()
    (tmp_path / "a/0.jpg.txt").write_text("another text")
    found = {row["key"]: row for row in read(tmp_path)}
    assert [*found] == ["a/0.jpg", "a/0.jpg.txt", "a/1.jpg", "b/c/0.jpg", "b/c/1.jpg"]
    assert found["a/0.jpg"]["caption"] == "a dog 0\n" and found["a/0.jpg"]["url"] == "https://a.org/0"
    assert json.loads(found["a/0.jpg"]["json"]) == {"nsfw": 0.5, "url": "https://a.org/0"}
    assert found["a/1.jpg"]["status"] == "no_caption"
    (one,) = read(tmp_path / "a/0.jpg")
    assert one["key"] == "0.jpg" and one["caption"] == "a dog 0\n" and one["url"] == "https://a.org/0"
    with pytest.raises(ValueError, match=r"a/1\.jpg': has no text: write its caption to .*a/1\.txt"):
        read(tmp_path / "a/1.jpg")


def test_uids_depend_on_paths_and_captions_alone(tmp_path, monkeypatch):
    """Not on the order of a list, on files that are added, on the parts of a folder or on its place."""
    monkeypatch.setattr(inputs, "PART_IMAGES", 3)
    write_images(tmp_path / "in", 8)
    for i in range(8):
        (tmp_path / f"in/{i}.txt").write_text("a dog")
    before = {row["key"]: row["uid"] for row in read(tmp_path / "in")}
    shards = expand_input(str(tmp_path / "in"))
    assert len(set(before.values())) == 8 and len(shards) == 3
    printed = fingerprint_shards(shards)
    assert printed[0] == {"name": "images-00000", "size": 3 * (4 + 5)}
    (tmp_path / "in").rename(tmp_path / "moved")
    assert fingerprint_shards(expand_input(str(tmp_path / "moved"))) == printed
    (tmp_path / "moved/00.jpg").write_bytes(b"new")
    (tmp_path / "moved/00.txt").write_text("new")
    after = {row["key"]: row["uid"] for row in read(tmp_path / "moved")}
    assert {key: after[key] for key in before} == before
    lines = [f"{i}.jpg,caption {i}" for i in range(8)]
    uids = []
    for order in (lines, lines[::-1]):
        (tmp_path / "moved/list.csv").write_text("\n".join(["image,caption", *order]))
        uids.append({row["key"]: row["uid"] for row in read(tmp_path / "moved/list.csv")})
    assert uids[0] == uids[1] and len(set(uids[0].values())) == 8


def test_several_captions_of_an_image_that_is_read_once(tmp_path, monkeypatch):
    opened = []
    real = reader.samples.open_image
    monkeypatch.setattr(reader.samples, "open_image", lambda *place: opened.append(place[2]) or real(*place))
    write_images(tmp_path, 2)
    rows = [{"file_name": f"{i}.jpg", "captions": ["a dog", "a brown dog", None, "dog"]} for i in range(2)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for how, expected in [
        ("first", ["a dog"]),
        ("longest", ["a brown dog"]),
        ("all", ["a dog", "a brown dog", "dog"]),
    ]:
        opened.clear()
        found = read(tmp_path, captions=how)
        assert sorted(opened) == ["0.jpg", "1.jpg"], how
        assert [row["caption"] for row in found] == expected * 2, how
        ends = ["", "#1", "#2"][: len(expected)]
        assert [row["key"] for row in found] == [f"{i}.jpg{end}" for i in range(2) for end in ends]
        assert len({row["uid"] for row in found}) == len(found), how
        image_ids = [json.loads(row["json"])["image_id"] for row in found]
        of_first = [found[0]["uid"], found[len(expected)]["uid"]]
        assert image_ids == [one for one in of_first for _ in expected], how


def test_what_is_wrong_is_a_status(tmp_path):
    write_images(tmp_path / "in")
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    os.symlink("../secret.jpg", tmp_path / "in/out.jpg")
    os.mkfifo(tmp_path / "in/pipe.jpg")
    rows = {
        "0.jpg,a dog": "ok",
        "none.jpg,a dog": "image_file_missing",
        "pipe.jpg,a dog": "image_file_missing",
        "../secret.jpg,a dog": "image_path_refused",
        "out.jpg,a dog": "image_path_refused",
        "/etc/passwd,a dog": "image_path_refused",
        ",a dog": "no_image",
        "1.jpg,": "empty_caption",
        "2.jpg": "bad_row",
        "2.jpg,a cat,a dog": "bad_row",
        "1.jpg,  ": "empty_caption",
    }
    text = "\n".join(["image,caption", *rows]).encode() + b"\n2.jpg,caf\xe9\ncaf\xe9.jpg,a dog\n"
    (tmp_path / "in/list.csv").write_bytes(b"\xef\xbb\xbf" + text)
    found = read(tmp_path / "in/list.csv")
    assert [row["status"] for row in found] == [*rows.values(), "bad_encoding", "bad_encoding"]
    assert found[8]["key"] == "line-000000010"
    lines = ['{"image": "0.jpg", "caption": "a"}', "{", "[1]", "", '{"image": 3, "caption": "a"}']
    lines += ['{"image": "", "caption": "a"}', '{"image": "\\ud800.jpg", "caption": "a"}']
    (tmp_path / "in/list.jsonl").write_text("\n".join(lines))
    found = [row["status"] for row in read(tmp_path / "in/list.jsonl")]
    assert found == ["ok", "bad_json", "bad_json", "no_image", "no_image", "bad_encoding"]
    bad = {"captions.json": b"{", "captions-2.json": b"3", "bad.csv": b'a\n"' + b"x" * (1 << 25)}
    for name, data in bad.items():
        (tmp_path / "in" / name).write_bytes(data)
        status = "bad_row" if name == "bad.csv" else "unreadable_shard"
        assert [row["status"] for row in read(tmp_path / "in" / name)] == [status]
    (tmp_path / "in/empty.csv").write_text("image,caption\n")
    assert [row["status"] for row in read(tmp_path / "in/empty.csv")] == ["empty_shard"]


def test_numbers_of_a_csv_are_numbers_in_json(tmp_path):
    write_images(tmp_path)
    (tmp_path / "a.csv").write_text("image,caption,nsfw,code,empty\n0.jpg,3 dogs,0.5,007,\n")
    [found] = read(tmp_path / "a.csv")
    fields = json.loads(found["json"])
    assert fields.pop("image_id") == found["uid"]
    assert fields == {"caption": "3 dogs", "nsfw": 0.5, "code": "007", "empty": None}


def test_columns_and_root_are_named(tmp_path):
    write_images(tmp_path / "photos")
    (tmp_path / "lists").mkdir()
    lines = ["picture,said", "0.jpg,a dog", f"{tmp_path}/photos/1.jpg,a cat", "../lists/a.csv,no"]
    (tmp_path / "lists/a.csv").write_text("\n".join(lines))
    found = read(tmp_path / "lists/a.csv", image="picture", caption="said", root=str(tmp_path / "photos"))
    assert [row["status"] for row in found] == ["ok", "ok", "ok"]
    assert [row["caption"] for row in found] == ["a dog", "a cat", "no"]
    refused = read(tmp_path / "lists/a.csv", image="picture", caption="said")
    assert [row["status"] for row in refused] == ["image_file_missing", "image_path_refused", "ok"]


def test_what_cannot_be_right_is_refused_at_once(new_folder):
    no_captions = r"holds 6 images and no captions; write captions\.csv"
    for name, text, said in [
        ("a.csv", "foto,said\n0.jpg,a\n", r"the image column by columns\.image, its columns are foto, said"),
        ("a.csv", "image,said\n0.jpg,a\n", r"name the caption column by columns\.caption"),
        ("a.jsonl", '{"image": "https://a.org/0", "caption": "a"}', "download first"),
        ("a.csv", "image,caption\nx/0.jpg,a\n", r"none of its first images is there, .*columns\.root"),
        ("a.csv", "image,caption\n0.jpg ,a\n", r"such as '0\.jpg ', but '0\.jpg' is; write its paths so"),
        ("a.csv", "image,caption\nb\\0.jpg,a\n", r"but 'b/0\.jpg' is"),
        ("a.tsv", "image\tcaption\n0.jpg#0\ta\n", r"but '0\.jpg' is"),
        ("a.csv", "image,caption,caption\n0.jpg,a,\n", "has two columns caption; rename one"),
        ("a.tsv", "0.jpg\ta dog\n1.jpg\ta cat\n", r"its first line is 0\.jpg, a dog; write a header"),
        ("a.csv", "image| caption\n0.jpg| a\n", r"its first line is image\| caption; write a header"),
        ("a.csv", "version https://git-lfs.github.com/spec/v1\nx", "is a git-lfs pointer"),
        ("captions.json", '{"images": [], "info": 1}', "'images' is not a path; .*a list of them, captions"),
        ("a.docx", "", no_captions),
    ]:  # fmt: skip
        folder = new_folder()
        write_images(folder)
        write_images(folder / "b")
        (folder / name).write_text(text)
        with pytest.raises(ValueError, match=said) as error:
            check_tables(expand_input(str(folder)))
        assert "\n" not in str(error.value), (name, text, said)
    (own := new_folder() / "images").mkdir()
    write_images(own)
    (own.parent / "a.csv").write_text("image,caption\n0.jpg,a\n")
    with pytest.raises(ValueError, match=rf"add --columns\.root {own}$"):
        check_tables(expand_input(str(own.parent / "a.csv")))
    with pytest.raises(ValueError, match=r"names no file that ends in one of \.tar, .*there are 1 of \.docx"):
        expand_input(str(folder / "*.docx"))
    path = folder / "a.parquet"
    pq.write_table(pa.table({"image": [b"x"], "text": ["a"]}), path)
    check_tables(expand_input(str(path)))
    urls = pa.array(["https://a.org/0"])
    for column in (urls, urls.cast(pa.large_string()), urls.dictionary_encode()):
        pq.write_table(pa.table({"image": column, "caption": ["a"]}), path)
        with pytest.raises(ValueError, match=r"its images are urls, such as .*; download first"):
            check_tables(expand_input(str(path)))
    with pytest.raises(ValueError, match=r"^columns\.captions='all': has no effect on parquet shards"):
        expand_input(str(path), columns=ColumnsConfig(captions="all"))


def test_what_lies_in_an_input_that_cannot_be_read_is_said(new_folder):
    """Also of images; a tar that can be read is explained only where no row of it can be used."""
    image, text = ("0.jpg", b"image"), ("0.txt", b"a dog")
    more = ("1.jpg", b"image"), ("1.txt", b"a cat")
    line = json.dumps({"image": "0.jpg", "caption": "a"})
    for name, data, said in [
        ("a.tar", b"\x1f\x8b", "a.tar is compressed; unpack it"),
        ("a.tar", b"PK\3\4", "a.tar is a zip or 7z archive; unpack it and name its folder"),
        ("a.tar", b"\n<!DOCTYPE html>", "a.tar is html or xml, such as the error page"),
        ("a.tar", b"", "a.tar is empty, 0 bytes"),
        ("a.parquet", b"version https://git-lfs.github.com", "a.parquet is a git-lfs pointer"),
        ("a.parquet", b"ARROW1\0\0", "a.parquet is an Arrow IPC file"),
        ("a.parquet", b"PAR1" + bytes(9), "a.parquet is Parquet without its end"),
        ("a.parquet", b"nothing known", r"a.parquet starts with b'nothing known"),
        ("a.jsonl", f"[{line}]".encode(), r"starts with b'\[.*\]'; a .jsonl has an object in each"),
        ("a.jsonl", f"{line},\n{line},".encode(), r"\},'; a .jsonl has an object in each line"),
        ("captions.json", f"{line}\n{line}\n".encode(), "starts with .*; a .jsonl has an object in"),
        ("a.tar", [image, more[0], text, more[1]], "members of a sample, such as 0.jpg, not in a row; sort"),
        ("a.tar", [("0.img", b"x"), ("0.cap", b"a")], "a.tar starts with 0.img, 0.cap; a sample is an image"),
        ("a.tar", [("0.jpg", b"<html>"), text], "image 0 is html or xml"),
        ("a.tar", [image, text, *more, image], "$"),
    ]:  # fmt: skip
        path = new_folder() / name
        if isinstance(data, list):
            with tarfile.open(path, "w") as tar:
                for member, value in data:
                    info = tarfile.TarInfo(member)
                    info.size = len(value)
                    tar.addfile(info, io.BytesIO(value))
        else:
            path.write_bytes(data)
        assert re.search(f"^{said}" if said == "$" else said, explain_faults(expand_input(str(path)))), said
    for name in ("list.csv", "0.txt"):
        folder = new_folder()
        write_images(folder.parent)
        (folder / "0.jpg").symlink_to("../0.jpg")
        (folder / name).write_text("image,caption\n0.jpg,a\n")
        cause = explain_faults(expand_input(str(folder)))
        assert cause.startswith("; image 0.jpg is a link to ../0.jpg, out of its folder; copy"), cause


def test_a_single_image_in_a_list_and_captions_in_an_object_are_read(tmp_path):
    """And Karpathy's list, with a split."""
    write_images(tmp_path)
    rows = [{"image": ["0.jpg"], "caption": "a dog"}, {"image": ["0.jpg", "1.jpg"], "caption": "two"}]
    (tmp_path / "a.ndjson").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "captions.json").write_text(json.dumps({"1.jpg": {"caption": "a cat", "split": "x"}}))
    image = [{"bytes": b"x", "path": None}]
    pq.write_table(
        pa.table({"image": [image, [*image, *image]], "caption": ["a", "b"]}), tmp_path / "p.parquet"
    )
    said = {"split": "test", "sentences": [{"raw": "a red ball"}, {"raw": "b"}]}
    listed = {"images": [{"filename": "2.jpg", "filepath": "", **said}]}
    (tmp_path / "dataset_coco.json").write_text(json.dumps(listed))
    assert [row["status"] for row in read(tmp_path / "a.ndjson")] == ["ok", "no_image"]
    assert [row["caption"] for row in read(tmp_path / "dataset_coco.json")] == ["a red ball"]
    assert [row["caption"] for row in read(tmp_path / "captions.json")] == ["a cat"]
    assert [row["status"] for row in read(tmp_path / "p.parquet")] == ["ok", "no_image"]


def test_img2datasets_failed_rows_and_its_table_beside_a_folder(tmp_path):
    """Failed downloads are not bad rows; a table without images describes the folder of its name."""
    names = {"url": ["https://a.org/0", "https://a.org/1"], "caption": ["a dog", "a cat"]}
    names |= {"status": ["success", "failed_to_download"]}
    (tmp_path / "packed").mkdir()
    pq.write_table(pa.table({**names, "jpg": [b"x", None]}), tmp_path / "packed/0.parquet")
    found = [row["status"] for row in read(tmp_path / "packed")]
    assert found == ["ok", "not_downloaded"]
    check_bad_rows("input", Counter(found), 0.0)
    write_images(tmp_path / "files/00000")
    (tmp_path / "files/00000/0.txt").write_text("a dog")
    table = tmp_path / "files/00000.parquet"
    pq.write_table(pa.table(names), table)
    assert [row["key"] for row in read(tmp_path / "files") if row["status"] == "ok"] == ["00000/0.jpg"]
    with pytest.raises(ValueError, match=rf"input={tmp_path}/files/00000$"):
        check_tables(expand_input(str(table)))
    listed = {"file_name": ["00000/0.jpg"], "caption": ["a"], "url": ["x"]}
    pq.write_table(pa.table(listed), table)  # it names the images of that folder
    assert [row["status"] for row in read(tmp_path / "files")] == ["ok"]
