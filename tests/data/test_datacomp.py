"""Curated shards as DataComp's and open_clip's readers see them, and the subset file against np.sort."""

import io
import json
import tracemalloc
import uuid
from collections.abc import Iterator

import numpy as np
import pytest
import webdataset

from raycomp.curation import outputs
from raycomp.curation.outputs import SUBSET_DTYPE, enrich, write_index, write_shard, write_subset


def spreads(rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield uids as two halves: spread, with one first byte, small, repeated, extreme, and none."""
    uid_N2 = rng.integers(0, 2**64, (600, 2), np.uint64)
    yield uid_N2
    yield uid_N2 & np.uint64(2**56 - 1)
    yield np.stack([np.zeros(600, np.uint64), np.arange(600, dtype=np.uint64)], 1)
    yield np.repeat(uid_N2[:3], 200, axis=0)
    yield np.array([[2**64 - 1, 0], [0, 2**64 - 1], [2**63, 1], [0, 0]], np.uint64)
    yield uid_N2[:0]


@pytest.mark.parametrize("sort_rows", [64, 100_000])
def test_subset_equals_what_datacomp_itself_writes(tmp_path, monkeypatch, sort_rows):
    """Tuples of two halves, sorted, saved."""
    monkeypatch.setattr(outputs, "_SORT_ROWS", sort_rows)
    rng = np.random.default_rng(0)
    for spread in spreads(rng):
        uid_N2 = rng.permutation(spread)
        chunks = [uid_N2[:13], uid_N2[13:13], uid_N2[13:]]
        assert write_subset(chunks, str(tmp_path / "subset.npy")) == len(uid_N2)
        saved = io.BytesIO()
        np.save(saved, np.sort(np.array([tuple(map(int, uid)) for uid in uid_N2], SUBSET_DTYPE)))
        assert (tmp_path / "subset.npy").read_bytes() == saved.getvalue()


def test_subset_memory_does_not_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "_SORT_ROWS", 500)

    def peak(num_chunks: int) -> int:
        tracemalloc.start()
        chunks = (np.random.default_rng(i).integers(0, 2**64, (500, 2), np.uint64) for i in range(num_chunks))
        write_subset(chunks, str(tmp_path / f"{num_chunks}.npy"))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(2)
    assert peak(12) < 1.3 * peak(4)


def test_photos_through_datacomps_layout(photos, tmp_path):
    """As webdataset and open_clip read them: three curated shards of 25, 25 and 10."""
    from open_clip_train.data import get_dataset_size

    folder = tmp_path / "out"
    uids = [f"{i:032x}" for i in range(1, len(photos) + 1)]
    samples = []
    for i, (uid, (image, caption)) in enumerate(zip(uids, photos, strict=True)):
        members = {"jpg": image, "json": b'{"url": "u", "width": 3}', "npy": b"kept"}
        members |= {"txt": caption.encode()} if i % 2 else {}
        samples.append((uid, enrich(members, uid, caption, {"alignment": 0.25, "mean_pas": None})))
    for i in range(3):
        part = samples[25 * i : 25 * (i + 1)]
        assert write_shard(str(folder), i, iter(part)) == len(part)
        assert json.loads((folder / f"{i:08d}_stats.json").read_text()) == {"successes": len(part)}
    write_index(str(folder), [25, 25, 10], [np.array([[0, int(uid, 16)] for uid in uids], np.uint64)])
    others = {path.name for path in folder.iterdir() if path.name[:4] != "0000"}
    assert others == {"__len__", "sample_ids.npy", "sizes.json"}
    theirs = list(webdataset.WebDataset([f"{folder}/{i:08d}.tar" for i in range(3)], shardshuffle=False))
    assert [sample["__key__"] for sample in theirs] == [f"{uid}-0" for uid in uids]
    assert [(sample["jpg"], sample["txt"].decode()) for sample in theirs] == photos
    assert {sample["npy"] for sample in theirs} == {b"kept"}
    fields = json.loads(theirs[1]["json"])
    assert fields == {"url": "u", "width": 3, "uid": uids[1], "alignment": 0.25, "mean_pas": None}
    assert list(fields) == ["url", "width", "uid", "alignment", "mean_pas"]
    assert get_dataset_size(f"{folder}/{{00000000..00000002}}.tar") == (60, 3)


def test_enrich_keeps_what_is_there():
    members = {
        "webp": b"w",
        "txt": b"\xef\xbb\xbfodd",
        "json": b'{"b": 1e3, "alignment": "own", "uid": "FF"}',
    }
    found = enrich(members, "ab", "ignored", {"alignment": 0.5})
    assert list(found) == ["webp", "txt", "json"] and found["txt"] == members["txt"]
    assert json.loads(found["json"]) == {
        **{"b": 1000.0, "alignment": 0.5, "original_alignment": "own", "uid": "ab", "original_uid": "FF"}
    }
    again = json.loads(enrich(found, "ab", "ignored", {"alignment": 0.7, "original_uid": 1})["json"])
    assert (again["alignment"], again["original_alignment"], again["original_uid"]) == (0.7, "own", "FF")
    assert enrich({"jpg": b"x"}, "ab", "caf\u00e9", {}) == {
        "jpg": b"x",
        "json": b'{"uid": "ab"}',
        "txt": "caf\u00e9".encode(),
    }
    odd = b'{"a": NaN, "b": [1e400, {"c": -Infinity}], "d": "x\\ud800", "e": 1, "e": 2}'
    assert enrich({"json": odd}, "ab", "c", {"alignment": float("nan")})["json"] == (
        b'{"a": null, "b": [null, {"c": null}], "d": "x?", "e": 2, "uid": "ab", "alignment": null}'
    )


def test_an_own_uid_that_is_not_written_is_kept():
    uid = "0123456789abcdef0123456789abcdef"
    for own, more in [
        ('{"uid": "row 7"}', {"original_uid": "row 7"}),
        ('{"uid": 7, "original_uid": "mine"}', {"original_uid": "mine"}),
        (f'{{"uid": "{uuid.UUID(uid)}"}}', {}),
        ('{"uid": null}', {}),
        ("{}", {}),
    ]:
        once = enrich({"json": own.encode()}, uid, "c", {})
        assert json.loads(once["json"]) == {"uid": uid, **more}, own
        assert enrich(once, uid, "c", {}) == once, own
