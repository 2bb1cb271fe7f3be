"""The life of a run, lived by a command of ten lines without Ray."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import raycomp
from raycomp.cli import USER_ERROR, main
from raycomp.config import LeaseLost, ScorerConfig, override
from raycomp.config.commands import FOLDERS
from raycomp.curation import command
from raycomp.curation.config import CurateConfig
from raycomp.data.files import RUN, Folder
from raycomp.data.runs import TIMES, identify
from raycomp.probe import COMMANDS as PROBES
from raycomp.probe.config import ProbeConfig
from raycomp.run.run import LEASE, describe_run, refuse_other, start_run

WORDS = ("a dog", "", "a red cube", "two cats")


@pytest.fixture(autouse=True)
def known_kind(monkeypatch):
    monkeypatch.setitem(FOLDERS, "count", "raycomp.probe")
    monkeypatch.setitem(PROBES, "count", PROBES["probe"])


def fingerprint() -> dict:
    return {"input": "of these words"}


def count_words(config: ProbeConfig, out: Path, words=WORDS, lost=0, device="cpu", said=None, gpu=None):
    """The toy command: one file per caption, begun again where it stopped; ``lost`` rows are not told."""
    with start_run("count", config, fingerprint, str(out), (said if said is not None else []).append) as run:
        if run.is_finished:
            return run.record
        run.bind(device, gpu)
        came = Counter()
        for i, text in enumerate(words):
            if not run.work.exists(f"{i}.json"):
                run.work.write_json(len(text.split()), f"{i}.json")
            came["counted" if run.work.read_json(f"{i}.json") else "empty_caption"] += 1
        came["counted"] -= lost
        run.close({"ok": 3, "empty_caption": 1}, came, "counted", words=7)
        run.report("counted 7 words", "<p>7</p>")
    return run.record


def interrupted():
    yield from WORDS[:2]
    raise KeyboardInterrupt


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_run_starts_is_interrupted_goes_on_and_finishes(tmp_path):
    out, said = tmp_path / "out", []
    with pytest.raises(KeyboardInterrupt):
        count_words(ProbeConfig(), out, interrupted(), said=said)
    assert names(out) == ["logs", RUN, "work"] and names(out / "work") == ["0.json", "1.json"]
    started = json.loads((out / RUN).read_text())
    assert (started["status"], started["kind"], started["device"]) == ("running", "count", "cpu")
    (out / "work/0.json").write_text("5")  # what is done is not done again
    record = json.loads(json.dumps(count_words(ProbeConfig(), out, said=said)))
    assert record["funnel"] == {"read": 4, "corpus": 4, "kept": 3, "dropped": {"empty_caption": 1}}
    assert names(out) == ["logs", "manifest.json", "report.html", RUN] and record == json.loads(
        (out / RUN).read_text()
    )
    assert (record["status"], record["words"], record["warnings"]) == ("finished", 7, [])
    assert said == [f"counted 7 words; report: {out}/report.html"]
    before = (out / RUN).stat().st_mtime_ns
    assert count_words(ProbeConfig(), out, interrupted(), said=said) == record
    assert said[1:] == [f"{out} is finished already; nothing to do"]
    assert (out / RUN).stat().st_mtime_ns == before


def test_a_run_that_lost_its_folder_publishes_nothing(tmp_path):
    """Another took it after the last row came: its record and results stay."""
    out = tmp_path / "out"

    def words():
        yield from WORDS
        lease = json.loads((out / LEASE).read_text())
        (out / LEASE).write_text(json.dumps({**lease, "holder": "another"}))

    with pytest.raises(LeaseLost, match="nothing more was committed"):
        count_words(ProbeConfig(), out, words())
    assert json.loads((out / RUN).read_text())["status"] == "running"
    assert not {"report.html", "manifest.json"} & set(names(out)) and (out / "work").exists()


def events(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "logs/events.jsonl").read_text().splitlines()]


def test_events_of_all_starts_bear_the_id_of_the_run(tmp_path):
    """The run within it has a log of its own, the runs after it have none of it."""
    with pytest.raises(KeyboardInterrupt) as interrupt:
        count_words(ProbeConfig(), tmp_path / "out", interrupted())
    rerun = f"raycomp count --out {tmp_path / 'out'}"
    assert interrupt.value.__notes__ == [f"to resume: {rerun}"]

    def words():
        count_words(ProbeConfig(), tmp_path / "within")
        yield from WORDS

    record = count_words(ProbeConfig(), tmp_path / "out", words())
    count_words(ProbeConfig(), tmp_path / "after")
    logged = events(tmp_path / "out")
    assert [event["event"] for event in logged] == ["begin", "fail", "go_on", "finish"]
    assert {event["run"] for event in logged} == {record["id"]}
    assert logged[0]["command"] == logged[2]["command"] == rerun and logged[1]["error"] == "KeyboardInterrupt"
    assert logged[3]["funnel"] == record["funnel"]
    assert [event["event"] for event in events(tmp_path / "within")] == ["begin", "finish"]


def test_another_option_or_kind_is_refused_but_a_free_one(tmp_path):
    config = ProbeConfig(scorer=ScorerConfig())
    finished = count_words(config, tmp_path)
    free = override(config, "scorer.batch_size", 7)
    assert count_words(free, tmp_path)["finished"] == finished["finished"]
    with pytest.raises(ValueError, match="holds a run that differs in seed; name another folder"):
        count_words(replace(config, seed=1), tmp_path)
    (tmp_path / RUN).write_text(json.dumps(finished | {"kind": "negatives"}))
    with pytest.raises(ValueError, match=r"^out=.*: holds a negatives run, this is count; name another fol"):
        count_words(ProbeConfig(seed=1), tmp_path)


def test_a_funnel_that_does_not_add_up_or_is_open_is_not_published(tmp_path):
    """Too few, one that is not counted, too many, and as many but of other reasons."""
    for i, (words, lost) in enumerate([(WORDS[:3], 0), (WORDS, 1), ((*WORDS, "x"), 0), (["x"] * 4, 0)]):
        out = tmp_path / str(i)
        with pytest.raises(RuntimeError, match="the counts do not add up: "):
            count_words(ProbeConfig(), out, words, lost)
        assert names(out) == ["logs", RUN, "work"]
        run = json.loads((out / RUN).read_text())
        assert run["status"] == "failed" and run["failed"].startswith("the counts do not add up: ")
    for kind, raised, said in (
        ("count", RuntimeError, "ended without its row counts"),
        ("weigh", AssertionError, "^weigh: "),
    ):
        out = str(tmp_path / kind)
        with pytest.raises(raised, match=said), start_run(kind, ProbeConfig(), fingerprint, out):
            pass


def test_rows_that_were_read_as_ok_become_only_what_the_command_may_make_of_them(tmp_path):
    came = {"counted": 8, "empty_caption": 1, "too_long": 1}
    with start_run("count", ProbeConfig(), fingerprint, str(tmp_path)) as run:
        for reasons in ((), ("too_short",)):
            with pytest.raises(RuntimeError, match="the counts do not add up: "):
                run.close({"ok": 9, "empty_caption": 1}, came, "counted", reasons=reasons)
        for more in ({"reasons": ("too_long",)}, {}):
            run.close({"ok": 9, "empty_caption": 1}, came, "counted", **more)
    assert run.record["funnel"]["dropped"] == {"empty_caption": 1, "too_long": 1}


def test_a_run_says_how_it_is_run_again(tmp_path):
    rerun = f"raycomp count --set seed=3 --out {tmp_path}/0"
    looks = {"commands": {"Look": "show"}}, {"Rerun": rerun, "Look": "show"}
    for i, (more, said) in enumerate([looks, ({"rerun": "count these"}, {"Rerun": "count these"})]):
        with start_run("count", ProbeConfig(seed=3), fingerprint, f"{tmp_path}/{i}", **more) as run:
            run.close({"ok": 1}, {"counted": 1}, "counted")
        assert run.record["commands"] == said


@pytest.mark.parametrize("out", ["disk", pytest.param("s3", marks=pytest.mark.stores)])
def test_a_run_that_is_refused_leaves_nothing_unless_it_was_there_or_wrote_something(tmp_path, request, out):
    root = request.getfixturevalue("bucket") if out == "s3" else str(tmp_path)
    for writes in ("nothing", "work", "results"):
        uri, refused = f"{root}/{writes}", pytest.raises(ValueError, match="too few CPUs")
        with refused, start_run("probe", ProbeConfig(), fingerprint, uri, print) as run:
            if writes != "nothing":
                (run.work if writes == "work" else run.folder).write_json(1, "waves", "a.json")
            raise ValueError("too few CPUs")
        left = Folder(uri).find_names()
        assert "run.json" in left if writes != "nothing" else left == []
    for error in (KeyboardInterrupt(), ValueError("a")):
        with pytest.raises(type(error)), start_run("probe", ProbeConfig(), fingerprint, f"{root}/was", print):
            raise error
    assert {"run.json", "logs"} <= {*Folder(f"{root}/was").list_names()}


def test_a_run_goes_on_only_on_devices_like_the_first(tmp_path):
    l4 = {"name": "NVIDIA L4", "capability": "8.9", "multiprocessors": 58, "cuda": "13.0", "cudnn": 92000}
    with pytest.raises(KeyboardInterrupt):
        count_words(ProbeConfig(), tmp_path, interrupted(), device="gpu", gpu=l4)
    with pytest.raises(ValueError, match=r"started on a gpu.*on a cpu.*cluster.gpu=true"):
        count_words(ProbeConfig(), tmp_path)
    for change in ({"name": "NVIDIA L40S"}, {"multiprocessors": 142}, {"cudnn": 92001}, {"cuda": "13.1"}):
        with pytest.raises(ValueError, match=r"started on NVIDIA L4 \(capability 8.9, .* would resume on"):
            count_words(ProbeConfig(), tmp_path, device="gpu", gpu={**l4, **change})
    assert count_words(ProbeConfig(), tmp_path, device="gpu", gpu=l4)["gpu"] == l4


def test_a_run_goes_on_only_with_the_versions_it_was_started_with(tmp_path):
    run = describe_run("curate", CurateConfig(), {"input": "a"}, {})
    newer = {**run, "versions": {**run["versions"], "torch": "99.0"}}
    folder, written = Folder(str(tmp_path)), json.loads(json.dumps(run))
    refuse_other(written, run, folder)
    with pytest.raises(ValueError, match="differs in torch;"):
        refuse_other(written, newer, folder)
    refuse_other({**written, "status": "finished"}, newer, folder)


def test_a_record_that_is_none_is_never_taken_for_an_empty_folder(tmp_path):
    for content in (b"", b"{}", b"[]", b"null", b"5"):
        (tmp_path / RUN).write_bytes(content)
        with pytest.raises(ValueError, match=r"run\.json: "):
            count_words(ProbeConfig(), tmp_path)
        assert (tmp_path / RUN).read_bytes() == content


def test_what_a_finished_run_wrote_where_its_command_says_must_still_be_there(tmp_path):
    def count(out: Path) -> dict:
        outputs = ("words.json", "plot.svg", "tables")
        with start_run("count", ProbeConfig(), fingerprint, str(out), [].append, outputs=outputs) as run:
            if not run.is_finished:
                for name in ("words.json", "tables/1.csv", "tables/2.csv", "tables/.hidden"):
                    run.folder.write_bytes(b"7", *name.split("/"))
                run.close({"ok": 1}, {"counted": 1}, "counted")
        return run.record

    for gone in ("words.json", "tables/2.csv"):
        out = tmp_path / gone
        assert count(out)["manifest"]["files"] == count(out)["manifest"]["files"] == 3
        (out / gone).unlink()
        with pytest.raises(ValueError, match=rf"was finished, but .*/{gone}: is missing; .* with 1 bytes"):
            count(out)


def test_a_selection_starts_with_the_record_that_its_options_are_from(tmp_path, monkeypatch):
    """The curation is replaced between the first time it is read and the second."""
    points = {"lexicon": "a", "shards": 1, "input": "a"}
    first, second = (
        describe_run("curate", CurateConfig(input="gone", seed=seed), points, {})
        | {"device": "cpu", "manifest": {"results": "r"}}
        for seed in (0, 1)
    )
    found, asked = iter([first, second]), []
    monkeypatch.setattr(command, "read_finished", lambda source: next(found))
    monkeypatch.setattr(command, "list_scores", lambda run, source: [])

    def start_run(kind, config, fingerprint, *rest, **more):
        asked.extend([fingerprint(), fingerprint()])
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "start_run", start_run)
    with pytest.raises(KeyboardInterrupt):
        raycomp.select(str(tmp_path), {"materialize": False}, str(tmp_path / "out"))
    assert [one["scores"] for one in asked] == [identify(first), identify(second)]


def test_staged_results_appear_once_every_check_has_passed(tmp_path):
    found = iter(["before", "after", "before", "before"])

    def look() -> dict:
        return {"input": next(found)}

    def train() -> None:
        with start_run("count", ProbeConfig(), look, str(tmp_path), outputs=("model",)) as run:
            run.work.write_bytes(b"weights", "model", "a.bin")
            run.staged = ("model",)
            run.close({"ok": 1}, {"counted": 1}, "counted")

    with pytest.raises(ValueError, match="input: changed during the run"):
        train()
    assert names(tmp_path) == ["logs", RUN, "work"]
    train()
    assert names(tmp_path) == ["logs", "manifest.json", "model", RUN]
    assert (tmp_path / "model/a.bin").read_bytes() == b"weights"


def test_a_run_keeps_what_it_failed_of_where_it_would_fail_again(tmp_path, capsys):
    again = "the run has not finished; the same command resumes it"
    for i, (error, said) in enumerate(
        [
            (ValueError("batch:\ntoo large"), "the run has failed: batch: too large"),
            (RuntimeError("ours"), "the run has failed: ours"),
            (OSError("disk"), again),
            (LeaseLost("taken"), again),
            (KeyboardInterrupt(), again),
        ]
    ):
        out = tmp_path / str(i)
        with pytest.raises(type(error)), start_run("count", ProbeConfig(), fingerprint, str(out)) as run:
            run.bind("cpu")
            run.work.write_bytes(b"1", "half")
            raise error
        record = json.loads((out / RUN).read_text())
        assert record["status"] == ("running" if said == again else "failed"), error
        assert main(["show", str(out)]) == USER_ERROR
        assert capsys.readouterr().err == f"raycomp: {out}: {said}\n"
        done = count_words(ProbeConfig(), out)  # with its cause removed it resumes all the same
        assert done["status"] == "finished" and "failed" not in done


def test_what_was_made_of_files_that_were_modified_since_is_made_again(tmp_path):
    """Another name for the time; the identity of the input stays."""

    def start(*times: str):
        known = iter([{"input": "the same", TIMES: time} for time in times])
        return start_run("count", ProbeConfig(), lambda: next(known), str(tmp_path), said.append)

    said: list[str] = []
    for time, is_there in (("monday", False), ("monday", True), ("tuesday", False)):
        with pytest.raises(KeyboardInterrupt), start(time) as run:
            run.bind("cpu")
            assert run.work.exists("half") == run.folder.exists("scores") == is_there
            run.work.write_bytes(b"1", "half")
            run.folder.write_bytes(b"1", "scores", "0")
            raise KeyboardInterrupt
    assert [line for line in said if "modified since" in line] == said and len(said) == 1
    with start("tuesday", "wednesday") as run:  # while it runs what is written is compared by content
        run.close({"ok": 1}, {"counted": 1}, "counted")
    assert run.record["status"] == "finished"


def test_a_run_in_the_folder_work_of_another_is_refused_and_kept(tmp_path):
    """``work`` is removed when a run ends: nobody else's results may lie there."""
    for done in ("a", "b/work", "c"):
        count_words(ProbeConfig(), tmp_path / done)
    for name in ("work", "logs"):
        with pytest.raises(ValueError, match=f"is the folder {name} of the run in {tmp_path}/a"):
            count_words(ProbeConfig(), tmp_path / "a" / name)
    for name in ("b", "c"):
        if name == "c":
            (tmp_path / "b/work").rename(tmp_path / "c/work")
        with pytest.raises(ValueError, match="its folder work holds another run"):
            count_words(ProbeConfig(), tmp_path / name)
    assert (tmp_path / "c/work" / RUN).exists()
