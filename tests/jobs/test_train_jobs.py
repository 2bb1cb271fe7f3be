"""The training jobs: their docstrings' commands are real, and variants differ where they say."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from raycomp.config import flatten, get_config, load_job, override_all, to_dict
from raycomp.training.config import TrainConfig

ROOT = Path(__file__).parents[2]
JOBS = sorted(ROOT.glob("jobs/*.py"))
TRAINING = [path for path in JOBS if path.name.startswith("train_")]
FINETUNED = {"model.weights", *(f"train.{name}" for name in "epochs batch_size learning_rate warmup".split())}
FINETUNED |= {"train.weight_decay", "train.beta2", "train.eps"}


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def commands(path: Path) -> list[list[str]]:
    """Return the command lines of a job's docstring, in words."""
    text = re.sub(r"\\\n", " ", docstring(path))
    lines = [line.strip().removeprefix("Command: ") for line in text.splitlines()]
    return [
        shlex.split(line, comments=True) for line in lines if re.match(r"(raycomp|python|python -m) \w", line)
    ]


ALL_COMMANDS = [words for path in JOBS for words in commands(path)]


def named(words: list[str], option: str) -> list[str]:
    return [words[i + 1] for i, word in enumerate(words) if word == option]


@pytest.mark.parametrize("words", ALL_COMMANDS, ids=" ".join)
def test_a_command_of_a_docstring_can_be_built(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    if words[:3] == ["python", "-m", "lab"]:
        assert words[3] in ("demo", "screen", "theory")
    elif words[0] == "python":
        assert Path(words[1]).is_file()
    else:
        is_job = words[2].startswith("jobs/")
        built = load_job(words[2]) if is_job else get_config(words[1])()
        assert type(built) is get_config(words[1])
        override_all(built, dict(text.split("=", 1) for text in named(words, "--set")))


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.stem)
def test_every_variant_has_its_command_and_what_it_reads_is_made_by_others(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    variants = {node.name for node in functions if not node.name.startswith("_")}
    trained = {words[2].partition(":")[2] or "config" for words in commands(path) if words[1] == "train"}
    assert trained == variants
    made = {out for words in ALL_COMMANDS for out in named(words, "--out")}
    for variant in variants:
        config = load_job(f"{path}:{variant}")
        assert isinstance(config, TrainConfig)
        places = (config.input, config.negatives, config.negative_images, config.model.name)
        for place in filter(None, places):
            is_made = any(Path(place).is_relative_to(out) for out in made)
            assert is_made or place == "ViT-B-32" or place in docstring(path), place


def differing(first: str, second: str) -> set[str]:
    one, other = (dict(flatten(to_dict(load_job(f"{ROOT}/jobs/train_{name}")))) for name in (first, second))
    return {path for path in one if one[path] != other[path]}


def test_losses_differ_in_what_they_are_and_read():
    for size in ["config", "little"]:
        negatives = {"train.loss", "negatives"}
        assert differing(f"clip.py:{size}", f"negclip.py:{size}") == negatives
        assert differing(f"clip.py:{size}", f"ceclip.py:{size}") == {*negatives, "train.num_negatives"}
        assert differing(f"clip.py:{size}", f"triplet.py:{size}") == {*negatives, "negative_images"}


def test_calls_differ_in_their_negatives_and_fine_tuning_in_weights_and_rates():
    for one, more in (("config", "mc"), ("little", "little_mc")):
        for loss in ("negclip", "ceclip"):
            assert differing(f"{loss}.py:{one}", f"{loss}.py:{more}") == {"negatives"}
        assert differing(f"triplet.py:{one}", f"triplet.py:{more}") == {"negatives", "negative_images"}
    for loss, given in (("negclip", {"train.epochs", "train.learning_rate"}), ("ceclip", set())):
        assert given < differing(f"{loss}.py:config", f"{loss}.py:finetune") <= FINETUNED


def test_the_warm_up_is_so_many_steps_of_the_half_of_cc3m():
    for job, num_warmup in [("clip.py", 1000), ("negclip.py:finetune", 50), ("ceclip.py:finetune", 50)]:
        fit = load_job(f"{ROOT}/jobs/train_{job}").train
        num_steps = fit.epochs * (1_111_131 // fit.batch_size)
        assert round(fit.warmup * num_steps) == num_warmup
