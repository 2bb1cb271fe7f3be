"""``raycomp card``: a subset's data card, README.md with Hugging Face's front matter, and croissant.json."""

import posixpath
from collections.abc import Callable

from raycomp.config import DryRun
from raycomp.data.files import check_writable, is_dry_run
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.data.paths import KEPT_FILE, absolute_uri, resolve_file, size_files
from raycomp.data.written import ResultFile, hash_file
from raycomp.look.lineage.card_text import CITATION, describe_in_a_line, write_card
from raycomp.look.lineage.croissant import describe
from raycomp.look.lineage.sides import Side, open_side
from raycomp.look.lineage.subset import describe_rows

CARD, CROISSANT = "README.md", "croissant.json"
"""README.md is the name under which a model hub shows a card."""


def card(source: str, out: str, say: Callable[[str], object] = print) -> None:
    """Write README.md and croissant.json of the subset in ``source`` to ``out``, which may be that folder.

    Their links to files are relative to the run's folder. Raises ValueError where ``source`` holds no
    finished curation or selection, its files differ from what it wrote, or ``out`` has one of the two files:
    its publisher may have edited it.
    """
    side, folder = open_side(source), Folder(absolute_uri(str(out)))
    there = [name for name in (CARD, CROISSANT) if folder.exists(name)]
    if there:
        raise ValueError(f"--out {out}: has {there[0]} already; move it, or name another folder")
    kept, shards = _list_files(side)
    check_writable(folder.uri)
    if is_dry_run():
        raise DryRun("dry run of card: all checks passed, nothing was written; 2 files would be")
    rows = describe_rows(side)
    sizes = {str(uri): size or 0 for uri, size in size_files([kept, *(file for _, file in shards)])}
    name = posixpath.basename(side.uri)
    described = describe(
        name,
        describe_in_a_line(side),
        CITATION,
        str(side.run["finished"])[:10] if "finished" in side.run else None,
        (KEPT_FILE, kept),
        shards,
    )
    folder.write_json(described, CROISSANT)
    folder.write_bytes(
        write_card(name, side, rows, sizes[kept], [sizes[file] for _, file in shards]).encode(), CARD
    )
    say(f"{folder.at(CARD)}, {folder.at(CROISSANT)}: complete the lines with TODO before you publish")


def _list_files(side: Side) -> tuple[ResultFile, list[tuple[str, ResultFile]]]:
    """Return the table of kept rows, and the shards by name, each with its SHA-256."""
    files = check_results(Folder(side.uri), side.run, "subset", "shards")
    if KEPT_FILE not in files:
        raise ValueError(f"{side.uri}: has no {KEPT_FILE}; run it again")
    shards = [(name, _with_hash(file)) for name, file in sorted(files.items()) if name.endswith(".tar")]
    return _with_hash(files[KEPT_FILE]), shards


def _with_hash(file: ResultFile) -> ResultFile:
    """Return a file with its SHA-256, which runs without a manifest did not record."""
    if file.sha256 is None:
        filesystem, path = resolve_file(file)
        with filesystem.open_input_file(path) as source:
            file.sha256 = hash_file(str(file), source).sha256
    return file
