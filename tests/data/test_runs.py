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
from raycomp.data.runs import check_shards_of_runs, identify, list_scores, read_finished
from raycomp.look import show as inspect
from raycomp.look.show import explain
from tests.corpus import by_cpi
from tests.sealed import seal


def show(source: str) -> str:
    return "".join(inspect.show(source))


CUT = {"count": 9, "bits": 0, "uid": None}
CUTS = {"num_corpus": 9, "align": CUT, "attribute": None, "num_scored": None}
CURATED = {
    "kind": "curate",
    "status": "finished",
    "config": {"input": "a", "cluster": {"num_cpus": 3}},
    "fingerprint": {"input": "f", "shards": 3},
    "versions": {},
    "funnel": {"read": 9, "corpus": 9, "kept": 9, "dropped": {}},
    "warnings": [],
    "gates": CUTS,
    "manifest": {"results": "r"},
}


def write_run(folder: Path, run: dict, ordinals: range = range(0)) -> str:
    for ordinal in ordinals:
        (folder / "scores").mkdir(parents=True, exist_ok=True)
        (folder / f"scores/{ordinal:05d}.parquet").touch()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(run))
    if run["status"] == "finished":
        seal(Folder(str(folder)))
    return str(folder)


def write_curation(folder: Path, **more: object) -> dict:
    run = {**CURATED, "scores": str(folder / "scores"), **more}
    write_run(folder, run, range(3))
    return json.loads((folder / "run.json").read_text())


def write_selection(folder: Path, origin: Path, run: dict) -> dict:
    fingerprint = {"scores": identify(run), "shards": 3}
    chosen = {**CURATED, "kind": "select", "fingerprint": fingerprint, "scores": str(origin / "scores")}
    write_run(folder, chosen)
    return json.loads((folder / "run.json").read_text())


def test_a_moved_curation_has_its_own_scores_whatever_lies_where_it_was(tmp_path):
    run = write_curation(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    write_curation(tmp_path / "a", fingerprint={"input": "other", "shards": 3})
    assert list_scores(run, str(tmp_path / "b")) == [
        str(tmp_path / f"b/scores/0000{i}.parquet") for i in "012"
    ]


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


def override_in(config: dict, path: str, value: str) -> dict:
    name, _, below = path.partition(".")
    return {**config, name: override_in(config.get(name, {}), below, value) if below else value}


def test_two_runs_are_one_where_they_differ_in_free_options_alone():
    for kind in list_kinds():
        for option in list_options(get_config(kind)):
            configs = [override_in({}, option.path, value) for value in ("one", "another")]
            one, other = (identify({**CURATED, "kind": kind, "config": config}) for config in configs)
            assert (one == other) == ("free" in option.marks), (kind, option.path)


def test_select_changes_what_no_score_depends_on(tmp_path_factory):
    """Its input is gone, so that an option that may be set is refused for that alone."""
    for option in list_options(CurateConfig):
        tmp_path = tmp_path_factory.mktemp("case")
        config = to_dict(by_cpi(input=f"{tmp_path}/gone"))
        fingerprint = {"input": "f", "shards": 3, "lexicon": "l"}
        write_curation(tmp_path / "a", config=config, fingerprint=fingerprint)
        value = {"materialize": True, "attribute.targets": "showable"}.get(option.path, option.default)
        match = f"^{option.path}: select cannot change it, its options are align"
        if "select" in option.marks:
            match = "is gone or was changed after scoring"
        elif "update" in option.marks:
            match = (
                f"^{option.path}: the scores have {option.path}=.*; change them: raycomp update {tmp_path}/a "
            )
        with pytest.raises(ValueError, match=match):
            raycomp.select(str(tmp_path / "a"), {option.path: value}, str(tmp_path / "out"))


def test_scores_are_listed_in_the_order_of_shards_and_none_may_be_missing(tmp_path):
    run = {**CURATED, "fingerprint": {"input": "f", "shards": 12}}
    source = write_run(tmp_path, run, range(12))
    (tmp_path / "scores/notes.txt").touch()
    run = Folder(source).read_json("run.json")
    listed = list_scores(run, source)
    assert [int(Path(uri).stem) for uri in listed] == list(range(12))
    (tmp_path / "scores/00007.parquet").unlink()
    with pytest.raises(ValueError, match=r"00007\.parquet: is missing"):
        list_scores(run, source)


ODD = (
    {"status": "unheard"},
    {"config": []},
    {"funnel": {"read": "many"}},
    {"scores": "a", "gates": {"align": 3}},
)
FOREIGN = [b"", b"{}", b"[]", b"null", b"5", b"\xff\xfe", b"[" * 100_000, b'{"status": "finished"}']
FOREIGN += [json.dumps({**CURATED, **odd}).encode() for odd in ODD]


def test_what_is_no_run_is_said_in_one_line(tmp_path_factory):
    for content in FOREIGN:
        tmp_path = tmp_path_factory.mktemp("case")
        (tmp_path / "run.json").write_bytes(content)
        for read in (read_finished, show, lambda source: explain(source, "0" * 32)):
            with pytest.raises(ValueError, match=r"run\.json: ") as error:
                read(str(tmp_path))
            assert type(error.value) is ValueError and "\n" not in str(error.value), content


def test_shards_that_are_named_by_themselves_are_those_of_their_run(tmp_path_factory):
    for name in ["shards", "shards/", "shards/*.tar", "{shards,none}/*.tar", "*/*.tar"]:
        tmp_path = tmp_path_factory.mktemp("case")
        folder = Folder(str(tmp_path))
        run = write_curation(tmp_path)
        for i in range(2):
            folder.write_bytes(b"tar", "shards", f"{i:08d}.tar")
        seal(folder)
        shards = expand_input(f"{tmp_path}/shards/00000000.tar" if "none" in name else f"{tmp_path}/{name}")
        check_shards_of_runs(shards)
        folder.write_bytes(b"ta", "shards", "00000001.tar")
        with pytest.raises(ValueError, match=r"00000001\.tar: is shorter"):
            check_shards_of_runs(shards)
        folder.write_json(run | {"status": "running"}, "run.json")
        with pytest.raises(ValueError, match="the run has not finished"):
            check_shards_of_runs(shards)


def test_results_of_another_content_are_another_run(tmp_path):
    """Inputs are known by their size: curated anew after they were exchanged, the scores are others."""
    write_curation(tmp_path / "a")
    folder = Folder(str(tmp_path / "a"))
    first = folder.read_json("run.json")
    seal(folder)
    assert identify(folder.read_json("run.json")) == identify(first)
    folder.write_bytes(b"x", "scores", "00000.parquet")
    seal(folder)
    assert identify(folder.read_json("run.json")) != identify(first)


def test_a_run_json_of_odd_results_is_one_line(tmp_path_factory):
    for changes in [
        {"manifest": None},
        {"manifest": {}},
        {"manifest": "x"},
        {"manifest": {"sha256": "0", "files": 1, "bytes": 1}},
        {"format": "2"},
        {"format": 3},
    ]:
        tmp_path = tmp_path_factory.mktemp("case")
        run = write_curation(tmp_path)
        (tmp_path / "run.json").write_text(json.dumps(run | changes))
        with pytest.raises(
            ValueError, match=r"run\.json: (not the record of a raycomp run|has format 3)"
        ) as error:
            show(str(tmp_path))
        assert "\n" not in str(error.value), changes


def test_a_file_in_the_place_of_a_folder_is_said(tmp_path):
    write_curation(tmp_path)
    seal(Folder(str(tmp_path)))
    shutil.rmtree(tmp_path / "scores")
    (tmp_path / "scores").touch()
    with pytest.raises(ValueError, match="scores: is a file, must be a folder of the run"):
        show(str(tmp_path))
