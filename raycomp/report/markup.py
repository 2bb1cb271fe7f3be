"""Markup of charts, built so that text cannot become markup: every value except ``Html`` is escaped."""

import html
import re
from collections.abc import Iterable

VOID_TAGS = frozenset({"path", "line", "rect", "circle"})
# Characters that XML and HTML forbid: controls except tab and new line, lone surrogates, non-characters.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Html(str):
    """Text that is already markup."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the text; templates do not escape it."""
        return self


def replace_forbidden(text: str) -> str:
    """Return a text with U+FFFD for every character that HTML forbids."""
    return _FORBIDDEN.sub("\ufffd", text)


def escape(value: object) -> Html:
    """Return ``value`` as markup: ``Html`` unchanged, all else escaped, forbidden characters as U+FFFD."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(replace_forbidden(str(value)), quote=True))


def join(children: Iterable[object], separator: str = "") -> Html:
    """Return the children, escaped and joined; None is skipped."""
    return Html(separator.join(escape(child) for child in children if child is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return one element. ``class_`` writes class, ``data_x`` writes data-x; None omits an attribute.

    Names come from the code and are not escaped; values and children are.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID_TAGS and not children:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")
