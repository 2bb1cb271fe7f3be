"""Curated shards as DataComp's and open_clip's readers see them, and the subset file against np.sort."""

import io
import json
import tracemalloc
import uuid
from pathlib import Path

import numpy as np
import webdataset

from raycomp.curation import outputs
from raycomp.curation.outputs import SUBSET_DTYPE, enrich, write_index, write_shard, write_subset


def pairs(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 2**64, (count, 2), np.uint64)


def oracle(uid_N2: np.ndarray) -> np.ndarray:
    """What DataComp itself writes: tuples of two halves, sorted, saved."""
    return np.sort(np.array([tuple(map(int, uid)) for uid in uid_N2], SUBSET_DTYPE))


SPREADS = {
    "spread": lambda rng: pairs(rng, 600),
    "one first byte": lambda rng: pairs(rng, 600) & np.uint64(2**56 - 1),
    "small numbers": lambda rng: np.stack([np.zeros(600, np.uint64), np.arange(600, dtype=np.uint64)], 1),
    "repeated": lambda rng: np.repeat(pairs(rng, 3), 200, axis=0),
    "extremes": lambda rng: np.array([[2**64 - 1, 0], [0, 2**64 - 1], [2**63, 1], [0, 0]], np.uint64),
    "none": lambda rng: np.empty((0, 2), np.uint64),
}


def test_subset_equals_sort(tmp_path_factory, monkeypatch):
    for spread in SPREADS:
        for sort_rows in [64, 100_000]:
            tmp_path = tmp_path_factory.mktemp("case")
            monkeypatch.setattr(outputs, "_SORT_ROWS", sort_rows)
            rng = np.random.default_rng(0)
            uid_N2 = rng.permutation(SPREADS[spread](rng))
            path = tmp_path / "subset.npy"
            chunks = [uid_N2[:13], uid_N2[13:13], uid_N2[13:]]
            assert write_subset(chunks, str(path)) == len(uid_N2), (spread, sort_rows)
            saved = io.BytesIO()
            np.save(saved, oracle(uid_N2))
            assert path.read_bytes() == saved.getvalue(), (spread, sort_rows)


def test_subset_memory_does_not_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "_SORT_ROWS", 2000)

    def peak(num_chunks: int) -> int:
        tracemalloc.start()
        chunks = (pairs(np.random.default_rng(i), 2000) for i in range(num_chunks))
        write_subset(chunks, str(tmp_path / f"{num_chunks}.npy"))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(2)
    assert peak(12) < 1.3 * peak(4)


def write_corpus(folder: Path, photos: list[tuple[bytes, str]]) -> list[str]:
    """Write the photos as three curated shards of 25, 25 and 10; return their uids."""
    uids = [f"{i:032x}" for i in range(1, len(photos) + 1)]
    samples = []
    for uid, (image, caption) in zip(uids, photos, strict=True):
        members = {"jpg": image, "json": b'{"url": "u", "width": 3}', "npy": b"kept"}
        if int(uid, 16) % 2:
            members["txt"] = caption.encode()
        samples.append((uid, enrich(members, uid, caption, {"alignment": 0.25, "mean_pas": None})))
    for index in range(3):
        part = samples[25 * index : 25 * (index + 1)]
        assert write_shard(str(folder), index, iter(part)) == len(part)
    halves = np.array([divmod(int(uid, 16), 2**64) for uid in uids], np.uint64)
    write_index(str(folder), [25, 25, 10], [halves])
    return uids


def test_photos_through_datacomps_layout(photos, tmp_path):
    from open_clip_train.data import get_dataset_size

    uids = write_corpus(tmp_path / "out", photos)
    found = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert found == sorted(
        ["__len__", "sample_ids.npy", "sizes.json"]
        + [f"{i:08d}{end}" for i in range(3) for end in (".tar", "_stats.json")]
    )
    counts = [json.loads((tmp_path / f"out/{i:08d}_stats.json").read_text()) for i in range(3)]
    assert counts == [{"successes": 25}, {"successes": 25}, {"successes": 10}]
    urls = [str(tmp_path / f"out/{i:08d}.tar") for i in range(3)]
    theirs = list(webdataset.WebDataset(urls, shardshuffle=False))
    assert [sample["__key__"] for sample in theirs] == [f"{uid}-0" for uid in uids]
    assert [(sample["jpg"], sample["txt"].decode()) for sample in theirs] == photos
    assert {sample["npy"] for sample in theirs} == {b"kept"}
    fields = [json.loads(sample["json"]) for sample in theirs]
    assert fields[1] == {"url": "u", "width": 3, "uid": uids[1], "alignment": 0.25, "mean_pas": None}
    assert list(fields[1]) == ["url", "width", "uid", "alignment", "mean_pas"]
    assert get_dataset_size(f"{tmp_path}/out/{{00000000..00000002}}.tar") == (60, 3)


def test_enrich_keeps_what_is_there():
    members = {
        "webp": b"w",
        "txt": b"\xef\xbb\xbfodd",
        "json": b'{"b": 1e3, "alignment": "own", "uid": "FF"}',
    }
    found = enrich(members, "ab", "ignored", {"alignment": 0.5})
    assert list(found) == ["webp", "txt", "json"] and found["txt"] == members["txt"]
    assert found["json"] == b'{"b": 1000.0, "alignment": 0.5, "uid": "ab", "original_uid": "FF"}'
    assert enrich({"jpg": b"x"}, "ab", "caf\u00e9", {}) == {
        "jpg": b"x",
        "json": b'{"uid": "ab"}',
        "txt": "caf\u00e9".encode(),
    }
    odd = b'{"a": NaN, "b": [1e400, {"c": -Infinity}], "d": "x\\ud800", "e": 1, "e": 2}'
    assert enrich({"json": odd}, "ab", "c", {"alignment": float("nan")})["json"] == (
        b'{"a": null, "b": [null, {"c": null}], "d": "x?", "e": 2, "uid": "ab", "alignment": null}'
    )


WRITTEN = "0123456789abcdef0123456789abcdef"
OWN_UIDS = {
    '{"uid": "row 7"}': {"original_uid": "row 7"},
    '{"uid": 7}': {"original_uid": 7},
    '{"uid": 7, "original_uid": "mine"}': {"original_uid": "mine"},
    f'{{"uid": "{WRITTEN.upper()}"}}': {},
    f'{{"uid": "{uuid.UUID(WRITTEN)}"}}': {},
    '{"uid": null}': {},
    "{}": {},
}


def test_an_own_uid_that_is_not_written_is_kept():
    for own in OWN_UIDS:
        once = enrich({"json": own.encode()}, WRITTEN, "c", {})
        assert json.loads(once["json"]) == {"uid": WRITTEN, **OWN_UIDS[own]}, own
        assert enrich(once, WRITTEN, "c", {}) == once, own
