"""Shard names hold nothing of where a corpus lies; classes of images; paths of options made whole."""

import os
from pathlib import Path

import braceexpand
import pytest

from raycomp.config import override_all
from raycomp.config.change import flatten, to_dict
from raycomp.curation.config import CurateConfig
from raycomp.data.files import Folder
from raycomp.data.inputs import (
    absolute_input,
    check_output,
    expand_braces,
    expand_input,
    fingerprint_shards,
    list_classes,
    list_times,
    with_absolute_paths,
)
from raycomp.negatives.config import NegativesConfig


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name in ("00000.tar", "00001.tar", "00010.tar", "sub/a.parquet", "sub/b.tar", "sub/b.parquet"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(name.encode())
    for name in ("00000_stats.json", "_tmp/0.tar", ".cache/0.tar", "notes.txt"):
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"no shard")
    return tmp_path / "in"


def names(spec: object) -> list[str]:
    shards = expand_input(str(spec))
    assert [shard.ordinal for shard in shards] == list(range(len(shards)))
    assert all(Path(shard.uri).is_absolute() and Path(shard.uri).is_file() for shard in shards)
    return [shard.name for shard in shards]


def test_one_input(corpus):
    assert names(corpus) == ["00000.tar", "00001.tar", "00010.tar", "sub/a.parquet", "sub/b.tar"]
    assert names(corpus / "sub") == ["a.parquet", "b.tar"]
    assert names(corpus / "00001.tar") == ["00001.tar"]
    assert names(corpus / "*.tar") == ["00000.tar", "00001.tar", "00010.tar"]
    assert names(corpus / "0000?.tar") == names(corpus / "0000[01].tar") == ["00000.tar", "00001.tar"]
    assert names(corpus / "{00000..00001}.tar") == ["00000.tar", "00001.tar"]
    assert names(corpus / "{00010,00000}.tar") == ["00000.tar", "00010.tar"]
    assert names(corpus / "sub/*.parquet") == ["a.parquet", "b.parquet"]
    assert names(corpus / "{sub,sub}/b.*") == ["sub/b.tar"]
    assert names(corpus / "{sub,00000.tar}") == ["00000.tar", "sub/a.parquet", "sub/b.tar"]
    assert names(corpus / "**/*.tar")[-1] == "sub/b.tar"
    assert names(f"file://{corpus}/00001.tar") == ["00001.tar"]


def test_several_inputs(corpus):
    spec = f"{corpus}/0000?.tar::{corpus}/sub"
    assert names(spec) == ["0=00000.tar", "0=00001.tar", "1=a.parquet", "1=b.tar"]
    spec = f"web={corpus}/00000.tar::{corpus}/sub/b.tar"
    assert names(spec) == ["1=b.tar", "web=00000.tar"]
    assert names(f"web={corpus}/00000.tar") == ["web=00000.tar"]


def test_what_cannot_be_read(corpus):
    for spec, said in [
        ("", "an input is empty"),
        ("{corpus}::", "an input is empty"),
        ("{corpus}/none.tar", "no such file or folder"),
        ("{corpus}/0*.gz", "names no file that ends in one of .tar, .parquet"),
        ("{corpus}/{{00000..00002}}.tar", "no such file or folder: .*00002.tar"),
        ("{corpus}/notes.txt", "must end in one of .tar, .parquet"),
        ("{corpus}/.cache/none", "no such file or folder"),
        ("a={corpus}::a={corpus}", "two inputs have the same name"),
        ("{corpus}::b={corpus}/sub", "0=sub/a.parquet and b=a.parquet are the same file"),
        ("ftp://bucket/a.tar", "must be a path, file:// or one of s3://, gs://, az://, hf://"),
        ("s3://", "must begin with a bucket"),
    ]:
        with pytest.raises(ValueError, match=said) as error:
            expand_input(spec.format(corpus=corpus))
        assert "\n" not in str(error.value), (spec, said)


def test_no_permission(corpus, monkeypatch):
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "00001" not in path and allowed(path, mode))
    with pytest.raises(ValueError, match=r"no permission to read .*00001\.tar"):
        expand_input(str(corpus))


def test_a_file_that_links_lead_to_is_one_shard(corpus, tmp_path):
    expected = names(corpus)
    (corpus / "self").symlink_to(".")
    (corpus / "again").symlink_to("sub")
    (corpus / "a-link.tar").symlink_to("00000.tar")
    assert names(corpus) == expected
    assert names(corpus / "s*/*") == ["sub/a.parquet", "sub/b.tar"]
    assert names(corpus / "*.tar") == ["00000.tar", "00001.tar", "00010.tar"]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/far.tar").touch()
    (corpus / "outside").symlink_to(tmp_path / "elsewhere")
    assert names(corpus) == sorted([*expected, "outside/far.tar"])
    assert names(corpus / "a-link.tar") == ["a-link.tar"]
    (tmp_path / "latest").symlink_to(corpus)
    assert names(tmp_path / "latest") == names(corpus)


def test_what_lies_above_a_link_is_above_what_it_leads_to(corpus, tmp_path, monkeypatch):
    (tmp_path / "far/deep/A").mkdir(parents=True)
    (tmp_path / "far/deep/A/there.tar").touch()
    (tmp_path / "link").symlink_to(tmp_path / "far/deep/A")
    monkeypatch.chdir(tmp_path)
    for spec in ("link/../A", f"{tmp_path}/link/../A", "file://link/../A/there.tar", "link/../*/there.tar"):
        (shard,) = expand_input(spec)
        assert shard.uri == str(tmp_path / "far/deep/A/there.tar")
        assert absolute_input(spec).startswith(str(tmp_path / "far/deep/"))
    (tmp_path / "far/deep/B").symlink_to("A")  # a link after the last ".." keeps its name
    assert absolute_input("link/../B") == str(tmp_path / "far/deep/B")
    assert names("in/sub/../sub") == names("in/./sub") == names(corpus / "sub")
    (tmp_path / "a..b").mkdir()
    (tmp_path / "a..b/0.tar").touch()
    assert names("a..b") == ["0.tar"]


def test_a_link_that_leads_nowhere_is_said(corpus):
    (corpus / "gone.tar").symlink_to("/no/such/file.tar")
    with pytest.raises(ValueError, match=r"gone\.tar is a link to /no/such/file\.tar"):
        expand_input(str(corpus))


def test_names_that_are_not_utf8(corpus):
    odd = os.fsencode(corpus) + b"/caf\xe9"
    Path(os.fsdecode(odd + b".txt")).touch()
    assert names(corpus)[0] == "00000.tar"
    Path(os.fsdecode(odd + b".tar")).touch()
    for spec in (str(corpus), os.fsdecode(odd + b".tar")):
        with pytest.raises(ValueError, match="must be UTF-8") as error:
            expand_input(spec)
        str(error.value).encode()


def test_what_is_no_file_is_no_shard(corpus):
    os.mkfifo(corpus / "_tmp/pipe.tar")
    assert names(corpus)[0] == "00000.tar"
    os.mkfifo(corpus / "pipe.tar")
    with pytest.raises(ValueError, match=r"pipe\.tar is no file"):
        expand_input(str(corpus))
    with pytest.raises(ValueError, match="no such file or folder"):
        expand_input(str(corpus / "pipe.tar"))


def test_compressed_tars_are_not_skipped_in_silence(corpus):
    for name in ["x.tar.gz", "x.TGZ", "sub/x.tar.zst", "x.tbz2"]:
        (corpus / name).touch()
        with pytest.raises(ValueError, match=rf"{name} is compressed and cannot be read; unpack it"):
            expand_input(str(corpus))
        assert len(names(corpus / "*.tar")) == 3, name
        (corpus / name).unlink()


def test_a_name_that_exists_is_no_pattern(corpus):
    before = corpus / "sub"
    for folder in ["x[1]", "{a,b}", "{0..3}", "what?", "*"]:
        before = before.rename(corpus / folder)
        assert names(before) == ["a.parquet", "b.tar"], folder
        assert names(before / "b.tar") == ["b.tar"], folder
        assert names(before / "*.tar") == names(before / "{b,b}.tar") == ["b.tar"], folder


def test_results_of_a_run_are_no_samples(corpus):
    for name in ("run.json", "scores/0.parquet", "shards/0.tar"):
        (corpus / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (corpus / "out" / name).touch()
    for spec in (corpus, corpus / "out"):
        with pytest.raises(ValueError, match=r"holds the results of a run in .*out; name shards"):
            expand_input(str(spec))
    assert names(corpus / "out/shards") == ["0.tar"]


def test_an_output_that_would_be_input_is_refused(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(corpus)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    (tmp_path / "link").symlink_to(corpus)
    inside = [
        (corpus, corpus / "out"),
        (corpus, corpus),
        (corpus / "**", corpus / "out"),
        (corpus / "**/*.tar", corpus / "a/b"),
        (corpus / "*/*/*.parquet", corpus / "out"),
        (tmp_path / "link", corpus / "out"),
        (corpus, tmp_path / "link/out"),
        (corpus / "{sub,00000.tar}", corpus / "sub/out"),
        (f"{tmp_path}/other.tar::b={corpus}", corpus / "out"),
        ("sub", "sub/out"),
        ("s3://bucket/in", "s3://bucket/in/out"),
    ]
    for spec, out in inside:
        with pytest.raises(ValueError, match=r"lies inside input="):
            check_output(str(spec), str(out))
    apart = [
        (corpus, tmp_path / "out"),
        (corpus, f"{corpus}-out"),
        (corpus, corpus / "_out"),
        (corpus / "*.tar", corpus / "out"),
        (corpus / "{00000..00001}.tar", corpus / "out"),
        (corpus, "s3://bucket/out"),
        ("s3://bucket/in", "s3://bucket/in-out"),
    ]
    for spec, out in apart:
        check_output(str(spec), str(out))


def test_an_absolute_input_means_the_same_elsewhere(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(corpus)
    spec = absolute_input("web=sub::*.tar::s3://bucket/a")
    assert spec == f"web={corpus}/sub::{corpus}/*.tar::s3://bucket/a"
    local = absolute_input("web=sub::*.tar")
    before = names(local)
    monkeypatch.chdir(tmp_path)
    assert names(local) == before and absolute_input(local) == local


BRACED = ["{0..3}", "{00..10}b", "{8..011}", "{3..1}", "{a,b}{1,2}", "{a,{b,c}d}e", "{a}", "x{,y}", "{-1..2}"]


def test_braces_equal_braceexpand():
    for text in BRACED:
        assert sorted(expand_braces(text)) == sorted(braceexpand.braceexpand(text)), text


def test_fingerprint_sees_a_change(corpus):
    shards = expand_input(str(corpus))
    before = fingerprint_shards(shards)
    assert before == fingerprint_shards(shards)
    assert [entry["name"] for entry in before] == [shard.name for shard in shards]
    assert before[3]["size"] == len("sub/a.parquet")
    times = list_times(shards)
    os.utime(shards[0].uri, ns=(0, 5))
    assert fingerprint_shards(shards) == before
    assert list_times(shards) == [5, *times[1:]]
    Path(shards[0].uri).write_bytes(b"longer than before")
    after = fingerprint_shards(shards)
    assert after[0] == {**before[0], "size": 18} and after[1:] == before[1:]
    Path(shards[0].uri).unlink()
    with pytest.raises(ValueError, match="no such file"):
        fingerprint_shards(shards)


def test_fingerprint_sees_a_change_of_stored_embeddings(tmp_path):
    for name in ("metadata/metadata_00.parquet", "img_emb/img_emb_00.npy"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"some")
    shards = expand_input(str(tmp_path), "clip_retrieval")
    assert [shard.name for shard in shards] == ["metadata/metadata_00.parquet"]
    before = fingerprint_shards(shards)
    assert before != fingerprint_shards(expand_input(str(tmp_path)))
    (tmp_path / "img_emb/img_emb_00.npy").write_bytes(b"other")
    assert before != fingerprint_shards(shards)
    (tmp_path / "img_emb/img_emb_00.npy").unlink()
    with pytest.raises(ValueError, match=r"img_emb_00\.npy': no such file"):
        fingerprint_shards(shards)


FILES = (
    "b/2.jpg",
    "b/1.PNG",
    "a/deep/er/3.jpeg",
    "a/notes.txt",
    "a/.hidden.jpg",
    ".cache/4.jpg",
    "readme.jpg",
)


def write(uri: str, names=FILES) -> str:
    for name in names:
        Folder(uri).write_bytes(b"x", name)
    return uri


def test_classes_are_those_of_torchvision(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    write(str(tmp_path), ("b/2.jpg", "b/1.PNG", "a/deep/er/3.jpeg", "a/notes.txt", "C/x y.bmp", "readme.jpg"))
    found = list_classes(str(tmp_path))
    counterpart = datasets.ImageFolder(str(tmp_path))
    assert list(found) == counterpart.classes
    listed = [(f"{tmp_path}/{file}", list(found).index(name)) for name in found for file in found[name]]
    assert sorted(listed) == sorted(counterpart.samples)


def test_a_store_lists_as_the_disk_does(bucket, tmp_path):
    here, there = list_classes(write(str(tmp_path))), list_classes(write(f"{bucket}/images"))
    assert here == there == {"a": ["a/deep/er/3.jpeg"], "b": ["b/1.PNG", "b/2.jpg"]}


def test_shards_and_what_is_no_folder_are_none(tmp_path):
    write(str(tmp_path), ("test/0.tar", "classnames.txt"))
    assert list_classes(str(tmp_path)) is None and list_classes(str(tmp_path / "none")) is None
    write(str(tmp_path), ("cat/0.jpg",))
    assert list_classes(str(tmp_path)) == {"cat": ["cat/0.jpg"], "test": []}


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
