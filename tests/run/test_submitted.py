"""A command as a submitted job runs it: in a copy of the working folder that Ray removes."""

import pytest

from raycomp.cli import main
from raycomp.data.files import absolute_uri


def test_paths_of_a_job_are_those_of_the_cluster(tmp_path, monkeypatch, capsys):
    copy = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_0"
    (copy / "photos").mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert absolute_uri("s3://b/x") == "s3://b/x" and absolute_uri("/data/x") == "/data/x"
    with pytest.raises(ValueError, match=r"^'out/x': is a relative path.* temporary copy.*s3://"):
        absolute_uri("out/x")
    for words in (["/data/pool", "--out", "out/x"], ["photos", "--out", "/data/x"]):
        assert main(["curate", *words]) == 2
        said = capsys.readouterr().err
        assert "is a relative path" in said and said.count("\n") == 1, words
    assert main(["curate", "/data/none.tar", "--out", str(tmp_path / "out")]) == 2
    assert "no such file" in (said := capsys.readouterr().err) and "cluster's machines" in said
    assert not (copy / "out").exists()
