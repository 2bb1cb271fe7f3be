"""The tables of columns are those of the schemas."""

import re

import pyarrow as pa

from raycomp.data.parquet import aligned_schema, scores_schema
from raycomp.schema import KEPT_SCHEMA, NEGATIVE_TYPE, NEGATIVES_SCHEMA, PHRASE_TYPE
from tests.docs.documents import ROOT

PAGE = (ROOT / "docs/reference/columns.md").read_text()
SCHEMAS = {
    "scores": scores_schema(aligned_schema(4, "float32"), with_content=True),
    "phrase": PHRASE_TYPE,
    "kept": KEPT_SCHEMA,
    "negatives": NEGATIVES_SCHEMA,
    "negative": NEGATIVE_TYPE,
}


def name_type(kind: pa.DataType) -> str:
    if pa.types.is_fixed_size_list(kind):
        return "fixed-size list of float or halffloat"
    if pa.types.is_list(kind):
        return f"list of {name_type(kind.value_type)}"
    return "struct" if pa.types.is_struct(kind) else str(kind)


def test_every_column_is_in_its_table():
    for name in SCHEMAS:
        found = re.search(f"<!-- columns {name} -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", found[1], re.MULTILINE)
        assert [row[:2] for row in rows] == [(one.name, name_type(one.type)) for one in SCHEMAS[name]]
