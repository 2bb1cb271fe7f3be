"""``negatives`` as a command: from a curation, from Parquet, in waves, exported."""

import ast
import csv
import hashlib
import io
import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from PIL import Image

import raycomp
from raycomp.config import ScorerConfig, TooMuchBadData, WavesConfig, override_all
from raycomp.look.show import show
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.negatives import command as cluster_negatives
from raycomp.negatives.config import LlmConfig, NegativesConfig, WritingConfig
from raycomp.run.run import Lease
from raycomp.schema import NEGATIVES_SCHEMA
from tests.negatives.llm import fake_server
from tests.negatives.written import read_negatives, write_captions

CALLS = {"calls": 2, "add_similarity": 0.93}


@pytest.fixture(scope="module")
def curated(curated) -> Path:
    return curated[1]


@pytest.fixture(scope="module")
def written(curated, tmp_path_factory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("negatives") / "out"
    writing = WritingConfig(**CALLS, materialize=True, export=("negclip", "calls"))
    return out, raycomp.negatives(NegativesConfig(input=str(curated), negatives=writing), str(out))


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
    for row in rows:
        for calls in (1, 2):
            several = [negative for negative in row["negatives"] if negative["calls"] == calls]
            assert len(several) <= 3
            for op in {negative["op"] for negative in several}:
                ranked = [negative["similarity"] for negative in several if negative["op"] == op]
                assert ranked == sorted(ranked, reverse=True) and -1 <= min(ranked) <= max(ranked) <= 1


def test_images_of_the_curation_are_compared_with_negatives(curated, written, tiny_scorer):
    """The drop is that of the row's own image, from the alignment that the curation stored."""
    clip, tokenize = Clip(tiny_scorer), load_tokenizer(tiny_scorer)
    columns = ["uid", "alignment", "image_embedding"]
    tables = [pq.read_table(path, columns=columns) for path in sorted((curated / "scores").iterdir())]
    known = {row["uid"]: row for table in tables for row in table.to_pylist()}
    for row in read_negatives(written[0])[::5]:
        tokens = tokenize([negative["text"] for negative in row["negatives"]]).numpy().astype(np.int32)
        image = np.array(known[row["uid"]]["image_embedding"], np.float32)
        wanted = known[row["uid"]]["alignment"] - clip.text.embed(tokens)[0].numpy() @ image
        found = [negative["image_drop"] for negative in row["negatives"]]
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_shards_and_the_tsv_of_negclip_carry_the_negatives(curated, written):
    out, _ = written
    written_rows = read_negatives(out)
    by_uid = {row["uid"]: row for row in written_rows}
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
    with open(out / "exports" / "negclip.tsv", newline="") as file:
        found = [
            (row["title"], ast.literal_eval(row["neg_caption"]))
            for row in csv.DictReader(file, delimiter="\t")
        ]
    texts = [(row["caption"], [one["text"] for one in row["negatives"]]) for row in written_rows]
    assert found == [row for row in texts if row[1]]


def test_the_shards_for_tripletclip_have_a_negative_and_its_image(curated, written, tmp_path):
    """As its loader reads them: members image, neg_image, caption, neg_caption of shard-N.tar."""
    rows = [row for row in read_negatives(written[0]) if len(row["negatives"]) > 1][:5]
    shown = [(row["uid"], row["negatives"][1]["text"]) for row in rows]
    buffers = [io.BytesIO() for _ in rows]
    for i, buffer in enumerate(buffers):
        Image.new("RGB", (40, 30), (50 * i, 0, 0)).save(buffer, "PNG")
    images = [buffer.getvalue() for buffer in buffers[:-1]] + [b"no image"]
    columns = {"uid": [uid for uid, _ in shown], "negative": [text for _, text in shown], "image": images}
    pq.write_table(pa.table(columns), tmp_path / "images.parquet")
    writing = WritingConfig(**CALLS, export=("triplet",), images=str(tmp_path / "images.parquet"))
    run = raycomp.negatives(NegativesConfig(input=str(curated), negatives=writing), str(tmp_path / "out"))
    assert run["exports"] == ["exports/triplet/shard-{0..0}.tar: 4 pairs with a negative of both"]
    scored = {row["uid"]: row for row in pq.read_table(curated / "subset/kept.parquet").to_pylist()}
    found = list(webdataset.WebDataset(str(tmp_path / "out/exports/triplet/shard-0.tar"), shardshuffle=False))
    by_uid = {sample["__key__"].removesuffix("-0"): sample for sample in found}
    assert len(found) == 4 and {*by_uid} == {uid for uid, _ in shown[:4]}
    for (uid, text), image in zip(shown[:4], images, strict=False):
        sample = by_uid[uid]
        assert (sample["caption"].decode(), sample["neg_caption"].decode()) == (scored[uid]["caption"], text)
        assert hashlib.sha256(sample["image"]).hexdigest() == scored[uid]["image_sha256"]
        assert sample["neg_image"] == image
    with pytest.raises(ValueError, match=r"negatives\.images=None: must be Parquet"):
        WritingConfig(export=("triplet",))


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
    source = write_captions(tmp_path / "captions.parquet", captions)
    config = NegativesConfig(input=source, negatives=WritingConfig(rank=False))
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
    config = raycomp.override(config, "input", write_captions(tmp_path / "none.parquet", []))
    run = raycomp.negatives(config, str(tmp_path / "none"))
    assert run["funnel"]["read"] == run["written"] == 0 and read_negatives(tmp_path / "none") == []
    assert run["warnings"] == ["the result is empty: none of 0 rows is ok (no rows)"]


def test_bad_input_or_a_server_that_is_down_is_one_line(tmp_path):
    """No one is asked before the captions are known to be sound."""
    http = WritingConfig(engine="http", rank=False)
    plain = {"uid": ["a"], "caption": ["A dog"]}
    for columns, writing, said in [
        (plain | {"image_sha256": [["x"]]}, WritingConfig(rank=False), "'image_sha256' must be text"),
        (plain, WritingConfig(rank=False, export=("negclip",)), "need a folder that curate wrote"),
        ({"uid": ["a", None], "caption": ["a dog", "a cat"]}, http, "every row must have a unique uid"),
        (plain, http, "answered none of 3 prompts"),
    ]:
        pq.write_table(pa.table(columns), tmp_path / "captions.parquet")
        llm = LlmConfig(url="http://127.0.0.1:9/v1", patience_s=1)
        config = NegativesConfig(input=str(tmp_path / "captions.parquet"), negatives=writing, llm=llm)
        with pytest.raises((ValueError, OSError), match=said) as error:
            raycomp.negatives(config, str(tmp_path / "out"))
        assert "\n" not in str(error.value)


def test_the_scorer_is_the_one_that_is_named_else_the_curations_unchanged(curated, tiny_scorer, tmp_path):
    """What is named leads to a scorer of the defaults' own; an explicit field counts as named."""
    taken: list[ScorerConfig] = []

    def take(scorer: ScorerConfig, *_: object) -> None:
        taken.append(scorer)
        raise OSError("taken")

    config = NegativesConfig(input=str(curated))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_negatives, "describe_scorer", take)
        for options in (
            {},
            {"scorer.weights": "openai"},
            {"scorer.model": "ViT-B-16", "scorer.batch_size": "none"},
            {"scorer.precision": "bf16"},
            {"input": f"{curated}/subset/kept.parquet"},
        ):
            with pytest.raises(OSError, match="taken"):
                raycomp.negatives(override_all(config, options), str(tmp_path / "out"))
    default = ScorerConfig()
    assert taken == [tiny_scorer, default, default, replace(default, precision="bf16"), default]
    shutil.copytree(curated, tmp_path / "copy")
    run = json.loads((curated / "run.json").read_text())
    run["fingerprint"]["scorer"] = "of other weights"
    (tmp_path / "copy/run.json").write_text(json.dumps(run))
    with pytest.raises(ValueError, match=r"scorer\.weights='random:0': has changed since it scored"):
        raycomp.negatives(NegativesConfig(input=str(tmp_path / "copy")), str(tmp_path / "out"))


def test_a_server_is_asked_once_even_when_the_run_is_started_again(tmp_path, monkeypatch):
    """Prompts that it never answers do not stop the run."""
    good, prose, broken = "A dog on a red car.", "prose of a dog on a car", "broken dog on a car"
    source = write_captions(tmp_path / "captions.parquet", [good, broken, prose, ""])
    monkeypatch.setenv("OPENAI_API_KEY", "sk-testing-secret")
    with fake_server() as server:
        config = NegativesConfig(
            input=source,
            negatives=WritingConfig(engine="http", rank=False),
            llm=LlmConfig(model="tiny", url=server.url, tries=2, patience_s=1),
            max_bad_fraction=0.25,
        )
        with monkeypatch.context() as patch:
            patch.setattr(cluster_negatives, "write_all", _lose_power)
            with pytest.raises(OSError, match="power"):
                raycomp.negatives(config, str(tmp_path / "out"))
        asked = dict(server.asked)
        assert asked[good] == asked[prose] == 3
        run = raycomp.negatives(config, str(tmp_path / "out"))
        assert server.asked[good] == server.asked[prose] == 3
        assert server.asked[broken] > asked[broken]
    rows = read_negatives(tmp_path / "out")
    assert [row["status"] for row in rows] == ["ok", "no_reply", "no_reply", "empty_caption"]
    found = [(n["text"], n["op"], n["source"]) for n in rows[0]["negatives"]]
    assert found == [("A dog under a red car.", "REPLACE", "http")]
    assert any("'tiny': 6 of 9 replies were refused, most as not_answered" in one for one in run["warnings"])
    assert run["rejected"]["SWAP: invalid_json"] == 1 and run["rejected"]["REPLACE: not_answered"] == 1
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not any(b"sk-testing-secret" in path.read_bytes() for path in files)


def _lose_power(*_: object) -> None:
    raise OSError("no power")
