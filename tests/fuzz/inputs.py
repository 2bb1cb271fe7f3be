"""What the kinds share: damage to bytes, json of every sort, captions, and what an error may look like."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from raycomp.config import UserError
from raycomp.words import CONCEPT_KINDS

SPECIAL_NUMBERS = st.sampled_from([float("nan"), float("inf"), 1e308, -0.0, 2**31, 2**63, 10**400])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | SPECIAL_NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
# Names that only a parser of json meets: numbers beyond float, halves of surrogate pairs, a name that stands
# twice, depth.
ODD_JSON = st.sampled_from(
    ["1e400", "-1e999", '"\\ud800"', "NaN", "Infinity", '{"a": 1, "a": 2}', "[" * 900 + "]" * 900, "-0",
     "9" * 4300, "9" * 4301, '{"\\udfff": 0}', "[[[]]]", '"\\u0000"', "0.1e-9999"]
)  # fmt: skip
WORDS = "a the two red wooden dog cats man's girl-friend table in front of holds and T-shirt F16".split()
MARKUP = [
    *["<b>", "</a", "<!--", "-->", "&amp;", "&#0;", "&", "http://a.b/c?d", "www.", "me@a.b", "@.", "a.jpg"],
    *["\0", "\x1b[2J", "\r", "\n\t", "\u2028", "\u202e", "\ufeff", "\ud800", "\U0001f600\u200d"],
    *["\u0643\u0644", "\u72d7", "\u0130", "\u00df", "\ufb01", "e\u0301" * 9, "---", "...", '"', "'s"],
    *["\\", "{", "}", "[", "=cmd|", "$(x)", "%s", "x" * 120, "1" * 40, "<|endoftext|>", "<start_of_text>"],
]
PIECES = st.sampled_from(WORDS) | st.sampled_from(WORDS) | st.sampled_from(MARKUP) | st.text(max_size=5)
SENTENCES = [
    "",
    "A brown dog runs next to a red car.",
    "two women in blue dresses hold an umbrella under a tree",
]
CAPTIONS = st.builds(
    lambda join, pieces, sentence, times: join.join([*pieces, sentence] * times),
    st.sampled_from([" ", " ", "", ", ", "\n"]),
    st.lists(PIECES, max_size=12),
    st.sampled_from(SENTENCES),
    st.sampled_from([1, 1, 1, 4]),
)
LONG = CAPTIONS.map(lambda caption: caption * 40)
TEXTS = st.text(max_size=30) | st.sampled_from(
    ["A red cat runs.", "A brown cat runs next to a red car.", " ", "x" * 301, "\ud800", "a\nb", "\u0130"]
)
FIELDS = st.fixed_dictionaries(
    {
        "negative": TEXTS | JSON_VALUES,
        "kind": st.sampled_from(CONCEPT_KINDS) | JSON_VALUES,
        "concepts": st.lists(TEXTS, max_size=3) | JSON_VALUES,
    },
    optional={"more": JSON_VALUES},
)
REPLIES = (
    st.builds(json.dumps, FIELDS, ensure_ascii=st.booleans())
    | ODD_JSON
    | TEXTS
    | st.builds(lambda fields, text: text + json.dumps(fields) + text, FIELDS, TEXTS)
)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(("put", "insert", "drop", "repeat", "cut", "zero")),
        st.integers(0, 1 << 20),
        st.integers(1, 700),
        st.binary(min_size=1, max_size=8),
    ),
    max_size=5,
)


def damage(data: bytes, edits: list[tuple[str, int, int, bytes]]) -> bytes:
    """Return the data with each edit (kind, place, length, new bytes) made."""
    for kind, place, length, new in edits:
        at = place % (len(data) + 1)
        end = min(at + length, len(data))
        data = {
            "put": data[:at] + new + data[at + len(new) :],
            "insert": data[:at] + new + data[at:],
            "drop": data[:at] + data[end:],
            "repeat": data[:end] + data[at:],
            "cut": data[:at],
            "zero": data[:at] + bytes(end - at) + data[end:],
        }[kind]
    return data


def replace_within(content: Any, path: list[int], new: Any) -> Any:
    """Return json content with the value replaced, or left out (``...``), to which ``path`` leads.

    Each step counts the names or items, modulo their number.
    """
    if not path or not isinstance(content, dict | list) or not content:
        return content if new is ... else new
    names = list(content) if isinstance(content, dict) else range(len(content))
    name = names[path[0] % len(names)]
    copy = dict(content) if isinstance(content, dict) else list(content)
    if new is ... and (len(path) == 1 or not isinstance(copy[name], dict | list) or not copy[name]):
        del copy[name]
    else:
        copy[name] = replace_within(copy[name], path[1:], new)
    return copy


def check_strict(data: bytes) -> Any:
    """Return the content of strict json in UTF-8; fail on NaN, Infinity and halves of surrogate pairs."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no json")

    content = json.loads(data.decode(), parse_constant=refuse)
    json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    return content


def refused(call: Callable[[], Any]) -> str | None:
    """Return the line of the ValueError or UserError that the call raises, None where it raises nothing.

    Any other exception passes through, as does a ValueError of a library's own kind.
    """
    try:
        call()
    except ValueError as error:
        if type(error) not in (ValueError, UserError):
            raise
        line = str(error)
        assert line and len(line.splitlines()) == 1, f"not one line: {line!r}"
        return line
    return None
