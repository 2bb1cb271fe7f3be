"""Configs in YAML and JSON: what ``--save-config`` writes, and every mistake in a file that a user wrote."""

import json

import pytest

from raycomp import cli
from raycomp.config import list_kinds, load_config, override_all, save_config
from raycomp.config.commands import import_command
from raycomp.curation.config import CurateConfig
from raycomp.negatives.config import NegativesConfig


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json"])
@pytest.mark.parametrize("kind", [kind for kind in list_kinds() if "job" in import_command(kind).arguments])
def test_a_saved_config_is_read_as_it_was(kind, suffix, tmp_path):
    config = import_command(kind).config()
    save_config(config, str(tmp_path / f"a{suffix}"))
    assert load_config(str(tmp_path / f"a{suffix}"), type(config)) == config


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_odd_values_are_read_as_they_were(suffix, tmp_path):
    """Text that YAML would take for another type, text beyond ASCII, empty tuples, arguments by name."""
    texts = [
        "no",
        "1:30",
        "2024-01-01",
        "a: b # c",
        " x ",
        "'",
        '"\n',
        "caf\u00e9/\u4e2d",
        "0x1f",
        "1e3",
        "~",
    ]
    for text in texts:
        config = override_all(CurateConfig(), {"input": text, "align.keep": "1e-1", "attribute.keep": 0.05})
        config = override_all(config, {"cluster.machines": "a:1:0:1,b:2:0:3", "extra_columns": ()})
        path = tmp_path / f"{texts.index(text)}{suffix}"
        save_config(config, str(path))
        assert load_config(str(path), CurateConfig) == config, path.read_text()
    config = override_all(NegativesConfig(), {"llm.engine.seed": "3", "llm.engine.name": "true"})
    save_config(config, str(tmp_path / f"engine{suffix}"))
    assert load_config(str(tmp_path / f"engine{suffix}"), NegativesConfig) == config


def test_groups_and_paths_are_the_same(tmp_path):
    (tmp_path / "a.yaml").write_text("input: a.tar\nalign: {keep: 0.6}\nattribute:\n  keep: 0.3\n")
    (tmp_path / "b.yaml").write_text("input: a.tar\nalign.keep: 0.6\nattribute.keep: 0.3\n")
    (tmp_path / "c.json").write_text('{"input": "a.tar", "align": {"keep": 0.6}, "attribute.keep": 0.3}')
    wanted = override_all(CurateConfig(), {"input": "a.tar", "align.keep": 0.6, "attribute.keep": 0.3})
    for name in ("a.yaml", "b.yaml", "c.json"):
        assert load_config(str(tmp_path / name), CurateConfig) == wanted


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "align: {kep: 0.6}", ["'align.kep': unknown option", "closest is align.keep"]),
        ("a.yaml", "align: {keep: 2}", ["align.keep=2.0", "between 0 and 1"]),
        ("a.yaml", "align: {keep: yes}", ["align.keep='yes': must be"]),
        ("a.yaml", "align:", ["'align': is a group"]),
        ("a.yaml", "align: 3", ["'align': is a group"]),
        ("a.yaml", "input: a\ninput: b", ["'input': is set twice"]),
        ("a.yaml", "align: {keep: 0.6}\nalign.keep: 0.7", ["'align.keep': is set twice"]),
        ("a.yaml", "[a, b]", ["must hold options by name"]),
        ("a.yaml", "", ["must hold options by name"]),
        ("a.yaml", "a: [", ["while parsing"]),
        ("a.yaml", "? [1, 2]\n: 3", ["every name must be text"]),
        ("a.yaml", "input: !!python/object/apply:os.system [ls]", ["input="]),
        ("a.yaml", "&a [*a]", ["recursive"]),
        ("a.json", '{"input": "a", "input": "b"}', ["'input' occurs twice"]),
        ("a.json", "{", ["Expecting property name"]),
        ("a.json", "3", ["must hold options by name"]),
        ("a.json", '{"input": true}', ["input=True: must be text"]),
        ("a.json", '{"align": {"keep": [1]}}', ["align.keep=[1]: must be"]),
        ("a.json", "[" * 100_000, ["a.json: "]),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_it(name, text, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    assert cli.main(["curate", name, "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"raycomp: {name}: ") and said.count("\n") == 1, said
    assert all(word in said for word in words), said
    assert not (tmp_path / "out").exists()


def test_bytes_that_are_no_text_and_a_folder_are_one_line(tmp_path, capsys):
    (tmp_path / "a.yaml").write_bytes(b"input: \xff")
    (tmp_path / "b.yaml").mkdir()
    for name in ("a.yaml", "b.yaml"):
        assert cli.main(["curate", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
        said = capsys.readouterr().err
        problem = "is a folder" if name == "b.yaml" else "cannot be read"
        assert name in said and problem in said and said.count("\n") == 1


def test_save_config_writes_what_set_says_and_runs_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = ["curate", "--set", "input=a.tar", "--set", "attribute.keep=0.4", "--save-config"]
    assert cli.main([*line, "a.yaml"]) == 0 and cli.main([*line, "a.json"]) == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.json", "a.yaml"]
    assert load_config("a.yaml", CurateConfig) == load_config("a.json", CurateConfig)
    assert json.loads((tmp_path / "a.json").read_text())["attribute"]["keep"] == 0.4
    assert "  # " in (tmp_path / "a.yaml").read_text()  # the descriptions
    for name, problem in (("a.yaml", "exists already"), ("a.txt", "must end in"), ("no/a.yaml", "cannot be")):
        assert cli.main([*line, name]) == 2
        assert f"--save-config {name}: {problem}" in capsys.readouterr().err
