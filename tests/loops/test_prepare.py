"""What preparing does to a block of samples, whatever the scorer makes of it."""

import io

import numpy as np
import pyarrow as pa
from PIL import Image

from raycomp import schema
from raycomp.loops.prepare import prepare
from raycomp.loops.tables import to_matrix
from raycomp.models.clip import describe_scorer


def test_fast_decoding_changes_pixels_and_nothing_else(tiny_scorer):
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((640, 480)).save(buffer, "JPEG")
    columns = {name: [None] for name in schema.SAMPLE_SCHEMA.names}
    columns |= {"image": [buffer.getvalue()], "caption": ["a dog"], "status": ["ok"]}
    block = pa.table(columns, schema=schema.SAMPLE_SCHEMA)
    exact, fast = (
        prepare(block, tiny_scorer, describe_scorer(tiny_scorer), 10**8, fast_decode=fast)
        for fast in (False, True)
    )
    same = [name for name in exact.column_names if name not in (schema.PIXELS, "seconds_decode")]
    assert exact.select(same).equals(fast.select(same))
    assert (fast["original_width"][0].as_py(), fast["original_height"][0].as_py()) == (640, 480)
    assert not np.array_equal(to_matrix(exact[schema.PIXELS]), to_matrix(fast[schema.PIXELS]))
