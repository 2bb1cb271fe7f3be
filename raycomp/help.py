"""What ``--help`` prints, and what a shell completes: the same tables that the command line is read by."""

import argparse
import shutil
import textwrap
from collections.abc import Iterator

from raycomp.config import as_setting, list_options
from raycomp.config.commands import FLAGS, WORDS, Command, Program, list_presets
from raycomp.config.options import Option, iterate_options, name_type, split_none

_LEFT = 20
_FIRST = ("--out", "--dry-run", "--preset", "--add", "--remove", "--atlas")


def describe_program(program: Program) -> str:
    """Return the commands of a program by purpose, with examples."""
    commands = program.commands
    purposes = program.purposes or {"commands": commands}
    lines = [f"{program.name} COMMAND ...", program.text, ""]
    for purpose, names in purposes.items():
        lines.append(f"{purpose}:")
        lines += [f"  {name:<10}  {commands[name].text}" for name in names]
    if program.examples:
        lines += ["", "examples:", *(f"  {example}" for example in program.examples)]
    return "\n".join([*lines, "", f"{program.name} COMMAND --help shows a command; --version the version."])


def describe_command(program: Program, name: str, is_whole: bool = False) -> str:
    """Return a command's usage, example, words, flags, the options that matter (or all), and its files."""
    command = program.commands[name]
    words = command.arguments.split()
    shown = [word for word in words if word in WORDS]
    options = list_options(command.config, command.mark) if "--set" in words else []
    usage = [f"{program.name} {name}", *(WORDS[word][0] for word in shown), "-o DIR" * ("--out" in words)]
    lines = [" ".join(filter(None, [*usage, "[--OPTION VALUE ...]" * bool(options)]))]
    lines += _wrap(command.text[0].upper() + command.text[1:] + ".", "")
    if command.example:
        lines += ["", f"  {program.name} {name} {command.example}"]
    flags = [flag for flag in command.flags if is_whole or flag in _FIRST]
    rows = [WORDS[word] for word in shown]
    more = {"--preset": f": {', '.join(list_presets(name))}"}
    rows += [(f"{flag} {FLAGS[flag][0]}".strip(), FLAGS[flag][1] + more.get(flag, "")) for flag in flags]
    lines += ["", *("\n".join(_wrap(f"  {left:<{_LEFT - 4}}  {text}", " " * _LEFT)) for left, text in rows)]
    others = ", ".join(f"{flag} {FLAGS[flag][0]}".strip() for flag in command.flags if flag not in flags)
    lines += _wrap(f"  also {others}", "  ") if others else []
    if options and is_whole:
        had = ", each as the run in DIR had it unless it is set" * bool(command.mark)
        lines += ["", f"options{had}:", *_list_all(command)]
    elif options:
        by_path = {option.path: option for option in options}
        chosen = command.matter.split() or [*by_path][:8]
        lines += ["", f"options that matter, of {len(options)}; --help-all has all:"]
        lines += [line for path in chosen for line in _describe(by_path[path], command, is_short=True)]
    if command.writes:
        lines += ["", *_wrap(f"DIR gets {command.writes}", "  ")]
    return "\n".join(lines)


def _width() -> int:
    return min(110, max(80, shutil.get_terminal_size().columns))


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def describe_value(option: Option, shows_default: bool) -> str:
    """Return an option's type, default and range: ``float = 0.7; between 0 and 1``."""
    default = f" = {as_setting(option.default)}".rstrip() if shows_default else ""
    wanted = option.marks.get("wanted")
    return f"{name_type(option.hint)}{default}" + (f"; {wanted}" if wanted else "")


def _describe(option: Option, command: Command, is_short: bool = False) -> Iterator[str]:
    """Yield an option's names with its value, and its text: whole, or the first sentence in a line."""
    names = [f"--{option.path}", *(short for short, path in command.short.items() if path == option.path)]
    yield f"  {', '.join(names)} ({describe_value(option, command.mark is None)})"
    text = option.text.replace("``", "")
    if is_short:
        text = textwrap.shorten(text.partition(". ")[0].rstrip("."), _width() - 6, placeholder=" ...")
    yield from _wrap(f"      {text}", "      ")


def _list_all(command: Command) -> Iterator[str]:
    """Yield every option, those without a group first, each group below its heading."""
    paths = [f"{option.path}." for option in list_options(command.config, command.mark)]
    every = iterate_options(command.config)
    known = [one for one in every if any(path.startswith(f"{one.path}.") for path in paths)]
    for option in sorted(known, key=lambda one: bool(one.group) or "." in one.path):
        if option.group:
            none = " = none" * (option.default is None and command.mark is None)
            yield from ("", *_wrap(f"{option.path}{none}: {option.text.replace('``', '')}", "  "))
        else:
            yield from _describe(option, command)


def complete(program: Program) -> None:
    """Answer a shell that completes a line, by the protocol of argcomplete; this ends the process."""
    import argcomplete

    parser = argparse.ArgumentParser(add_help=False)
    commands = parser.add_subparsers()
    for name, command in program.commands.items():
        own = commands.add_parser(name, help=command.text, add_help=False)
        options = list_options(command.config, command.mark) if "--set" in command.arguments.split() else []
        for flag in command.flags:
            metavar, text = FLAGS[flag]
            argument = own.add_argument(flag, nargs=None if metavar else 0, action=_Any, help=text)
            if flag == "--set":
                argument.completer = lambda options=options, **_: [f"{one.path}=" for one in options]  # type: ignore[attr-defined]
            elif flag == "--preset":
                argument.choices = list_presets(name)
        for option in options:
            is_bool = split_none(option.hint)[0] is bool
            choices = option.marks.get("choices")
            nargs, text = 0 if is_bool else None, describe_value(option, command.mark is None)
            own.add_argument(f"--{option.path}", nargs=nargs, choices=choices, action=_Any, help=text)
        for short, path in command.short.items():
            own.add_argument(short, action=_Any, help=path)
        own.add_argument("words", nargs="*")
    argcomplete.autocomplete(parser, default_completer=argcomplete.completers.FilesCompleter())


class _Any(argparse.Action):
    """Takes what it is given."""

    def __call__(self, *_: object) -> None:
        pass
