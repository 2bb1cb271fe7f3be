"""The English parser: captions in, noun phrases out; the packaged lexicon; the language of a caption."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

from raycomp.language.lexicon import Forms, Lexicon, SynonymSet, Token
from raycomp.language.phrases import Phrase, Tree, detect_labels
from raycomp.models.architecture import LIBRARIES_FAIL, fingerprint_folder, one_line
from raycomp.words import ATTRIBUTE, OBJECT, RELATION

TABLES = {OBJECT: "objects.tsv", ATTRIBUTE: "attributes.tsv", RELATION: "relations.tsv"}
_lock = Lock()
MOST_LETTERS = 500
"""Characters that are read of a text."""
PACKAGED = Path(__file__).parent / "data" / "parser"
# Maximum characters of a caption that are parsed, up to a space: CLIP reads 77 tokens, some 400 characters.
MAX_CHARACTERS = 2000
BATCH_SIZE = 256
# Words whose tokens are kept; spaCy's own limit.
MOST_KEPT = 10_000
# Not words: tags and entities of HTML, URLs, and halves of surrogate pairs, which spaCy cannot encode. A
# pattern that fails at one place of a run of characters fails at its later ones too. So URLs are tried only
# at the start of a run or after an earlier match; dashes before a host stay.
NO_WORDS = re.compile(
    r"</?[A-Za-z][^<>]*+>|<!--.*?-->|&#?\w{1,8};|(?:https?://|www\.)\S++"
    r"|(?:(?<!\S)|(?<=[>;\ud800-\udfff]))\S[^\s@]*+@\S+\.\w++"
    r"|(?<![\w-])(?<![\w-]\.)(?P<lead>(?:-++\.)*+-*+)"
    r"\w[\w-]*+\.(?:[\w-]++\.)*?(?:com|net|org|jpe?g|png)\b\S*+"
    r"|[\ud800-\udfff]"
)
NEEDED = ("tok2vec", "transformer", "tagger", "parser", "attribute_ruler", "morphologizer")


@cache
def load_lexicon() -> Lexicon:
    """Return the lexicon of ``data/lexicon``; its NOTICE describes the columns."""
    rows = []
    for kind, name in TABLES.items():
        for category, *cells in _read(name):
            lists = (tuple(cell.split(", ")) if cell else () for cell in cells)
            words, parents, marks, instead, fits = lists
            rows.append(SynonymSet(kind, category, words, parents, frozenset(marks), instead, fits))
    forms: dict[str, dict[str, str]] = {"plural": {}, "past": {}, "participle": {}, "double": {}}
    for form, word, inflected in _read("forms.tsv"):
        forms[form][word] = inflected
    double = frozenset(forms.pop("double"))
    return Lexicon(rows, Forms(**forms, double=double))


def _read(name: str) -> list[list[str]]:
    """Return the cells of a table without its first line, the names of the columns."""
    table = files("raycomp.models").joinpath("data/lexicon", name).read_text(encoding="ascii")
    return [line.split("\t") for line in table.splitlines()[1:]]


def name_language(text: str) -> str | None:
    """Return the most probable language of a text as an ISO 639-1 code; None for a text without letters.

    Short texts are often wrong. It called 99.75 % of 400 English captions of photos English.
    """
    if not any(map(str.isalpha, text)):
        return None
    load_languages()
    import py3langid

    return str(py3langid.classify(text[:MOST_LETTERS])[0])


def load_languages() -> None:
    """Load the table, once in a process: half a second, which threads would each spend."""
    with _lock:
        _load()


@cache
def _load() -> None:
    import py3langid

    py3langid.classify("a")


def load_parser(name: str = "raycomp") -> "Parser":
    """Load a parser: "raycomp" is the packaged one, else a spaCy pipeline by name or folder.

    Raises ValueError where there is no such pipeline, or it does not tag and parse.
    """
    import spacy

    try:
        nlp = spacy.load(PACKAGED if name == "raycomp" else name)
    except LIBRARIES_FAIL as error:
        raise ValueError(
            f"parser.name={name!r}: no spaCy pipeline of that name or path loads ({one_line(error)}); "
            f"get one by `python -m spacy download {name}`, or take the packaged one, parser.name=raycomp"
        ) from error
    nlp.select_pipes(enable=[pipe for pipe in nlp.pipe_names if pipe in NEEDED])
    if not {"tagger", "parser"} <= {*nlp.pipe_names}:
        raise ValueError(f"parser.name={name!r}: needs a tagger and a parser, has {nlp.pipe_names}")
    try:
        parser = Parser(nlp)
        parser.parse(["A dog runs on the grass."])
    except LIBRARIES_FAIL as error:
        raise ValueError(f"parser.name={name!r}: cannot parse a caption ({one_line(error)})") from error
    return parser


def fingerprint_parser(name: str) -> str:
    """Return a parser's fingerprint; the packaged one is not loaded. Raises as ``load_parser``."""
    return fingerprint_folder(PACKAGED) if name == "raycomp" else load_parser(name).fingerprint


class Parser:
    """A loaded pipeline. Its parse of a caption does not depend on the other captions."""

    def __init__(self, nlp: Any):
        self.nlp = nlp
        self.labels = detect_labels(nlp.get_pipe("parser").labels)
        self.fingerprint = fingerprint_folder(Path(nlp.path))
        self.kept: set[str] = set()

    def parse(self, captions: Sequence[str]) -> list[list[Phrase]]:
        """Return the phrases of every caption, in order, by the packaged lexicon; empty without a noun.

        Accepts any text. Only the first ``MAX_CHARACTERS`` characters are read.
        """
        return [phrases for phrases, _ in self.parse_content(captions, with_content=False)]

    def parse_content(
        self, captions: Sequence[str], with_content: bool = True
    ) -> list[tuple[list[Phrase], list[Phrase]]]:
        """Return the phrases of every caption, and its adjectives, verbs and relation words if requested."""
        lexicon, found = load_lexicon(), []
        for tokens in self.tokens(captions):
            tree = Tree(tokens, lexicon, self.labels)
            found.append((tree.phrases(), tree.content() if with_content else []))
        return found

    def tokens(self, captions: Sequence[str]) -> list[list[Token]]:
        """Return the parsed tokens of every caption, without HTML, URLs and white space.

        Their places are those in the caption before this clean-up.
        """
        texts, places = zip(*map(squeeze_spaces, captions), strict=True) if captions else ((), ())
        self._keep_words(texts)
        with self.nlp.memory_zone():
            docs, names = self.nlp.pipe(texts, batch_size=BATCH_SIZE), self.nlp.vocab.strings
            found: list[list[Token]] = []
            for doc, text, place in zip(docs, texts, places, strict=True):
                found.append([])
                words_N5 = doc.to_array(["IDX", "LENGTH", "TAG", "DEP", "HEAD"])  # a head as a distance
                heads = words_N5[:, 4].astype("int64").tolist()
                for i, (start, length, tag, dep, _) in enumerate(words_N5.tolist()):
                    end, ends = start + length, place[start + length - 1] + 1
                    label = names[tag], names[dep], i + heads[i]
                    found[-1].append(Token(text[start:end], place[start], ends, *label))
            return found

    def _keep_words(self, texts: Sequence[str]) -> None:
        """Tokenize words that occur twice: spaCy forgets those of a memory zone, which frees its memory."""
        counts = Counter(word for text in texts for word in text.split(" "))
        common = {word for word, num in counts.items() if num > 1} - self.kept
        for word in sorted(common)[: MOST_KEPT - len(self.kept)]:
            self.nlp.tokenizer(word)
            self.kept.add(word)


def squeeze_spaces(caption: str) -> tuple[str, list[int]]:
    """Return the caption's words with one space between them, and every character's place in the caption."""
    if len(caption) > MAX_CHARACTERS:
        caption = caption[: caption.rfind(" ", 0, MAX_CHARACTERS + 1) + 1]

    def blank_out(found: re.Match[str]) -> str:
        lead = found["lead"] or ""
        return lead + " " * (len(found.group()) - len(lead))

    blank = NO_WORDS.sub(blank_out, caption)
    words = list(re.finditer(r"\S+", blank))
    places = [place for word in words for place in range(word.start(), word.end() + 1)]
    return " ".join(word.group() for word in words), places
