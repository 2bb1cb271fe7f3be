"""The composition probe on encoders whose answers are known."""

import math
from itertools import permutations

import numpy as np
import pytest

from raycomp.probe import composition as probe_loop
from raycomp.probe.composition import (
    ANY,
    OTHER,
    PARAPHRASE,
    SHARES,
    ProbeResult,
    probe_composition,
    report_probe,
)
from raycomp.table import join_text

WORDS = "ant bee cat dog eel fox".split()
PLACES = 6


@pytest.fixture(autouse=True)
def few_refits(monkeypatch):
    """Only the widths of the intervals of A-distances follow from their number."""
    monkeypatch.setattr(probe_loop, "_NUM_REFITS", 3)


class Encoder:
    """One-hot words, by place or as a bag; keeps what it was asked."""

    def __init__(self, is_ordered: bool):
        self.is_ordered = is_ordered
        self.asked: list[list[str]] = []
        self.known = {word: i for i, word in enumerate([*WORDS, "on", "red", "likes"])}

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.asked.append(texts)
        out = np.zeros((len(texts), PLACES, len(self.known)), np.float32)
        for i, text in enumerate(texts):
            for place, word in enumerate(text.split()):
                out[i, place if self.is_ordered else 0, self.known[word]] += 1
        return out.reshape(len(texts), -1)


def negative(text: str, op: str, calls: int = 1) -> dict:
    return {"text": text, "op": op, "calls": calls, "kind": "object", "similarity": None}


def make_rows() -> list[dict]:
    """Every ordered pair of words; the paraphrase replaces the verb, two in three rows have one.

    Every second row has another caption, which shares no word in its place with the first. No two rows have
    one text of one operation.
    """
    rows = []
    for i, (one, two) in enumerate(permutations(WORDS, 2)):
        others = [word for word in WORDS if word != one]
        third = others[(others.index(two) + 1) % len(others)]
        negatives = [
            negative(f"{two} on {one}", "SWAP"),
            negative(f"{one} on {third}", "REPLACE"),
            negative(f"red {one} on {two}", "ADD"),
            negative(f"{third} on {one}", "SWAP+REPLACE", 2),
        ]
        paraphrase = f"{one} likes {two}" if i % 3 else None
        rows.append({"uid": f"{i:032x}", "caption": f"{one} on {two}", "negatives": negatives})
        rows[-1][PARAPHRASE] = paraphrase
        rows[-1][OTHER] = f"red {one} likes {two}" if i % 2 else None
    return rows


def probe(
    is_ordered: bool, rows: list[dict] | None = None
) -> tuple[ProbeResult, dict[tuple[str, int], dict]]:
    rows, encode = rows or make_rows(), Encoder(is_ordered)
    result = probe_composition(encode, rows, Encoder(is_ordered)([row["caption"] for row in rows]), seed=1)
    return result, {(line["op"], line["calls"]): line for line in result.operations}


def test_an_encoder_that_sees_order():
    """Swapping moves 2 of 3 words: cosine 1/3, distance sqrt(4/3); a paraphrase or replacement 1 of 3.

    The other caption shares no word in its place: distance sqrt(2) of vectors at right angles.
    """
    _, lines = probe(True)
    swap, replace, same, other = lines["SWAP", 1], lines["REPLACE", 1], lines[PARAPHRASE, 0], lines[OTHER, 0]
    found = [each["distance"] for each in (swap, other, same)]
    assert found == pytest.approx([math.sqrt(4 / 3), math.sqrt(2), math.sqrt(2 / 3)], abs=1e-5)
    assert [swap["text_drop"], swap["image_drop"]] == pytest.approx([2 / 3, 2 / 3], abs=1e-5)
    assert (same["relative"], other["over_other"]) == (1, 1)
    found = [swap["relative"], replace["relative"], swap["over_other"]]
    assert found == pytest.approx([math.sqrt(2), 1, math.sqrt(2 / 3)], abs=1e-5)
    assert [swap["farther"], replace["farther"], same["farther"]] == [1, 0.5, 0.5]
    assert swap["accuracy"] == replace["accuracy"] == 1
    assert swap["a_distance"] <= swap["a_null_high"], "the set of captions is closed under swapping"
    assert lines["ADD", 1]["a_distance"] > 1.5
    assert same["a_distance"] == 2, "the verb tells"
    _, alone = probe(True, [{**row, PARAPHRASE: None} for row in make_rows()])
    assert math.isnan(alone["SWAP", 1]["relative"]), "another caption is no paraphrase"
    assert alone["SWAP", 1]["over_other"] == swap["over_other"]


def test_repeated_captions_in_any_writing_are_within_their_null():
    """Ten uids to a caption: learned by heart from the others, its texts would be told apart."""
    rows = make_copies(600, 60)
    for i, row in enumerate(rows):
        row["caption"] = row["caption"].replace(" ", " " * (1 + i // 60)).title()
        row["negatives"][0]["text"] = row["negatives"][0]["text"].upper() + " " * (i // 60)
    result = probe_composition(scatter_texts, rows)
    (line,) = (line for line in result.operations if line["op"] == "SWAP")
    assert line["a_null_low"] <= line["a_distance"] <= line["a_null_high"]
    assert (result.num_compared, line["num_uids"]) == (60, 600)


def test_every_a_distance_is_of_one_number_of_captions():
    """The smallest line has 15; a line of three pairs to a caption has no more, one of fewer has none."""
    result, lines = probe(True)
    named = [("SWAP", 1), ("REPLACE", 1), ("ADD", 1), ("SWAP+REPLACE", 2), (ANY, 1), (ANY, 2)]
    assert list(lines) == [(PARAPHRASE, 0), (OTHER, 0), *named]
    assert [line["num_pairs"] for line in lines.values()] == [20, 15, 30, 30, 30, 30, 90, 30]
    assert (result.num_uids, result.num_paraphrased, result.num_with_other) == (30, 20, 15)
    # Three words: shares up to 3/4 move two of them, all words move three.
    cosines = {row["share"]: row["cosine"] for row in result.permutation}
    assert cosines == pytest.approx({0: 1, 0.25: 1 / 3, 0.5: 1 / 3, 0.75: 1 / 3, 1: 0}, abs=1e-6)
    assert result.num_compared == 15
    assert not any(math.isnan(line["a_distance"]) for line in lines.values())
    all_rows = probe_composition(Encoder(True), make_rows(), num_compared=30)
    assert all_rows.num_compared == 30
    known = {line["op"]: math.isnan(line["a_distance"]) for line in all_rows.operations}
    assert known[PARAPHRASE] and known[OTHER] and not known["SWAP"] and not known[ANY]


def scatter_texts(texts: list[str]) -> np.ndarray:
    """Give each text a direction of its own, all of one distribution."""
    texts = [" ".join(text.lower().split()) for text in texts]
    return np.array([np.random.default_rng(list(text.encode())).standard_normal(64) for text in texts])


def make_copies(num: int, num_captions: int) -> list[dict]:
    """Rows with uids of their own, and captions that they share, each with its edit."""
    rows = []
    for i in range(num):
        edits = [negative(f"edit {i % num_captions}", "SWAP")]
        rows.append({"uid": f"{i:032x}", "caption": f"caption {i % num_captions}", "negatives": edits})
    return rows


def test_the_rarest_lines_do_not_lower_the_number_of_all():
    """Lines of 250 and 150 captions of one call, 110 of two, 7 paraphrases: N is 150."""
    rows = make_copies(250, 250)
    for i, row in enumerate(rows):
        row["negatives"] += [negative(f"added {i}", "ADD")] * (i < 150)
        row["negatives"] += [negative(f"both {i}", "SWAP+ADD", 2)] * (i < 110)
        row[PARAPHRASE] = f"again {i}" if i < 7 else None
    result = probe_composition(scatter_texts, rows)
    known = {line["op"]: not math.isnan(line["a_distance"]) for line in result.operations[:-2]}
    assert (result.num_paraphrased, result.num_compared) == (7, 150)
    assert known == {PARAPHRASE: False, OTHER: False, "SWAP": True, "ADD": True, "SWAP+ADD": False}
    assert probe_composition(scatter_texts, rows[:109]).num_compared == 109
    for row in rows:
        row["negatives"] = [one for one in row["negatives"] if one["calls"] == 2]
    assert probe_composition(scatter_texts, rows).num_compared == 110, "no line of one call"


def test_another_basis_changes_nothing():
    """As before and after training, one seed: the same shuffles, pairs, folds and resamples."""
    rng, rows = np.random.default_rng(0), make_rows()
    plain, turn = rng.standard_normal((PLACES * 9, 16)), np.linalg.qr(rng.standard_normal((16, 16)))[0]
    image = Encoder(True)([row["caption"] for row in rows])

    def run(basis: np.ndarray) -> ProbeResult:
        return probe_composition(lambda texts: Encoder(True)(texts) @ basis, rows, image @ basis, seed=5)

    one, two = run(plain), run(plain @ turn)
    for a, b in zip(one.operations + one.permutation, two.operations + two.permutation, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            same = a[name] if isinstance(a[name], str) else pytest.approx(a[name], abs=1e-4, nan_ok=True)
            assert b[name] == same, name


def test_an_encoder_that_does_not():
    result, lines = probe(False)
    swap = lines["SWAP", 1]
    for name in ("a_distance", "distance", "relative", "over_other", "text_drop", "image_drop"):
        assert swap[name] == pytest.approx(0, abs=1e-6), name
    assert (swap["accuracy"], lines["REPLACE", 1]["accuracy"]) == (0.5, 1)
    assert lines[ANY, 1]["accuracy"] == pytest.approx((0.5 + 1 + 1) / 3)
    assert [row["cosine"] for row in result.permutation] == pytest.approx([1] * len(SHARES), abs=1e-6)


def test_without_images_paraphrases_or_many_rows():
    rows = [{**row, "paraphrase": row["caption"]} for row in make_rows()[:3]]
    rows.append({"uid": "x", "caption": "cat", "negatives": None})
    result = probe_composition(Encoder(True), rows)
    line = {line["op"]: line for line in result.operations}
    assert line[PARAPHRASE]["num_pairs"] == 0, "a copy is no paraphrase"
    # Three uids make no five folds.
    assert all(math.isnan(line["SWAP"][name]) for name in ("accuracy", "relative", "a_distance"))
    assert {row["num"] for row in result.permutation} == {3}, "one word cannot be shuffled"
    text = join_text(report_probe(result))
    assert "images is not set" in text and "nan" not in text


def test_embeddings_that_do_not_fit():
    for encode, images, message in [
        (lambda texts: np.zeros((1, 4)), None, r"texts: must be \["),
        (lambda texts: np.full((len(texts), 4), np.nan), None, "must be finite"),
        (lambda texts: np.ones((len(texts), 4)), np.ones((2, 4)), r"30 images: must be \[30, dims\]"),
        (lambda texts: np.ones((len(texts), 4)), np.ones((30, 5)), "5 dims and texts 4"),
    ]:
        with pytest.raises(ValueError, match=message):
            probe_composition(encode, make_rows(), images)


def test_every_text_is_embedded_once_the_seed_decides_and_rows_of_one_uid_are_one_unit():
    """Rows doubled under their uids: as many pairs, no narrower interval of the distance."""
    encode, rows = Encoder(True), make_rows()
    for row in rows[::2]:
        row["negatives"][1] = negative("red red red", "REPLACE")
    first = probe_composition(encode, rows, seed=3)
    (asked,) = encode.asked
    assert len(set(asked)) == len(asked) and {row["caption"] for row in rows} <= set(asked)
    again, other = (probe_composition(Encoder(True), rows, seed=seed) for seed in (3, 4))
    assert str(report_probe(again)) == str(report_probe(first)) != str(report_probe(other))
    twice = probe_composition(Encoder(True), rows + rows, seed=3)
    (one,), (two,) = ([x for x in some.operations if x["op"] == "REPLACE"] for some in (first, twice))
    assert (two["num_pairs"], two["num_uids"], two["distance"]) == (60, 30, pytest.approx(one["distance"]))
    widths = [each["distance_high"] - each["distance_low"] for each in (one, two)]
    assert widths[1] == pytest.approx(widths[0], rel=0.3)
