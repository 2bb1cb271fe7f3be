"""PyArrow makes arrays without pandas, and with it again."""

import subprocess
import sys

_CODE = """
import sys
import pyarrow as pa
from raycomp.data.parquet import keep_pandas_out, let_pandas_in
keep_pandas_out()
assert pa.array([1, None]).null_count == 1
assert "pandas" not in sys.modules
let_pandas_in()
import pandas as pd
frame = pd.DataFrame({"a": [1.0, None]})
assert pa.array(frame["a"]).null_count == 1
assert pa.table(frame).to_pandas().equals(frame)
"""


def test_pandas_is_left_out_and_let_in_again():
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
