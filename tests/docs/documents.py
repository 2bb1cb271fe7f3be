"""The documents, their code blocks, and the commands of raycomp and of the laboratory in them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import lab  # noqa: F401  its commands are known from here on

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^( *)```+(\w*)[^\n]*\n(.*?)^\1```+ *$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(?:\.venv/bin/)?((?:raycomp|python -m lab) [a-z][^`]*)`")
_NAME = re.compile(r"[Ss]ave\s+this\s+as\s+`(\w+\.py)`")
# A command line of a block starts with one of these.
_STARTS = re.compile(r"^(\$ )?([A-Z_]+=\S+ )*(raycomp|\.venv/bin/raycomp|python|ray|srun)\b")
_ENDS = {"|", ">", ">>", "&&", ";", "..."}


class Block(NamedTuple):
    """A code block of a document: its language, "" for none, its text, and the file that it is saved as."""

    language: str
    text: str
    name: str | None


def list_blocks(path: Path) -> list[Block]:
    """Return the code blocks of a document in their order."""
    whole, blocks, last = path.read_text(), [], 0
    for found in _BLOCK.finditer(whole):
        indent, language, text = found.groups()
        names = _NAME.findall(whole[last : found.start()])
        text = re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
        blocks.append(Block(language, text, names[-1] if names else None))
        last = found.end()
    return blocks


def list_lines(text: str) -> list[str]:
    """Return the lines of a shell block, those that end in a backslash joined with the next."""
    return [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def find_arguments(line: str) -> list[str] | None:
    """Return the arguments of the command of raycomp or lab in a shell line, None where there is none."""
    words = shlex.split(line, comments=True)
    ends = [i for i, word in enumerate(words) if word in _ENDS]
    for i, word in enumerate(words):
        if word == "raycomp" or word.endswith("/raycomp") or words[i - 1 : i + 1] == ["-m", "lab"]:
            return words[i + 1 : next((end for end in ends if end > i), len(words))]
    return None


def list_commands(path: Path) -> Iterator[list[str]]:
    """Yield the arguments of every command in the code blocks of a document."""
    for block in list_blocks(path):
        for line in list_lines(block.text):
            if _STARTS.match(line) and (arguments := find_arguments(line)):
                yield arguments


def list_inline(path: Path) -> Iterator[list[str]]:
    """Yield the arguments of every command that a sentence of a document names."""
    for text in _INLINE.findall(_BLOCK.sub("", path.read_text())):
        if arguments := find_arguments(" ".join(text.split())):
            yield arguments
