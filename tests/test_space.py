"""Search spaces as text: what is read is what is written, and what is none is told in a line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raycomp.config import Domain, read_space, write_space
from raycomp.config.options import CHOICE, FIXED, GRID, LOGUNIFORM, UNIFORM

WORDS = st.from_regex(r"[a-z0-9_.+-]{1,8}", fullmatch=True)
VALUE = st.from_regex(r"[a-z0-9_.+:/-]{1,6}(,[0-9]{1,2})?", fullmatch=True)
VALUES = st.lists(VALUE, min_size=1, unique=True)
NUMBERS = st.floats(1e-6, 1e6)


@st.composite
def domains(draw):
    kind = draw(st.sampled_from([GRID, CHOICE, UNIFORM, LOGUNIFORM, FIXED]))
    if kind in (UNIFORM, LOGUNIFORM):
        low, high = sorted(draw(st.lists(NUMBERS, min_size=2, max_size=2, unique=True)))
        return Domain(kind, (repr(low), repr(high)))
    values = tuple(draw(VALUES))
    # A single value with a comma would be two.
    if len(values) == 1 and kind != FIXED:
        values = (values[0].replace(",", ""),)
    return Domain(kind, values[:1] if kind == FIXED else values)


@settings(max_examples=40)
@given(st.dictionaries(WORDS, domains(), min_size=1, max_size=4))
def test_a_written_space_is_read_as_it_was(space):
    assert read_space(write_space(space)) == space


@settings(max_examples=40)
@given(st.text(alphabet="ab.=(),; gridchoe1", max_size=30))
def test_any_text_is_a_space_or_a_line_of_the_users(text):
    try:
        space = read_space(text)
    except ValueError as error:
        assert type(error) is ValueError and str(error).startswith("space") and "\n" not in str(error)
    else:
        assert read_space(write_space(space)) == space


def test_spaces_within_brackets_and_between_entries_mean_nothing():
    one = read_space(" a.b=grid( 1 , 2 )   c=uniform(0, 1)\n")
    assert one == {"a.b": Domain(GRID, ("1", "2")), "c": Domain(UNIFORM, ("0", "1"))}
    assert one["c"].is_range and one["c"].ends == (0, 1) and not one["a.b"].is_range


def test_what_is_no_space_is_reported_in_a_line():
    for text, words in [
        ("   ", "space: is empty"),
        ("a", "space='a': must be OPTION=VALUE"),
        ("a=grid()", "must have a value"),
        ("a=grid(1,)", "must have a value before and after each ','"),
        ("a=grid(1,1)", "must have different values"),
        ("a=normal(0,1)", "must be one of grid, choice, uniform, loguniform"),
        ("a=uniform(2,1)", "two finite numbers, the larger one last"),
        ("a=uniform(0,inf)", "finite"),
        ("a=loguniform(0,1)", "two finite numbers, above 0"),
        ("a=loguniform(x,1)", "two finite numbers"),
        ("a=1 a=grid(1,2)", "names a twice"),
    ]:
        with pytest.raises(ValueError, match="space") as error:
            read_space(text)
        assert words in str(error.value)
