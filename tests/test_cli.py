"""The command line: exit codes, one-line errors, jobs."""

import pytest

from raycomp import cli
from raycomp.config import CurateConfig, LeaseLost, TooMuchBadData


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["curate", "--set", "align.keep=2", "--out", "x"], ["align.keep=2.0", "between 0 and 1"]),
        (["curate", "--set", "align.keep", "--out", "x"], ["DIAL=VALUE"]),
        (["curate", "--set", "input=/no/such/folder", "--out", "x"], ["/no/such/folder"]),
        (["curate", "jobs/nothing.py", "--out", "x"], ["jobs/nothing.py", "no such job file"]),
        (["curate", "jobs/real_photos.py:nothing", "--out", "x"], ["no function 'nothing'"]),
        (["show", "/no/such/folder"], ["there is no run.json"]),
        (["select", "/no/such/folder", "--out", "x"], ["no finished run"]),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(command, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").symlink_to(cli.__file__.replace("raycomp/cli.py", "jobs"))
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and all(word in error for word in words), error
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TooMuchBadData("half is bad"), 3),
        (OSError(28, "No space left on device"), 4),
        (LeaseLost("gone"), 4),
        (KeyboardInterrupt(), 130),
        (ValueError("no"), 2),
    ],
)
def test_exit_codes(error, code, monkeypatch, capsys):
    def fail(args):
        raise error

    monkeypatch.setattr(cli, "_show", fail)
    assert cli.main(["show", "x"]) == code
    assert capsys.readouterr().err


def test_our_own_mistakes_are_not_dressed_up(monkeypatch):
    def fail(args):
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "_show", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["show", "x"])


def test_a_job_is_a_function_that_returns_a_config(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(
        "from raycomp import CurateConfig, override\n"
        "def config():\n    return CurateConfig(input='a')\n"
        "def small():\n    return override(config(), 'align.keep', 0.6)\n"
    )
    assert cli.load_job(str(path)) == CurateConfig(input="a")
    assert cli.load_job(f"{path}:small").align.keep == 0.6
    path.write_text("def config():\n    return 3\n")
    assert cli.main(["curate", str(path), "--out", str(tmp_path / "x")]) == 2
