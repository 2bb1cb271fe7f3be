"""The little world's tiny CLIPs in the making: how far they are is reported while they are trained."""

import time

from lab.continual import backbone
from lab.continual.backbone import count_steps, follow_steps, is_made, make_backbone
from raycomp.continual.config import ContinualConfig, LittleConfig
from raycomp.data.folder import Folder
from raycomp.run.progress import Progress

CONFIG = ContinualConfig(little=LittleConfig(backbone_pairs=64, backbone_steps=3))


def test_a_backbone_says_how_many_steps_it_has_taken(tmp_path, monkeypatch):
    said, write = [], Folder.write_json

    def listen(folder: Folder, value, *names):
        if names == ("steps.json",):
            said.append(value)
        write(folder, value, *names)

    monkeypatch.setattr(Folder, "write_json", listen)
    monkeypatch.setattr(backbone, "_POLL_S", 0)
    folder = Folder(str(tmp_path))
    assert count_steps(folder, 3) == 0
    make_backbone(CONFIG, folder, 0)
    assert said == [1, 2, 3] and is_made(folder) and not folder.exists("steps.json")
    assert count_steps(folder, 3) == 3


def test_steps_of_all_backbones_are_lines_of_progress(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(backbone, "_POLL_S", 0.01)
    monkeypatch.setattr("raycomp.run.progress._LINE_EVERY_S", 0.05)
    Progress.forget()
    folders = [Folder(str(tmp_path / name)) for name in "ab"]
    with follow_steps(folders, 500):
        folders[0].write_json(120, "steps.json")
        folders[1].write_json({}, "made.json")
        until, said = time.monotonic() + 10, ""
        while "step 620 of 1,000" not in said and time.monotonic() < until:
            time.sleep(0.02)
            said += capsys.readouterr().err
    assert "backbones: step 620 of 1,000" in said
