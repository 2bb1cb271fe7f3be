"""Shard names hold nothing of where a corpus lies; classes of images; paths of options made whole."""

import os
from contextlib import nullcontext
from pathlib import Path

import braceexpand
import pytest

from raycomp.config import override_all
from raycomp.config.commands import flatten, to_dict
from raycomp.curation.config import CurateConfig
from raycomp.data.files import Folder
from raycomp.data.inputs import (
    absolute_input,
    add_input,
    check_output,
    expand_braces,
    expand_input,
    fingerprint_shards,
    list_classes,
    list_times,
    say_input,
    with_absolute_paths,
)


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


def test_names_of_the_shards_of_a_spec(corpus):
    tars, sub = ["00000.tar", "00001.tar", "00010.tar"], ["sub/a.parquet", "sub/b.tar"]
    for spec, expected in {
        "{0}": [*tars, *sub],
        "{0}/sub": ["a.parquet", "b.tar"],
        "{0}/00001.tar": tars[1:2],
        "file://{0}/00001.tar": tars[1:2],
        "{0}/*.tar": tars,
        "{0}/0000?.tar": tars[:2],
        "{0}/0000[01].tar": tars[:2],
        "{0}/{{00000..00001}}.tar": tars[:2],
        "{0}/{{00010,00000}}.tar": ["00000.tar", "00010.tar"],
        "{0}/sub/*.parquet": ["a.parquet", "b.parquet"],
        "{0}/{{sub,sub}}/b.*": sub[1:],
        "{0}/{{sub,00000.tar}}": ["00000.tar", *sub],
        "{0}/**/*.tar": [".cache/0.tar", *tars, "_tmp/0.tar", "sub/b.tar"],
        "{0}/0000?.tar::{0}/sub": ["0=00000.tar", "0=00001.tar", "1=a.parquet", "1=b.tar"],
        "web={0}/00000.tar::{0}/sub/b.tar": ["1=b.tar", "web=00000.tar"],
        "web={0}/00000.tar": ["web=00000.tar"],
    }.items():
        assert names(spec.format(corpus)) == expected, spec


def refuse(spec: object, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        expand_input(str(spec))
    assert "\n" not in str(error.value), (spec, said)
    str(error.value).encode()


def test_what_cannot_be_read(corpus, monkeypatch):
    for spec, said in [
        ("{corpus}::", "an input is empty"),
        ("{corpus}/none.tar", "no such file or folder"),
        ("{corpus}/0*.gz", "names no file that ends in one of .tar, .parquet"),
        ("{corpus}/{{00000..00002}}.tar", "no such file or folder: .*00002.tar"),
        ("{corpus}/notes.txt", "must end in one of .tar, .parquet"),
        ("a={corpus}::a={corpus}", "two inputs have the same name"),
        ("{corpus}::b={corpus}/sub", "0=sub/a.parquet and b=a.parquet are the same file"),
        ("ftp://bucket/a.tar", "must be a path, file:// or one of s3://, gs://, az://, hf://"),
        ("s3://", "must begin with a bucket"),
    ]:
        refuse(spec.format(corpus=corpus), said)
    for name in ["x.tar.gz", "x.TGZ", "sub/x.tar.zst", "x.tbz2"]:
        (corpus / name).touch()
        refuse(corpus, rf"{name} is compressed and cannot be read; unpack it")
        assert len(names(corpus / "*.tar")) == 3, name
        (corpus / name).unlink()
    allowed = os.access
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: "00001" not in path and allowed(path, mode))
        refuse(corpus, r"no permission to read .*00001\.tar")


def test_names_that_lead_to_no_file_are_said_where_they_would_be_shards(corpus):
    odd = os.fsencode(corpus) + b"/caf\xe9"
    Path(os.fsdecode(odd + b".txt")).touch()
    os.mkfifo(corpus / "_tmp/pipe.tar")
    assert names(corpus)[0] == "00000.tar"
    Path(os.fsdecode(odd + b".tar")).touch()
    for spec in (corpus, os.fsdecode(odd + b".tar")):
        refuse(spec, "must be UTF-8")
    Path(os.fsdecode(odd + b".tar")).unlink()
    (corpus / "photos").mkdir()
    for name in (b"0.jpg", b"0.txt", b"caf\xe9.txt"):
        Path(os.fsdecode(os.fsencode(corpus) + b"/photos/" + name)).touch()
    refuse(corpus / "photos", "must be UTF-8")
    os.mkfifo(corpus / "pipe.tar")
    refuse(corpus, r"pipe\.tar is no file")
    refuse(corpus / "pipe.tar", "no such file or folder")
    (corpus / "pipe.tar").unlink()
    (corpus / "gone.tar").symlink_to("/no/such/file.tar")
    refuse(corpus, r"gone\.tar is a link to /no/such/file\.tar")


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
    # What is absolute means the same elsewhere.
    monkeypatch.chdir(corpus)
    spec = absolute_input("web=sub::*.tar::s3://bucket/a")
    assert spec == f"web={corpus}/sub::{corpus}/*.tar::s3://bucket/a"
    local = absolute_input("web=sub::*.tar")
    before = names(local)
    monkeypatch.chdir(tmp_path)
    assert names(local) == before and absolute_input(local) == local


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
        refuse(spec, r"holds the results of a run in .*out; name shards")
    assert names(corpus / "out/shards") == ["0.tar"]


def test_an_output_that_would_be_input_is_refused(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(corpus)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    (tmp_path / "link").symlink_to(corpus)
    for spec, out, is_inside in [
        ("{0}", "{0}/out", True),
        ("{0}", "{0}", True),
        ("{0}/**", "{0}/out", True),
        ("{0}/**/*.tar", "{0}/a/b", True),
        ("{0}/*/*/*.parquet", "{0}/out", True),
        ("{0}/../link", "{0}/out", True),
        ("{0}", "{0}/../link/out", True),
        ("{0}/{{sub,00000.tar}}", "{0}/sub/out", True),
        ("{0}/../other.tar::b={0}", "{0}/out", True),
        ("sub", "sub/out", True),
        ("s3://bucket/in", "s3://bucket/in/out", True),
        ("{0}", "{0}-out", False),
        ("{0}", "{0}/_out", False),
        ("{0}/*.tar", "{0}/out", False),
        ("{0}/{{00000..00001}}.tar", "{0}/out", False),
        ("{0}", "s3://bucket/out", False),
        ("s3://bucket/in", "s3://bucket/in-out", False),
    ]:
        place = spec.format(corpus), out.format(corpus)
        with pytest.raises(ValueError, match="lies inside input=") if is_inside else nullcontext():
            check_output(*place)


def test_braces_equal_braceexpand():
    for text in ["{0..3}", "{00..10}b", "{8..011}", "{3..1}", "{a,{b,c}d}{1,2}", "{a}", "x{,y}", "{-1..2}"]:
        assert sorted(expand_braces(text)) == sorted(braceexpand.braceexpand(text)), text


def test_fingerprint_sees_a_change(corpus, tmp_path):
    shards = expand_input(str(corpus))
    before = fingerprint_shards(shards)
    assert [entry["name"] for entry in before] == [shard.name for shard in shards]
    assert before[3]["size"] == len("sub/a.parquet")
    times = list_times(shards)
    os.utime(shards[0].uri, ns=(0, 5))
    assert fingerprint_shards(shards) == before and list_times(shards) == [5, *times[1:]]
    Path(shards[0].uri).write_bytes(b"longer than before")
    assert fingerprint_shards(shards) == [{**before[0], "size": 18}, *before[1:]]
    for name in ("metadata/metadata_00.parquet", "img_emb/img_emb_00.npy"):
        Folder(str(tmp_path / "web")).write_bytes(b"some", name)
    (shard,) = shards = expand_input(str(tmp_path / "web"), "clip_retrieval")
    stored = fingerprint_shards(shards)
    assert stored != fingerprint_shards(expand_input(str(tmp_path / "web")))
    Path(shard.embeddings).write_bytes(b"other")
    assert stored != fingerprint_shards(shards)
    for gone in (shard.embeddings, shard.uri):
        Path(gone).unlink()
        with pytest.raises(ValueError, match=rf"{Path(gone).name}': no such file"):
            fingerprint_shards(shards)


def test_a_name_of_a_file_is_made_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").touch()
    for folder in ("in", "raycomp"):
        (tmp_path / folder).mkdir()
    for path, name, whole in [
        ("input", "in/*.tar::more=in", "{}/in/*.tar::more={}/in"),
        ("input", "s3://bucket/in", "s3://bucket/in"),
        ("scorer.model", "tiny.json", "{}/tiny.json"),
        ("scorer.model", "ViT-B-32", "ViT-B-32"),
        ("scorer.model", "local-dir:in", "local-dir:{}/in"),
        ("scorer.model", "hf-hub:some/model", "hf-hub:some/model"),
        ("scorer.weights", "gone/weights.pt", "gone/weights.pt"),
        ("scorer.weights", "in", "in"),
        ("parser.name", "raycomp", "raycomp"),
        ("parser.name", "./raycomp", "{}/raycomp"),
    ]:
        config = with_absolute_paths(override_all(CurateConfig(), {path: name}))
        assert dict(flatten(to_dict(config)))[path] == whole.replace("{}", str(tmp_path)), (path, name)


def test_classes_are_those_of_torchvision_on_disk_and_in_a_store(bucket, tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    roots = (str(tmp_path), f"{bucket}/images")
    for root in roots:
        for name in ("b/2.jpg", "b/1.PNG", "a/deep/er/3.jpeg", "a/notes.txt", "C/x y.bmp", "readme.jpg"):
            Folder(root).write_bytes(b"x", name)
    found, there = map(list_classes, roots)
    counterpart = datasets.ImageFolder(str(tmp_path))
    assert found == there and list(found) == counterpart.classes
    listed = [(f"{tmp_path}/{file}", list(found).index(name)) for name in found for file in found[name]]
    assert sorted(listed) == sorted(counterpart.samples)


def test_shards_and_what_is_no_folder_have_no_classes(tmp_path):
    Folder(str(tmp_path)).write_bytes(b"x", "test/0.tar")
    assert list_classes(str(tmp_path)) is None and list_classes(str(tmp_path / "none")) is None
    for name in ("cat/0.jpg", "cat/.hidden.jpg", ".cache/4.jpg"):
        Folder(str(tmp_path)).write_bytes(b"x", name)
    assert list_classes(str(tmp_path)) == {"cat": ["cat/0.jpg"], "test": []}


def test_an_added_input_is_shown_as_it_was_given():
    joined = add_input("/a/x", "more=s3://b/more")
    assert joined == "=/a/x::more=s3://b/more" and say_input(joined) == "/a/x and more=s3://b/more"
    assert say_input("/a/x") == "/a/x"
