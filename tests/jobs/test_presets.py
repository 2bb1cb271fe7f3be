"""The configs that come with the package, and what the commands of jobs have."""

from pathlib import Path

import pytest

from raycomp.config import changed_options, load_config
from raycomp.config.commands import RAYCOMP, import_command, list_presets

NEEDED = {"negatives": "out/negatives", "negative_images": "out/images"}
WRITTEN = {name: {"negatives": "out/negatives"} for name in ("negclip", "ceclip")}
WRITTEN |= {f"{name}-finetune": options for name, options in WRITTEN.items()} | {"triplet": NEEDED}


def read(command: str, name: str) -> dict[str, object]:
    """Return the options of a preset, with the folders that its user names."""
    path = list_presets(command)[name]
    return changed_options(load_config(path, import_command(command).config, WRITTEN.get(name, {})))


def test_every_preset_is_valid_says_what_it_is_and_is_found():
    folder = Path(list_presets("train")["clip"]).parents[1]
    takes = {name for name, command in RAYCOMP.commands.items() if "--preset" in command.arguments.split()}
    assert {path.name for path in folder.iterdir()} == takes
    for command in takes:
        for name, path in list_presets(command).items():
            assert read(command, name) or name == "paper"
            assert Path(path).read_text().startswith("# ")
    assert read("curate", "paper") == {}, "the defaults are the paper's"


def test_the_warm_up_is_so_many_steps_of_the_half_of_cc3m():
    for name, steps, batch, epochs in [
        ("clip", 1000, 1024, 10),
        ("negclip-finetune", 50, 256, 5),
        ("ceclip-finetune", 50, 1512, 10),
    ]:
        options = read("train", name)
        assert (options.get("train.batch_size", 256), options.get("train.epochs")) == (batch, epochs)
        assert round(options["train.warmup"] * epochs * (1_111_131 // batch)) == pytest.approx(steps, abs=1)
