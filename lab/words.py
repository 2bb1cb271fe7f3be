"""Names that several packages of the lab share."""

WORLD, DOMAINS, SCENE, FUNCTION = "world", "domains", "questions_scene", "questions_function"
STREAMS = (WORLD, DOMAINS, SCENE, FUNCTION)
"""Streams of the drawn world: new pairs of colour and shape (Track A), new shapes (B), new questions (C)."""

# A logo in the caption of a drawn scene: a noun, which PAS replaces, or a word that is not a noun.
NOUN, PARTICIPLE = "noun", "participle"
