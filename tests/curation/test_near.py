"""Groups of near-duplicates: a function of the set of rows, found in parts, against plain loops."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import raycomp
from raycomp.core.near import MOST_BITS
from raycomp.curation.config import NearConfig
from raycomp.curation.select import near as near_pass
from raycomp.curation.select.measures import ScoresFile
from raycomp.curation.select.near import find_groups
from raycomp.curation.select.select import describe_duplicates
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar
from raycomp.language.overlap import normalise_caption
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    DUPLICATE_GROUP,
    FILTERED,
    IMAGE_EMBEDDING,
    IMAGE_SHA256,
    MARK,
    MARK_AFTER,
    NEAR_DUPLICATE,
    PERCEPTUAL_HASH,
    PIXELS_HASH,
    UID,
)
from tests.corpus import by_cpi, mean_drop

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
                UID: f"{rng.integers(2**63):016x}{i:016x}",
                ALIGNMENT: None if i % 17 == 0 else float(rng.integers(20) / 20),
                IMAGE_SHA256: f"{rng.integers(150):064x}",
                PIXELS_HASH: f"{rng.integers(140):032x}",
                PERCEPTUAL_HASH: seen ^ flips if plain is None else plain,
                CAPTION: rng.choice(["A dog!", "a  DOG", "a cat", f"caption {i}", ""]),
                IMAGE_EMBEDDING: (vector / np.linalg.norm(vector)).tolist(),
                MARK: FILTERED if i % 13 == 0 else None,
            }
        )
    return rows


SCHEMA = pa.schema(
    [
        (UID, pa.string()),
        (ALIGNMENT, pa.float32()),
        (IMAGE_SHA256, pa.string()),
        (PIXELS_HASH, pa.string()),
        (PERCEPTUAL_HASH, pa.uint64()),
        (CAPTION, pa.string()),
        (IMAGE_EMBEDDING, pa.list_(pa.float32(), 8)),
    ]
)


def write_files(rows: list[dict], folder: Path, sizes: list[int]) -> list[ScoresFile]:
    """Write rows with their marks as files of these sizes, the rest as one more."""
    folder.mkdir()
    files, start = [], 0
    for number, size in enumerate([*sizes, len(rows) - sum(sizes)]):
        some = rows[start : start + size]
        start += size
        uri, marks = (str(folder / f"{name}-{number}.parquet") for name in ("scores", "marks"))
        plain = [{name: row[name] for name in SCHEMA.names} for row in some]
        pq.write_table(pa.Table.from_pylist(plain, SCHEMA), uri)
        columns = {UID: [row[UID] for row in some], MARK: [row[MARK] for row in some]}
        none = pa.nulls(len(some), pa.string())
        pq.write_table(
            pa.table({**columns, MARK: pa.array(columns[MARK], pa.string()), MARK_AFTER: none}), marks
        )
        files.append(ScoresFile(uri, marks))
    return files


def read_marks(files: list[ScoresFile]) -> dict[str, dict]:
    return {row[UID]: row for file in files for row in pq.read_table(file.marks).to_pylist()}


def group(
    rows: list[dict], folder: Path, sizes: list[int], config: NearConfig, **options: int
) -> dict[str, dict]:
    """Return the marks by uid, of rows in files of these sizes."""
    files = write_files(rows, folder, sizes)
    facts = find_groups(files, config, Folder(str(folder / "work")), **options)
    found = read_marks(files)
    assert facts[DUPLICATE_GROUP]["rows"] == sum(row[DUPLICATE_GROUP] is not None for row in found.values())
    assert not (folder / "work/near").exists()
    return found


def is_near(a: dict, b: dict, rule: str, config: NearConfig) -> bool:
    if rule == "exact":
        return a[IMAGE_SHA256] == b[IMAGE_SHA256]
    if rule == "pixels":
        return a[PIXELS_HASH] == b[PIXELS_HASH]
    if rule == "captions":
        return normalise_caption(a[CAPTION]) == normalise_caption(b[CAPTION]) != ""
    if rule == "semantic":
        return float(np.float32(a[IMAGE_EMBEDDING]) @ np.float32(b[IMAGE_EMBEDDING])) >= config.cosine
    plain = (0, 1 << 63)
    if a[PERCEPTUAL_HASH] in plain or b[PERCEPTUAL_HASH] in plain:
        return False
    return (a[PERCEPTUAL_HASH] ^ b[PERCEPTUAL_HASH]).bit_count() <= config.bits


def group_plainly(rows: list[dict], config: NearConfig) -> dict[str, str]:
    """Return the smallest uid of each row's group, by a loop over all pairs, for groups of two or more."""
    rows = [row for row in rows if row[ALIGNMENT] is not None and row[MARK] is None]
    name = {row[UID]: row[UID] for row in rows}
    changed = True
    while changed:
        changed = False
        for a in rows:
            for b in rows:
                if name[a[UID]] < name[b[UID]] and any(is_near(a, b, rule, config) for rule in config.rules):
                    name[b[UID]], changed = name[a[UID]], True
    members = [*name.values()]
    return {uid: one for uid, one in name.items() if members.count(one) > 1}


@pytest.mark.parametrize(
    "rules", [("exact",), ("pixels",), ("perceptual",), ("captions",), ("semantic",), ("exact", "semantic")]
)
def test_groups_are_those_of_a_loop_over_all_pairs(rules, tmp_path, local):
    rows, config = draw_rows(1), NearConfig(rules, cosine=0.97)
    found = group(rows, tmp_path / "a", [70, 0, 30], config)
    expected = group_plainly(rows, config)
    assert {uid: row[DUPLICATE_GROUP] for uid, row in found.items() if row[DUPLICATE_GROUP]} == expected
    by_uid = {row[UID]: row for row in rows}
    for uid, row in found.items():
        same = [by_uid[other] for other, one in expected.items() if one == expected.get(uid)]
        best = min(same, key=lambda one: (-one[ALIGNMENT], one[UID]), default=None)
        drops = best is not None and best[UID] != uid
        assert row[MARK] == (NEAR_DUPLICATE if drops else by_uid[uid][MARK])


@pytest.mark.parametrize("sizes", [[], [1, 100, 3], [50] * 3])
def test_groups_depend_on_the_set_of_rows_alone(sizes, tmp_path, monkeypatch, local):
    monkeypatch.setattr(near_pass, "_ROWS_PER_LIST", 20)
    monkeypatch.setattr(near_pass, "_LISTS_PER_TASK", 3)
    rows = draw_rows(2)
    config = NearConfig(("exact", "perceptual", "semantic", "captions"), cosine=0.97)
    plain = group(rows, tmp_path / "plain", [10], config)
    order = np.random.default_rng(0).permutation(NUM)
    other = group([rows[i] for i in order], tmp_path / "other", sizes, config, rows_per_bucket=30)
    assert other == plain


def test_first_keeps_the_smallest_uid_and_flag_drops_nothing(tmp_path, local):
    rows = draw_rows(3)
    first = group(rows, tmp_path / "first", [], NearConfig(("exact",), prefer="first"))
    for uid, row in first.items():
        if row[DUPLICATE_GROUP]:
            assert row[MARK] == (None if uid == row[DUPLICATE_GROUP] else NEAR_DUPLICATE)
    flagged = group(rows, tmp_path / "flag", [], NearConfig(("exact",), action="flag"))
    assert all(row[MARK] != NEAR_DUPLICATE for row in flagged.values())
    assert [row[DUPLICATE_GROUP] for row in flagged.values()] == [
        row[DUPLICATE_GROUP] for row in first.values()
    ]


def test_captions_that_are_the_same():
    for one, other in [
        ("A dog, running.", "a DOG running"),
        ("caf\u00e9", "cafe\u0301"),
        ("\uff21 dog", "a dog"),
        ("a_dog", "a dog"),
    ]:
        assert normalise_caption(one) == normalise_caption(other) != normalise_caption("a cat")


def shrink(image: Image.Image, how: str) -> bytes:
    buffer = io.BytesIO()
    if how == "half":
        image = image.resize((image.width // 2, image.height // 2))
    image.save(buffer, "JPEG", quality=30 if how == "quality" else 90)
    return buffer.getvalue()


def test_planted_copies_of_photos_are_found_and_dropped(shared, tmp_path, tiny_scorer):
    """JPEG at quality 30, half the size, the bytes again with another caption; of 40 photos each."""
    lines = (shared / "data/flickr8k_800/captions.jsonl").read_text().splitlines()[:40]
    rows = [json.loads(line) for line in lines]
    samples = []
    for i, row in enumerate(rows):
        data = (shared / "data/flickr8k_800/images" / row["image"]).read_bytes()
        image = Image.open(io.BytesIO(data)).convert("RGB")
        made = {
            "own": data,
            "quality": shrink(image, "quality"),
            "half": shrink(image, "half"),
            "again": data,
        }
        for place, (how, copy) in enumerate(made.items()):
            text = row["captions"][place].encode()
            samples.append((f"{i:03d}-{how}", {"jpg": copy, "txt": text}))
    write_tar(str(tmp_path / "in/0.tar"), samples)
    config = by_cpi(input=str(tmp_path / "in"), scorer=tiny_scorer, attribute=mean_drop(pool=1.0))
    config = raycomp.override_all(config, {"near.rules": ("exact", "perceptual")})
    run = raycomp.curate(config, tmp_path / "out")
    marks = pq.read_table(tmp_path / "out/marks/00000.parquet").to_pylist()
    groups = [{row[DUPLICATE_GROUP] for row in marks[start : start + 4]} for start in range(0, 160, 4)]
    whole = [found for found in groups if len(found) == 1 and None not in found]
    assert len(whole) >= 39  # of 40
    assert len({min(found) for found in whole}) == len(whole), "no two photos share a group"
    assert run["near_duplicates"]["exact"] == {"groups": 40, "rows": 80}
    assert run["funnel"]["dropped"][NEAR_DUPLICATE] == 160 - run["funnel"]["corpus"]
    assert 40 <= run["funnel"]["corpus"] <= 42
    assert "are not near-duplicates (the corpus)" in (tmp_path / "out/report.html").read_text()
    again = raycomp.select(tmp_path / "out", {}, tmp_path / "again")
    assert again["funnel"] == run["funnel"]
    # Without the rows that stayed, others of their groups stay: with attribute.pool=1 these were attributed.
    stayed = [row["uid"] for row in marks if row[MARK] is None]
    (tmp_path / "optout.txt").write_text("\n".join(stayed))
    others = raycomp.select(
        tmp_path / "out", {"filter.exclude": str(tmp_path / "optout.txt")}, tmp_path / "others"
    )
    assert others["funnel"]["corpus"] == 40


def test_options_out_of_range():
    for field, value, said in [
        ("bits", MOST_BITS + 1, "between 0 and 7"),
        ("cosine", 0.0, "above 0, at most 1"),
        ("rules", ("same",), "must be one of exact, pixels"),
        ("prefer", "worst", "must be one of best, first"),
    ]:
        with pytest.raises(ValueError, match=said):
            NearConfig(**{field: value})


def test_a_warning_where_most_rows_are_near_duplicates():
    for lost, left, warns in [(3, 2, True), (2, 2, False), (0, 5, False), (5, 0, True)]:
        found = describe_duplicates({NEAR_DUPLICATE: lost}, left)
        assert len(found) == warns and all(f"{lost} of {lost + left} rows" in line for line in found)
