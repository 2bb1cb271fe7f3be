"""The input files of a spec, by globs and brace lists: shards, lists and folders of images."""

import dataclasses
import os
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.utils import glob_translate
from pyarrow import fs

from raycomp.config import from_dict, list_options, override_all, to_dict
from raycomp.config.commands import find_file, flatten, is_own, name_own
from raycomp.config.options import ColumnsConfig, ModelConfig, ScorerConfig, read_share_or_none, say_if_slow
from raycomp.data import files
from raycomp.data.files import join_uri, resolve
from raycomp.models.stated import HUB_CONFIG, follow
from raycomp.table import group_by

LISTS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")
# The first of these extensions that a sample has is its image.
IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jfif")
# Formats of shards: a list of images, or a part of a folder whose images have texts of their own names.
LIST, FOLDER = "list", "folder"
PART_IMAGES = 1000
"""Images of a folder that make a shard."""
_TEXTS = (".txt", ".json")
# Karpathy's splits: dataset_coco.json, dataset_flickr8k.json. Other files named so describe data sets.
_KARPATHY = ("dataset_coco", "dataset_flickr")
FORMATS = {".tar": "tar", ".parquet": "parquet"}
_LAYOUTS = "; docs/reference/inputs.md has the layouts that can be read"
_NAMED = re.compile(r"([A-Za-z0-9_-]*)=(.+)", re.DOTALL)
_UNNAMED = "="
_PATTERN = re.compile(r"[*?\[{]")
_METADATA = re.compile(r"(.*/)metadata/metadata_([^/]*)\.parquet", re.DOTALL)
_BRACES = re.compile(r"\{([^{}]*,[^{}]*|-?\d+\.\.-?\d+)\}")
_COMPRESSED = re.compile(r"\.(?:tar\.(?:gz|bz2|xz|zst|lz4|Z)|t[gbx]z2?|tzst)$", re.IGNORECASE)
# Where a run writes files that end in .tar or .parquet, and its folders that hold no samples.
_TABLES = ("scores", "metadata", "marks", "negatives")
_OUTPUTS = ("shards/0.tar", "subset/kept.parquet", *(f"{folder}/0.parquet" for folder in _TABLES))
_RESULTS = (*_TABLES, "subset")
Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class ShardPath:
    """One input shard.

    ``name`` is its path relative to the root of its input, prefixed ``NAME=`` where there are several inputs
    or the input was given a name. It does not depend on the root's place, so that a corpus keeps its uids
    when it moves. ``ordinal`` is its place among all shards sorted by ``name``. ``format`` is tar,
    parquet, list (CSV, TSV, json) or folder.
    ``embeddings`` is the npy or npz file that holds the image embeddings of its rows, None where they are to
    be computed; ``array`` is the array's name in an npz.
    """

    ordinal: int
    uri: str
    name: str
    format: str
    embeddings: str | None = None
    array: str | None = None
    columns: ColumnsConfig = dataclasses.field(default_factory=ColumnsConfig)
    """How a table is read."""
    members: tuple[str, ...] = ()
    """Names of the images of a shard that is a part of the folder ``uri``, and of its texts without an image.
    Empty for a file."""
    texts: tuple[str, ...] = ()
    """Names of the members' texts and json files."""
    base: str | None = None
    """What uids are made of instead of ``name``, which for a part of a folder depends on the other files."""

    @property
    def place(self) -> str:
        """The uri, with the first image where the shard is a part of a folder: no two shards share it."""
        return f"{self.uri}#{self.members[0]}" if self.members else self.uri


def refuse_input(spec: str, said: str) -> ValueError:
    """Return the error that an input cannot be used, one line."""
    return ValueError(f"input={spec!r}: {said}")


def is_list(uri: str) -> bool:
    """Return whether a file lists images by its name; other json files may be anything."""
    stem, extension = posixpath.splitext(posixpath.basename(uri).lower())
    return extension in LISTS and (
        extension != ".json" or stem.startswith(("captions", "metadata", *_KARPATHY))
    )


def absolute_input(spec: str, folder: str = "") -> str:
    """Return an input spec with every relative path made absolute; it is then valid in any folder.

    Paths are relative to ``folder``, as in a file of that folder; "" is the working folder.
    """
    placed = []
    for name, pattern in map(_part, spec.split("::")):
        path = pattern if "://" in pattern else join_uri(folder, pattern)
        placed.append(name + files.absolute_uri(path) if pattern else name)
    return "::".join(placed)


def _part(part: str) -> tuple[str, str]:
    """Return ("NAME=" or "", pattern) of one input of a spec."""
    match = _NAMED.fullmatch(part)
    return (f"{match[1]}=", match[2]) if match else ("", part)


def split_input(spec: str) -> list[tuple[str, str]]:
    """Return the name, "" if none, and the pattern of each input of a spec."""
    return [(name.removesuffix("="), pattern) for name, pattern in map(_part, spec.split("::"))]


def expand_input(
    spec: str, stored_embeddings: str | None = None, columns: ColumnsConfig | None = None
) -> list[ShardPath]:
    """Return the shards that ``spec`` names, sorted by shard name.

    ``spec`` is one input or several joined with ``::``, each optionally ``NAME=``; an input is a file, a
    folder (every shard below it), a glob (``*``, ``?``, ``[ab]``, ``**``) or a brace list
    (``{00000..00009}``, ``{a,b}``); an existing name is not read as a pattern. Its root is the deepest folder
    before the first pattern character, for one file its folder, for a folder itself. Folders and globs select
    names that end in .tar or .parquet; a .parquet with the stem of a .tar in its folder is that shard's
    metadata (img2dataset's layout) and no shard of its own. A file with several links is one shard, by its
    own name where that is below the root. A relative path with a ``=`` in its first folder is written
    ``./a=b/c.tar``. Shards of an input ``=PATTERN`` have no prefix, though there are others.

    A folder or glob without shards is read as single images: by the CSV, TSV, JSON-lines and
    captions.json files in it, else by a text of each image's own name. The option ``stored_embeddings`` gives
    the place of each shard's embeddings; their existence is not checked. ``columns``: of tables.

    Raises ValueError, one line, where an input is empty, missing, unreadable or of no known format, holds a
    run's own results or compressed tars, or where two inputs name one file.
    """
    parts = list(map(_part, spec.split("::")))
    names = [name or f"{i}=" for i, (name, _) in enumerate(parts)]
    if len(set(names)) < len(names):
        said = f"two inputs have the same name; names are {', '.join(name[:-1] for name in names)}"
        raise refuse_input(spec, said)
    found: list[tuple[str, str]] = []
    shards: list[ShardPath] = []
    columns = columns or ColumnsConfig()
    for (own, pattern), name in zip(parts, names, strict=True):
        prefix = "" if own == _UNNAMED else own if len(parts) == 1 else name
        try:
            with say_if_slow(f"listing {pattern}"):
                named = _find(pattern)
                found += [(prefix + relative, uri) for relative, uri in named]
                shards += [] if named else _part_folder(pattern, prefix, columns)
        except OSError as error:
            raise refuse_input(pattern, f"cannot be read: {' '.join(str(error).split())}") from error
    seen: dict[str, str] = {}
    for name, uri in found:
        other = seen.setdefault(uri if "://" in uri else os.path.realpath(uri), name)
        if other != name:
            raise ValueError(f"input: {other} and {name} are the same file, {uri}; name it once")
    shards += [ShardPath(0, uri, name, str(_format(uri)), columns=columns) for name, uri in found]
    for shard in shards:
        _check_columns(shard)
    shards = [replace(shard, ordinal=i) for i, shard in enumerate(sorted(shards, key=lambda one: one.name))]
    return shards if stored_embeddings is None else [_pair(shard, stored_embeddings) for shard in shards]


def _check_columns(shard: ShardPath) -> None:
    """Raise ValueError where the options of tables ask for what the shard's format does not have."""
    if shard.format == LIST:
        return
    asked = dict(flatten(to_dict(shard.columns)))
    usual = dict(flatten(to_dict(ColumnsConfig())))
    if shard.format == "parquet":
        asked = {"quotes": asked["quotes"], "captions": "all" if asked["captions"] == "all" else "first"}
    for name, value in asked.items():
        if value != usual[name]:
            place = "images with texts" if shard.format == FOLDER else f"{shard.format} shards"
            raise ValueError(
                f"columns.{name}={value!r}: has no effect on {place}, such as {shard.name}; leave it out, "
                f"or list the images in a CSV or json"
            )


def add_input(spec: str, more: str) -> str:
    """Return an input spec with another one joined, in which the shards of the first keep their names.

    An unnamed input of several is numbered, so that adding it last changes no other name. An input that is
    there already is not joined again.
    """
    known = {pattern for _, pattern in map(_part, spec.split("::"))}
    left = [part for part in more.split("::") if _part(part)[1] not in known]
    if not left:
        return spec
    is_one = len(spec.split("::")) == 1
    return f"{_UNNAMED if is_one and not _part(spec)[0] else ''}{spec}::{'::'.join(left)}"


def say_input(spec: str) -> str:
    """Return an input spec for a reader: the inputs apart, one without a name as it was given."""
    return " and ".join(part.removeprefix(_UNNAMED) for part in spec.split("::"))


def list_written_shards(written: Mapping[str, str]) -> list[ShardPath]:
    """Return the shards among the files of a run, as ``expand_input`` gives those of its folder ``shards``.

    ``written``: uris by name in the run's folder.
    """
    kinds = {name: FORMATS.get(posixpath.splitext(name)[1]) for name in sorted(written)}
    shards = [(name, kind) for name, kind in kinds.items() if kind and name.startswith("shards/")]
    return [
        ShardPath(i, str(written[name]), name.removeprefix("shards/"), kind)
        for i, (name, kind) in enumerate(shards)
    ]


def check_output(spec: str, out: str, option: str = "input") -> None:
    """Raise ValueError where a run's results in the folder ``out`` would be input of ``spec`` themselves.

    ``option``: the name of the option with the value ``spec``.
    """
    for _, pattern in map(_part, spec.split("::")):
        scheme = files.split_uri(pattern)[0]
        if not pattern or scheme != files.split_uri(out)[0]:
            continue  # no storage request for an impossible overlap
        filesystem, path = resolve(pattern)
        for name in _OUTPUTS:
            target = resolve(join_uri(out, name))[1]
            names = {target} if scheme else {target, os.path.realpath(target)}
            if any(_takes(filesystem, item, name) for item in _items(filesystem, path) for name in names):
                said = "which would take what is written there for samples; name a folder outside"
                raise ValueError(f"out={out!r}: lies inside {option}={pattern!r}, {said}")


def _takes(filesystem: fs.FileSystem, item: str, file: str) -> bool:
    """Whether an input without braces would select a file of that name."""
    start = _pattern_start(filesystem, item)
    if start is not None:
        return _glob(item, start).match(file) is not None
    folders = {item, os.path.realpath(item)} if isinstance(filesystem, fs.LocalFileSystem) else {item}
    return any(
        file.startswith(folder.rstrip("/") + "/") and not _is_hidden(file[len(folder) :])
        for folder in folders
    )


def _pair(shard: ShardPath, stored: str) -> ShardPath:
    """Return the shard with the place of its embeddings in clip-retrieval's layout, or in DataComp's."""
    said = f"prepare.stored_embeddings={stored!r}"
    if shard.format != "parquet":
        raise refuse_input(shard.uri, f"must be .parquet with {said}")
    if stored != "clip_retrieval":
        npz = posixpath.splitext(shard.uri)[0] + ".npz"
        return dataclasses.replace(shard, embeddings=npz, array=stored)
    match = _METADATA.fullmatch(shard.uri)
    if match is None:
        raise refuse_input(shard.uri, f"must be .../metadata/metadata_*.parquet with {said}")
    return dataclasses.replace(shard, embeddings=f"{match[1]}img_emb/img_emb_{match[2]}.npy")


def _format(uri: str) -> str | None:
    """Return the format of a file by its name, None where it is not one of input."""
    extension = posixpath.splitext(uri)[1].lower()
    return FORMATS.get(extension) or (LIST if is_list(uri) else None)


def _find(pattern: str) -> list[tuple[str, str]]:
    """Return (path relative to the root, uri) of every shard that one input names."""
    if not pattern:
        raise ValueError("input: an input is empty; name files, folders or patterns, joined with '::'")
    filesystem, path = resolve(pattern)
    start = _pattern_start(filesystem, path)
    if start is not None:
        root = posixpath.dirname(path[:start])
    else:
        is_folder = filesystem.get_file_info(path).type == fs.FileType.Directory
        root = path if is_folder else posixpath.dirname(path)
    scheme = f"{name}://" if (name := files.split_uri(pattern)[0]) else ""
    items = _items(filesystem, path)
    infos = files.read_infos([scheme + item for item in items if _PATTERN.search(item) is None])
    paths = [file for item in items for file in _list(filesystem, item, infos.get(scheme + item), pattern)]
    if not scheme:
        # Every file once, by its own name where that is below the root, else by the first name.
        by_file: dict[str, str] = {}
        for file in sorted(paths):
            real = os.path.realpath(file)
            is_own = real == os.path.join(os.path.realpath(root), os.path.relpath(file, root))
            by_file[real] = file if is_own else by_file.get(real, file)
        paths = list(by_file.values())
    return [(posixpath.relpath(file, root), scheme + file) for file in dict.fromkeys(paths)]


def _pattern_start(filesystem: fs.FileSystem, path: str) -> int | None:
    """Return where the pattern in ``path`` starts: in its first part that does not exist."""
    match = _PATTERN.search(path)
    while match:
        end = path.find("/", match.end())
        there = path if end < 0 else path[:end]
        if filesystem.get_file_info(there).type == fs.FileType.NotFound:
            return match.start()
        match = _PATTERN.search(path, len(there))
    return None


def _items(filesystem: fs.FileSystem, path: str) -> list[str]:
    """Return the expansions of a path's braces, except for braces in an existing name."""
    start = _pattern_start(filesystem, path)
    if start is None:
        return [path]
    root = path[: path.rfind("/", 0, start) + 1]
    return [root + item for item in expand_braces(path[len(root) :])]


def _glob(item: str, start: int) -> re.Pattern:
    """Return the regular expression of a pattern; folders before the one that holds ``start`` are literal."""
    root = item[: item.rfind("/", 0, start) + 1]
    return re.compile(re.escape(root) + glob_translate(item[len(root) :]))


def _list(filesystem: fs.FileSystem, item: str, info: fs.FileInfo | None, pattern: str) -> list[str]:
    """Return the files that ``item``, free of braces, names: itself, those below it or those it matches.

    ``info`` is the storage's file info, where it is known.
    """
    start = _pattern_start(filesystem, item)
    info = info or filesystem.get_file_info(item)
    if start is not None:
        base = posixpath.dirname(item[:start])
        fits = _glob(item, start).match
        listed = _list_files(filesystem, base, "/" in item[start:])
        files = [file for file in listed if fits(file)]
    elif info.type == fs.FileType.Directory:
        listed = files = [
            file for file in _list_files(filesystem, item, True) if not _is_hidden(file[len(item) :])
        ]
    elif info.type == fs.FileType.File:
        if _list_images([item]):
            return []  # read as a folder of one
        if _format(item) is None:
            raise refuse_input(pattern, f"must end in one of {', '.join(FORMATS)}{_LAYOUTS}")
        listed = files = [item]
    else:
        raise refuse_input(pattern, f"no such file or folder: {item}")
    folders = {posixpath.dirname(file) for file in _list_images(files)}
    left = [file for file in files if not _is_metadata(filesystem, file, folders)]
    known = {file: kind for file in left if (kind := _format(file))}
    tars = {posixpath.splitext(file)[0] for file, kind in known.items() if kind == "tar"}
    is_packed = any(kind != LIST for kind in known.values())
    shards = [
        file
        for file, kind in known.items()
        if kind == "tar" or ((kind == LIST) != is_packed and posixpath.splitext(file)[0] not in tars)
    ]
    _refuse_files(pattern, listed, files, shards)
    lists = group_by((file for file in shards if known[file] == LIST), lambda one: posixpath.splitext(one)[0])
    for one, *others in lists.values():
        if others:
            said = f"{one} and {others[0]} are two lists of one name, whose pairs would count twice; name one"
            raise refuse_input(pattern, said)
    if not shards and info.type == fs.FileType.Directory and start is None and _list_images(files):
        return []
    if not shards:
        kinds = Counter(posixpath.splitext(file)[1].lower() or "no extension" for file in files)
        there = ", ".join(f"{count:,} of {kind}" for kind, count in kinds.most_common(4))
        unpack = "; unpack it" * any(kind in (".zip", ".7z", ".rar", ".gz") for kind in kinds)
        found = f"there are {there}{unpack}" if there else "it is empty"
        wanted = ", ".join([*FORMATS, *LISTS[:-1]])
        said = f"{item} names no file that ends in one of {wanted}; {found}"
        raise refuse_input(pattern, f"{said}{_LAYOUTS}")
    for file in shards if isinstance(filesystem, fs.LocalFileSystem) else ():
        _check_name(file)
        if not os.path.isfile(file):
            is_link = os.path.islink(file)
            what = f"a link to {os.readlink(file)}, where there is no file" if is_link else "no file"
            raise refuse_input(pattern, f"{file} is {what}")
        if not os.access(file, os.R_OK):
            raise refuse_input(pattern, f"no permission to read {file}")
    return shards


def _is_metadata(filesystem: fs.FileSystem, file: str, folders: Collection[str]) -> bool:
    """Whether a Parquet file describes the images in a folder of its stem (img2dataset), and holds none."""
    stem, extension = posixpath.splitext(file)
    if stem in folders and extension == ".parquet":
        with suppress(pa.ArrowException, OSError):
            names = {*pq.read_schema(file, filesystem=filesystem).names}
            return {"url", "status"} <= names and names.isdisjoint(IMAGE_EXTENSIONS)
    return False


def _part_folder(pattern: str, prefix: str, columns: ColumnsConfig) -> list[ShardPath]:
    """Return shards of the images in a folder, by sub-folder.

    Uids are made of the input's name and the image's path; they do not depend on the other files. Raises
    ValueError where no image has a text of its own name.
    """
    filesystem, root = resolve(pattern)
    scheme = f"{name}://" if (name := files.split_uri(pattern)[0]) else ""
    one = posixpath.basename(root) if filesystem.get_file_info(root).is_file else ""  # a single picture
    root = posixpath.dirname(root) if one else root
    paths = (posixpath.relpath(file, root) for file in _list_files(filesystem, root, not one))
    names = sorted(file for file in paths if not _is_hidden(file))
    images = [one] if one else _list_images(names)
    found = pair_texts(names, images)
    if not any(one.lower().endswith(".txt") for own in found.values() for one in own):
        if one:
            text = posixpath.join(root, f"{posixpath.splitext(one)[0]}.txt")
            raise refuse_input(pattern, f"has no text: write its caption to {text}, or name its folder")
        said = "write captions.csv with the columns file_name and caption, or a .txt of the same name"
        raise refuse_input(
            pattern, f"holds {len(images):,} images and no captions; {said} next to each image"
        )
    paired = {one for own in found.values() for one in own}
    alone = [name for name in names if not one and name.lower().endswith(".txt") and name not in paired]
    for name in (*images, *paired, *alone):
        _check_name(name)
    shards = []
    for folder, inside in group_by(sorted([*images, *alone]), posixpath.dirname).items():
        for start in range(0, len(inside), PART_IMAGES):
            name = posixpath.join(prefix + folder, f"images-{start // PART_IMAGES:05d}")
            members = tuple(inside[start : start + PART_IMAGES])
            own = tuple(dict.fromkeys(one for member in members for one in found.get(member, ())))
            base, uri = f"{prefix}images", scheme + root
            shards.append(ShardPath(0, uri, name, FOLDER, None, None, columns, members, own, base))
    return shards


def _check_name(file: str) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in file):
        raise ValueError(f"input: {os.fsencode(file)!r}: names must be UTF-8; rename it")


def pair_texts(names: Iterable[str], images: Iterable[str]) -> dict[str, list[str]]:
    """Return the text and the json of each image: a.txt, else a.jpg.txt, of a.jpg; extensions in any case."""
    known: dict[tuple[str, str], str] = {}
    for name in names:
        stem, extension = posixpath.splitext(name)
        if extension.lower() in _TEXTS:
            known.setdefault((stem, extension.lower()), name)
    stems = {image: (posixpath.splitext(image)[0], image) for image in images}
    return {
        image: [
            own for kind in _TEXTS for own in [known.get((stem, kind)) or known.get((whole, kind))] if own
        ]
        for image, (stem, whole) in stems.items()
    }


def _list_images(files: Iterable[str]) -> list[str]:
    return [file for file in files if posixpath.splitext(file)[1].lower()[1:] in IMAGE_EXTENSIONS]


def _refuse_files(pattern: str, listed: Iterable[str], paths: Iterable[str], shards: list[str]) -> None:
    """Raise ValueError where a folder or glob holds samples in an unsupported form, or results."""
    packed = next((file for file in paths if _COMPRESSED.search(posixpath.basename(file))), None)
    if packed:
        said = "is compressed and cannot be read; unpack it to .tar, or name the other shards by a pattern"
        raise refuse_input(pattern, f"{packed} {said}")
    runs = {posixpath.dirname(file) for file in listed if posixpath.basename(file) == files.RUN}
    for file in shards:
        folder, last = posixpath.split(posixpath.dirname(file))
        if folder in runs and last in _RESULTS:
            shards_place = posixpath.join(folder, "shards")
            said = f"holds the results of a run in {folder}; name shards, as in {shards_place}"
            raise refuse_input(pattern, said)


def _list_files(filesystem: fs.FileSystem, folder: str, recursive: bool) -> list[str]:
    """Return the files in a folder, hidden ones too; links are followed, each folder once.

    Raises OSError where a folder cannot be read.
    """
    if not isinstance(filesystem, fs.LocalFileSystem):
        selector = fs.FileSelector(folder, recursive=recursive, allow_not_found=True)
        return [info.path for info in filesystem.get_file_info(selector) if info.type == fs.FileType.File]

    def fail(error: OSError) -> None:
        raise error

    found: list[str] = []
    seen: set[str] = set()
    # Links last, so that files below the root keep their own name.
    todo = [folder]
    while todo:
        for here, folders, names in os.walk(todo.pop(0), onerror=fail):
            real = os.path.realpath(here)
            if not recursive or real in seen:
                folders.clear()
            if real not in seen:
                seen.add(real)
                below = [os.path.join(here, name) for name in sorted(folders)]
                todo += [path for path in below if os.path.islink(path)]
                found += [os.path.join(here, name) for name in sorted(names)]
    return found


def _is_hidden(relative: str) -> bool:
    """Whether a dot or an underscore hides a file or its folder; cameras write one before an image's name."""
    folder, _, file = relative.strip("/").rpartition("/")
    is_own = bool(_list_images([file])) or posixpath.splitext(file)[1].lower() in _TEXTS
    return file.startswith("." if is_own else (".", "_")) or any(
        part.startswith((".", "_")) for part in folder.split("/")
    )


def expand_braces(text: str) -> list[str]:
    """Return every expansion of the brace lists of ``text``: ``a{08..10}`` is a08, a09, a10."""
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


def list_classes(folder: str) -> dict[str, list[str]] | None:
    """Return by class the images anywhere below its folder, relative to ``folder``; both in order of name.

    Hidden files and folders, and files without an image extension, are skipped. None where ``folder`` is not
    a folder, or holds shards and no such images. One listing; raises OSError where it fails.
    """
    filesystem, path = resolve(folder)
    if filesystem.get_file_info(path).type != fs.FileType.Directory:
        return None
    classes: dict[str, list[str]] = {}
    has_shards = False
    for name, info in files.list_below(folder):
        extension = posixpath.splitext(name)[1].lower()
        own, _, file = name.partition("/")
        if name.startswith(".") or "/." in name:
            continue
        has_shards |= info.is_file and extension in FORMATS
        if info.type == fs.FileType.Directory:
            classes.setdefault(own, [])
        elif file and extension[1:] in IMAGE_EXTENSIONS:
            classes.setdefault(own, []).append(name)
    if has_shards and not any(classes.values()):
        return None
    return {own: sorted(classes[own]) for own in sorted(classes)}


def with_absolute_paths(config: Config) -> Config:
    """Return the config with absolute paths in every option that names a file or folder.

    A model's name that is the default becomes what the files next to its weights state, if anything.
    """
    config = from_dict(config, to_dict(config))  # every option is read as --set reads it
    values = dict(flatten(to_dict(config)))
    named = [option for option in list_options(type(config), "path") if values.get(option.path)]
    whole = {one.path: _make_whole(one.marks["path"], values[one.path]) for one in named}
    for path, weights in [*whole.items()]:
        model = next((one for end in ("name", "model") if (one := f"{path[:-7]}{end}") in whole), None)
        if path.endswith(".weights") and model:
            default = (ModelConfig if model.endswith("name") else ScorerConfig)().model
            whole[model], whole[path] = follow(whole[model], default, weights)
    return override_all(config, whole)


def _make_whole(kind: str, value: Any) -> Any:
    """Return the value of an option with absolute paths; ``kind`` is the option's mark "path"."""
    if isinstance(value, tuple):
        return tuple(_make_whole(kind, one) for one in value)
    if kind == "input":
        return absolute_input(value)
    if kind == "place":
        return files.absolute_uri(value)
    if kind == "folder":
        return files.absolute_uri(value) if os.sep in value else value
    if kind == "share_or_input":
        return absolute_input(value) if read_share_or_none(value) is None else value
    if kind == "code":
        return f"{os.path.abspath(find_file(value))}:{name_own(value)}" if is_own(value) else value
    assert kind == "file", kind
    schema, _, place = value.partition(":")
    if schema == "local-dir" and place:
        return f"{schema}:{files.absolute_uri(place)}"
    # A folder that only shares the name of a model is not a model's folder.
    paths = (value, *(os.path.join(value, one) for one in (files.RUN, files.ARCHITECTURE, HUB_CONFIG)))
    return files.absolute_uri(value) if any(map(os.path.isfile, paths)) else value


def fingerprint_shards(shards: list[ShardPath]) -> list[dict[str, str | int]]:
    """Return name and size in bytes of every shard, in order, and the size of its stored embeddings.

    A copy has the same fingerprint, independent of times and place; a different content of the same size is
    detected where samples are read. Raises ValueError where a file is missing.
    """
    described = describe_shards(shards)
    return [{name: value for name, value in one.items() if name != "times"} for one in described]


def describe_shards(shards: list[ShardPath]) -> list[dict[str, Any]]:
    """Return name, size and times of every shard's files, in order; see ``fingerprint_shards``."""
    found = files.read_infos(_list_shard_files(shards))
    missing = next((uri for uri, info in found.items() if info.type != fs.FileType.File), None)
    if missing is not None:
        raise ValueError(f"input={missing!r}: no such file")
    return [
        {
            "name": shard.name,
            "size": sum(found[uri].size for uri in _name_files(shard)),
            **({} if shard.embeddings is None else {"embeddings_size": found[shard.embeddings].size}),
            "times": [files.read_time(uri, found[uri]) for uri in _list_shard_files([shard])],
        }
        for shard in shards
    ]


def list_times(shards: Iterable[ShardPath], uris: Iterable[str] = ()) -> list[int | None]:
    """Return when the files of shards, and others, were last modified, in ns; None where one is missing.

    An object's time is cut to seconds: a list may report more digits than a HEAD.
    """
    return [
        files.read_time(uri, info)
        for uri, info in files.read_infos([*_list_shard_files(shards), *uris]).items()
    ]


def _list_shard_files(shards: Iterable[ShardPath]) -> list[str]:
    return [uri for shard in shards for uri in (*_name_files(shard), shard.embeddings) if uri is not None]


def _name_files(shard: ShardPath) -> list[str]:
    """Return the shard's file, or the images and texts of a part of a folder."""
    return [join_uri(shard.uri, name) for name in (*shard.members, *shard.texts)] or [shard.uri]


def count_bytes(shards: Iterable[ShardPath]) -> int:
    """Return the total size of shards in bytes; a missing shard counts as 0."""
    return sum(
        size or 0 for _, size in files.size_files(uri for shard in shards for uri in _name_files(shard))
    )
