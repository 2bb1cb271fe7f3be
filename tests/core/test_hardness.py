"""Choosing the hardest negatives, against cases with a known answer."""

from raycomp.core.refine import Candidate, choose_hardest, compare_calls


def candidate(text: str, op: str, similarity: float | None = None) -> Candidate:
    return Candidate(text, op, "object", op.count("+") + 1, (), similarity)


def texts(chosen: list[Candidate]) -> list[str]:
    return [c.text for c in chosen]


def test_operations_take_turns_hardest_first():
    pool = [
        candidate("a", "SWAP", 0.2),
        candidate("b", "SWAP", 0.9),
        candidate("c", "ADD", 0.5),
        candidate("d", "ADD", 0.95),
        candidate("e", "REPLACE", 0.1),
    ]
    assert texts(choose_hardest(pool, 10)) == ["d", "b", "e", "c", "a"]
    assert texts(choose_hardest(pool, 2)) == ["d", "b"]


def test_each_number_of_calls_is_chosen_by_itself_and_keeps_no_text_of_fewer_calls():
    pool = [
        candidate("x", "SWAP+ADD", 0.9),
        candidate("a", "SWAP+SWAP", 0.8),
        candidate("a", "SWAP", 0.1),
        candidate("b", "SWAP", 0.5),
    ]
    assert texts(choose_hardest(pool, 1)) == ["b", "x"]
    assert texts(choose_hardest(pool, 2)) == ["b", "a", "x"]


def test_a_comparison_spends_the_same_operations_three_ways():
    pool = [
        Candidate("far", "SWAP", "object", 1, ("dog", "cat"), 0.2),
        Candidate("near", "SWAP", "object", 1, ("dog", "man"), 0.8),
        Candidate("added", "ADD", "object", 1, ("car",), 0.5),
        Candidate("both, but its ADD is not valid alone", "SWAP+ADD", "x", 2, ("dog", "cat", "bus"), 0.9),
        Candidate("both", "SWAP+ADD", "x", 2, ("dog", "cat", "car"), 0.3),
    ]
    both = ("both", "both, but its ADD is not valid alone")
    assert compare_calls(pool) == ("SWAP+ADD", ("near", "added"), both, ("far", "added"))
    assert compare_calls(pool[:4]) is None


def test_a_comparison_needs_two_texts_of_two_calls():
    pool = [
        Candidate("swapped", "SWAP", "object", 1, ("dog", "cat"), 0.2),
        Candidate("added", "ADD", "object", 1, ("car",), 0.5),
        Candidate("both", "SWAP+ADD", "x", 2, ("dog", "cat", "car"), 0.3),
    ]
    assert compare_calls(pool) is None
    assert compare_calls([*pool, Candidate("twice", "ADD+ADD", "x", 2, ("car", "bus"), 0.4)]) is None
    other = Candidate("other order", "ADD+SWAP", "x", 2, ("bus", "dog", "cat"), 0.1)
    assert compare_calls([*pool, other]).two_calls == ("both", "other order")
