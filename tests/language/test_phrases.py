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


def test_both_label_schemes_give_the_same_phrases():
    for universal, clear, phrases in [
        (MAN_UD, MAN_CLEAR, MAN),
        (DOG_UD, DOG_CLEAR, DOG),
        (LEFT_UD, LEFT_CLEAR, LEFT),
        (NAME_UD, NAME_CLEAR, NAME),
    ]:
        assert words_of(universal, UD) == words_of(clear, CLEAR_NLP) == phrases
        one, two = (
            Tree(read_tree(text)[1], load_lexicon(), labels).phrases()
            for text, labels in ((universal, UD), (clear, CLEAR_NLP))
        )
        assert one == two


def test_what_is_a_phrase():
    for text, phrases in [
        # A side is a target where it leads to nothing.
        (
            "dog|NN|ROOT|0 on|IN|case|4 the|DT|det|4 left|NN|nmod|1",
            [("dog", OBJECT, "dog"), ("on the left", RELATION, "left")],
        ),
        # An object that another phrase cuts off from its verb is no predicate.
        (
            "gives|VBZ|ROOT|0 the|DT|det|3 dog|NN|iobj|1 a|DT|det|5 bone|NN|obj|1",
            [("the dog", OBJECT, "dog"), ("a bone", OBJECT, "bone")],
        ),
        # Adjectives and gerunds stand for nouns only where a noun phrase stands.
        ("the|DT|det|2 making|VBG|nsubj|3 ended|VBD|ROOT|0", [("the making", OBJECT, "making")]),
        (
            "people|NNS|ROOT|0 making|VBG|acl|1 noise|NN|obj|2",
            [("people", OBJECT, "people"), ("making noise", PREDICATE, "noise")],
        ),
        ("it|PRP|nsubj|3 is|VBZ|cop|3 white|JJ|ROOT|0", []),
        # Nor does a noun that the tree uses as a verb.
        ("A|DT|det|2 dog|NN|nsubj|3 runs|NNS|ROOT|0", [("A dog", OBJECT, "dog")]),
        ("people|NNS|ROOT|0 fishing|NN|acl|1", [("people", OBJECT, "people")]),
        ("This|DT|nsubj|4 is|VBZ|cop|4 a|DT|det|4 dog|NN|ROOT|0", [("a dog", OBJECT, "dog")]),
        # Nouns side by side are one phrase, with the place of either.
        (
            "rings|VBZ|ROOT|0 a|DT|det|3 door|NN|obj|1 bell|NN|obj|1",
            [("rings a door bell", PREDICATE, "bell")],
        ),
    ]:
        assert words_of(text, UD) == phrases, text
    text = "boys|NNS|ROOT|0 in|IN|case|4 red|JJ|amod|4 swim|NN|nmod|1 trunks|NNS|appos|1"
    assert words_of(text, UD)[-1] == ("in red swim trunks", RELATION, "trunks")


LEFT_UD = (
    "a|DT|det|2 dog|NN|ROOT|0 to|IN|case|5 the|DT|det|5 left|NN|nmod|2 of|IN|case|8 a|DT|det|8 cat|NN|nmod|5"
)


LEFT_CLEAR = (
    "a|DT|det|2 dog|NN|ROOT|0 to|IN|prep|2 the|DT|det|5 left|NN|pobj|3 of|IN|prep|5 a|DT|det|8 cat|NN|pobj|6"
)


LEFT = [("a dog", OBJECT, "dog"), ("to the left of a cat", RELATION, "cat")]


NAME_UD = "Jennifer|NNP|nsubj|3 Anderson|NNP|flat|1 crosses|VBZ|ROOT|0 Golden|NNP|compound|5 Gate|NNP|obj|3"


NAME_CLEAR = (
    "Jennifer|NNP|compound|2 Anderson|NNP|nsubj|3 crosses|VBZ|ROOT|0 Golden|NNP|compound|5 Gate|NNP|dobj|3"
)


NAME = [("Jennifer Anderson", OBJECT, "Anderson"), ("crosses Golden Gate", PREDICATE, "Gate")]


def test_a_target_is_unseen_where_the_lexicon_files_its_noun_so():
    unseen = ("Day|NN|ROOT|0", "front|JJ|amod|2 view|NN|ROOT|0", "on|IN|case|3 the|DT|det|3 left|NN|ROOT|0")
    seen = ("groups|NNS|ROOT|0 of|IN|case|3 dogs|NNS|nmod|1", "day|NN|compound|2 bed|NN|ROOT|0")
    for noun in (*unseen, *seen, "glorp|NN|ROOT|0", "left|JJ|amod|2 hand|NN|ROOT|0"):
        found = Tree(read_tree(noun)[1], load_lexicon(), UD).phrases()
        assert found[0].target_class == (UNSEEN if noun in unseen else HEAD), noun


def test_what_is_no_noun_is_no_target():
    for word in ("Someone", "https://a.b/c", "!!!", "\U0001f600", "1984", "\u05db\u05dc\u05d1", "one"):
        assert words_of(f"{word}|NN|ROOT|0") == [], word
    for text in ("next|NN|nsubj|3 to|IN|case|3 it|PRP|ROOT|0", "two|CD|ROOT|0", ""):
        assert words_of(text) == [], text
