"""The primitives of a caption, the parts of a composition, read from free text.

COMPO-REALIGN leaves open how they are taken. Here they are a parsed caption's objects with their attributes.
"""

from raycomp.config.check import check_choice
from raycomp.language.concepts import Parsed
from raycomp.words import ATTRIBUTE, OBJECT

PHRASE, WORD = "phrase", "word"
FORMS = (PHRASE, WORD)


def find_primitives(parsed: Parsed, form: str = PHRASE) -> tuple[str, ...]:
    """Return a caption's primitives, each once, in its order; none where it names no object (or attribute).

    ``phrase``: every object with its attributes before it, "small red circle", so that a composition keeps
    what belongs together; an object of several is in the caption's own number. ``word``: every object and
    attribute by itself, in base form, which a swap of attributes leaves as they were. Relations are never
    among them: texts that differ only in a relation or in order have the same primitives.
    """
    check_choice("form", form, FORMS)
    concepts = parsed.concepts
    if form == WORD:
        return tuple(dict.fromkeys(one.word for one in concepts if one.kind in (OBJECT, ATTRIBUTE)))
    phrases = []
    for place, one in enumerate(concepts):
        if one.kind == OBJECT:
            said = " ".join(parsed.text[one.start : one.end].lower().split())
            own = [other.word for other in concepts if other.kind == ATTRIBUTE and other.owner == place]
            phrases.append(" ".join([*dict.fromkeys(own), said if one.is_plural else one.word]))
    return tuple(dict.fromkeys(phrases))
