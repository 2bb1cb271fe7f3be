"""What is trained on: from shards, Parquet and curations, narrowed and joined; and what is refused."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.config import ClusterConfig, TooMuchBadData, UserError
from raycomp.core.batches import EpochPlan, let_follow
from raycomp.core.selection import parse_uids
from raycomp.curation.outputs import write_subset
from raycomp.data.files import Folder
from raycomp.data.inputs import expand_input
from raycomp.data.parquet import write_table
from raycomp.data.samples import write_tar
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.run.executor import connect
from raycomp.schema import NEGATIVES_SCHEMA, PAIRS_SCHEMA
from raycomp.training.hard import MOST, load_mates
from raycomp.training.pairs import (
    Pairs,
    check_pairs,
    find_pairs,
    index_shard,
    load_shard,
    make_index,
    tally_pairs,
)
from raycomp.words import DUPLICATE_UID, NOT_IN_SUBSET
from tests.corpus import write_bad_shards, write_world_shards
from tests.sealed import seal, write_run
from tests.training.pairs import check_all, list_uids, make_config, make_image, tally_all


def uid_of(number: int) -> str:
    return f"{number:032x}"


def write_shard(path: Path, numbers, num_broken: int = 0) -> str:
    """Write pairs whose uid is their number, which the caption says; the first images do not decode."""
    images = [b"none" if i < num_broken else make_image(number) for i, number in enumerate(numbers)]
    texts = [f"pair {number}" for number in numbers]
    pq.write_table(pa.table({"uid": list(map(uid_of, numbers)), "image": images, "caption": texts}), path)
    return str(path)


def write_uids(path: Path, numbers) -> str:
    uids = list(map(uid_of, numbers))
    if path.suffix == ".npy":
        write_subset([parse_uids(uids)], str(path))
    else:
        pq.write_table(pa.table({"uid": uids}), path)
    return str(path)


@pytest.fixture(scope="module")
def album(tmp_path_factory) -> Path:
    """Three Parquet shards of four pairs."""
    folder = tmp_path_factory.mktemp("album")
    for shard in range(3):
        write_shard(folder / f"{shard}.parquet", range(shard * 4, shard * 4 + 4))
    return folder


def write_negatives(folder: Path, files: list[dict[int, list[str]]], **record) -> str:
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
    own = {"kind": "negatives", "config": {"input": "elsewhere"}, "fingerprint": {"input": "another"}}
    return write_run(folder, num=sum(map(len, files)), **own | record)


def write_captions(path: Path, captions: list[str]) -> str:
    """Write other captions into a file of negatives; return its run."""
    table = pq.read_table(path)
    place = table.schema.get_field_index("caption")
    write_table(table.set_column(place, "caption", pa.array(captions)), str(path), NEGATIVES_SCHEMA)
    seal(Folder(str(path.parent.parent)))
    return str(path.parent.parent)


def refuse(message: str, kind: type[Exception] = ValueError, **options) -> None:
    with pytest.raises(kind, match=message) as error:
        check_all(make_config(**options))
    assert "\n" not in str(error.value)


def test_every_bad_sample_is_counted_and_the_counts_add_up(tmp_path):
    expected = write_bad_shards(tmp_path)
    expected["ok"] = expected.pop("aligned")
    expected[DUPLICATE_UID] += expected.pop("uid_conflict")
    pairs, indices, reasons = check_all(make_config(input=str(tmp_path), max_bad_fraction=0.3))
    assert reasons == expected
    said = r"^input: 28\.6% of 49 rows cannot be used \(1 bad_encoding"
    refuse(said, TooMuchBadData, input=str(tmp_path), max_bad_fraction=0.28)
    assert sum(map(len, indices)) == reasons["ok"] and all(t.schema == PAIRS_SCHEMA for t in indices)
    assert all(t["position"].to_pylist() == sorted(t["position"].to_pylist()) for t in indices)
    lost = check_pairs(pairs, reasons, tally_all(indices))
    assert "input: 1 of 49 rows is bad_encoding" in lost[0] and "left out" in lost[0]


def test_rows_that_a_subset_leaves_out_are_no_part_of_the_share(album, tmp_path):
    """Nor are their images decoded; uids that the input lacks are refused, bad samples of it are known."""
    named = {"input": write_shard(tmp_path / "0.parquet", range(60), num_broken=3)}
    check_all(make_config(**named))
    named["subset"] = write_uids(tmp_path / "subset.npy", range(1, 11))
    refuse(r"20\.0% of 10 rows cannot be used \(2 corrupt_image\)", TooMuchBadData, **named)
    named["max_bad_fraction"] = 0.2
    assert check_all(make_config(**named))[2] == {"ok": 8, "corrupt_image": 2, NOT_IN_SUBSET: 50}
    write_uids(tmp_path / "subset.npy", (*range(1, 11), 77))
    refuse("3 of the 11 .* no pair in .*, 2 of them bad samples of it; one is", **named)
    write_uids(tmp_path / "subset.npy", (3, 77, 78))
    refuse(f"2 of the 3 uids that it names have no pair in .*; one is {uid_of(77)}", **named)
    small = make_config(input=str(album), **{"train.max_pixels": 24 * 30 - 1})
    with pytest.raises(ValueError, match=r"input='.*': no pairs to train on \(12 image_too_large"):
        check_all(small)


def test_loaded_rows_are_those_of_the_index(album, tmp_path):
    """Read from a shard that has not changed since."""
    folder = shutil.copytree(album, tmp_path / "album")
    pairs, indices, _ = check_all(make_config(input=str(folder)))
    rows = indices[1].take([1, 3])
    loaded = load_shard(pairs, 1, rows)
    assert loaded.drop_columns(["image", "first_row"]).equals(rows)
    assert loaded["first_row"].to_pylist() == [0, 1]
    assert loaded["image"].to_pylist() == [make_image(5), make_image(7)]
    assert load_shard(pairs, 0, rows.slice(0, 0)).num_rows == 0
    table = pq.read_table(folder / "1.parquet")
    blank = table.set_column(1, "image", pa.array([None] * 4, pa.binary()))
    for changed in (table.slice(1), table.take([1, 0, 2, 3]), blank):
        pq.write_table(changed, folder / "1.parquet")
        with pytest.raises(UserError, match=r"1\.parquet: its pairs differ from those that the run listed"):
            load_shard(pairs, 1, indices[1])


def test_an_image_has_several_captions(tmp_path):
    samples = [
        {"txt": b"one", "json": {"captions": ["a", " ", "b"]}},
        {"txt": b"one", "json": {"captions": []}},
        {"txt": b"one", "json": {"captions": "no list", "caption": ["x", "y"]}},
        {"json": {"caption": ["first", "second"]}},
    ]
    rows = [{"jpg": make_image(0), **one, "json": json.dumps(one["json"]).encode()} for one in samples]
    write_tar(str(tmp_path / "a.tar"), [(f"{i}", one) for i, one in enumerate(rows)])
    texts = pa.array([["p", None, "q"], ["r"]], pa.list_(pa.string()))
    pq.write_table(pa.table({"image": [make_image(0)] * 2, "caption": texts}), tmp_path / "b.parquet")
    _, indices, _ = check_all(make_config(input=str(tmp_path)))
    assert [table["captions"].to_pylist() for table in indices] == [
        [["a", "b"], ["one"], ["one"], ["first"]],
        [["p", "q"], ["r"]],
    ]
    # Of a curation's shards only the caption that was scored.
    shards = tuple(expand_input(str(tmp_path / "a.tar")))
    table, _ = index_shard(Pairs("x", shards, 10**8, is_curated=True), 0)
    assert table["captions"].to_pylist() == [["one"], ["one"], ["one"], ["first"]]


def test_a_subset_says_how_often_an_epoch_has_each_pair(album, tmp_path):
    """A second sample of the same uid in the input is dropped as ever."""
    folder = shutil.copytree(album, tmp_path / "album")
    write_shard(folder / "3.parquet", (2, 3))
    wanted = (9, 2, 9, 3, 9, 2, 5, 9)
    for name in ["subset.npy", "kept.parquet"]:
        config = make_config(input=str(folder), subset=write_uids(tmp_path / name, wanted))
        pairs, indices, reasons = check_all(config)
        assert reasons == {"ok": 4, NOT_IN_SUBSET: 8, DUPLICATE_UID: 2}
        found = [(row["uid"], row["num_rows"]) for table in indices for row in table.to_pylist()]
        assert sorted(uid for uid, num in found for _ in range(num)) == sorted(map(uid_of, wanted))
        tally = tally_all(indices)
        assert (tally["samples"], tally["pairs"], tally["copies"], tally["captions"]) == (4, 8, 4, 8)
        loaded = load_shard(pairs, 2, indices[2])
        assert loaded["image"].to_pylist() == [make_image(9)] and loaded["num_rows"].to_pylist() == [4]


def test_a_subset_that_is_none_is_refused(album, tmp_path):
    path = tmp_path / "kept.npy"
    for content, line in [
        (None, "cannot be read; name a .npy or Parquet file"),
        (b"no npy", "is damaged or no npy file"),
        (np.zeros(3), "must be uids of type u8,u8 in one dimension, is float64"),
        (pa.table({"uid": [1]}), "its column uid must be text, is int64"),
        (pa.table({"uid": ["a"]}), "uid='a': must be 32 hex digits"),
    ]:
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, np.ndarray):
            np.save(path, content)
        elif content is not None:
            path = tmp_path / "kept.parquet"
            pq.write_table(content, path)
        refuse(f"^subset='{path}': .*{line}", input=str(album), subset=str(path))
    uids = pa.array(list(map(uid_of, range(12)))).dictionary_encode()
    pq.write_table(pa.table({"uid": uids}), tmp_path / "kept")
    assert check_all(make_config(input=str(album), subset=str(tmp_path / "kept")))[2] == {"ok": 12}


def test_negatives_are_joined_by_uid_wherever_they_stand(album, tmp_path):
    files = [{9: ["a", "b"], 2: ["c"]}, {3: [], 0: ["d"], 500: ["e"]}]
    negatives = write_negatives(tmp_path / "negatives", files)
    _, indices, _ = check_all(make_config(input=str(album), negatives=negatives))
    found = {row["uid"]: row["negatives"] for table in indices for row in table.to_pylist()}
    hard = [{"op": op, "kind": "object", "image": False} for op in ("SWAP", "ADD")]
    texts = {9: ["a", "b"], 2: ["c"], 0: ["d"]}
    assert found == {
        uid_of(pair): [{"text": text, **hard[i]} for i, text in enumerate(texts.get(pair, []))]
        for pair in range(12)
    }
    kinds = sum((tally_pairs(table)[1] for table in indices), Counter())
    assert kinds == {("SWAP", "object"): 3, ("ADD", "object"): 1}
    once = {"samples": 12, "pairs": 12, "captions": 12, "with_negatives": 3, "negatives": 4}
    assert tally_all(indices) == once
    some, repeated = indices[0], pa.array([3, 1, 2, 5])
    table = some.set_column(some.schema.get_field_index("num_rows"), "num_rows", repeated)
    counted, wanted = tally_pairs(table), tally_pairs(some.take([0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 3]))
    assert counted[0] == wanted[0] | {"samples": 4, "copies": 7}
    assert counted[1:] == wanted[1:] == ({("SWAP", "object"): 5}, 1)
    path = tmp_path / "negatives/negatives/00000.parquet"  # of another data set with the same names
    write_captions(path, [" pair   9 ", "pair  2"])
    check_all(make_config(input=str(album), negatives=negatives))
    said = rf"negatives: 1 of \d captions in .* differ from the pair with the same uid, such as {uid_of(2)}"
    refuse(said, input=str(album), negatives=write_captions(path, ["pair 9", "a ship"]))


def test_images_of_negatives_are_joined_by_uid_and_text(album, tmp_path):
    negatives = write_negatives(tmp_path / "negatives", [{2: ["a", "b", "c"], 9: ["a", "d"]}])
    (tmp_path / "shown" / "pictures").mkdir(parents=True)
    (tmp_path / "shown" / "pictures" / "9.jpg").write_bytes(make_image(109))
    bytes_of = {"uid": [uid_of(2)] * 2 + [uid_of(500)], "negative": ["c", "b", "a"]}
    bytes_of["image"] = [make_image(102), b"no image", make_image(1)]
    paths = {"uid": [uid_of(9)] * 2, "negative": ["d", "a"], "path": ["pictures/9.jpg", "pictures/8.jpg"]}
    for name, columns in (("a", bytes_of), ("b", paths)):
        pq.write_table(pa.table(columns), tmp_path / "shown" / f"{name}.parquet", row_group_size=1)
    options = {"input": str(album), "negatives": negatives, "negative_images": str(tmp_path / "shown")}
    refuse("negative_images: 50.0% of 4 pictures .*2 unreadable_picture", TooMuchBadData, **options)
    pairs, indices, _ = check_all(make_config(max_bad_fraction=0.5, **options))
    for number, shown in ((2, [None, None, make_image(102)]), (9, [None, make_image(109)])):
        shard = number // 4
        row = load_shard(pairs, shard, indices[shard]).slice(number % 4, 1).to_pylist()[0]
        assert row["uid"] == uid_of(number) and row["negative_images"] == shown
        assert [one["image"] for one in row["negatives"]] == [data is not None for data in shown]
    tally = tally_all(indices, pairs)
    assert tally["with_negative_images"] == tally["negative_images"] == 2
    said = "negative_images: rows that match no negative of these pairs by uid and text: 1; left out"
    assert check_pairs(pairs, Counter(ok=12), tally)[-1] == said
    pq.write_table(pa.table({**bytes_of, "uid": [uid_of(600)] * 3}), tmp_path / "shown" / "a.parquet")
    (tmp_path / "shown" / "b.parquet").unlink()
    refuse("none of the 5 negatives has a readable image", **options)


def test_what_is_no_source_is_refused(album, tmp_path):
    folder, negatives = tmp_path / "run", {"input": str(album), "negatives": str(tmp_path / "run")}
    for record, line in (
        ({"status": "running", "kind": "curate"}, "has not finished"),
        ({}, "holds negatives, must hold a curation or a selection"),
    ):
        write_negatives(folder, [{2: ["a"]}], **record)
        refuse(line, input=str(folder))
    for record, line in (
        ({"kind": "probe aro"}, "^negatives=.* holds probe aro, must hold a run of raycomp negatives"),
        ({}, f"none of the 12 pairs of {album} has negatives in"),
    ):
        write_negatives(folder, [{500: ["a"]}], **record)
        refuse(line, **negatives)
    for option, columns in {"negative_images": "uid, negative", "hard_images": "uid and neighbours"}.items():
        refuse(f"{option}=.*: must be Parquet with the columns {columns}", **negatives | {option: str(album)})
    refuse("^hard_images='/nowhere': .*no such file", **negatives | {"hard_images": "/nowhere"})


@pytest.fixture(scope="module")
def folders(curated, tmp_path_factory) -> tuple[Path, Path, Path]:
    """A curation, a smaller selection from it without shards, and negatives of the curation."""
    base = tmp_path_factory.mktemp("runs")
    options = {"attribute.keep": 0.3, "materialize": False}
    raycomp.select(str(curated[1]), options, str(base / "selected"))
    writing = WritingConfig(rank=False)
    negatives = NegativesConfig(input=str(curated[1]), negatives=writing)
    raycomp.negatives(negatives, str(base / "negatives"))
    return curated[1], base / "selected", base / "negatives"


def test_a_curation_with_shards_and_one_without_have_the_same_pairs(curated, folders, tmp_path):
    raycomp.select(str(folders[0]), {"materialize": False}, str(tmp_path / "same"))
    found = []
    for folder in (folders[0], tmp_path / "same"):
        pairs, indices, reasons = check_all(make_config(input=str(folder), negatives=str(folders[2])))
        loaded = [load_shard(pairs, i, index) for i, index in enumerate(indices)]
        rows = pa.concat_tables(loaded).drop_columns(["position", "first_row"]).to_pylist()
        found.append((len(indices), reasons, rows))
    assert found[0][2] == found[1][2] and any(row["negatives"] for row in found[0][2])
    kept = pq.read_table(folders[0] / "subset" / "kept.parquet")["uid"].to_pylist()
    assert [row["uid"] for row in found[0][2]] == kept
    assert found[0][1] == {"ok": len(kept)}
    assert found[1][1] == {"ok": len(kept), NOT_IN_SUBSET: 90 - len(kept)}
    assert [found[0][0], found[1][0]] == [1, 3]


def test_a_selection_as_subset_is_the_selection_and_takes_the_negatives_of_its_curation(folders):
    curation, selection, negatives = folders
    _, indices, reasons = check_all(make_config(input=str(selection), negatives=str(negatives)))
    uids = pq.read_table(selection / "subset/kept.parquet")["uid"].to_pylist()
    assert list_uids(indices) == uids and reasons["ok"] == len(uids) == 27
    assert sum(tally_pairs(table)[0]["with_negatives"] for table in indices) > 20
    for name in ("subset.npy", "kept.parquet"):
        config = make_config(input=str(curation), subset=str(selection / "subset" / name))
        assert list_uids(check_all(config)[1]) == uids
    with pytest.raises(ValueError, match=r"\d+ of the \d+ uids that it names have no pair in"):
        find_pairs(make_config(input=str(selection), subset=str(curation / "subset/kept.parquet")))


def test_a_run_whose_record_does_not_fit_is_refused(folders, tmp_path):
    curation, selection, negatives = folders
    other = write_world_shards(tmp_path / "other", 90, 30, seed=5)
    for folder, section, changes, said in [
        (selection, "config", {"input": other}, r"has no shards, and .* has changed since scoring"),
        (selection, "config", {"prepare": {"stored_embeddings": "b32"}}, "curated from stored embeddings"),
        (selection, "funnel", {"kept": 0}, "kept no pairs; curate with a larger share"),
        (negatives, "fingerprint", {"input": "0" * 64}, "was changed since; run raycomp update "),
        (negatives, "funnel", {"read": 7}, r"holds \d+ captions, the run wrote 7"),
    ]:
        place = tmp_path / "run"
        shutil.rmtree(place, ignore_errors=True)
        run = json.loads((shutil.copytree(folder, place) / "run.json").read_text())
        run[section] |= changes
        (place / "run.json").write_text(json.dumps(run))
        named = {"input": str(curation), "negatives": str(place)}
        with pytest.raises(ValueError, match=said):
            find_pairs(make_config(**(named if folder == negatives else {"input": str(place)})))


ROWS = (6, 0, 9, 4)


def test_mates_are_those_of_a_plain_search(tmp_path):
    rng = random.Random(0)
    names = [f"{i:032x}" for i in rng.sample(range(40), 40)]
    near = {name: rng.sample(names, rng.randrange(0, 12)) for name in names}
    tables, uris = [], [str(tmp_path / f"{place}.parquet") for place in range(4)]
    for uri, start, end in zip(uris, (0, 12, 12, 21), (12, 12, 21, 28), strict=True):
        tables.append([(name, rng.choice([1, 1, 2])) for name in names[start:end]])
        columns = {"uid": names[start:end], "num_rows": [count for _, count in tables[-1]]}
        types = pa.schema([("uid", pa.string()), ("num_rows", pa.int64())])
        pq.write_table(pa.table(columns, types), uri)
    files = [str(tmp_path / f"near-{number}.parquet") for number in range(2)]
    for number, file in enumerate(files):
        columns = {"uid": [*near][number::2], "neighbours": [*near.values()][number::2]}
        pq.write_table(pa.table(columns), file)
    found, (line,) = load_mates(files, uris)
    assert line == "hard_images: 12 of 40 uids have no pair that is trained on; left out"
    for rows, mates in zip(tables, found, strict=True):
        first_N = np.cumsum([0, *(count for _, count in rows)])
        firsts = {name: first for (name, _), first in zip(rows, first_N, strict=False)}
        wanted = []
        for name, count in rows:
            some = [firsts[other] for other in near[name] if other in firsts and other != name][:MOST]
            wanted += [[*some, *[-1] * (MOST - len(some))]] * count
        assert mates.tolist() == wanted
    pq.write_table(pa.table({"uid": names[28:30], "neighbours": [names[:1]] * 2}), files[0])
    said = "none of the 28 pairs has a neighbour in its shard; 2 of 2 uids have no pair"
    with pytest.raises(ValueError, match=rf"hard_images=.*: {said}"):
        load_mates(files[:1], uris)
    pq.write_table(pa.table({"uid": names[:1], "neighbours": [["x"]]}), files[0])
    with pytest.raises(ValueError, match=r"hard_images=.*: .*x"):
        load_mates(files, uris)


def make_plan(batch_size: int, mates: bool, seed: int = 0) -> EpochPlan:
    """Every row's mate is the next one of its shard, the last one's the first."""
    every = ([[(row + 1) % rows, -1] for row in range(rows)] for rows in ROWS)
    found = tuple(np.array(one, np.int32).reshape(-1, 2) for one in every)
    return EpochPlan(ROWS, batch_size, 2, seed, found if mates else ())


def test_each_row_still_comes_once_and_mates_are_neighbours_in_the_order():
    for seed in range(20):
        plan = make_plan(sum(ROWS), True, seed)
        shard, row = plan.batch(0)
        assert sorted(zip(shard.tolist(), row.tolist(), strict=True)) == [
            (place, number) for place, rows in enumerate(ROWS) for number in range(rows)
        ]
        after = [(row[i] + 1) % ROWS[shard[i]] for i in range(len(row))]
        both = [(shard[i], after[i]) == (shard[i + 1], row[i + 1]) for i in range(len(row) - 1)]
        assert sum(both) >= 4
    assert any((make_plan(4, True).batch(i)[1] != make_plan(4, False).batch(i)[1]).any() for i in range(4))


def test_a_pair_is_followed_by_one_of_its_mates_that_is_left():
    mates = np.array([[1, 2], [0, -1], [-1, -1], [0, 1], [-1, -1]])
    for seed in range(30):
        order = let_follow(np.arange(5), mates, np.random.default_rng(seed)).tolist()
        assert sorted(order) == list(range(5)) and order[0] == 0 and order[1] in (1, 2)
    none = np.full((5, 2), -1)  # without mates the order is as it was
    assert let_follow(np.array([3, 1, 0, 4, 2]), none, np.random.default_rng(0)).tolist() == [3, 1, 0, 4, 2]


def test_negatives_of_a_user_are_a_table_whose_unused_rows_and_texts_are_reported(album, tmp_path):
    path = tmp_path / "mine.parquet"
    rows = [(uid_of(9), "pair 9", ["a", " pair  9", ""]), (uid_of(2), None, ["c", "d"])]
    rows += [(uid_of(2), None, ["e"]), (uid_of(500), "x", ["y"]), ("nine", "x", None)]
    pq.write_table(
        pa.table(dict(zip(("uid", "caption", "negatives"), zip(*rows, strict=True), strict=True))), path
    )
    options = {"input": str(album), "negatives": str(path)}
    with connect(ClusterConfig(executor="local")):
        found = make_index(find_pairs(make_config(**options)), Folder(str(tmp_path / "work")))
    negatives = {}
    for uri in found.uris:
        negatives |= {row["uid"]: row["negatives"] for row in pq.read_table(uri).to_pylist()}
    texts = {uid: [one["text"] for one in own] for uid, own in negatives.items() if own}
    assert texts == {uid_of(9): ["a"], uid_of(2): ["c", "d"]} and found.kinds == {("own", "own"): 3}
    assert found.warnings == (
        f"negatives: 2 of 5 rows have a uid of no training pair, such as {uid_of(500)}",
        "negatives: 1 of 5 rows repeat a uid; its first row counts",
        "negatives: 2 of 7 texts are empty or equal their caption",
    )
    pq.write_table(pa.table({"uid": [uid_of(500)], "caption": ["x"], "negatives": [["y"]]}), path)
    refuse(f"none of the 12 pairs of {album} has negatives in {path}", **options)
    pq.write_table(pa.table({"uid": [uid_of(9)], "caption": ["x"], "negatives": ["y"]}), path)
    refuse("its column negatives must be lists of texts, is string", **options)
    pq.write_table(pa.table({"uid": [uid_of(9)], "negatives": [["y"]]}), path)
    refuse("must be Parquet with the columns uid, caption and negatives", **options)
