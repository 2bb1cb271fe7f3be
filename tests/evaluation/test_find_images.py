"""Published names found below a folder, on a disk and on S3, or told; and the little world's exam on disk."""

import os

import pytest

from raycomp.config import override_all
from raycomp.data.files import Folder
from raycomp.data.inputs import list_classes
from raycomp.evaluation.config import EvaluateConfig
from raycomp.evaluation.embed import find_images
from raycomp.evaluation.open import check_outside, open_evaluations
from tests.drawn import WORLD, write_test_set

NAMES = ["VG_100K/1.jpg", "VG_100K_2/2.jpg", "val2014/COCO_val2014_000000000003.jpg", "000000000004.jpg"]
PUBLISHED = ["vg/VG_100K/1.jpg", "vg/VG_100K_2/2.jpg", "coco/val2014/COCO_val2014_000000000003.jpg"]
PUBLISHED += ["coco/val2017/000000000004.jpg"]
FLAT = [name.rpartition("/")[2] for name in NAMES]


def write_files(folder, *paths):
    for path in paths:
        Folder(str(folder)).write_bytes(b"x", path)
    return Folder(str(folder))


def test_the_published_layout_and_a_flat_folder_will_do(tmp_path):
    upper = [name.replace(".jpg", ".JPG") for name in PUBLISHED]
    for number, paths in enumerate((PUBLISHED, FLAT, NAMES, upper)):
        top = tmp_path / str(number)
        found = find_images(write_files(top, *paths), [*NAMES, NAMES[0]])
        assert found.uris == {name: f"{top}/{path}" for name, path in zip(NAMES, paths, strict=True)}
        assert found.missing == found.ambiguous == ()


@pytest.mark.stores
def test_a_store_is_listed_once_and_gives_the_same(bucket, monkeypatch):
    folder = write_files(f"{bucket}/images", *PUBLISHED, "a/5.jpg", "b/5.jpg")
    calls = []
    listing = Folder.find_names
    monkeypatch.setattr(Folder, "find_names", lambda self: calls.append(1) or listing(self))
    found = find_images(folder, [*NAMES, "5.jpg", "6.jpg"])
    assert found.uris == {
        name: f"{bucket}/images/{path}" for name, path in zip(NAMES, PUBLISHED, strict=True)
    }
    assert (found.ambiguous, found.missing, len(calls)) == (("5.jpg",), ("6.jpg",), 1)
    assert all(Folder(found.uris[name]).read_bytes() == b"x" for name in NAMES)


def test_several_files_of_a_name_are_never_guessed(tmp_path):
    folder = write_files(
        tmp_path, "a/x.jpg", "b/x.JPG", "a/y.jpg", "y.jpg", "a/v/z.jpg", "b/w/z.jpg", "o.jpg"
    )
    found = find_images(folder, ["x.jpg", "y.jpg", "v/z.jpg", "u/z.jpg", "sub/o.jpg", "gone.jpg"])
    assert found.ambiguous == ("x.jpg", "u/z.jpg") and found.missing == ("gone.jpg",)
    named = {name: uri.removeprefix(f"{tmp_path}/") for name, uri in found.uris.items()}
    assert named == {"y.jpg": "y.jpg", "v/z.jpg": "a/v/z.jpg", "sub/o.jpg": "o.jpg"}


def test_a_file_stands_for_one_name(tmp_path):
    folder = write_files(tmp_path, "val/0.png", "1.png", "a/2.png", "3.PNG")
    os.symlink("val", tmp_path / "again")
    names = ["train/0.png", "val/0.png", "train/1.png", "val/1.png", "2.png", "b/2.png", "c/3.png", "./3.PNG"]
    found = find_images(folder, names)
    assert list(found.uris) == ["val/0.png", "2.png", "./3.PNG"] and found.by_base_name == ()
    assert found.missing == ("train/0.png", "b/2.png", "c/3.png")
    assert found.ambiguous == ("train/1.png", "val/1.png")
    found = find_images(folder, ["train/0.png", "v/1.png", "a/2.png", "gone.png"])
    assert list(found.uris) == ["train/0.png", "v/1.png", "a/2.png"]
    assert found.by_base_name == ("train/0.png", "v/1.png")
    message = "x: 2 of 4 images were matched by base name only, such as train/0.png"
    assert found.warn_by_base_name("x") == [message] and not find_images(folder, ["1.png"]).warn_by_base_name(
        "x"
    )


def test_names_that_climb_or_are_absolute_are_the_file_of_their_path(tmp_path):
    top = f"{tmp_path}/r2"
    folder = write_files(top, "0.png", "a/1.png", "x.png")
    write_files(tmp_path, "x.png", "r1/0.png")
    inside = [f"{top}/0.png", "../r2/a/1.png", "a/../x.png"]
    outside = ["../r1/0.png", f"{tmp_path}/x.png", "/abs/x.png", "b/../1.png", "s3://other/x.png", "/0.png"]
    found = find_images(folder, [*inside, *outside])
    files = ("0.png", "a/1.png", "x.png")
    assert found.uris == {name: f"{top}/{file}" for name, file in zip(inside, files, strict=True)}
    assert found.missing == tuple(outside) and not found.ambiguous


def test_links_that_lead_round_are_passed_over_and_a_file_of_several_names_is_one(tmp_path):
    """Hidden files and links to nothing, too."""
    folder = write_files(tmp_path, "val2017/1.jpg", "val2017/2.jpg", "b/2.jpg", ".cache/1.jpg", "b/.3.jpg")
    os.symlink(tmp_path / "nowhere.jpg", tmp_path / "3.jpg")
    for name in ("val2017/up", "val2017/again", "b/up"):
        os.symlink(tmp_path, tmp_path / name)
    os.symlink("val2017", tmp_path / "images")
    found = find_images(folder, ["1.jpg", "2.jpg", "3.jpg", "images/2.jpg"])
    assert found.uris == {"1.jpg": f"{tmp_path}/images/1.jpg", "images/2.jpg": f"{tmp_path}/images/2.jpg"}
    assert (found.ambiguous, found.missing) == (("2.jpg",), ("3.jpg",))
    classes = list_classes(str(tmp_path))
    assert classes["val2017"] == ["val2017/1.jpg", "val2017/2.jpg"] and classes["b"] == ["b/2.jpg"]


def test_a_folder_without_them_is_one_line(tmp_path):
    folder = write_files(tmp_path / "images", "1.png", "a/2.jpg", "b/2.jpg")
    said = (
        r"images: none of 2 named images was found, such as 7.jpg, among its 3 files; 1 names match several"
    )
    with pytest.raises(ValueError, match=said):
        find_images(folder, ["7.jpg", "2.jpg"])
    with pytest.raises(ValueError, match="gone: is not a folder; it should hold the images"):
        find_images(Folder(f"{tmp_path}/gone"), ["1.jpg"])
    with pytest.raises(ValueError, match=r"1\.png: is a file; images are read from a folder, so unpack it"):
        find_images(Folder(f"{tmp_path}/images/1.png"), ["1.jpg"])
    (tmp_path / os.fsdecode(b"images/\xff.jpg")).touch()
    with pytest.raises(ValueError, match=r"images: holds a file whose name is not UTF-8: b'.*xff.jpg'"):
        find_images(folder, ["1.png"])


def test_a_picture_that_changes_makes_another_test_set(tmp_path):
    write_test_set(str(tmp_path), 2, 0)
    (tmp_path / "captions.jsonl").write_text('{"image": "images/00001.jpg", "caption": "a red cup"}')
    for name in ("a", "b"):
        (tmp_path / "classes" / name).mkdir(parents=True)
        os.symlink(tmp_path / "images/00001.jpg", tmp_path / "classes" / name / "1.jpg")
    options = {"benchmarks": f"{WORLD},retrieval,zeroshot", "zeroshot.input": str(tmp_path / "classes")}
    options |= {"own.annotations": str(tmp_path), "retrieval.input": str(tmp_path)}
    config, found = override_all(EvaluateConfig(), options), []
    for content in (None, None, b"another"):
        if content:
            (tmp_path / "images/00001.jpg").write_bytes(content)
        found.append([one.fingerprint for one in open_evaluations(config, say=lambda line: None)])
    assert found[0] == found[1] and not {*found[0]} & {*found[2]}


def test_results_are_not_written_where_a_test_set_would_read_them(tmp_path):
    for option in ("vl_checklist.annotations", "zeroshot.input", "linear_probe.test"):
        name = option.partition(".")[0]
        config = override_all(EvaluateConfig(), {"benchmarks": name, option: str(tmp_path)})
        with pytest.raises(ValueError, match=rf"^out=.*: lies inside {option}="):
            check_outside(config, str(tmp_path / "out"))
        check_outside(config, str(tmp_path) + "-out")
        check_outside(override_all(config, {"benchmarks": WORLD}), str(tmp_path / "out"))
