"""Shuffles of captions: what stays where it was, by hand-tagged captions and by the packaged parser."""

import json
import re
from collections import Counter

import pytest

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.aro_order import FILES, clean, shuffle
from raycomp.evaluation.benchmarks.choice import EQUAL
from raycomp.evaluation.benchmarks.read import read_benchmark
from raycomp.language.lexicon import ADJECTIVE_TAGS, NOUN_TAGS, Token
from raycomp.models.parser import load_parser

TAGS = {"dog": "NN", "cats": "NNS", "mat": "NN", "park": "NN", "red": "JJ", "old": "JJ", "large": "JJR"}
CAPTION = "the old dog and two red cats sat on a large mat in the park ."


def tag(captions):
    return [[Token(w, 0, 0, TAGS.get(w, "DT"), "", 0) for w in caption.split()] for caption in captions]


def write(folder, *captions):
    (folder / FILES["coco"]).write_text(json.dumps([{"image": "val2014/1.jpg", "caption": list(captions)}]))
    return Folder(str(folder))


def test_each_shuffle_moves_what_it_should_and_no_more():
    (tokens,) = tag([CAPTION])
    words = [token.text for token in tokens]
    moved: Counter[int] = Counter()
    for seed in range(40):
        found = shuffle(tokens, str(seed))
        assert found[0] == words and all(Counter(one) == Counter(words) for one in found)
        _, described, others, within, threes = found
        for i, token in enumerate(tokens):
            is_other = token.tag not in (*NOUN_TAGS, *ADJECTIVE_TAGS)
            assert (others[i] if not is_other else described[i]) == words[i]
            assert TAGS.get(described[i], "DT")[:2] == token.tag[:2]
        groups = [sorted(within[i : i + 3]) for i in range(0, len(words), 3)]
        assert groups == [sorted(words[i : i + 3]) for i in range(0, len(words), 3)]
        joined, lefts = " ".join(threes), [words[i : i + 3] for i in range(0, len(words), 3)]
        assert all(" ".join(left) in joined for left in lefts)
        moved.update(place for place, one in enumerate(found) if one != words)
    # A shuffle that is the identity is rare among 4 nouns, 9 other words, 5 threes.
    assert set(moved) == {1, 2, 3, 4} and min(moved.values()) > 30


def test_the_draw_depends_on_seed_and_caption_alone(tmp_path):
    folder = write(tmp_path, CAPTION, "a dog on a mat")
    first = read_benchmark("aro_order", folder, tag=tag)
    assert read_benchmark("aro_order", folder, tag=tag) == first
    assert read_benchmark("aro_order", folder, tag=tag, limit=1) == first[:1]
    other = read_benchmark("aro_order", folder, tag=tag, seed=1)
    assert [row.positives for row in other] == [row.positives for row in first] and other != first
    assert (first[0].split, first[0].id, first[1].id, first[0].image) == (
        "coco",
        "0/0",
        "0/1",
        "val2014/1.jpg",
    )


def test_a_caption_that_cannot_be_shuffled_is_a_defect(tmp_path):
    rows = read_benchmark("aro_order", write(tmp_path, "cats", CAPTION), tag=tag)
    assert rows[0].negatives == ("cats",) * 4 and rows[0].defects == (EQUAL,)
    assert len(rows[1].negatives) == 4 and rows[1].defects == ()


def test_texts_are_cut_and_cleaned_as_the_published_code_does():
    def pre_caption(caption, max_words=30):
        caption = re.sub(r"([.!\"()*#:;~])", " ", caption.lower())
        return " ".join(re.sub(r"\s{2,}", " ", caption).strip().split(" ")[:max_words])

    words = ["A", "(big)", "dog;", "-", "it's", "5:30", "!", *map(str, range(40))]
    assert clean(words) == pre_caption(" ".join(words)) and clean(words).startswith(
        "a big dog - it's 5 30 0 1"
    )
    assert len(clean(words).split()) == 30


def test_the_packaged_parser_shuffles_real_captions(shared, tmp_path):
    """CLIP reads a caption with spaces between its tokens as it reads the caption."""
    import open_clip

    lines = (shared / "data/flickr8k_800/captions.jsonl").read_text().splitlines()[:60]
    captions = [text for line in lines for text in json.loads(line)["captions"]]
    rows = read_benchmark("aro_order", write(tmp_path, *captions), tag=load_parser().tokens)
    assert len(rows) == len(captions) == 300
    tokenize = open_clip.get_tokenizer("ViT-B-32")
    plain, spaced = (
        tokenize([clean([text]) for text in captions]),
        tokenize([row.positives[0] for row in rows]),
    )
    assert (plain != spaced).any(1).sum() <= 1
    for row in rows:
        assert all(Counter(text.split()) == Counter(row.positives[0].split()) for text in row.negatives)
        assert (EQUAL in row.defects) == (row.positives[0] in row.negatives)


@pytest.mark.parametrize(
    ("captions", "said"),
    [(["..."], "caption 0/0: '...': has no word"), ([5], "row 0: caption="), ([], "row 0: caption=")],
)
def test_captions_that_are_none(tmp_path, captions, said):
    with pytest.raises(ValueError, match=said):
        read_benchmark("aro_order", write(tmp_path, *captions), tag=tag)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has neither coco_karpathy_test\.json nor flickr30k_test\.json"):
        read_benchmark("aro_order", Folder(str(tmp_path)), tag=tag)
    with pytest.raises(ValueError, match="benchmark='aro_order': needs a parser"):
        read_benchmark("aro_order", Folder(str(tmp_path)))
