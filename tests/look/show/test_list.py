"""``raycomp list``: every run below a folder, each in a row, whatever its state."""

import json
import shutil

import pytest

from raycomp import cli
from raycomp.look.show import list_runs


def test_runs_are_listed_at_any_depth_with_their_results(curated, tmp_path, capsys):
    _, out, record = curated
    shutil.copytree(out, tmp_path / "a" / "b" / "good")
    shutil.copytree(out, tmp_path / "a" / "b" / "good" / "inner")  # a run's own folders are not searched
    for name, text in (("running", json.dumps({**record, "status": "running"})), ("broken", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    failed = {**record, "status": "failed", "failed": "input: two\nlines"}
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "run.json").write_text(json.dumps(failed))
    (tmp_path / "empty").mkdir()
    assert cli.main(["list", str(tmp_path)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["a/b/good", "broken", "failed", "running"]
    assert rows[1].split(maxsplit=4)[1:] == ["curate", "finished", record["finished"], "kept 45 of 90 rows"]
    assert "unreadable" in rows[2] and "input: two lines" in rows[3] and "running" in rows[4]


def test_a_run_itself_is_listed_and_an_empty_folder_is_refused(curated, tmp_path):
    assert list_runs(str(curated[1])).splitlines()[1].startswith(".")
    with pytest.raises(ValueError, match="holds no run of raycomp"):
        list_runs(str(tmp_path))


def test_show_says_the_result_first(curated, capsys):
    assert cli.main(["show", str(curated[1])]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "kept 45 of 90 rows"
