"""Pages from jinja2 templates, their frame and table of contents."""

import base64
import io
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raycomp.config import as_setting, flatten
from raycomp.report.charts import Html, Layer, curves, escape, join, replace_forbidden, tag
from raycomp.table import Numeral, as_columns, is_number, number, percent, write_cell

if TYPE_CHECKING:
    from jinja2 import Environment


SCRIPT = Html("""
for (const pre of document.querySelectorAll("pre")) {
  const button = document.createElement("button");
  button.type = "button"; button.className = "copy"; button.textContent = "Copy";
  button.onclick = () => {
    const range = document.createRange();
    range.selectNodeContents(pre);
    const chosen = getSelection();
    chosen.removeAllRanges(); chosen.addRange(range);
    button.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
  };
  pre.before(button);
}
""")
"""The only script of a page. The policy names its hash, so no other script runs."""
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "script-src 'sha256-ZNHjMARbnTCJ8OsH/3tMLsVo4qtDAJ53YxQqXhJTg/A='"
)
INDEX = "index.html"
INDEX_MARK = "<!-- index -->"
_HEADING = re.compile(r"<h2>(.*?)</h2>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def add_contents(content: str) -> tuple[Html, Html]:
    """Return the markup of a page with an anchor at every h2, and its table of contents."""
    seen: Counter[str] = Counter()
    links: list[Html] = []

    def anchor(match: re.Match[str]) -> str:
        text = Html(_TAG.sub("", match[1]).strip())
        name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "section"
        seen[name] += 1
        place = name if seen[name] == 1 else f"{name}-{seen[name]}"
        links.append(tag("a", text, href=f"#{place}"))
        return f'<h2 id="{place}">{match[1]}</h2>'

    marked = Html(_HEADING.sub(anchor, content))
    return marked, tag("nav", Html(INDEX_MARK), join(links), class_="toc", aria_label="Contents")


def link_index(page: str, place: str) -> str:
    """Return a page with a link to the index of its sibling runs at ``place``, a relative address."""
    return page.replace(INDEX_MARK, f'<a class="home" href="{escape(place)}">All runs</a>', 1)


SIDE = 240
"""Pixels of a thumbnail's longer side."""
MOST_PIXELS = 100_000_000
MOST_ROWS = 20
"""A table with more rows is folded."""


def render_page(template: str | Path, **values: Any) -> str:
    """Return a page as text to be written as UTF-8.

    ``template``: a path inside the package raycomp, or the Path of a file of your own, which may extend and
    import those of the package. All values are escaped except charts, which are ``Html``.
    """
    templates = load_templates()
    if isinstance(template, Path):
        page = templates.from_string(template.read_text("utf-8"))
    else:
        page = templates.get_template(template)
    return replace_forbidden(page.render(values))


@cache
def load_templates() -> "Environment":
    """Return the environment that reads the package's templates, with the functions that they call."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("raycomp", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shared = (number, percent, Numeral, write_cell, is_number, as_columns, as_setting, flatten, add_contents)
    templates.globals |= {function.__name__: function for function in (*shared, draw_growth, make_thumbnail)}
    templates.globals |= {"POLICY": POLICY, "SCRIPT": SCRIPT, "MOST_ROWS": MOST_ROWS}
    return templates


def make_thumbnail(data: bytes) -> str | None:
    """Return a small JPEG as a data URI; None if the bytes are not a readable image."""
    small = shrink_photo(data, SIDE)
    return None if small is None else f"data:image/jpeg;base64,{base64.b64encode(small).decode()}"


def shrink_photo(data: bytes, side: int) -> bytes | None:
    """Return a JPEG of at most ``side`` px; None if the bytes are not a readable image."""
    from raycomp.models.images import ImageFault, decode_image  # PIL

    try:
        image = decode_image(data, MOST_PIXELS)
    except ImageFault:
        return None
    image.thumbnail((side, side))
    written = io.BytesIO()
    image.save(written, "JPEG", quality=80)
    return written.getvalue()


def draw_growth(phase: Mapping[str, Any]) -> Html:
    """Draw the number of scorers over the phase's time: a step line."""
    since_S, scorers_S, _ = np.array(phase["growth"], float).T
    x = np.append(np.repeat(since_S, 2)[1:], phase["wall_s"]).round()
    title = f"Scorers of {phase['phase']} over time"
    return curves(title, "seconds", "scorers", [(Layer("scorers", "kept"), x, np.repeat(scorers_S, 2))])
