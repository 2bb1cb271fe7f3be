"""Every fault of a tar is a row; good tars read as the webdataset library reads them."""

import hashlib
import io
import json
import random
import re
import tarfile
import time
from pathlib import Path

import pyarrow as pa
import pytest
import webdataset

from raycomp import words
from raycomp.curation.outputs import enrich
from raycomp.data import samples
from raycomp.data.inputs import ShardPath
from raycomp.data.samples import extract_tar, read_tar, write_tar

UID = "0123456789abcdef0123456789abcdef"
LAYOUTS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
SHARD = ShardPath(7, "00000.tar", "00000.tar", "tar")
Members = list[tuple[str, bytes]]


def raw_tar(members: list, layout: int = tarfile.USTAR_FORMAT, kind: bytes = tarfile.SYMTYPE) -> bytes:
    """Return a tar of files (bytes), links (the name that they lead to) and the kinds of other members."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=layout) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if isinstance(data, str):
                info.type, info.linkname = kind, data
            info.size = len(data) if isinstance(data, bytes) else 0
            tar.addfile(info, io.BytesIO(data) if isinstance(data, bytes) else None)
    return file.getvalue()


def read(data: bytes | io.BytesIO) -> list[dict]:
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    found = [row for table in read_tar(stream, SHARD, 3) for row in table.to_pylist()]
    assert [row["position"] for row in found] == list(range(len(found)))
    assert [row["is_last"] for row in found] == [False] * (len(found) - 1) + [True]
    assert {row["shard_ordinal"] for row in found} == {7}
    return found


def sample(key: str, image: bytes = b"image", text: bytes = b"a dog", **fields) -> Members:
    return [(f"{key}.jpg", image), (f"{key}.txt", text), (f"{key}.json", json.dumps(fields).encode())]


def statuses(data: bytes | io.BytesIO) -> list[tuple[str, str]]:
    return [(row["key"], row["status"]) for row in read(data)]


def with_json(text: bytes) -> bytes:
    return raw_tar([("k.jpg", b"x"), ("k.txt", b"a dog"), ("k.json", text)])


def test_good_rows():
    first, second = read(raw_tar(sample("a/000", uid=UID.upper(), url="http://x") + sample("a/001")))
    assert (first["key"], first["status"], first["uid"]) == ("a/000", "ok", UID)
    assert (first["url"], first["caption"], second["image"]) == ("http://x", "a dog", b"image")
    assert second["uid"] == hashlib.sha256(b"00000.tar\0a/001").hexdigest()[:32]
    assert json.loads(first["json"]) == {"uid": UID.upper(), "url": "http://x"} and second["url"] is None
    assert read(raw_tar(sample("0", text=b"one", caption="two")))[0]["caption"] == "one"
    for fields in ({"url": "u"}, {"URL": "u"}, {"url": None, "URL": "u"}, {"url": ["u", "v"]}):
        assert read(raw_tar(sample("0", **fields)))[0]["url"] == "u", fields
    for uid in ["", "0" * 31, "g" * 32, 5, None, "0" * 31 + "\n", "\u0660" * 32, "-" * 32, "0-" * 16]:
        (found,) = read(raw_tar(sample("0", uid=uid)))
        assert found["uid"] == hashlib.sha256(b"00000.tar\x000").hexdigest()[:32], uid
        assert found["status"] == "ok", uid
    for extension in ["jpg", "JPEG", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jfif"]:
        (found,) = read(raw_tar([(f"0.{extension}", b"pixels"), ("0.txt", b"a")]))
        assert (found["status"], found["image"]) == ("ok", b"pixels"), extension


NO_OBJECTS = [
    b"[1]", b"\xff", b"[" * 200_000, b"", b"9" * 5000, b"null",
    b'{"a": ' + b"9" * 5000 + b"}", b'{"a": ' * 200 + b"1" + b"}" * 200, b'{"a": ' + b"[" * 100 + b"]" * 101,
]  # fmt: skip
OBJECTS = [
    b'{"a": NaN, "b": [-Infinity, 1e400]}', b'{"a": "\\ud800", "\\udfff": 1}', b'{"a": 1, "a": {"a": 2}}',
    b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}", b'{"a": [' + b"[]," * 500 + b"{}]}",
    b'{"a": ' + b"9" * 4300 + b"}",
]  # fmt: skip


def test_json_that_python_reads_as_an_object_is_good_and_can_be_written():
    for text in NO_OBJECTS:
        (found,) = read(with_json(text))
        assert (found["status"], found["json"]) == ("bad_json", None), text[:50]
    for text in OBJECTS:
        (found,) = read(with_json(text))
        assert (found["status"], found["json"]) == ("ok", text.decode()), text[:50]
        written = enrich({"json": text}, UID, "a dog", {"alignment": 0.5})["json"]
        again = json.loads(written, parse_constant=pytest.fail)
        assert (again["uid"], again["alignment"]) == (UID, 0.5), text[:50]
        json.dumps(again, ensure_ascii=False).encode()


def test_a_class_becomes_a_field_of_the_json():
    members = [
        *[("a.jpg", b"x"), ("a.cls", b"7\n")],
        *[("b.jpg", b"x"), ("b.json", b'{"uid": "u", "cls": 1}'), ("b.cls", b"8")],
        *[("c.jpg", b"x"), ("c.cls", b"\xff"), ("c.json", b'{"a": 1}')],
    ]
    found = [json.loads(row["json"]) for row in read(raw_tar(members))]
    assert found == [{"cls": "7"}, {"uid": "u", "cls": "8"}, {"a": 1}]


def test_keys_that_come_back_and_what_is_no_sample():
    twice = read(raw_tar(sample("a") + sample("a")))
    assert [row["status"] for row in twice] == ["ok", "ok"] and twice[0]["uid"] == twice[1]["uid"]
    apart = statuses(raw_tar([("a.jpg", b"x"), *sample("b"), ("a.txt", b"a dog")]))
    assert apart == [("a", "no_caption"), ("b", "ok"), ("a", "no_image")]
    others = [("README", b"r"), ("__meta__", b"m"), ("__a__/2.jpg", b"m")]
    for kind in (tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
        data = raw_tar([("0.jpg", "/etc/passwd"), *sample("1"), *others], kind=kind)
        assert statuses(data) == [("1", "ok")], kind
    for data in (b"", raw_tar([]), raw_tar([("README", b"no sample")])):
        assert statuses(data) == [("", "empty_shard")]


@pytest.mark.parametrize("folder", ["", "deep/" * 25])
@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_links_are_never_lost_in_silence(kind, folder):
    for layout in LAYOUTS:
        # ustar lets a link be no longer
        above = "deep/" * 15 if folder and layout == tarfile.USTAR_FORMAT else folder
        prefix = "" if kind == tarfile.SYMTYPE else above
        members = [
            ("a.jpg", b"one"), ("a.txt", b"a dog"),
            ("b.jpg", f"{prefix}a.jpg"), ("b.txt", f"{prefix}a.txt"),
            ("c.jpg", b"two"), ("c.txt", f"{prefix}a.txt"),
            ("d.jpg", b"three"), ("d.txt", b"a cat"), ("d.json", f"{prefix}a.json"),
            ("e.txt", b"a cow"), ("e.png", b"four"), ("e.jpg", f"{prefix}e.png"),
            ("f.jpg", b"five"), ("f.txt", b"a hen"), ("f.cls", f"{prefix}a.cls"),
            ("g.jpg", f"{prefix}/etc/passwd"), ("g.txt", b"a pig"),
            ("h.txt", b"a fox"), ("h.jpg", f"{prefix}h.png"), ("h.png", b"six"),  # leads to a later member
            ("README", f"{prefix}a.txt"),
        ]  # fmt: skip
        data = raw_tar([(above + name, one) for name, one in members], layout, kind)
        found = read(data)
        linked = "linked_member"
        expected = ["ok", linked, linked, linked, "ok", "ok", linked, linked]
        assert [row["key"].removeprefix(above) for row in found] == list("abcdefgh"), layout
        assert [row["status"] for row in found] == expected, layout
        assert (found[4]["image"], found[4]["caption"]) == (b"four", "a cow"), layout
        assert dict(extract_tar(io.BytesIO(data), [1, 4, 5])) == {
            1: {}, 4: {"txt": b"a cow", "png": b"four", "jpg": b"four"}, 5: {"jpg": b"five", "txt": b"a hen"}
        }, layout  # fmt: skip


def test_every_cut_is_seen():
    """Cut at every block and around it: whole samples are ok rows, and one row says what happened."""
    data = raw_tar([m for i in range(4) for m in sample(f"{i}", image=bytes([i]) * 700)])
    num_bytes = (512 + 1024) + 2 * (512 + 512)
    last_byte = num_bytes - 510  # the json holds two bytes, the rest of its block is padding
    bases = range(512, 4 * num_bytes + 1024, 512)
    for cut in (base + shift for base in bases for shift in (-1, 0, 1, 2)):
        found = read(data[:cut])
        if cut < 512:
            assert [row["status"] for row in found] == ["unreadable_shard"]
            continue
        num_whole = sum(cut >= i * num_bytes + last_byte for i in range(4))
        if cut < num_bytes + 512:
            num_whole = 0  # nothing before sample 0 tells what it should have, nothing after it has begun
        assert [row["status"] for row in found] == ["ok"] * num_whole + ["truncated_shard"], cut
        assert [row["image"] for row in found[:-1]] == [bytes([i]) * 700 for i in range(num_whole)]
    assert statuses(data[: 4 * num_bytes + 1024]) == [(f"{i}", "ok") for i in range(4)]
    # Where the cut member is the next sample's, this one is whole.
    assert statuses(raw_tar(sample("a") + sample("b"))[: 3 * 1024 + 514]) == [
        ("a", "ok"), ("", "truncated_shard")
    ]  # fmt: skip


def test_members_that_are_or_claim_to_be_too_large(monkeypatch):
    info = tarfile.TarInfo("a.jpg")
    info.size = 1 << 60
    data = info.tobuf(format=tarfile.GNU_FORMAT) + b"data"
    assert statuses(data) == [("", "truncated_shard")]
    monkeypatch.setattr(samples, "MAX_MEMBER_BYTES", 2000)
    big = b"x" * 2001
    data = raw_tar(sample("a", image=big) + sample("b", text=big) + sample("c", image=b"x" * 2000))
    assert statuses(data) == [("a", "image_too_large"), ("b", "bad_encoding"), ("c", "ok")]


def test_equals_webdataset(tmp_path):
    """Keys, extensions and bytes of the webdataset library, over names of every length and layout."""
    for layout in LAYOUTS:
        rng = random.Random(layout)
        stems = ["a", "b/c.d/e", "d" * 90, "long/" * 25 + "key", "./x", "UPPER"]
        stems.append("\u00fcn\u00ef" if layout else "u")
        members = [
            (f"{stem}{i}.{extension}", rng.randbytes(rng.choice([0, 1, 511, 512, 513, 9000])))
            for i, stem in enumerate(stems)
            for extension in ("jpg", "TXT", "json", "seg.png", "cls")[: rng.randint(2, 5)]
        ]
        data = raw_tar(members, layout)
        (tmp_path / "twin.tar").write_bytes(data)
        theirs = [
            (one["__key__"], {name: value for name, value in one.items() if name[0] != "_"})
            for one in webdataset.WebDataset(str(tmp_path / "twin.tar"), shardshuffle=False)
        ]
        keys = [row["key"] for row in read(data)]
        ours = [found for _, found in extract_tar(io.BytesIO(data), range(100))]
        assert list(zip(keys, ours, strict=True)) == theirs and len(keys) == len(stems), layout


_WEBDATASET_MEMBER = re.compile(r"^(?!__[^/]*__(?:$|/))((?:.*/|)[^.]+)[.]([^/]*)$")


def test_what_macos_keeps_beside_a_file_parts_no_sample():
    members = [(f"d/{dot}0.{kind}", b"x") for kind in ("jpg", "txt") for dot in ("._", "")]
    assert statuses(raw_tar(members)) == [("d/0", "ok")]


def test_names_are_cut_as_webdatasets_pattern_cuts_them():
    rng = random.Random(0)
    parts = ["a", "b", ".", "..", "/", "//", "__", "___", "jpg", ".jpg", "./", "__x__", "\u00e9", " "]
    for _ in range(10_000):
        name = "".join(rng.choice(parts) for _ in range(rng.randrange(1, 9)))
        match = _WEBDATASET_MEMBER.match(name)
        assert samples._split(name) == (match and (match[1], match[2].lower())), name


def test_names_and_records_of_a_megabyte_take_little_time():
    before = time.process_time()
    for part in ("a/", "./", "a", ".", "/", "__", "a.b/", "__a", "_/"):
        samples._split(part * (1_000_000 // len(part)))
    for record in (b"1 ", b"2 ", b"3 =", b"9", b"5 a=b", b"=", b"8 a"):
        samples._parse_pax(record * (1_000_000 // len(record)) + b"=", None, None)
    assert time.process_time() - before < 10


def test_blocks_are_cut_by_rows_or_bytes(monkeypatch):
    data = raw_tar([m for i in range(10) for m in sample(f"{i}", image=bytes(400))])

    def tables(block_rows: int) -> list[pa.Table]:
        return list(read_tar(io.BytesIO(data), SHARD, block_rows))

    for block_rows, sizes in ((4, [4, 4, 2]), (5, [5, 5]), (100, [10])):
        assert [table.num_rows for table in tables(block_rows)] == sizes
    monkeypatch.setattr(samples, "BLOCK_BYTES", 1000)
    assert [table.num_rows for table in tables(4)] == [3, 3, 3, 1]
    assert pa.concat_tables(tables(1)).equals(pa.concat_tables(tables(7)))


class OddStream(io.BytesIO):
    """Hands over at most ``most`` bytes at a time; its connection breaks after ``limit`` bytes."""

    most, limit = 1 << 30, 1 << 60

    def read(self, size: int = -1) -> bytes:
        if self.tell() + size > self.limit:
            raise ConnectionResetError("the connection broke")
        return super().read(min(size, self.most))


def test_short_reads_change_nothing_and_errors_of_the_file_system_pass_through(monkeypatch):
    data = raw_tar([m for i in range(5) for m in sample(f"{i}", image=b"y" * 3000)])
    with monkeypatch.context() as patch:
        patch.setattr(OddStream, "most", 100)
        assert read(OddStream(data)) == read(data)
    monkeypatch.setattr(OddStream, "limit", len(data) // 2)
    tables = read_tar(OddStream(data), SHARD, 1)
    assert next(tables)[words.KEY].to_pylist() == ["0"]
    with pytest.raises(ConnectionResetError):
        list(tables)


def test_writing_twice_gives_equal_bytes_and_a_failed_write_leaves_nothing(tmp_path: Path):
    members = [(f"{i:05d}", {"jpg": bytes([i]), "txt": b"x", "json": b"{}"}) for i in range(9)]
    write_tar(str(tmp_path / "a.tar"), members)
    write_tar(str(tmp_path / "b.tar"), iter(members))
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert {(member.mtime, member.uid, member.gid, member.uname) for member in tar} == {(0, 0, 0, "")}
    with pytest.raises(ZeroDivisionError):
        write_tar(str(tmp_path / "c.tar"), ((f"{1 // (2 - i)}", {"txt": b"x"}) for i in range(3)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "b.tar"]


def test_damage_anywhere_is_rows_and_never_an_error():
    """Flip, cut and repeat bytes of good tars of every layout: each file still gives numbered rows."""
    rng = random.Random(0)
    seen = set()
    for trial in range(200):
        names = [rng.choice(["k", "long/" * 30, "\u00fc"]) + str(i) for i in range(4)]
        data = bytearray(raw_tar([m for name in names for m in sample(name)], rng.choice(LAYOUTS)))
        del data[rng.randrange(len(data)) :]
        for _ in range(rng.randrange(4) if data else 0):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(1, 600)] = rng.randbytes(rng.randrange(1, 600))
        found = read(bytes(data))
        seen |= {row["status"] for row in found}
        assert all(row["status"] in words.STATUSES and len(row["uid"]) == 32 for row in found), trial
    assert {"ok", "truncated_shard", "unreadable_shard"} <= seen
