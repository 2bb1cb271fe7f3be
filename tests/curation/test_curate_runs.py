"""Whole runs: counts, bytes, restarts, choices, refusals."""

import dataclasses
import hashlib
import json
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.cli import main
from raycomp.config import ScorerConfig, TooMuchBadData
from raycomp.curation import command as curate_command
from raycomp.curation.config import RULES, SelectConfig, make_selection
from raycomp.curation.select.select import choose_tables
from raycomp.data.samples import write_tar
from raycomp.look.show import explain, show
from raycomp.models.clip import Clip
from raycomp.words import ALIGNED_STATUSES
from raycomp.words import DROPPED_CONTROL as CONTROL
from tests.corpus import NUM, by_cpi, mean_drop, scenes, write_bad_shards


def read_scores(out: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted((out / "scores").iterdir()))


def digests(out: Path, *folders: str) -> dict[str, str]:
    files = [path for folder in folders for path in sorted((out / folder).rglob("*")) if path.is_file()]
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_exact_counts_and_a_funnel_that_adds_up(curated):
    _, out, run = curated
    scores = read_scores(out)
    assert len(scores) == NUM
    assert run["funnel"]["read"] == NUM == run["funnel"]["kept"] + sum(run["funnel"]["dropped"].values())
    assert run["funnel"]["kept"] == 45
    assert run["funnel"]["dropped"] == {"below_alignment_gate": 27, "below_attribution_gate": 18}
    assert sum(value is not None for value in scores["phrases"].to_pylist()) == 72  # attribute.pool=0.8
    assert "45  kept (50.0 % of the corpus of 90)" in "".join(show(str(out)))


def test_every_stage_is_timed_within_the_time_its_workers_had(curated):
    _, _, run = curated
    stages = [(row["phase"], row["stage"]) for row in run["stages"]]
    assert stages == [
        *(("align", stage) for stage in ("read", "decode", "align", "write")),
        *(("attribute", stage) for stage in ("read", "parse", "attribute", "write")),
    ]
    for row in run["stages"]:
        assert row["seconds"] > 0 and 0 < row["busy_share"] <= 1
        phase = next(phase for phase in run["phases"] if phase["phase"] == row["phase"])
        had = row["workers"] * phase["wall_s"]
        assert row["busy_share"] == pytest.approx(row["seconds"] / had)
    for phase in run["phases"]:
        assert 0 < phase["commit_s"] < phase["wall_s"] and 0 < phase["scorer_busy_share"] < 1
        assert "gpu_busy_share" not in phase


def test_the_subset_is_the_best_by_a_plain_sort(curated):
    _, out, _ = curated
    scores = read_scores(out).select(["uid", "alignment", "mean_pas"]).to_pylist()
    pool = sorted(scores, key=lambda row: (-row["alignment"], row["uid"]))[:63]
    expected = sorted(pool, key=lambda row: (-row["mean_pas"], row["uid"]))[:45]
    kept = pq.read_table(out / "subset/kept.parquet").to_pylist()
    assert {row["uid"] for row in kept} == {row["uid"] for row in expected}
    assert all(row["score"] == row["mean_pas"] for row in kept)
    pas = np.array([row["mean_pas"] for row in pool])
    moments = json.loads((out / "run.json").read_text())["pool_pas"]
    assert moments == {"count": 63, "mean": pytest.approx(pas.mean()), "std": pytest.approx(pas.std())}
    subset = np.load(out / "subset/subset.npy")
    assert subset.dtype == np.dtype("u8,u8")
    halves = sorted((int(row["uid"][:16], 16), int(row["uid"][16:], 16)) for row in kept)
    assert subset.tolist() == halves


def test_a_drop_is_what_plain_open_clip_measures(curated):
    import open_clip
    import torch
    import torch.nn.functional as F

    from raycomp.models.clip import Clip

    config, out, _ = curated
    model = Clip(config.scorer).model
    rows = [row for row in read_scores(out).to_pylist() if row["phrases"]]
    texts, images, expected = [], [], []
    for row in rows:
        image = torch.tensor(row["image_embedding"])
        texts.append(row["caption"])
        images.append(image)
        expected.append(row["alignment"])
        for phrase in row["phrases"]:
            assert phrase["target"] == row["caption"][phrase["target_start"] : phrase["target_end"]]
            for nonce, drop in zip(phrase["nonces"], phrase["drops"], strict=True):
                start, end = phrase["target_start"], phrase["target_end"]
                texts.append(row["caption"][:start] + nonce + row["caption"][end:])
                images.append(image)
                expected.append(row["alignment"] - drop)
    assert len(texts) > 3 * len(rows)
    with torch.inference_mode():
        plain = F.normalize(model.encode_text(open_clip.tokenize(texts)), dim=-1)
    similarity = (torch.stack(images) * plain).sum(-1)
    assert (similarity - torch.tensor(expected)).abs().max() < 1e-5
    for row in rows:
        drops = [phrase["drop"] for phrase in row["phrases"] if phrase["target_class"] == "head"]
        assert row["mean_pas"] == pytest.approx(np.mean([d for d in drops if d is not None]), abs=1e-6)


def test_alignment_is_what_plain_open_clip_measures(curated):
    import io

    import open_clip
    import torch
    import torch.nn.functional as F
    from PIL import Image

    from raycomp.models.clip import Clip

    config, out, _ = curated
    model = Clip(config.scorer).model
    transform = open_clip.image_transform((32, 32), is_train=False)
    pixels, captions = [], []
    for path in sorted(Path(config.input).glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                data = tar.extractfile(member).read()
                if member.name.endswith(("png", "jpg")):
                    pixels.append(transform(Image.open(io.BytesIO(data)).convert("RGB")))
                elif member.name.endswith("txt"):
                    captions.append(data.decode().strip())
    with torch.inference_mode():
        images = F.normalize(model.encode_image(torch.stack(pixels)), dim=-1)
        texts = F.normalize(model.encode_text(open_clip.tokenize(captions)), dim=-1)
    scores = read_scores(out)
    assert scores["caption"].to_pylist() == captions
    plain = (images * texts).sum(-1).numpy()
    assert np.abs(plain - scores["alignment"].to_numpy()).max() < 1e-5


def test_kept_samples_come_out_with_their_own_bytes(curated):
    config, out, _ = curated
    originals = {}
    for path in sorted(Path(config.input).glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                originals.setdefault((path.name, member.name.split(".")[0]), {})[
                    member.name.split(".", 1)[1]
                ] = tar.extractfile(member).read()
    kept = {row["uid"]: row for row in pq.read_table(out / "subset/kept.parquet").to_pylist()}
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(out / "shards/00000000.tar") as tar:
        for member in tar:
            key, extension = member.name.split(".", 1)
            found.setdefault(key.removesuffix("-0"), {})[extension] = tar.extractfile(member).read()
    assert set(found) == set(kept)
    for uid, members in found.items():
        original = originals[(kept[uid]["shard"], kept[uid]["key"])]
        for extension in original:
            if extension != "json":
                assert members[extension] == original[extension]
        enriched = json.loads(members["json"])
        assert enriched["uid"] == uid
        assert enriched["alignment"] == pytest.approx(kept[uid]["alignment"])
    assert (out / "shards/__len__").read_text() == "45"
    assert json.loads((out / "shards/sizes.json").read_text()) == {"00000000.tar": 45}
    assert {path.suffix for path in (out / "shards").iterdir()} == {".tar", ".json", ".npy", ""}


def test_a_finished_run_does_nothing_and_another_is_refused(curated, capsys):
    config, out, run = curated
    before = digests(out, ".")
    assert raycomp.curate(config, str(out)) == json.loads(json.dumps(run))
    assert "finished already" in capsys.readouterr().out
    assert digests(out, ".") == before
    with pytest.raises(ValueError, match=r"differs in attribute\.nonces"):
        raycomp.curate(raycomp.override(config, "attribute.nonces", 3), str(out))


def test_what_cannot_be_chosen_again_is_refused(curated, tmp_path):
    _, out, _ = curated
    raycomp.select(str(out), {"materialize": "false"}, str(tmp_path / "again"))
    with pytest.raises(ValueError, match="holds select; name the curation"):
        raycomp.select(str(tmp_path / "again"), {}, str(tmp_path / "no"))
    with pytest.raises(ValueError, match=r"align\.keep=0\.9: must be at most 0\.8"):
        raycomp.select(str(out), {"align.keep": "0.9"}, str(tmp_path / "no"))
    with pytest.raises(ValueError, match=r"scorer\.model: select cannot change it"):
        raycomp.select(str(out), {"scorer.model": "ViT-B-32"}, str(tmp_path / "no"))


def test_content_words_are_chosen_by_without_a_model_where_they_were_measured(curated, tmp_path):
    config, out, _ = curated
    with pytest.raises(ValueError, match=r"^attribute.targets='content': the scores have no adjectives"):
        raycomp.select(str(out), {"attribute.targets": "content"}, str(tmp_path / "no"))
    wide = raycomp.override(config, "attribute.targets", "content")
    raycomp.curate(wide, str(tmp_path / "wide"))
    rows = read_scores(tmp_path / "wide")
    assert rows.drop_columns(["content_words"]).equals(read_scores(out))
    subsets = set()
    for targets in ("content", "nouns", "showable"):
        for unit in ("drop", "per_displacement"):
            settings = {"attribute.targets": targets, "attribute.unit": unit, "attribute.aggregate": "min"}
            to = tmp_path / f"{targets}-{unit}"
            raycomp.select(str(tmp_path / "wide"), settings, str(to))
            subsets.add(tuple(digests(to, "subset").values()))
    assert len(subsets) == 6, "every reading chooses in its own way"
    assert "least drop of content words" in (tmp_path / "content-drop" / "report.html").read_text()


def test_unseen_targets_choose_another_subset(curated, tmp_path):
    _, out, _ = curated
    raycomp.select(str(out), {"attribute.targets": "nouns"}, str(tmp_path / "again"))
    assert digests(tmp_path / "again", "subset") != digests(out, "subset")
    rows = [row for row in read_scores(out).to_pylist() if row["phrases"]]
    assert any(phrase["target_class"] == "unseen" for row in rows for phrase in row["phrases"])


@pytest.mark.parametrize(
    ("settings", "kept", "reasons"),
    [
        ({"select.rule": "align_only"}, 45, {"below_alignment_gate": 45}),
        ({"select.rule": "random"}, 45, {"not_drawn": 45}),
        ({"select.rule": "full"}, 90, {}),
        ({"select.datacomp_compat": "true"}, 46, {"below_alignment_gate": 27, "below_attribution_gate": 17}),
        ({"attribute.aggregate": "min"}, 45, {"below_alignment_gate": 27, "below_attribution_gate": 18}),
        ({"attribute.keep": "0"}, 0, {"below_alignment_gate": 27, "below_attribution_gate": 63}),
    ],
)
def test_every_rule_keeps_exactly_its_share(curated, tmp_path, settings, kept, reasons):
    _, out, _ = curated
    run = raycomp.select(str(out), {**settings, "materialize": "false"}, str(tmp_path / "out"))
    assert (run["funnel"]["kept"], run["funnel"]["dropped"]) == (kept, reasons)
    assert not (tmp_path / "out/shards").exists()
    assert f"{kept:,}  kept" in "".join(show(str(tmp_path / "out")))


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.attribute_by])
def test_rules_of_two_gates_choose_over_files_what_they_choose_in_memory(curated, tmp_path, rule):
    config, out, _ = curated
    run = raycomp.select(str(out), {"select.rule": rule, "materialize": "false"}, str(tmp_path / "out"))
    assert (run["funnel"]["kept"], run["funnel"]["dropped"]["below_alignment_gate"]) == (45, 27)
    tables = [pq.read_table(path) for path in sorted((out / "scores").iterdir())]
    gates, judged = choose_tables(tables, make_selection(raycomp.override(config, "select.rule", rule)))
    assert run["gates"] == gates.to_dict()
    uids = [uid for table in tables for uid in table["uid"].to_pylist()]
    reasons, scores = (np.concatenate(parts).tolist() for parts in zip(*judged, strict=True))
    reported = dict(zip(uids, zip(reasons, scores, strict=True), strict=True))
    kept = {
        row["uid"]: row["score"] for row in pq.read_table(tmp_path / "out/subset/kept.parquet").to_pylist()
    }
    assert set(kept) == {uid for uid, (reason, _) in reported.items() if reason == "kept"}
    assert kept == {uid: reported[uid][1] for uid in kept}
    lost = next(uid for uid in uids if reported[uid][0] in ("not_drawn", "below_attribution_gate", CONTROL))
    text = explain(str(tmp_path / "out"), lost)
    assert f"{reported[lost][1]:.6f} against" in text and f"kept: no, {reported[lost][0]}" in text


def test_rules_are_named_by_their_shares_when_chosen_again(curated, tmp_path):
    _, out, _ = curated
    settings = {"align.keep": "0.6", "attribute.keep": "0.4", "materialize": "false"}
    with pytest.raises(ValueError, match=r"select\.rule='align70_random50': must be align60_random40"):
        raycomp.select(str(out), {**settings, "select.rule": "align70_random50"}, str(tmp_path / "no"))
    with pytest.raises(ValueError, match=r"align\.keep=0\.9: must be at most 0\.8"):
        raycomp.select(str(out), {"align.keep": "0.9", "select.rule": "length"}, str(tmp_path / "no"))
    run = raycomp.select(str(out), {**settings, "select.rule": "align60_random40"}, str(tmp_path / "out"))
    assert run["funnel"]["dropped"] == {"below_alignment_gate": 36, "not_drawn": 18}


def test_a_moved_curation_is_its_own(curated, tmp_path):
    """Where it lay lies another one now, of the same photos with other scores."""
    _, out, _ = curated
    settings = {"align.keep": "0.6", "attribute.keep": "0.4"}
    first = raycomp.select(str(out), settings, str(tmp_path / "first"))
    shutil.copytree(out, tmp_path / "here")
    run = json.loads((tmp_path / "here/run.json").read_text())
    (tmp_path / "here/run.json").write_text(json.dumps({**run, "scores": str(tmp_path / "here/scores")}))
    (tmp_path / "here").rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "here")
    for path in (tmp_path / "here/scores").iterdir():
        table = pq.read_table(path)
        at = table.schema.get_field_index("alignment")
        pq.write_table(table.set_column(at, "alignment", pc.negate(table["alignment"])), path)
    again = raycomp.select(str(tmp_path / "moved"), settings, str(tmp_path / "again"))
    assert again["gates"] == first["gates"]
    assert digests(tmp_path / "again", "subset", "shards") == digests(tmp_path / "first", "subset", "shards")


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
        raycomp.curate(raycomp.override_all(config, settings), str(tmp_path / "out"))
    assert not (tmp_path / "out/shards").exists() and not (tmp_path / "out/subset").exists()
    assert not (tmp_path / "out/run.json").exists()  # nothing was scored: it may be another run next time


def test_a_finished_run_that_lost_results_is_not_called_finished(curated, tmp_path):
    config, out, _ = curated
    shutil.copytree(out, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/shards")
    with pytest.raises(ValueError, match=r"was finished, but .*/shards/00000000\.tar: is missing"):
        raycomp.curate(config, str(tmp_path / "copy"))
    (tmp_path / "twice").symlink_to(out)
    assert raycomp.curate(config, str(tmp_path / "twice"))["status"] == "finished"


@pytest.mark.slow
def test_ties_that_were_not_attributed_are_not_chosen_from(curated, tmp_path):
    """DataComp's rule keeps all pairs of the threshold's score: here every pair."""
    config, _, _ = curated
    members = scenes(2, 3)[0]
    write_tar(str(tmp_path / "in/0.tar"), [(f"e{i:02d}", members) for i in range(40)])
    tied = raycomp.override_all(config, {"input": str(tmp_path / "in"), "align.keep": 0.7})
    for name, pool in (("gate", None), ("pool", 0.8)):
        options = {"select.datacomp_compat": True, "attribute.keep": 0.7, "attribute.pool": pool}
        run = raycomp.curate(raycomp.override_all(tied, options), str(tmp_path / name))
        assert (run["funnel"]["kept"], run["funnel"]["dropped"]) == (40, {})
    raycomp.curate(raycomp.override_all(tied, {"attribute.pool": 0.8}), str(tmp_path / "plain"))
    with pytest.raises(ValueError, match="keeps 40 pairs with their ties, of which 32 were attributed"):
        raycomp.select(str(tmp_path / "plain"), {"select.datacomp_compat": True}, str(tmp_path / "again"))


def test_results_go_nowhere_into_the_input(curated, tmp_path):
    config, out, _ = curated
    with pytest.raises(ValueError, match="lies inside input="):
        raycomp.select(str(out), {}, f"{config.input}/out")
    with pytest.raises(ValueError, match="lies inside input="):
        raycomp.curate(config, f"{config.input}/out")
    assert not Path(f"{config.input}/out").exists()


@pytest.mark.parametrize(
    "name", ["shuffled_alignment", "tokens", "pixels", "seconds_x", "faults", "counterfactuals", "others"]
)
def test_an_extra_column_cannot_take_the_place_of_another(curated, tmp_path, name):
    config, _, _ = curated
    with pytest.raises(ValueError, match=f"extra_columns='{name}': must be new names"):
        raycomp.curate(raycomp.override(config, "extra_columns", f"fine,{name}"), str(tmp_path / "out"))


def test_a_relative_input_means_the_same_from_another_folder(curated, tmp_path, monkeypatch):
    config, out, _ = curated
    monkeypatch.chdir(Path(config.input).parent)
    relative = raycomp.override(config, "input", Path(config.input).name)
    assert raycomp.curate(relative, str(out))["config"]["input"] == config.input
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no such file or folder"):
        raycomp.curate(relative, str(tmp_path / "out"))


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_damaged_scores_are_the_users_to_fix(curated, tmp_path, damage, capsys):
    _, out, _ = curated
    shutil.copytree(out, tmp_path / "copy")
    path = tmp_path / "copy/scores/00001.parquet"
    path.write_bytes(path.read_bytes()[:-200])
    if damage == "gone":
        path.unlink()
    for command in (
        ["select", "--out", str(tmp_path / "again")],
        ["negatives", "--out", str(tmp_path / "n")],
    ):
        where = [str(tmp_path / "copy")] if command[0] == "select" else ["--set", f"input={tmp_path}/copy"]
        assert main([*command, *where]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "00001.parquet: is missing" in said or "00001.parquet: is shorter than the run wrote" in said


def test_explain_reports_the_row_that_was_scored(bad):
    """A corrupt image and a good one share a uid."""
    out, _, _ = bad
    text = explain(str(out), "ab" * 16)
    assert "02-duplicates.tar" in text.splitlines()[2] and "corrupt" not in text.splitlines()[0]
    assert text.splitlines()[-1] == "the same uid again: 04-own-uid.tar, row 0: uid_conflict"


def test_explain_reports_a_samples_way(curated):
    _, out, _ = curated
    kept = pq.read_table(out / "subset/kept.parquet").to_pylist()[0]
    text = explain(str(out), kept["uid"])
    assert "kept: yes" in text and f"{kept['alignment']:.6f}" in text and "gate 2" in text
    dropped = next(row for row in read_scores(out).to_pylist() if row["phrases"] is None)
    assert "kept: no, below_alignment_gate" in explain(str(out), dropped["uid"])
    with pytest.raises(ValueError, match="no such uid"):
        explain(str(out), "0" * 32)


@pytest.fixture(scope="module")
def bad(tiny_scorer, tmp_path_factory) -> tuple[Path, dict[str, int], dict]:
    """A curation of every bad input; too much of it stopped the first start, a higher limit went on."""
    folder = tmp_path_factory.mktemp("bad")
    expected = write_bad_shards(folder / "in")
    config = by_cpi(input=str(folder / "in"), scorer=tiny_scorer, attribute=mean_drop(pool=1.0))
    with pytest.raises(TooMuchBadData, match=r"max_bad_fraction=0\.05"):
        raycomp.curate(config, str(folder / "out"))
    shutil.copytree(folder / "out/work/waves", folder / "stopped")
    more = raycomp.override(config, "max_bad_fraction", 0.5)
    return folder / "out", expected, raycomp.curate(more, str(folder / "out"))


def test_every_bad_input_is_a_row_with_its_status(bad):
    out, expected, run = bad
    statuses = Counter(read_scores(out)["status"].to_pylist())
    aligned = sum(statuses.pop(status, 0) for status in ALIGNED_STATUSES)
    assert {"aligned": aligned, **statuses} == expected
    assert run["funnel"]["corpus"] == expected["aligned"]
    for status, count in expected.items():
        if status != "aligned":
            assert run["funnel"]["dropped"][status] == count
    assert run["funnel"]["read"] == sum(expected.values())


def test_the_first_of_a_uid_stays(bad):
    out, _, _ = bad
    rows = read_scores(out).to_pylist()
    own = [(row["shard"], row["status"]) for row in rows if row["uid"] == "ab" * 16]
    assert own[0][0] == "02-duplicates.tar" and own[0][1] != "uid_conflict"
    assert own[1] == ("04-own-uid.tar", "uid_conflict")
    duplicates = [row for row in rows if row["status"] in ("duplicate_uid", "uid_conflict")]
    assert all(row["alignment"] is None and row["image_embedding"] is None for row in duplicates)


def test_the_report_survives_markup_in_captions(bad):
    out, _, _ = bad
    page = (out / "report.html").read_text()
    assert page.count("<script>") == 1


def test_a_higher_limit_goes_on_from_what_was_aligned(bad):
    out, expected, run = bad
    committed = sorted((out.parent / "stopped").iterdir())
    assert committed
    walls = [json.loads(path.read_text())["stats"]["wall_s"] for path in committed]
    assert run["funnel"]["read"] == sum(expected.values())
    assert run["phases"][0]["wall_s"] == pytest.approx(sum(walls))


def test_other_samples_of_one_uid_stop_the_run_every_time(tiny_scorer, tmp_path):
    """Two sets numbered alike, each with the uids that a curation of its own wrote."""
    for name, seed in (("a", 1), ("b", 2)):
        named = [
            (f"{i:09d}", {**members, "json": json.dumps({"uid": f"{i:032x}"}).encode()})
            for i, members in enumerate(scenes(10, seed))
        ]
        write_tar(str(tmp_path / f"in/{name}.tar"), named)
    config = by_cpi(
        input=str(tmp_path / "in"),
        scorer=tiny_scorer,
        select=SelectConfig("align_only"),
        max_bad_fraction=0.49,
    )
    for _ in range(2):
        with pytest.raises(TooMuchBadData, match=r"10 uid_conflict.*Name the inputs"):
            raycomp.curate(config, str(tmp_path / "out"))
    run = raycomp.curate(raycomp.override(config, "max_bad_fraction", 0.5), str(tmp_path / "out"))
    (warning,) = run["warnings"]
    assert warning.startswith("input: 10 of 20 rows are uid_conflict (")
    assert run["funnel"]["corpus"] == 10 and run["funnel"]["dropped"]["uid_conflict"] == 10
    assert "Name the inputs" in (tmp_path / "out/report.html").read_text()


def test_the_control_without_pas_attributes_nothing_and_parquet_gives_the_scores_of_the_tars(
    curated, tmp_path
):
    config, out, _ = curated
    rows = []
    for path in sorted(Path(config.input).glob("*.tar")):
        samples: dict[str, dict] = {}
        with tarfile.open(path) as tar:
            for member in tar:
                key, extension = member.name.split(".", 1)
                samples.setdefault(key, {})[extension] = tar.extractfile(member).read()
        for key, members in samples.items():
            image = next(data for name, data in members.items() if name in ("png", "jpg"))
            rows.append({"key": key, "image": image, "caption": members["txt"].decode().strip()})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "all.parquet")
    other = dataclasses.replace(
        config,
        input=str(tmp_path / "all.parquet"),
        select=SelectConfig("align_only"),
        attribute=mean_drop(),
        materialize=False,
    )
    run = raycomp.curate(other, str(tmp_path / "out"))
    assert run["funnel"]["dropped"] == {"below_alignment_gate": 45}
    scores, columns = read_scores(tmp_path / "out"), ["caption", "alignment"]
    assert scores["phrases"].null_count == NUM
    assert scores.select(columns).equals(read_scores(out).select(columns))


@pytest.mark.parametrize(
    ("scorer", "words"),
    [
        (ScorerConfig(model="ViT-Z-99", weights="random:0"), "scorer.model='ViT-Z-99'"),
        (ScorerConfig(model="ViT-B-32", weights="no-such-tag"), "scorer.weights='no-such-tag'"),
        (ScorerConfig(model="missing.json", weights="random:0"), "scorer.model='missing.json'"),
    ],
)
def test_a_missing_model_is_named_before_any_work(curated, tmp_path, scorer, words):
    with pytest.raises(ValueError, match=words):
        raycomp.curate(dataclasses.replace(curated[0], scorer=scorer), str(tmp_path / "out"))
    assert not (tmp_path / "out/run.json").exists()


def test_a_run_in_this_process_loads_its_scorer_once(curated, tmp_path, monkeypatch):
    config, out, _ = curated
    made: list[Clip] = []

    def load(*args: Any, **options: Any) -> Clip:
        made.append(Clip(*args, **options))
        return made[-1]

    monkeypatch.setattr("raycomp.models.clip.Clip", load)
    raycomp.curate(config, str(tmp_path / "out"))
    assert len(made) == 1
    outputs = "scores", "subset"
    assert digests(tmp_path / "out", *outputs) == digests(out, *outputs) != {}
