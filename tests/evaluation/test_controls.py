"""Captions that judges learn from: every format alike, nothing of the test among them."""

import itertools
import json

import numpy as np
import pytest

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.published import read_benchmark
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


@pytest.mark.stores
def test_captions_are_read_from_s3(bucket):
    Folder(bucket).write_bytes(FORMATS["lines.jsonl"].encode(), "a", "lines.jsonl")
    assert list(read_captions(f"{bucket}/a/lines.jsonl")) == PAIRS
    with pytest.raises(ValueError, match=r"controls\.captions='s3://.*': no such file"):
        list(read_captions(f"{bucket}/a/none.jsonl"))


def test_a_file_that_holds_no_captions_is_one_line(tmp_path):
    for name, content, said in (
        ("a.jsonl", '{"image": "1.jpg", "captions": ["a"]}\n{"image"', "line 2: cannot be read as JSON"),
        ("a.jsonl", '{"image": "1.jpg", "caption": "a", "caption": "b"}', "'caption' occurs twice"),
        ("a.jsonl", '{"image": "1.jpg"}', "line 1: has no field 'caption'"),
        ("a.json", '{"image": "1.jpg"}', "must hold a JSON list, holds a dict"),
        ("a.json", '[{"image": "1.jpg", "caption": [3]}]', "entry 0: caption="),
        ("a.txt", b"\xff\xfe", "cannot be read as UTF-8"),
        ("a.txt", "  \n", "has no caption; add other captions"),
        ("", "", "cannot be read"),
        ("none.txt", None, "no such file"),
    ):
        if name and content is not None:
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ValueError, match=r"^controls\.captions=") as error:
            learn_captions(f"{tmp_path}/{name}".rstrip("/"), [], [])
        assert said in str(error.value) and "\n" not in str(error.value), said


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


@pytest.mark.data
def test_sugarcrepe_is_judged_by_captions_of_other_photos(shared):
    choices = read_benchmark("sugarcrepe", Folder(str(shared / "data/benchmarks/sugarcrepe")))
    choices = [choice for choice in choices if choice.split == "add_att"]
    texts = sorted({text for choice in choices for text in (*choice.positives, *choice.negatives)})
    source = str(shared / "data/flickr8k_800/captions.jsonl")
    said: list[str] = []
    config, images = ControlsConfig(captions=source), [c.image for c in choices]
    scores = open_controls(config, texts, images, said.append)(texts)
    assert "fitted to 4,000 captions" in said[0] and "left out: 0 captions of test images" in said[0]
    at = {text: i for i, text in enumerate(texts)}
    unigram = scores[UNIGRAM]
    wins = [unigram[at[c.positives[0]]] > unigram[at[c.negatives[0]]] for c in choices]
    assert np.mean(wins) > 0.99  # every word that is added makes a caption less likely


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
