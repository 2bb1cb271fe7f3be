"""The dials of a command as its ``--help`` lists them."""

import textwrap
from typing import Any

from raycomp.config.change import as_setting
from raycomp.config.dials import Dial, list_dials, name_type, walk_dials


def describe_dials(kind: Any, mark: str | None = None, width: int = 100) -> str:
    """Return path, type, default and sentence of each dial of a config class, those without a group first.

    Of those with a mark, where one is given, and then without defaults: they begin as a run had them.
    """
    shown = [dial.path for dial in list_dials(kind, mark)]
    dials = [dial for dial in walk_dials(kind) if _holds(dial, shown)]
    dials.sort(key=lambda dial: bool(dial.group) or "." in dial.path)
    return "\n".join(line for dial in dials for line in _describe(dial, width, mark is None))


def _holds(dial: Dial, shown: list[str]) -> bool:
    return dial.path in shown or any(path.startswith(f"{dial.path}.") for path in shown)


def _describe(dial: Dial, width: int, tells_default: bool) -> list[str]:
    """Return a dial's lines, or the heading of a group."""
    indent = "  " * (1 + dial.path.count("."))
    default = f" = {as_setting(dial.default)}".rstrip() if tells_default else ""
    text = dial.text.replace("``", "")
    if dial.group:
        inherits = default if dial.default is None else ""
        return ["", *_wrap(f"{indent}{dial.path}{inherits}: {text}", width, f"{indent}  ")]
    return [
        f"{indent}{dial.path} ({name_type(dial.hint)}){default}",
        *_wrap(f"{indent}    {text}", width, f"{indent}    "),
    ]


def _wrap(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
