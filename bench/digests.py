"""Digests of everything that commands write: an oracle for rewrites.

    python -m bench.digests OUT.csv --core       # some 6 minutes on 2 cores, against the committed table
    python -m bench.digests OUT.csv              # every case
    python -m bench.digests OUT.csv --only curate,select      # some commands or cases, and the runs they read
    python -m bench.digests OUT.csv --new        # no comparison: the table of this commit

Runs the command lines of ``bench.digest_cases``, each as a process of its own and on CPUs, below a temporary
folder, and writes a line (case, command, file, bytes, sha256) for every input and every result file, and one
for the exit code. Exit code 1 if a line differs from the committed table (bench/results/digests.csv), if a
case differs from the same run on the other executor, or if a command ends otherwise than it
should. Cases that are not run are named. OUT_times.csv has the seconds of each command, and the CPU seconds
of it and the processes that it waited for (Ray's workers are not among them).

The last bits of scores and weights depend on the processor: on another one, make a table of the commit before
(--new) and name it by --against.

No case depends on a default: ``digest_options.json`` has the value of every option of every command, and is
the config file that a case changes by its own ``--set``. ``digest_names.csv`` maps names of then to names of
now (kind, where, old, new, reason):

- option: of the command ``where``; new empty: removed, and left out of the lines;
- command: old may have two words ("probe theory"); new "lab screen" is python -m lab screen; new empty:
  removed, its cases are named with the reason;
- column: of a table that is written; module: that the user's code in in/own.py imports;
- default: of the option ``old``, which has no such value any more; new as json;
- case: new empty: what it shows was removed or has changed for this reason, and is not run.

A name that is neither known (``list_options``) nor mapped ends the run before the first command.

What counts of a file and what does not:

- result files byte by byte: scores, subsets, shards, negatives, exports, weights, tables, figures. Where the
  temporary folder's path stands in a file, it is taken out first. Of Parquet also the values by column, under
  the columns' old names (FILE: values), which a renamed column leaves as they are;
- of json and jsonl lines without the keys that are times or name folders (``UNSTEADY``), of ``continual.csv``
  without the rows of seconds, of ``trials.parquet`` the values of the other columns;
- of report.html the text of its tables, the numbers of the other visible text, and the pictures, without the
  sections on times, commands and versions (``SKIPPED``), and without the check of the scorer, whose shuffled
  pairs depend on how rows fall into blocks;
- of run.json the section ``funnel``, and of ``fingerprint`` models and their like (``FINGERPRINTS``);
- what ``show``, ``explain``, ``list`` and ``verify`` print, without times and the table of phases; of a
  refusal the line on standard error;
- left out, since they hold times: logs/, tensorboard/; since they are for the run alone: work/, state/,
  checkpoints/, leaves/, versions/; since it follows from the other files: manifest.json.
"""

import argparse
import csv
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from bench.digest_cases import CASES, CORE, Case
from bench.digest_inputs import has_photos, write_images, write_inputs

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "bench" / "results" / "digests.csv"
OPTIONS, NAMES = (ROOT / "bench" / name for name in ("digest_options.json", "digest_names.csv"))
TIME_COLUMNS = ("case", "command", "seconds", "cpu_seconds")
LEFT_OUT = re.compile(
    r"^(logs|tensorboard|work|checkpoints|state|leaves|versions)/|(^|/)(manifest|run)\.json$|(^|/)report\.html$"
)
NOT_AGAIN = re.compile(rb'(fingerprint\s+`|root: |"id":")[0-9a-f]{12,64}| in [\d.,]+ (s|min)\b')
"""What text holds of a run's own: digests with times or salts in them, and how long it took."""
SLOW_PASS = re.compile(rb"(?m)^.* in \d+ s, .*/s\n")
"""The line of a pass that took seconds, which another run does not print."""
UNSTEADY = {"seconds", "train_s", "samples_per_s", "started", "config"}
FINGERPRINTS = set("shards scorer model parser lexicon nonces preprocessing architecture".split())
SKIPPED = re.compile(r"(?i)\btimes?\b|commands?\b|versions|\bruns?\b|speed|check of the scoring model")
WITHOUT_OUT = ("update", "show", "list", "explain", "verify")
EXIT_CODE, STDOUT, STDERR, INPUTS = "exit code", "stdout", "stderr", "inputs"
TIMEOUT_S = 1800.0
AT_ONCE = 2


class Line(NamedTuple):
    """A result file as it was written; the first 16 hex digits of its SHA-256."""

    case: str
    command: str
    file: str
    bytes: str
    sha256: str


class Name(NamedTuple):
    """A line of ``digest_names.csv``."""

    kind: str
    where: str
    old: str
    new: str
    reason: str


@dataclass(frozen=True)
class Place:
    """Where the commands are run, and what they share."""

    folder: Path
    names: Mapping[tuple[str, str, str], Name]
    llm: str
    settings: Sequence[str] = ()

    def find(self, kind: str, where: str, old: str) -> Name | None:
        """Return what has become of a name, None if it is the same."""
        return self.names.get((kind, where, old))

    def run(self, words: Sequence[str]) -> tuple[int, bytes, bytes, float]:
        """Run a command as a user of this checkout would, without a GPU.

        Returns its exit code, what it printed on both streams, its CPU seconds.
        """
        changes = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        changes |= {"RAY_worker_niceness": "0"}  # workers are as urgent as all else
        changes |= {"RAYCOMP_CACHE": str(self.folder / "cache"), "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
        environment = {**os.environ, **changes}
        for name in ("RAY_ADDRESS", "PYTHONDONTWRITEBYTECODE", "OPENAI_API_KEY"):
            environment.pop(name, None)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(
                words, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
            timer = threading.Timer(TIMEOUT_S, process.kill)
            timer.start()
            _, status, usage = os.wait4(process.pid, 0)
            timer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            return process.returncode, out.read(), err.read(), usage.ru_utime + usage.ru_stime


def run_case(case: Case, place: Place) -> tuple[list[Line], float, float]:
    """Run one case; return its lines, its seconds and its CPU seconds."""
    out = place.folder / case.name
    if case.copies:
        shutil.copytree(place.folder / case.copies, out)
    started = time.perf_counter()
    code, printed, complained, cpu_s = place.run(make_command(case, place))
    seconds = time.perf_counter() - started
    if code != case.exit_code:
        print(f"{case.name}: exit code {code}\n{complained.decode()[-3000:]}", file=sys.stderr)
    found: dict[str, bytes] = {}
    if case.exit_code:
        found = {STDERR: SLOW_PASS.sub(b"", complained)}
    elif case.is_printed:
        found = {STDOUT: strip_times(printed)}
    else:
        columns = {one.new: one.old for one in place.names.values() if one.kind == "column"}
        found = read_results(out, columns)
        for name in found:
            if "report.html: " in name:  # a run is named by its folder
                found[name] = re.sub(rb"(?m)^%b$" % case.name.encode(), b"", found[name])
    lines = [Line(case.name, case.command, EXIT_CODE, "", str(code))]
    lines += [
        digest(case.name, case.command, name, data, place.folder) for name, data in sorted(found.items())
    ]
    return lines, seconds, cpu_s


def digest(case: str, command: str, name: str, data: bytes, folder: Path) -> Line:
    """Return the line of a file; the temporary folder's own path does not count."""
    for name_of_folder in (str(folder), str(folder).replace("_", "&#95;")):  # as Markdown has it
        data = data.replace(name_of_folder.encode(), b"")
    if name.endswith((".txt", ".md")) or name in (STDOUT, STDERR):
        data = b" ".join(data.split())  # where lines break follows from the path's length
    return Line(case, command, name, str(len(data)), hashlib.sha256(data).hexdigest()[:16])


def digest_inputs(folder: Path) -> list[Line]:
    """Return a line for the processor and one for each input: where these differ, all else may."""
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    lines = [Line("processor", INPUTS, found[1] if found else "unknown", "", "")]
    for path in sorted((folder / "in").iterdir()):
        files = sorted(one for one in path.rglob("*") if one.is_file()) or [path]
        data = b"".join(hashlib.sha256(one.read_bytes()).digest() for one in files)
        lines.append(digest(f"in/{path.name}", INPUTS, "all", data, folder))
    return lines


def make_command(case: Case, place: Place) -> list[str]:
    """Return what to run for a case: names of now, and all options in a config file."""
    command, *words = shlex.split(case.line)
    if words and place.find("command", "", f"{command} {words[0]}"):
        command = f"{command} {words.pop(0)}"
    words = list(rename_options(command, words, place))
    if "{uid}" in words:
        kept = pq.read_table(place.folder / "paper" / "subset" / "kept.parquet")
        words[words.index("{uid}")] = kept["uid"][0].as_py()
    if "{images}" in case.line:
        write_images(place.folder / "rules" / "negatives", place.folder / "in" / "images.parquet")
    known = {"{llm}": place.llm, "{out}": case.name, "{images}": "in/images.parquet"}
    for mark, value in known.items():
        words = [word.replace(mark, value) for word in words]
    for setting in place.settings:
        if setting.partition("=")[0] in list_paths(command, place.names):
            words += ["--set", setting]
    config = place.folder / "options" / f"{command}.json"
    if config.exists() and "--set" in words:
        words.insert(int(command == "probe"), str(config.relative_to(place.folder)))
    if command not in WITHOUT_OUT and "--out" not in words:
        words += ["--out", case.name]
    moved = place.find("command", "", command)
    program = (moved.new if moved else command).split()
    program = program if program[0] == "lab" else ["raycomp", *program]
    return [sys.executable, "-m", *program, *words]


def rename_options(command: str, words: Iterable[str], place: Place) -> Iterator[str]:
    """Yield the words of a line, options under their names of now, without those that were removed."""
    pairs = iter(words)
    for word in pairs:
        if word not in ("--set", "--space"):
            yield word
            continue
        setting = next(pairs)
        path, equals, value = setting.partition("=")
        renamed = place.find("option", command, path)
        if renamed is None:
            yield from (word, setting)
        elif renamed.new:
            yield from (word, f"{renamed.new}{equals}{value}")


def write_options(place: Place) -> None:
    """Write the config files: every option of then with its value, under its name of now. A default that is
    not a value any more is replaced by that of its line of ``digest_names.csv``, as json."""
    (place.folder / "options").mkdir()
    for command, values in json.loads(OPTIONS.read_text()).items():
        kept = {}
        for path, value in values.items():
            renamed = place.find("option", command, path)
            changed = place.find("default", command, path)
            value = json.loads(changed.new) if changed else value
            if renamed is None or renamed.new:
                kept[renamed.new if renamed else path] = value
        (place.folder / "options" / f"{command}.json").write_text(json.dumps(kept))


def list_paths(command: str, names: Mapping[tuple[str, str, str], Name]) -> set[str]:
    """Return the paths of the options that a command of then has now, and of groups that may be none."""
    from lab import LAB
    from raycomp.config import list_options
    from raycomp.config.commands import RAYCOMP
    from raycomp.config.options import iterate_options, split_none

    known = RAYCOMP.commands | {f"lab {name}": one for name, one in LAB.commands.items()}
    moved = names.get(("command", "", command))
    found = known.get(moved.new if moved else command)
    if not found or not found.config:
        return set()
    groups = {one.path for one in iterate_options(found.config) if one.group and split_none(one.hint)[1]}
    return groups | {one.path for one in list_options(found.config, found.mark)}


def find_unknown(cases: Iterable[Case], names: Mapping[tuple[str, str, str], Name]) -> list[str]:
    """Return a line for each option, of a case or of ``digest_options.json``, without a name of now."""
    used = {(command, path) for command, values in json.loads(OPTIONS.read_text()).items() for path in values}
    for case in cases:
        found = re.findall(r"--(?:set|space) \W?([\w.]+)=", case.line)
        used |= {(case.command, path) for path in found if case.name not in MISNAMED}
    reported = []
    for command, path in sorted(used):
        moved, renamed = names.get(("command", "", command)), names.get(("option", command, path))
        now = renamed.new if renamed else path
        is_gone = not now or (moved is not None and not moved.new)
        if not is_gone and now not in list_paths(command, names) | SWEPT.get(command, set()):
            reported.append(f"{command}: {now}: is not an option; digest_names.csv must map it")
    return reported


MISNAMED = ("refused-unknown-option", "refused-unknown-command", "refused-not-attributed")
"""Refusals of a name; their options are not known."""
SWEPT = {"sweep": {"attribute.keep", "train.learning_rate", "trust.quantile"}}
"""Options of other commands that the space of a sweep names."""


def freeze_options() -> dict[str, dict[str, Any]]:
    """Return the default of every option of every command that takes a config file."""
    from raycomp.config import flatten, to_dict
    from raycomp.config.commands import FOLDERS, import_command

    commands = {name: import_command(name) for name in FOLDERS}
    return {
        name: dict(flatten(to_dict(command.config())))
        for name, command in commands.items()
        if "job" in command.arguments.split()
    }


def read_results(folder: Path, columns: Mapping[str, str]) -> dict[str, bytes]:
    """Return what counts of a run's folder by name: result files, pages, two sections of run.json."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    found = {}
    for name, path in names.items():
        if name.endswith("report.html"):
            found |= {f"{name}: {part}": data for part, data in read_page(path.read_text()).items()}
        if LEFT_OUT.search(name):
            continue
        found[name] = read_file(path)
        if name.endswith(".parquet"):
            found[f"{name}: values"] = read_values(path, columns)
    if "run.json" in names:
        run = json.loads(names["run.json"].read_bytes())
        kept = FINGERPRINTS | ({"input"} if run["kind"] == "curate" else set())
        marks = {name: value for name, value in run.get("fingerprint", {}).items() if name in kept}
        found["run.json: funnel"] = write_json(run.get("funnel"))
        found["run.json: fingerprint"] = write_json(marks)
    return found


def read_file(path: Path) -> bytes:
    """Return the bytes of a file that repeat."""
    data = path.read_bytes()
    if path.suffix == ".json" and any(f'"{key}"'.encode() in data for key in UNSTEADY):
        return write_json(json.loads(data))
    if path.suffix == ".jsonl":
        return b"\n".join(write_json(json.loads(line)) for line in data.splitlines())
    if path.suffix in (".md", ".js"):
        return NOT_AGAIN.sub(b"", data)
    if path.name == "continual.csv":
        return b"\n".join(line for line in data.splitlines() if b",seconds," not in line)
    if path.name == "trials.parquet":
        table = pq.read_table(path).drop_columns(["seconds"])
        return f"{table.schema}{table.to_pylist()}".encode()
    return data


def read_values(path: Path, columns: Mapping[str, str]) -> bytes:
    """Return the values of a table by column, sorted by the columns' old names."""
    table = pq.read_table(path)
    kept = sorted((columns.get(name, name), name) for name in table.column_names if name != "seconds")
    return repr(
        [(old, str(table.schema.field(name).type), table[name].to_pylist()) for old, name in kept]
    ).encode()


def write_json(content: Any) -> bytes:
    """Return content as json, without the keys that are not the same again."""
    return json.dumps(drop_unsteady(content), sort_keys=True).encode()


def drop_unsteady(content: Any) -> Any:
    """Return what json holds without UNSTEADY keys, at any depth."""
    if isinstance(content, dict):
        kept = {key: value for key, value in content.items() if UNSTEADY.isdisjoint(key.split("."))}
        return {key: drop_unsteady(value) for key, value in kept.items()}
    return [drop_unsteady(one) for one in content] if isinstance(content, list) else content


def strip_times(data: bytes) -> bytes:
    """Return printed text without clocks and without the table of phases."""
    blocks = re.sub(rb"\d{4}-\d\d-\d\dT[\d:]+\+00:00", b"", data).split(b"\n\n")
    return NOT_AGAIN.sub(b"", b"\n\n".join(one for one in blocks if not one.startswith(b"phase")))


class Page(HTMLParser):
    """Reads a page: the text of its tables, the numbers of its other text, its pictures.

    Not of sections whose heading is SKIPPED, nor of figures of speed; and no number that is a duration, a
    date or in a path.
    """

    _TIMES = re.compile(
        r"\d{4}-\d\d-\d\d\S*|[\d.,]+ ?(s|ms|min|h|MB|GB|\w+/s)\b|\S*/\S*"
        r"|it scores a pair above a shuffled pair.*"
    )
    _SPEED = re.compile(r"(?i)per second|/s\b|seconds|\bspeed\b")
    _NUMBER = re.compile(r"[-\u2212+]?\d[\d,.]*")

    def __init__(self, text: str):
        super().__init__()
        self.tables: list[str] = []
        self.numbers: list[str] = []
        self.pictures: list[str] = []
        self._within: list[str] = []
        self._headings = {"h1": "", "h2": "", "h3": ""}
        self._figure, self._num_before = "", 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Enter an element."""
        if tag in ("figure", "svg") and not self._is_figure:
            self._figure, self._num_before = "", len(self.numbers)
        if tag in self._headings:
            self._headings |= {level: "" for level in self._headings if level >= tag}
        source = dict(attributes).get("src") or ""
        if source.startswith("data:") and not self._is_skipped:
            self.pictures.append(source)
        if tag not in ("img", "meta", "br", "hr", "input", "link", "source", "wbr", "col"):
            self._within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Leave an element, and those in it that were not closed."""
        was_figure = self._is_figure
        while tag in self._within and self._within.pop() != tag:
            pass
        if was_figure and not self._is_figure and self._SPEED.search(self._figure):
            del self.numbers[self._num_before :]

    def handle_data(self, data: str) -> None:
        """Take text."""
        text = " ".join(data.split())
        self._figure += f" {text}"
        if levels := [tag for tag in self._within if tag in self._headings]:
            self._headings[levels[-1]] += f" {text}"
        elif text and not self._is_skipped and not {"style", "script", "title", "nav"} & set(self._within):
            text = self._TIMES.sub("", text)
            if "table" in self._within:
                self.tables.append(text)
            else:
                self.numbers += self._NUMBER.findall(text)

    @property
    def _is_figure(self) -> bool:
        return bool({"figure", "svg"} & set(self._within))

    @property
    def _is_skipped(self) -> bool:
        return any(map(SKIPPED.search, self._headings.values()))


def read_page(text: str) -> dict[str, bytes]:
    """Return what counts of a page."""
    page = Page(text)
    return {name: "\n".join(getattr(page, name)).encode() for name in ("tables", "numbers", "pictures")}


class Scripted(BaseHTTPRequestHandler):
    """A language model that follows a script: the answer depends on the request's text alone."""

    _COLOURS = ("red", "blue", "green", "yellow")

    def log_message(self, *_: Any) -> None:
        """Be silent."""

    def do_POST(self) -> None:
        """Answer with the caption, a colour replaced by the next one; every fifth answer is not JSON."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = str(body["messages"][-1]["content"])
        caption = re.search(r"<caption>(.*?)</caption>", content, re.DOTALL)
        text = json.loads(caption[1]) if caption else content
        for colour, other in zip(self._COLOURS, self._COLOURS[1:], strict=False):
            if colour in text:
                text = text.replace(colour, other, 1)
                break
        answer = json.dumps({"negative": text})
        if int(hashlib.sha256(content.encode()).hexdigest(), 16) % 5 == 0:
            answer = "I would rather not."
        data = json.dumps({"choices": [{"message": {"content": answer}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serve_scripted() -> Iterator[str]:
    """Run the scripted model; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()


def choose_cases(
    only: Collection[str], core: bool, names: Mapping[tuple[str, str, str], Name]
) -> tuple[list[Case], set[str], dict[str, str]]:
    """Return the cases to run in their order, the names of those whose lines are wanted, and of each case
    that was removed the reason."""
    removed = {}
    for case in CASES:
        gone = names.get(("case", "", case.name)) or names.get(("command", "", case.command))
        if gone and not gone.new:
            removed[case.name] = gone.reason
    cases = [case for case in CASES if case.name not in removed]
    wanted = {
        case.name
        for case in cases
        if (case.group == CORE or not core) and (not only or case.command in only or case.name in only)
    }
    needed = set(wanted)
    for case in reversed(cases):
        if case.name in needed:
            needed |= {one.name for one in case.needs(cases)}
    return [case for case in cases if case.name in needed], wanted, removed


def run_cases(cases: Sequence[Case], place: Place) -> Iterator[tuple[Case, list[Line], float, float]]:
    """Run the cases, two at a time, those on Ray one after another; yield the results as they come."""
    ray, waiting, ended = threading.Lock(), list(cases), set[str]()
    running: dict[Future[Any], Case] = {}

    def start(case: Case) -> tuple[list[Line], float, float]:
        if "executor=ray" not in case.line and case.command != "sweep":
            return run_case(case, place)
        with ray:
            return run_case(case, place)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        while waiting or running:
            ready = [one for one in waiting if all(need.name in ended for need in one.needs(cases))]
            assert ready or running, f"cases that wait for each other: {[one.name for one in waiting]}"
            for case in ready[: AT_ONCE - len(running)]:
                waiting.remove(case)
                running[pool.submit(start, case)] = case
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                case = running.pop(future)
                ended.add(case.name)
                yield (case, *future.result())


def compare(
    before: Mapping[tuple[str, str], Line], after: Mapping[tuple[str, str], Line], renamed: bool
) -> list[str]:
    """Return a line for each file that is missing, new or changed.

    ``renamed``: columns have other names, so that the bytes of tables differ where their values do not.
    """
    reported = []
    for key in sorted(before.keys() | after.keys()):
        how = "missing" if key not in after else "new" if key not in before else "changed"
        values = (key[0], f"{key[1]}: values")
        if before.get(key) == after.get(key):
            continue
        if renamed and values in before and before[values] == after.get(values):
            continue
        reported.append(f"{how:8}{key[0]}: {key[1]}")
    return reported


def compare_executors(cases: Iterable[Case], lines: Mapping[tuple[str, str], Line]) -> list[str]:
    """Return a line for each file in which a case differs from the one that it must equal."""
    reported = []
    for case in cases:
        own, other = (
            {file: line[3:] for (name, file), line in lines.items() if name == one}
            for one in (case.name, case.same_as)
        )
        if case.same_as and own and other:
            differing = sorted(file for file in own.keys() | other.keys() if own.get(file) != other.get(file))
            reported += [f"differ  {case.name} and {case.same_as}: {file}" for file in differing]
    return reported


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def read_table(path: Path) -> dict[tuple[str, str], Line]:
    """Return the lines of a table by case and file."""
    with path.open(newline="") as file:
        lines = [Line(*row) for row in csv.reader(file)][1:]
    return {(line.case, line.file): line for line in lines}


def read_names() -> dict[tuple[str, str, str], Name]:
    """Return the lines of ``digest_names.csv``; each has a reason."""
    with NAMES.open(newline="") as file:
        names = [Name(*row) for row in csv.reader(file)][1:]
    assert all(one.reason for one in names)
    return {one[:3]: one for one in names}


def write_all_inputs(folder: Path, shared: Path | None, names: Iterable[Name]) -> list[Line]:
    """Write the inputs; return their lines, of the user's code before its modules are renamed."""
    write_inputs(folder / "in", shared)
    lines = digest_inputs(folder)
    code = (folder / "in" / "own.py").read_text()
    for one in names:
        if one.kind == "module":
            code = re.sub(rf"\b{re.escape(one.old)}\b", one.new, code)
    (folder / "in" / "own.py").write_text(code)
    return lines


def make_table(
    cases: Sequence[Case], wanted: Collection[str], place: Place, args: Any, inputs: list[Line]
) -> bool:
    """Run the cases and write both tables, anew after each; return whether all ended as they should."""
    lines, times, is_well, order = inputs, [], True, [case.name for case in CASES]
    for number, (case, found, seconds, cpu_s) in enumerate(run_cases(cases, place), 1):
        print(
            f"{number} of {len(cases)}: {case.name}: {len(found)} lines, {seconds:.1f} s, {cpu_s:.1f} CPU s",
            flush=True,
        )
        is_well &= found[0].sha256 == str(case.exit_code)
        times.append((case.name, case.command, f"{seconds:.1f}", f"{cpu_s:.1f}"))
        lines = lines + (found if case.name in wanted else [])
        lines.sort(key=lambda line: order.index(line.case) if line.case in order else -1)
        times.sort(key=lambda row: order.index(row[0]))
        write_rows(args.out, Line._fields, lines)
        write_rows(args.out.with_name(f"{args.out.stem}_times.csv"), TIME_COLUMNS, times)
    return is_well


def main() -> int:
    """Read the command line, make the table, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    parser.add_argument("--core", action="store_true", help="the short run")
    parser.add_argument("--only", default="", help="commands or cases, joined with commas")
    parser.add_argument("--new", action="store_true", help="compare with no table")
    parser.add_argument("--against", type=Path, metavar="BEFORE.csv", default=TABLE, help="another table")
    parser.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="for every command that has it"
    )
    parser.add_argument("--without-photos", action="store_true", help="leave out the cases on real photos")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the runs in this new folder")
    parser.add_argument("--freeze", action="store_true", help="only write digest_options.json anew")
    args = parser.parse_args()
    if args.freeze:
        OPTIONS.write_text(json.dumps(freeze_options(), indent=1, sort_keys=True) + "\n")
        return 0
    args.out.parent.mkdir(parents=True, exist_ok=True)
    names = read_names()
    cases, wanted, removed = choose_cases({one for one in args.only.split(",") if one}, args.core, names)
    shared = Path(os.environ.get("RAYCOMP_SHARED", ROOT.parent / "shared"))
    if any(case.needs_photos for case in cases) and not has_photos(shared):
        if not args.without_photos:
            parser.error(f"RAYCOMP_SHARED={shared}: has no real photos; --without-photos leaves them out")
        cases = [case for case in cases if not case.needs_photos]
    unknown = find_unknown(cases, names)
    if unknown:
        parser.error("\n".join(unknown))
    run = {case.name for case in cases}
    for name in (one.name for one in CASES if one.name not in run):
        print(f"not run: {name}{': removed: ' + removed[name] if name in removed else ''}")
    folder = Path(tempfile.mkdtemp(prefix="raycomp_digests_")) if args.keep is None else args.keep.resolve()
    try:
        with serve_scripted() as llm:
            place = Place(folder, names, llm, tuple(args.set))
            inputs = write_all_inputs(folder, shared if has_photos(shared) else None, names.values())
            write_options(place)
            is_well = make_table(cases, wanted & run, place, args, inputs)
    finally:
        if args.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    after = read_table(args.out)
    reported = compare_executors(cases, after)
    if not args.new:
        before = {
            key: line
            for key, line in read_table(args.against).items()
            if line.case in run & wanted or line.command == INPUTS
        }
        reported += compare(before, after, any(one.kind == "column" for one in names.values()))
    print("\n".join([*reported, f"{len(reported)} lines differ, of {len(after)}"]))
    return 0 if is_well and not reported else 1


if __name__ == "__main__":
    sys.exit(main())
