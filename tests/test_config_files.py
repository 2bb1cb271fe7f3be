"""Configs in YAML and JSON: what ``--save-config`` writes, and every mistake in a file that a user wrote."""

import json

from raycomp import cli
from raycomp.config import list_kinds, load_config, override_all, save_config
from raycomp.config.commands import import_command
from raycomp.curation.config import CurateConfig
from raycomp.negatives.config import NegativesConfig


def test_a_saved_config_is_read_as_it_was(tmp_path):
    """Text that YAML would take for another type, text beyond ASCII, empty tuples, arguments by name."""
    texts = ["no", "1:30", "2024-01-01", "a: b # c", " x ", "'", '"\n', "caf\u00e9\u4e2d", "0x1f", "1e3", "~"]
    odd = {"cluster.machines": "a:1:0:1,b:2:0:3", "extra_columns": (), "attribute.keep": 0.05}
    configs = [override_all(CurateConfig(), {"input": text, **odd}) for text in texts]
    configs.append(override_all(NegativesConfig(), {"llm.engine.seed": "3", "llm.engine.name": "true"}))
    commands = map(import_command, list_kinds())
    configs += [command.config() for command in commands if "job" in command.arguments]
    for number, config in enumerate(configs):
        for suffix in (".yaml", ".json") if number else (".yml", ".json"):
            path = tmp_path / f"{number}{suffix}"
            save_config(config, str(path))
            assert load_config(str(path), type(config)) == config, path.read_text()


def test_groups_and_paths_are_the_same(tmp_path):
    (tmp_path / "a.yaml").write_text("input: a.tar\nalign: {keep: 0.6}\nattribute:\n  keep: 0.3\n")
    (tmp_path / "b.yaml").write_text("input: a.tar\nalign.keep: 0.6\nattribute.keep: 0.3\n")
    (tmp_path / "c.json").write_text('{"input": "a.tar", "align": {"keep": 0.6}, "attribute.keep": 0.3}')
    wanted = override_all(CurateConfig(), {"input": "a.tar", "align.keep": 0.6, "attribute.keep": 0.3})
    for name in ("a.yaml", "b.yaml", "c.json"):
        assert load_config(str(tmp_path / name), CurateConfig) == wanted


def test_a_mistake_in_a_file_is_one_line_that_names_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text, words in [
        ("a.yaml", "align: {kep: 0.6}", ["'align.kep': unknown option", "closest is align.keep"]),
        ("a.yaml", "align: {keep: yes}", ["align.keep='yes': must be"]),
        ("a.yaml", "align: 3", ["'align': is a group"]),
        ("a.yaml", "input: a\ninput: b", ["'input': is set twice"]),
        ("a.yaml", "align: {keep: 0.6}\nalign.keep: 0.7", ["'align.keep': is set twice"]),
        ("a.yaml", "", ["must hold options by name"]),
        ("a.yaml", "a: [", ["while parsing"]),
        ("a.yaml", "? [1, 2]\n: 3", ["every name must be text"]),
        ("a.yaml", "input: !!python/object/apply:os.system [ls]", ["input="]),
        ("a.yaml", "&a [*a]", ["recursive"]),
        ("a.yaml", "\udcff", ["cannot be read"]),
        ("a.json", '{"input": "a", "input": "b"}', ["'input' occurs twice"]),
        ("a.json", "{", ["Expecting property name"]),
        ("a.json", '{"align": {"keep": [1]}}', ["align.keep=[1]: must be"]),
        ("a.json", "[" * 100_000, ["a.json: "]),
        ("b.yaml", None, ["is a folder"]),
    ]:
        (tmp_path / name).mkdir() if text is None else (tmp_path / name).write_text(
            text, errors="surrogateescape"
        )
        assert cli.main(["curate", name, "--out", "out"]) == 2
        said = capsys.readouterr().err
        assert name in said and said.count("\n") == 1 and all(word in said for word in words), (text, said)
        assert not (tmp_path / "out").exists()


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
