"""Whole runs: counts, bytes, restarts, choices, refusals."""

import hashlib
import io
import json
import shlex
import shutil
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import raycomp
from raycomp.cli import main
from raycomp.config import ScorerConfig, TooMuchBadData, override, override_all
from raycomp.curation import command as curate_command
from raycomp.curation.config import CurateConfig, SelectConfig, make_selection
from raycomp.curation.select.select import choose_tables
from raycomp.data.inputs import expand_input
from raycomp.data.samples import write_tar
from raycomp.look.audit import audit
from raycomp.look.config import AuditConfig
from raycomp.look.show import explain, show
from raycomp.models.clip import Clip
from raycomp.words import ALIGNED_STATUSES
from raycomp.words import DROPPED_CONTROL as CONTROL
from tests.corpus import NUM, by_cpi, mean_drop, scenes, write_bad_shards, write_world_shards


def read_scores(out: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted((out / "scores").iterdir()))


def read_kept(out: Path) -> dict[str, dict[str, Any]]:
    return {row["uid"]: row for row in pq.read_table(out / "subset/kept.parquet").to_pylist()}


def read_tar(path: Path) -> dict[str, dict[str, bytes]]:
    """Return the members of every sample by its key."""
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            key, extension = member.name.split(".", 1)
            found.setdefault(key, {})[extension] = tar.extractfile(member).read()
    return found


def digests(out: Path, *folders: str) -> dict[str, str]:
    files = [path for folder in folders for path in sorted((out / folder).rglob("*")) if path.is_file()]
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_subset_is_the_best_by_a_plain_sort(curated):
    _, out, run = curated
    funnel, scores = run["funnel"], read_scores(out)
    assert (len(scores), funnel["read"], funnel["kept"]) == (NUM, NUM, 45)
    assert funnel["dropped"] == {"below_alignment_gate": 27, "below_attribution_gate": 18}
    assert len(scores) - scores["phrases"].null_count == 72  # attribute.pool=0.8
    assert "45  kept (50.0 % of the corpus of 90)" in "".join(show(str(out)))
    pool = sorted(scores.to_pylist(), key=lambda row: (-row["alignment"], row["uid"]))[:63]
    expected = sorted(pool, key=lambda row: (-row["mean_pas"], row["uid"]))[:45]
    kept = read_kept(out)
    assert {uid: row["score"] for uid, row in kept.items()} == {r["uid"]: r["mean_pas"] for r in expected}
    pas = np.array([row["mean_pas"] for row in pool])
    assert run["pool_pas"] == {
        "count": 63, "mean": pytest.approx(pas.mean()), "std": pytest.approx(pas.std())
    }  # fmt: skip
    subset = np.load(out / "subset/subset.npy")
    assert subset.dtype == np.dtype("u8,u8")
    assert subset.tolist() == sorted((int(uid[:16], 16), int(uid[16:], 16)) for uid in kept)


def check_parity(config: CurateConfig, out: Path, side: int) -> pa.Table:
    """Alignments and drops equal plain open_clip at 77 tokens within 1e-5; return the scores."""
    model, rows = Clip(config.scorer).model, read_scores(out).to_pylist()
    shards = [read_tar(Path(shard.uri)).values() for shard in expand_input(config.input)]
    samples = [one for shard in shards for one in shard]
    assert [row["caption"] for row in rows] == [members["txt"].decode().strip() for members in samples]
    transform = open_clip.image_transform((side, side), is_train=False)
    photos = [members.get("png", members.get("jpg")) for members in samples]
    pixels = torch.stack([transform(Image.open(io.BytesIO(data)).convert("RGB")) for data in photos])
    texts = [(i, row["caption"], row["alignment"]) for i, row in enumerate(rows)]
    for i, row in enumerate(rows):
        for phrase in row["phrases"] or ():
            before, after = row["caption"][: phrase["target_start"]], row["caption"][phrase["target_end"] :]
            assert row["caption"] == before + phrase["target"] + after
            for nonce, drop in zip(phrase["nonces"], phrase["drops"], strict=True):
                texts.append((i, before + nonce + after, row["alignment"] - drop))
        drops = [p["drop"] for p in row["phrases"] or () if p["target_class"] == "head" and p["nonces"]]
        assert row["mean_pas"] == (pytest.approx(np.mean(drops), abs=1e-6) if drops else None)
    assert len(texts) > 2 * len(rows)
    places, captions, expected = zip(*texts, strict=True)
    with torch.inference_mode():
        image_ND = F.normalize(model.encode_image(pixels), dim=-1)
        text_TD = F.normalize(model.encode_text(open_clip.tokenize(captions)), dim=-1)
    assert ((image_ND[list(places)] * text_TD).sum(-1) - torch.tensor(expected)).abs().max() < 1e-5
    return read_scores(out)


def test_scores_are_what_plain_open_clip_measures(curated):
    config, out, _ = curated
    scores = check_parity(config, out, side=32)
    assert sum(len(p["drops"]) for row in scores["phrases"].to_pylist() for p in row or ()) > 2 * len(scores)


def test_kept_samples_come_out_with_their_own_bytes(curated):
    config, out, _ = curated
    originals = {path.name: read_tar(path) for path in Path(config.input).glob("*.tar")}
    kept = read_kept(out)
    found = {key.removesuffix("-0"): one for key, one in read_tar(out / "shards/00000000.tar").items()}
    assert set(found) == set(kept)
    for uid, members in found.items():
        enriched = json.loads(members["json"])
        original = originals[kept[uid]["shard"]][kept[uid]["key"]]
        assert {**members, "json": b""} == {**original, "json": b""}
        assert enriched["uid"] == uid and enriched["alignment"] == pytest.approx(kept[uid]["alignment"])
    assert (out / "shards/__len__").read_text() == "45"
    assert json.loads((out / "shards/sizes.json").read_text()) == {"00000000.tar": 45}


def test_a_finished_run_does_nothing_and_another_is_refused(curated, tmp_path, monkeypatch, capsys):
    config, out, run = curated
    before = digests(out, ".")
    monkeypatch.chdir(Path(config.input).parent)
    relative = override(config, "input", Path(config.input).name)
    assert raycomp.curate(relative, str(out)).record == json.loads(json.dumps(run))
    assert "finished already" in capsys.readouterr().out
    assert digests(out, ".") == before
    with pytest.raises(ValueError, match=r"differs in attribute\.nonces"):
        raycomp.curate(override(config, "attribute.nonces", 3), str(out))
    with pytest.raises(
        ValueError, match=r"differs in attribute\.keep; choose again from its scores: "
    ) as refused:
        raycomp.curate(override(config, "attribute.keep", 0.3), str(out))
    line = str(refused.value).partition("from its scores: ")[2]
    assert main([*shlex.split(line)[1:-1], str(tmp_path / "again")]) == 0
    assert json.loads((tmp_path / "again/run.json").read_text())["config"]["attribute"]["keep"] == 0.3
    shutil.copytree(out, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/shards")
    with pytest.raises(ValueError, match=r"was finished, but .*/shards/00000000\.tar: is missing"):
        raycomp.curate(config, str(tmp_path / "copy"))


def test_mistakes_are_named_before_any_work(curated, tmp_path):
    config, out, _ = curated
    raycomp.select(str(out), {"materialize": "false"}, str(tmp_path / "again"))
    shares = {"align.keep": "0.6", "attribute.keep": "0.4", "select.rule": "align70_random50"}
    compat = {"align.keep": "0.8", "select.datacomp_compat": "true"}
    for source, settings, said in [
        (str(tmp_path / "again"), {}, "holds select; name the curation"),
        (str(out), {"align.keep": "0.9", "select.rule": "length"}, r"align\.keep=0\.9: must be at most 0\.8"),
        (str(out), {"scorer.model": "ViT-B-32"}, r"scorer\.model: select cannot change it"),
        (str(out), {"attribute.targets": "content"}, "attribute.targets='content': the scores have no adj"),
        (str(out), shares, r"select\.rule='align70_random50': must be align60_random40"),
        (str(out), compat, "73 pairs with their ties, 72 were attributed"),
    ]:
        with pytest.raises(ValueError, match=said):
            raycomp.select(source, settings, str(tmp_path / "no"))
    for settings, said in [
        ({"extra_columns": "fine,tokens"}, "extra_columns='tokens': must be new names"),
        ({"scorer.model": "ViT-Z-99", "scorer.weights": "random:0"}, "scorer.model='ViT-Z-99'"),
        ({"scorer.model": "ViT-B-32", "scorer.weights": "no-such-tag"}, "scorer.weights='no-such-tag'"),
        ({"input": "nowhere"}, "no such file or folder"),
    ]:
        with pytest.raises(ValueError, match=said):
            raycomp.curate(override_all(config, settings), str(tmp_path / "no"))
    with pytest.raises(ValueError, match="lies inside input="):
        raycomp.curate(config, f"{config.input}/out")
    with pytest.raises(ValueError, match="lies inside input="):
        raycomp.select(str(out), {}, f"{config.input}/out")
    assert not (tmp_path / "no/run.json").exists() and not Path(f"{config.input}/out").exists()


def test_rules_choose_over_files_what_they_choose_in_memory(curated, tmp_path):
    config, out, _ = curated
    tables = [pq.read_table(path) for path in sorted((out / "scores").iterdir())]
    uids = [uid for table in tables for uid in table["uid"].to_pylist()]
    for i, settings in enumerate(
        [
            {"align.keep": "0.6", "attribute.keep": "0.4", "select.rule": "align60_random40"},
            *({"select.rule": rule} for rule in ("align_pas", "random", "length")),
            {"attribute.keep": "0"},
            {"select.datacomp_compat": "true", "attribute.aggregate": "min"},
        ]
    ):
        name, to = str(settings), tmp_path / str(i)
        run = raycomp.select(str(out), {**settings, "materialize": "false"}, str(to))
        gates, judged = choose_tables(tables, make_selection(override_all(config, settings)))
        assert run["gates"] == gates.to_dict(), name
        reasons, scores = (np.concatenate(parts).tolist() for parts in zip(*judged, strict=True))
        assert Counter(reasons) == +Counter({"kept": run["funnel"]["kept"], **run["funnel"]["dropped"]}), name
        rows = zip(uids, reasons, scores, strict=True)
        kept = {uid: score for uid, reason, score in rows if reason == "kept"}
        assert {uid: row["score"] for uid, row in read_kept(to).items()} == kept, name
        assert not (to / "shards").exists() and f"{len(kept):,}  kept" in "".join(show(str(to)))
        for reason in {"kept", "not_drawn", "below_attribution_gate", CONTROL} & {*reasons}:
            at = reasons.index(reason)
            text, said = explain(str(to), uids[at]), "yes" if reason == "kept" else f"no, {reason}"
            assert f"{scores[at]:.6f} against" in text and f"kept: {said}" in text, name


@pytest.mark.parametrize("changed", ["input", "scorer"])
def test_what_changes_while_a_run_goes_on_is_never_published(curated, tmp_path, monkeypatch, changed):
    config, _, _ = curated
    shutil.copytree(config.input, tmp_path / "in")
    shutil.copy(config.scorer.model, tmp_path / "model.json")
    shards = sorted((tmp_path / "in").iterdir())

    def replace_files(job):
        """In the place of scoring."""
        if changed == "input":
            shards[0].write_bytes(shards[1].read_bytes())
        else:
            (tmp_path / "model.json").write_text(Path(config.scorer.model).read_text() + " ")
        return {}, {}

    monkeypatch.setattr(curate_command, "score", replace_files)
    settings = {"input": str(tmp_path / "in"), "scorer.model": str(tmp_path / "model.json")}
    with pytest.raises(ValueError, match=f"^{changed}: changed during the run"):
        raycomp.curate(override_all(config, settings), str(tmp_path / "out"))
    assert not (tmp_path / "out/run.json").exists()  # nothing was scored: it may be another run next time


def test_every_bad_input_is_a_row_with_its_status(tiny_scorer, tmp_path):
    """Too much of it stops the first start; a higher limit resumes what was aligned."""
    expected, out = write_bad_shards(tmp_path / "in"), tmp_path / "out"
    config = by_cpi(input=str(tmp_path / "in"), scorer=tiny_scorer, attribute=mean_drop(pool=1.0))
    with pytest.raises(TooMuchBadData, match=r"max_bad_fraction=0\.05"):
        raycomp.curate(config, str(out))
    walls = [json.loads(path.read_text())["stats"]["wall_s"] for path in (out / "work/waves").iterdir()]
    run = raycomp.curate(override(config, "max_bad_fraction", 0.5), str(out))
    assert run["phases"][0]["wall_s"] == pytest.approx(sum(walls)) and walls
    rows, funnel = read_scores(out).to_pylist(), run["funnel"]
    statuses = Counter(row["status"] for row in rows)
    aligned = sum(statuses.pop(status, 0) for status in ALIGNED_STATUSES)
    assert {"aligned": aligned, **statuses} == expected
    assert (funnel["corpus"], funnel["read"]) == (aligned, sum(expected.values()))
    assert {status: funnel["dropped"][status] for status in statuses} == statuses
    duplicates = [row for row in rows if row["status"] in ("duplicate_uid", "uid_conflict")]
    assert all(row["alignment"] is None and row["image_embedding"] is None for row in duplicates)
    text = explain(str(out), "ab" * 16).splitlines()
    assert "02-duplicates.tar" in text[2]
    assert text[-1] == "the same uid again: 04-own-uid.tar, row 0: uid_conflict"
    with pytest.raises(ValueError, match="no such uid"):
        explain(str(out), "0" * 32)


def test_other_samples_of_one_uid_stop_the_run_every_time(tiny_scorer, tmp_path):
    """Two sets numbered alike, each with the uids that a curation of its own wrote."""
    for name, seed in (("a", 1), ("b", 2)):
        own = [{**one, "json": f'{{"uid": "{i:032x}"}}'.encode()} for i, one in enumerate(scenes(10, seed))]
        write_tar(str(tmp_path / f"in/{name}.tar"), ((f"{i:09d}", one) for i, one in enumerate(own)))
    only = SelectConfig("align_only")
    config = by_cpi(input=str(tmp_path / "in"), scorer=tiny_scorer, select=only, max_bad_fraction=0.49)
    for _ in range(2):
        with pytest.raises(TooMuchBadData, match=r"10 uid_conflict.*Name the inputs"):
            raycomp.curate(config, str(tmp_path / "out"))
    run = raycomp.curate(override(config, "max_bad_fraction", 0.5), str(tmp_path / "out"))
    _, warning = run["warnings"]
    assert warning.startswith("input: 10 of 20 rows are uid_conflict (")
    names = ", ".join(f"b.tar/{i:09d}" for i in range(10))
    assert warning.endswith(f"such as {names}; left out")
    assert run["funnel"]["corpus"] == 10 and run["funnel"]["dropped"]["uid_conflict"] == 10


def test_a_run_in_this_process_loads_its_scorer_once_and_a_rule_without_pas_attributes_nothing(
    curated, tmp_path, monkeypatch
):
    config, out, _ = curated
    made: list[ScorerConfig] = []

    def load(scorer: ScorerConfig, *args: Any, **options: Any) -> Clip:
        made.append(scorer)
        return Clip(scorer, *args, **options)

    monkeypatch.setattr("raycomp.models.clip.Clip", load)
    raycomp.curate(config, str(tmp_path / "out"))
    assert len(made) == 1
    assert digests(tmp_path / "out", "scores", "subset") == digests(out, "scores", "subset") != {}
    changes = {"select.rule": "align_only", "attribute.pool": None, "materialize": False}
    run = raycomp.curate(override_all(config, changes), str(tmp_path / "plain"))
    assert run["funnel"]["dropped"] == {"below_alignment_gate": 45}
    scores = read_scores(tmp_path / "plain")
    assert scores["phrases"].null_count == NUM and scores["alignment"].equals(read_scores(out)["alignment"])


def test_the_limit_on_bad_data_counts_shards(tiny_scorer, tmp_path):
    write_world_shards(tmp_path / "in", 80, 20, seed=1)
    pointer = b"version https://git-lfs.github.com/spec/v1\n"
    first, second = sorted((tmp_path / "in").iterdir())[:2]
    first.write_bytes(pointer)
    second.write_bytes(second.read_bytes()[:-15_000])
    config = by_cpi(input=str(tmp_path / "in"), scorer=tiny_scorer)
    with pytest.raises(TooMuchBadData) as error:
        raycomp.curate(config, str(tmp_path / "out"))
    said = str(error.value)
    assert said.startswith("input: 2 of 4 shards cannot be read to their end (1 truncated_shard, 1 unrea")
    assert f"such as {first.name}, {second.name}; more than max_bad_fraction=0.05" in said
    assert said.endswith(f"; {first.name} is a git-lfs pointer, not the file itself; fetch it: git lfs pull")
    run = raycomp.curate(replace(config, max_bad_fraction=0.5), str(tmp_path / "out-2"))
    assert run["funnel"]["dropped"]["unreadable_shard"] == 1
    assert [one for one in run["warnings"] if one.startswith("input: 1 of the shards is unreadable_shard")]
    config = AuditConfig(input=config.input, scorer=tiny_scorer)
    run = audit(config, str(tmp_path / "audit"))
    assert [one for one in run["warnings"] if f"such as {first.name}" in one]
    with pytest.raises(TooMuchBadData, match=r"^input: 2 of 4 shards cannot be read .*max_bad_fraction=0.4"):
        audit(replace(config, max_bad_fraction=0.4), str(tmp_path / "audit-2"))
