"""What preparing does to a block of samples, whatever the scorer makes of it."""

import io

import numpy as np
import pyarrow as pa
from PIL import Image

from raycomp import schema, words
from raycomp.curation.score.prepare import prepare
from raycomp.data.parquet import to_matrix
from raycomp.models.architecture import describe_scorer


def block_of(**columns: list) -> pa.Table:
    """Return rows of SAMPLE_SCHEMA that are ok and hold what is given."""
    count = len(next(iter(columns.values())))
    given = {"caption": ["a dog"] * count, "status": ["ok"] * count, **columns}
    return pa.table(
        {name: given.get(name, [None] * count) for name in schema.SAMPLE_SCHEMA.names},
        schema=schema.SAMPLE_SCHEMA,
    )


def test_whatever_a_json_holds_is_prepared(tiny_scorer):
    texts = [
        '{"similarity": NaN, "original_width": true, "original_height": true}',
        '{"similarity": {"a": [1e400]}, "original_width": Infinity, "original_height": 5}',
        '{"similarity": "\\ud800", "original_width": 1e3, "original_height": 5}',
        '{"similarity": ["\u00e9"], "original_width": 7, "original_height": 5}',
        '{"similarity": ' + "9" * 4300 + "}",
        '{"similarity": ' + "[" * 99 + "]" * 99 + "}",
    ]
    found = prepare(block_of(json=texts), tiny_scorer, describe_scorer(tiny_scorer), 100, ("similarity",))
    assert found["similarity"].to_pylist() == [
        None, '{"a": [null]}', "?", '["\\u00e9"]', "9" * 4300, "[" * 99 + "]" * 99,
    ]  # fmt: skip
    assert found["original_width"].to_pylist() == [None, None, None, 7, None, None]


def test_fast_decoding_changes_pixels_and_nothing_else(tiny_scorer):
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((640, 480)).save(buffer, "JPEG")
    block = block_of(image=[buffer.getvalue()])
    exact, fast = (
        prepare(block, tiny_scorer, describe_scorer(tiny_scorer), 10**8, fast_decode=fast)
        for fast in (False, True)
    )
    approximate = {words.PIXELS, *schema.PICTURE_SCHEMA.names}
    same = [name for name in exact.column_names if name not in approximate]
    assert exact.select(same).equals(fast.select(same))
    assert (fast["original_width"][0].as_py(), fast["original_height"][0].as_py()) == (640, 480)
    assert not np.array_equal(to_matrix(exact[words.PIXELS]), to_matrix(fast[words.PIXELS]))


def test_rows_of_one_image_that_differ_in_their_faults(tiny_scorer):
    """A broken image is broken in each of its rows; a row without a caption does not stand for the others."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((40, 40, 3), 7, np.uint8)).save(buffer, "PNG")
    image, broken = buffer.getvalue(), buffer.getvalue()[:-30]
    block = block_of(
        image=[image, broken, image, broken, None, None, image],
        status=["no_caption", "ok", "ok", "ok", "no_image", "no_image", "ok"],
    )
    found = prepare(block, tiny_scorer, describe_scorer(tiny_scorer), 10**8)
    assert found["status"].to_pylist() == [
        "no_caption", "corrupt_image", "ok", "corrupt_image", "no_image", "no_image", "ok",
    ]  # fmt: skip
    assert found["original_width"].to_pylist() == [None, None, 40, None, None, None, 40]
    assert [bool(row.any()) for row in to_matrix(found[words.PIXELS])] == [0, 0, 1, 0, 0, 0, 1]
