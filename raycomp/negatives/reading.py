"""Read captions and their edits into concepts."""

from collections.abc import Sequence
from functools import lru_cache

from raycomp.config import ParserConfig
from raycomp.language.concepts import Edit, Parsed, parse_concepts
from raycomp.language.lexicon import Lexicon
from raycomp.language.splice import splice_tokens
from raycomp.models.lexicon import load_lexicon
from raycomp.models.parser import Parser, load_parser
from raycomp.words import ADD, RELATION, REPLACE

Chain = Sequence[Edit]
"""Calls in order: each edit's text is the input of the next."""


class Reader:
    """Parses texts into concepts, each distinct text once in a batch."""

    def __init__(self, parser: Parser, lexicon: Lexicon):
        self.parser = parser
        self.lexicon = lexicon
        self.parsed: dict[str, Parsed] = {}

    def read(self, texts: Sequence[str]) -> None:
        """Parse the texts that are not parsed yet."""
        new = list(dict.fromkeys(text for text in texts if text not in self.parsed))
        for text, tokens in zip(new, self.parser.tokens(new), strict=True):
            self.parsed[text] = parse_concepts(text, tokens, self.lexicon, self.parser.labels)

    def splice(self, known: str, text: str) -> bool:
        """Read a text from one of the same form that is parsed; return False if the forms differ."""
        if text in self.parsed:
            return True
        tokens = splice_tokens(self.parsed[known].tokens, known, text)
        if tokens is not None:
            self.parsed[text] = parse_concepts(text, tokens, self.lexicon, self.parser.labels)
        return tokens is not None


@lru_cache(maxsize=1)
def _load_tools(parser: ParserConfig) -> tuple[Parser, Lexicon]:
    return load_parser(parser.name), load_lexicon()


def load_reader(parser: ParserConfig) -> Reader:
    """Return a new reader; what it needs is loaded once per process."""
    return Reader(*_load_tools(parser))


def read_by_form(reader: Reader, captions: Sequence[str], proposed: Sequence[Sequence[Chain]]) -> None:
    """Read all edits of captions; of the first calls that differ in a word only one is parsed.

    An object or attribute that is replaced has the form of its caption; ADDs of one place have one form.
    """
    parsed: list[str] = []
    alike: list[tuple[str, str]] = []
    for caption, chains in zip(captions, proposed, strict=True):
        known: dict[tuple, str] = {}
        for first, *later in chains:
            parsed += [text for edit in (first, *later) for text in (edit.base,) if text]
            parsed += [edit.text for edit in later]
            form = _find_form(first)
            text = caption if first.op == REPLACE else known.setdefault(form, first.text)
            is_alike = first.op == ADD or (first.op == REPLACE and first.kind != RELATION)
            if is_alike and text != first.text:
                alike.append((text, first.text))
            else:
                parsed.append(first.text)
    reader.read(parsed)
    reader.read([text for known_text, text in alike if not reader.splice(known_text, text)])


def _find_form(edit: Edit) -> tuple:
    return edit.op, edit.kind, edit.base, edit.touched[0][0], len(edit.text.split())
