"""The command line: ``raycomp COMMAND`` with words and options, read by one table of commands.

A word is an option where the text before its ``=`` is exactly an option's path (``align.keep=0.6``), a
config where it ends in .yaml, .json, .py or .py:NAME, and otherwise what the command works on: its inputs or
folders. A flag is, in this order, an option by its path (``--align.keep 0.6``), one of ``FLAGS``, or a short
name that the command declares (``--epochs 3``). An option that is true or false takes no word after it: write
``--x``, ``--no-x`` or ``--x=VALUE``.

Exit codes: 0; 2 the user's mistake; 3 too much bad data; 4 the storage failed or another run took the output
over; 5 the cluster failed: Ray did not start, or workers were lost repeatedly; 130 interrupted; 143
terminated.
"""

import atexit
import gc
import os
import re
import signal
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from tempfile import gettempdir
from typing import Any, NoReturn

from raycomp.config import ClusterFailed, DryRun, LeaseLost, Terminated, TooMuchBadData, UserError
from raycomp.config.commands import (
    FLAGS,
    RAYCOMP,
    WORDS,
    Command,
    Program,
    import_object,
    is_own,
    list_presets,
    load_config,
    override_all,
    save_config,
)
from raycomp.config.options import Arguments, check_choice, list_options, read_space, split_none, write_line
from raycomp.models import deferred

USER_ERROR, BAD_DATA, STORAGE_FAILED, INTERRUPTED = 2, 3, 4, 130
_LETTERS = {"-o": "--out", "-h": "--help"}
_CONFIG = (".yaml", ".yml", ".json", ".py")
# How other tools call their input.
_OTHERS_INPUT = ("--data", "--dataset", "--train-data", "--images", "--shards", "--folder")
_TRUTHS = ("true", "false", "none", "yes", "no", "on", "off", "0", "1")


@dataclass
class Line:
    """What was typed after a command: its words, config, options by path, and flags."""

    words: list[str] = field(default_factory=list)
    config: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str | bool] = field(default_factory=dict)


class Reader:
    """Reads a line of one command, word by word."""

    def __init__(self, command: Command, words: Sequence[str]):
        self.command = command
        self.arguments = command.arguments.split()
        self.line = Line()
        self.rest = list(words)
        # Those without the command's mark, too: its function says why it cannot change them.
        options = list_options(command.config) if "--set" in self.arguments else []
        self.hints = {one.path: one.hint for one in options}
        self.places = {one.path for one in options if "path" in one.marks}

    def read(self) -> Line:
        while self.rest:
            word = self.rest.pop(0)
            if word == "--":
                self.line.words += self.rest
                break
            if word.startswith("-") and word != "-":
                self.take_flag(word)
            else:
                self.take_word(word)
        return self.line

    def take_word(self, word: str) -> None:
        path, equals, value = word.partition("=")
        if equals and self.has(path):
            # An input may have a name, NAME=SHARDS, and a file any name.
            is_input = "input" in self.arguments and path not in self.places and os.path.exists(value)
            if is_input or os.path.exists(word):
                said = f"{word!r}: may be the option {path} or an input"
                raise ValueError(f"{said}; write --{path}={value} or input={word}")
            self.line.options[path] = value
        elif "job" in self.arguments and (word.endswith(_CONFIG) or is_own(word)):
            if self.line.config is not None:
                raise ValueError(f"{word!r}: is a second config, after {self.line.config!r}; name one")
            if os.path.isdir(word):
                said = "is a folder that ends as a config does"
                raise ValueError(f"{word!r}: {said}; write input={word} to read it")
            self.line.config = word
        else:
            is_path = equals and re.fullmatch(r"[a-z]\w*(\.\w+)+", path)
            nearest = get_close_matches(path, self.hints, 1, 0.8) if is_path else []
            if nearest and not os.path.exists(value):
                said = f"is not an option, the nearest is {nearest[0]}; nor is it an input"
                raise ValueError(f"{word!r}: {said}")
            self.line.words.append(word)

    def take_flag(self, word: str) -> None:
        flag, equals, value = word.partition("=")
        flag = _LETTERS.get(flag, flag)
        known = self.command.flags
        path, negated = self.find(flag.removeprefix("--")), None
        if path is None and flag not in known:
            path = self.command.short.get(flag)
        if path is None and flag.startswith("--no-"):
            path = negated = self.find(flag.removeprefix("--no-"))
        if path is not None and split_none(self.hints.get(path, str))[0] is bool:
            if not equals and self.rest and self.rest[0].lower() in _TRUTHS:
                said = f"{flag} {self.rest[0]}: takes a value after = alone"
                raise ValueError(f"{said}; write {flag}={self.rest[0]}")
            if negated and equals:
                raise ValueError(f"{word}: takes no value; write --{path}={value}")
            self.line.options[path] = value if equals else "false" if negated else "true"
        elif negated:
            raise ValueError(f"{flag}: {path} is not true or false; write --{path} VALUE")
        elif path is not None:
            value = value if equals else self.take_value(flag)
            if flag == "--space":  # each adds an entry; an invalid one is reported as it was typed
                read_space(value)
                value = f"{self.line.options.get(path, '')} {value}".strip()
            self.line.options[path] = value
        elif flag == "--set" and flag in known:
            path, equals, value = (value if equals else self.take_value(flag)).partition("=")
            if not equals:
                raise ValueError(f"--set {path!r}: must be --set OPTION=VALUE, with = and no space")
            self.line.options[path] = value
        elif flag in known and FLAGS[flag][0]:
            self.line.flags[flag] = value if equals else self.take_value(flag)
        elif flag in known and equals:
            raise ValueError(f"{word}: takes no value; write {flag}")
        elif flag in known:
            self.line.flags[flag] = True
        else:
            raise ValueError(self.describe_unknown(flag))

    def take_value(self, flag: str) -> str:
        if not self.rest or self.rest[0].startswith("--") or self.rest[0] in _LETTERS:
            raise ValueError(f"{flag}: needs a value after it")
        return self.rest.pop(0)

    def has(self, path: str) -> bool:
        """Whether an option has exactly this path, or is an argument by name of one (llm.engine.NAME)."""
        groups = (group for group, hint in self.hints.items() if hint == Arguments)
        return path in self.hints or any(path.startswith(f"{group}.") for group in groups)

    def find(self, name: str) -> str | None:
        """Return the path of an option that was typed with - or _ between its words."""
        return next((path for path in (name, name.replace("-", "_")) if self.has(path)), None)

    def describe_unknown(self, flag: str) -> str:
        """Return the message for a flag that the command does not have."""
        name = flag.lstrip("-").replace("-", "_")
        for start in ("", "no_"):
            end = name.removeprefix(start)
            ends = [path for path in self.hints if path.endswith(f".{end}")] if name.startswith(start) else []
            if not ends:
                continue
            wanted = " or ".join(f"--{start.replace('_', '-')}{path}" for path in ends[:3])
            return f"{flag}: is the end of an option's path; write {wanted}"
        if flag in _OTHERS_INPUT and "input" in self.arguments:
            return f"{flag}: is not an option; the input is a word of its own, as in {self.command.example}"
        known = [*self.command.flags, *self.command.short, *(f"--{path}" for path in self.hints)]
        return f"{flag}: must be an option of this command{_name_nearest(flag, known)}; see its --help"


def _name_nearest(word: str, known: Iterable[str]) -> str:
    return "".join(f", the nearest is {one}" for one in get_close_matches(word, list(known), 1))


def read_values(command_name: str, command: Command, line: Line) -> list[Any]:
    """Return the arguments of the command's function, in its order.

    Raises ValueError where a word is missing or one too many, and where an option has an invalid value.
    """
    words, options, flags = list(line.words), dict(line.options), line.flags
    values: list[Any] = []
    for name in command.arguments.split():
        if name in ("input", "runs"):
            if words and "input" in options:
                said = f"{' '.join(words)!r} and input={options['input']!r}"
                raise ValueError(f"{said}: the input is named twice; name it once")
            if name == "runs":
                values.append(words)
            elif words:
                options["input"] = "::".join(words)
            words = []
        elif name == "--set":
            values.append(options if command.mark else _make_config(command_name, command, line, options))
        elif name.startswith("--"):
            if name not in ("--preset", "--verify", "--dry-run"):
                values.append(flags.get(name))
        elif name != "job":
            if not words:
                metavar, text, *_ = WORDS[name]
                raise ValueError(f"{metavar}: is missing; it is {text}")
            values.append(words.pop(0))
    if words:
        data = next((one for one in command.matter.split() if one in ("model.weights", "curated")), "")
        named = f"; name it by --{data.removeprefix('model.')} {words[0]}" if data else ""
        raise ValueError(f"{words[0]!r}: is one word too many{named}; see --help")
    if "--out" in command.flags and not {"--out", "--save-config", "--atlas", "--dry-run"} & {*flags}:
        raise ValueError("--out: is missing; name the folder of the results, --out DIR")
    return values


def _make_config(name: str, command: Command, line: Line, options: dict[str, str]) -> Any:
    """Return the config that a preset, a file or the defaults start, with the options set."""
    preset = str(line.flags.get("--preset", ""))
    if preset and line.config:
        raise ValueError(f"--preset {preset} and {line.config!r}: are two configs; name one")
    if line.config:
        return load_config(line.config, command.config, options).check_typed(options)
    if not preset:
        return override_all(command.config(), options).check_typed(options)
    known = list_presets(name)
    check_choice("--preset", preset, [*known])
    try:
        return load_config(known[preset], command.config, options).check_typed(options)
    except ValueError as error:
        raise ValueError(str(error).replace(known[preset], f"--preset {preset}")) from error


def main(argv: Sequence[str] | None = None, program: Program = RAYCOMP) -> int:
    """Run one command of a program; return its exit code."""
    deferred.install()
    atexit.register(gc.freeze)  # else the interpreter goes through all objects of torch as it ends: seconds
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _ended_by_signals():
            _run(program, sys.argv[1:] if argv is None else list(argv))
    except DryRun as checked:
        _print(str(checked))
    except KeyboardInterrupt as interrupt:
        how = "terminated" if isinstance(interrupt, Terminated) else "interrupted"
        _complain(program, f"{how}; {_name_rest(interrupt)}")
        return interrupt.exit_code if isinstance(interrupt, Terminated) else INTERRUPTED
    except ValueError as error:
        # A library's own type, or a plain one that a remote task raised, is our mistake.
        if type(error) is not ValueError and not isinstance(getattr(error, "cause", error), UserError):
            raise
        said = str(getattr(error, "cause", error))
        if "no such file" in said and "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:  # set in a submitted job
            said += (
                "; a submitted job reads files of the cluster's machines, not of the one that submitted it"
            )
        _complain(program, said)
        return USER_ERROR
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        _complain(
            program, f"this machine has too little memory ({type(error).__name__}); {_name_rest(error)}"
        )
        return ClusterFailed.exit_code
    except TooMuchBadData as error:
        _complain(program, error)
        return BAD_DATA
    except (OSError, LeaseLost, ClusterFailed) as error:
        # A failure in a remote task is wrapped, with its traceback in its message.
        _complain(program, f"{getattr(error, 'cause', error)}; once that is fixed: {_name_rest(error)}")
        return error.exit_code if isinstance(error, ClusterFailed) else STORAGE_FAILED
    return 0


def run(program: Program = RAYCOMP) -> NoReturn:
    """Run the command that this process was started for, and end the process with its exit code.

    After a signal in a run on Ray the process ends at once: threads of Ray that still wait crash in native
    code when the interpreter takes itself down, which would replace the exit code by that of the crash.
    """
    code = main(program=program)
    if code > 128 and "ray" in sys.modules:  # 128 and the signal's number
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM, which clusters send, and a closed terminal end the block as Ctrl-C does."""
    arrived = []

    def end(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second one would interrupt the clean-up
        arrived.append(number)
        raise Terminated(number)

    # A signal that was set to be ignored, as nohup does, stays so; only the main thread may set handlers.
    may_end = (signal.SIGTERM, signal.SIGHUP) * (threading.current_thread() is threading.main_thread())
    signals = [number for number in may_end if signal.getsignal(number) == signal.SIG_DFL]
    for number in signals:
        signal.signal(number, end)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        # Where Ray's native code waits, it replaces a signal's exception by one of its own.
        if not arrived or isinstance(interrupt, Terminated):
            raise
        ended = Terminated(arrived[0])
        for note in getattr(interrupt, "__notes__", []):
            ended.add_note(note)
        raise ended from interrupt
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)


def _name_rest(error: BaseException) -> str:
    """Return the run's note on where and how it resumes."""
    return "; ".join(getattr(error, "__notes__", ["run the same command again"]))


def _complain(program: Program, error: object) -> None:
    """Print an error in one line."""
    print(f"{program.name}: {_printable(' '.join(str(error).split()))}", file=sys.stderr)


def _print(text: str) -> None:
    """Print text with user captions and names, while the output is open."""
    try:
        write_line(_printable(text), sys.stdout)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _printable(text: str) -> str:
    """Return the text with all characters escaped that a terminal would interpret."""
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)


def _run(program: Program, argv: Sequence[str]) -> None:
    if "_ARGCOMPLETE" in os.environ:
        from raycomp.help import complete  # only a shell that completes a word needs it

        complete(program)
    name = next((word for word in argv if not word.startswith("-")), None)
    if name is not None and name not in program.folders:
        nearest = _name_nearest(name, program.folders)
        raise ValueError(f"{name!r}: must be a command{nearest}; see {program.name} --help")
    asked = [word for word in argv if word in ("--help", "-h", "--help-all", "--version")]
    if name is None or asked:
        if asked[:1] == ["--version"]:
            _print(f"raycomp {version('raycomp')}")
        else:
            from raycomp.help import describe_command, describe_program

            is_whole = "--help-all" in asked
            _print(describe_command(program, name, is_whole) if name else describe_program(program))
        return
    command, words = program.commands[name], [*argv]
    words.remove(name)
    line = Reader(command, words).read()
    is_run, is_dry = "--out" in command.arguments.split(), "--dry-run" in line.flags
    if is_run and is_dry and "--atlas" not in line.flags:
        # Without --out nothing of a folder is checked: there is none of this name.
        line.flags.setdefault("--out", os.path.join(gettempdir(), f"raycomp-{uuid.uuid4().hex}"))
    values = read_values(name, command, line)
    if "--save-config" in line.flags:
        path = str(line.flags["--save-config"])
        config = next(value for value in values if isinstance(value, command.config))
        save_config(config, path)
        _print(f"{path}: holds every option; run {program.name} {name} {path} --out DIR")
        return
    if is_run:
        _print(f"{name}: checking {line.options.get('input') or ', '.join(line.words) or 'the options'}")
    function = import_object(command.function)
    from raycomp.data.files import dry_run
    from raycomp.data.parquet import keep_pandas_out
    from raycomp.data.runs import verify_whole  # PyArrow, which the command needs anyway

    keep_pandas_out()
    with verify_whole("--verify" in line.flags), dry_run(is_dry):
        if is_run:
            place = Path(str(line.flags.get("--out", "")))
            made = [one for one in (place, *place.parents) if not one.exists()]
            try:
                function(*values, say=_print)
            finally:
                with suppress(OSError):  # a refused command leaves no folder
                    for one in made:
                        one.rmdir()
            return
        texts = function(*values)
        for text in [texts] if isinstance(texts, str) else texts:
            _print(text)
