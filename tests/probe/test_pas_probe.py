"""The PAS probe on encoders whose order of drops is known, on real captions with CLIP's tokens, and as a user
runs it: on what a curation left, however it was moved."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import open_clip
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import raycomp
from raycomp.cli import USER_ERROR, main
from raycomp.config import ParserConfig, ScorerConfig
from raycomp.core.reliability import CROSS, NONCE, SAME, WRONG
from raycomp.curation.config import AlignConfig, NonceConfig, make_selection
from raycomp.curation.score.stages import parse
from raycomp.language.lexicon import is_plural
from raycomp.language.phrases import (
    NO_CATEGORY,
    NO_SAME,
    Controls,
    ControlWords,
    list_distinct_words,
    make_counterfactual,
    read_article,
)
from raycomp.look.show import explain
from raycomp.models.architecture import NonceMaker
from raycomp.models.device import name_device
from raycomp.models.parser import load_lexicon, load_parser
from raycomp.probe import pas
from raycomp.probe.pas import (
    COUNTS,
    NO_NONCE,
    NO_NOUN,
    NO_PICTURE,
    NUM_AGAIN,
    OpenedPas,
    PasResult,
    Samples,
    list_criteria,
    make_redraw,
    measure_pas,
    probe_samples,
    report_pas,
    say_verdict,
)
from raycomp.table import join_text
from raycomp.words import CONTENT, HEAD, UNSEEN
from tests.corpus import by_cpi, mean_drop, write_world_shards

LEXICON = load_lexicon()
MAKER = NonceMaker(open_clip.get_tokenizer("ViT-B-32"))
ANIMALS, THINGS = "dog cat horse cow goat".split(), "car truck bus van tractor".split()
NUM = 40
COSTS = {SAME: 0.1, NONCE: 0.2, CROSS: 0.3}


def make_samples(num: int = NUM, animals: list[str] = ANIMALS, things: list[str] = THINGS) -> Samples:
    """Captions of two targets; picture i lies along its own axis, and a little along one that all share."""
    count = len(animals)
    captions = [
        f"a {animals[i % count]} beside a {things[i // count % count]} number {'i' * (i // count**2 + 1)}"
        for i in range(num)
    ]
    phrases = []
    for caption in captions:
        words = caption.split()
        starts = [2, caption.index(words[4])]
        spans = [(start, start + len(word)) for start, word in zip(starts, (words[1], words[4]), strict=True)]
        made = MAKER.make(caption, spans, 2)
        phrases.append([phrase(*span, nonces) for span, nonces in zip(spans, made, strict=True)])
    image_ND = 0.8 * np.eye(num + 2, dtype=np.float32)[:num]
    image_ND[:, num] = 0.6
    uids = [f"{i:032x}" for i in range(num)]
    alignment_N = np.random.default_rng(0).normal(size=num)
    words, reading = frozenset([*animals, *things]), make_selection(by_cpi())
    return Samples(uids, captions, phrases, [None] * num, image_ND, alignment_N, words, reading, "the score")


def phrase(start: int, end: int, nonces: list[str]) -> dict:
    place = {"start": start - 2, "target_start": start, "target_end": end}
    drops = {"drop": 0.1 + start / 100, "displacement": 0.2}
    return place | drops | {"kind": "object", "target_class": HEAD, "nonces": nonces}


def changed(caption: str, text: str) -> tuple[str, str]:
    [pair] = [pair for pair in zip(caption.split(), text.split(), strict=True) if pair[0] != pair[1]]
    return pair


def cost_of(caption: str, text: str) -> float:
    """What the planted encoder takes off the similarity: by the category of the word put in."""
    old, new = (LEXICON.find(word, "object") for word in changed(caption, text))
    if new is None:
        return COSTS[NONCE]
    return COSTS[SAME if new.category == old.category else CROSS]


def make_encode(samples: Samples, is_constant: bool = False, cost=cost_of):
    """A caption lies near its picture, or, blind, near what all share; a variant as far off as it costs."""
    dims = samples.image_ND.shape[1]
    number = {caption: i for i, caption in enumerate(samples.captions)}

    def place(caption: str, near: float) -> np.ndarray:
        text_D = np.zeros(dims, np.float32)
        text_D[len(number) if is_constant else number[caption]] = near
        text_D[-1] = (1 - near**2) ** 0.5
        return text_D

    def encode(captions: list[str], variants: list[list[str]]) -> tuple[torch.Tensor, torch.Tensor]:
        texts = [(c, text) for c, group in zip(captions, variants, strict=True) for text in group]
        return (
            torch.tensor(np.array([place(caption, 0.9) for caption in captions])),
            torch.tensor(np.array([place(c, 0.9 - cost(c, text)) for c, text in texts])),
        )

    return encode


def redraw(uid: str, caption: str, spans: list[tuple[int, int]]) -> list[list[str]]:
    return [[] if isinstance(made, str) else made for made in MAKER.make(caption, spans, NUM_AGAIN)]


def probe(samples: Samples, encode=None, seed: int = 0) -> PasResult:
    encode = encode or make_encode(samples)
    control = ControlWords(LEXICON, MAKER.encode, 77, samples.vocabulary, seed)
    return probe_samples(samples, encode, control, redraw, 0.5, seed)


def report_text(result: PasResult) -> str:
    """Return what the probe says in one line."""
    return " ".join(join_text(report_pas(result, [], "planted")).split())


GOOD = {"how": {}, "alignment": 0.0, "displacement": 0.0, "own": 1.0, "shared": 0.2}
GOOD |= {"same": 0.1, "cross": 0.3, "noise": 0.01, "covered": (199, 200)}
BREAKS = {
    "": {},
    "wrong image": {"own": 0.0, "shared": 1.0},
    "same category": {"same": 0.4, "cross": 0.6},
    "other category": {"cross": 0.12},
    "alignment": {"alignment": 1.0},
    "displacement": {"displacement": 1.0},
    "other nonces": {"noise": 0.2},
    "coverage": {"covered": (90, 100)},
    "extreme word": {"how": {"aggregate": "min"}},
}


@pytest.mark.parametrize("criterion", BREAKS)
def test_each_criterion_of_the_verdict_fails_where_its_fault_is_planted(criterion, tiny_scorer):
    """A text falls off along its own picture's axis and along the one that all pictures share."""
    plan, rng = GOOD | BREAKS[criterion], np.random.default_rng(1)
    animals = "dog cat horse cow goat sheep bear lion pig rabbit tiger zebra".split()
    things = "car truck bus van tractor taxi chair bench sofa bed shirt jacket".split()
    samples = make_samples(120, animals, things)
    own_N = rng.normal(size=120)
    for i, some in enumerate(samples.phrases):
        for one, end in zip(some, (-0.05, 0.05), strict=True):
            one["drop"] = 0.3 + 0.05 * own_N[i] + end
            one["displacement"] = 0.2 + 0.01 * rng.normal() + plan["displacement"] * one["drop"]
        some[0]["target_class"] = UNSEEN
    selection = replace(samples.selection, targets="nouns", **plan["how"])
    alignment_N = samples.alignment_N + 5 * plan["alignment"] * own_N
    samples = replace(samples, alignment_N=alignment_N, selection=selection)
    number, dims = {caption: i for i, caption in enumerate(samples.captions)}, samples.image_ND.shape[1]

    def draw(name: str) -> float:
        return np.random.default_rng([*name.encode()]).standard_normal()

    def place(caption: str, cost: float, tilt: float) -> np.ndarray:
        text_D = np.zeros(dims, np.float32)
        text_D[number[caption]] = 0.6 - plan["own"] * cost
        text_D[-2] = 0.5 - plan["shared"] * cost - tilt
        text_D[-1] = (1 - text_D @ text_D) ** 0.5
        return text_D

    def price(caption: str, text: str) -> np.ndarray:
        old, new = (LEXICON.find(word, "object") for word in changed(caption, text))
        kind = NONCE if new is None else SAME if new.category == old.category else CROSS
        cost = {NONCE: 0.2 + plan["noise"] * draw(text), SAME: plan["same"], CROSS: plan["cross"]}[kind]
        return place(caption, cost + 0.03 * draw(caption), 0.005 * draw(f"{text}."))

    def encode(captions: list[str], variants: list[list[str]]) -> tuple[torch.Tensor, torch.Tensor]:
        texts = [price(c, text) for c, group in zip(captions, variants, strict=True) for text in group]
        own = [place(caption, 0, 0) for caption in captions]
        return torch.tensor(np.array(own)), torch.tensor(np.array(texts))

    opened = OpenedPas(samples, tiny_scorer, "planted", NonceConfig(), 0.5, 2, plan["covered"], dict)
    criteria = list_criteria(probe(samples, encode), opened)
    failed = {one.name.partition(":")[0] for one in criteria if one.result == "fail"}
    assert failed == {criterion} - {""}, criteria
    answer = f"No: of {len(criteria)} criteria" if criterion else "Yes: all 7 criteria pass"
    assert say_verdict(criteria).startswith(f"Trust PAS on these data? {answer}"), criteria


def test_the_planted_order_comes_out():
    """A picture sees 0.8 of what a text lies along its axis; with another picture nothing changes at all."""
    result = probe(make_samples())
    line = result.calibration[0]
    assert line["num_targets"] == len(result.targets) == result.num_targets == 2 * NUM
    found = {name: line[name] for name in (*COSTS, WRONG)}
    assert found == pytest.approx({name: 0.8 * cost for name, cost in COSTS.items()} | {WRONG: 0}, abs=1e-6)
    assert all(said in report_text(result) for said in ("0.0177", "0.0227", "0.0257"))


def test_the_profile_follows_the_reading_and_what_is_added():
    """The mean drop of the heads that have one; the least per displacement of all words, and alignment."""
    samples = make_samples()
    samples.phrases[0][0]["target_class"] = UNSEEN
    samples.phrases[1] = [one | {"drop": None} for one in samples.phrases[1]]
    result = probe(samples)
    assert [result.profile[name]["num"] for name in ("displacement", "alignment")] == [2 * NUM - 3, NUM - 1]
    means = [np.mean([p["drop"] for p in some]) for some in (samples.phrases[0][1:], *samples.phrases[2:])]
    expected = np.corrcoef(np.delete(samples.alignment_N, 1), means)[0, 1]
    assert result.profile["alignment"]["value"] == pytest.approx(expected, abs=1e-6)  # float32, as it ranks
    assert "The score: the score." in report_text(result)
    samples = make_samples()
    samples.phrases[0][0]["target_class"] = UNSEEN
    for i, some in enumerate(samples.phrases):
        some[1] |= {"displacement": 0.1 + i / 100}
    how = {"aggregate": "min", "unit": "per_displacement", "targets": "content"}
    own = replace(samples, selection=replace(samples.selection, **how), base_N=2 * samples.alignment_N)
    least = [min(p["drop"] / (2 * p["displacement"]) ** 0.5 for p in some) for some in samples.phrases]
    profile = probe(own).profile
    expected = np.corrcoef(samples.alignment_N, np.array(least) + 2 * samples.alignment_N)[0, 1]
    assert profile["alignment"]["value"] == pytest.approx(expected, abs=1e-6)
    assert profile["displacement"]["num"] == 2 * NUM


def test_every_target_is_a_row_or_has_a_reason():
    samples = make_samples(10)
    samples.phrases[3][0]["target_class"] = UNSEEN  # no part in the drop of showable nouns
    assert probe(samples).num_again == 19
    samples.phrases[3][0]["target_class"] = CONTENT
    content = probe(replace(samples, selection=replace(samples.selection, targets="content")))
    assert (content.num_again, content.left_out, len(content.targets)) == (20, {NO_NOUN: 1}, 19)
    samples = make_samples(10)
    samples.phrases[0][0]["nonces"] = []
    samples.phrases[1][1] |= {"target_start": 0, "target_end": 1, "start": 0}  # "a": no noun
    samples.captions[2] = samples.captions[2].replace("a horse", "a moth")
    samples.phrases[2] = [phrase(2, 6, ["houn"])]
    result = probe(samples)
    assert result.left_out == {NO_NONCE: 1, NO_CATEGORY: 1, NO_SAME: 1}
    assert len(result.targets) + sum(result.left_out.values()) == result.num_targets == 19
    assert {row["uid"] for row in result.targets} <= {*samples.uids}
    assert all(row["other_uid"] != row["uid"] for row in result.targets)
    alone = make_samples(2)
    alone.image_ND[1] = alone.image_ND[0]
    assert probe(alone).left_out == {NO_PICTURE: 4}
    assert "0 of 4 targets" in report_text(probe(alone))


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_nonces_of_known_spread(noise):
    """Mean PAS of two targets; their own parts have standard deviation 0.05, each nonce ``noise`` more."""

    def cost(caption: str, text: str) -> float:
        def draw(name: str) -> float:
            return np.random.default_rng([*name.encode()]).standard_normal()

        old, _ = changed(caption, text)
        return 0.4 + 0.05 * draw(caption + old) + noise * draw(text)

    samples = make_samples(120)
    assert len({*samples.captions}) == 120
    result = probe(samples, make_encode(samples, cost=cost))
    assert result.num_again == 240 and [line["count"] for line in result.retest] == [*COUNTS]
    assert result.between == pytest.approx(0.8 * 0.05, rel=0.15)
    assert result.within == pytest.approx(0.8 * noise, rel=0.1, abs=1e-6)
    for line in result.retest:
        true = 0.05**2 / (0.05**2 + noise**2 / line["count"])
        assert line["reliability_low"] - 1e-6 <= true <= line["reliability_high"] + 1e-6
        assert line["predicted"] == pytest.approx(line["reliability"], abs=0.05)
    assert (result.retest[0]["in_common"] == 1) == (noise == 0)


def test_real_captions_keep_their_length_form_and_article(shared):
    """Every word that is put into 600 real captions, under CLIP's own tokenizer."""
    folders = (shared / "data" / name for name in ("flickr8k_800", "cc_web_400"))
    lines = [line for one in folders for line in (one / "captions.jsonl").read_text().splitlines()[:300]]
    captions = [json.loads(line)["captions"][0] for line in lines]
    controls = ControlWords(LEXICON, MAKER.encode, 77, set().union(*map(list_distinct_words, captions)))
    encode, num_found = MAKER.tokenizer.encode, 0
    for caption, phrases in zip(captions, load_parser().parse(captions), strict=True):
        for one in phrases:
            start, end = one.target_start, one.target_end
            words = controls.draw(caption, one.start, start, end)
            if not isinstance(words, Controls):
                continue
            num_found += 1
            target, article = caption[start:end], read_article(caption, start)
            for word in words:
                replaced = encode(make_counterfactual(caption, start, end, word))
                differ = [a != b for a, b in zip(encode(caption), replaced, strict=True)]
                assert sum(differ) <= len(encode(target))
                assert is_plural(word) == is_plural(target)
                assert word[:1].isupper() == target[:1].isupper()
                assert not article or (article == "an") == word.lower().startswith((*"aeio", "um"))
                assert not LEXICON.are_synonyms(word, target)
            assert not LEXICON.are_related(target, words.cross)
    assert num_found > 500


def test_nonces_are_drawn_as_the_curation_drew_them(tiny_scorer):
    captions = ["a dog on a table", "a dog near an old bus", "two dogs and a horse"]
    uids = [f"{i:032x}" for i in range(3)]
    table = pa.table({"uid": uids, "caption": captions})
    for key, num_drawn in [("target", 1), ("sample", 2)]:
        config = NonceConfig(seed=3, key=key)
        parsed = parse(table, ParserConfig(), config, mean_drop(nonces=2), tiny_scorer)
        redraw = make_redraw(NonceMaker(MAKER.tokenizer, 3), config)
        drawn = set()
        for uid, caption, phrases in zip(uids, captions, parsed["phrases"].to_pylist(), strict=True):
            made = redraw(uid, caption, [(one["target_start"], one["target_end"]) for one in phrases])
            assert [nonces[:2] for nonces in made] == [one["nonces"] for one in phrases]
            assert all(2 < len({*nonces}) == len(nonces) <= NUM_AGAIN for nonces in made)
            drawn |= {nonces[0] for nonces, one in zip(made, phrases, strict=True) if one["target"] == "dog"}
        assert len(drawn) == num_drawn, key


def test_an_encoder_that_does_not_see_pays_the_same_with_any_picture(monkeypatch):
    samples = make_samples()
    result = probe(samples, make_encode(samples, is_constant=True))
    assert result.calibration[0][NONCE] == pytest.approx(0.6 * COSTS[NONCE], abs=1e-6)
    assert all(row[WRONG] == row[NONCE] for row in result.targets)
    assert result.calibration[0]["right_over_wrong"] == 0
    # The seed decides, blocks do not.
    first = asdict(probe(samples))
    monkeypatch.setattr(pas, "_SAMPLES_PER_PASS", 7)
    assert json.dumps(asdict(probe(samples))) == json.dumps(first)
    assert probe(samples, seed=1).targets != first["targets"]


NUM_SCENES = 24


def write_curation(folder: Path, scorer: ScorerConfig) -> str:
    """Curate scenes in two shards, and move the run."""
    shards = write_world_shards(folder / "in", NUM_SCENES, NUM_SCENES // 2, seed=5)
    attribute, nonce = mean_drop(nonces=2, pool=1.0), NonceConfig(seed=3)
    options = {"align": AlignConfig(1.0), "attribute": attribute, "nonce": nonce, "materialize": False}
    raycomp.curate(by_cpi(input=shards, scorer=scorer, **options), folder / "out")
    return str((folder / "out").rename(folder / "moved"))


def test_pas_needs_the_scorer_and_the_scores_of_the_curation(tiny_scorer, tmp_path, monkeypatch, capsys):
    """A scorer may be exchanged while it is measured."""
    model = tmp_path / "tiny.json"
    model.write_bytes(Path(tiny_scorer.model).read_bytes())
    source = write_curation(tmp_path / "curated", replace(tiny_scorer, model=str(model)))
    line = ["probe", "pas", "--set", f"input={source}", "--set", "sample=3", "--out", str(tmp_path / "out")]

    def refuse(*options: str) -> str:
        assert main([*line, *options]) == USER_ERROR
        return capsys.readouterr().err

    other = ["--set", f"scorer.model={model}", "--set", "scorer.weights=random:1"]
    assert "must be the scoring model of" in refuse(*other)
    content, place = model.read_text(), Path(source) / "run.json"
    record = json.loads(place.read_text())  # as a rule without a gate by PAS leaves it
    place.write_text(json.dumps(record | {"gates": record["gates"] | {"attribute": None}}))
    monkeypatch.setattr(
        pas, "measure_pas", lambda *args: model.write_text(f"{content} ") and measure_pas(*args)
    )
    assert "must be the scoring model of" in refuse()
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert (record["status"], record["device"]) == ("failed", name_device())
    model.write_text(content)
    (tmp_path / "curated/moved/scores/00001.parquet").unlink()
    assert "00001.parquet: is missing" in refuse()
    run = json.loads((tmp_path / "curated/moved/run.json").read_text())
    (tmp_path / "curated/moved/run.json").write_text(json.dumps(run | {"kind": "negatives"}))
    assert "holds negatives, must hold a curation" in refuse()


def test_pas_measures_the_drops_that_curated_and_draws_by_the_seed(tiny_scorer, tmp_path, capsys):
    """In a folder that was moved, as its run.json says: the scorer's own embeddings, the same nonces."""
    line = ["probe", "pas", "--set", f"input={write_curation(tmp_path / 'curated', tiny_scorer)}"]
    assert main([*line, "--out", str(tmp_path / "out")]) == 0
    reported = capsys.readouterr().out
    assert "0.0227" in reported and (tmp_path / "out/pas.txt").read_text() in reported
    page = (tmp_path / "out/report.html").read_text()
    assert "<h1>Random weights (random:0): " in page and page.count("is noise.") == 1
    assert reported.count("  noise\n") == 7 and "Trust PAS" not in reported, "no verdict by random weights"
    rows = json.loads((tmp_path / "out/pas.json").read_text())["rows"]
    paths = (tmp_path / "curated/moved/scores").iterdir()
    samples = [row for path in paths for row in pq.read_table(path, columns=["uid", "phrases"]).to_pylist()]
    phrases = {(row["uid"], one["target_start"]): one for row in samples for one in row["phrases"]}
    lowest, highest = (sum(one[end] for one in rows["extremes"]) for end in ("lowest", "highest"))
    assert rows["criteria"] == [] and 10 < lowest == highest <= NUM_SCENES
    assert rows["num_targets"] == len(phrases) and rows["num_samples"] == NUM_SCENES
    assert len(phrases) - sum(rows["left_out"].values()) == len(rows["targets"]) > 10
    for row in rows["targets"]:
        stored = phrases[row["uid"], row["target_start"]]
        assert row["nonces"] == stored["nonces"] and len(stored["nonces"]) == 2
        assert row["nonce"] == pytest.approx(np.mean(stored["drops"]), abs=1e-6)
    uid = rows["targets"][0]["uid"]
    reported = explain(str(tmp_path / "out"), uid).splitlines()
    assert len(reported) == 1 + sum(row["uid"] == uid for row in rows["targets"])
    assert ", ".join(rows["targets"][0]["nonces"]) in reported[1]
    assert [line["count"] for line in rows["retest"]] == [1, 2, 4]
    drawn = []
    for seed in (0, 1):
        out = tmp_path / f"out{seed}"
        assert main([*line, "--set", "sample=9", "--set", f"seed={seed}", "--out", str(out)]) == 0
        rows = json.loads((out / "pas.json").read_text())["rows"]
        assert rows["num_samples"] == 9
        drawn.append({row["uid"] for row in rows["targets"]})
    assert drawn[0] != drawn[1]
