"""What run.json says of the time, from stats made by hand."""

import json
from collections import Counter

import pytest

from raycomp.cluster.record import bind_device, describe_phases, describe_run, describe_stages, refuse_other
from raycomp.cluster.runs import open_run
from raycomp.cluster.waves import Stats
from raycomp.config import CurateConfig
from raycomp.shards.folder import Folder
from raycomp.shards.paths import RUN

WORKERS = {"read": 4, "decode": 4, "parse": 4, "image": 2, "text": 2, "attribute": 2, "device": 2, "write": 4}


def make_stats(wall_s: float, rows: int, workers: dict[str, int] = WORKERS, **seconds: float) -> Stats:
    offered = Counter({stage: number * wall_s for stage, number in workers.items()})
    return Stats(
        seconds=Counter(seconds),
        offered=offered,
        wall_s=wall_s,
        commit_s=0.01 * wall_s,
        statuses=Counter(ok=rows),
    )


def make_align(**more: float) -> Stats:
    return make_stats(10.0, 600, write=2.0, image=12.0, text=4.0, read=1.0, decode=20.0, **more)


def test_shares_are_of_the_time_that_all_workers_had():
    rows = describe_stages({"align": make_align(device=9.0)}, WORKERS)
    assert [row["stage"] for row in rows] == ["read", "decode", "image", "text", "write"]
    shares = [row["busy_share"] for row in rows]
    assert shares == pytest.approx([1 / 40, 20 / 40, 12 / 20, 4 / 20, 2 / 40])
    assert [row["rows_per_s"] for row in rows] == pytest.approx([600, 30, 50, 150, 300])
    assert {row["phase"] for row in rows} == {"align"}


def test_a_phase_tells_how_busy_its_scorers_and_their_gpus_were():
    attribute = make_stats(5.0, 400, read=1.0, parse=19.0, attribute=6.0, write=0.5)
    align, second = describe_phases({"align": make_align(device=9.0), "attribute": attribute})
    assert align["scorer_busy_share"] == pytest.approx(16 / 20)
    assert align["gpu_busy_share"] == pytest.approx(9 / 20)
    assert align["commit_share"] == pytest.approx(0.01)
    assert (align["wall_s"], align["rows"], align["bottleneck"]) == (10.0, 600, "image")
    assert "gpu_busy_share" not in second
    assert second["scorer_busy_share"] == pytest.approx(6 / 10)
    assert second["bottleneck"] == "parse"


def test_a_phase_that_only_merged_has_no_scorers_to_tell_of():
    (phase,) = describe_phases({"attribute": make_stats(2.0, 0, write=4.0)})
    assert "scorer_busy_share" not in phase and phase["bottleneck"] == "write"


def test_a_restart_with_other_workers_adds_up_what_each_try_had():
    first, second = make_stats(10.0, 100, image=18.0), make_stats(5.0, 60, WORKERS | {"image": 4}, image=10.0)
    first.add(second.to_dict())
    (phase,) = describe_phases({"align": first})
    assert (phase["wall_s"], phase["rows"]) == (15.0, 160)
    assert phase["commit_s"] == pytest.approx(0.15)
    assert phase["scorer_busy_share"] == pytest.approx(28 / (2 * 10 + 4 * 5))


def test_a_run_goes_on_only_with_the_versions_it_was_begun_with(tmp_path):
    run = describe_run("curate", CurateConfig(), {"input": "a"}, {})
    newer = {**run, "versions": {**run["versions"], "torch": "99.0"}}
    folder, written = Folder(str(tmp_path)), json.loads(json.dumps(run))
    refuse_other(written, run, folder)
    with pytest.raises(ValueError, match="differs in torch;"):
        refuse_other(written, newer, folder)
    refuse_other({**written, "status": "finished"}, newer, folder)


def test_a_run_goes_on_only_on_the_kind_of_device_it_was_begun_on(tmp_path):
    folder = Folder(str(tmp_path))
    folder.write_json({"status": "running"}, RUN)
    assert bind_device(folder, {"status": "running"}, "gpu") == folder.read_json(RUN)
    bind_device(folder, {"status": "running"}, "gpu")
    with pytest.raises(ValueError, match=r"begun on a gpu.*on a cpu.*cluster.gpu=true"):
        bind_device(folder, {"status": "running"}, "cpu")


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b"5"])
def test_a_record_that_is_none_is_never_taken_for_an_empty_folder(tmp_path, content):
    folder = Folder(str(tmp_path))
    folder.write_bytes(content, RUN)
    with pytest.raises(ValueError, match=r"run\.json: "):
        open_run(folder, describe_run("curate", CurateConfig(), {}, {}), print)
    assert folder.read_bytes(RUN) == content
