"""Validity: one clear case per reason, what never changes a verdict, and any text at all."""

import json
from collections import Counter
from pathlib import Path

import numpy as np

from raycomp.language.judge import MAX_CHARACTERS, REASONS, judge_edit, name_change
from raycomp.language.prompts import propose
from raycomp.models.parser import load_lexicon
from raycomp.words import ADD, CONCEPT_KINDS, OPERATIONS, RELATION, REPLACE, SWAP
from tests.language.reading import parse

LABELS = Path(__file__).parents[1] / "files" / "labelled_negatives.jsonl"
ROWS = [json.loads(line) for line in LABELS.read_text(encoding="utf-8").splitlines()]
CAPTIONS_TO_EDIT = [
    "A red car is parked next to a blue truck.",
    "A black dog leaps over a wooden fence.",
    "Two women in black coats walk behind a horse",
    "An old man with a green umbrella sits on a bench.",
]
# What a model may write instead of a caption.
HOSTILE = ["", " \n\t ", ".", "dog", "word " * 10_000, "a " * 140, "x" * MAX_CHARACTERS, "\u72d7\u5728\u8349"]
HOSTILE += ["\U0001f415 \U0001f3be", "\ud800 dog", "<script>alert(1)</script>", '{"negative": "a cat"}']
HOSTILE += ["a an the of of of", "\x00\x07\u202e dog", "the " * 30 + "dog", "- - - a - -"]


def verdict(op: str, before: str, after: str, *others: str, original: str = "") -> str | None:
    """Return the reason why the edit is none; None where it is valid."""
    first, second, third, *rest = parse(before, after, original or before, *others)
    return judge_edit(op, first, second, third, rest, load_lexicon())


CASES = [
    (None, SWAP, "A dog chases a cat.", "A cat chases a dog."),
    (None, SWAP, "A red cup on a blue tray", "A blue cup on a red tray"),
    (None, SWAP, "A man stands behind a car.", "A car stands behind a man."),
    (None, SWAP, "A man next to a woman in a red coat", "A woman next to a man in a red coat"),
    (None, SWAP, "A man is playing guitar next to a woman", "A woman is playing guitar next to a man"),
    (None, REPLACE, "A dog on a sofa", "An elephant on a sofa"),
    (None, REPLACE, "A cup in front of a box", "A cup behind a box"),
    (None, REPLACE, "A three story house on a hill", "A three story house on a beach"),
    (None, ADD, "A dog on a sofa", "A brown dog on a sofa"),
    (None, ADD, "A dog sits on a sofa", "A dog and a cat sit on a sofa"),
    ("empty", REPLACE, "A dog", "?!"),
    ("too_long", ADD, "A dog", "A dog " + "and a cat " * 200),
    ("markup", REPLACE, "A dog on a sofa", "A <i>cat</i> on a sofa"),
    ("prose", REPLACE, "A dog on a sofa", "New caption: A cat on a sofa"),
    ("language", REPLACE, "A dog on a sofa", "Un gato en el sofa"),
    ("unchanged", SWAP, "A dog chases a cat.", " a DOG chases  a cat ."),
    ("not_swap", SWAP, "A dog chases a cat.", "A cat chases a mouse."),
    ("not_swap", SWAP, "A dog chases a cat.", "Chases a dog a cat."),
    ("not_replace", REPLACE, "A dog chases a cat.", "A cow chases a goat."),
    ("not_replace", REPLACE, "A dog chases a cat.", "A dog and a cow chase a cat."),
    ("not_replace", REPLACE, "A red car", "A big car"),
    ("not_add", ADD, "A dog chases a cat.", "A dog chases."),
    ("not_add", ADD, "A dog chases a cat.", "A brown dog chases a black cat."),
    ("paraphrase", SWAP, "A dog and a cat on a sofa", "A cat and a dog on a sofa"),
    ("paraphrase", SWAP, "A man standing next to a car", "A car standing next to a man"),
    ("paraphrase", SWAP, "A big, red ball", "A red, big ball"),
    ("paraphrase", REPLACE, "A dog on a sofa", "A dog on a couch"),
    ("kind_of", REPLACE, "A dog on a sofa", "An animal on a sofa"),
    ("kind_of", REPLACE, "A dog on a sofa", "A puppy on a sofa"),
    ("in_original", ADD, "A dog on a sofa", "A dog and a couch on a sofa"),
    ("cut_off", ADD, "A dog on a sofa", "A dog on a sofa with a"),
    ("doubled_word", ADD, "A dog on a sofa", "A dog on a a brown sofa"),
    ("wrong_article", REPLACE, "A dog on a sofa", "A elephant on a sofa"),
    ("no_object", ADD, "A dog on a sofa.", "A dog on a sofa under."),
    ("disagreement", REPLACE, "Two dogs on a sofa", "Two cat on a sofa"),
    ("disagreement", REPLACE, "A dog on a sofa", "A cats on a sofa"),
    ("no_sentence", ADD, "A dog on a sofa", "A dog on a sofa. A ball."),
    # What is wrong with the input is excused.
    (None, REPLACE, "A apple on a a table", "A apple on a a chair"),
    (None, REPLACE, "Two dog on a sofa with", "Two dog on a bench with"),
]


def test_clear_cases():
    for reason, op, before, after in CASES:
        assert verdict(op, before, after) == reason, (op, before, after)


def test_other_captions_count():
    for reason, op, before, after, other in [
        ("copy", REPLACE, "A dog on a sofa", "A cat on a sofa", "a cat on a sofa."),
        ("in_other", REPLACE, "A dog on a sofa", "A dog on a carpet", "Many rugs lie about"),
        ("in_other", ADD, "A lamp on a shelf", "A lamp and an animal on a shelf", "A cat looks up"),
        ("paraphrase", SWAP, "A boy and a girl near a car", "A girl and a boy near a car", "A car"),
        (None, ADD, "A dog on a sofa", "A dog and a cat on a sofa", "A dog rests"),
    ]:
        assert verdict(op, before, after, "Nothing else", other) == reason, after


def test_two_calls_may_not_lead_back():
    first, second = "A cup is on a book.", "A cup is under a book."
    assert verdict(SWAP, second, "A book is under a cup.", original=first) == "paraphrase"
    assert verdict(REPLACE, second, first, original=first) == "restored"
    brown, black = "a brown dog in front of a black dog", "a brown dog behind a black dog"
    original = "a black dog in front of a brown dog"
    assert verdict(REPLACE, brown, black, original=original) == "paraphrase"


def test_any_text_has_a_verdict_and_what_is_no_call_has_a_name():
    """Also texts that share nothing with their input, in all three roles."""
    lexicon, rng = load_lexicon(), np.random.default_rng(0)
    parsed = parse(*HOSTILE, *(row["after"] for row in ROWS[:40]))
    for op in OPERATIONS:
        for after in parsed[: len(HOSTILE)]:
            before, original, *others = (parsed[i] for i in rng.integers(len(parsed), size=5))
            assert judge_edit(op, before, after, original, others, lexicon) in REASONS, after.text
            judge_edit(op, after, before, after, [after], lexicon)
            kind, concepts = name_change(op, parsed[-1], after, lexicon)
            assert kind in CONCEPT_KINDS and all(isinstance(one, str) for one in concepts)


def test_what_a_call_acted_on_is_named_as_the_rules_name_their_own():
    """Kind and concepts of the rules' own edits, out of the two texts alone; a swap of two things on the two
    sides of a relation is the same text whichever of the two it is called."""
    lexicon, named, alike = load_lexicon(), Counter(), Counter()
    for caption in CAPTIONS_TO_EDIT:
        (before,) = parse(caption)
        for op in OPERATIONS:
            for edit in propose(before, op, lexicon, 0, caption, 9):
                (after,) = parse(edit.text)
                if judge_edit(op, before, after, before, [], lexicon):
                    continue
                kind, concepts = name_change(op, before, after, lexicon)
                named[op] += 1
                is_kind = kind == edit.kind or (op == SWAP and RELATION in (kind, edit.kind))
                alike[op] += is_kind and sorted(concepts) == sorted(edit.concepts)
    assert all(named[op] >= 10 for op in OPERATIONS), named
    assert alike == named
