"""Every line that deploy/, cluster.yaml and the documents give to run resolves: its program, its options."""

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from raycomp import cli
from raycomp.config import override
from raycomp.curation.config import CurateConfig
from tests.docs.documents import DOCUMENTS, list_blocks, list_lines

ROOT = Path(__file__).parents[2]
SHIPPED = [ROOT / "cluster.yaml", *sorted((ROOT / "deploy").iterdir())]
_INLINE = re.compile(r"`(ray (?:job )?[a-z][\w-]* [^`]*)`")
_ENDS = {"|", "&&", ";", ">", "<", "&", "||"}


def list_texts(value: Any) -> Iterator[str]:
    """Yield every text of a YAML document, those of lists and of lists in them too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from list_texts(one)


def list_comments(path: Path) -> Iterator[str]:
    """Yield the comments of a file, joined where a line ends in a backslash."""
    found = [line.partition("# ")[2] for line in path.read_text().splitlines() if "# " in line]
    yield from "\n".join(found).replace("\\\n", " ").replace("`", " ; ").splitlines()


def list_shipped(path: Path) -> Iterator[str]:
    """Yield the shell lines that a file of deploy/ runs or tells its reader to run."""
    if path.suffix == ".yaml":
        # The tags of CloudFormation (!Ref) stand for texts of their own.
        text = re.sub(r"![A-Z]\w+ ", "", path.read_text())
        yield from (" ".join(one.split()) for one in list_texts(yaml.safe_load(text)))
    else:
        yield from list_lines(path.read_text())
    yield from list_comments(path)


def list_documented() -> Iterator[str]:
    """Yield the shell lines of the documents' blocks, and Ray's commands in their sentences."""
    for path in DOCUMENTS:
        for block in list_blocks(path):
            if block.language in ("", "console", "bash", "sh"):
                yield from list_lines(block.text)
        yield from _INLINE.findall(path.read_text())


def find_programs(line: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each ``ray COMMAND`` and ``python -m MODULE`` of a shell line, with the words that follow it."""
    try:
        words = shlex.split(line.replace(";", " ; "), comments=True)
    except ValueError:  # a sentence with an apostrophe
        return
    for i, word in enumerate(words[:-1]):
        after = words[i + 1 : next((j for j in range(i + 1, len(words)) if words[j] in _ENDS), len(words))]
        if word.rpartition("/")[2] == "ray" and after:
            yield "ray", after
        elif re.fullmatch(r"(\S*/)?python3?", word) and re.match(r"-m raycomp\b", " ".join(after)):
            yield after[1], after[2:]


def resolve_ray(words: list[str]) -> str | None:
    """Return why Ray's own command line refuses these words, None where it takes them; nothing is run.

    A sentence may name a command without its arguments. A variable is taken for a number.
    """
    words = [re.sub(r"\$[A-Z_]+", "1", word) for word in words]
    from ray.scripts.scripts import cli as command

    context = click.Context(command)
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(context, name)
        if found is None:
            return f"ray has no command {name!r}"
        command = found
    try:
        command.make_context(command.name, words)
    except click.MissingParameter:
        return None
    except click.UsageError as error:
        return error.format_message()
    return None


def is_ray_line(words: list[str]) -> bool:
    """Whether words after "ray" are a command: a sentence about Ray has other words there."""
    return (bool(re.fullmatch(r"[a-z][a-z-]+", words[0])) and len(words) > 1) or words == ["stop"]


SHIPPED_LINES = [(path.name, line) for path in SHIPPED for line in list_shipped(path)]
PROGRAMS = [(name, *found) for name, line in SHIPPED_LINES for found in find_programs(line)]
RAY_LINES = {
    shlex.join(words): words
    for program, words in [
        *(found[1:] for found in PROGRAMS),
        *(found for line in list_documented() for found in find_programs(line)),
    ]
    if program == "ray" and is_ray_line(words)
}
MODULES = [(name, module, words) for name, module, words in PROGRAMS if module != "ray"]


@pytest.mark.parametrize(("name", "module", "words"), MODULES)
def test_a_shipped_line_is_taken_to_its_last_option(name, module, words, tmp_path, monkeypatch, capsys):
    """The command line itself checks every option, and writes all to a file in place of a run."""
    assert find_spec(module), module
    if module in ("raycomp", "raycomp.run.ray_job"):
        monkeypatch.chdir(ROOT)
        assert cli.main([*words, "--save-config", str(tmp_path / "config.yaml")]) == 0, (
            capsys.readouterr().err
        )


def test_an_option_that_a_comment_names_is_one():
    for name in sorted({path.name for path in SHIPPED}):
        text = (ROOT / name if name == "cluster.yaml" else ROOT / "deploy" / name).read_text()
        for option, value in re.findall(r"# .*\b(cluster\.[a-z_]+)=([^\s;,]+)", text):
            override(CurateConfig(), option, value)


def test_the_lines_are_found_and_ray_takes_them():
    assert {module for _, module, _ in MODULES} >= {"raycomp.run.ray_job", "raycomp.run.ray_spot"}
    assert len([words for words in RAY_LINES.values() if words[:2] == ["job", "submit"]]) > 4
    shipped = {words[0] for _, program, words in PROGRAMS if program == "ray"}
    assert shipped >= {"start", "stop", "up", "get-auth-token"}
    for line, words in RAY_LINES.items():
        assert resolve_ray(words) is None, line
    assert "not a valid int" in resolve_ray(["start", "--head", "--num-cpus=none"])
    assert "no command 'sumbit'" in resolve_ray(["job", "sumbit", "--", "python"])
