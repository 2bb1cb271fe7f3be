"""Ids of collections in names, and runs of words."""

from raycomp.language.overlap import find_source_ids, list_grams


def test_ids_in_names():
    for name, ids in [
        ("COCO_val2014_000000397133.jpg", ["coco:397133"]),
        ("http://images.cocodataset.org/val2017/000000397133.jpg", ["coco:397133"]),
        ("val2017/000000397133.jpg", ["coco:397133"]),
        ("https://farm1.staticflickr.com/2/1000268201_693b08cb0e.jpg", ["flickr:1000268201"]),
        ("1000268201_693b08cb0e_z.jpg", ["flickr:1000268201"]),
        ("https://cs.stanford.edu/people/rak248/VG_100K_2/2321.jpg", ["visual_genome:2321"]),
        ("photo.jpg", []),
        ("12.jpg", []),
        ("shard/000000123", []),
        (None, []),
    ]:
        assert find_source_ids(name) == ids


def test_runs_of_eight_words():
    assert list_grams("one two three four five six seven") == []
    text = "a b c d e f g h i"
    assert list_grams(text) == ["a b c d e f g h", "b c d e f g h i"]
