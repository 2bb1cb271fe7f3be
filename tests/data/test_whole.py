"""Names of files are made whole before a run begins; other names stay as they are."""

from raycomp.config import override_all
from raycomp.config.change import flatten, to_dict
from raycomp.curation.config import CurateConfig
from raycomp.data.inputs import with_absolute_paths
from raycomp.negatives.config import NegativesConfig
from raycomp.probe.config import ProbeConfig


def test_a_name_of_a_file_is_made_whole(tmp_path_factory, monkeypatch):
    for path, name, whole in [
        ("input", "in/*.tar::more=in", "{}/in/*.tar::more={}/in"),
        ("input", "s3://bucket/in", "s3://bucket/in"),
        ("scorer.model", "tiny.json", "{}/tiny.json"),
        ("scorer.model", "ViT-B-32", "ViT-B-32"),
        ("scorer.model", "local-dir:in", "local-dir:{}/in"),
        ("scorer.model", "hf-hub:some/model", "hf-hub:some/model"),
        ("scorer.weights", "tiny.json", "{}/tiny.json"),
        ("scorer.weights", "gone/weights.pt", "gone/weights.pt"),
        ("scorer.weights", "in", "in"),
        ("parser.name", "raycomp", "raycomp"),
        ("parser.name", "./raycomp", "{}/raycomp"),
    ]:
        for kind in [CurateConfig, NegativesConfig]:
            tmp_path = tmp_path_factory.mktemp("case")
            monkeypatch.chdir(tmp_path)
            (tmp_path / "tiny.json").touch()
            for folder in ("in", "raycomp"):
                (tmp_path / folder).mkdir()
            values = dict(flatten(to_dict(with_absolute_paths(override_all(kind(), {path: name})))))
            assert values[path] == whole.replace("{}", str(tmp_path)), (path, name, whole, kind)


def test_an_inherited_scorer_stays_one():
    for kind in (NegativesConfig, ProbeConfig):
        assert with_absolute_paths(kind(input="a")).scorer is None
