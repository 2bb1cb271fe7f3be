"""A run's folder is believed for what lies in it, and a path written down only where the same run lies."""

import json
import shutil
from pathlib import Path

import pytest

import raycomp
from raycomp.config import get_config, list_kinds, list_options, to_dict
from raycomp.curation.config import CurateConfig
from raycomp.data.files import Folder
from raycomp.data.inputs import expand_input
from raycomp.data.runs import check_shards_of_runs, identify, list_scores, read_finished, say_noise
from raycomp.look.show import explain, show
from tests.corpus import by_cpi
from tests.sealed import seal

CUT = {"count": 9, "bits": 0, "uid": None}
CURATED = {
    "kind": "curate",
    "status": "finished",
    "config": {"input": "a", "cluster": {"num_cpus": 3}},
    "fingerprint": {"input": "f", "shards": 3},
    "versions": {},
    "funnel": {"read": 9, "corpus": 9, "kept": 9, "dropped": {}},
    "warnings": [],
    "gates": {"num_corpus": 9, "align": CUT, "attribute": None, "num_scored": None},
    "manifest": {"results": "r"},
}


def write_run(folder: Path, run: dict, num_shards: int = 0) -> dict:
    for ordinal in range(num_shards):
        Folder(str(folder)).write_bytes(b"", "scores", f"{ordinal:05d}.parquet")
    Folder(str(folder)).write_json(run, "run.json")
    seal(Folder(str(folder)))
    return Folder(str(folder)).read_json("run.json")


def write_curation(folder: Path, num_shards: int = 3, **more: object) -> dict:
    fingerprint = {"input": "f", "shards": num_shards}
    run = {**CURATED, "fingerprint": fingerprint, "scores": str(folder / "scores"), **more}
    return write_run(folder, run, num_shards)


def write_selection(folder: Path, origin: Path, run: dict) -> dict:
    fingerprint = {"scores": identify(run), "shards": 3}
    chosen = {**CURATED, "kind": "select", "fingerprint": fingerprint, "scores": str(origin / "scores")}
    return write_run(folder, chosen)


def test_a_moved_curation_has_its_own_scores_whatever_lies_where_it_was(tmp_path):
    run = write_curation(tmp_path / "a", 12)
    (tmp_path / "a").rename(tmp_path / "b")
    write_curation(tmp_path / "a", fingerprint={"input": "other", "shards": 3})
    (tmp_path / "b/scores/notes.txt").touch()
    listed = list_scores(run, str(tmp_path / "b"))
    assert listed == [str(tmp_path / f"b/scores/{i:05d}.parquet") for i in range(12)]
    (tmp_path / "b/scores/00007.parquet").unlink()
    with pytest.raises(ValueError, match=r"00007\.parquet: is missing"):
        list_scores(run, str(tmp_path / "b"))


def test_random_weights_are_noise_also_in_what_is_made_from_a_run(tmp_path):
    random, real = ({"scorer": {"weights": weights}} for weights in ("random:3", "openai"))
    for name, config in (("random", random), ("real", real)):
        write_curation(tmp_path / name, config=config)
    below = {"input": str(tmp_path / "random")}
    for kind, config, is_noise in (
        ("curate", random, True),
        ("curate", real, False),
        ("continual", {"model": {"weights": "random:0"}}, True),
        ("evaluate", {"model": {"weights": str(tmp_path / "random/checkpoint")}}, False),
        ("train", {**below, "model": {"weights": "random:0"}}, False),
        ("probe composition", {**below, **real}, False),
        ("probe pas", {**below, "scorer": None}, True),
        ("negatives", {**below, **random, "negatives": {"rank": False}}, True),
        ("negatives", {"input": "a.tar", **random, "negatives": {"rank": False}}, False),
        ("compare", {"runs": [str(tmp_path / "real"), str(tmp_path / "random")]}, True),
        ("diff", {"first": str(tmp_path / "real"), "second": str(tmp_path / "gone")}, False),
    ):
        said = say_noise({"kind": kind, "config": config})
        assert said.startswith("Random weights (random:") == is_noise, (kind, config)
    assert say_noise({"kind": "explore", "config": {}, "source": str(tmp_path / "random")})


def test_a_selection_follows_its_path_only_to_the_curation_that_it_chose_from(tmp_path):
    run = write_curation(tmp_path / "a")
    chosen = write_selection(tmp_path / "s", tmp_path / "a", run)
    (tmp_path / "s").rename(tmp_path / "moved")
    assert list_scores(chosen, str(tmp_path / "moved"))[0] == str(tmp_path / "a/scores/00000.parquet")
    free = {**run["config"], "cluster": {"num_cpus": 8}}
    write_curation(tmp_path / "a", config=free)
    assert len(list_scores(chosen, str(tmp_path / "moved"))) == 3
    for change in (
        {"fingerprint": {"input": "g", "shards": 3}},
        {"config": {"input": "b"}},
        {"device": "gpu"},
        {"gpu": {"name": "NVIDIA L4"}},
    ):
        write_curation(tmp_path / "a", **change)
        with pytest.raises(ValueError, match="missing or belong to another run; select again"):
            list_scores(chosen, str(tmp_path / "moved"))
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(ValueError, match="missing or belong to another run; select again"):
        list_scores(chosen, str(tmp_path / "moved"))


def test_two_runs_are_one_where_they_differ_in_free_options_alone(tmp_path):
    for kind in list_kinds():
        for option in list_options(get_config(kind)):
            found = []
            for value in ("one", "another"):
                config: object = value
                for name in reversed(option.path.split(".")):
                    config = {name: config}
                found.append(identify({**CURATED, "kind": kind, "config": config}))
            assert (found[0] == found[1]) == ("free" in option.marks), (kind, option.path)
    # Inputs are known by their size: curated anew after they were exchanged, the scores are others.
    folder = Folder(str(tmp_path))
    first = write_curation(tmp_path)
    seal(folder)
    assert identify(folder.read_json("run.json")) == identify(first)
    folder.write_bytes(b"x", "scores", "00000.parquet")
    seal(folder)
    assert identify(folder.read_json("run.json")) != identify(first)


def test_select_changes_what_no_score_depends_on(tmp_path):
    """Its input is gone, so that an option that may be set is refused for that alone."""
    fingerprint = {"input": "f", "shards": 3, "lexicon": "l"}
    write_curation(tmp_path / "a", config=to_dict(by_cpi(input=f"{tmp_path}/gone")), fingerprint=fingerprint)
    for option in list_options(CurateConfig):
        path = option.path
        value = {"materialize": True, "attribute.targets": "showable"}.get(path, option.default)
        said = f"^{path}: select cannot change it, its options are align"
        if "select" in option.marks:
            said = "is gone or was changed after scoring"
        elif "update" in option.marks:
            said = f"^{path}: the scores have {path}=.*in place: raycomp update {tmp_path}/a .*keep both"
        with pytest.raises(ValueError, match=said):
            raycomp.select(str(tmp_path / "a"), {path: value}, str(tmp_path / "out"))


def test_what_is_no_run_is_said_in_one_line(tmp_path):
    run = write_curation(tmp_path)
    foreign = [b"", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"status": "finished"}']
    for odd in (
        {"status": "unheard"},
        {"config": []},
        {"funnel": {"read": "many"}},
        {"gates": {"align": 3}},
        {"manifest": None},
        {"manifest": {"sha256": "0", "files": 1, "bytes": 1}},
        {"format": "2"},
        {"format": 3},
    ):
        foreign.append(json.dumps({**run, **odd}).encode())
    for content in foreign:
        (tmp_path / "run.json").write_bytes(content)
        for read in (read_finished, lambda source: list(show(source)), lambda one: explain(one, "0" * 32)):
            with pytest.raises(ValueError, match=r"run\.json: ") as error:
                read(str(tmp_path))
            assert type(error.value) is ValueError and "\n" not in str(error.value), content


def test_shards_that_are_named_by_themselves_are_those_of_their_run(new_folder):
    for name in ["shards", "shards/", "shards/00000000.tar", "*/*.tar"]:
        path = new_folder()
        folder = Folder(str(path))
        run = write_curation(path)
        for i in range(2):
            folder.write_bytes(b"tar", "shards", f"{i:08d}.tar")
        seal(folder)
        shards = expand_input(f"{path}/{name}")
        check_shards_of_runs(shards)
        folder.write_bytes(b"ta", "shards", "00000001.tar")
        with pytest.raises(ValueError, match=r"00000001\.tar: is shorter"):
            check_shards_of_runs(shards)
        folder.write_json(run | {"status": "running"}, "run.json")
        with pytest.raises(ValueError, match="the run has not finished"):
            check_shards_of_runs(shards)
