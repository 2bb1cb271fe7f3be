"""Which files are the input: paths, folders, globs and brace lists, on disk or on ``s3://``."""

import dataclasses
import os
import posixpath
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from urllib.parse import urlsplit

from fsspec.utils import glob_translate
from pyarrow import fs

from raycomp.shards.retries import s3_patience

FORMATS = {".tar": "tar", ".parquet": "parquet"}
CLIP_RETRIEVAL = "clip_retrieval"

_NAMED = re.compile(r"([A-Za-z0-9_-]+)=(.+)", re.DOTALL)
_PATTERN = re.compile(r"[*?\[{]")
_METADATA = re.compile(r"(.*/)metadata/metadata_([^/]*)\.parquet", re.DOTALL)
_BRACES = re.compile(r"\{([^{}]*,[^{}]*|-?\d+\.\.-?\d+)\}")


@dataclasses.dataclass(frozen=True)
class ShardPath:
    """One input shard.

    ``name`` is its path relative to the root of its input, prefixed ``NAME=`` where there are several inputs
    or the input was given a name; it holds nothing of where the root lies, so that a corpus keeps its uids
    when it moves. ``ordinal`` is its place among all shards sorted by ``name``. ``format`` is tar or parquet.
    ``embeddings`` is the npy or npz file that holds the image embeddings of its rows, none where they are to
    be made; ``array`` names those in an npz.
    """

    ordinal: int
    uri: str
    name: str
    format: str
    embeddings: str | None = None
    array: str | None = None


def resolve(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path, ``file://`` or ``s3://`` uri, and the path inside it.

    S3 takes credentials, region and endpoint from the usual environment variables
    (``AWS_ACCESS_KEY_ID``, ``AWS_REGION``, ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL``, ...).
    Raises ValueError for another scheme and for a uri that carries credentials.
    """
    scheme, separator, path = uri.partition("://")
    if not separator:
        return fs.LocalFileSystem(), os.path.abspath(uri)
    if scheme == "file":
        return fs.LocalFileSystem(), os.path.abspath(path)
    if scheme != "s3":
        raise ValueError(f"{uri}: must be a path, file:// or s3://")
    bucket = path.partition("/")[0]
    if not bucket or "@" in bucket:
        raise ValueError("s3:// uri: must begin with a bucket; credentials come from the environment only")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return _open_s3(bucket, endpoint, region), path.rstrip("/")


@lru_cache(maxsize=64)
def _open_s3(bucket: str, endpoint: str | None, region: str | None) -> fs.S3FileSystem:
    # An object of less than 10 MB then goes up as one request, not three, and an upload cut short leaves no
    # parts behind that cost money; a bucket that is missing is found when the file is closed.
    options = {"allow_delayed_open": True, **s3_patience()}
    if not endpoint:
        return fs.S3FileSystem(region=region or fs.resolve_s3_region(bucket), **options)
    parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    region = region or "us-east-1"
    return fs.S3FileSystem(endpoint_override=parts.netloc, scheme=parts.scheme, region=region, **options)


def absolute_uri(uri: str) -> str:
    """Return a path made absolute; a uri as it is. Workers have other working folders than the driver."""
    return uri if "://" in uri else os.path.abspath(uri)


def join_uri(folder: str, *names: str) -> str:
    """Return the path or uri of something inside ``folder``."""
    return posixpath.join(folder, *names)


def expand_input(spec: str, stored_embeddings: str | None = None) -> list[ShardPath]:
    """Return the shards that ``spec`` names, sorted by shard name.

    ``spec`` is one input or several joined with ``::``, each optionally ``NAME=``; an input is a file, a
    folder (every shard below it), a glob (``*``, ``?``, ``[ab]``, ``**``) or a brace list
    (``{00000..00009}``, ``{a,b}``). Its root is the deepest folder before the first pattern character, for
    one file its folder, for a folder itself. Folders and globs take what ends in .tar or .parquet; a .parquet
    beside a .tar of the same stem is that shard's metadata (img2dataset's layout) and no shard of its own. A
    relative path with a ``=`` in its first folder is written ``./a=b/c.tar``. The dial ``stored_embeddings``
    says where those of each shard lie; that they are there is not looked up.

    Raises ValueError, one line, where an input is empty, missing, unreadable or of no known format.
    """
    parts = [_NAMED.fullmatch(part) or part for part in spec.split("::")]
    named = [(str(i), part) if isinstance(part, str) else part.groups() for i, part in enumerate(parts)]
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        raise ValueError(f"input={spec!r}: two inputs have the same name; names are {', '.join(names)}")
    found = []
    for part, (name, pattern) in zip(parts, named, strict=True):
        prefix = "" if isinstance(part, str) and len(parts) == 1 else f"{name}="
        try:
            found += [(prefix + relative, uri) for relative, uri in _find(pattern)]
        except OSError as error:
            raise ValueError(f"input={pattern!r}: cannot be read: {' '.join(str(error).split())}") from error
    shards = [ShardPath(i, uri, name, _format(uri)) for i, (name, uri) in enumerate(sorted(found))]
    return shards if stored_embeddings is None else [_pair(shard, stored_embeddings) for shard in shards]


def _pair(shard: ShardPath, stored: str) -> ShardPath:
    """Return the shard with where its embeddings lie in clip-retrieval's layout, or in DataComp's."""
    if shard.format != "parquet":
        raise ValueError(f"input={shard.uri!r}: must be .parquet with prepare.stored_embeddings={stored!r}")
    if stored != CLIP_RETRIEVAL:
        npz = posixpath.splitext(shard.uri)[0] + ".npz"
        return dataclasses.replace(shard, embeddings=npz, array=stored)
    match = _METADATA.fullmatch(shard.uri)
    if match is None:
        raise ValueError(
            f"input={shard.uri!r}: must be .../metadata/metadata_*.parquet with "
            f"prepare.stored_embeddings={stored!r}"
        )
    return dataclasses.replace(shard, embeddings=f"{match[1]}img_emb/img_emb_{match[2]}.npy")


def fingerprint_shards(shards: list[ShardPath]) -> list[dict[str, str | int]]:
    """Return name, size in bytes and modification time in nanoseconds of every shard, in their order.

    Of a file of stored embeddings too. Raises ValueError where a file has vanished.
    """
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(_fingerprint, shards))


def _fingerprint(shard: ShardPath) -> dict[str, str | int]:
    found = {"name": shard.name, **_stat(shard.uri)}
    if shard.embeddings is not None:
        found |= {f"embeddings_{name}": value for name, value in _stat(shard.embeddings).items()}
    return found


def _stat(uri: str) -> dict[str, int]:
    filesystem, path = resolve(uri)
    info = filesystem.get_file_info(path)
    if info.type != fs.FileType.File:
        raise ValueError(f"input={uri!r}: no such file")
    return {"size": info.size, "mtime_ns": info.mtime_ns}


def _format(uri: str) -> str | None:
    return FORMATS.get(posixpath.splitext(uri)[1].lower())


def _find(pattern: str) -> list[tuple[str, str]]:
    """Return (path relative to the root, uri) of every shard that one input names."""
    if not pattern:
        raise ValueError("input: an input is empty; name files, folders or patterns, joined with '::'")
    filesystem, path = resolve(pattern)
    match = _PATTERN.search(path)
    if match:
        root = posixpath.dirname(path[: match.start()])
    else:
        is_folder = filesystem.get_file_info(path).type == fs.FileType.Directory
        root = path if is_folder else posixpath.dirname(path)
    paths = dict.fromkeys(file for item in expand_braces(path) for file in _list(filesystem, item, pattern))
    scheme = "s3://" if pattern.startswith("s3://") else ""
    return [(posixpath.relpath(file, root), scheme + file) for file in paths]


def _list(filesystem: fs.FileSystem, item: str, pattern: str) -> list[str]:
    """Return the files that ``item``, free of braces, names: itself, those below it or those it matches."""
    match = _PATTERN.search(item)
    info = filesystem.get_file_info(item)
    if match:
        base = posixpath.dirname(item[: match.start()])
        fits = re.compile(glob_translate(item)).match
        files = [file for file in _walk(filesystem, base, "/" in item[match.start() :]) if fits(file)]
    elif info.type == fs.FileType.Directory:
        files = [file for file in _walk(filesystem, item, True) if not _is_hidden(file[len(item) :])]
    elif info.type == fs.FileType.File:
        if _format(item) is None:
            raise ValueError(f"input={item!r}: must end in one of {', '.join(FORMATS)}")
        files = [item]
    else:
        raise ValueError(f"input={pattern!r}: no such file or folder: {item}")
    shards = [file for file in files if _format(file)]
    tars = {posixpath.splitext(file)[0] for file in shards if _format(file) == "tar"}
    shards = [file for file in shards if _format(file) == "tar" or posixpath.splitext(file)[0] not in tars]
    if not shards:
        raise ValueError(f"input={pattern!r}: {item} names no file that ends in one of {', '.join(FORMATS)}")
    for file in shards:
        if isinstance(filesystem, fs.LocalFileSystem) and not os.access(file, os.R_OK):
            raise ValueError(f"input={pattern!r}: no permission to read {file}")
    return shards


def _walk(filesystem: fs.FileSystem, folder: str, recursive: bool) -> Iterator[str]:
    selector = fs.FileSelector(folder, recursive=recursive, allow_not_found=True)
    return (info.path for info in filesystem.get_file_info(selector) if info.type == fs.FileType.File)


def _is_hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in relative.strip("/").split("/"))


def expand_braces(text: str) -> list[str]:
    """Return every text that the brace lists of ``text`` stand for: ``a{08..10}`` is a08, a09, a10."""
    match = _BRACES.search(text)
    if match is None:
        return [text]
    body = match.group(1)
    if "," in body:
        options = body.split(",")
    else:
        first, last = body.split("..")
        padded = any(len(bound.lstrip("-")) > 1 and bound.lstrip("-")[0] == "0" for bound in (first, last))
        width = max(len(first), len(last)) if padded else 0
        step = 1 if int(last) >= int(first) else -1
        options = [f"{i:0{width}d}" for i in range(int(first), int(last) + step, step)]
    before, after = text[: match.start()], text[match.end() :]
    return list(dict.fromkeys(done for option in options for done in expand_braces(before + option + after)))
