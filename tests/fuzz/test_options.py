"""Options: a config that run.json can hold, or one line that says which option must be what."""

import contextlib
import io
import json
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycomp.cli import Reader, main, read_values
from raycomp.config import changed_options, flatten, from_dict, list_options, override_all, to_dict
from raycomp.config.commands import RAYCOMP
from raycomp.config.options import split_none
from raycomp.curation.config import CurateConfig
from tests.fuzz.child import run
from tests.fuzz.inputs import JSON_VALUES, check_strict, refused

CONFIGS = tuple(dict.fromkeys(one.config for one in RAYCOMP.commands.values() if one.config))
PATHS = [path for path, _ in flatten(to_dict(CurateConfig()))]
ODD_PATHS = st.sampled_from(
    ["", ".", "align", "align.", "align.keep.x", "scorer..model", "__class__", "a\nb"]
)
WORDS = st.sampled_from(
    ["0", "-1", "1", "0.5", "1e3", "nan", "-inf", "inf", "1_0", "\u0663", "\u00b2", "9" * 20, "9" * 5000,
     "true", "none", "null", "", " ", ",", "a,b", "random:\u00b2", "random:" + "9" * 30, "random:-1", "\0",
     "http://[::1", "http://h:99999/", "ftp://h", "s3://", "rules", "cpi", "SWAP,SWAP", "\udcff", "1e400"]
)  # fmt: skip
TEXTS = WORDS | st.text(max_size=6)
VALUES = TEXTS | JSON_VALUES | st.lists(st.text(max_size=3), max_size=3).map(tuple)


def draw_options(kind):
    paths = st.sampled_from([path for path, _ in flatten(to_dict(kind()))])
    return st.tuples(st.just(kind), st.dictionaries(paths | ODD_PATHS, VALUES, min_size=1, max_size=3))


@given(st.sampled_from(CONFIGS).flatmap(draw_options))
def options(drawn):
    (kind, values), found = drawn, []
    line = refused(lambda: found.append(override_all(kind(), values)))
    if line is not None:
        assert any(repr(name)[1:-1] in line for path in values for name in path.split(".")), line
        return
    (config,) = found
    text = json.dumps(to_dict(config), indent=2)
    assert from_dict(kind(), check_strict(text.encode())) == config
    assert override_all(kind(), changed_options(config)) == config


FORMS = [f"{start}{{path}}={{value}}" for start in ("", "--", "--set=", "--set\n")] + ["--{path}\n{value}"]
INPUTS = st.sampled_from(["photos", "p=in/a::q=in/b", "s3://b/date=2024/", "./seed=3", "align=x", "-"])


@given(
    st.lists(st.tuples(st.sampled_from(PATHS), WORDS, st.sampled_from(FORMS), st.booleans()), max_size=4),
    st.lists(INPUTS, max_size=2),
    st.randoms(),
)
def typed_lines(parts, inputs, random):
    """What a line sets is what its parts say, in whatever order and form they are typed."""
    command = RAYCOMP.commands["curate"]
    hints = {one.path: one.hint for one in list_options(CurateConfig)}
    typed, meant = [[one] for one in inputs], {"input": "::".join(inputs)} if inputs else {}
    for path, value, form, is_spelt in parts:
        if path not in hints or path in meant or (inputs and path == "input"):
            continue
        separate = "\n" in form and not form.startswith("--set")
        if separate and (value.startswith("--") or split_none(hints[path])[0] is bool):
            continue
        meant[path] = value
        shown = path.replace("_", "-") if is_spelt and form.startswith("--{") else path
        typed.append(form.format(path=shown, value=value).split("\n", 1))
    random.shuffle(typed)
    # Inputs keep their order among each other.
    order = iter(inputs)
    words = [word for one in typed for word in ([next(order)] if one[0] in inputs else one)]
    read = []
    line = refused(
        lambda: read.extend(read_values("curate", command, Reader(command, [*words, "-o", "x"]).read()))
    )
    expected = []
    refusal = refused(lambda: expected.append(override_all(CurateConfig(), meant)))
    # Of two mistakes either may be named.
    assert (line is None) == (refusal is None) and (line or read == [*expected, "x"]), (words, line, refusal)


STARTS = st.sampled_from(["--set=", "--", "", "-", "--no-", "--set\n"])
JOINS = st.sampled_from(["=", ":", "\n", ""])


@given(st.lists(st.tuples(STARTS, st.sampled_from(PATHS) | ODD_PATHS, JOINS, TEXTS), max_size=4))
def command_lines(parts):
    words = [word for part in parts for word in "".join(part).split("\n")]
    said = io.StringIO()
    stub = patch("raycomp.curation.command.curate", lambda config, out, say: hash(config))
    with stub, contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(["curate", *words, "--out", "nowhere"])
    lines = said.getvalue().splitlines()
    assert (code, len(lines)) in ((0, 0), (2, 1)), (code, lines)
    assert all(line.startswith("raycomp: ") for line in lines)


def load() -> None:
    """Import what the command line imports late."""
    import raycomp.curation.command  # noqa: F401


def test_some_options():
    run(options, 200)
    run(typed_lines, 50)


@pytest.mark.slow
def test_options():
    run(options, 2000)
    run(command_lines, 5000)
    run(typed_lines, 5000)
