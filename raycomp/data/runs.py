"""The results of a run: its record, run.json, its manifest, the files and the model that readers take.

The manifest holds size and SHA-256 of every result file. It is next to run.json, which holds its digest. A
reader requests the manifest and a list of the folders that it will read, one request for a thousand files. A
Parquet file's footer is checked where the file is opened, a sample where it is read. ``verify_whole`` makes
the check read every byte.
"""

import errno
import fcntl
import hashlib
import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any

from pyarrow import fs

from raycomp import words
from raycomp.config import ModelConfig, flatten, get_config, is_marked
from raycomp.data import files
from raycomp.data.files import Folder, ResultFile, Written
from raycomp.data.inputs import ShardPath

MANIFEST = "manifest.json"
STATE = "state"
"""What an update needs besides the results. It has the times of input files, so a repeat has other bytes."""
FORMAT = 2
"""The value of ``format`` in run.json from the start of a run."""
READ_FORMATS = (1, FORMAT)
"""The formats of finished runs that are read. A run of format 1 had it only at its end."""
_AT_ONCE = 16
# Files that readers take from a listed folder, by name; other folders' files are opened by name.
_TAKEN = re.compile(
    r"(scores|metadata|marks|negatives)/(.*/)?\d+\.parquet$|shards/.*(?i:\.(tar|parquet))$|trials/.*\.json$",
    re.DOTALL,
)
_is_whole = False


def read_result(file: ResultFile) -> bytes:
    """Return the whole of a run's file. Raises ValueError where it differs from what the run wrote."""
    data = Folder(file).read_bytes()
    if file.sha256 is not None and hashlib.sha256(data).hexdigest() != file.sha256:
        raise ValueError(_say_changed(file))
    return data


def _say_changed(uri: str) -> str:
    return f"{uri}: was changed; its SHA-256 is not the one that the run wrote"


@contextmanager
def verify_whole(is_whole: bool) -> Iterator[None]:
    """Make every check in the block read whole files and compare their SHA-256."""
    global _is_whole
    before, _is_whole = _is_whole, is_whole
    try:
        yield
    finally:
        _is_whole = before


def write_manifest(folder: Folder, outputs: Sequence[str], written: Mapping[str, Written]) -> dict[str, Any]:
    """Write the manifest of the files in ``outputs``; return the entries for run.json.

    ``outputs`` are sub-folders, or files at the top; ``written`` are known files by uri. Others, which an
    earlier start wrote, are read. Raises OSError where a file differs from what was written.
    """
    sizes = dict(_list_outputs(folder, outputs))
    known = {file.uri[len(folder.uri) + 1 :]: file for file in written.values()}
    known = {name: file for name, file in known.items() if not _is_hidden(name)}
    for name, file in known.items():
        if sizes.get(name) != file.size:
            what = f"holds {sizes[name]:,} bytes" if name in sizes else "is not there"
            raise OSError(f"{file.uri}: {what}, {file.size:,} bytes were written")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        names = [name for name in sizes if name not in known]
        known |= dict(zip(names, pool.map(lambda name: _hash(folder.at(name)), names), strict=True))
    lines = {name: f"{json.dumps(name)}: {json.dumps(known[name][1:])}" for name in sorted(known)}
    results = [line for name, line in lines.items() if _output_of(name) != STATE]
    data, about = (("{\n" + ",\n".join(some) + "\n}\n").encode() for some in (lines.values(), results))
    folder.write_bytes(data, MANIFEST)
    return {
        "sha256": hashlib.sha256(data).hexdigest(),
        "files": len(known),
        "bytes": sum(file.size for file in known.values()),
        "results": hashlib.sha256(about).hexdigest(),
    }


def check_results(
    folder: Folder, run: Mapping[str, Any], *outputs: str, is_whole: bool = False
) -> dict[str, ResultFile]:
    """Return the files of ``outputs`` (none = all) of a finished run by name, after checking them.

    ``run`` is its run.json. Raises ValueError naming the first file that is missing,
    shorter, longer, extra or, with ``is_whole`` or in ``verify_whole``, changed.
    """
    known = {
        name: file for name, file in _read(folder, run).items() if not outputs or _output_of(name) in outputs
    }
    there = sorted({_output_of(name) for name in known})
    found = dict(_list_outputs(folder, there))
    for name, file in known.items():
        if name not in found:
            raise ValueError(f"{file.uri}: is missing; the run wrote it with {file.size:,} bytes")
        if found[name] != file.size:
            how = "shorter" if found[name] < file.size else "longer"
            said = f"is {how} than the run wrote it, {found[name]:,} bytes for {file.size:,}"
            raise ValueError(f"{file.uri}: {said}")
    extra = next((name for name in found if name not in known and _TAKEN.match(name)), None)
    if extra:
        raise ValueError(f"{folder.at(extra)}: was not written by the run; move it out of the folder")
    if is_whole or _is_whole:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            there_now = pool.map(lambda file: _hash(file.uri), known.values())
            for file, now in zip(known.values(), there_now, strict=True):
                if now != file:
                    raise ValueError(_say_changed(file.uri))
    return {name: ResultFile.of(file) for name, file in known.items()}


def read_manifest(folder: Folder) -> dict[str, Written]:
    """Return the files of a finished run by name, with their sizes and SHA-256; nothing is checked.

    Raises ValueError where the run has no manifest, or one that is not its own.
    """
    return _read(folder, folder.read_json(files.RUN))


def _output_of(name: str) -> str:
    return name.partition("/")[0]


def _list_outputs(folder: Folder, outputs: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield name and size of the files in sub-folders, and of files at the top; hidden ones are skipped."""
    top = [output for output in outputs if "." in output]
    infos = files.read_infos(folder.at(name) for name in top)
    yield from ((name, infos[folder.at(name)].size) for name in top if infos[folder.at(name)].is_file)
    for output in (output for output in outputs if "." not in output):
        try:
            below = [(name, info) for name, info in files.list_below(folder.at(output)) if info.is_file]
        except NotADirectoryError as error:
            raise ValueError(f"{folder.at(output)}: is a file, must be a folder of the run") from error
        for name, info in sorted(below, key=lambda one: one[0].split("/")):
            if not _is_hidden(name):
                yield f"{output}/{name}", info.size


def _is_hidden(name: str) -> bool:
    """Whether a file is a desktop's or a store's own: .DS_Store, _SUCCESS, NAME_$folder$; __len__ is ours."""
    parts = name.split("/")
    own = any(part.startswith((".", "_")) and not part.startswith("__") for part in parts)
    return own or name.endswith("_$folder$")


def _hash(uri: str) -> Written:
    filesystem, path = files.resolve_file(uri)
    with filesystem.open_input_file(path) as file:
        return files.hash_file(uri, file)


def _read(folder: Folder, run: Mapping[str, Any]) -> dict[str, Written]:
    """Return the files of a manifest by name. Raises ValueError where it is not the run's own."""
    try:
        return _load(folder.uri, run["manifest"]["sha256"])
    except FileNotFoundError:
        raise ValueError(f"{folder.at(MANIFEST)}: is missing; the run wrote it") from None


@lru_cache(maxsize=4)
def _load(uri: str, sha256: str) -> dict[str, Written]:
    data = Folder(uri).read_bytes(MANIFEST)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError(f"{uri}/{MANIFEST}: was changed; its SHA-256 is not the one in run.json")
    return {name: Written(f"{uri}/{name}", *facts) for name, facts in json.loads(data).items()}


_CUT = {"count": int, "bits": (int, NoneType), "uid": (str, NoneType)}
_STARTED = {"kind": str, "status": str, "config": dict, "fingerprint": dict, "versions": dict}
_FINISHED = {"funnel": {"read": int, "corpus": int, "kept": int, "dropped": {str: int}}, "warnings": list}
_PHASE = {"phase": str, "rows": int, "wall_s": (int, float), "bottleneck": (str, NoneType)}
_CHOSEN = {
    "scores": str,
    "gates": {"num_corpus": int, "align": _CUT, "attribute": [_CUT], "num_scored": (int, NoneType)},
    "fingerprint": {"shards": int},
}
_NUMBER = (int, float)
_MANIFEST = {"format": int, "manifest": {"sha256": str, "files": int, "bytes": int, "results": str}}
_TRAINED = {"steps": int, "epochs": _NUMBER, "pairs": int, "first_loss": _NUMBER, "last_loss": _NUMBER}
# The results that readers use of a finished run, by its kind.
_READ: dict[str, Any] = {
    "curate": _CHOSEN,
    "select": _CHOSEN,
    "negatives": {"config": {"input": str}},
    "train": _TRAINED,
    "evaluate": {"config": {"benchmarks": list, "model": {"name": str, "weights": str}}},
}
SUBSET_KINDS = ("curate", "select")
"""The kinds of runs that choose a subset."""
_OUTPUTS = ("scores", "metadata", "marks", "subset", "shards", "negatives")
_TABLE = re.compile(r"(\d+)\.parquet")
RUNNING, FINISHED, FAILED, UPDATING = "running", "finished", "failed", "updating"
"""The possible statuses of a run. A repeat of a failed run fails again; its ``failed`` gives the reason. A
finished run is ``updating`` while its files are replaced."""
TIMES = "input_times"
"""In a fingerprint: when the input's files were modified. Runs that differ only in it are the same run; an
unfinished run drops the results of files that were modified after its start."""


def read_run(folder: Folder) -> dict[str, Any] | None:
    """Return the folder's run.json, None where there is none.

    Raises ValueError where it does not have the form of a run's record, OSError where the storage fails.
    """
    if folder.uri.endswith("://"):
        raise ValueError(f"{folder.uri}: has no bucket; name one and a folder, as in s3://bucket/mine")
    try:
        if not folder.exists(files.RUN):
            return None
        run = folder.read_json(files.RUN)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{folder.at(files.RUN)}: not valid JSON ({' '.join(str(error).split())})"
        ) from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ValueError(f"{folder.uri[:60]}...: is too long for a folder name") from error
        raise
    lacks = _describe_lack(run, _STARTED)
    if not lacks and run["status"] == FAILED:
        lacks = _describe_lack(run, {"failed": str})
    if not lacks and run["status"] == FINISHED:
        for shape in (_FINISHED, _MANIFEST, _READ.get(run["kind"], {})):
            lacks = lacks or _describe_lack(run, shape)
        phases = run.get("phases") or []
        lacks = lacks or _describe_lack(phases, list, "phases")
        lacks = lacks or next(filter(None, (_describe_lack(one, _PHASE, "phases") for one in phases)), None)
    if lacks or run["status"] not in (RUNNING, FINISHED, FAILED, UPDATING):
        said = f"not the record of a raycomp run: {lacks or 'status'} is missing or wrong"
        raise ValueError(f"{folder.at(files.RUN)}: {said}")
    if run["status"] == FINISHED and run["format"] not in READ_FORMATS:
        said = f"has format {run['format']}, this version reads {FORMAT}; update raycomp"
        raise ValueError(f"{folder.at(files.RUN)}: {said}")
    return run


def _describe_lack(value: Any, shape: Any, path: str = "it") -> str | None:
    """Return where ``value`` differs from a shape: a type, several, shapes by name, or [a shape or None].

    The name ``str`` stands for all names.
    """
    if isinstance(shape, list):
        return None if value is None else _describe_lack(value, shape[0], path)
    if not isinstance(shape, dict):
        return None if isinstance(value, shape) else path
    if not isinstance(value, dict):
        return path
    if str in shape:
        shape = dict.fromkeys(value, shape[str])
    prefix = "" if path == "it" else f"{path}."
    found = (
        _describe_lack(value[name], inner, prefix + name) if name in value else prefix + name
        for name, inner in shape.items()
    )
    return next((lack for lack in found if lack), None)


def read_finished(source: str) -> dict[str, Any]:
    """Return run.json of the run in ``source``; ValueError where there is no finished one."""
    if not source:
        raise ValueError("input: must name the folder of a finished run")
    run = read_run(Folder(source))
    if run is None:
        folder = Folder(source)
        below = ", ".join(name for name in folder.list_folders() if folder.exists(name, files.RUN))
        found = (
            f"{files.RUN}; runs below it: {below}"
            if below
            else files.RUN
            if folder.exists()
            else "such folder"
        )
        raise ValueError(f"{source}: holds no finished run: no {found}")
    if run["status"] == FAILED:
        raise ValueError(f"{source}: the run has failed: {run['failed']}")
    check_resumable(run, source, source)
    if run["status"] != FINISHED:
        raise ValueError(f"{source}: the run has not finished; the same command resumes it")
    return run


def order_reasons(counts: Mapping[str, int]) -> dict[str, int]:
    """Return rows by outcome in the order of the pipeline: reading, marks, gates; others follow by name."""
    place = {reason: number for number, reason in enumerate(words.PIPELINE)}
    return {why: counts[why] for why in sorted(counts, key=lambda why: (place.get(why, len(place)), why))}


def check_resumable(run: Mapping[str, Any], folder: str, said: str) -> None:
    """Raise ValueError, whose text starts with ``said``, for a run that its own command cannot resume.

    That is a finished run whose update was cut off, and an unfinished run of an older version.
    """
    if run["status"] == UPDATING:
        raise ValueError(f"{said}: an update was cut off; raycomp update {folder} finishes it")
    if run["status"] != FINISHED and run.get("format") != FORMAT:
        raise ValueError(f"{said}: was started by an older version; start it anew in another folder")


def read_curation(spec: str) -> tuple[Folder, dict[str, Any] | None]:
    """Return the folder of an input, and the finished curation or selection in it; None without a run.

    Raises ValueError where the run has not finished, or is of another kind.
    """
    folder = Folder(spec)
    if spec.endswith("://"):
        raise ValueError(f"input={spec!r}: has no bucket; name one and a folder, as in s3://bucket/mine")
    if (not os.path.isdir(spec) and "://" not in spec) or not folder.exists(files.RUN):
        return folder, None
    run = read_finished(folder.uri)
    if run["kind"] not in SUBSET_KINDS:
        raise ValueError(f"input={spec!r}: holds {run['kind']}, must hold a curation or a selection")
    return folder, run


def check_shards_of_runs(shards: Iterable[ShardPath]) -> None:
    """Raise ValueError where shards of an input are results of a run and differ from what it wrote."""
    for folder in dict.fromkeys(posixpath.dirname(shard.uri) for shard in shards):
        check_files_of_run(folder)


def check_files_of_run(folder: str) -> None:
    """Raise ValueError where a folder is one of a run's results and its files differ from what it wrote.

    The folder of an unfinished run is refused, too: its files may still change.
    """
    above, output = posixpath.split(folder.rstrip("/"))
    if output in _OUTPUTS and Folder(above).exists(files.RUN):
        run = read_finished(above)
        check_results(Folder(above), run, output)


def find_curation(run: dict[str, Any], source: str) -> dict[str, Any]:
    """Return run.json of the scoring curation: the run in ``source``, or the one that the selection used.

    Raises ValueError where the curation is no longer in the place that the selection names.
    """
    if run["kind"] != "select":
        return run
    origin = read_run(Folder(posixpath.dirname(run["scores"])))
    is_there = origin is not None and origin["status"] == FINISHED
    if origin is None or not is_there or identify(origin) != run["fingerprint"].get("scores"):
        raise ValueError(
            f"{source}: was selected from the scores in {run['scores']}, which are missing or belong to "
            f"another run; select again from their present folder"
        )
    return origin


def list_scores(run: dict[str, Any], source: str) -> list[str]:
    """Return the scores files behind the run in ``source``, a curation or selection, in order of shards.

    A curation has its own files, also after a move. A selection names the path of its curation; the path is
    used only where the same curation is still there. Raises ValueError where it is not, or where files are
    missing.
    """
    curated = find_curation(run, source)
    folder = Folder(posixpath.dirname(run["scores"]) if run["kind"] == "select" else source)
    tables = list_tables(check_results(folder, curated, "scores"))
    count = run["fingerprint"]["shards"]
    if sorted(tables) != list(range(count)):
        raise ValueError(f"{folder.at('scores')}: holds {len(tables)} scores files, the run wrote {count}")
    return [tables[ordinal] for ordinal in range(count)]


def list_negatives(run: dict[str, Any], source: str) -> list[ResultFile]:
    """Return the files of hard negatives of the run in ``source``, in order.

    Raises ValueError where there are none, or one differs from what was written.
    """
    tables = list_tables(check_results(Folder(source), run, "negatives"))
    if not tables or sorted(tables) != list(range(len(tables))):
        raise ValueError(f"{source}: files are missing in its folder negatives")
    return [tables[number] for number in range(len(tables))]


def list_tables(files: Mapping[str, ResultFile]) -> dict[int, ResultFile]:
    """Return the tables among a run's files, by number of their shard."""
    found = ((_TABLE.fullmatch(posixpath.basename(name)), uri) for name, uri in files.items())
    return {int(match[1]): uri for match, uri in found if match}


def identify(run: dict[str, Any]) -> str:
    """Return a digest of what determines a run's results, and of the results: a repeat of the run has it too.

    It covers inputs, options, kind of device, and the manifest: inputs are identified by their size only.
    """
    more = [run["gpu"]] if run.get("gpu") else []
    parts = [run["kind"], bound_inputs(run), bound_options(run), run.get("device"), *more]
    return digest([*parts, run["manifest"]["results"]])


def bound_inputs(run: dict[str, Any]) -> dict[str, Any]:
    """Return the fingerprint of what a run's results depend on in addition to its options."""
    return {name: value for name, value in run["fingerprint"].items() if name != TIMES}


def bound_options(run: dict[str, Any]) -> dict[str, Any]:
    """Return the options, by path, that a run's results depend on."""
    kind = get_config(run["kind"])
    options = flatten(run["config"])
    return {path: value for path, value in options if not (kind and is_marked(kind, path, "free"))}


def digest(content: Any) -> str:
    """Return the SHA-256 of json-compatible content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# Their numbers come from a trained model, or from none.
_WITHOUT_NOISE = ("train", "sweep", "audit", "index-eval", "probe overlap")


def say_noise(run: Mapping[str, Any]) -> str:
    """Return a sentence where the numbers of a run come from a model with random weights; else "".

    It is the run's own model, else that of the runs that it was made from.
    """
    config, kind = run["config"], run.get("kind")
    if kind in _WITHOUT_NOISE:
        return ""
    is_ranked = kind != "negatives" or config["negatives"].get("rank", True)
    if own := is_ranked and (config.get("model") or config.get("scorer")):
        weights = own.get("weights", "")
        said = f"Random weights ({weights}): every score and every choice by score is noise."
        return said if weights.startswith("random:") else ""
    places = [config.get(name) for name in ("images", "input", "first", "second")]
    for place in filter(None, (run.get("source"), *places, *config.get("runs", ()))):
        with suppress(ValueError, OSError):
            if (made_from := read_run(Folder(place))) and (said := say_noise(made_from)):
                return said
    return ""


def find_model(config: ModelConfig) -> ModelConfig:
    """Return the config with the files of a model's folder for name and weights, where it names one.

    A model's folder is one that ``raycomp train`` wrote, or its ``checkpoint/``, in any place. Raises
    ValueError where the training has not finished, a file differs from what was written, or ``model.name``
    names another model than the folder's own and the default, which stands for any.
    """
    folder = Folder(config.weights)
    is_uri = "/" in config.weights
    if config.weights.startswith("random:"):
        return config
    training, own = _find_training(folder), ""
    if training is not None:
        try:
            run = read_finished(training.uri)
            if run["kind"] != "train":
                raise ValueError(f"holds {run['kind']}, must hold a training")
            check_results(training, run, files.CHECKPOINT, is_whole=True)  # sizes do not distinguish weights
        except ValueError as error:
            raise ValueError(f"{config.said_weights}: {error}") from error
        own = run["config"].get("model", {}).get("name", "")
    if not folder.is_folder():
        return config
    if folder == training:
        folder = Folder(folder.at(files.CHECKPOINT))
    elif folder.exists(files.ARCHITECTURE):
        pass
    elif is_uri:
        raise ValueError(
            f"{config.said_weights}: holds neither {files.RUN} of a training nor {files.ARCHITECTURE}, nor "
            f"open_clip_config.json with weights (.safetensors, .bin or .pth)"
        )
    else:
        return config  # a tag that is also the name of a folder here
    lacks = next((name for name in (files.ARCHITECTURE, files.WEIGHTS) if not folder.exists(name)), None)
    if lacks:
        raise ValueError(f"{config.said_weights}: holds no whole model, {folder.at(lacks)} is not there")
    name = folder.at(files.ARCHITECTURE)
    named, *known = (one.replace("/", "-") for one in (config.name, ModelConfig().name, name, own or name))
    if named not in known:
        said = f"holds a model of its own{f', trained from {own!r}' if own else ''}; leave model.name out"
        raise ValueError(f"{config.said_model}: {config.said_weights} {said}")
    return replace(config, name=name, weights=folder.at(files.WEIGHTS))


def _find_training(named: Folder) -> Folder | None:
    """Return the folder of the run that wrote a model's folder or weights; None for foreign ones."""
    names = named.uri.split("/")
    up = {files.CHECKPOINT: 1, files.WEIGHTS: 2}.get(names[-1], 0)
    if up == 2 and names[-2:-1] != [files.CHECKPOINT]:
        return None
    folder = Folder("/".join(names[: len(names) - up]) or "/")
    return folder if (up or folder.is_folder()) and folder.exists(files.RUN) else None


def fetch_model(config: ModelConfig) -> ModelConfig:
    """Return the config with local paths for files that are in a store, after copying them.

    Raises ValueError where there is no such file, OSError where the storage fails.
    """
    stored = [name for name in ("name", "weights") if files.split_uri(getattr(config, name))[0]]
    if not stored:
        return config
    from raycomp.models.stated import HUB_CONFIG, follow, list_config_files  # which only a stored model needs

    companion = posixpath.join(posixpath.dirname(config.name), HUB_CONFIG)
    companions = {"name": [companion], "weights": list_config_files(config.weights)}
    for name in stored:
        try:
            config = replace(config, **{name: fetch(getattr(config, name), companions[name])})
        except FileNotFoundError:
            said = config.said_model if name == "name" else config.said_weights
            raise ValueError(f"{said}: no such file") from None
    return replace(config, name=follow(config.name, ModelConfig().name, config.weights)[0])


def fetch(uri: str, companions: Sequence[str] = ()) -> str:
    """Return the path of a file: its place on a disk, else that of this machine's copy.

    Files ``companions`` are copied with it where they exist. Copies are below raycomp/ in XDG_CACHE_HOME, or
    ~/.cache, each under its whole uri; every version of the files, by size and ETag, has its own copy. The
    first process that needs it makes the copy while others wait for it. Copies are never removed. Raises
    FileNotFoundError where there is no such file, OSError where the storage or the disk fails.
    """
    filesystem, path = files.resolve(uri)
    if isinstance(filesystem, fs.LocalFileSystem):
        return path
    found = {one: _read_version(one) for one in (*companions, uri)}
    if found[uri] is None:
        raise FileNotFoundError(f"{uri}: no such file")
    versions = json.dumps(found, sort_keys=True)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    copies = Path(cache, "raycomp", hashlib.sha256(versions.encode()).hexdigest()[:32])
    copies.mkdir(parents=True, exist_ok=True)
    with (copies / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The file itself comes last: where it is present, all are.
        is_there = _place(copies, uri).exists()
        for one in (one for one, version in found.items() if version and not is_there):
            files.copy_file(one, str(_place(copies, one)))
    return str(_place(copies, uri))


def _place(copies: Path, uri: str) -> Path:
    return copies / uri.replace("://", "/")


def _read_version(uri: str) -> list[str] | None:
    """Return the version of an object, which changes with it; None where there is none."""
    filesystem, path = files.resolve(uri)
    info = filesystem.get_file_info(path)
    if not info.is_file:
        return None
    with filesystem.open_input_stream(path) as stream:
        reported = stream.metadata()
    return [str(value) for value in (info.size, info.mtime_ns, reported.get("ETag"), reported.get("etag"))]
