"""Phrases of hand-made trees: the same out of both label schemes, and exact about characters."""

from raycomp.language.lexicon import Token
from raycomp.language.phrases import CLEAR_NLP, UD, Tree, detect_labels
from raycomp.models.parser import load_lexicon
from raycomp.words import HEAD, OBJECT, PREDICATE, RELATION, UNSEEN


def read_tree(text: str) -> tuple[str, list[Token]]:
    """Read "word/tag/label/head ..." (heads count from 1, 0 is the root) into a caption and its tokens."""
    tokens: list[Token] = []
    start = 0
    for place, cell in enumerate(text.split()):
        word, tag, dep, head = cell.split("|")
        tokens.append(Token(word, start, start + len(word), tag, dep, int(head) - 1 if int(head) else place))
        start += len(word) + 1
    return " ".join(token.text for token in tokens), tokens


def words_of(text: str, labels=None) -> list[tuple[str, str, str]]:
    """Return (span, kind, target) of every phrase of a tree written as text."""
    caption, tokens = read_tree(text)
    return [
        (caption[p.start : p.end], p.kind, caption[p.target_start : p.target_end])
        for p in Tree(tokens, load_lexicon(), labels or detect_labels([one.dep for one in tokens])).phrases()
    ]


MAN_UD = (
    "A|DT|det|2 man|NN|nsubj|4 is|VBZ|aux|4 wearing|VBG|ROOT|0 a|DT|det|7 big|JJ|amod|7 hat|NN|obj|4 "
    "and|CC|cc|9 boots|NNS|conj|7 in|IN|case|12 the|DT|det|12 snow|NN|obl|4 .|.|punct|4"
)
MAN_CLEAR = (
    "A|DT|det|2 man|NN|nsubj|4 is|VBZ|aux|4 wearing|VBG|ROOT|0 a|DT|det|7 big|JJ|amod|7 hat|NN|dobj|4 "
    "and|CC|cc|7 boots|NNS|conj|7 in|IN|prep|4 the|DT|det|12 snow|NN|pobj|10 .|.|punct|4"
)
MAN = [
    ("A man", OBJECT, "man"),
    ("wearing a big hat", PREDICATE, "hat"),
    ("boots", OBJECT, "boots"),
    ("in the snow", RELATION, "snow"),
]
LEG_UD = (
    "A|DT|det|2 closeup|NN|ROOT|0 of|IN|case|8 a|DT|det|6 bicycle|NN|compound|6 rider|NN|nmod:poss|8 "
    "'s|POS|case|6 leg|NN|nmod|2"
)
LEG_CLEAR = (
    "A|DT|det|2 closeup|NN|ROOT|0 of|IN|prep|2 a|DT|det|6 bicycle|NN|compound|6 rider|NN|poss|8 "
    "'s|POS|case|6 leg|NN|pobj|3"
)
LEG = [("A closeup", OBJECT, "closeup"), ("of a bicycle rider 's leg", RELATION, "leg")]
DOG_UD = (
    "A|DT|det|5 black|JJ|amod|5 and|CC|cc|4 white|JJ|conj|2 dog|NN|nsubj:pass|7 is|VBZ|aux:pass|7 "
    "chased|VBN|ROOT|0 by|IN|case|10 two|CD|nummod|10 boys|NNS|obl:agent|7 in|IN|case|12 front|NN|obl|7 "
    "of|IN|case|15 a|DT|det|15 house|NN|nmod|12"
)
DOG_CLEAR = (
    "A|DT|det|5 black|JJ|amod|5 and|CC|cc|2 white|JJ|conj|2 dog|NN|nsubjpass|7 is|VBZ|auxpass|7 "
    "chased|VBN|ROOT|0 by|IN|agent|7 two|CD|nummod|10 boys|NNS|pobj|8 in|IN|prep|7 front|NN|pobj|11 "
    "of|IN|prep|12 a|DT|det|15 house|NN|pobj|13"
)
DOG = [
    ("A black and white dog", OBJECT, "dog"),
    ("by two boys", RELATION, "boys"),
    ("in front of a house", RELATION, "house"),
]
NAME_UD = (
    "Jennifer|NNP|nsubj|3 Anderson|NNP|flat|1 crosses|VBZ|ROOT|0 the|DT|det|7 Golden|NNP|compound|6 "
    "Gate|NNP|compound|7 Bridge|NNP|obj|3"
)
NAME_CLEAR = (
    "Jennifer|NNP|compound|2 Anderson|NNP|nsubj|3 crosses|VBZ|ROOT|0 the|DT|det|7 Golden|NNP|compound|6 "
    "Gate|NNP|compound|7 Bridge|NNP|dobj|3"
)
NAME = [("Jennifer Anderson", OBJECT, "Anderson"), ("crosses the Golden Gate Bridge", PREDICATE, "Bridge")]


def test_both_label_schemes_give_the_same_phrases():
    for universal, clear, phrases in [
        (MAN_UD, MAN_CLEAR, MAN),
        (LEG_UD, LEG_CLEAR, LEG),
        (DOG_UD, DOG_CLEAR, DOG),
        (NAME_UD, NAME_CLEAR, NAME),
    ]:
        assert words_of(universal, UD) == phrases
        assert words_of(clear, CLEAR_NLP) == phrases
        assert (
            Tree(read_tree(universal)[1], load_lexicon(), UD).phrases()
            == Tree(read_tree(clear)[1], load_lexicon(), CLEAR_NLP).phrases()
        )


LEFT_UD = (
    "a|DT|det|2 dog|NN|ROOT|0 to|IN|case|5 the|DT|det|5 left|NN|nmod|2 of|IN|case|8 a|DT|det|8 cat|NN|nmod|5"
)
LEFT_CLEAR = (
    "a|DT|det|2 dog|NN|ROOT|0 to|IN|prep|2 the|DT|det|5 left|NN|pobj|3 of|IN|prep|5 a|DT|det|8 cat|NN|pobj|6"
)
SIDE_UD = (
    "a|DT|det|2 dog|NN|ROOT|0 on|IN|case|6 the|DT|det|6 right|JJ|amod|6 side|NN|nmod|2 of|IN|case|9 "
    "a|DT|det|9 cat|NN|nmod|6"
)
SIDE_CLEAR = (
    "a|DT|det|2 dog|NN|ROOT|0 on|IN|prep|2 the|DT|det|6 right|JJ|amod|6 side|NN|pobj|3 of|IN|prep|6 "
    "a|DT|det|9 cat|NN|pobj|7"
)


def test_no_noun_of_a_spatial_preposition_is_a_target():
    for universal, clear, preposition in [
        (LEFT_UD, LEFT_CLEAR, "to the left of"),
        (SIDE_UD, SIDE_CLEAR, "on the right side of"),
    ]:
        want = [("a dog", OBJECT, "dog"), (f"{preposition} a cat", RELATION, "cat")]
        assert words_of(universal, UD) == words_of(clear, CLEAR_NLP) == want


def test_a_side_is_a_target_where_it_leads_to_nothing():
    text = "a|DT|det|2 dog|NN|ROOT|0 on|IN|case|5 the|DT|det|5 left|NN|nmod|2"
    assert words_of(text, UD) == [("a dog", OBJECT, "dog"), ("on the left", RELATION, "left")]
    assert classes_of(text) == {"dog": HEAD, "left": UNSEEN}
    text = "a|DT|det|4 large|JJ|amod|4 left|JJ|amod|4 hand|NN|ROOT|0 of|IN|case|7 a|DT|det|7 man|NN|nmod|4"
    assert classes_of(text) == {"hand": HEAD, "man": HEAD}


def classes_of(text: str) -> dict[str, str]:
    """Return every target's class, of a tree written as text."""
    caption, tokens = read_tree(text)
    found = Tree(tokens, load_lexicon(), UD).phrases()
    return {caption[p.target_start : p.target_end]: p.target_class for p in found}


def test_a_target_is_unseen_where_the_lexicon_files_its_noun_so():
    unseen = ("Day|NN|ROOT|0", "backgrounds|NNS|ROOT|0", "front|JJ|amod|2 view|NN|ROOT|0")
    seen = (
        "groups|NNS|ROOT|0 of|IN|case|3 dogs|NNS|nmod|1",
        "day|NN|compound|2 bed|NN|ROOT|0",
        "glorp|NN|ROOT|0",
    )
    for noun in (*unseen, *seen):
        assert next(iter(classes_of(noun).values())) == (UNSEEN if noun in unseen else HEAD), noun


def test_an_object_cut_off_from_its_verb_by_another_phrase_is_no_predicate():
    text = "She|PRP|nsubj|2 gives|VBZ|ROOT|0 the|DT|det|4 dog|NN|iobj|2 a|DT|det|6 bone|NN|obj|2"
    assert words_of(text) == [("the dog", OBJECT, "dog"), ("a bone", OBJECT, "bone")]


def test_what_is_no_noun_is_no_target():
    for word in ("Someone", "https://a.b/c", "!!!", "\U0001f600", "1984", "\u05db\u05dc\u05d1", "one"):
        assert words_of(f"{word}|NN|ROOT|0") == [], word
    assert (
        words_of("next|NN|nsubj|3 to|IN|case|3 it|PRP|ROOT|0")
        == words_of("two|CD|ROOT|0")
        == words_of("")
        == []
    )


def test_adjectives_and_gerunds_stand_for_nouns_only_where_a_noun_phrase_stands():
    assert words_of("the|DT|det|2 making|VBG|nsubj|3 ended|VBD|ROOT|0", UD) == [
        ("the making", OBJECT, "making")
    ]
    assert words_of("people|NNS|ROOT|0 making|VBG|acl|1 noise|NN|obj|2", UD) == [
        ("people", OBJECT, "people"),
        ("making noise", PREDICATE, "noise"),
    ]
    assert words_of("it|PRP|nsubj|3 is|VBZ|cop|3 white|JJ|ROOT|0", UD) == []


def test_a_noun_that_the_tree_uses_as_a_verb_is_no_target():
    assert words_of("A|DT|det|2 dog|NN|nsubj|3 runs|NNS|ROOT|0") == [("A dog", OBJECT, "dog")]
    assert words_of("people|NNS|ROOT|0 fishing|NN|acl|1") == [("people", OBJECT, "people")]
    predicate = words_of("This|DT|nsubj|4 is|VBZ|cop|4 a|DT|det|4 dog|NN|ROOT|0", UD)
    assert predicate == [("a dog", OBJECT, "dog")]


def test_nouns_side_by_side_are_one_phrase_with_the_place_of_either():
    text = "boys|NNS|ROOT|0 in|IN|case|4 red|JJ|amod|4 swim|NN|nmod|1 trunks|NNS|appos|1"
    assert words_of(text, UD)[-1] == ("in red swim trunks", RELATION, "trunks")
    text = "rings|VBZ|ROOT|0 a|DT|det|3 door|NN|obj|1 bell|NN|obj|1"
    assert words_of(text, UD) == [("rings a door bell", PREDICATE, "bell")]
