"""Every command by name, found in its own package, and how its config is read, changed and written.

A command's modules are imported only when it is named. Another package has commands of its own as raycomp has
them: a ``Program``, which ``add_program`` makes known and ``raycomp.cli.main`` runs.

A config is changed the same way for ``--set``, config files and sweeps. The user's own Python is a config
file, or code as the value of an option, FILE.py:NAME. The file runs on every machine that needs it, which
must find it at the same path.
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import json
import os
import sys
import textwrap
import traceback
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from functools import lru_cache
from inspect import isfunction, signature
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any

from raycomp.config import options as declared
from raycomp.config.options import Arguments, Option, Seconds, Span, UserError, check, get_group, list_options

# Every command by what it is for, in the order of help, and the package whose ``COMMANDS`` holds it.
PURPOSES = {
    "look at data and runs": dict.fromkeys("audit show list explain explore card".split(), "raycomp.look"),
    "choose pairs": {"curate": "raycomp.curation", "select": "raycomp.curation"},
    "hard negatives": {"negatives": "raycomp.negatives"},
    "train and test": {
        "train": "raycomp.training",
        "evaluate": "raycomp.evaluation",
        "continual": "raycomp.continual",
        "publish": "raycomp.training",
    },
    "compare and search": {
        "compare": "raycomp.evaluation",
        "diff": "raycomp.look",
        "probe": "raycomp.probe",
        "sweep": "raycomp.sweep",
    },
    "maintain": {
        "update": "raycomp.curation",
        "verify": "raycomp.curation",
        "index-eval": "raycomp.evaluation",
    },
}
FOLDERS = {name: folder for commands in PURPOSES.values() for name, folder in commands.items()}

# What a command works on, in place of options: how it is typed, and what it is.
WORDS = {
    "input": ("INPUT...", "shards, folders, lists or globs of pairs; or a run's folder"),
    "job": ("[CONFIG]", "FILE.yaml, FILE.json, or FILE.py[:FUNCTION]"),
    "probe": ("PROBE", "overlap, composition or pas"),
    "source": ("DIR", "a folder that a run wrote"),
    "first": ("A", "a folder that raycomp curate or select wrote"),
    "second": ("B", "another one, of the same rows, compared with A"),
    "parent": ("DIR", "a folder with runs at any depth"),
    "runs": ("[NAME=]DIR...", "folders that raycomp evaluate wrote; the first is the reference"),
    "uid": ("UID", "a uid, or a key, a file name, a url or a caption"),
}
# The flags that are no option of a config: what stands after them ("" for nothing), and what they do.
FLAGS = {
    "--out": ("DIR", "where results go: a folder, s3://, gs:// or az://; also -o"),
    "--set": ("OPTION=VALUE", "an option, as --OPTION VALUE and the word OPTION=VALUE"),
    "--preset": ("NAME", "start from a config of the package"),
    "--atlas": ("FILE", "a Parquet file of the rows for other viewers; --out DIR may then be left out"),
    "--add": ("SHARDS", "another input to take up: paths, globs, uris, optionally NAME="),
    "--remove": (
        "FILE",
        "an opt-out, erased from DIR: a file (.txt) with a uid, key or file name, url, SHA-256, domain or "
        "shard name in each line, or a table (.csv, .tsv, .parquet)",
    ),
    "--table": (
        "FILE",
        "a paper's figures (figure,metric,needs,ROW,...): print means over seeds of ROW=DIR next to them",
    ),
    "--verify": ("", "compare the SHA-256 of every file of the runs that are read, not only their sizes"),
    "--dry-run": ("", "check options, inputs and DIR, say the cost, write nothing; DIR may be left out"),
    "--save-config": (
        "FILE",
        "write all options to FILE.yaml or FILE.json, each with its value; run nothing",
    ),
    "--help-all": ("", "list every option"),
}


@dataclass(frozen=True)
class Command:
    """One command: ``function``, MODULE:NAME, takes its arguments in their order.

    ``arguments`` are words of ``WORDS`` and flags of ``FLAGS``. A config (``job``, ``--preset``) and the
    options form one argument, the config, at the place of ``--set``; the words of ``input`` are its option of
    that name. With a ``mark`` only options that have it may be set, and the function takes them by path. With
    ``--out`` it also takes ``say``, which prints messages during the run. Without, it returns or yields the
    text to print. ``--verify`` is not passed on.
    """

    text: str
    function: str
    arguments: str
    config_class: str | None = None
    """MODULE:NAME of its config; the command's run.json holds a config of this class."""
    mark: str | None = None
    short: Mapping[str, str] = field(default_factory=dict)
    """Short names of options, at most 15: {"--epochs": "train.epochs"}."""
    matter: str = ""
    """Paths of the six to ten options that its help shows."""
    example: str = ""
    """What is typed after the command's name."""
    writes: str = ""
    """The files that it writes into DIR."""

    @property
    def config(self) -> Any:
        """The class of its config, None if it has none."""
        return self.config_class and import_object(self.config_class)

    @property
    def flags(self) -> list[str]:
        """The flags that it takes, but for options."""
        words = self.arguments.split()
        more = ["--dry-run"] * ("--out" in words)
        more += ["--save-config"] * ("job" in words) + ["--help-all"] * ("--set" in words)
        return list(dict.fromkeys([*(word for word in words if word.startswith("--")), *more]))


@dataclass(frozen=True)
class Program:
    """A command line: how it is typed ("raycomp", "python -m mine"), what it does, and its commands.

    ``folders`` has by command the package whose ``COMMANDS`` holds it; ``purposes`` has the names of
    commands by what they are for.
    """

    name: str
    text: str
    folders: Mapping[str, str]
    purposes: Mapping[str, Iterable[str]] = field(default_factory=dict)
    examples: tuple[str, ...] = ()

    @property
    def commands(self) -> dict[str, Command]:
        """The commands by name."""
        return {name: import_command(name) for name in self.folders}


RAYCOMP = Program(
    "raycomp",
    "Curate image-text data for composition on Ray, and train on it.",
    FOLDERS,
    PURPOSES,
    (
        "raycomp audit photos --out out/audit",
        "raycomp curate photos --out out/photos --align.keep 0.6",
        "raycomp train out/photos --out out/clip --epochs 3",
        "raycomp explore out/photos --out out/pages",
    ),
)
_PROGRAMS = [RAYCOMP]


def add_program(program: Program) -> Program:
    """Make another package's commands known in this process, and return them.

    Their runs can then be started, resumed and read. Raises ValueError where a name is taken.
    """
    for name in program.folders:
        if any(name in other.folders for other in _PROGRAMS):
            raise ValueError(f"{program.name} {name}: another program has a command of this name; rename it")
    _PROGRAMS.append(program)
    return program


def get_program(name: str) -> Program | None:
    """Return the program that has a command of this name."""
    return next((program for program in _PROGRAMS if name in program.folders), None)


def list_presets(name: str) -> dict[str, str]:
    """Return the config files of a command that come with the package, by name."""
    folder = Path(__file__).parents[1] / "presets" / name
    return {path.stem: str(path) for path in sorted(folder.glob("*.yaml"))}


def import_object(place: str) -> Any:
    """Return the object that MODULE:NAME names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def import_command(name: str) -> Command:
    """Return a command of any known program. Raises KeyError if there is none."""
    program = get_program(name)
    if program is None:
        raise KeyError(name)
    return importlib.import_module(program.folders[name]).COMMANDS[name]


def list_kinds() -> list[str]:
    """Return the kinds of raycomp's runs that hold a config: the commands that write one."""
    return [name for name, one in RAYCOMP.commands.items() if one.config_class and "--out" in one.arguments]


def get_config(kind: str) -> Any:
    """Return the config class for the run.json of a kind of run ("probe pas" is a probe), None for no kind.

    For an unknown kind no option is free.
    """
    name = kind.partition(" ")[0]
    return import_command(name).config if get_program(name) else None


def name_command(kind: str) -> str:
    """Return how the command for a kind of run is typed, "raycomp probe pas"."""
    program = get_program(kind.partition(" ")[0])
    return f"{(program or RAYCOMP).name} {kind}"


def load_job(name: str) -> Any:
    """Return the result of ``FILE.py:VARIANT``; without a variant, of its function ``config``.

    Raises ValueError if there is no such file or function, or the config file itself fails or ends Python.
    """
    path, _, variant = name.partition(":")
    variant = variant or "config"
    if not Path(path).is_file() or Path(path).suffix != ".py":
        forms = "FILE.yaml, FILE.json, FILE.py or FILE.py:VARIANT"
        raise ValueError(f"{path}: no such config file; it must be {forms}")
    with in_one_line(name, "return a config"):
        module = run_file(path)
        make = getattr(module, variant, None)
        if callable(make):
            return make()
    # The file's own functions without parameters, in their order.
    own = [one for one in vars(module).values() if getattr(one, "__module__", None) == module.__name__]
    names = [one.__name__ for one in own if isfunction(one) and not signature(one).parameters]
    raise ValueError(f"{name}: {path} has no function {variant!r}, it has {', '.join(names) or 'none'}")


def run_file(path: str) -> ModuleType:
    """Return a Python file as a module; raises the exceptions of the file."""
    spec = importlib.util.spec_from_file_location(f"job_{Path(path).stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the config file look up their types there
    spec.loader.exec_module(module)
    return module


@contextmanager
def in_one_line(name: str, instead: str) -> Iterator[None]:
    """Raise ValueError, which names the user's file, if that file fails or ends Python in the block."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        raise ValueError(f"{name}: ends Python by exit({error.code!r}); {instead} instead") from error
    except BaseException as error:
        if type(error) is ValueError:
            raise
        raise ValueError(f"{name}: {type(error).__name__}: {error}") from error


def is_own(value: str) -> bool:
    """Whether a value names an object in a Python file, FILE.py:NAME."""
    return value.rpartition(":")[0].endswith(".py")


def name_own(value: str) -> str:
    """Return NAME of FILE.py:NAME; another value as it is."""
    return value.rpartition(":")[2] if is_own(value) else value


def load_own(option: str, value: str) -> Any:
    """Return the object that FILE.py:NAME names, None if the file has no such name. An unchanged file runs
    once for each option and name in a process.

    Raises ValueError, one line with the option, if there is no such file, or the file itself fails.
    """
    path = find_file(value)
    if not os.path.isfile(path):
        raise ValueError(f"{option}={value!r}: no such file; it must be a Python file, FILE.py:NAME")
    return _load(option, value, os.stat(path).st_mtime_ns)


@lru_cache(maxsize=32)
def _load(option: str, value: str, mtime_ns: int) -> Any:
    with in_one_line(f"{option}={value}", f"define {name_own(value)}"):
        return getattr(run_file(find_file(value)), name_own(value), None)


def call_own(option: str, value: str, function: Callable, *args: Any) -> Any:
    """Return the result of a user's function. Raises UserError, which names file and line, if it fails."""
    try:
        return function(*args)
    except UserError:
        raise
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        message = shorten(str(error), 300, placeholder=" ...")
        said = f"{type(error).__name__}: {message} ({line.filename}, line {line.lineno})"
        raise UserError(f"{option}={value}: {said}") from error


def fingerprint_own(key: str, value: str) -> dict[str, str]:
    """Return the SHA-256 of the user's file under ``key``; empty for a value that names none."""
    if not is_own(value):
        return {}
    return {key: hashlib.sha256(Path(find_file(value)).read_bytes()).hexdigest()}


def find_file(value: str) -> str:
    """Return FILE.py of FILE.py:NAME."""
    return value.rpartition(":")[0]


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text.

    Raises ValueError, naming the key, if an object has a key twice, and RecursionError if the nesting is too
    deep.
    """

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names if len({*names}) < len(names) else ():
            if names.count(name) > 1:
                raise ValueError(f"{name!r:.80} occurs twice in one object")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=read_object)


_UNITS = {"s": 1, "m": 60, "h": 3600}
_WANTED = {
    str: "text in UTF-8",
    Seconds: "seconds, as in 90, 30s, 10m or 2h",
    bool: "true or false",
    Arguments: "arguments, each set by its name, as in llm.engine.NAME=VALUE",
    bool | None: "true, false or none",
}


def exact_share(share: float, count: int) -> int:
    """Return floor(share * count) with ``share`` read as the decimal it prints as: 0.7 of 90 is 63."""
    return int(Decimal(str(share)) * count)


def override(config: Any, path: str, value: Any) -> Any:
    """Return a copy of ``config`` with the field at ``path`` ("align.keep") set.

    Text values are read as the field's type. Raises ValueError naming the valid fields if ``path`` does not
    lead to a field, and the expected type if ``value`` does not fit.
    """
    return override_all(config, {path: value})


def override_all(config: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Return a copy of ``config`` with several fields set at once, checked together.

    So two options that bound each other can change in any order. A group that is none starts from its
    defaults if one of its options is set. Raises ValueError as ``override`` does.
    """
    hints = typing.get_type_hints(type(config), include_extras=True)
    groups: dict[str, dict[str, Any]] = {}
    changes: dict[str, Any] = {}
    for path, value in values.items():
        check_path(type(config), path, prefix)
        name, _, below = path.partition(".")
        if below and hints[name] == Arguments:
            changes[name] = {**changes.get(name, getattr(config, name)), below: _read_argument(value)}
        elif below:
            groups.setdefault(name, {})[below] = value
        else:
            changes[name] = _read(prefix + path, hints[name], value)
    for one in dataclasses.fields(config):  # {"instead": PATH}: where it alone is set, PATH is none
        other = one.metadata.get("instead", "").rpartition(".")[2]
        if other and changes.get(one.name) is not None:
            changes.setdefault(other, None)
    for name, inner in groups.items():
        group = changes.get(name, getattr(config, name)) or get_group(hints[name])()
        changes[name] = override_all(group, inner, f"{prefix}{name}.")
    changed = dataclasses.replace(config, **changes)
    # An option's own range may have no limit.
    for name, value in changes.items():
        numbers = [one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, int)]
        fits = all(abs(one) <= declared.MOST_WHOLE for one in numbers)
        check(fits, prefix + name, value, f"between -{declared.MOST_WHOLE:,} and {declared.MOST_WHOLE:,}")
    return changed


def check_path(kind: Any, path: str, prefix: str = "") -> None:
    """Raise ValueError, naming the closest, if ``path`` leads to no option or group of a config class."""
    hints = typing.get_type_hints(kind, include_extras=True)
    name, _, below = path.partition(".")
    if name in hints and hints[name] == Arguments:
        return
    if name not in hints:
        paths = [option.path for option in list_options(kind)]
        within = [known for known in paths if known.endswith(f".{path}")]
        closest = [*get_close_matches(path, paths, 1), *within][:1]
        hint = "".join(f"; the closest is {prefix}{known}" for known in closest)
        valid = ", ".join(one.name for one in dataclasses.fields(kind))
        raise ValueError(f"{prefix + path!r}: unknown option{hint}; valid here: {valid}")
    group = get_group(hints[name])
    if below and not group:
        raise ValueError(f"{prefix + path!r}: {prefix}{name} is one value; it has no option {below!r}")
    if below:
        check_path(group, below, f"{prefix}{name}.")


def read_value(kind: Any, path: str, text: str) -> Any:
    """Return ``text`` as ``override`` reads it for the option at ``path`` of a config class.

    Raises ValueError if it does not fit the option's type.
    """
    return _read(path, list_hints(kind)[path], text)


@lru_cache
def list_hints(kind: Any) -> dict[str, Any]:
    """Return the types of all options of a config class by path; cached for spaces of thousands of values."""
    return {option.path: option.hint for option in list_options(kind)}


def _read(path: str, hint: Any, value: Any) -> Any:
    """Read ``value`` as type ``hint``: a type known to ``_convert``, or that | None; a group only as None."""
    kind, is_optional = declared.split_none(hint)
    if is_optional and (value is None or value in ("none", "None", "null")):
        return None
    if group := get_group(kind):
        names = ", ".join(f"{path}.{one.name}" for one in dataclasses.fields(group))
        raise ValueError(f"{path!r}: is a group of options; set one of {names}")
    try:
        return _convert(kind, value)
    except (ValueError, LookupError) as error:
        if kind is float and str(value).endswith("%"):
            raise ValueError(f"{path}={value!r}: must be a share from 0 to 1, such as 0.6") from error
        wanted = _WANTED.get(hint) or _WANTED.get(kind, f"of type {declared.name_type(kind)}")
        raise ValueError(f"{path}={value!r}: must be {wanted}") from error


def _convert(kind: Any, value: Any) -> Any:
    """Return ``value`` as text, a number or a tuple of these. Raises ValueError or LookupError."""
    if typing.get_origin(kind) is tuple and isinstance(value, list | tuple | str):
        parts = filter(None, map(str.strip, value.split(","))) if isinstance(value, str) else value
        return tuple(_convert(typing.get_args(kind)[0], part) for part in parts)
    text = str(value)
    if kind is bool:
        return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
    if kind == Span:
        return int(text) if text.isdecimal() else text
    if kind == Seconds:
        return float(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else float(text)
    if kind == Arguments and isinstance(value, Mapping):
        return {str(name): _read_argument(one) for name, one in value.items()}
    if kind in (int, float):
        return kind(text)
    if kind is str and isinstance(value, str | int | float | os.PathLike) and not isinstance(value, bool):
        return text.encode().decode()  # a path may hold bytes that are no text
    raise ValueError(value)


def _read_argument(value: Any) -> str:
    """Return an argument as text: values that are not text as json, so True is true."""
    return value if isinstance(value, str) else json.dumps(value)


def to_dict(config: Any) -> dict[str, Any]:
    """Return the config as plain nested dicts, the form in run.json."""
    return dataclasses.asdict(config)


def from_dict(config: Any, values: Mapping[str, Any]) -> Any:
    """Return ``config`` with every field set as ``to_dict`` wrote it."""
    return override_all(config, dict(flatten(values)))


def changed_options(config: Any, default: Any = None) -> dict[str, Any]:
    """Return the options that differ from the defaults, by path: those that a command line must set.

    For a group that is none by default, return at least one option, so that it is set and not inherited.
    """
    default = type(config)() if default is None else default
    changed: dict[str, Any] = {}
    for one in dataclasses.fields(config):
        value, before = getattr(config, one.name), getattr(default, one.name)
        if dataclasses.is_dataclass(value):
            inner = changed_options(value, before)
            if before is None and not inner:
                inner = dict(list(flatten(to_dict(value)))[:1])
            changed |= {f"{one.name}.{path}": option for path, option in inner.items()}
        elif isinstance(value, Mapping):
            changed |= flatten({one.name: value})
        elif value != before:
            changed[one.name] = value
    return changed


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of nested dicts, paths joined with dots."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


YAML, JSON = (".yaml", ".yml"), (".json",)
_WIDTH = 100


def load_config(name: str, kind: Any, options: Mapping[str, Any] | None = None) -> Any:
    """Return the config of class ``kind`` that a file holds, with ``options`` set in it by path.

    FILE.yaml and FILE.json set options by group and name (``align: {keep: 0.5}``) or by path (``align.keep:
    0.5``); the others keep their defaults. They are checked with ``options``, not alone. FILE.py[:FUNCTION]
    returns a config. Raises ValueError, which names the file, for any other content.
    """
    if Path(name).suffix in YAML + JSON:
        return _read_text(name, kind, options or {})
    config = load_job(name)
    if type(config) is not kind:
        raise ValueError(f"{name}: returned {type(config).__name__}, must return a {kind.__name__}")
    return override_all(config, options or {})


def save_config(config: Any, path: str) -> None:
    """Write every option with its value into a new file, in YAML each below its description.

    Raises ValueError where the file exists, cannot be written or has another suffix.
    """
    if Path(path).suffix not in YAML + JSON:
        raise ValueError(f"--save-config {path}: must end in {', '.join(YAML + JSON)}")
    values = to_dict(config)
    if Path(path).suffix in JSON:
        text = json.dumps(values, indent=2) + "\n"
    else:
        text = (
            "\n".join(_write_yaml(values, {one.path: one for one in declared.iterate_options(type(config))}))
            + "\n"
        )
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(f"--save-config {path}: exists already; name a new file") from None
    except OSError as error:
        raise ValueError(f"--save-config {path}: cannot be written: {error.strerror}") from error


def _read_text(path: str, kind: Any, options: Mapping[str, Any]) -> Any:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such config file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    try:
        values = parse_json(text) if Path(path).suffix in JSON else _parse_yaml(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(values, Mapping):
        wanted = "options by name, as in align.keep: 0.5"
        raise ValueError(f"{path}: must hold {wanted}; an input is input={path}")
    typed = [one for one in list_options(kind) if options.get(one.path) not in (None, "none")]
    instead = {one.marks.get("instead") for one in typed}
    try:
        own = {path: value for path, value in _each_once(flatten(values)) if path not in instead}
        return override_all(kind(), {**own, **options})
    except ValueError as error:
        is_named = any(f"{name}=" in str(error) or f"{name!r}:" in str(error) for name in options)
        raise error if is_named else ValueError(f"{path}: {error}") from error


def _each_once(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield names with values. Raises ValueError where a name occurs twice: one value would be lost."""
    names = set()
    for name, value in pairs:
        if name in names:
            raise ValueError(f"{name!r}: is set twice; set it once")
        names.add(name)
        yield name, value


def _parse_yaml(text: str) -> Any:
    """Return the content with every value as text, which options read by their type, as they do in --set."""
    import yaml  # only a command with such a file needs it

    class Loader(yaml.BaseLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            pairs = [(self.construct_object(key, deep=True), value) for key, value in node.value]
            if any(not isinstance(name, str) for name, _ in pairs):
                raise ValueError("every name must be text")
            return {name: self.construct_object(value, deep=True) for name, value in _each_once(pairs)}

    try:
        return yaml.load(text, Loader)  # a subclass of BaseLoader makes text, lists and dicts alone
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _write_yaml(values: Mapping[str, Any], options: Mapping[str, Option], within: str = "") -> Iterator[str]:
    """Yield the lines of a group's options."""
    import yaml

    indent = "  " * within.count(".")
    for name, value in values.items():
        option, start = options[within + name], f"{indent}# "
        text = option.text.replace("``", "")
        yield from textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=start)
        if option.group and value is not None:
            yield f"{indent}{name}:"
            yield from _write_yaml(value, options, f"{within}{name}.")
        else:
            plain = list(value) if isinstance(value, tuple) else value
            written = yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True, width=10**9)
            yield f"{indent}{name}: {written.removesuffix('...' + chr(10)).strip()}"
