"""What training makes of the folders that curations, selections and negatives leave."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.training.pairs import find_pairs, load_shard, tally_pairs
from raycomp.words import NOT_IN_SUBSET
from tests.corpus import write_world_shards
from tests.training.pairs import check_all, list_uids, make_config


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


def test_a_selection_takes_the_negatives_of_its_curation(folders):
    config = make_config(input=str(folders[1]), negatives=str(folders[2]))
    _, indices, reasons = check_all(config)
    kept = pq.read_table(folders[1] / "subset" / "kept.parquet")["uid"].to_pylist()
    assert list_uids(indices) == kept and reasons["ok"] == len(kept) == 27
    assert sum(tally_pairs(table)[0]["with_negatives"] for table in indices) > 20


def test_a_selection_as_subset_is_the_selection(folders):
    subset = folders[1] / "subset"
    whole = [
        list_uids(check_all(make_config(input=str(folders[0]), subset=str(subset / name)))[1])
        for name in ("subset.npy", "kept.parquet")
    ]
    assert whole[0] == whole[1] == list_uids(check_all(make_config(input=str(folders[1])))[1])
    uids = pq.read_table(subset / "kept.parquet")["uid"].to_pylist()
    pq.write_table(pa.table({"uid": uids + uids[:3] * 2}), folders[1].parent / "repeated.parquet")
    config = make_config(input=str(folders[1]), subset=str(folders[1].parent / "repeated.parquet"))
    _, indices, reasons = check_all(config)
    rows = [(row["uid"], row["num_rows"]) for table in indices for row in table.to_pylist()]
    assert sorted(rows) == sorted((uid, 3 if uid in uids[:3] else 1) for uid in uids)
    assert reasons == {"ok": len(uids), NOT_IN_SUBSET: 90 - len(uids)}
    with pytest.raises(ValueError, match=r"\d+ of the \d+ uids that it names have no pair in"):
        config = make_config(input=str(folders[1]), subset=str(folders[0] / "subset" / "kept.parquet"))
        find_pairs(config)


def test_a_run_whose_record_does_not_fit_is_refused(folders, tmp_path):
    changed = {"input": write_world_shards(tmp_path / "other", 90, 30, seed=5)}
    for folder, changes, said in [
        (folders[1], {"config": changed}, r"has no shards, and .* has changed since scoring"),
        (
            folders[1],
            {"config": {"prepare": {"stored_embeddings": "b32_img"}}},
            "curated from stored embeddings",
        ),
        (folders[1], {"funnel": {"kept": 0}}, "kept no pairs; curate with a larger share"),
        (folders[2], {"fingerprint": {"input": "0" * 64}}, "were written for .*, not for the pairs in"),
        (folders[2], {"funnel": {"read": 7}}, r"holds \d+ captions, the run wrote 7"),
    ]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        run = json.loads((shutil.copytree(folder, tmp_path / "run") / "run.json").read_text())
        for section, values in changes.items():
            for name, value in values.items():
                old = run[section][name]
                run[section][name] = old | value if isinstance(value, dict) else value
        (tmp_path / "run/run.json").write_text(json.dumps(run))
        named = {"input": str(folders[0]), "negatives": str(tmp_path / "run")}
        with pytest.raises(ValueError, match=said):
            find_pairs(make_config(**(named if folder == folders[2] else {"input": str(tmp_path / "run")})))
