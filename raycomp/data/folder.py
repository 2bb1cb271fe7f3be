"""A results folder, on a local disk or in a store."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from raycomp.data.files import create_file, list_below, list_folder, new_file
from raycomp.data.paths import join_uri, resolve, resolve_file, strip_slash
from raycomp.data.written import forget_written


@dataclass(frozen=True)
class Folder:
    """Files by name relative to a path or a store's uri. Written files appear whole or not at all."""

    uri: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", strip_slash(self.uri) if self.uri else self.uri)

    def at(self, *names: str) -> str:
        """Return the uri of something in the folder."""
        return join_uri(self.uri, *names)

    @property
    def is_local(self) -> bool:
        """Whether the folder lies on a local disk."""
        return isinstance(resolve(self.uri)[0], fs.LocalFileSystem)

    def exists(self, *names: str) -> bool:
        """Whether there is a file or folder of that name."""
        return self._info(*names).type != fs.FileType.NotFound

    def is_folder(self, *names: str) -> bool:
        return self._info(*names).type == fs.FileType.Directory

    def _info(self, *names: str) -> fs.FileInfo:
        filesystem, path = resolve(self.at(*names))
        return filesystem.get_file_info(path)

    def list_names(self, *names: str) -> list[str]:
        """Return the sorted base names in a sub-folder; empty where it is missing."""
        return sorted(list_folder(self.at(*names)))

    def list_folders(self) -> list[str]:
        """Return the sorted names of the sub-folders; empty where it is missing or a file."""
        if self._info().type != fs.FileType.Directory:
            return []
        return sorted(name for name, is_folder in list_folder(self.uri).items() if is_folder)

    def find_names(self) -> list[str]:
        """Return the names of all files below, relative to the folder, sorted; empty where it is missing."""
        names = [name for name, info in list_below(self.uri) if info.is_file]
        return sorted(names, key=lambda name: name.split("/"))

    def read_bytes(self, *names: str) -> bytes:
        """Return a whole file, in one reply of a store. Raises ValueError where it is not a file."""
        filesystem, path = resolve_file(self.at(*names))
        with filesystem.open_input_file(path) as file:
            return file.read()

    def read_range(self, start: int, end: int, *names: str) -> bytes:
        filesystem, path = resolve(self.at(*names))
        with filesystem.open_input_file(path) as file:
            return file.read_at(int(end - start), int(start))

    def write_bytes(self, data: bytes, *names: str) -> None:
        """Write a whole file."""
        with new_file(self.at(*names)) as file:
            file.write(data)

    def read_json(self, *names: str) -> Any:
        """Return a json file's content."""
        try:
            return json.loads(self.read_bytes(*names))
        except ValueError:  # replaced by a longer one between the request for the size and that for the bytes
            return json.loads(self.read_bytes(*names))

    def write_json(self, content: Any, *names: str) -> None:
        """Write a json file, indented for people."""
        self.write_bytes(_dump(content), *names)

    def create_json(self, content: Any, *names: str) -> bool:
        """Write a json file unless the name exists; return whether it was written."""
        return create_file(self.at(*names), _dump(content))

    def remove(self, *names: str) -> None:
        """Remove a file, or a sub-folder with all its content; do nothing where it is missing."""
        filesystem, path = resolve(self.at(*names))
        forget_written(self.at(*names))
        kind = filesystem.get_file_info(path).type
        if kind == fs.FileType.Directory:
            with suppress(FileNotFoundError):  # in Google's store an implicit folder has no object
                filesystem.delete_dir(path)
        elif kind == fs.FileType.File:
            filesystem.delete_file(path)


def _dump(content: Any) -> bytes:
    """Return ``content`` as json, with null for NaN and infinities, which json lacks."""
    strict = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return (json.dumps(strict, indent=2) + "\n").encode()
