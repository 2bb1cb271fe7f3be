"""Every fault of a tar is a row; good tars read as the webdataset library reads them."""

import hashlib
import io
import json
import random
import re
import subprocess
import sys
import tarfile

import pyarrow as pa
import pytest
import webdataset

from raycomp import words
from raycomp.curation.outputs import enrich
from raycomp.data import samples
from raycomp.data.inputs import ShardPath
from raycomp.data.samples import extract_tar, read_tar, write_tar

UID = "0123456789abcdef0123456789abcdef"


def sample(key: str, image: bytes = b"image", text: bytes = b"a dog", **fields) -> list[tuple[str, bytes]]:
    return [(f"{key}.jpg", image), (f"{key}.txt", text), (f"{key}.json", json.dumps(fields).encode())]


def statuses(found: list[dict]) -> list[tuple[str, str]]:
    return [(row["key"], row["status"]) for row in found]


def check_numbering(found: list[dict]) -> None:
    assert [row["position"] for row in found] == list(range(len(found)))
    assert [row["is_last"] for row in found] == [False] * (len(found) - 1) + [True]
    assert {row["shard_ordinal"] for row in found} == {7}


def test_good_rows(raw_tar, rows):
    found = rows(raw_tar(sample("a/000", uid=UID.upper(), url="http://x") + sample("a/001")))
    check_numbering(found)
    assert statuses(found) == [("a/000", "ok"), ("a/001", "ok")]
    assert (found[0]["uid"], found[0]["url"], found[0]["caption"]) == (UID, "http://x", "a dog")
    assert found[1]["uid"] == hashlib.sha256(b"00000.tar\0a/001").hexdigest()[:32]
    assert json.loads(found[0]["json"]) == {"uid": UID.upper(), "url": "http://x"}
    assert found[1]["image"] == b"image" and found[1]["url"] is None


def test_invalid_own_uid_is_replaced(raw_tar, rows):
    odd = ["0" * 31 + "\n", "\u0660" * 32, "-" * 32, "0-" * 16, "0" * 16]
    for uid in ["", "0" * 31, "g" * 32, 5, None, *odd]:
        found = rows(raw_tar(sample("0", uid=uid)))
        assert found[0]["uid"] == hashlib.sha256(b"00000.tar\x000").hexdigest()[:32], uid
        assert found[0]["status"] == "ok", uid


BAD_SAMPLES = {
    "no_image": [("k.txt", b"a dog"), ("k.json", b"{}"), ("k.", b"x")],
    "no_caption": [("k.jpg", b"x"), ("k.json", b'{"caption": null}')],
    "empty_caption": [("k.jpg", b"x"), ("k.txt", b" \n\t")],
    "bad_encoding": [("k.jpg", b"x"), ("k.txt", b"caf\xe9")],
    "bad_json": [("k.jpg", b"x"), ("k.txt", b"a dog"), ("k.json", b'{"a": ')],
}


def test_bad_sample_between_good_ones(raw_tar, rows):
    for status in BAD_SAMPLES:
        found = rows(raw_tar(sample("0") + BAD_SAMPLES[status] + sample("z")))
        check_numbering(found)
        assert statuses(found) == [("0", "ok"), ("k", status), ("z", "ok")], status


NO_OBJECTS = [
    b"[1]", b"\xff", b"[" * 200_000, b"", b"9" * 5000, b"null",
    b'{"a": ' + b"9" * 5000 + b"}", b'{"a": ' * 200 + b"1" + b"}" * 200, b'{"a": ' + b"[" * 100 + b"]" * 101,
]  # fmt: skip


def test_json_that_is_no_object(raw_tar, rows):
    for text in NO_OBJECTS:
        found = rows(raw_tar([("k.jpg", b"x"), ("k.txt", b"a dog"), ("k.json", text)]))
        assert (found[0]["status"], found[0]["json"]) == ("bad_json", None), text


def test_json_that_python_reads_is_good(raw_tar, rows):
    for text in [
        b'{"a": NaN, "b": [-Infinity, 1e400]}',
        b'{"a": "\\ud800", "\\udfff": 1}',
        b'{"a": 1, "a": {"a": 2}}',
        b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}",
        b'{"a": [' + b"[]," * 500 + b"{}]}",
        b'{"a": ' + b"9" * 4300 + b"}",
    ]:
        found = rows(raw_tar([("k.jpg", b"x"), ("k.txt", b"a dog"), ("k.json", text)]))
        assert (found[0]["status"], found[0]["json"]) == ("ok", text.decode()), text
        written = enrich({"json": text}, UID, "a dog", {"alignment": 0.5})["json"]
        again = json.loads(written, parse_constant=pytest.fail)
        assert (again["uid"], again["alignment"]) == (UID, 0.5), text
        json.dumps(again, ensure_ascii=False).encode()


def test_a_class_becomes_a_field_of_the_json(raw_tar, rows):
    found = rows(
        raw_tar(
            [
                *[("a.jpg", b"x"), ("a.cls", b"7\n")],
                *[("b.jpg", b"x"), ("b.json", b'{"uid": "u", "cls": 1}'), ("b.cls", b"8")],
                *[("c.jpg", b"x"), ("c.cls", b"\xff"), ("c.json", b'{"a": 1}')],
            ]
        )
    )
    assert [json.loads(row["json"]) for row in found] == [{"cls": "7"}, {"uid": "u", "cls": "8"}, {"a": 1}]
    assert [row["status"] for row in found] == ["no_caption"] * 3


def test_txt_goes_before_json(raw_tar, rows):
    assert rows(raw_tar(sample("0", text=b"one", caption="two")))[0]["caption"] == "one"


def test_image_extensions(raw_tar, rows):
    for extension in ["jpg", "JPEG", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jfif"]:
        found = rows(raw_tar([(f"0.{extension}", b"pixels"), ("0.txt", b"a")]))
        assert (found[0]["status"], found[0]["image"]) == ("ok", b"pixels"), extension


def test_keys_that_come_back(raw_tar, rows):
    twice = rows(raw_tar(sample("a") + sample("a")))
    assert statuses(twice) == [("a", "ok"), ("a", "ok")] and twice[0]["uid"] == twice[1]["uid"]
    apart = rows(raw_tar([("a.jpg", b"x"), *sample("b"), ("a.txt", b"a dog")]))
    assert statuses(apart) == [("a", "no_caption"), ("b", "ok"), ("a", "no_image")]


def test_what_is_no_file_is_passed_over(rows):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for kind in (tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo("0.jpg")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        for name, data in [*sample("1"), ("README", b"r"), ("__meta__", b"m"), ("__a__/2.jpg", b"m")]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    assert statuses(rows(file.getvalue())) == [("1", "ok")]


def tar_of_links(members: list[tuple[str, bytes | str]], kind: bytes, layout: int) -> bytes:
    """Return a tar of files (bytes) and links (the name that they lead to)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=layout) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if isinstance(data, str):
                info.type, info.linkname = kind, data
            else:
                info.size = len(data)
            tar.addfile(info, None if isinstance(data, str) else io.BytesIO(data))
    return file.getvalue()


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("folder", ["", "deep/" * 25])
@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_links_are_never_lost_in_silence(rows, kind, folder, layout):
    if folder and layout == tarfile.USTAR_FORMAT:
        folder = "deep/" * 15  # as long as ustar lets a link be

    def link(name: str) -> str:
        return name if kind == tarfile.SYMTYPE else folder + name

    members = [
        ("a.jpg", b"one"), ("a.txt", b"a dog"),
        ("b.jpg", link("a.jpg")), ("b.txt", link("a.txt")),  # as GNU tar stores a file of two names
        ("c.jpg", b"two"), ("c.txt", link("a.txt")),
        ("d.jpg", b"three"), ("d.txt", b"a cat"), ("d.json", link("a.json")),
        ("e.txt", b"a cow"), ("e.png", b"four"), ("e.jpg", link("e.png")),
        ("f.jpg", b"five"), ("f.txt", b"a hen"), ("f.cls", link("a.cls")),
        ("g.jpg", link("/etc/passwd")), ("g.txt", b"a pig"),
        ("h.txt", b"a fox"), ("h.jpg", link("h.png")), ("h.png", b"six"),  # leads to a later member
        ("README", link("a.txt")),
    ]  # fmt: skip
    named = [(folder + name, data) for name, data in members]
    found = rows(tar_of_links(named, kind, layout))
    check_numbering(found)
    assert [row["key"].removeprefix(folder) for row in found] == list("abcdefgh")
    linked = "linked_member"
    assert [row["status"] for row in found] == ["ok", linked, linked, linked, "ok", "ok", linked, linked]
    assert (found[4]["image"], found[4]["caption"]) == (b"four", "a cow")
    stream = io.BytesIO(tar_of_links(named, kind, layout))
    extracted = dict(extract_tar(stream, [1, 4, 5]))
    assert extracted == {
        1: {}, 4: {"txt": b"a cow", "png": b"four", "jpg": b"four"}, 5: {"jpg": b"five", "txt": b"a hen"}
    }  # fmt: skip


def test_dots_before_the_extension_are_reported(raw_tar, rows):
    members = [("a.b.jpg", b"x"), ("a.b.txt", b"a dog"), ("a.c.jpg", b"y"), ("a.c.txt", b"a cat")]
    found = rows(
        raw_tar([*members, ("d.jpg", b"x"), ("d.seg.png", b"m"), ("d.txt", b"a"), ("e.f.txt", b"a")])
    )
    assert statuses(found) == [("a", "ambiguous_key"), ("d", "ok"), ("e", "no_image")]


def test_empty_tars(raw_tar, rows):
    for data in (b"", raw_tar([]), raw_tar([("README", b"no sample")])):
        found = rows(data)
        check_numbering(found)
        assert statuses(found) == [("", "empty_shard")]


def test_every_cut_is_seen(raw_tar, rows):
    """Cut at every block and around it: whole samples are ok rows, and one row says what happened."""
    data = raw_tar([m for i in range(4) for m in sample(f"{i}", image=bytes([i]) * 700)])
    num_bytes = (512 + 1024) + 2 * (512 + 512)
    last_byte = num_bytes - 510  # the json holds two bytes, the rest of its block is padding
    for cut in sorted(
        {base + shift for base in range(512, 4 * num_bytes + 1024, 512) for shift in (-1, 0, 1, 2)}
    ):
        found = rows(data[:cut])
        check_numbering(found)
        if cut < 512:
            assert statuses(found) == [("", "unreadable_shard")]
            continue
        num_whole = sum(cut >= i * num_bytes + last_byte for i in range(4))
        if cut < num_bytes + 512:
            num_whole = 0  # nothing before sample 0 tells what it should have, nothing after it has begun
        assert statuses(found) == [(f"{i}", "ok") for i in range(num_whole)] + [("", "truncated_shard")], cut
        assert [row["image"] for row in found[:-1]] == [bytes([i]) * 700 for i in range(num_whole)]
    assert statuses(rows(data[: 4 * num_bytes + 1024])) == [(f"{i}", "ok") for i in range(4)]


def test_a_cut_between_members_keeps_a_sample_only_if_sure(raw_tar, rows):
    data = raw_tar(sample("a") + sample("b"))
    assert statuses(rows(data[: 6 * 1024])) == [("a", "ok"), ("b", "ok"), ("", "truncated_shard")]
    assert statuses(rows(data[: 5 * 1024])) == [("a", "ok"), ("", "truncated_shard")]
    # The cut member is b's, so a is whole.
    assert statuses(rows(data[: 3 * 1024 + 514])) == [("a", "ok"), ("", "truncated_shard")]


def test_a_member_beyond_the_limit(raw_tar, rows, monkeypatch):
    monkeypatch.setattr(samples, "MAX_MEMBER_BYTES", 2000)
    big = b"x" * 2001
    found = rows(raw_tar(sample("a", image=big) + sample("b", text=big) + sample("c", image=b"x" * 2000)))
    assert statuses(found) == [("a", "image_too_large"), ("b", "bad_encoding"), ("c", "ok")]


def test_a_member_that_claims_more_than_there_is(raw_tar, rows):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo("a.jpg")
        info.size = 1 << 60
        file.write(info.tobuf(format=tarfile.GNU_FORMAT))
        tar.fileobj = io.BytesIO()
    assert statuses(rows(file.getvalue() + b"data")) == [("", "truncated_shard")]


def test_equals_webdataset(raw_tar, tmp_path_factory):
    """Keys, extensions and bytes of the webdataset library, over names of every length and layout."""
    for layout in [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]:
        tmp_path = tmp_path_factory.mktemp("case")
        rng = random.Random(layout)
        stems = [
            "a",
            "b/c.d/e",
            "d" * 90,
            "long/" * 25 + "key",
            "./x",
            "UPPER",
            "\u00fcn\u00ef" if layout else "u",
        ]
        members = []
        for i, stem in enumerate(stems):
            for extension in ("jpg", "TXT", "json", "seg.png", "cls")[: rng.randint(2, 5)]:
                members.append(
                    (f"{stem}{i}.{extension}", rng.randbytes(rng.choice([0, 1, 511, 512, 513, 9000])))
                )
        path = tmp_path / "twin.tar"
        path.write_bytes(raw_tar(members, layout))
        theirs = [
            (s["__key__"], {k: v for k, v in s.items() if k[0] != "_"})
            for s in webdataset.WebDataset(str(path), shardshuffle=False)
        ]
        with path.open("rb") as stream:
            ours = [found for _, found in extract_tar(stream, range(100))]
        shard = ShardPath(0, str(path), "twin.tar", "tar")
        with path.open("rb") as stream:
            keys = pa.concat_tables(read_tar(stream, shard, 2))[words.KEY].to_pylist()
        assert [found for _, found in theirs] == ours, layout
        assert [key for key, _ in theirs] == keys and len(keys) == len(stems), layout


_WEBDATASET_MEMBER = re.compile(r"^(?!__[^/]*__(?:$|/))((?:.*/|)[^.]+)[.]([^/]*)$")


def test_names_are_cut_as_webdatasets_pattern_cuts_them():
    rng = random.Random(0)
    parts = ["a", "b", ".", "..", "/", "//", "__", "___", "jpg", ".jpg", "./", "__x__", "\u00e9", " "]
    for _ in range(30_000):
        name = "".join(rng.choice(parts) for _ in range(rng.randrange(1, 9)))
        match = _WEBDATASET_MEMBER.match(name)
        assert samples._split(name) == (match and (match[1], match[2].lower())), name


IN_LITTLE_TIME = """
import io, resource
from raycomp.data.samples import _parse_pax, _split
used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
resource.setrlimit(resource.RLIMIT_CPU, (used + 10,) * 2)
for part in ("a/", "./", "a", ".", "/", "__", "a.b/", "__a", "_/"):
    _split(part * (1_000_000 // len(part)))
for record in (b"1 ", b"2 ", b"3 =", b"9", b"5 a=b", b"=", b"8 a"):
    _parse_pax(record * (1_000_000 // len(record)), None, None)
    _parse_pax(record * (1_000_000 // len(record)) + b"=", None, None)
"""


def test_names_and_records_of_a_megabyte_take_little_time():
    done = subprocess.run([sys.executable, "-c", IN_LITTLE_TIME], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_blocks_are_cut_by_rows_or_bytes(raw_tar, monkeypatch):
    data = raw_tar([m for i in range(10) for m in sample(f"{i}", image=bytes(400))])
    shard = ShardPath(0, "x", "x", "tar")

    def sizes(block_rows: int) -> list[int]:
        return [table.num_rows for table in read_tar(io.BytesIO(data), shard, block_rows)]

    assert sizes(4) == [4, 4, 2] and sizes(5) == [5, 5] and sizes(100) == [10]
    monkeypatch.setattr(samples, "BLOCK_BYTES", 1000)
    assert sizes(4) == [3, 3, 3, 1]
    whole = pa.concat_tables(read_tar(io.BytesIO(data), shard, 1))
    assert whole.equals(pa.concat_tables(read_tar(io.BytesIO(data), shard, 7)))


class FailingStream(io.BytesIO):
    """A stream whose connection breaks after ``limit`` bytes."""

    limit = 8000

    def read(self, size: int = -1) -> bytes:
        if self.tell() + size > self.limit:
            raise ConnectionResetError("the connection broke")
        return super().read(size)


def test_errors_of_the_file_system_pass_through(raw_tar):
    stream = FailingStream(raw_tar([m for i in range(5) for m in sample(f"{i}")]))
    tables = read_tar(stream, ShardPath(0, "x", "x", "tar"), 1)
    assert next(tables)[words.KEY].to_pylist() == ["0"]
    with pytest.raises(ConnectionResetError):
        list(tables)


def test_short_reads_change_nothing(raw_tar, rows):
    """A stream may hand over fewer bytes than asked for before its end."""

    class Trickle(io.BytesIO):
        def read(self, size: int = -1) -> bytes:
            return super().read(min(size, 100))

    data = raw_tar(sample("a") + sample("b", image=b"y" * 3000))
    tables = read_tar(Trickle(data), ShardPath(7, "", "00000.tar", "tar"), 3)
    assert pa.concat_tables(tables).to_pylist() == rows(data)


def test_writing_twice_gives_equal_bytes(tmp_path):
    samples = [(f"{i:05d}", {"jpg": bytes([i]), "txt": b"x", "json": b"{}"}) for i in range(9)]
    write_tar(str(tmp_path / "a.tar"), samples)
    write_tar(str(tmp_path / "b.tar"), iter(samples))
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert {(member.mtime, member.uid, member.gid, member.uname) for member in tar} == {(0, 0, 0, "")}


def test_a_failed_write_leaves_nothing(tmp_path):
    def samples():
        yield "0", {"txt": b"x"}
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        write_tar(str(tmp_path / "a.tar"), samples())
    assert not list(tmp_path.iterdir())


def test_damage_anywhere_is_rows_and_never_an_error(raw_tar, rows):
    """Flip, cut and repeat bytes of good tars of every layout: each file still gives numbered rows."""
    rng = random.Random(0)
    seen = set()
    for trial in range(400):
        layout = rng.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
        names = [rng.choice(["k", "long/" * 30, "\u00fc"]) + str(i) for i in range(4)]
        data = bytearray(raw_tar([m for name in names for m in sample(name)], layout))
        del data[rng.randrange(len(data)) :]
        for _ in range(rng.randrange(4)):
            if data:
                at = rng.randrange(len(data))
                data[at : at + rng.randrange(1, 600)] = rng.randbytes(rng.randrange(1, 600))
        found = rows(bytes(data))
        check_numbering(found)
        seen |= {row["status"] for row in found}
        assert all(row["status"] in words.STATUSES and len(row["uid"]) == 32 for row in found), trial
    assert {"ok", "truncated_shard", "unreadable_shard"} <= seen
