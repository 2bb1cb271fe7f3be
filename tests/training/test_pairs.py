"""What is trained on: from shards, Parquet and curations, narrowed and joined; and what is refused."""

import io
import json
import shutil
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from raycomp.config import TooMuchBadData, UserError
from raycomp.core.selection import parse_uids
from raycomp.curation.outputs import write_subset
from raycomp.data.files import Folder
from raycomp.data.inputs import expand_input
from raycomp.data.parquet import write_table
from raycomp.data.samples import write_tar
from raycomp.schema import NEGATIVES_SCHEMA, PAIRS_SCHEMA
from raycomp.training.pairs import (
    Pairs,
    check_pairs,
    find_pairs,
    index_shard,
    load_shard,
    tally_pairs,
)
from raycomp.words import DUPLICATE_UID, NOT_IN_SUBSET
from tests.corpus import write_bad_shards
from tests.sealed import seal
from tests.training.pairs import check_all, index_all, make_config


def make_image(seed: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 30, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def tally_all(indices: list[pa.Table]) -> Counter:
    return sum((tally_pairs(table)[0] for table in indices), Counter())


def uid_of(number: int) -> str:
    return f"{number:032x}"


@pytest.fixture(scope="module")
def album(tmp_path_factory) -> Path:
    """Three Parquet shards of four pairs; the uid of a pair is its number, its caption says it."""
    folder = tmp_path_factory.mktemp("album")
    for shard in range(3):
        numbers = range(shard * 4, shard * 4 + 4)
        columns = {
            "uid": list(map(uid_of, numbers)),
            "image": list(map(make_image, numbers)),
            "caption": [f"pair {number}" for number in numbers],
        }
        pq.write_table(pa.table(columns), folder / f"{shard}.parquet")
    return folder


def write_negatives(folder: Path, files: list[dict[int, list[str]]], **record) -> Path:
    """Write what ``raycomp negatives`` leaves: files of texts by the number of a pair."""
    for number, texts in enumerate(files):
        rows = [
            {
                "uid": uid_of(pair),
                "caption": f"pair {pair}",
                "negatives": [
                    {"text": text, "op": ("SWAP", "ADD")[i % 2], "kind": "object"}
                    for i, text in enumerate(some)
                ],
                "status": "ok",
            }
            for pair, some in texts.items()
        ]
        table = pa.Table.from_pylist(rows, NEGATIVES_SCHEMA)
        write_table(table, str(folder / "negatives" / f"{number:05d}.parquet"), NEGATIVES_SCHEMA)
    num = sum(map(len, files))
    funnel = {"read": num, "corpus": num, "kept": num, "dropped": {}}
    run = {
        "kind": "negatives",
        "status": "finished",
        "config": {"input": "elsewhere"},
        "fingerprint": {"input": "another"},
        "versions": {},
        "funnel": funnel,
        "warnings": [],
        **record,
    }
    (folder / "run.json").write_text(json.dumps(run))
    seal(Folder(str(folder)))
    return folder


def test_every_bad_sample_is_counted_and_the_counts_add_up(tmp_path):
    expected = write_bad_shards(tmp_path)
    expected["ok"] = expected.pop("aligned")
    expected[DUPLICATE_UID] += expected.pop("uid_conflict")
    _, indices, reasons = check_all(make_config(input=str(tmp_path), max_bad_fraction=0.3))
    assert reasons == expected
    with pytest.raises(TooMuchBadData, match=r"^input: 28\.6% of 49 rows cannot be used \(1 bad_encoding"):
        check_all(make_config(input=str(tmp_path), max_bad_fraction=0.28))
    assert sum(map(len, indices)) == reasons["ok"] and all(t.schema == PAIRS_SCHEMA for t in indices)
    assert all(t["position"].to_pylist() == sorted(t["position"].to_pylist()) for t in indices)


def test_an_image_beyond_max_pixels_is_counted(album):
    _, reasons = index_all(find_pairs(make_config(input=str(album), **{"train.max_pixels": 24 * 30})))
    assert reasons == {"ok": 12}
    pairs = find_pairs(make_config(input=str(album), **{"train.max_pixels": 24 * 30 - 1}))
    indices, reasons = index_all(pairs)
    assert reasons == {"image_too_large": 12}
    with pytest.raises(ValueError, match=r"input='.*': no pairs to train on \(12 image_too_large"):
        check_pairs(pairs, reasons, tally_all(indices))


def write_broken(path: Path, num: int, num_broken: int) -> Path:
    """Write a Parquet shard, of whose images the first ones do not decode."""
    columns = {
        "uid": list(map(uid_of, range(num))),
        "image": [b"none" if i < num_broken else make_image(i) for i in range(num)],
        "caption": [f"pair {i}" for i in range(num)],
    }
    pq.write_table(pa.table(columns), path)
    return path


def test_a_shard_of_broken_images_is_not_trained_on_unasked(tmp_path):
    path = write_broken(tmp_path / "0.parquet", 60, 57)
    said = r"^input: 95\.0% of 60 rows cannot be used \(57 corrupt_image\), more than max_bad_fraction=0\.05"
    with pytest.raises(TooMuchBadData, match=said):
        check_all(make_config(input=str(path)))
    pairs, _, reasons = check_all(make_config(input=str(path), max_bad_fraction=0.95))
    (line,) = check_pairs(pairs, reasons, Counter(pairs=3))
    assert line == ("input: 57 of 60 rows are corrupt_image (the image bytes do not decode); left out")


def test_rows_that_a_subset_leaves_out_are_no_part_of_the_share(tmp_path):
    path = write_broken(tmp_path / "0.parquet", 60, 3)
    check_all(make_config(input=str(path)))
    write_subset([parse_uids(list(map(uid_of, range(10))))], str(tmp_path / "subset.npy"))
    named = {"input": str(path), "subset": str(tmp_path / "subset.npy")}
    with pytest.raises(TooMuchBadData, match=r"30\.0% of 10 rows cannot be used \(3 corrupt_image\)"):
        check_all(make_config(**named))
    check_all(make_config(**named, max_bad_fraction=0.3))


def test_loaded_rows_are_those_of_the_index(album):
    pairs, indices, _ = check_all(make_config(input=str(album)))
    rows = indices[1].take([1, 3])
    loaded = load_shard(pairs, 1, rows)
    assert loaded.drop_columns(["image", "first_row"]).equals(rows)
    assert loaded["first_row"].to_pylist() == [0, 1]
    assert loaded["image"].to_pylist() == [make_image(5), make_image(7)]
    assert load_shard(pairs, 0, rows.slice(0, 0)).num_rows == 0


def test_a_shard_that_changed_is_said(album, tmp_path):
    folder = shutil.copytree(album, tmp_path / "album", dirs_exist_ok=True)
    pairs, indices, _ = check_all(make_config(input=str(folder)))
    table = pq.read_table(folder / "1.parquet")
    blank = table.set_column(1, "image", pa.array([None] * 4, pa.binary()))
    for changed in (table.slice(1), table.take([1, 0, 2, 3]), blank):
        pq.write_table(changed, folder / "1.parquet")
        with pytest.raises(UserError, match=r"1\.parquet: its pairs differ from those that the run listed"):
            load_shard(pairs, 1, indices[1])


def test_an_image_has_several_captions(tmp_path):
    image = make_image(0)

    def about(**own) -> bytes:
        return json.dumps(own).encode()

    samples = [
        {"txt": b"one", "json": about(captions=["a", " ", "b"])},
        {"txt": b"one", "json": about(captions=[])},
        {"txt": b"one", "json": about(captions="no list", caption=["x", "y"])},
        {"json": about(caption=["first", "second"])},
    ]
    write_tar(str(tmp_path / "a.tar"), [(f"{i}", {"jpg": image, **one}) for i, one in enumerate(samples)])
    texts = pa.array([["p", None, "q"], ["r"]], pa.list_(pa.string()))
    pq.write_table(pa.table({"image": [image] * 2, "caption": texts}), tmp_path / "b.parquet")
    _, indices, _ = check_all(make_config(input=str(tmp_path)))
    assert [table["captions"].to_pylist() for table in indices] == [
        [["a", "b"], ["one"], ["one"], ["first"]],
        [["p", "q"], ["r"]],
    ]


def test_a_subset_says_how_often_an_epoch_has_each_pair(album, tmp_path):
    """Against the rows of a slow loop; a second sample of the same uid in the input is dropped as ever."""
    for name in ["subset.npy", "kept.parquet"]:
        folder = shutil.copytree(album, tmp_path / "album", dirs_exist_ok=True)
        again = pq.read_table(folder / "0.parquet").slice(2, 2)
        pq.write_table(again, folder / "3.parquet")
        wanted = [uid_of(number) for number in (9, 2, 9, 3, 9, 2, 5, 9)]
        if name.endswith(".npy"):
            write_subset([parse_uids(wanted)], str(tmp_path / name))
        else:
            pq.write_table(pa.table({"uid": wanted}), tmp_path / name)
        pairs, indices, reasons = check_all(make_config(input=str(folder), subset=str(tmp_path / name)))
        assert reasons == {"ok": 4, NOT_IN_SUBSET: 8, DUPLICATE_UID: 2}
        rows = [
            uid for table in indices for row in table.to_pylist() for uid in [row["uid"]] * row["num_rows"]
        ]
        assert sorted(rows) == sorted(wanted)
        tally = tally_all(indices)
        assert (tally["samples"], tally["pairs"], tally["copies"], tally["captions"]) == (4, 8, 4, 8)
        loaded = load_shard(pairs, 2, indices[2])
        assert loaded["image"].to_pylist() == [make_image(9)] and loaded["num_rows"].to_pylist() == [4]


def test_an_image_outside_the_subset_is_never_decoded(tmp_path):
    columns = {"uid": [uid_of(0), uid_of(1)], "image": [b"no image", make_image(1)], "caption": ["a", "b"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    pq.write_table(pa.table({"uid": [uid_of(1)]}), tmp_path / "kept")
    _, _, reasons = check_all(make_config(input=str(tmp_path / "a.parquet"), subset=str(tmp_path / "kept")))
    assert reasons == {"ok": 1, NOT_IN_SUBSET: 1}


def test_unknown_uids_of_a_subset_are_refused_but_bad_samples_are_known(album, tmp_path):
    subset = tmp_path / "kept.parquet"
    pq.write_table(pa.table({"uid": [uid_of(3), uid_of(77), uid_of(78)]}), subset)
    lines = f"2 of the 3 uids that it names have no pair in {album}; one is {uid_of(77)}"
    with pytest.raises(ValueError, match=lines):
        check_all(make_config(input=str(album), subset=str(subset)))
    columns = {"uid": [uid_of(0), uid_of(1)], "image": [b"no image", make_image(1)], "caption": ["a", "b"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    pq.write_table(pa.table({"uid": [uid_of(0), uid_of(1)]}), subset)
    config = make_config(input=str(tmp_path / "a.parquet"), subset=str(subset), max_bad_fraction=0.5)
    assert check_all(config)[2] == {"ok": 1, "corrupt_image": 1}
    pq.write_table(pa.table({"uid": [uid_of(0), uid_of(1), uid_of(2)]}), subset)
    with pytest.raises(ValueError, match=r"2 of the 3 .* no pair in .*, 1 of them bad samples of it; one is"):
        check_all(config)


def test_a_subset_that_is_none_is_refused(album, tmp_path):
    for name, content, line in [
        ("none.npy", None, "cannot be read; name a .npy or Parquet file"),
        ("none.parquet", None, "cannot be read; name a .npy or Parquet file"),
        ("bad.npy", b"no npy", "is damaged or no npy file"),
        ("float.npy", np.zeros(3), "must be uids of type u8,u8 in one dimension, is float64"),
        ("pickle.npy", np.array([{}]), "is damaged or no npy file"),
        ("bad.parquet", b"no parquet", "is damaged or no Parquet file"),
        ("other.parquet", pa.table({"key": ["a"]}), "has no column uid"),
        ("number.parquet", pa.table({"uid": [1]}), "its column uid must be text, is int64"),
        ("text.parquet", pa.table({"uid": ["a"]}), "uid='a': must be 32 hex digits"),
    ]:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, np.ndarray):
            np.save(path, content)
        elif content is not None:
            pq.write_table(content, path)
        with pytest.raises(ValueError) as error:
            find_pairs(make_config(input=str(album), subset=str(path)))
        said = str(error.value)
        assert said.startswith(f"subset={str(path)!r}: ") and line in said and "\n" not in said


def test_negatives_are_joined_by_uid_wherever_they_stand(album, tmp_path):
    files = [{9: ["a", "b"], 2: ["c"]}, {3: [], 0: ["d"], 500: ["e"]}]
    negatives = write_negatives(tmp_path / "negatives", files)
    _, indices, _ = check_all(make_config(input=str(album), negatives=str(negatives)))
    found = {
        uid: [(one["text"], one["op"], one["kind"], one["image"]) for one in some]
        for table in indices
        for uid, some in zip(table["uid"].to_pylist(), table["negatives"].to_pylist(), strict=True)
    }
    expected = {
        9: [("a", "SWAP", "object", False), ("b", "ADD", "object", False)],
        2: [("c", "SWAP", "object", False)],
        0: [("d", "SWAP", "object", False)],
    }
    assert found == {uid_of(pair): expected.get(pair, []) for pair in range(12)}
    kinds = sum((tally_pairs(table)[1] for table in indices), Counter())
    assert kinds == {("SWAP", "object"): 3, ("ADD", "object"): 1}
    tally = tally_all(indices)
    once = {"samples": 12, "pairs": 12, "captions": 12, "with_negatives": 3, "negatives": 4}
    assert tally == once
    some, repeated = indices[0], pa.array([3, 1, 2, 5])
    table = some.set_column(some.schema.get_field_index("num_rows"), "num_rows", repeated)
    slow = some.take([0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 3])
    found, wanted = tally_pairs(table), tally_pairs(slow)
    assert found[0] == wanted[0] | {"samples": 4, "copies": 7}
    assert found[1:] == wanted[1:] == ({("SWAP", "object"): 5}, 1)


def test_images_of_negatives_are_joined_by_uid_and_text(album, tmp_path):
    negatives = write_negatives(tmp_path / "negatives", [{2: ["a", "b", "c"], 9: ["a", "d"]}])
    (tmp_path / "shown" / "pictures").mkdir(parents=True)
    (tmp_path / "shown" / "pictures" / "9.jpg").write_bytes(make_image(109))
    bytes_of = {"uid": [uid_of(2)] * 2 + [uid_of(500)], "negative": ["c", "b", "a"]}
    bytes_of["image"] = [make_image(102), b"no image", make_image(1)]
    paths = {"uid": [uid_of(9)] * 2, "negative": ["d", "a"], "path": ["pictures/9.jpg", "pictures/8.jpg"]}
    for name, columns in (("a", bytes_of), ("b", paths)):
        pq.write_table(pa.table(columns), tmp_path / "shown" / f"{name}.parquet", row_group_size=1)
    options = {"negatives": str(negatives), "negative_images": str(tmp_path / "shown")}
    with pytest.raises(TooMuchBadData, match=r"negative_images: 50.0% of 4 pictures .*2 unreadable_picture"):
        check_all(make_config(input=str(album), **options))
    pairs, indices, _ = check_all(make_config(input=str(album), max_bad_fraction=0.5, **options))
    for number, place, shown in ((2, 2, [None, None, make_image(102)]), (9, 1, [None, make_image(109)])):
        shard = number // 4
        row = load_shard(pairs, shard, indices[shard]).slice(number % 4, 1).to_pylist()[0]
        assert row["negative_images"] == shown
        assert [one["image"] for one in row["negatives"]] == [data is not None for data in shown]
        assert row["negatives"][place]["image"] and row["uid"] == uid_of(number)
    tally = tally_all(indices)
    assert tally["with_negative_images"] == tally["negative_images"] == 2
    pq.write_table(pa.table({**bytes_of, "uid": [uid_of(600)] * 3}), tmp_path / "shown" / "a.parquet")
    (tmp_path / "shown" / "b.parquet").unlink()
    with pytest.raises(ValueError, match="none of the 5 negatives has a readable image"):
        check_all(make_config(input=str(album), **options))


def test_a_run_that_is_no_source_is_refused(album, tmp_path):
    folder = tmp_path / "run"
    for status, kind, line in (
        ("running", "curate", "has not finished"),
        ("finished", "negatives", "holds negatives, must hold a curation or a selection"),
    ):
        shutil.rmtree(folder, ignore_errors=True)
        write_negatives(folder, [{2: ["a"]}], status=status, kind=kind)
        with pytest.raises(ValueError, match=line):
            find_pairs(make_config(input=str(folder)))
    with pytest.raises(ValueError, match="input: an input is empty"):
        find_pairs(make_config(input=""))
    with pytest.raises(ValueError, match="no such file or folder"):
        find_pairs(make_config(input=str(tmp_path / "nowhere")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="names no file that ends in one of"):
        find_pairs(make_config(input=str(tmp_path / "empty")))


def test_negatives_that_do_not_fit_are_refused(album, tmp_path):
    folder = tmp_path / "negatives"
    for record, line in (
        ({"status": "running"}, "has not finished"),
        ({"kind": "probe aro"}, "holds probe aro, must hold a run of raycomp negatives"),
        ({}, f"none of the 12 pairs of {album} has negatives in"),
    ):
        write_negatives(folder, [{500: ["a"]}], **record)
        with pytest.raises(ValueError, match=line):
            check_all(make_config(input=str(album), negatives=str(folder)))
    with pytest.raises(ValueError, match="no such folder"):
        find_pairs(make_config(input=str(album), negatives=str(tmp_path / "none")))
    for option, columns in {"negative_images": "uid, negative", "hard_images": "uid and neighbours"}.items():
        with pytest.raises(ValueError, match=f"{option}=.*: must be Parquet with the columns {columns}"):
            find_pairs(make_config(input=str(album), **{option: str(album)}))


def test_negatives_of_another_data_set_with_the_same_names_are_refused(album, tmp_path):
    negatives = write_negatives(tmp_path / "negatives", [{9: ["a"], 2: ["c"]}])
    check_all(make_config(input=str(album), negatives=str(negatives)))
    path = next((negatives / "negatives").iterdir())
    table = pq.read_table(path)
    spaced = pa.array([f"  {caption.replace(' ', '   ')} " for caption in table["caption"].to_pylist()])
    for captions, is_refused in ((spaced, False), (pa.array(["pair 9", "a ship"]), True)):
        place = table.schema.get_field_index("caption")
        write_table(table.set_column(place, "caption", captions), str(path), NEGATIVES_SCHEMA)
        seal(Folder(str(negatives)))
        said = (
            rf"negatives: 1 of \d captions in .* differ from the pair with the same uid, such as {uid_of(2)}"
        )
        with pytest.raises(ValueError, match=said) if is_refused else nullcontext():
            check_all(make_config(input=str(album), negatives=str(negatives)))


def test_of_a_curations_shards_only_the_caption_that_was_scored_is_trained_on(tmp_path):
    about = json.dumps({"uid": uid_of(1), "captions": ["scored", "never scored"]}).encode()
    write_tar(str(tmp_path / "0.tar"), [("a", {"jpg": make_image(1), "txt": b"scored", "json": about})])
    shards = tuple(expand_input(str(tmp_path)))
    for is_curated, expected in ((True, ["scored"]), (False, ["scored", "never scored"])):
        table, _ = index_shard(Pairs("x", shards, 10**8, is_curated=is_curated), 0)
        assert table["captions"].to_pylist() == [expected]
