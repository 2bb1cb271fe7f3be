"""The test set as a benchmark of one's own."""

import pytest

from lab.worlds.benchmark import WORLD
from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.published import read_own


def test_a_row_without_an_id_is_one_line(tmp_path):
    (tmp_path / "world.json").write_text('[{"split": "a"}]')
    with pytest.raises(ValueError, match="row 0: has no field 'id'") as error:
        read_own(WORLD, Folder(str(tmp_path)))
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)
