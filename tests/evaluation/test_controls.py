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


@pytest.mark.parametrize("name", FORMATS)
def test_captions_are_the_same_in_every_format(tmp_path, name):
    path = tmp_path / name
    path.write_text(FORMATS[name])
    found = list(read_captions(str(path)))
    assert [caption for _, caption in found] == [caption for _, caption in PAIRS]
    assert [image for image, _ in found] == [None if name == "plain.txt" else image for image, _ in PAIRS]


def test_captions_are_read_from_s3(bucket):
    Folder(bucket).write_bytes(FORMATS["lines.jsonl"].encode(), "a", "lines.jsonl")
    assert list(read_captions(f"{bucket}/a/lines.jsonl")) == PAIRS
    with pytest.raises(ValueError, match=r"controls\.captions='s3://.*': no such file"):
        list(read_captions(f"{bucket}/a/none.jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"image": "1.jpg", "captions": ["a"]}\n{"image"', "line 2: cannot be read as JSON"),
        (
            "a.jsonl",
            '{"image": "1.jpg", "caption": "a", "caption": "b"}',
            "'caption' occurs twice",
        ),
        (
            "a.json",
            '[{"image": "1.jpg", "caption": "a", "image": "2"}]',
            "'image' occurs twice",
        ),
        ("a.jsonl", '{"image": "1.jpg"}', "line 1: has no field 'caption'"),
        ("a.jsonl", "5", "line 1: has no field 'image'"),
        ("a.json", '{"image": "1.jpg"}', "must hold a JSON list, holds a dict"),
        ("a.json", '[{"image": "1.jpg", "caption": [3]}]', "entry 0: caption="),
        ("a.txt", b"\xff\xfe", "cannot be read as UTF-8"),
        ("a.txt", "  \n", "has no caption; add other captions"),
    ],
)
def test_a_file_that_holds_no_captions_is_one_line(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"^controls\.captions=") as error:
        learn_captions(str(path), [], [])
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_folder_is_no_file_of_captions(tmp_path):
    with pytest.raises(ValueError, match=r"^controls\.captions=.*cannot be read"):
        learn_captions(str(tmp_path), [], [])


def test_what_a_test_uses_is_left_out(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text(FORMATS["lines.jsonl"])
    learned = learn_captions(str(path), ["a CAT sits!", "another"], ["val2017/000000000042.jpg", "8.png"])
    assert (learned.num_used, learned.num_same_image, learned.num_same_words) == (1, 2, 1)
    assert learned.counts == count_ngrams(["The cat is here."])
    with pytest.raises(ValueError, match="all 4 captions are of test images"):
        learn_captions(str(path), [], ["42.jpg", "COCO_train2014_000000000042.jpg", "folder/7.jpg"])


def test_nothing_is_learned_where_no_captions_are_given():
    texts = ["A dog runs.", "A dog"]
    said: list[str] = []
    scores = open_controls(ControlsConfig(), texts, [], said.append)(texts)
    assert {*scores} == {SHORTER_CAPTION} and not said
    assert scores[SHORTER_CAPTION].tolist() == [-3, -2]


def test_sugarcrepe_is_judged_by_captions_of_other_photos(shared):
    choices = read_benchmark("sugarcrepe", Folder(str(shared / "data/benchmarks/sugarcrepe")))
    choices = [choice for choice in choices if choice.split == "add_att"]
    texts = sorted({text for choice in choices for text in (*choice.positives, *choice.negatives)})
    source = str(shared / "data/flickr8k_800/captions.jsonl")
    said: list[str] = []
    config, images = ControlsConfig(captions=source), [c.image for c in choices]
    scores = open_controls(config, texts, images, said.append)(texts)
    assert {*scores} == {SHORTER_CAPTION, UNIGRAM, BIGRAM}
    assert "fitted to 4,000 captions" in said[0] and "left out: 0 captions of test images" in said[0]
    counts = count_ngrams(caption for _, caption in read_captions(source))
    slow = np.array([bigram_likelihood(text, counts) for text in texts])
    assert np.array_equal(scores[BIGRAM], slow)
    at = {text: i for i, text in enumerate(texts)}
    unigram = scores[UNIGRAM]
    wins = [unigram[at[c.positives[0]]] > unigram[at[c.negatives[0]]] for c in choices]
    assert np.mean(wins) > 0.99  # every word that is added makes a caption less likely


def test_photos_of_the_test_teach_nothing(shared):
    source = str(shared / "data/coco_val_40/captions.jsonl")
    choices = read_benchmark("sugarcrepe", Folder(str(shared / "data/benchmarks/sugarcrepe")))
    images = {choice.image for choice in choices}
    rows = map(json.loads, (shared / "data/coco_val_40/captions.jsonl").read_text().splitlines())
    expected = sum(len(row["captions"]) for row in rows if row["image"] in images)
    learned = learn_captions(source, [], images)
    assert learned.num_same_image == expected > 0


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
