"""Draw captions with gold trees from a grammar, for the training of the parser (lab/makers/train_parser.py).

The treebank is web text and hardly has "a dog leaping over two logs while a boy watches". Meaning is of no
concern here, word order and ambiguity are: many words are nouns and verbs in turn ("run", "slide", "surf").
"""

import random
from typing import NamedTuple

PEOPLE = """
    man woman boy girl child person kid baby toddler lady guy couple player skier surfer biker cyclist
    hiker climber snowboarder skateboarder swimmer runner worker artist actor musician footballer athlete
    bride groom model tourist fisherman guitarist singer racer rider teenager family friend group crowd
    team dog puppy cat horse cow sheep bird animal duck elephant bear terrier retriever poodle greyhound
    collie bulldog celebrity politician guest fan soldier student
""".split()
THINGS = """
    ball frisbee stick toy rope bike bicycle car truck boat bus train motorcycle scooter skateboard
    surfboard kayak hat cap helmet shirt jacket dress coat skirt costume suit vest uniform swimsuit bikini
    backpack bag umbrella camera phone guitar microphone book newspaper sign flag balloon bucket bottle
    cup glass drink cigarette sandwich cake bench chair table sofa bed window door fence wall gate ladder
    swing slide trampoline statue sculpture fountain flower tree leaf branch rock stone log hose leash
    collar bone net goal bat racket piano painting picture photo tongue mouth hand arm face head eye leg
    foot ear hair tail paw run jump ride walk trick jog nap bath break swim race game match wave hoop
    saddle sled ski board tube raft tent fire candle pumpkin tray plate bowl spoon wheel
""".split()
PLACES = """
    beach park street road sidewalk path trail field meadow lawn yard garden forest wood mountain hill
    cliff canyon river stream lake pond pool ocean sea shore dock pier bridge city town building house
    church castle store shop restaurant kitchen room stage stadium gym court track ramp playground sandbox
    market museum station airport ledge sand snow grass water dirt mud ice air sky sun rain shade
    background foreground distance night sunset sunrise morning evening winter summer autumn day surf
    puddle waterfall desert valley coast island village harbor hallway crowd corner edge side top bottom
    middle front back end row pile
""".split()
# Without an article.
MASS = """
    water snow grass sand mud ice dirt air rain food coffee beer wine basketball soccer football tennis
    baseball volleyball golf music hay clothing makeup sunlight traffic equipment gear white black red
    blue green pink yellow brown orange
""".split()
# Followed by "of".
HEADS_OF = """
    photo picture portrait illustration drawing painting view closeup image silhouette group pair couple
    pile bunch row crowd set collection piece cup glass vector sketch pattern front side number lot
    variety sort kind map
""".split()
ADJECTIVES = """
    black white brown red blue green yellow pink orange purple grey gray tan blond blonde little small big
    large young old tall long short wooden grassy snowy rocky sandy muddy wet dry empty crowded busy high
    low steep bright dark colorful beautiful cute happy asian african american male female shirtless bald
    elderly plastic metal inflatable outdoor indoor wild vintage modern traditional retro dirty calm clear
    cloudy sunny frozen lone barefoot seamless abstract digital stylish smart shiny
""".split()
PARTICIPLES = """
    painted/VBN spotted/VBN striped/VBN dressed/VBN abandoned/VBN decorated/VBN smiling/VBG running/VBG
    sleeping/VBG laughing/VBG falling/VBG flying/VBG
""".split()
COMPOUNDS = """
    city park beach tennis baseball soccer football swimming water street brick stone snow ice rock pool
    party wedding life dirt cowboy birthday ocean mountain forest river baby bath ski climbing hockey
    rugby school hip rope fire basketball sports christmas horse dog police bathing train construction
    hunting racing fashion night fishing
""".split()
# Base and gerund.
INTRANSITIVE = """
    run/running walk/walking jump/jumping sit/sitting stand/standing play/playing ride/riding
    climb/climbing leap/leaping swim/swimming lie/lying lay/laying lean/leaning slide/sliding dive/diving
    skate/skating ski/skiing surf/surfing look/looking stare/staring smile/smiling pose/posing
    rest/resting sleep/sleeping splash/splashing wade/wading hike/hiking crawl/crawling swing/swinging
    dance/dancing perform/performing race/racing float/floating fly/flying wait/waiting relax/relaxing
    graze/grazing work/working fall/falling paddle/paddling kneel/kneeling hang/hanging point/pointing
    laugh/laughing bike/biking snowboard/snowboarding skateboard/skateboarding jog/jogging gaze/gazing
""".split()
TRANSITIVE = """
    hold/holding wear/wearing carry/carrying catch/catching throw/throwing chase/chasing watch/watching
    ride/riding push/pushing pull/pulling climb/climbing eat/eating drink/drinking play/playing
    kick/kicking hit/hitting read/reading hug/hugging kiss/kissing cross/crossing jump/jumping bite/biting
    use/using show/showing paint/painting wash/washing enjoy/enjoying face/facing fly/flying lead/leading
    lift/lifting raise/raising take/taking have/having feed/feeding swing/swinging shake/shaking
    touch/touching overlook/overlooking ski/skiing walk/walking row/rowing brush/brushing
""".split()
# Participle and preposition.
PASSIVE = """
    surrounded/by covered/in covered/by dressed/in followed/by seated/on isolated/on parked/on parked/in
    painted/on made/of
""".split()
PREPOSITIONS = """
    in on at by near with through over under behind beside along across into onto down up past off around
    against between among above below outside inside towards during after from for beneath underneath atop
    without
""".split()
# Of two words; "front" and "top" are nouns, "in front of the rock".
LONG = "out/of in/front on/top next/to close/to".split()
TITLES = "photo picture illustration vector closeup art".split()
# Adjectives of two words; the first hangs below the second.
DOUBLE = """
    dark/JJ haired/VBN long/JJ haired/VBN snow/NN covered/VBN grass/NN covered/VBN brightly/RB colored/VBN
""".split()
IRREGULAR = dict(
    pair.split("/")
    for pair in "man/men woman/women child/children person/people foot/feet leaf/leaves".split()
)
IRREGULAR |= {"sheep": "sheep", "have": "has", "fisherman": "fishermen"}
VOWELS = tuple("aeiou")


class Node(NamedTuple):
    """A word with its Penn Treebank tag, its UD label, and what hangs below it on either side."""

    word: str
    tag: str
    dep: str
    left: tuple["Node", ...] = ()
    right: tuple["Node", ...] = ()


def flatten(root: Node) -> tuple[list[str], list[str], list[int], list[str]]:
    """Return words, tags, heads (positions; the root is its own) and labels of a tree."""
    words: list[str] = []
    tags: list[str] = []
    heads: list[int] = []
    deps: list[str] = []

    def visit(node: Node) -> int:
        left = [visit(child) for child in node.left]
        place = len(words)
        words.append(node.word)
        tags.append(node.tag)
        deps.append(node.dep)
        heads.append(place)
        for child in left + [visit(child) for child in node.right]:
            heads[child] = place
        return place

    visit(root)
    return words, tags, heads, deps


def inflect(word: str) -> str:
    """Add the s of plural nouns and of verbs in the third person."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    if word.endswith("y") and not word.endswith(("ay", "ey", "oy")):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "sh", "ch", "x", "o")) else "s")


class Grammar:
    """Draws captions; ``nouns`` are further nouns (singular, plural): not all words are everyday ones."""

    def __init__(self, rng: random.Random, nouns: list[tuple[str, str]]):
        self.rng = rng
        self.nouns = nouns

    def draw(self) -> Node:
        """Return the tree of one caption."""
        maker = self.rng.choice([self.fragment, self.fragment, self.sentence, self.sentence, self.title])
        root = maker()
        if self.rng.random() < 0.08:
            root = self.add(root, self.conjunct_clause())
        if self.rng.random() < 0.06:
            root = root._replace(left=(self.title_word(), Node(":", ":", "punct"), *root.left))
        if self.rng.random() < 0.5:
            root = self.add(root, Node(".", ".", "punct"))
        return root

    def add(self, node: Node, *right: Node) -> Node:
        """Return ``node`` with more behind it."""
        return node._replace(right=(*node.right, *right))

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def fragment(self) -> Node:
        """Return "a dog (running ...) (in the snow)"."""
        noun = self.noun_phrase("ROOT", PEOPLE if self.chance(0.7) else None)
        if self.chance(0.6):
            noun = self.add(noun, self.predicate("acl", "VBG"))
        return noun

    def title(self) -> Node:
        """Return "portrait of a man ...", or a bare list of things."""
        if self.chance(0.6):
            of = self.noun_phrase("nmod", None, case="of")
            if self.chance(0.3):
                of = self.add(of, self.predicate("acl", "VBG"))
            return self.add(self.noun_phrase("ROOT", HEADS_OF, post=False), of)
        first = self.noun_phrase("ROOT", None)
        return self.add(first, *self.conjuncts(first)) if self.chance(0.4) else first

    def sentence(self) -> Node:
        """Return "a dog runs / is running / is covered ... ", with "there is" now and then."""
        plural = self.chance(0.35)
        subject = self.noun_phrase("nsubj", PEOPLE if self.chance(0.8) else None, plural=plural)
        if self.chance(0.12):
            second = self.noun_phrase("conj", PEOPLE)
            subject, plural = (
                self.add(subject, second._replace(left=(Node("and", "CC", "cc"), *second.left))),
                True,
            )
        be = Node("are", "VBP", "aux") if plural else Node("is", "VBZ", "aux")
        form = self.rng.choice(["finite", "finite", "VBG", "VBG", "there", "place"])
        if form == "finite":
            verb = self.predicate("ROOT", "VBP" if plural else "VBZ")
            return verb._replace(left=(subject, *verb.left))
        if form == "VBG":
            verb = self.predicate("ROOT", "VBG")
            return verb._replace(left=(subject, be, *verb.left))
        if form == "there":
            noun = self.add(subject._replace(dep="nsubj"), *self.places(1))
            return Node(be.word, be.tag, "ROOT", (Node("there", "EX", "expl"),), (noun,))
        place = self.noun_phrase("ROOT", PLACES, case=self.rng.choice(PREPOSITIONS))
        return place._replace(left=(subject, be._replace(dep="cop"), *place.left))

    def conjunct_clause(self) -> Node:
        """Return "as / while / and another dog runs"."""
        plural = self.chance(0.3)
        subject = self.noun_phrase("nsubj", PEOPLE, plural=plural)
        word, tag, label, dep = self.rng.choice(
            [("as", "IN", "mark", "advcl"), ("while", "IN", "mark", "advcl"), ("and", "CC", "cc", "conj")]
        )
        verb = self.predicate(dep, "VBP" if plural else "VBZ")
        return verb._replace(left=(Node(word, tag, label), subject, *verb.left))

    def title_word(self) -> Node:
        return Node(self.rng.choice(TITLES), "NN", "dep")

    def predicate(self, dep: str, tag: str) -> Node:
        """Return a verb of form ``tag`` (VBG, VBZ, VBP) with object, places and a second verb."""
        if tag == "VBG" and self.chance(0.12):
            word, by = self.rng.choice(PASSIVE).split("/")
            return Node(word, "VBN", dep, (), (self.noun_phrase("obl", None, case=by),))
        transitive = self.chance(0.45)
        base, gerund = self.rng.choice(TRANSITIVE if transitive else INTRANSITIVE).split("/")
        word = {"VBG": gerund, "VBZ": inflect(base), "VBP": base}[tag]
        right: list[Node] = []
        if transitive:
            thing = self.noun_phrase("obj", None, post=self.chance(0.3))
            right.append(self.add(thing, *self.conjuncts(thing)) if self.chance(0.15) else thing)
        elif self.chance(0.2):
            right.append(Node(self.rng.choice("up down out off around away".split()), "RP", "compound:prt"))
        right += self.places(self.rng.choice([0, 1, 1, 1, 2]), "obl")
        if self.chance(0.2):
            right.append(self.second_verb(tag))
        left = (
            (Node(self.rng.choice("happily quickly together".split()), "RB", "advmod"),)
            if self.chance(0.03)
            else ()
        )
        return Node(word, tag, dep, left, tuple(right))

    def second_verb(self, tag: str) -> Node:
        """Return "wearing a hat", "while holding a ball" or "and looks up"."""
        draw = self.rng.random()
        if draw < 0.3:
            verb = self.short_verb("conj", tag)
            return verb._replace(left=(Node("and", "CC", "cc"),))
        verb = self.short_verb("advcl", "VBG")
        return verb._replace(left=(Node("while", "IN", "mark"),)) if draw < 0.6 else verb

    def short_verb(self, dep: str, tag: str) -> Node:
        transitive = self.chance(0.7)
        base, gerund = self.rng.choice(TRANSITIVE if transitive else INTRANSITIVE).split("/")
        word = {"VBG": gerund, "VBZ": inflect(base), "VBP": base}[tag]
        behind = self.noun_phrase("obj", None, post=False) if transitive else self.places(1, "obl")[0]
        return Node(word, tag, dep, (), (behind,))

    def places(self, count: int, dep: str = "nmod") -> list[Node]:
        """Return ``count`` prepositional phrases."""
        return [
            self.place(dep, self.rng.choice(LONG if self.chance(0.08) else PREPOSITIONS))
            for _ in range(count)
        ]

    def place(self, dep: str, case: str) -> Node:
        """Return "on the rock"; "front" and "top" are nouns in the treebank's "in front of the rock"."""
        words = PLACES if self.chance(0.6) else None
        preposition, _, noun = case.partition("/")
        if noun in ("front", "top"):
            below = self.noun_phrase("nmod", words, case="of", post=False)
            return Node(noun, "NN", dep, (Node(preposition, "IN", "case"),), (below,))
        return self.noun_phrase(dep, words, case=case, post=False)

    def conjuncts(self, first: Node) -> list[Node]:
        """Return one or two more nouns: ", a hat and boots"."""
        nouns = [self.noun_phrase("conj", None, post=False) for _ in range(1 + self.chance(0.25))]
        marks = [Node(",", ",", "punct")] * (len(nouns) - 1) + [Node("and", "CC", "cc")]
        return [noun._replace(left=(mark, *noun.left)) for noun, mark in zip(nouns, marks, strict=True)]

    def noun_phrase(
        self, dep: str, words: list[str] | None, case: str = "", plural: bool | None = None, post: bool = True
    ) -> Node:
        """Return a noun with what stands before it, a preposition first, and at times a phrase behind it."""
        plural = self.chance(0.3) if plural is None else plural
        noun, tag = self.noun(words, plural)
        mass = tag == "NN" and noun in MASS
        left = [*self.case(case), *self.determiner(plural, mass), *self.adjectives()]
        if self.chance(0.15):
            left.append(Node(self.rng.choice(COMPOUNDS), "NN", "compound"))
        left = self.fit_article(left, noun)
        behind: list[Node] = []
        if post and self.chance(0.3):
            behind = [
                self.noun_phrase(
                    "nmod", None, self.rng.choice(["of", "in", "with", "with", "on"]), post=False
                )
            ]
        return Node(noun, tag, dep, tuple(left), tuple(behind))

    def noun(self, words: list[str] | None, plural: bool) -> tuple[str, str]:
        if words is None and self.chance(0.35):
            return self.rng.choice(self.nouns)[plural], "NNS" if plural else "NN"
        if words is None and not plural and self.chance(0.2):
            return self.rng.choice(MASS), "NN"
        noun = self.rng.choice(words or self.rng.choice([THINGS, THINGS, PLACES, PEOPLE]))
        return (inflect(noun), "NNS") if plural else (noun, "NN")

    def case(self, case: str) -> list[Node]:
        """Return the preposition, of one word or two."""
        words = case.split("/")
        if len(words) == 2 and words[1] == "to":
            return [Node(words[0], "IN", "case", (), (Node(words[1], "IN", "fixed"),))]
        return [Node(word, "IN", "case") for word in words if word]

    def determiner(self, plural: bool, mass: bool) -> list[Node]:
        """Return an article, a possessor, a number, or nothing."""
        draw = self.rng.random()
        if draw < 0.06:
            return [Node(self.rng.choice("his her its their".split()), "PRP$", "nmod:poss")]
        if draw < 0.09:
            owner = Node(self.rng.choice(PEOPLE), "NN", "nmod:poss", (Node("a", "DT", "det"),))
            return [self.add(owner, Node("'s", "POS", "case"))]
        if plural:
            number = Node(self.rng.choice("two three four five several many".split()), "CD", "nummod")
            if number.word in ("several", "many"):
                number = number._replace(tag="JJ", dep="amod")
            return [number] if draw < 0.45 else [Node("the", "DT", "det")] if draw < 0.6 else []
        if mass:
            return [Node("the", "DT", "det")] if draw < 0.5 else []
        if draw < 0.85:
            return [Node(self.rng.choice("a a a a the the the another some one".split()), "DT", "det")]
        return []

    def adjectives(self) -> list[Node]:
        """Return none to two adjectives or participles; "black and white" among them."""
        draw = self.rng.random()
        if draw < 0.5:
            return []
        first, second = (Node(word, "JJ", "amod") for word in self.rng.sample(ADJECTIVES, 2))
        if draw < 0.56:
            return [self.add(first, second._replace(dep="conj", left=(Node("and", "CC", "cc"),)))]
        if draw < 0.59:
            place = 2 * self.rng.randrange(len(DOUBLE) // 2)
            (first_word, first_tag), (word, tag) = (pair.split("/") for pair in DOUBLE[place : place + 2])
            label = "compound" if first_tag == "NN" else "advmod" if first_tag == "RB" else "amod"
            return [Node(word, tag, "amod", (Node(first_word, first_tag, label),))]
        if draw < 0.64:
            word, tag = self.rng.choice(PARTICIPLES).split("/")
            return [Node(word, tag, "amod")]
        return [first, second] if draw < 0.75 else [first]

    def fit_article(self, left: list[Node], noun: str) -> list[Node]:
        """Turn "a" into "an" before a vowel."""
        for place, node in enumerate(left):
            following = left[place + 1].word if place + 1 < len(left) else noun
            if node.word == "a" and following.startswith(VOWELS):
                left[place] = node._replace(word="an")
        return left
