"""``negatives`` through a real Ray cluster: from a curation, from Parquet, in waves, exported."""

import ast
import csv
import hashlib
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.config import TooMuchBadData, WavesConfig
from raycomp.look.show import show
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.negatives import ask
from raycomp.negatives import command as cluster_negatives
from raycomp.negatives.config import LlmConfig, NegativesConfig, WritingConfig
from raycomp.run.lease import Lease
from raycomp.schema import NEGATIVES_SCHEMA
from tests.negatives.llm import fake_server

CALLS = {"calls": 2, "add_similarity": 0.93}


@pytest.fixture(scope="module")
def curated(curated) -> Path:
    return curated[1]


@pytest.fixture(scope="module")
def written(curated, tmp_path_factory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("negatives") / "out"
    writing = WritingConfig(**CALLS, materialize=True, export=("negclip", "calls"))
    return out, raycomp.negatives(NegativesConfig(input=str(curated), negatives=writing), str(out))


def read_negatives(out: Path) -> list[dict]:
    return [row for path in sorted((out / "negatives").iterdir()) for row in pq.read_table(path).to_pylist()]


def digests(out: Path) -> dict[str, str]:
    files = sorted(path for path in (out / "negatives").iterdir())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_every_kept_caption_has_a_row_and_the_funnel_adds_up(curated, written):
    out, run = written
    kept = pq.read_table(curated / "subset" / "kept.parquet")["uid"].to_pylist()
    rows = read_negatives(out)
    assert [row["uid"] for row in rows] == kept
    assert pq.read_schema(out / "negatives" / "00000.parquet").equals(NEGATIVES_SCHEMA)
    funnel = run["funnel"]
    assert funnel["read"] == len(kept) == funnel["kept"] + sum(funnel["dropped"].values())
    assert run["written"] == sum(len(row["negatives"]) for row in rows) == sum(run["negatives"].values())
    assert run["rejected"]["ADD: low_similarity"] > 0 and run["negatives"]["REPLACE+ADD"] > 0
    assert f"{len(kept)}  read" in "".join(show(str(out)))
    assert not (out / "work").exists() and (out / "report.html").exists()


def test_negatives_are_ranked_within_each_number_of_calls(written):
    out, _ = written
    for row in read_negatives(out):
        for calls in (1, 2):
            several = [negative for negative in row["negatives"] if negative["calls"] == calls]
            assert len(several) <= 3
            for op in {negative["op"] for negative in several}:
                similarity = [negative["similarity"] for negative in several if negative["op"] == op]
                assert similarity == sorted(similarity, reverse=True) and all(
                    -1 <= s <= 1 for s in similarity
                )


def test_images_of_the_curation_are_compared_with_negatives(curated, written, tiny_scorer):
    """The drop is that of the row's own image, from the alignment that the curation stored."""
    out, _ = written
    clip, tokenize = Clip(tiny_scorer), load_tokenizer(tiny_scorer)
    columns = ["uid", "alignment", "image_embedding"]
    tables = [pq.read_table(path, columns=columns) for path in sorted((curated / "scores").iterdir())]
    known = {row["uid"]: row for table in tables for row in table.to_pylist()}
    for row in read_negatives(out)[::5]:
        tokens = tokenize([negative["text"] for negative in row["negatives"]]).numpy().astype(np.int32)
        image = np.array(known[row["uid"]]["image_embedding"], np.float32)
        wanted = known[row["uid"]]["alignment"] - clip.text.embed(tokens)[0].numpy() @ image
        found = [negative["image_drop"] for negative in row["negatives"]]
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_shards_carry_their_negatives(curated, written):
    out, _ = written
    by_uid = {row["uid"]: row for row in read_negatives(out)}
    with (
        tarfile.open(out / "shards" / "00000000.tar") as tar,
        tarfile.open(curated / "shards" / "00000000.tar") as before,
    ):
        assert tar.getnames() == before.getnames()
        for name in tar.getnames():
            data = tar.extractfile(name).read()
            if name.endswith(".json"):
                fields = json.loads(data)
                assert fields["negatives"] == by_uid[fields["uid"]]["negatives"]
            else:
                assert data == before.extractfile(name).read()


def test_negclip_reads_the_tsv(written):
    out, _ = written
    with open(out / "exports" / "negclip.tsv", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    with_negatives = [row for row in read_negatives(out) if row["negatives"]]
    assert [row["title"] for row in rows] == [row["caption"] for row in with_negatives]
    for i, row in enumerate(rows):
        assert ast.literal_eval(row["neg_caption"]) == [n["text"] for n in with_negatives[i]["negatives"]]
        near = ast.literal_eval(row["neg_image"])
        assert len(set(near)) == 3 and i not in near and all(0 <= n < len(rows) for n in near)


def test_a_run_that_ends_after_its_first_wave_goes_on_in_other_sizes_to_the_same_bytes(
    curated, written, tmp_path, monkeypatch
):
    out, _ = written
    config = NegativesConfig(
        input=str(curated), negatives=WritingConfig(**CALLS), waves=WavesConfig(shards_per_wave=1)
    )
    waves = tmp_path / "out" / "work" / "waves"
    with monkeypatch.context() as patch:
        # It is asked before every commit, the first wave's and what comes after it.
        patch.setattr(Lease, "check", lambda lease: any(waves.glob("*")) and _lose_power())
        with pytest.raises(OSError, match="power"):
            raycomp.negatives(config, str(tmp_path / "out"))
    assert len(list(waves.iterdir())) == 1
    raycomp.negatives(raycomp.override(config, "cluster.block_rows", 7), str(tmp_path / "out"))
    assert digests(tmp_path / "out") == digests(out)


def test_parquet_of_captions_needs_no_model(tmp_path):
    captions = ["A red cube is left of a blue ball.", "", None, "two dogs and a cat on a sofa"]
    table = pa.table({"uid": [f"{i:032x}" for i in range(4)], "caption": captions})
    pq.write_table(table, tmp_path / "captions.parquet")
    config = NegativesConfig(input=str(tmp_path / "captions.parquet"), negatives=WritingConfig(rank=False))
    message = r"^input: 50\.0% of 4 captions cannot be used \(1 empty_caption, 1 no_caption\)"
    with pytest.raises(TooMuchBadData, match=message):
        raycomp.negatives(config, str(tmp_path / "out"))
    config = raycomp.override(config, "max_bad_fraction", 0.5)
    run = raycomp.negatives(config, str(tmp_path / "out"))
    line = "input: 1 of 4 captions is empty_caption (the caption is empty or white space); left out"
    assert run["warnings"][0] == line and len(run["warnings"]) == 2
    assert "1 of 4 captions is empty_caption" in (tmp_path / "out/report.html").read_text()
    rows = read_negatives(tmp_path / "out")
    assert [row["status"] for row in rows] == ["ok", "empty_caption", "no_caption", "ok"]
    assert all(negative["similarity"] is None for row in rows for negative in row["negatives"])
    assert run["funnel"]["dropped"] == {"empty_caption": 1, "no_caption": 1}
    assert raycomp.negatives(config, str(tmp_path / "out"))["status"] == "finished"


def test_bad_input_is_one_line(tmp_path):
    for table, options, message in [
        ({"uid": ["a"], "caption": ["b"], "image_sha256": [["x"]]}, {}, "'image_sha256' must be text"),
        ({"uid": ["a"], "caption": ["b"]}, {"export": ("negclip",)}, "need a folder that curate wrote"),
    ]:
        pq.write_table(pa.table(table), tmp_path / "captions.parquet")
        writing = WritingConfig(rank=False, **options)
        config = NegativesConfig(input=str(tmp_path / "captions.parquet"), negatives=writing)
        with pytest.raises(ValueError, match=message) as error:
            raycomp.negatives(config, str(tmp_path / "out"))
        assert "\n" not in str(error.value)


def test_a_server_that_is_down_stops_the_run_in_one_line(tmp_path):
    pq.write_table(pa.table({"uid": ["0" * 32], "caption": ["A dog"]}), tmp_path / "captions.parquet")
    config = NegativesConfig(
        input=str(tmp_path / "captions.parquet"),
        negatives=WritingConfig(engine="http", rank=False),
        llm=LlmConfig(url="http://127.0.0.1:9/v1", patience_s=1),
    )
    with pytest.raises(OSError, match="answered none of 3 prompts") as error:
        raycomp.negatives(config, str(tmp_path / "out"))
    assert "\n" not in str(error.value)


def test_no_one_is_asked_before_the_captions_are_known_to_be_sound(tmp_path, monkeypatch):
    pq.write_table(pa.table({"uid": ["a", None], "caption": ["a dog", "a cat"]}), tmp_path / "0.parquet")
    monkeypatch.setattr(ask, "ask_all", lambda job: pytest.fail("asked"))
    writing = WritingConfig(engine="http", rank=False)
    llm = LlmConfig(url="http://127.0.0.1:9/v1", model="any")
    config = NegativesConfig(input=str(tmp_path / "0.parquet"), negatives=writing, llm=llm)
    with pytest.raises(ValueError, match="every row must have a unique uid"):
        raycomp.negatives(config, str(tmp_path / "out"))


def test_a_scorer_that_is_no_longer_the_curations_does_not_rank(curated, tmp_path):
    shutil.copytree(curated, tmp_path / "copy")
    run = json.loads((curated / "run.json").read_text())
    run["fingerprint"]["scorer"] = "of other weights"
    (tmp_path / "copy/run.json").write_text(json.dumps(run))
    config = NegativesConfig(input=str(tmp_path / "copy"))
    with pytest.raises(ValueError, match=r"scorer\.weights='random:0': has changed since it scored"):
        raycomp.negatives(config, str(tmp_path / "out"))
    assert run["config"]["scorer"]["weights"] == "random:0"


def test_a_server_is_asked_once_even_when_the_run_is_started_again(tmp_path, monkeypatch):
    captions = ["A dog on a red car.", "broken dog on a car", "prose of a dog on a car", ""]
    table = pa.table({"uid": [f"{i:032x}" for i in range(4)], "caption": captions})
    pq.write_table(table, tmp_path / "captions.parquet")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-testing-secret")
    with fake_server() as server:
        config = NegativesConfig(
            input=str(tmp_path / "captions.parquet"),
            negatives=WritingConfig(engine="http", rank=False),
            llm=LlmConfig(model="tiny", url=server.url, tries=2, patience_s=1),
            max_bad_fraction=0.25,
        )
        with monkeypatch.context() as patch:
            patch.setattr(cluster_negatives, "write_all", _lose_power)
            with pytest.raises(OSError, match="power"):
                raycomp.negatives(config, str(tmp_path / "out"))
        asked = dict(server.asked)
        assert asked["A dog on a red car."] == asked["prose of a dog on a car"] == 3
        run = raycomp.negatives(config, str(tmp_path / "out"))
        assert server.asked["A dog on a red car."] == server.asked["prose of a dog on a car"] == 3
        assert server.asked["broken dog on a car"] > asked["broken dog on a car"]
    rows = read_negatives(tmp_path / "out")
    assert [row["status"] for row in rows] == ["ok", "no_reply", "no_reply", "empty_caption"]
    assert [(n["text"], n["op"], n["source"]) for n in rows[0]["negatives"]] == [
        ("A dog under a red car.", "REPLACE", "http")
    ]
    assert run["rejected"]["SWAP: invalid_json"] == 1
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not any(b"sk-testing-secret" in path.read_bytes() for path in files)


def _lose_power(*_: object) -> None:
    raise OSError("no power")


def test_prompts_that_a_server_never_answers_do_not_stop_the_run(tmp_path):
    captions = ["A dog on a red car.", *(f"broken dog on car {i}" for i in range(20))]
    table = pa.table({"uid": [f"{i:032x}" for i in range(len(captions))], "caption": captions})
    pq.write_table(table, tmp_path / "captions.parquet")
    with fake_server() as server:
        config = NegativesConfig(
            input=str(tmp_path / "captions.parquet"),
            negatives=WritingConfig(engine="http", rank=False, operations=("REPLACE",)),
            llm=LlmConfig(model="tiny", url=server.url, tries=2, patience_s=0.5),
        )
        run = raycomp.negatives(config, str(tmp_path / "out"))
        assert server.asked["A dog on a red car."] <= 2  # once more, to see whether anybody is there
    assert run["funnel"]["kept"] == 1 and run["funnel"]["dropped"] == {"no_reply": 20}
    assert run["rejected"] == {"REPLACE: not_answered": 20}


def test_files_without_captions_end_in_files_without_negatives(tmp_path):
    empty = pa.table({"uid": pa.array([], pa.string()), "caption": pa.array([], pa.string())})
    pq.write_table(empty, tmp_path / "none.parquet")
    config = NegativesConfig(input=str(tmp_path / "none.parquet"), negatives=WritingConfig(rank=False))
    run = raycomp.negatives(config, str(tmp_path / "out"))
    assert run["funnel"]["read"] == run["written"] == 0 and run["rejected"] == {}
    assert read_negatives(tmp_path / "out") == []
