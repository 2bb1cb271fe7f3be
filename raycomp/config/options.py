"""The description of an option, the checks of user input, and the options that several commands share.

An error names field, value and range. A mark is metadata of a dataclass field; the mark of a group applies to
all its options. The check of a value is metadata too: ``field(default=1, metadata=FREE | within("between 1
and 16"))``. From top to bottom: the errors that end a command and the line about a wait, checks, groups and
their options, the shared groups, and search spaces: the values of an option that a sweep tries.
"""

import ast
import inspect
import operator
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import lru_cache, partial
from math import copysign, inf, isfinite
from threading import Timer
from typing import Annotated, Any, ClassVar, NamedTuple, TextIO

MOST = 10_000_000
"""Maximum of options that count rows, scenes or steps: a larger value is a typing error."""
MOST_WHOLE = 2**53 - 1
"""Maximum magnitude of whole-number options: every json reader and every array can hold these."""
_MOST_DIGITS = len(str(MOST_WHOLE))


class UserError(ValueError):
    """An error found by a worker that the user can fix; a plain ValueError from there is a bug."""


class DryRun(Exception):
    """Ends a dry run after all checks; its text reports what would run and what it costs."""


class Terminated(KeyboardInterrupt):
    """A signal, by number, asked the process to end; handled like an interrupt, except for the exit code."""

    @property
    def exit_code(self) -> int:
        """The exit code that shells and clusters expect of such a process: 143 after SIGTERM."""
        return 128 + self.args[0]


class TooMuchBadData(Exception):
    """More of the input is bad than ``max_bad_fraction`` allows, or missing than ``max_missing_fraction``."""


class ClusterFailed(Exception):
    """Ray did not start, or lost nodes, workers or its head, so that the run cannot continue on it now."""

    exit_code = 5


class LeaseLost(Exception):
    """Another run took over the output folder; nothing more may be committed there."""


_AFTER_S = 3.0


@contextmanager
def say_if_slow(what: str) -> Iterator[None]:
    """Print ``what`` to standard error once the block takes longer than three seconds."""
    timer = Timer(_AFTER_S, lambda: write_line(f"{what} ...", sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def write_line(text: str, stream: TextIO) -> None:
    """Print a line above the open progress bars, if there are any."""
    bars = sys.modules.get("tqdm")  # imported once a phase may have a bar
    # Without a bar tqdm has no lock yet; an interrupt while it makes one would end in an error of its own.
    with bars.tqdm.external_write_mode(stream) if bars and bars.tqdm._instances else nullcontext():
        print(text, file=stream, flush=True)


def check_share(name: str, value: float) -> None:
    """Raise ValueError unless an option is a share, 0 to 1; -0.0 is refused as a duplicate of 0.0."""
    wanted = f"between 0 and 1, such as {value / 100:g}" if 1 < value <= 100 else "between 0 and 1"
    check(0 <= value <= 1 and copysign(1, value) > 0, name, value, wanted)


def read_share_or_none(value: str | float | None) -> float | None:
    """Return the number that a value is, none where it is none, as the name of an input."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def check_choice(name: str, value: str, choices: Sequence[str], more: str = "") -> None:
    """Raise ValueError, naming the closest valid value, unless an option has a valid value."""
    if value not in choices:
        by_lower = {choice.lower(): choice for choice in choices}
        closest = get_close_matches(str(value).lower(), by_lower, 1)
        hint = f"; the closest is {by_lower[closest[0]]}" if closest else ""
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(choices)}{more}{hint}")


def read_span(name: str, value: int | str) -> tuple[int, int]:
    """Return the least and the most of an option that holds N or MIN..MAX.

    Raises ValueError unless both are whole numbers and 1 <= MIN <= MAX.
    """
    least, dots, most = str(value).partition("..")
    parts = (least, most if dots else "1")
    fits = all(part.isdecimal() and part.isascii() and len(part) < _MOST_DIGITS for part in parts)
    span = (int(least), int(most or least)) if fits else (0, 0)
    check(1 <= span[0] <= span[1], name, value, "N or MIN..MAX, whole numbers, at least 1")
    return span


def check(condition: bool, name: str, value: Any, wanted: str) -> None:
    """Raise ValueError unless an option has a valid value."""
    if not condition:
        raise ValueError(f"{name}={value!r}: must be {wanted}")


class Machine(NamedTuple):
    """A kind of machine and what an hour of it costs."""

    name: str
    cpus: int
    gpus: int
    price_per_hour: float


def read_machine(name: str, value: str) -> Machine:
    """Parse NAME:CPUS:GPUS:PRICE. Raises ValueError naming the option."""
    parts = value.split(":")
    try:
        machine = Machine(parts[0], int(parts[1]), int(parts[2]), float(parts[3]))
        _, cpus, gpus, price = machine
        fits = len(parts) == 4 and cpus >= 1 and gpus >= 0 and 0 <= price < inf
    except (ValueError, IndexError):
        fits = False
    check(fits, name, value, "NAME:CPUS:GPUS:PRICE, as in g6.4xlarge:16:1:1.32")
    return machine


def read_label(name: str, value: str) -> tuple[str, str]:
    """Return key and value of KEY=VALUE. Raises ValueError naming the option."""
    key, equals, label = value.partition("=")
    check(bool(key and equals and label), name, value, "KEY=VALUE, as in ray.io/market-type=on-demand")
    return key, label


def checked_by(function: Callable[[str, Any], object], wanted: str = "") -> dict[str, Any]:
    """Return the metadata of a field whose value ``function`` checks, given the option's name and the value.

    A tuple is checked entry by entry; none is not checked. ``wanted`` are the valid values, for help.
    """
    return {"check": function, "wanted": wanted}


_BOUND = re.compile(r"(at least|at most|above|below|between|from|and|to|) ?(-?\d[\d.e+-]*|inf)")
_HOLDS = {
    **dict.fromkeys(("at least", "between", "from", ""), operator.ge),
    **dict.fromkeys(("at most", "and", "to"), operator.le),
    "above": operator.gt,
    "below": operator.lt,
}


def within(wanted: str) -> dict[str, Any]:
    """Return the metadata of a number with a range, in the words of its error.

    "between 1 and 64", "0 to 100", "from 0 to below 1", "at least 1", "above 0, and finite".
    """
    found = _BOUND.findall(wanted.replace(",", "").replace("finite", "below inf"))
    bounds = [(_HOLDS[word], float(number)) for word, number in found]

    def check_range(name: str, value: float) -> None:
        check(all(holds(value, bound) for holds, bound in bounds), name, value, wanted)

    return checked_by(check_range, wanted)


def count_from(least: int, most: int = MOST) -> dict[str, Any]:
    """Return the metadata of a whole number from ``least`` to ``most``."""
    return within(f"between {least:,} and {most:,}")


def one_of(choices: Sequence[str]) -> dict[str, Any]:
    """Return the metadata of a text with few valid values."""
    checked = checked_by(partial(check_choice, choices=choices), f"one of {', '.join(choices)}")
    return {**checked, "choices": tuple(choices)}


SHARE = checked_by(check_share, "between 0 and 1")
NUM_PIXELS = within("between 1 and 178,956,970")
"""Pillow refuses larger images."""
RATE, WEIGHT = within("above 0, and at most 1e+30"), within("between 0 and 1,000,000")
"""Learning rates; weight decays and weights of losses: their products stay within fp32."""


@dataclass(frozen=True)
class OptionGroup:
    """The base of config dataclasses: a new one checks the fields whose metadata have a check.

    ``class AlignConfig(OptionGroup, name="align")`` is named in errors as align.keep.
    """

    _prefix: ClassVar[str] = ""

    def __init_subclass__(cls, name: str = "") -> None:
        cls._prefix = f"{name}." if name else ""

    def __post_init__(self) -> None:
        for one in fields(self):
            if check_value := one.metadata.get("check"):
                value = getattr(self, one.name)
                for entry in value if isinstance(one.default, tuple) else (value,):
                    if entry is not None:
                        check_value(self._prefix + one.name, entry)

    def check_typed(self, options: Mapping[str, Any]) -> Any:
        """Return the config. Raises ValueError where an option that was typed has no effect; defaults may."""
        return self


# Results do not depend on it: a run resumes with any value, and the value is not part of a run's identity.
FREE = {"free": True}
# Scores do not depend on it: ``select`` may change it.
SELECT = {"select": True}
# ``update`` may change it: it needs at most the text tower for rows that have an alignment.
UPDATE = {"update": True}
# It names stored data. Names are made absolute before a run starts (data/inputs.py). The values are: the spec
# of inputs; a file, or else the name of something; a folder if it has a slash, or else the name of something;
# a folder under any name; FILE.py:NAME, or else the name of something.
INPUT, FILE, FOLDER, PLACE, CODE = ({"path": name} for name in ("input", "file", "folder", "place", "code"))
# It holds a share, or names an input.
SHARE_OR_INPUT = {"path": "share_or_input"}

# An option of this type accepts 90, 30s, 10m or 2h.
Seconds = Annotated[float, "seconds"]

# An option of this type accepts a number, or the minimum and the maximum: 4, 1..8.
Span = Annotated[int | str, "number or MIN..MAX"]

# An option of this type holds further arguments of a library, text by name: llm.engine.NAME=VALUE.
Arguments = Annotated[dict[str, str], "arguments"]

_NAMES = {
    str: "text",
    bool: "bool",
    int: "int",
    float: "float",
    Seconds: "seconds",
    Span: "N or MIN..MAX",
    Arguments: "NAME=VALUE",
}


@dataclass(frozen=True)
class Option:
    """One option of a config, or a group of them; ``owner`` is the dataclass that has it as a field."""

    path: str
    hint: Any
    default: Any
    owner: type
    marks: Mapping[str, Any]

    @property
    def group(self) -> Any:
        """The dataclass of a group, None of a single option."""
        return get_group(self.hint)

    @property
    def text(self) -> str:
        """The docstring below the field, which may be inherited, or else its group's; empty if the source is
        not available."""
        name, kinds = self.path.rpartition(".")[2], filter(is_dataclass, self.owner.__mro__)
        texts = (_read_texts(kind.__module__).get((kind.__name__, name)) for kind in kinds)
        own = next(filter(None, texts), None)
        return " ".join((own or (self.group.__doc__ if self.group else "")).split())


def list_options(kind: Any, mark: str | None = None) -> list[Option]:
    """Return the options of a config class, or those that have a mark, in the order of their fields."""
    options = (option for option in iterate_options(kind) if not option.group)
    return [option for option in options if mark is None or mark in option.marks]


def iterate_options(kind: Any, within: Option | None = None) -> Iterator[Option]:
    """Yield the groups and options of a config class, a group before its options."""
    hints = typing.get_type_hints(kind, include_extras=True)
    default = (within and within.default) or kind()
    prefix, marks = (f"{within.path}.", within.marks) if within else ("", {})
    for one in fields(kind):
        value = getattr(default, one.name)
        option = Option(prefix + one.name, hints[one.name], value, kind, {**marks, **one.metadata})
        yield option
        if option.group:
            yield from iterate_options(option.group, option)


def is_marked(kind: Any, path: str, mark: str) -> bool:
    """Whether the option at ``path``, or a group above it, has a mark; an unknown path takes its group's."""
    name, _, below = path.partition(".")
    found = next((one for one in fields(kind) if one.name == name), None)
    if found is None or mark in found.metadata:
        return found is not None
    group = get_group(typing.get_type_hints(kind)[name])
    return bool(group) and is_marked(group, below, mark)


def split_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without its None, and whether it has one."""
    choices = typing.get_args(hint)
    if type(None) not in choices:
        return hint, False
    return next(one for one in choices if one is not type(None)), True


def get_group(hint: Any) -> Any:
    """Return the dataclass that a field of this type holds, None if it holds a value."""
    kind, _ = split_none(hint)
    return kind if is_dataclass(kind) else None


def name_type(hint: Any) -> str:
    """Return the name of a type for readers: float, int or none, tuple of text."""
    kind, is_optional = split_none(hint)
    if typing.get_origin(kind) is tuple:
        return f"tuple of {name_type(typing.get_args(kind)[0])}"
    return _NAMES.get(kind, "group") + " or none" * is_optional


@lru_cache
def _read_texts(module: str) -> dict[tuple[str, str], str]:
    """Return the docstrings below the fields of a module's classes; only the source has them."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    return {
        (node.name, before.target.id): after.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for before, after in zip(node.body, node.body[1:], strict=False)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def as_setting(value: Any) -> str:
    """Return an option's value as ``--set`` reads it."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool | None) else str(value)


PRECISIONS = ("fp32", "tf32", "bf16")
ATTENTIONS = ("flash", "efficient", "math", "cudnn")


def _check_weights(name: str, weights: str) -> None:
    start, _, seed = weights.partition(":")
    fits = seed.isdecimal() and len(seed) <= 20 and int(seed) < 2**64
    check(fits or start != "random", name, weights, "random:WHOLE_NUMBER, a number below 2^64")


@dataclass(frozen=True)
class ModelConfig(OptionGroup, name="model"):
    """The CLIP model that is trained or evaluated. The scoring model is set by scorer.model."""

    name: str = field(default="ViT-B-32", metadata=FILE)
    """An open_clip architecture name, or a path or s3:// uri of an open_clip model config (json)."""
    weights: str = field(default="openai", metadata=FILE | checked_by(_check_weights))
    """An open_clip tag, a checkpoint's path or s3:// uri, a folder that ``raycomp train`` wrote or that has
    ``open_clip_config.json``, which then also sets the name, or ``random:SEED``."""
    precision: str = field(default="fp32", metadata=one_of(PRECISIONS))
    """fp32, tf32 or bf16, as in ``scorer.precision``; a model is trained in fp32."""
    pass_size: ClassVar[int | None] = None
    overlap: ClassVar[bool] = False
    compile: ClassVar[bool] = False
    graph: ClassVar[bool] = False
    attention: ClassVar[str | None] = None
    text_widths: ClassVar[tuple[int, ...]] = ()

    @property
    def model(self) -> str:
        """The name, as in ``ScorerConfig``."""
        return self.name

    @property
    def said_model(self) -> str:
        """The name of the model for messages."""
        return f"model.name={self.name!r}"

    @property
    def said_weights(self) -> str:
        """The weights for messages."""
        return f"model.weights={self.weights!r}"


@dataclass(frozen=True)
class ScorerConfig(OptionGroup, name="scorer"):
    """The CLIP model that scores. Defaults: Go et al. (arXiv 2605.22651), section 5.2."""

    model: str = field(default="ViT-B-16", metadata=FILE)
    """An open_clip architecture name, or a path to an open_clip model config (json)."""
    weights: str = field(default="openai", metadata=FILE | checked_by(_check_weights))
    """An open_clip tag, a checkpoint path, or ``random:SEED`` for test runs."""
    precision: str = field(default="fp32", metadata=one_of(PRECISIONS))
    """fp32, tf32 or bf16; normalisation and the cosine are always fp32. tf32 rounds the factors of matrix
    products and convolutions on a GPU to 10 bits; fp32 rounds neither. On CPUs tf32 and fp32 are the same."""
    batch_size: int | None = field(default=None, metadata=FREE | within("between 1 and 65536"))
    """Pairs that a scorer takes at a time; none = 32 per thread on CPUs, 512 on GPUs. Scores do not depend
    on it: the shape of a forward pass is fixed."""
    embedding_dtype: str = field(default="float32", metadata=one_of(("float32", "float16")))
    """float32 or float16: the type of stored image embeddings. With float16, drops are not exact."""
    pass_size: int | None = field(default=None, metadata=within("between 1 and 4096"))
    """Images of a forward pass, a fixed number: the last pass is filled up. none = 8 on CPUs, 64 on GPUs.
    On an H100, 256 alone is not faster. The last bits of scores depend on it, so scores of another size are
    those of another scorer."""
    overlap: bool = field(default=False, metadata=FREE)
    """Whether a scorer on a GPU prepares its next images, and the next call, while it computes. Scores do not
    depend on it. It takes host memory for some passes and GPU memory for a second call."""
    compile: bool = False
    """Whether ``torch.compile`` makes the image tower's kernels, which fewer passes over memory need; each
    scorer then takes a minute to start. The last bits of scores depend on it and on the versions of torch and
    Triton, so such scores are those of another scorer. On CPUs it needs a C++ compiler."""
    graph: bool = False
    """Whether a GPU launches all kernels of a pass of images together, as one CUDA graph. It needs a GPU, and
    memory for a second pass. Such scores are those of another scorer."""
    attention: str | None = field(default=None, metadata=one_of(ATTENTIONS))
    """flash, efficient, math or cudnn: the only backend that torch may take for attention; none = torch
    chooses. flash and cudnn need precision bf16. Texts whose attention has a mask take efficient in place of
    flash and cudnn: all texts without ``text_widths``, with it those that are encoded with counterfactuals.
    Scores of another backend are those of another scorer."""
    text_widths: tuple[int, ...] = ()
    """Widths of attention rows of texts, in tokens, ascending multiples of 8, such as 32,64,128,256; the last
    is at least twice the model's context. A pass then has rows of one width, a fixed number of them, and
    captions alone need no mask. none = as many widths as the texts have, in steps of 16. Meant for GPUs: on
    CPUs texts take longer. Such scores are those of another scorer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        name, widths = self.attention, self.text_widths
        fits = name in (None, "efficient", "math") or self.precision == "bf16"
        check(fits, "scorer.attention", name, "efficient or math, or scorer.precision bf16")
        fits = all(8 <= width <= 8192 and width % 8 == 0 for width in widths) and len(widths) <= 16
        ascends = list(widths) == sorted(set(widths))
        said = ",".join(map(str, widths))
        check(fits and ascends, "scorer.text_widths", said, "up to 16 ascending multiples of 8, 8 to 8192")

    @property
    def said_model(self) -> str:
        """The name of the model for messages."""
        return f"scorer.model={self.model!r}"

    @property
    def said_weights(self) -> str:
        """The weights for messages."""
        return f"scorer.weights={self.weights!r}"


@dataclass(frozen=True)
class ParserConfig(OptionGroup):
    """The English parser that finds phrases."""

    name: str = field(default="raycomp", metadata=FOLDER)
    """``raycomp`` for the parser in the package, else a spaCy pipeline by name or path."""


@dataclass(frozen=True)
class WavesConfig(OptionGroup, name="waves"):
    """How work is split into commits; results do not depend on it."""

    shards_per_wave: int = field(default=64, metadata=within("at least 1"))
    """Maximum number of input shards committed together."""
    commit_s: float = field(default=120.0, metadata=within("at least 0"))
    """Seconds after which the shards that are complete are committed, however few."""


@dataclass(frozen=True)
class ColumnsConfig(OptionGroup, name="columns"):
    """How tables of pairs are read: Parquet, CSV, TSV, JSON lines."""

    image: str | None = None
    """The column of images: bytes, paths, or Hugging Face's struct of both; none = the first of image, jpg,
    jpeg, png, webp, image_path, filepath, file_name, filename, file, path."""
    caption: str | None = None
    """The column of captions, a text or a list of texts; none = the first of caption, text, txt, TEXT,
    captions, title."""
    captions: str = field(default="first", metadata=one_of(("first", "longest", "all")))
    """Which of several captions of an image make a pair: first, longest, or all, each with a uid of its
    own (not with Parquet and tars)."""
    quotes: bool | None = None
    """Whether fields of CSV and TSV may stand in quotes, as RFC 4180 says; none = in CSV they may, in TSV a
    quote is a letter."""
    root: str | None = field(default=None, metadata=PLACE)
    """A folder that images may lie below, in addition to the folder of the table; paths are then relative to
    it, or absolute."""


@dataclass(frozen=True)
class ClusterConfig(OptionGroup, name="cluster"):
    """Where the work runs, and on how many resources; results do not depend on it."""

    executor: str = field(default="auto", metadata=one_of(("auto", "local", "ray")))
    """local: in this process, on CPUs, without Ray. ray: on a cluster, or on Ray started here. auto: local if
    no cluster is named, there is no GPU and the input is small. The first line reports the choice and its
    reason. Results are the same, and either executor resumes a run that the other started."""
    address: str | None = None
    """Ray address; none = RAY_ADDRESS or the cluster of a submitted job, else this machine."""
    num_cpus: int | None = field(default=None, metadata=within("at least 1"))
    """Threads of the local executor; none = one per core. Logical CPUs of Ray started here; none = as many as
    the stages need."""
    scorers: Span | None = field(default=None, metadata=checked_by(read_span))
    """Scoring actors: N, or MIN..MAX of a pool that grows with the work and with the cluster. none = one per
    GPU, including GPUs that the cluster's autoscaler may start; one without GPUs. Training has
    ``train.workers``."""
    gpu: bool | None = None
    """Whether scorers and training workers take a GPU each. none = if the cluster has one, or an autoscaler
    that offers one, for which the run waits ``cluster.wait_s``; true waits without end, false takes none."""
    mixed_gpus: bool = False
    """Whether scorers may have GPUs of several kinds. Scores of two kinds differ in the last bits, so such a
    run does not repeat to the same bytes. run.json counts the rows of each kind, logs/events.jsonl those of
    each shard."""
    wait_s: Seconds = field(default=900.0, metadata=within("at least 0, and finite"))
    """How long a run waits for the first GPU if ``cluster.gpu`` is none."""
    block_rows: int = field(default=64, metadata=within("between 1 and 1000000"))
    """Rows of a block between stages."""
    stall_s: float = field(default=1800.0, metadata=within("at least 1, and finite"))
    """Seconds without progress after which a phase is ended and restarted from its commits, at most three
    times in a row. Loading a model or reading up to a first block must take less."""
    price_per_hour: float | None = field(default=None, metadata=within("at least 0, and finite"))
    """Price of an hour of one worker, for ``--dry-run``; in any currency."""
    machines: tuple[str, ...] = field(default=(), metadata=checked_by(read_machine))
    """Kinds of machines that ``--dry-run`` compares, each NAME:CPUS:GPUS:PRICE; PRICE is per hour."""
    labels: tuple[str, ...] = field(default=(), metadata=checked_by(read_label))
    """Labels, each KEY=VALUE, of the nodes that run scorers, training workers and language models; none
    = any node. cluster.yaml labels its nodes ray.io/market-type=spot or on-demand."""

    @property
    def priced(self) -> list[Machine]:
        """The machines that are compared."""
        return [read_machine("cluster.machines", machine) for machine in self.machines]

    @property
    def selector(self) -> dict[str, str]:
        """The labels that are asked for, by key."""
        return dict(read_label("cluster.labels", label) for label in self.labels)

    @property
    def span(self) -> tuple[int, int] | None:
        """The fewest and the most scorers."""
        return None if self.scorers is None else read_span("cluster.scorers", self.scorers)


GRID, CHOICE, UNIFORM, LOGUNIFORM, FIXED = "grid", "choice", "uniform", "loguniform", "fixed"
KINDS = (GRID, CHOICE, UNIFORM, LOGUNIFORM)
_FORM = "OPTION=VALUE, or OPTION= and one of grid(A,B,...), choice(A,B,...), uniform(A,B), loguniform(A,B)"
_ENTRY = re.compile(
    r"(?P<option>[^\s=()]+)=(?:(?P<kind>\w+)\((?P<values>[^()]*)\)|(?P<value>[^\s()]+))(?:\s+|$)"
)


@dataclass(frozen=True)
class Domain:
    """The values tried for one option, as text that ``override`` reads; for a range both ends."""

    kind: str
    values: tuple[str, ...]

    @property
    def is_range(self) -> bool:
        """Whether it holds all numbers between two."""
        return self.kind in (UNIFORM, LOGUNIFORM)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest number of a range."""
        return float(self.values[0]), float(self.values[-1])

    def __str__(self) -> str:
        between = ";" if any("," in value for value in self.values) else ","
        return self.values[0] if self.kind == FIXED else f"{self.kind}({between.join(self.values)})"


def read_space(text: str) -> dict[str, Domain]:
    """Return the values tried for each option. Raises ValueError for an invalid entry, and an empty space."""
    found: dict[str, Domain] = {}
    text, start = text.strip(), 0
    while start < len(text):
        entry = _ENTRY.match(text, start)
        if entry is None:
            raise ValueError(f"space={text[start:]!r}: must be {_FORM}")
        if entry["option"] in found:
            raise ValueError(f"space: names {entry['option']} twice; remove one of them")
        found[entry["option"]] = _read_domain(entry)
        start = entry.end()
    if not found:
        raise ValueError(f"space: is empty, must have an entry: {_FORM}")
    return found


def write_space(space: Mapping[str, Domain]) -> str:
    """Return what ``read_space`` reads."""
    return " ".join(f"{option}={domain}" for option, domain in space.items())


def spell_values(option: str, domain: Domain, read: Callable[[str], Any]) -> Domain:
    """Return the domain of ``option`` with every value in canonical spelling.

    1e-3 and 0.001 become 0.001. ``read`` returns the value of a text.

    Raises ValueError, naming both, if two texts are one value, which would be tried twice.
    """
    found: dict[str, str] = {}
    for text in domain.values:
        spelled = spell_value(text, read(text))
        if spelled in found:
            said = f"{found[spelled]} and {text} are the same value"
            raise ValueError(f"space={option}={domain}: {said}; remove one of them")
        found[spelled] = text
    return replace(domain, values=tuple(found))


def spell_value(text: str, value: Any) -> str:
    """Return the canonical spelling of the value that was read from ``text``."""
    if isinstance(value, float) and value == 0:
        value = 0.0  # -0.0 is the same number
    return as_setting(value) or text  # a space has no entry for an empty list


def _read_domain(entry: re.Match[str]) -> Domain:
    said, kind = f"space={entry[0].strip()!r}", entry["kind"]
    if kind is None:
        return Domain(FIXED, (entry["value"],))
    if kind not in KINDS:
        raise ValueError(f"{said}: must be one of {', '.join(KINDS)}")
    between = ";" if ";" in entry["values"] else ","
    domain = Domain(kind, tuple(value.strip() for value in entry["values"].split(between)))
    if not all(domain.values):
        raise ValueError(f"{said}: must have a value before and after each {between!r}")
    if len({*domain.values}) < len(domain.values):
        raise ValueError(f"{said}: must have different values")
    if not domain.is_range:
        return domain
    with suppress(ValueError):
        low, high = map(float, domain.values)
        if isfinite(low) and isfinite(high) and low < high and (kind == UNIFORM or low > 0):
            return domain
    above = ", above 0" if kind == LOGUNIFORM else ""
    raise ValueError(f"{said}: must have two finite numbers{above}, the larger one last")
