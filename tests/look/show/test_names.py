"""A sample is found by its key, file name, url or caption."""

import pytest

import raycomp
from raycomp.cli import USER_ERROR, main
from tests.conftest import without_ray
from tests.corpus import curate_with_metadata
from tests.look.explore.test_explore import read_scores


@pytest.fixture(scope="module")
def source(tiny_scorer, tmp_path_factory):
    with without_ray():
        return curate_with_metadata(tmp_path_factory.mktemp("named"), tiny_scorer, 20)


@pytest.mark.parametrize(
    "write",
    [
        lambda row: row["key"],
        lambda row: f"some/where/{row['key']}.jpg",
        lambda row: row["url"],
        lambda row: row["caption"],
        lambda row: f"  {row['caption'].upper()} ",
        lambda row: row["uid"].upper(),
    ],
)
def test_every_name_of_a_sample_explains_it(source, write):
    for row in read_scores(source)[3:6]:
        assert raycomp.explain(source, write(row)) == raycomp.explain(source, row["uid"])


def test_several_samples_are_listed(source):
    said = raycomp.explain(source, "a")
    rows = read_scores(source)
    fits = [row for row in rows if "a" in row["caption"]]
    assert said.startswith(f"{len(fits)} samples fit 'a'; name one by its uid")
    assert all(row["uid"] in said for row in fits)


@pytest.mark.parametrize("text", ["", " ", "nowhere", "/", "%", ".jpg"])
def test_what_names_no_sample_is_refused(source, text, capsys):
    assert main(["explain", str(source), text]) == USER_ERROR
    assert "no such uid, key, file name, url or caption" in capsys.readouterr().err
