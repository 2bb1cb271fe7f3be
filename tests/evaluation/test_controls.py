"""Captions that judges learn from: every format alike, nothing of the test among them."""

import itertools
import json

import pytest

from raycomp.evaluation.choices import fingerprint_controls, learn_captions, open_controls, read_captions
from raycomp.evaluation.config import ControlsConfig
from raycomp.language.overlap import bigram_likelihood, count_ngrams
from raycomp.words import BIGRAM, SHORTER_CAPTION, UNIGRAM

ROWS = [
    ("val2014/COCO_val2014_000000000042.jpg", ["A dog runs.", "A brown dog."]),
    ("7.png", ["A cat sits.", "The cat\u2028is here."]),
]
PAIRS = [(image, caption) for image, captions in ROWS for caption in captions]
FORMATS = {
    "lines.jsonl": "\n".join(json.dumps({"image": image, "captions": texts}) for image, texts in ROWS)
    + "\n\n",
    "karpathy.json": json.dumps([{"image": image, "caption": texts} for image, texts in ROWS]),
    "single.json": json.dumps([{"image": image, "caption": caption} for image, caption in PAIRS]),
    "plain.txt": "".join(f"{caption}\n" for _, caption in PAIRS),
}


def test_captions_are_the_same_in_every_format(tmp_path):
    for name, text in FORMATS.items():
        (tmp_path / name).write_text(text)
        found = list(read_captions(str(tmp_path / name)))
        assert [caption for _, caption in found] == [caption for _, caption in PAIRS], name
        images = [None if name == "plain.txt" else image for image, _ in PAIRS]
        assert [image for image, _ in found] == images, name


def test_a_file_that_holds_no_captions_is_one_line(tmp_path):
    for name, content, said in (
        ("a.jsonl", b'{"image": "1.jpg", "captions": ["a"]}\n{"image"', "line 2: cannot be read as JSON"),
        ("a.jsonl", b'{"image": "1.jpg"}', "line 1: has no field 'caption'"),
        ("a.json", b'{"image": "1.jpg"}', "must hold a JSON list, holds a dict"),
        ("a.txt", b"\xff\xfe", "cannot be read as UTF-8"),
        ("a.txt", b"  \n", "has no caption; add other captions"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=r"^controls\.captions=") as error:
            learn_captions(f"{tmp_path}/{name}", [], [])
        assert said in str(error.value) and "\n" not in str(error.value), said
    with pytest.raises(ValueError, match="no such file"):
        learn_captions(f"{tmp_path}/none.txt", [], [])


def test_what_a_test_uses_is_left_out(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text(FORMATS["lines.jsonl"])
    learned = learn_captions(str(path), ["a CAT sits!", "another"], ["val2017/000000000042.jpg", "8.png"])
    assert (learned.num_used, learned.num_same_image, learned.num_same_words) == (1, 2, 1)
    assert learned.counts == count_ngrams(["The cat is here."])
    with pytest.raises(ValueError, match="all 4 captions are of test images"):
        learn_captions(str(path), [], ["42.jpg", "COCO_train2014_000000000042.jpg", "folder/7.jpg"])


def test_texts_are_scored_by_the_captions_that_are_given(tmp_path):
    texts, said = ["A dog runs.", "A dog"], list[str]()
    scores = open_controls(ControlsConfig(), texts, [], said.append)(texts)
    assert {*scores} == {SHORTER_CAPTION} and not said and scores[SHORTER_CAPTION].tolist() == [-3, -2]
    path = tmp_path / "plain.txt"
    path.write_text(FORMATS["plain.txt"])
    scores = open_controls(ControlsConfig(str(path)), ["A cat runs."], [], said.append)(texts)
    counts = count_ngrams(caption for _, caption in PAIRS)
    assert {*scores} == {SHORTER_CAPTION, UNIGRAM, BIGRAM} and "fitted to 4 captions" in said[0]
    assert scores[BIGRAM].tolist() == [bigram_likelihood(text, counts) for text in texts]


def test_what_controls_learn_from_is_distinguished_by_its_content(tmp_path):
    (tmp_path / "model").mkdir()
    config = ControlsConfig(str(tmp_path / "a.txt"), str(tmp_path / "model"))
    found = []
    for captions, weights in ((b"a dog", b"1"), (b"a cat", b"1"), (b"a cat", b"2"), (b"a cat", b"2")):
        (tmp_path / "a.txt").write_bytes(captions)
        (tmp_path / "model" / "model.safetensors").write_bytes(weights)
        found.append(fingerprint_controls(config))
    names = ("controls.captions", "controls.language_model")
    changed = [{n for n in names if one[n] != other[n]} for one, other in itertools.pairwise(found)]
    assert changed == [{names[0]}, {names[1]}, set()]
    assert fingerprint_controls(ControlsConfig()) == {}
