"""``python -m lab theory`` as a command: its files, what is finished, what is refused."""

import json
from functools import partial

import pytest

import raycomp
from lab import LAB
from lab.theory import command
from lab.theory.config import TheoryConfig
from raycomp.cli import USER_ERROR, main
from raycomp.config import to_dict
from raycomp.data.files import Folder
from raycomp.data.runs import read_finished
from tests.sealed import seal


def test_finished_results_are_left_as_they_are_and_others_are_refused(tmp_path, capsys):
    line = ["theory", "--out", str(tmp_path), "--set", "seeds=1"]
    done = {"kind": "theory", "status": "finished", "config": to_dict(TheoryConfig(seeds=1))}
    done |= {"fingerprint": {}, "versions": {}, "warnings": []}
    done["funnel"] = {"read": 1, "corpus": 1, "kept": 1, "dropped": {}}
    (tmp_path / "run.json").write_text(json.dumps(done))
    seal(Folder(str(tmp_path)))
    assert main(line, LAB) == 0
    assert "finished already" in capsys.readouterr().out and not (tmp_path / "theory.json").exists()
    assert main([*line[:-1], "seeds=2"], LAB) == USER_ERROR
    assert "differs in seeds" in capsys.readouterr().err


def test_it_takes_a_config_file_and_is_not_called_finished_when_its_results_are_gone(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(command, "run_theory", partial(command.run_theory, steps=3))
    job, out = tmp_path / "job.py", tmp_path / "out"
    job.write_text(
        "from lab.theory.config import TheoryConfig\ndef two():\n    return TheoryConfig(seeds=2)\n"
    )
    line = ["theory", f"{job}:two", "--set", "seeds=1", "--out", str(out)]
    assert main(line, LAB) == 0 and main(line, LAB) == 0
    assert read_finished(str(out))["config"] == {"seeds": 1}
    assert read_finished(str(out))["commands"]["Rerun"].startswith("python -m lab theory --set seeds=1 ")
    run = raycomp.open(out)
    assert run.kind == "theory" and run.config == TheoryConfig(seeds=1)
    assert run.tables[0] == "theory-1" and len(run.table())
    assert "Order-insensitive and order-sensitive encoders compared" in (out / "report.html").read_text()
    assert main(["show", str(out)]) == 0 and "8  kept" in capsys.readouterr().out
    for name in ("theory.json", "tables/theory-1.csv"):
        content = (out / name).read_bytes()
        (out / name).unlink()
        assert main(line, LAB) == USER_ERROR
        assert f"{name}: is missing" in capsys.readouterr().err
        (out / name).write_bytes(content)
    assert main(line, LAB) == 0


@pytest.mark.parametrize("seeds", [0, 101])
def test_mistakes_are_one_line(seeds, tmp_path, capsys):
    assert main(["theory", "--set", f"seeds={seeds}", "--out", str(tmp_path / "out")], LAB) == USER_ERROR
    said = f"python -m lab: seeds={seeds}: must be between 1 and 100\n"
    assert capsys.readouterr().err == said and not (tmp_path / "out").exists()
