"""The frame of a page: table of contents, link to an index of runs, script that copies commands."""

import re
from collections import Counter

from raycomp.report.markup import Html, escape, join, tag

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
