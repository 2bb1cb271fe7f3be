"""The command line: exit codes, one-line errors, jobs."""

import atexit
import gc
import importlib
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib.metadata import version
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp import cli
from raycomp.config import (
    ClusterFailed,
    LeaseLost,
    Terminated,
    TooMuchBadData,
    UserError,
    list_options,
    load_job,
    override_all,
)
from raycomp.config.commands import RAYCOMP
from raycomp.curation.config import CurateConfig
from raycomp.data.samples import write_tar
from tests.curation.broken import break_tower
from tests.drawn import world_shards

MISTAKES = [
    ("curate --set align.keep=2 --out x", ["align.keep=2.0", "between 0 and 1, such as 0.02"]),
    ("curate --align.keep 60% --out x", ["align.keep='60%'", "must be a share from 0 to 1, such as 0.6"]),
    ("curate --set align.keep --out x", ["OPTION=VALUE"]),
    ("curate --set align.keep 0.6 --out x", ["'align.keep': must be --set OPTION="]),
    ("curate input=/no/such/folder --out x", ["/no/such/folder"]),
    ("curate jobs/nothing.py --out x", ["jobs/nothing.py", "no such config file"]),
    ("curate config.yml --out x", ["config.yml", "no such config file"]),
    ("curate config.yaml --out x", ["config.yaml: 'inptu': unknown option", "closest is input"]),
    ("curate folder.json --out x", ["'folder.json': is a folder", "write input=folder.json"]),
    ("curate config.yaml other.yaml --out x", ["'other.yaml': is a second config"]),
    ("curate config.yaml --preset paper --out x", ["--preset paper and 'config.yaml': are two configs"]),
    ("curate --preset papr --out x", ["--preset='papr': must be one of", "the closest is paper"]),
    ("curate photos --input photos --out x", ["'photos' and input='photos': the input is named twice"]),
    ("curate seed=photos --out x", ["'seed=photos': may be the option seed or an input"]),
    ("curat --out x", ["'curat': must be a command, the nearest is curate"]),
    ("curate photos --keep 0.4 --out x", ["--keep: is the end of", "--align.keep or --attribute.keep"]),
    ("curate photos --materialize false --out x", ["write --materialize=false"]),
    ("curate photos --no-materialize=1 --out x", ["--no-materialize=1: takes no value"]),
    ("curate photos --align.keep --out x", ["--align.keep: needs a value"]),
    ("curate photos aline.keep=0.6 --out x", ["is not an option, the nearest is align.keep"]),
    ("curate --data photos --out x", ["--data: is not an option; the input is a word of its own"]),
    ("train photos --epoch 3 --out x", ["--epoch: must be an option", "the nearest is --epochs"]),
    ("curate input=a", ["--out: is missing"]),
    ("select --out x", ["DIR: is missing"]),
    ("show a b", ["'b': is one word too many"]),
    ("evaluate a -o x", ["'a': is one word too many; name it by --weights a"]),
    ("sweep a -o x", ["'a': is one word too many; name it by --curated a"]),
    (
        "train a --preset negclip --steps 3 --epochs 2 -o x",
        ["train.epochs=2: must be none with train.steps=3"],
    ),
    ("train a --preset negclip -o x", ["negatives=None: must be a folder", "add --negatives DIR"]),
    ("curate a --rule align_only --align.keep 0.7 -o x", ["align.keep=0.7: is not used by rule align_only"]),
    ("curate a --rule full --attribute.keep 0.3 -o x", ["is not used by rule full; it keeps all pairs"]),
    ("curate a --rule random --attribute.nonces 3 -o x", ["rule random; it does not rank by PAS"]),
    ("curate broken.py --out x", ["broken.py: SyntaxError"]),
    ("curate failing.py:imports --out x", ["ModuleNotFoundError", "no_such_module"]),
    ("curate jobs/real_photos.py:nothing --out x", ["no function 'nothing', it has config, openai"]),
    ("select /no/such/folder --out x", ["no finished run"]),
]


def test_a_users_mistake_is_one_line_and_exit_code_2(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("inptu: a")
    (tmp_path / "broken.py").write_text("def config(:\n")
    (tmp_path / "failing.py").write_text("def imports():\n    import no_such_module\n")
    for name in ("folder.json", "photos"):
        (tmp_path / name).mkdir()
    (tmp_path / "jobs").symlink_to(cli.__file__.replace("raycomp/cli.py", "jobs"))
    for line, words in MISTAKES:
        assert cli.main(line.split()) == 2, line
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and all(word in error for word in words), (line, error)
        assert not (tmp_path / "x").exists()


def read(command: str, line: str) -> tuple[Any, ...]:
    """Return what the function of a command takes."""
    known = RAYCOMP.commands[command]
    return tuple(cli.read_values(command, known, cli.Reader(known, shlex.split(line)).read()))


def test_what_people_type_is_read_as_they_mean_it(tmp_path, monkeypatch):
    """Words and flags in any order; a line and the options that it sets."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("align.keep: 0.6\nattribute.keep: 0.3\n")
    (tmp_path / "b.yaml").write_text("train.epochs: 3\ntrain.warmup: 0.1\n")
    for command, line, options in [
        ("curate", "photos -o x --align.keep 0.6", {"input": "photos", "align.keep": 0.6}),
        ("curate", "--align.keep=0.6 photos --out=x", {"input": "photos", "align.keep": 0.6}),
        ("curate", "--set align.keep=0.6 --set=input=photos -o x", {"input": "photos", "align.keep": 0.6}),
        ("curate", "a b -o x", {"input": "a::b"}),
        ("curate", "p=in/a::b=in/b -o x", {"input": "p=in/a::b=in/b"}),
        ("curate", "photos --materialize -o x", {"input": "photos", "materialize": True}),
        ("curate", "photos --no-materialize -o x", {"input": "photos", "materialize": False}),
        ("curate", "photos --cluster.num-cpus 3 -o x", {"input": "photos", "cluster.num_cpus": 3}),
        ("curate", "photos --seed 3 --rule full -o x", {"input": "photos", "seed": 3, "select.rule": "full"}),
        ("curate", "a.yaml photos --attribute.keep 0.2 -o x",
         {"input": "photos", "align.keep": 0.6, "attribute.keep": 0.2}),
        ("curate", "-o x -- --odd", {"input": "--odd"}),
        ("train", "out/a --epochs 1 --lr 1e-4 --batch-size 8 --seed 2 -o x",
         {"input": "out/a", "train.epochs": 1, "train.learning_rate": 1e-4, "train.batch_size": 8,
          "train.seed": 2}),
        ("train", "out/a --preset negclip --negatives n -o x",
         {"input": "out/a", "negatives": "n", "train.loss": "negclip", "train.epochs": 10,
          "train.batch_size": 1024, "train.warmup": 0.0922, "train.weight_decay": 0.5, "train.beta2": 0.999,
          "train.eps": 1e-8, "train.autocast": True}),
        ("train", "out/a b.yaml --steps 7 -o x", {"input": "out/a", "train.steps": 7, "train.warmup": 0.1}),
        ("sweep", "--model a.json --steps 7 -o x", {"model.name": "a.json", "train.steps": 7}),
        ("probe", "pas out/a -o x", {"input": "out/a"}),
        ("curate", "a --rule random --attribute.pool 1 --attribute.nonces 3 -o x",
         {"input": "a", "select.rule": "random", "attribute.pool": 1, "attribute.nonces": 3}),
        ("evaluate", "--weights out/clip --benchmarks retrieval -o x",
         {"model.weights": "out/clip", "benchmarks": ("retrieval",)}),
        ("sweep", "--space a=grid(1,2) --space b=3 -o x", {"space": "a=grid(1,2) b=3"}),
    ]:  # fmt: skip
        *_, config, out = read(command, line)
        assert out == "x" and config == override_all(type(config)(), options), line
    assert read("select", "out/a align.keep=0.6 -o x") == ("out/a", {"align.keep": "0.6"}, "x")
    assert read("compare", "a=one two -o x") == (["a=one", "two"], None, "x")
    assert read("explore", "out/a --where a<1 --atlas f")[1].where == "a<1"


@pytest.mark.parametrize("command", ["curate", "train", "negatives", "evaluate"])
def test_weights_that_embed_no_text_are_reported_before_a_run_starts(command, tiny_scorer, tmp_path, capsys):
    scorer, folder = break_tower(tiny_scorer, tmp_path, "texts", "zero"), tmp_path / "in"
    for name, samples in world_shards(4, 0, 3, per_shard=4):
        write_tar(str(folder / name), samples)
    (folder / "captions.jsonl").write_text('{"image": "a.jpg", "captions": ["a dog"]}')
    (folder / "a.jpg").write_bytes(b"x")
    pq.write_table(pa.table({"uid": ["0" * 32], "caption": ["a dog"]}), tmp_path / "captions.parquet")
    group, name = ("model", "name") if command in ("train", "evaluate") else ("scorer", "model")
    options = {f"{group}.{name}": scorer.model, f"{group}.weights": scorer.weights}
    if command == "evaluate":
        options |= {"benchmarks": "retrieval", "retrieval.input": folder}
    else:
        options["input"] = tmp_path / "captions.parquet" if command == "negatives" else folder
    words = [word for option, value in options.items() for word in ("--set", f"{option}={value}")]
    assert cli.main([command, *words, "--out", str(tmp_path / "out")]) == 2
    bad = "gives embeddings that are not finite or not of length 1 (1 of 1 texts); name other weights"
    assert f"{group}.weights={scorer.weights!r}: {bad}\n" in capsys.readouterr().err
    assert not (tmp_path / "out" / "run.json").exists()


def test_help_fits_a_screen_and_all_of_it_lists_every_option(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"raycomp {version('raycomp')}\n"
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in RAYCOMP.folders) and text.count("\n") <= 42
    for name, command in RAYCOMP.commands.items():
        assert cli.main([name, "--help"]) == 0
        text = capsys.readouterr().out
        assert text.count("\n") <= 40 and f"raycomp {name}" in text
        assert all(f"  --{path}" in text for path in command.matter.split())
        known = list_options(command.config, command.mark) if "--set" in command.arguments else []
        assert cli.main([name, "--help-all"]) == 0
        text = capsys.readouterr().out
        listed = {option.path for option in known if re.search(rf"  --{re.escape(option.path)}[ ,]", text)}
        assert listed == {option.path for option in known}
        assert all(len(line) <= 110 for line in text.splitlines() if "raycomp" not in line)


def test_every_command_takes_what_the_table_says():
    for name, command in RAYCOMP.commands.items():
        paths = {one.path for one in list_options(command.config, command.mark)} if command.short else set()
        assert len(command.short) <= 15 and {*command.short.values()} <= paths
        module, _, function = command.function.partition(":")
        unbound = ("input", "job", "--verify", "--preset", "--dry-run")
        values = [word for word in command.arguments.split() if word not in unbound]
        say = {"say": print} if "--out" in command.arguments else {}
        inspect.signature(getattr(importlib.import_module(module), function)).bind(*values, **say)
        assert not command.example or read(name, command.example)


class Shown:
    """A process that shows what a function returns, and how that ends."""

    def __init__(self, body: str, after: str = "", **environment: str):
        code = f"import os, signal, sys, time\nfrom raycomp import cli\nfrom raycomp.look import show\n{body}"
        code += "show.show = wait\nsys.exit(cli.main(['show', 'x']))\n"
        line = ["bash", "-c", f'"{sys.executable}" -c "$0" {after}', code]
        env = {**os.environ, **environment}
        done = subprocess.run(line, capture_output=True, text=True, env=env, timeout=60)
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr


def test_sigterm_ends_a_command_like_an_interrupt():
    """Where Ray takes it for an interrupt, too."""
    body = (
        "def wait(source):\n    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n        time.sleep(60)\n"
    )
    ends = "    except KeyboardInterrupt as error:\n        error.add_note('wave 1 is next')\n"
    for more, said in (
        ("    finally:\n        pass\n", "run the same command again"),
        (f"{ends}        raise error\n", "wave 1 is next"),
    ):
        shown = Shown(body + more)
        assert (shown.code, shown.err) == (143, f"raycomp: terminated; {said}\n")


def test_after_a_signal_threads_of_ray_cannot_change_the_exit_code():
    """With a handler that crashes where Ray's native code does: when the interpreter takes itself down."""
    body = (
        "import atexit, types\nsys.argv = ['raycomp', 'show', 'x']\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGSEGV)\n"
        "def wait(source): os.kill(os.getpid(), signal.SIGTERM)\n"
        "show.show = wait\n%scli.run()\n"
    )
    assert Shown(body % "sys.modules['ray'] = types.ModuleType('ray')\n").code == 143
    assert Shown(body % "").code == -signal.SIGSEGV, "the crash that it avoids"


def test_a_reader_that_has_enough_and_a_terminal_of_ascii_are_no_errors():
    shown = Shown("def wait(source): return 'line\\n' * 100_000\n", "| head -1; echo ${PIPESTATUS[0]}")
    assert (shown.out, shown.err) == ("line\n0\n", "")
    shown = Shown("def wait(source): return 'caf\\u00e9 \\u72d7'\n", PYTHONIOENCODING="ascii")
    assert shown.out == "caf\\xe9 \\u72d7\n", shown.err


@pytest.fixture
def show(monkeypatch) -> mock.Mock:
    """What ``raycomp show`` does."""
    monkeypatch.setattr("raycomp.look.show.show", shown := mock.Mock())
    return shown


def test_what_ends_a_run_early_is_reported_with_how_it_goes_on(show, capsys):
    notes = "align: 1 of 3 shards are committed", "to resume: raycomp curate --out x"
    for error, code, said in [
        (KeyboardInterrupt(), 130, "interrupted; "),
        (OSError("no\nroom"), 4, "no room; once that is fixed: "),
        (LeaseLost("another run's"), 4, "another run's; once that is fixed: "),
        (MemoryError(), 5, "this machine has too little memory (MemoryError); "),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            5,
            "this machine has too little memory (RuntimeError); ",
        ),
        (ClusterFailed("Ray did\nnot start"), 5, "Ray did not start; once that is fixed: "),
        (Terminated(signal.SIGHUP), 129, "terminated; "),
    ]:
        for note in notes:
            error.add_note(note)
        show.side_effect = error
        assert cli.main(["show", "x"]) == code
        assert capsys.readouterr().err == f"raycomp: {said}{'; '.join(notes)}\n"


def test_bad_data_and_a_users_mistake_have_codes_and_our_own_mistakes_are_not_dressed_up(show, capsys):
    for error, code in [(TooMuchBadData("half is bad"), 3), (UserError("no"), 2), (ValueError("no"), 2)]:
        show.side_effect = error
        assert cli.main(["show", "x"]) == code
        assert capsys.readouterr().err == f"raycomp: {error}\n"
    show.side_effect = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["show", "x"])


def test_a_signal_that_is_ignored_stays_so(show):
    show.side_effect = lambda source: str(os.kill(os.getpid(), signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert cli.main(["show", "x"]) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_a_terminal_would_obey_is_shown(show, capsys):
    show.return_value = hostile = "a\x1b[2Jb\u202e\x07\r\ud800 caf\u00e9"
    assert cli.main(["show", "x"]) == 0
    assert capsys.readouterr().out == "a\\x1b[2Jb\\u202e\\x07\\r\\ud800 caf\u00e9\n"
    show.side_effect = ValueError(hostile)
    assert cli.main(["show", "x"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_job_that_ends_python_is_one_line(tmp_path, capsys):
    path = tmp_path / "job.py"
    for line, message in [
        ("exit()", "ends Python by exit(None)"),
        ("raise SystemExit('no data')", "ends Python by exit('no data'); return a config instead"),
        ("import asyncio; raise asyncio.CancelledError('why')", "CancelledError: why"),
    ]:
        for text in (f"{line}\ndef config(): pass\n", f"def config():\n    {line}\n"):
            path.write_text(text)
            assert cli.main(["curate", str(path), "--out", str(tmp_path / "x")]) == 2
            said = capsys.readouterr().err.splitlines()
            assert len(said) == 1 and said[0].startswith(f"raycomp: {path}: {message}")
            assert not (tmp_path / "x").exists()


def test_a_job_is_a_function_that_returns_a_config(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "from raycomp import CurateConfig, override\n"
        "@dataclass\nclass Mine:\n    keep: float = 0.6\n"
        "def config():\n    return CurateConfig(input='a')\n"
        "def small():\n    return override(config(), 'align.keep', Mine().keep)\n"
    )
    assert load_job(str(path)) == CurateConfig(input="a")
    assert load_job(f"{path}:small").align.keep == 0.6
    path.write_text("def config():\n    return 3\n")
    assert cli.main(["curate", str(path), "--out", str(tmp_path / "x")]) == 2


def test_a_shell_completes_commands_arguments_and_options(tmp_path):
    """argcomplete's protocol: the line in the environment, the words in a file."""
    for line, wanted in [
        ("raycomp cura", {"curate"}),
        ("raycomp curate --align.", {"--align.keep"}),
        ("raycomp curate --scorer.precision ", {"fp32", "bf16"}),
        ("raycomp train --preset ", {"negclip", "triplet"}),
        ("raycomp select out --set align.", {"align.keep="}),
    ]:
        env = {**os.environ, "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
        env |= {"IFS": "\v", "_ARGCOMPLETE_SHELL": "zsh"}
        env |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "words")}
        code = "import sys; sys.argv = ['raycomp']; from raycomp.cli import main; main()"
        subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
        words = {word.split(":")[0].strip() for word in (tmp_path / "words").read_text().split("\v")}
        assert wanted <= words, words


def test_the_interpreter_does_not_collect_all_objects_of_torch_as_it_ends(monkeypatch, capsys):
    at_exit: list[object] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    assert cli.main(["--version"]) == 0 and at_exit == [gc.freeze]
