"""A sample's json member: a row with a status, and strict json again in what is written of it."""

import io
import json
import tarfile

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycomp import words
from raycomp.config import ScorerConfig
from raycomp.curation.outputs import enrich
from raycomp.curation.score.prepare import prepare
from raycomp.data.inputs import ShardPath
from raycomp.data.samples import extract_tar, parse_object, read_tar
from raycomp.models.architecture import ScorerSpec
from raycomp.models.images import ImageSpec
from tests.fuzz.child import run
from tests.fuzz.inputs import EDITS, JSON_VALUES, ODD_JSON, check_strict, damage

pytestmark = pytest.mark.slow

SHARD = ShardPath(0, "00000.tar", "00000.tar", "tar")
SCORER = ScorerConfig(model="ViT-B-32", weights="random:0")
SPEC = ScorerSpec(ImageSpec(8, 8, (0.5,) * 3, (0.5,) * 3), 77, 4, True)
EXTRA = ("a", "license")
NAMES = st.sampled_from(["caption", "uid", "url", "original_width", "original_height", "alignment", *EXTRA])
VALUES = ODD_JSON | JSON_VALUES.map(json.dumps)
OBJECTS = st.lists(st.tuples(NAMES.map(json.dumps), VALUES), max_size=5).map(
    lambda pairs: "{" + ", ".join(map(": ".join, pairs)) + "}"
)
TEXTS = st.builds(damage, (OBJECTS | VALUES).map(str.encode), st.just([]) | EDITS)


def pack(samples: list[bytes]) -> bytes:
    """Return a tar of samples that have an image, a text (every second one) and this json."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for i, text in enumerate(samples):
            members = {"jpg": b"no picture", "json": text, **({"txt": b"a dog"} if i % 2 else {})}
            for name, data in members.items():
                info = tarfile.TarInfo(f"{i:03d}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


@given(st.lists(TEXTS, min_size=1, max_size=4))
def json_members(texts):
    for text in texts:
        whole, fields = parse_object(text)
        assert (whole is None) == (fields is None) and (whole is None or json.loads(whole) is not None)
    data = pack(texts)
    table = pa.concat_tables(read_tar(io.BytesIO(data), SHARD, 3))
    assert len(table) == len(texts)
    members = dict(extract_tar(io.BytesIO(data), range(len(texts))))
    for row in table.to_pylist():
        if row["status"] == words.OK:
            added = {"alignment": 0.5, "mean_pas": None}
            found = enrich(members[row["position"]], row["uid"], row["caption"], added)
            fields = check_strict(found["json"])
            assert fields.items() >= {**added, "uid": row["uid"]}.items()
            assert found["txt"].decode() and found["jpg"] == b"no picture"


@given(st.lists(TEXTS, min_size=1, max_size=4), st.booleans())
def prepared_members(texts, is_fast):
    table = pa.concat_tables(read_tar(io.BytesIO(pack(texts)), SHARD, 3))
    found, again = (prepare(table, SCORER, SPEC, 1000, EXTRA, is_fast) for _ in range(2))
    assert found.equals(again)
    assert found[words.POSITION].to_pylist() == list(range(len(texts)))
    assert words.STATUSES.keys() >= set(found[words.STATUS].to_pylist())
    assert {pa.string()} == {found.schema.field(name).type for name in EXTRA}
    for width in found[words.ORIGINAL_WIDTH].drop_null().to_pylist():
        assert 0 < width < 2**31


def load() -> None:
    """Load the tokenizer."""
    prepare(pa.concat_tables(read_tar(io.BytesIO(pack([b"{}"])), SHARD, 3)), SCORER, SPEC, 1000)


def test_json_members():
    run(json_members, 600)


def test_prepared_members():
    run(prepared_members, 200)
