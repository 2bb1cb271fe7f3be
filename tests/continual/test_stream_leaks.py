"""Halves of a stream that share images or whole samples: what is told of it, and what is left out."""

import json

import numpy as np
import pytest

from raycomp.config import TooMuchBadData, UserError
from raycomp.continual.config import ContinualConfig
from raycomp.continual.streams.build import FoundStream, Maker, find_all_samples, list_needed, make_arrays
from raycomp.continual.streams.samples import warn_repeat
from raycomp.continual.streams.sources import read_stream
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar
from raycomp.evaluation.choices import Texts
from raycomp.run.run import check_bad_rows, warn_leak
from tests.continual.streaming import DIM, see
from tests.evaluation.embedded import draw


def write_files(folder, **halves: list[tuple[str, str]]) -> None:
    """Write a shard of (image, caption) for each half."""
    for name, pairs in halves.items():
        fields = json.dumps({"primitives": ["dog"]}).encode()
        rows = [{"jpg": image.encode(), "txt": text.encode(), "json": fields} for image, text in pairs]
        (folder / name).mkdir(parents=True)
        write_tar(str(folder / name / "0.tar"), [(f"{i}", row) for i, row in enumerate(rows)])


def draw_pairs(start: str, num: int = 8) -> list[tuple[str, str]]:
    return [(f"{start} {i}", f"a dog {start} {i}") for i in range(num)]


def find(folder, stream: dict, overlap: str = "warn", **more) -> FoundStream:
    (folder / "mine.json").write_text(json.dumps(stream))
    source = read_stream(str(folder / "mine.json"))
    return find_all_samples(source, see(source), ContinualConfig(overlap=overlap, **more))


def task(name: str, train: str, test: str) -> dict[str, str]:
    return {"name": name, "train": train, "test": test}


def report(found: FoundStream, overlap: str = "warn") -> list[str]:
    lines = [line for leak in found.leaks for line in warn_leak(leak, overlap)]
    return lines + [warn_repeat("mine", one) for one in found.repeats]


def test_a_test_that_is_the_train_half_is_reported_and_cannot_be_dropped_whole(tmp_path):
    write_files(tmp_path, a=draw_pairs("a"), b=draw_pairs("b"), c=draw_pairs("c"))
    stream = {"tasks": [task("first", "a", "a"), task("second", "b", "c")]}
    (line,) = report(find(tmp_path, stream))
    assert line == (
        "mine, first: 8 of 8 test images are among the training images of first (100.0 %); "
        "overlap=drop leaves them out"
    )
    with pytest.raises(
        UserError, match=r"overlap=drop: mine, first: 8 of 8 .* which empties the test set; name other"
    ):
        find(tmp_path, stream, "drop")


def test_two_tasks_on_one_data_set_are_reported_and_lose_nothing(tmp_path):
    write_files(tmp_path, train=draw_pairs("a"), test=draw_pairs("b", 4), other=draw_pairs("c"))
    stream = {"tasks": [task("x", "train", "test"), task("y", "train", "test"), task("z", "other", "test")]}
    for overlap in ("warn", "drop"):
        found = find(tmp_path, stream, overlap)
        assert report(found) == [
            "mine, y: 8 of 8 train samples are train samples of x, too (100.0 %)",
            "mine, y: 4 of 4 test samples are test samples of x, too (100.0 %)",
            "mine, z: 4 of 4 test samples are test samples of x, y, too (100.0 %)",
        ]
        assert {status for half in found.halves for status in half.status_N} == {"ok"}


def test_one_image_with_another_text_is_another_sample_but_the_same_image(tmp_path):
    again = [(image, f"{text} again") for image, text in draw_pairs("a")]
    write_files(tmp_path, a=draw_pairs("a"), b=again, c=draw_pairs("c"))
    assert report(find(tmp_path, {"tasks": [task("x", "a", "c"), task("y", "b", "c")]}))[0].startswith(
        "mine, y: 8 of 8 test samples"
    )
    (line,) = report(find(tmp_path, {"tasks": [task("x", "a", "b")]}))
    assert line.startswith("mine, x: 8 of 8 test images")


def test_a_zero_shot_set_that_a_task_trains_on_and_tests_of_other_tasks_are_reported(tmp_path):
    write_files(tmp_path, a=draw_pairs("a"), b=draw_pairs("b"), c=draw_pairs("c", 6), d=draw_pairs("d", 5))
    stream = {
        "tasks": [task("x", "a", "c"), task("y", "b", "d")],
        "zero_shot": [{"name": "never", "test": "a"}],
    }
    (line,) = report(find(tmp_path, stream))
    assert line.startswith("mine, never: 8 of 8 test images are among the training images of x (100.0 %)")
    stream = {"tasks": [task("x", "a", "b"), task("y", "b", "c")]}
    assert report(find(tmp_path, stream))[0].startswith(
        "mine, x: 8 of 8 test images are among the training images of y (100.0 %)"
    )


def test_a_text_alone_is_counted_and_leaks_nothing(tmp_path):
    said = [(f"other {i}", f"A dog a {i}.") for i in range(6)]
    write_files(tmp_path, a=draw_pairs("a"), b=[*said, ("new", "a dog of its own")])
    (leak,) = find(tmp_path, {"tasks": [task("x", "a", "b")]}, "drop").leaks
    assert leak.shared == (7, 0, 7, 6) and warn_leak(leak, "warn") == []


@pytest.mark.parametrize("seed", range(5))
def test_what_is_dropped_is_what_a_slow_loop_finds_and_is_no_bad_data(tmp_path, seed):
    rng = np.random.default_rng(seed)
    names = [f"image {i}" for i in range(30)]
    halves = {
        name: [(str(rng.choice(names)), f"a dog {rng.integers(9)}") for _ in range(12)] for name in "abcdef"
    }
    halves["b"].append(("only here", "a dog"))
    halves["d"].append(("only there", "a dog"))
    halves["f"].append(("nowhere else", "a dog"))
    write_files(tmp_path, **halves)
    stream = {
        "tasks": [task("x", "a", "b"), task("y", "c", "d")],
        "zero_shot": [{"name": "z", "test": "f"}],
    }
    found = find(tmp_path, stream, "drop", max_bad_fraction=0.0)
    learned = {image for name in "ac" for image, _ in halves[name]}
    tests = [found.tasks[0]["test"], found.tasks[1]["test"], found.zero_shot[0]["test"]]
    for half, leak, name in zip(tests, found.leaks, "bdf", strict=True):
        expected = ["contaminated" if image in learned else "ok" for image, _ in halves[name]]
        assert list(half.status_N) == expected and half.is_good_N.tolist() == [s == "ok" for s in expected]
        assert leak.shared.images == expected.count("contaminated") and leak.shared.num_images == 13
    assert {status for some in found.tasks for status in some["train"].status_N} == {"ok"}


def test_contaminated_samples_are_not_bad_but_none_must_be_left_out_of_the_count():
    check_bad_rows("it", {"ok": 1, "contaminated": 99}, 0.0, "samples")
    with pytest.raises(TooMuchBadData, match=r"20\.0% of 10 samples"):
        check_bad_rows("it", {"ok": 1, "contaminated": 7, "no_image": 2}, 0.1, "samples")
    with pytest.raises(UserError, match=r"none of 9 samples can be used \(2 no_image, 7 contaminated\)"):
        check_bad_rows("it", {"contaminated": 7, "no_image": 2}, 1.0, "samples")


def test_what_was_found_stands_next_to_the_arrays_which_stay_as_they_are(tmp_path):
    both = draw_pairs("b")
    write_files(tmp_path, a=draw_pairs("a"), b=both, c=[*both[:2], *draw_pairs("a", 3)])
    stream = {"tasks": [task("x", "a", "b"), task("y", "a", "c")]}
    written = {}
    for overlap in ("warn", "drop"):
        found = find(tmp_path, stream, overlap)
        facts = write(found, Folder(str(tmp_path / overlap)), overlap)
        assert [one["images"] for one in facts["overlap"]] == [0, 3]
        assert facts["overlap"][1]["train"] == "the training images of x (3), y (3)"
        assert facts["repeats"] == [
            {"task": "y", "before": ["x"], "half": "train", "num_samples": 8, "samples": 8},
            {"task": "y", "before": ["x"], "half": "test", "num_samples": 5, "samples": 2},
        ]
        reported = [line for line in facts["warnings"] if "test images" in line]
        assert len(reported) == 1 and reported[0].endswith(
            "overlap=drop leaves them out" if overlap == "warn" else "they are left out (overlap=drop)"
        )
        assert facts["samples"]["mine, y, test"] == (
            {"ok": 5} if overlap == "warn" else {"contaminated": 3, "ok": 2}
        )
        names = [name for name in Folder(str(tmp_path / overlap)).list_names() if "tasks-1-test" not in name]
        written[overlap] = {name: (tmp_path / overlap / name).read_bytes() for name in names}
    assert written["warn"] == written["drop"] and len(written["warn"]) > 6


def write(found: FoundStream, folder: Folder, overlap: str) -> dict:
    config = ContinualConfig(overlap=overlap)
    texts = list_needed(found)
    rows = {text: draw(np.random.default_rng(list(text.encode())), 1, DIM)[0] for text in texts}
    embedded = Texts({text: i for i, text in enumerate(texts)}, np.stack(list(rows.values())))
    return make_arrays(Maker(found, embedded, config, None, folder, False))


def test_a_test_with_one_text_is_reported_and_a_stream_with_one_is_refused(tmp_path):
    same = [(f"same {i}", "a dog") for i in range(4)]
    one = [("one", "another dog")]
    write_files(tmp_path, a=draw_pairs("a"), same=same, one=one, b=draw_pairs("b"))
    stream = {"tasks": [task("first", "a", "same"), task("second", "a", "one"), task("third", "a", "b")]}
    warnings = write(find(tmp_path, stream), Folder(str(tmp_path / "out")), "warn")["warnings"]
    lone = [line for line in warnings if "has one text" in line]
    assert lone == [
        f"mine, {name}, test: has one text, {text!r}, so every method is right in 100 % of this test's own "
        "gallery; add samples with other texts"
        for name, text in (("first", "a dog"), ("second", "another dog"))
    ]
    with pytest.raises(UserError, match="all tests together have one text, 'a dog', so every"):
        find(tmp_path, {"tasks": [task("first", "a", "same"), task("second", "b", "same")]})
    with pytest.raises(UserError, match="all tests together have one text, 'another dog'"):
        find(tmp_path, {"tasks": [task("first", "a", "one")]})
    find(tmp_path, {"tasks": stream["tasks"][:2]})  # two texts are candidates of each other


def write_named(folder, **halves: list[tuple[str, list[str]]]) -> None:
    for name, named in halves.items():
        rows = [
            {
                "jpg": f"{name} {i}".encode(),
                "txt": text.encode(),
                "json": json.dumps({"primitives": some}).encode(),
            }
            for i, (text, some) in enumerate(named)
        ]
        (folder / name).mkdir()
        write_tar(str(folder / name / "0.tar"), [(f"{i}", row) for i, row in enumerate(rows)])


def test_different_primitives_of_one_text_are_reported(tmp_path):
    cube, ball = ["red", "cube"], ["red", "ball"]
    it, that, more = "a red cube", "a red ball", "a blue ball"
    write_named(
        tmp_path,
        a=[(it, cube), (it, ball), (that, ball), (that, ball[::-1])],
        b=[(it, cube[::-1]), (that, cube), (more, ball)],
    )
    stream = {"tasks": [task("first", "a", "b")]}
    warnings = write(find(tmp_path, stream), Folder(str(tmp_path / "out")), "warn")["warnings"]
    assert [line for line in warnings if "primitives for" in line] == [
        "mine, first, train: samples name different primitives for 1 texts, such as 'a red cube'; each "
        "text keeps the primitives of its first sample",
        "mine, first, test: names other primitives for 1 texts than earlier halves, such as 'a red ball' of "
        "mine, first, train; joined halves keep those of the earlier half",
    ]
    assert not find(tmp_path, stream, primitives="parsed").conflicts
