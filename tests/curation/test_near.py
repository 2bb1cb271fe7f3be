"""Groups of near-duplicates and caps per cluster: functions of the set of rows, against plain loops."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp import words
from raycomp.curation.config import NearConfig
from raycomp.curation.select import near as near_pass
from raycomp.curation.select.measures import ScoresFile
from raycomp.curation.select.near import cap_clusters, find_groups
from raycomp.curation.select.select import describe_duplicates
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar
from raycomp.language.overlap import normalise_caption
from tests.corpus import by_cpi, mean_drop, scenes

NUM = 200


def draw_rows(seed: int) -> list[dict]:
    """Return rows of which many are near-duplicates by one rule or another; some are marked or unaligned."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(60, 8))
    rows = []
    for i in range(NUM):
        vector = base[rng.integers(60)] + 0.05 * rng.normal(size=8)
        flips = sum(1 << int(bit) for bit in rng.choice(64, rng.integers(0, 5), replace=False))
        seen = int(base[rng.integers(60)].view(np.uint64)[0])
        plain = int(rng.choice([0, 1 << 63])) if i % 20 == 0 else None
        rows.append(
            {
                words.UID: f"{rng.integers(2**63):016x}{i:016x}",
                words.ALIGNMENT: None if i % 17 == 0 else float(rng.integers(20) / 20),
                words.IMAGE_SHA256: f"{rng.integers(150):064x}",
                words.PIXELS_HASH: f"{rng.integers(140):032x}",
                words.PERCEPTUAL_HASH: seen ^ flips if plain is None else plain,
                words.CAPTION: rng.choice(["A dog!", "a  DOG", "a cat", f"caption {i}", ""]),
                words.IMAGE_EMBEDDING: (vector / np.linalg.norm(vector)).tolist(),
                words.MARK: words.FILTERED if i % 13 == 0 else None,
            }
        )
    return rows


SCHEMA = pa.schema(
    [
        (words.UID, pa.string()),
        (words.ALIGNMENT, pa.float32()),
        (words.IMAGE_SHA256, pa.string()),
        (words.PIXELS_HASH, pa.string()),
        (words.PERCEPTUAL_HASH, pa.uint64()),
        (words.CAPTION, pa.string()),
        (words.IMAGE_EMBEDDING, pa.list_(pa.float32(), 8)),
    ]
)
MARKS = pa.schema([(name, pa.string()) for name in (words.UID, words.MARK, words.MARK_AFTER)])


def write_files(rows: list[dict], folder: Path, sizes: list[int]) -> list[ScoresFile]:
    """Write rows with their marks as files of these sizes, the rest as one more."""
    folder.mkdir()
    files, start = [], 0
    for number, size in enumerate([*sizes, len(rows) - sum(sizes)]):
        some, start = rows[start : start + size], start + size
        files.append(ScoresFile(*(str(folder / f"{name}-{number}.parquet") for name in ("scores", "marks"))))
        pq.write_table(pa.Table.from_pylist(some, SCHEMA), files[-1].uri)
        pq.write_table(pa.Table.from_pylist(some, MARKS), files[-1].marks)
    return files


def read_marks(files: list[ScoresFile]) -> dict[str, dict]:
    return {row[words.UID]: row for file in files for row in pq.read_table(file.marks).to_pylist()}


def group(
    rows: list[dict], folder: Path, sizes: list[int], config: NearConfig, **options: int
) -> dict[str, dict]:
    """Return the marks by uid, of rows in files of these sizes."""
    files = write_files(rows, folder, sizes)
    facts = find_groups(files, config, Folder(str(folder / "work")), **options)
    found = read_marks(files)
    num_grouped = sum(row[words.DUPLICATE_GROUP] is not None for row in found.values())
    assert facts[words.DUPLICATE_GROUP]["rows"] == num_grouped
    assert not (folder / "work/near").exists()
    return found


def cap(rows: list[dict], folder: Path, sizes: list[int], config: NearConfig) -> tuple[dict, dict]:
    """Return the marks by uid, and the facts of the run."""
    files = write_files(rows, folder, sizes)
    facts = cap_clusters(files, config)
    return read_marks(files), facts


def is_near(a: dict, b: dict, rule: str, config: NearConfig) -> bool:
    if rule in ("exact", "pixels"):
        name = words.IMAGE_SHA256 if rule == "exact" else words.PIXELS_HASH
        return a[name] == b[name]
    if rule == "captions":
        return normalise_caption(a[words.CAPTION]) == normalise_caption(b[words.CAPTION]) != ""
    if rule == "semantic":
        one, other = (np.float32(row[words.IMAGE_EMBEDDING]) for row in (a, b))
        return float(one @ other) >= config.cosine
    hashes = (a[words.PERCEPTUAL_HASH], b[words.PERCEPTUAL_HASH])
    return not {0, 1 << 63} & {*hashes} and (hashes[0] ^ hashes[1]).bit_count() <= config.bits


def group_plainly(rows: list[dict], config: NearConfig) -> dict[str, str]:
    """Return the smallest uid of each row's group, by a loop over all pairs, for groups of two or more."""
    rows = [row for row in rows if row[words.ALIGNMENT] is not None and row[words.MARK] is None]
    name, before = {row[words.UID]: row[words.UID] for row in rows}, None
    links = [
        (a[words.UID], b[words.UID])
        for a, b in itertools.combinations(rows, 2)
        if any(is_near(a, b, rule, config) for rule in config.rules)
    ]
    while before != (before := dict(name)):
        for pair in links:
            name |= dict.fromkeys(pair, min(name[uid] for uid in pair))
    members = [*name.values()]
    return {uid: one for uid, one in name.items() if members.count(one) > 1}


@pytest.mark.parametrize("rules", [*((rule,) for rule in words.NEAR_RULES), ("exact", "semantic")])
def test_groups_are_those_of_a_loop_over_all_pairs(rules, tmp_path, local):
    rows, config = draw_rows(1), NearConfig(rules, cosine=0.97)
    found = group(rows, tmp_path / "a", [70, 0, 30], config)
    expected, by_uid = group_plainly(rows, config), {row[words.UID]: row for row in rows}
    for uid, row in found.items():
        assert row[words.DUPLICATE_GROUP] == expected.get(uid)
        same = [by_uid[other] for other, one in expected.items() if one == expected.get(uid)]
        best = min(same, key=lambda one: (-one[words.ALIGNMENT], one[words.UID]), default=None)
        drops = best is not None and best[words.UID] != uid
        assert row[words.MARK] == (words.NEAR_DUPLICATE if drops else by_uid[uid][words.MARK])


def test_groups_depend_on_the_set_of_rows_alone(tmp_path, monkeypatch, local):
    monkeypatch.setattr(near_pass, "_ROWS_PER_LIST", 20)
    monkeypatch.setattr(near_pass, "_LISTS_PER_TASK", 3)
    rows = draw_rows(2)
    config = NearConfig(("exact", "perceptual", "semantic", "captions"), cosine=0.97)
    plain = group(rows, tmp_path / "plain", [10], config)
    order = np.random.default_rng(0).permutation(NUM)
    for sizes in ([], [1, 100, 3]):
        folder = tmp_path / f"{len(sizes)}"
        assert group([rows[i] for i in order], folder, sizes, config, rows_per_bucket=30) == plain


def test_first_keeps_the_smallest_uid_and_flag_drops_nothing(tmp_path, local):
    first, flagged = (
        group(draw_rows(3), tmp_path / str(i), [], NearConfig(("exact",), **options))
        for i, options in enumerate(({"prefer": "first"}, {"action": "flag"}))
    )
    for uid, row in first.items():
        if row[words.DUPLICATE_GROUP]:
            assert row[words.MARK] == (None if uid == row[words.DUPLICATE_GROUP] else words.NEAR_DUPLICATE)
        assert flagged[uid][words.MARK] != words.NEAR_DUPLICATE
        assert flagged[uid][words.DUPLICATE_GROUP] == row[words.DUPLICATE_GROUP]


@pytest.mark.parametrize("prefer", ["best", "first"])
def test_each_cluster_keeps_its_first_rows_whatever_their_order_and_files(prefer, tmp_path, local):
    rows, config = draw_rows(4), NearConfig(clusters=6, cap=9, prefer=prefer)
    found, facts = cap(rows, tmp_path / "a", [50, 0, 30], config)
    by_cluster: dict[int, list[dict]] = {}
    for row in rows:
        cluster = found[row[words.UID]][words.CLUSTER]
        assert (cluster is None) == (row[words.ALIGNMENT] is None or row[words.MARK] is not None)
        if cluster is None:
            assert found[row[words.UID]][words.MARK] == row[words.MARK]
        else:
            by_cluster.setdefault(cluster, []).append(row)
    assert len(by_cluster) == facts["clusters"] == 6
    for own in by_cluster.values():
        own.sort(key=lambda one: (-one[words.ALIGNMENT] if prefer == "best" else 0, one[words.UID]))
        marks = [found[one[words.UID]][words.MARK] for one in own]
        assert marks == [None] * len(own[:9]) + [words.CLUSTER_FULL] * len(own[9:])
    assert facts["dropped"] == sum(len(own[9:]) for own in by_cluster.values()) > 0
    mixed = [rows[i] for i in np.random.default_rng(0).permutation(NUM)]
    assert cap(mixed, tmp_path / "b", [1, 100, 3], config) == (found, facts)


def test_more_clusters_than_rows_and_no_row_at_all(tmp_path, local):
    rows = [row for row in draw_rows(7) if row[words.ALIGNMENT] is not None and row[words.MARK] is None][:3]
    found, facts = cap(rows, tmp_path / "few", [], NearConfig(clusters=100, cap=1))
    assert facts["clusters"] == 3 and len(found) == 3
    found, facts = cap(rows, tmp_path / "all", [], NearConfig(clusters=2))
    assert {row[words.MARK] for row in found.values()} == {None} and facts["dropped"] == 0
    gone = [{**row, words.MARK: "filtered"} for row in rows]
    found, facts = cap(gone, tmp_path / "none", [], NearConfig(clusters=2, cap=1))
    assert facts == {"clusters": 0, "dropped": 0} and {row[words.CLUSTER] for row in found.values()} == {None}


def test_copies_and_caps_are_steps_of_the_funnel_and_select_repeats_them(tmp_path, tiny_scorer):
    """Bytes again under another caption; without the rows that stayed, others of their groups stay."""
    samples = scenes(12, seed=5)
    again = [{**members, "txt": b"a copy of the picture"} for members in samples]
    write_tar(str(tmp_path / "in/0.tar"), [(f"{i:02d}", one) for i, one in enumerate([*samples, *again])])
    config = by_cpi(input=str(tmp_path / "in"), scorer=tiny_scorer, attribute=mean_drop(pool=1.0))
    rules = {"near.rules": ("exact", "pixels"), "near.clusters": 3, "near.cap": 2}
    run = raycomp.curate(raycomp.override_all(config, rules), tmp_path / "out")
    assert run["near_duplicates"]["exact"] == {"groups": 12, "rows": 24}
    funnel = run["funnel"]
    assert funnel["dropped"][words.NEAR_DUPLICATE] == 12
    assert funnel["dropped"][words.CLUSTER_FULL] == run["clusters"]["dropped"] == 12 - funnel["corpus"] >= 6
    assert raycomp.select(tmp_path / "out", {}, tmp_path / "again")["funnel"] == funnel
    flagged = raycomp.select(tmp_path / "out", {"near.action": "flag"}, tmp_path / "flagged")["funnel"]
    assert flagged["corpus"] == 24 and not {words.NEAR_DUPLICATE, words.CLUSTER_FULL} & {*flagged["dropped"]}
    marks = pq.read_table(tmp_path / "out/marks/00000.parquet").to_pylist()
    stayed = [row["uid"] for row in marks if row[words.MARK] != words.NEAR_DUPLICATE]
    (tmp_path / "optout.txt").write_text("\n".join(stayed))
    without = {"filter.exclude": str(tmp_path / "optout.txt"), "near.cap": 12}
    assert raycomp.select(tmp_path / "out", without, tmp_path / "others")["funnel"]["corpus"] == 12


def test_a_warning_where_most_rows_are_near_duplicates():
    for lost, left, warns in [(3, 2, True), (2, 2, False), (0, 5, False), (5, 0, True)]:
        found = describe_duplicates({words.NEAR_DUPLICATE: lost}, left)
        assert len(found) == warns and all(f"{lost} of {lost + left} rows" in line for line in found)
