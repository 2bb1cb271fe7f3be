"""Hooks of mkdocs: pages made from the code, and links from the documents to files outside docs/.

mkdocs.yml names this file; `make docs` runs it. It adds a page of options for every command, made from the
config dataclasses as `raycomp COMMAND --help` is; the functions of the package, by what Python itself finds
under their names; statuses; and a page or a file for everything in the repository that a document links to.
After the build it checks that no page loads anything from a network.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import raycomp
from raycomp import words
from raycomp.config import as_setting, list_options
from raycomp.config.commands import FOLDERS, Command, import_command
from raycomp.config.options import iterate_options, name_type

ROOT = Path(__file__).parents[2]
OUTSIDE = "repo"
"""The folder of the pages and files that lie outside docs/, each by its path in the repository."""
_ALWAYS = ("CONTRIBUTING.md", "bench/RESULTS.md")
_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "bash", ".toml": "toml", ".json": "json"}
_AS_THEY_ARE = (".png", ".svg", ".csv")
# What a browser loads by itself; a plain link is not loaded.
_LOADED = re.compile(
    r"""<(?:script|img|source|iframe)\b[^>]*\bsrc=["']?(?:https?:)?//[^\s>]*|"""
    r"""<link\b[^>]*\bhref=["']?(?:https?:)?//[^\s>]*|(?:@import|url\()\s*["']?(?:https?:)?//[^\s)]*"""
)
_DATA_LINKS = ("canonical",)


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and what documents link to outside docs/."""
    for command in FOLDERS:
        if (text := write_options(command)) is not None:
            files.append(File.generated(config, f"reference/options/{command}.md", content=text))
    for page in [*files.documentation_pages()]:
        if page.abs_src_path:
            _add_linked(files, config, Path(page.abs_src_path))
    for name in _ALWAYS:
        _add(files, config, ROOT / name)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page with links that lead into the built pages, and with its generated parts."""
    markdown = markdown.replace("<!-- options -->", list_commands())
    markdown = markdown.replace("<!-- statuses -->", list_statuses())
    markdown = markdown.replace("<!-- functions -->", list_functions())
    origin = _origin_of(page.file.src_uri)
    depth = "../" * page.file.src_uri.count("/")

    def lead(match: re.Match[str]) -> str:
        target = _find(origin, match[2])
        return match[0] if target is None else f"{match[1]}{depth}{_uri_of(target)}{match[3] or ''}{match[4]}"

    return _LINK.sub(lead, markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Raise where a built page would load something from a network."""
    found = [*find_foreign(Path(config.site_dir))]
    if found:
        raise PluginError("pages load files from a network: " + "; ".join(found[:5]))


def find_foreign(folder: Path) -> Iterator[str]:
    """Yield what the pages and styles in a folder would load from another host."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".html", ".css"):
            for match in _LOADED.finditer(path.read_text("utf-8")):
                if not any(f'rel="{name}"' in match[0] for name in _DATA_LINKS):
                    yield f"{path.relative_to(folder)}: {match[0]}"


def write_options(name: str) -> str | None:
    """Return the page of a command's options, None where it has none."""
    command = import_command(name)
    if "--set" not in command.arguments.split():
        return None
    shown = {one.path for one in list_options(command.config, command.mark)}
    lines = [f"# Options of raycomp {name}", "", _introduce(name, command), ""]
    options = [one for one in iterate_options(command.config) if one.path in shown or one.group]
    options.sort(key=lambda one: bool(one.group) or "." in one.path)
    heading = ""
    for one in options:
        if one.group:
            if any(path.startswith(f"{one.path}.") for path in shown):
                lines += ["", f"## {one.path}", "", one.text, ""]
                heading = ""
            continue
        if not heading:
            heading = "| option | type | default | meaning |\n| --- | --- | --- | --- |"
            lines.append(heading)
        lines.append(_write_row(one, command))
    return "\n".join(lines) + "\n"


def _introduce(name: str, command: Command) -> str:
    usage = f"Set an option with `--OPTION VALUE`. `raycomp {name} --help-all` prints the same list."
    if command.mark:
        return f"{usage} An option that is not set keeps the value of the run in `DIR`."
    return f"{usage} Options marked *free* change no result: a run may resume with another value."


def _write_row(one: Any, command: Command) -> str:
    default = "as in `DIR`" if command.mark else _code(as_setting(one.default))
    free = "" if command.mark or "free" not in one.marks else " *Free.*"
    names = ", ".join(f"`{short}`" for short, path in command.short.items() if path == one.path)
    wanted = one.marks.get("wanted")
    kind = name_type(one.hint) + (f", {_escape(wanted)}" if wanted else "")
    return f"| `{one.path}`{', ' * bool(names)}{names} | {kind} | {default} | {_escape(one.text)}{free} |"


def _code(text: str) -> str:
    return f"`{_escape(text)}`" if text else ""


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def list_commands() -> str:
    """Return a table of all commands: what each does, and its page of options."""
    lines = ["| command | purpose | options |", "| --- | --- | --- |"]
    for name in FOLDERS:
        command = import_command(name)
        has_options = "--set" in command.arguments.split()
        link = f"[options](options/{name}.md)" if has_options else "none"
        lines.append(f"| `raycomp {name}` | {command.text} | {link} |")
    return "\n".join(lines)


def list_functions() -> str:
    """Return the signature and docstring of every public name of the package but for config classes.

    ``raycomp.curate`` is a function and a folder: a tool that reads sources would take it for the folder.
    """
    names = [name for name in raycomp.__all__ if not name.endswith("Config")]
    return "\n\n".join(_write_name(f"raycomp.{name}", getattr(raycomp, name)) for name in names)


def _write_name(name: str, found: Any, level: str = "##") -> str:
    parts = [f"{level} {name}", _write_signature(name, found), _write_docstring(found)]
    if inspect.isclass(found):
        own = {one: value for one, value in vars(found).items() if not one.startswith("_")}
        methods = {one: value for one, value in own.items() if inspect.isfunction(value)}
        parts += [_write_name(f"{name}.{one}", value, f"{level}#") for one, value in methods.items()]
    return "\n\n".join(parts)


def _write_signature(name: str, found: Any) -> str:
    """Return a call with a line for each argument, types by their short names."""
    signature = inspect.signature(found)
    arguments = "".join(f"    {one},\n" for one in signature.parameters.values())
    returns = signature.return_annotation
    ends = "" if returns is inspect.Signature.empty else f" -> {inspect.formatannotation(returns)}"
    text = f"{name}(\n{arguments}){ends}" if arguments else f"{name}(){ends}"
    short = re.sub(r"\b(?:collections\.abc|os|typing|raycomp(?:\.\w+)+)\.(?=[A-Z])", "", text)
    return f"```python\n{short}\n```"


def _write_docstring(found: Any) -> str:
    return (inspect.getdoc(found) or "").replace("``", "`")


def list_statuses() -> str:
    """Return the tables of statuses."""
    tables = {
        "Scores (`curate`)": words.STATUSES,
        "Hard negatives (`negatives`)": words.NEGATIVE_STATUSES,
        "Continual learning (`continual`)": words.CONTINUAL_STATUSES,
        "Pictures of benchmarks and of negatives": words.PICTURE_STATUSES,
    }
    return "\n\n".join(f"### {title}\n\n{_list_texts(table)}" for title, table in tables.items())


def _list_texts(table: dict[str, str]) -> str:
    rows = [f"| `{name}` | {_escape(text)} |" for name, text in table.items()]
    return "\n".join(["| status | meaning |", "| --- | --- |", *rows])


def _origin_of(uri: str) -> Path:
    """Return the file of the repository that a page was made from."""
    prefix, _, name = uri.partition("/")
    return ROOT / name if prefix == OUTSIDE else ROOT / "docs" / uri


def _find(origin: Path, target: str) -> Path | None:
    """Return what lies in the repository where a link of ``origin`` leads, None where mkdocs handles it."""
    path = (origin.parent / target).resolve()
    if not path.is_relative_to(ROOT) or path == ROOT or not path.exists():
        return None
    inside = path.is_relative_to(ROOT / "docs")
    return None if inside and origin.is_relative_to(ROOT / "docs") else path


def _uri_of(path: Path) -> str:
    """Return where a file of the repository lies among the pages."""
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    name = path.relative_to(ROOT).as_posix()
    name = "/".join(part.lstrip(".") for part in name.split("/"))  # mkdocs leaves hidden files out
    return f"{OUTSIDE}/{name}" + ("" if path.suffix in (".md", *_AS_THEY_ARE) else ".md")


def _add_linked(files: Files, config: Any, document: Path) -> None:
    for match in _LINK.finditer(document.read_text("utf-8")):
        if (path := _find(document, match[2])) is not None:
            _add(files, config, path)


def _add(files: Files, config: Any, path: Path) -> None:
    """Add a file from outside docs/, and what it links to, once."""
    uri = _uri_of(path)
    if files.get_file_from_path(uri) is not None or path.is_relative_to(ROOT / "docs"):
        return
    if path.suffix in _AS_THEY_ARE:
        files.append(File.generated(config, uri, abs_src_path=str(path)))
        return
    files.append(File.generated(config, uri, content=_write_page(path)))
    if path.suffix == ".md":
        _add_linked(files, config, path)


def _write_page(path: Path) -> str:
    """Return a page that shows a file or lists a folder."""
    title = f"# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        return title + "".join(f"- `{one.name}`\n" for one in sorted(path.iterdir()))
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return text
    return f"{title}````{_LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"
