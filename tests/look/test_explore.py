"""What explore writes: every row on one card, the index against plain loops, refusals."""

import base64
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.cli import USER_ERROR, main
from raycomp.core.metrics import project_pca
from raycomp.curation.page import explain_sample
from raycomp.data.runs import read_finished
from raycomp.look.config import ExploreConfig
from raycomp.look.explore import ROWS_PER_FILE, get_bucket, split_words


def read_script(folder: Path, name: str):
    text = (folder / "data" / f"{name}.js").read_text(encoding="ascii")
    head = f'raycomp.put("{name}",'
    assert text.startswith(head) and text.endswith(");\n")
    return json.loads(text[len(head) : -3])


def read_cards(folder: Path) -> list[dict]:
    about = read_script(folder, "index/about")
    found = []
    for number, start in enumerate(about["cards"]):
        assert start == len(found)
        part = read_script(folder, f"cards/{number:05d}")
        assert 0 < len(part) <= ROWS_PER_FILE
        found += part
    return [card | dict(zip(about["values"], card["values"], strict=True)) for card in found]


def read_scores(folder: Path) -> list[dict]:
    return [row for path in sorted((folder / "scores").iterdir()) for row in pq.read_table(path).to_pylist()]


def decode(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


@pytest.fixture(scope="module")
def pages(curation, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("explore") / "out"
    record = raycomp.explore(curation, ExploreConfig(neighbours=3), out)
    assert record["funnel"]["kept"] == record["funnel"]["read"]
    noise = "Random weights (random:0): every score and every choice by score is noise."
    assert record["warnings"] == [noise] and "Random weights (random:0)" in (out / "report.html").read_text()
    return out


def test_every_row_has_one_card_with_its_outcome(curation, pages):
    cards, run = read_cards(pages), read_finished(str(curation))
    scores = {row["uid"]: row for row in read_scores(curation)}
    assert sorted(card["uid"] for card in cards) == sorted(scores)
    for card in cards:
        row = scores[card["uid"]]
        assert card["caption"] == row["caption"] and "photo" in card
        assert card["alignment"] == pytest.approx(row["alignment"], rel=1e-6)
        assert card["nsfw"] is None or 0 <= card["nsfw"] <= 1
        said = explain_sample(run, str(curation), card["uid"])
        kept = "yes" if card["outcome"] == "kept" else f"no, {card['outcome']}"
        assert said.endswith(f"kept: {kept}\nwhy: {card['why']}")
        for shown, phrase in zip(card["phrases"], row["phrases"], strict=True):
            start, first, last, end, kind, target, target_class, drop, nonces, counts = shown
            assert counts == (drop is not None and target_class != "unseen")
            assert row["caption"][start:end] == phrase["text"] and row["caption"][first:last] == target
            assert (kind, nonces) == (phrase["kind"], phrase["nonces"])
            assert drop == (phrase["drop"] and pytest.approx(phrase["drop"], abs=1e-6))


def test_the_nearest_rows_are_those_of_a_plain_search(curation, pages):
    vector = np.array([row["image_embedding"] for row in read_scores(curation)], np.float32)
    cosine = vector @ vector.T
    np.fill_diagonal(cosine, -2)
    for row, card in enumerate(read_cards(pages)):
        assert [one for one, _ in card["near"]] == np.argsort(-cosine[row], kind="stable")[:3].tolist()
        assert [value for _, value in card["near"]] == pytest.approx(np.sort(cosine[row])[::-1][:3], abs=1e-3)


def test_the_index_is_that_of_plain_loops(pages):
    about, cards = read_script(pages, "index/about"), read_cards(pages)
    columns = read_script(pages, "index/columns")
    names = [name for name, _ in about["outcomes"]]
    assert [names[code] for code in decode(columns["outcome"], "u1")] == [card["outcome"] for card in cards]
    assert dict(about["outcomes"]) == about["all"]
    kinds = ["object", "relation", "predicate"]
    wanted = [sum({1 << kinds.index(one[4]) for one in card["phrases"]}) for card in cards]
    assert decode(columns["kinds"], "u1").tolist() == wanted
    value = decode(columns["alignment"], "<f4")
    order = decode(read_script(pages, "index/by_alignment"), "<u4")
    assert sorted(order.tolist()) == list(range(len(cards))) and (np.diff(value[order]) >= 0).all()
    words = {word: [] for card in cards for word in split_words(card["caption"])}
    for row, card in enumerate(cards):
        phrases = {word for one in card["phrases"] for word in split_words(card["caption"][one[0] : one[3]])}
        for word in {*split_words(card["caption"])}:
            words[word].append(2 * row + (word in phrases))
    for word, codes in words.items():
        bucket = dict(read_script(pages, f"index/words_{get_bucket(word, about['buckets']):03d}"))
        assert decode(bucket[word], "<u4").tolist() == codes
    assert read_script(pages, "index/uids") == [card["uid"] for card in cards]


def test_a_draw_is_seeded_and_counted_and_a_condition_shows_the_rows_for_which_it_is_true(
    curation, pages, tmp_path
):
    drawn = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        config = ExploreConfig(rows=15, seed=seed, thumbnails=False)
        record = raycomp.explore(curation, config, tmp_path / name)
        assert record["funnel"]["dropped"] == {"not_drawn": record["funnel"]["read"] - 15}
        cards = read_cards(tmp_path / name)
        assert len(cards) == 15 and not any("photo" in card for card in cards)
        drawn.append([card["uid"] for card in cards])
    assert drawn[0] == drawn[1] != drawn[2]
    for number, (where, fits) in enumerate([
        ("outcome = 'kept'", lambda card: card["outcome"] == "kept"),
        ("nsfw > 0.5", lambda card: (card["nsfw"] or 0) > 0.5),
    ]):  # fmt: skip
        raycomp.explore(curation, ExploreConfig(where=where, thumbnails=False), tmp_path / str(number))
        shown = [card["uid"] for card in read_cards(tmp_path / str(number))]
        assert shown == [card["uid"] for card in read_cards(pages) if fits(card)], where
    record = raycomp.explore(curation, ExploreConfig(where="alignment > 2"), tmp_path / "out")
    assert record["funnel"]["kept"] == 0 and read_script(tmp_path / "out", "index/about")["rows"] == 0


def test_pages_of_a_selection_without_its_input(curation, tmp_path, monkeypatch):
    settings = {"near.rules": "captions", "materialize": False, "filter.where": "nsfw < 0.9"}
    raycomp.select(curation, settings, tmp_path / "chosen")
    raycomp.explore(tmp_path / "chosen", ExploreConfig(), tmp_path / "out")
    cards, about = read_cards(tmp_path / "out"), read_script(tmp_path / "out", "index/about")
    assert {"filtered", "kept"} <= {card["outcome"] for card in cards}
    groups = decode(read_script(tmp_path / "out", "index/columns")["group"], "<u4")
    assert [bool(group) for group in groups] == [card["duplicate_group"] is not None for card in cards]
    line = about["select"]["command"]
    assert f"raycomp select {curation}" in line and "near.rules=captions" in line
    assert "filter.exclude=exclude.txt" in line and about["select"]["exclude"] is None


def test_the_atlas_holds_every_row(curation, pages, tmp_path):
    file = tmp_path / "rows.parquet"
    assert main(["explore", str(curation), "--set", "neighbours=3", "--atlas", str(file)]) == 0
    rows, cards = pq.read_table(file).to_pylist(), read_cards(pages)
    assert [row["uid"] for row in rows] == [card["uid"] for card in cards]
    for row, card in zip(rows, cards, strict=True):
        assert row["neighbors"]["ids"] == [one for one, _ in card["near"]]
        assert row["thumbnail"]["bytes"][:3] == b"\xff\xd8\xff" and row["outcome"] == card["outcome"]
        assert [*map(len, row["phrase_texts"])] == [one[3] - one[0] for one in card["phrases"]]
    place = np.array([[row["projection_x"], row["projection_y"]] for row in rows])
    assert place.std(axis=0).min() > 0 and abs(place.mean(axis=0)).max() < 1e-5


def test_refusals(curation, pages, tmp_path, capsys):
    for words, said in (
        (["--where", "nswf > 1"], "no column nswf; there are nsfw"),
        (["--where", "alignment"], "must be true or false"),
        (["--set", "rows=0"], "rows=0: must be 1 to 2,000,000"),
        (["--atlas", "rows.csv"], "must end in .parquet"),
    ):
        assert main(["explore", str(curation), *words, "--out", str(tmp_path / "out")]) == USER_ERROR
        assert said in capsys.readouterr().err and not (tmp_path / "out" / "data").exists()
    assert main(["explore", str(pages), "--out", str(tmp_path / "out")]) == USER_ERROR
    assert "holds explore; name a curation or selection" in capsys.readouterr().err


def test_a_projection_keeps_the_largest_variance():
    for num, dim in ((0, 4), (1, 4), (5, 1), (50, 6)):
        vector = np.random.default_rng(num).normal(size=(num, dim)) * np.arange(1, dim + 1)
        place = project_pca(vector)
        assert place.shape == (num, 2)
        if num > 1:
            value = np.linalg.svd(vector - vector.mean(axis=0), compute_uv=False)[:2]
            assert np.linalg.norm(place, axis=0)[: len(value)] == pytest.approx(value, rel=1e-4), num
