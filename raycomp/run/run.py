"""The life of a run, for every command: open its folder, work, check the counts, publish, tidy up.

    with start_run("evaluate", config, find_fingerprint, out, say) as run:
        if run.is_finished:
            return run.record
        run.bind("cpu")
        ...  # results go below run.folder, what only an unfinished run needs below run.work
        run.close({"ok": 9, "no_image": 1}, {"right": 7, "wrong": 2, "no_image": 1}, kept="right")
        run.report("7 of 10 rows are right", page)
    return run.record

Nothing here starts Ray. A command that needs it connects inside the block (``executor.connect``) and binds
the session's device. Another command binds its own device, or none where no result depends on it.

One run at a time is in a folder: a lease file that its owner renews; it expires when the owner dies.
"""

import json
import os
import platform
import posixpath
import shlex
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from raycomp.config import (
    ClusterFailed,
    DryRun,
    LeaseLost,
    TooMuchBadData,
    UserError,
    as_setting,
    changed_options,
    get_config,
    is_marked,
    to_dict,
)
from raycomp.config.commands import name_command
from raycomp.data import files, runs
from raycomp.data.files import LEASE, Folder
from raycomp.data.runs import FINISHED
from raycomp.report.page import INDEX, link_index
from raycomp.run.executor import MOST_LOCAL_BYTES
from raycomp.run.progress import NoneUsable, keep_events, list_counts, log_event
from raycomp.words import OK

LEASE_S = 60.0
WAITING = "waiting:"
"""The start of the line that reports a wait for another run."""
_POLL_S = 0.5


class HeldError(UserError):
    """Another run holds the folder."""


class Lease:
    """A run's lease of its folder. Call ``check`` before every commit."""

    def __init__(self, folder: Folder, seconds: float):
        self.folder = folder
        self.seconds = seconds
        self.holder = uuid.uuid4().hex
        self.started = _now()
        self.stop = threading.Event()

    def content(self) -> dict[str, Any]:
        """Return the content of the lease file as of now."""
        return {
            "holder": self.holder,
            "host": socket.gethostname(),
            "place": read_pid_namespace(),
            "process": os.getpid(),
            "started": self.started.isoformat(timespec="seconds"),
            "expires": (_now() + timedelta(seconds=self.seconds)).isoformat(timespec="seconds"),
        }

    def check(self) -> None:
        """Raise LeaseLost unless the file still names this run."""
        try:
            found = read_lease(self.folder)
        except ValueError as error:
            raise LeaseLost(f"{error}; nothing more was committed") from error
        if found is None or found["holder"] != self.holder:
            who = (
                f"process {found['process']} on {found['host']} took" if found else "another process removed"
            )
            raise LeaseLost(f"{who} the lease of {self.folder.uri}; nothing more was committed")

    def renew(self) -> None:
        """Renew three times per lease period until stopped or lost. A failing storage is asked again."""
        while not self.stop.wait(self.seconds / 3):
            try:
                self.check()
                self.folder.write_json(self.content(), LEASE)
            except LeaseLost:
                return
            except OSError:
                continue


@contextmanager
def hold_lease(folder: Folder, seconds: float = LEASE_S) -> Iterator[Lease]:
    """Hold the folder while the block runs.

    Raises ValueError naming the owner where another run holds the folder. An expired lease is taken over. A
    lease whose process ran on this machine and is gone is taken over at once.
    """
    lease = Lease(folder, seconds)
    renewing = threading.Thread(target=lease.renew, daemon=True)
    try:  # from here on, for a signal may arrive as soon as the lease exists
        _take(folder, lease)
        renewing.start()
        lease.check()
        yield lease
    finally:
        lease.stop.set()
        if renewing.ident is not None:
            renewing.join()
        # A foreign file stays. A storage error must hide no other error; the lease expires.
        with suppress(ValueError, OSError):
            found = read_lease(folder)
            if found and found["holder"] == lease.holder:
                folder.remove(LEASE)


def await_lease(folder: Folder, seconds: float = 2 * LEASE_S) -> None:
    """Wait until the folder is free, up to ``seconds``: its owner may just have been killed elsewhere."""
    until = time.monotonic() + seconds
    while (found := read_lease(folder)) and not _is_over(found) and time.monotonic() < until:
        time.sleep(_POLL_S)


@contextmanager
def queue_lease(folder: Folder, say: Callable[[str], None], check: Callable[[], None]) -> Iterator[Lease]:
    """Hold the folder while the block runs, after any other owner: one process does the work for all.

    ``say`` reports once which run it waits for. ``check`` is called during the wait and raises to end it.
    """
    lease, has_said = None, False
    with ExitStack() as stack:
        while lease is None:
            try:
                lease = stack.enter_context(hold_lease(folder))
            except HeldError as error:
                if not has_said:
                    say(f"{WAITING} {error}")
                has_said = True
                check()
                time.sleep(_POLL_S)
        yield lease


def _take(folder: Folder, lease: Lease) -> None:
    """Create the lease, replacing an expired one; raises ValueError where another run holds one."""
    if folder.create_json(lease.content(), LEASE):
        return
    found = check_free(folder, lease.holder)
    if found and found["holder"] == lease.holder:
        return  # a client that lost the answer to its PUT asks again, and finds its own lease
    if found:  # else it was released in between
        folder.remove(LEASE)
    if not folder.create_json(lease.content(), LEASE):
        raise HeldError(f"out={folder.uri!r}: another run has just started there; wait for it")


def check_free(folder: Folder, own: str | None = None) -> dict[str, Any] | None:
    """Return the lease in the folder, expired or that of the holder ``own``; None where there is none.

    Raises ValueError naming the owner where another run holds the folder.
    """
    found = read_lease(folder)
    if found and found["holder"] != own and not _is_over(found):
        raise HeldError(
            f"out={folder.uri!r}: process {found['process']} on {found['host']} has been writing it "
            f"since {found['started']}; wait for it, or until {found['expires']} if it is dead"
        )
    return found


def read_pid_namespace() -> str:
    """Return an id of this process's PID namespace: containers may share a host name.

    Without ``/proc`` it is the host name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def read_lease(folder: Folder) -> dict[str, Any] | None:
    """Return the lease in the folder, None where there is none.

    Raises ValueError where the file is not a raycomp lease file.
    """
    try:
        found = folder.read_json(LEASE)
        texts = [found[name] for name in ("holder", "host", "place", "started", "expires")]
        is_lease = all(isinstance(text, str) for text in texts) and isinstance(found["process"], int)
        is_lease = is_lease and datetime.fromisoformat(found["expires"]).tzinfo is not None
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, LookupError, RecursionError):
        is_lease = False
    if not is_lease:
        raise ValueError(
            f"{folder.at(LEASE)}: not a raycomp lease file; remove it if no run writes to that folder"
        )
    return found


def _is_over(found: dict[str, Any]) -> bool:
    if datetime.fromisoformat(found["expires"]) < _now():
        return True
    if found["place"] == read_pid_namespace():
        try:
            os.kill(found["process"], 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            return False
    return False


def _now() -> datetime:
    return datetime.now(UTC)


PACKAGES = ("raycomp", "ray", "torch", "open_clip_torch", "spacy", "pyarrow", "numpy")
OUTPUTS = (*"scores metadata marks subset shards negatives exports state judges".split(), "context.parquet")
"""The results of a command that names no others: sub-folders, and files at the top."""
_LONGEST_LINE, _OF_A_START = 2000, (files.RUN, files.LEASE)
_RESUMABLE = (OSError, LeaseLost, ClusterFailed)
Say = Callable[[str], None]


class Run:
    """A run that holds its folder. Made by ``start_run``."""

    def __init__(
        self,
        record: dict[str, Any],
        previous: dict[str, Any] | None,
        fingerprint: Callable[[], dict[str, Any]],
        folder: Folder,
        lease: Lease,
        outputs: Sequence[str],
        say: Say,
    ):
        self.is_finished = previous is not None and previous["status"] == FINISHED
        """Whether an earlier start finished the run."""
        self.record = previous if previous and self.is_finished else record
        """The content of run.json, as far as it is known."""
        self.folder = folder
        self.work = Folder(folder.at(files.WORK))
        """The folder that is removed when the run is published."""
        self.staged: tuple[str, ...] = ()
        """Files and folders of ``work`` that become results, under the same names, after all checks."""
        self.is_stale = (
            not self.is_finished
            and previous is not None
            and previous["fingerprint"].get(runs.TIMES) != record["fingerprint"].get(runs.TIMES)
        )
        """Whether files of the input were modified since an earlier start."""
        self.lease = lease
        self.has_results: Callable[[], bool] = lambda: True
        """Whether it has something worth keeping when it is refused."""
        self._started_on = previous and previous.get("device")
        self._started_with = (previous or {}).get("gpu")
        self._fingerprint = fingerprint
        self.outputs = outputs
        """The sub-folders and files of the results."""
        self.watch = files.WrittenFiles([folder.at(output) for output in outputs])
        """The results that the run writes."""
        self._say = say
        self._said = "finished"
        self.noise = ""
        """The sentence of ``say_noise``, once the run is closed."""
        self._page: str | None = None

    def bind(self, device: str, gpu: Mapping[str, Any] | None = None) -> None:
        """Record the device that computes the results, cpu or gpu, and what ``describe_gpu`` returned.

        Raises ValueError where the run was started on another device.
        """
        known = self._started_on or device
        if known != device:
            raise ValueError(
                f"out={self.folder.uri!r}: was started on a {known} and would resume on a {device}, whose "
                f"scores differ in the last bits; set cluster.gpu={'true' if known == 'gpu' else 'false'} or "
                f"name another folder"
            )
        if gpu is not None and self._started_with not in (None, gpu):
            raise ValueError(
                f"out={self.folder.uri!r}: was started on {say_gpu(self._started_with)} and would resume on "
                f"{say_gpu(gpu)}, whose scores differ in the last bits; use the first kind of GPU (several: "
                f"cluster.mixed_gpus=true) or name another folder"
            )
        self.start_over()
        self.record |= {"device": device, **({"gpu": dict(gpu)} if gpu is not None else {})}
        self.folder.write_json(self.record, files.RUN)

    def end_dry_run(self) -> None:
        """End a dry run: what follows refuses nothing. A run that is refused before it leaves nothing."""
        self.has_results = lambda: True
        if files.is_dry_run():
            raise DryRun

    def start_over(self) -> None:
        """Drop the results of files that were modified since an earlier start: their content may differ.

        ``bind`` does so, unless the command has compared the content and set ``is_stale`` to False.
        """
        if self.is_stale:
            self._say("input: files were modified since this run started; their results are computed again")
            for name in (files.WORK, *self.outputs):
                self.folder.remove(name)
        self.is_stale = False

    def check_unchanged(self) -> None:
        """Raise ValueError where a dependency of the run has changed since the run started.

        Every run is checked so before it is published.
        """
        before, now = self.record["fingerprint"], self._fingerprint()
        changed = [name for name in before if name != runs.TIMES and now[name] != before[name]]
        if changed:
            raise ValueError(
                f"{', '.join(changed)}: changed during the run; the results are discarded; run again into "
                f"another folder"
            )

    def close(
        self,
        read: Mapping[str, int],
        came: Mapping[str, int],
        kept: str,
        corpus: int | None = None,
        reasons: Collection[str] | None = None,
        **sections: Any,
    ) -> None:
        """Record the row counts, and the command's own ``sections`` of run.json.

        ``read``: rows by status as they were read. ``came``: rows by their status in the results, ``kept`` or
        the reason why they were dropped. ``corpus``: the rows that shares refer to, if not all. ``reasons``:
        statuses that rows of status ok may have in addition to ``kept`` and those in ``read``; None = any.
        Raises RuntimeError unless the counts add up: every row that was read is in the results, and rows of a
        status other than ok keep that status.
        """
        lost = [status for status, count in read.items() if status != OK and came.get(status, 0) != count]
        strange = set() if reasons is None else set(came) - {kept, *read, *reasons}
        if lost or strange or sum(read.values()) != sum(came.values()):
            raise RuntimeError(f"the counts do not add up: {dict(read)} read, {dict(came)} found")
        num_read = sum(came.values())
        funnel: dict[str, Any] = {
            "read": num_read,
            "corpus": num_read if corpus is None else corpus,
            "kept": came.get(kept, 0),
            "dropped": runs.order_reasons({why: num for why, num in came.items() if why != kept}),
        }
        self.record |= {"finished": now(), "funnel": funnel, **sections}
        self.noise = runs.say_noise(self.record)
        lines = [self.noise] if self.noise else []
        if not funnel["kept"]:
            found = list_counts(funnel["dropped"]) or "no rows"
            lines.append(f"the result is empty: none of {num_read:,} rows is {kept} ({found})")
            self._say(lines[-1])
        self.record["warnings"] = [*lines, *sections.get("warnings", ())]

    def report(self, said: str, page: str | None = None) -> None:
        """Set the one-line result and the page (report.html) that are shown once the run is published."""
        noise = self.noise[:1].lower() + self.noise[1:].rstrip(".")
        self._said, self._page = "; ".join(filter(None, (said, noise))), page

    def publish(self) -> None:
        """Write report.html and run.json, tidy up. ``start_run`` calls it where its block ends well."""
        if "funnel" not in self.record:
            raise RuntimeError(f"{self.record['kind']}: ended without its row counts")
        self.check_unchanged()
        self.lease.check()
        for output in self.staged:
            if "." in output:
                files.copy_file(self.work.at(output), self.folder.at(output))
                continue
            names = self.work.list_names(output)
            for name in sorted(
                names, key=lambda name: name == files.ARCHITECTURE
            ):  # without it there is no model
                files.copy_file(self.work.at(output, name), self.folder.at(output, name))
        page = self._page
        if page is not None:
            for up in ("..", "../..") if self.folder.is_local else ():
                if (Path(self.folder.uri) / up / INDEX).is_file():  # the index of sibling runs
                    page = link_index(page, f"{up}/{INDEX}")
                    break
            self.folder.write_bytes(page.encode(), files.REPORT)
        manifest = runs.write_manifest(self.folder, self.outputs, self.watch.files)
        self.record |= {"status": FINISHED, "headline": self._said, "manifest": manifest}
        self.folder.write_json(self.record, files.RUN)
        tidy(self.folder)
        self._say(self._said + (f"; report: {self.folder.at(files.REPORT)}" if page is not None else ""))


@contextmanager
def start_run(
    kind: str,
    config: Any,
    fingerprint: Callable[[], dict[str, Any]],
    out: str,
    say: Say = print,
    rerun: str | None = None,
    commands: Mapping[str, str] | None = None,
    outputs: Sequence[str] = OUTPUTS,
    cost: Callable[[], str] = str,
    num_bytes: Callable[[], int] | None = None,
) -> Iterator[Run]:
    """Start the run ``kind`` of ``config`` in the folder or uri ``out``, or resume it; publish it afterwards.

    ``fingerprint()`` is what results depend on in addition to the options; it is computed again at the end.
    ``rerun`` is the command that repeats the run, where its config does not give it; ``commands`` are more
    lines for the record. ``outputs`` names the results: sub-folders ("tables"), or files at the top
    ("theory.json"). The run's manifest lists their files when the run is published. A finished run must still
    have them, and is returned unchanged. In a dry run nothing is written, and DryRun reports ``cost()``: at
    once, or, where the input's ``num_bytes()`` are few, after the block in a temporary folder, up to
    ``end_dry_run``.
    Raises ValueError where the folder cannot be written, is held by another process or holds another run, or
    where results of a finished run are missing or changed.
    """
    # Readers of a run look up there, by its kind, which of its options may change.
    assert get_config(kind) is type(config), f"{kind}: no known program has this command"
    folder = Folder(files.absolute_uri(str(out)))
    refuse_inside(folder, (files.WORK, "logs", *(output for output in outputs if "." not in output)))
    files.check_writable(folder.uri)
    rerun = rerun or command_line(name_command(kind), changed_options(config), folder.uri)
    record = describe_run(kind, config, fingerprint(), {"Rerun": rerun, **(commands or {})})
    if files.is_dry_run():
        check_free(folder)
        previous = check_run(folder, record)
        is_finished = previous is not None and previous["status"] == FINISHED
        if not is_finished and num_bytes is not None and num_bytes() <= MOST_LOCAL_BYTES:
            with TemporaryDirectory() as place, hold_lease(Folder(place)) as lease, suppress(DryRun):
                yield Run(record, None, fingerprint, Folder(place), lease, outputs, say)
        raise DryRun(report_dry_run(kind, previous, cost))
    with hold_lease(folder) as lease:
        previous = check_run(folder, record)
        if previous is None:
            folder.write_json(record, files.RUN)
        elif previous["status"] == FINISHED:
            tidy(folder)  # the run may have been killed just before it did so
        record["id"] = (previous or record).get("id", record["id"])
        run = Run(record, previous, fingerprint, folder, lease, outputs, say)
        run.has_results = lambda: num_bytes is None
        if run.is_finished:
            say(f"{folder.uri} is finished already; nothing to do")
            yield run
            return
        with _watched(run, "begin" if previous is None else "go_on", rerun), files.watch_writes(run.watch):
            yield run
            run.publish()


@contextmanager
def _watched(run: Run, first_event: str, rerun: str) -> Iterator[None]:
    """Log how a run starts and ends; an error that ends it early gets a note on how to resume.

    A failure that the same command would repeat is recorded. A storage error, a lost cluster or a signal does
    not make the run failed: it can be resumed. Nothing is logged in a folder that a refused command left
    unchanged.
    """
    folder = run.folder

    def check() -> None:
        run.lease.check()
        if not folder.exists(files.RUN):
            raise LeaseLost(f"out={folder.uri!r}: {files.RUN} was removed during the run")

    with keep_events(folder, run.record["id"], check):
        log_event(first_event, kind=run.record["kind"], out=folder.uri, command=rerun)
        try:
            yield
        except BaseException as error:
            error.add_note(f"to resume: {rerun}")
            is_first = first_event == "begin" and "funnel" not in run.record
            is_void = isinstance(error, NoneUsable) or not run.has_results()
            is_void = is_void or all(one in _OF_A_START or one[:5] == "logs/" for one in folder.find_names())
            if is_first and is_void and isinstance(error, ValueError | TooMuchBadData):
                run.lease.check()  # corrected, it may be another run
                names = sorted({*folder.list_names()} - {files.LEASE}, key=lambda name: name == files.RUN)
                for name in names:
                    folder.remove(name)
            if not folder.is_local or folder.exists(files.RUN):
                says = " ".join(str(error).split())
                log_event("fail", error=type(error).__name__, says=says)
                cause = getattr(error, "cause", error)
                if isinstance(cause, Exception) and not isinstance(cause, _RESUMABLE):
                    with suppress(OSError, ValueError, LeaseLost):  # the error that ended the run is reported
                        _keep_failure(run, says)
            raise
        log_event("finish", funnel=run.record["funnel"])


def _keep_failure(run: Run, says: str) -> None:
    run.lease.check()
    record = runs.read_run(run.folder)
    if record is not None and record["status"] != FINISHED and record.get("id") == run.record["id"]:
        failed = {"status": runs.FAILED, "failed": says[:_LONGEST_LINE]}
        run.folder.write_json({**record, **failed}, files.RUN)


def command_line(start: str, settings: Mapping[str, Any], out: str) -> str:
    """Return the command that sets these options."""
    sets = (f"{path}={as_setting(value)}" for path, value in settings.items())
    return " ".join([start, *(f"--set {shlex.quote(text)}" for text in sets), "--out", shlex.quote(out)])


def describe_run(
    kind: str, config: Any, fingerprint: dict[str, Any], commands: dict[str, str]
) -> dict[str, Any]:
    """Return the description of a run before it starts."""
    return {
        "id": uuid.uuid4().hex[:12],
        "kind": kind,
        "format": runs.FORMAT,
        "status": runs.RUNNING,
        "commands": commands,
        "started": now(),
        "config": to_dict(config),
        "fingerprint": fingerprint,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "machine": {
            "system": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
    }


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def tidy(folder: Folder) -> None:
    """Remove files that only an unfinished run needs, and files that killed writers left in the results."""
    if not folder.exists(files.WORK, files.RUN):  # else a user has made another run there since
        folder.remove(files.WORK)
    files.remove_temporary_files(folder.uri)


def _wrong_folder(folder: Folder, problem: str) -> ValueError:
    return ValueError(f"out={folder.uri!r}: {problem}; name another folder")


def refuse_inside(folder: Folder, own: Collection[str]) -> None:
    """Raise ValueError where one of two runs would write in, or remove, files of the other."""
    if folder.exists(files.WORK, files.RUN):
        raise _wrong_folder(folder, f"its folder {files.WORK} holds another run")
    above, name = posixpath.split(folder.uri.rstrip("/"))
    if name in own and Folder(above).exists(files.RUN):
        raise _wrong_folder(folder, f"is the folder {name} of the run in {above}")


def refuse_early(kind: str, config: Any, out: str) -> None:
    """Raise ValueError where ``out`` holds something else than a run of this kind and config.

    A command calls it before it loads a model; ``start_run`` also compares inputs and versions.
    """
    folder = Folder(out)
    previous = read_own_run(folder)
    if previous is not None:
        run = {"kind": kind, "config": to_dict(config), "fingerprint": previous["fingerprint"]}
        refuse_other(previous, run | {"versions": previous.get("versions", {})}, folder)


def check_run(folder: Folder, record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the record of the same run if it was started in the folder before; write nothing.

    Raises ValueError where the folder holds another run, or a result of a finished run is missing or changed.
    """
    previous = read_own_run(folder)
    if previous is None:
        return None
    refuse_other(previous, record, folder)
    if previous["status"] == FINISHED:
        try:
            runs.check_results(folder, previous)
        except ValueError as error:
            raise ValueError(
                f"out={folder.uri!r}: the run there was finished, but {error}; remove the folder or name "
                f"another one, and run again"
            ) from error
    return previous


def read_own_run(folder: Folder) -> dict[str, Any] | None:
    """Return the folder's run.json, None where it is empty.

    Raises ValueError where the folder holds something else.
    """
    try:
        run = runs.read_run(folder)
        names = [name for name in folder.list_names() if name != files.LEASE]
    except OSError as error:
        line = " ".join(str(error).split())
        raise ValueError(f"out={folder.uri!r}: cannot be read: {line}") from error
    if run is not None:
        runs.check_resumable(run, folder.uri, f"out={folder.uri!r}")
    if names and run is None:
        raise ValueError(f"out={folder.uri!r}: holds files but no {files.RUN}; name an empty or new folder")
    return run


def refuse_other(previous: dict[str, Any], run: dict[str, Any], folder: Folder) -> None:
    """Raise ValueError naming the difference if the folder holds the results of another run."""
    if previous["kind"] != run["kind"]:
        raise _wrong_folder(folder, f"holds a {previous['kind']} run, this is {run['kind']}")
    own = json.loads(json.dumps(run))
    bound = [(read(previous), read(own)) for read in (runs.bound_inputs, runs.bound_options)]
    # A finished run is only read; an unfinished one must resume with the versions it was started with.
    versions = {} if previous["status"] == FINISHED else previous["versions"]
    bound.append((versions, {name: own["versions"].get(name) for name in versions}))
    names = [name for a, b in bound for name in {**a, **b} if a.get(name) != b.get(name)]
    if not names:
        return
    config = get_config(run["kind"])
    problem = f"holds a run that differs in {', '.join(dict.fromkeys(names))}"
    if previous["status"] == FINISHED and config and all(is_marked(config, one, "select") for one in names):
        settings = {one: bound[1][1][one] for one in names}
        line = command_line(f"raycomp select {shlex.quote(folder.uri)}", settings, f"{folder.uri}-2")
        raise ValueError(f"out={folder.uri!r}: {problem}; choose again from its scores: {line}")
    raise _wrong_folder(folder, problem)


def report_dry_run(kind: str, previous: dict[str, Any] | None, cost: Callable[[], str]) -> str:
    """Return what a dry run prints: that nothing is wrong, what the command would do, and its cost."""
    passed = f"dry run of {kind}: all checks passed, nothing was written"
    if previous is not None and previous["status"] == FINISHED:
        return f"{passed}; the run is finished already, the command would do nothing"
    how = "it would start" if previous is None else f"it would resume the run of {previous.get('started')}"
    return "\n\n".join(filter(None, (f"{passed}; {how}", cost())))


def say_count(count: int, what: str) -> str:
    """Return the cost of a command that runs many alike, for ``report_dry_run``."""
    return f"{count:,} {what}"


def say_gpu(gpu: Mapping[str, Any]) -> str:
    """Return what ``describe_gpu`` found, in words."""
    name, *others = gpu.items()
    details = ", ".join(f"{key} {value}" for key, value in others)
    return f"{name[1]} ({details})" if details else f"{name[1]}"
