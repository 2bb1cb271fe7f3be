"""Arrow schemas of the tables that stages exchange and runs write."""

from collections.abc import Sequence

import pyarrow as pa

from raycomp import words

# One sample as a reader yields it. ``image`` is null where there is none; ``json`` is the sample's own
# json member as text (null where there is none); ``offset`` is the byte of a tar at which the
# sample's headers begin (null elsewhere); ``is_last`` marks the last row of its shard. A shard with
# stored embeddings has an additional column ``image_embedding``, and no image.
SAMPLE_SCHEMA = pa.schema(
    [
        (words.SHARD_ORDINAL, pa.int32()),
        (words.POSITION, pa.int32()),
        (words.OFFSET, pa.int64()),
        (words.UID, pa.string()),
        (words.KEY, pa.string()),
        (words.SHARD, pa.string()),
        (words.URL, pa.string()),
        (words.CAPTION, pa.string()),
        (words.IMAGE, pa.large_binary()),
        (words.JSON, pa.string()),
        (words.STATUS, pa.string()),
        (words.IS_LAST, pa.bool_()),
    ]
)

# One phrase with its counterfactuals. Offsets count characters of the caption; the j-th counterfactual is the
# caption with ``[target_start:target_end]`` replaced by ``nonces[j]``; ``drops[j]`` = s(I, T) - s(I, T~_j)
# (Eq. 3) and ``drop`` is their mean; ``displacement`` is the mean of 1 - cos(t, t~_j), in [0, 2].
# Without a valid nonce, ``nonces`` and ``drops`` are empty and ``drop`` and ``displacement`` null.
PHRASE_TYPE = pa.struct(
    [
        ("text", pa.string()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("kind", pa.string()),
        ("target", pa.string()),
        ("target_start", pa.int32()),
        ("target_end", pa.int32()),
        ("target_class", pa.string()),
        ("nonces", pa.list_(pa.string())),
        ("drops", pa.list_(pa.float32())),
        ("drop", pa.float32()),
        ("displacement", pa.float32()),
    ]
)


# Columns of a picture and of a caption that are computed while they are prepared; null on bad rows.
PICTURE_SCHEMA = pa.schema(
    [
        (words.BRIGHTNESS, pa.float32()),
        (words.COLOURFULNESS, pa.float32()),
        (words.SHARPNESS, pa.float32()),
        (words.PERCEPTUAL_HASH, pa.uint64()),
        (words.PIXELS_HASH, pa.string()),
    ]
)
CAPTION_SCHEMA = pa.schema([(words.CAPTION_WORDS, pa.int32()), (words.CAPTION_LANGUAGE, pa.string())])


# One hard negative of a caption. After several ``calls`` ``op`` and ``kind`` are joined by "+" in the order
# applied; ``source`` is the engine that wrote it; ``similarity`` is cos(g(caption), g(text)) of the scorer's
# text encoder, null without ranking; ``concepts`` are the edited concepts, in order; ``image_drop`` =
# s(I, caption) - s(I, text), null where the ranking scorer did not embed the image. It hints at negatives
# that are true of the image, and rejects none: the captions alone decide what is a negative. Then gaps of
# text-only judges: log-likelihood of the caption minus that of the negative, in nats; null without that
# judge. The last three are null where a negative is not screened: the share of photos that the new phrase
# fits better than this one, the share of captions that mention it, and whether the negative may be true.
NEGATIVE_TYPE = pa.struct(
    [
        ("text", pa.string()),
        ("op", pa.string()),
        ("kind", pa.string()),
        ("calls", pa.int32()),
        ("source", pa.string()),
        ("similarity", pa.float32()),
        ("concepts", pa.list_(pa.string())),
        ("image_drop", pa.float32()),
        (words.UNIGRAM, pa.float32()),
        (words.BIGRAM, pa.float32()),
        (words.LANGUAGE_MODEL, pa.float32()),
        (words.PHRASE_RANK, pa.float32()),
        (words.PHRASE_RATE, pa.float32()),
        (words.SUSPECT, pa.bool_()),
    ]
)
# How often captions of the corpus have two words in a relation, by the tables of ``language.context``.
CONTEXT_SCHEMA = pa.schema(
    [("table", pa.string()), ("first", pa.string()), ("second", pa.string()), ("count", pa.int64())]
)
# The picture of a hard negative, by the uid of its caption and its text.
NEGATIVE_IMAGE_SCHEMA = pa.schema(
    [(words.UID, pa.string()), (words.NEGATIVE, pa.string()), (words.IMAGE, pa.binary())]
)
# Three ways to apply the same two operations to a caption, each with two texts: the hardest text of each
# operation; the hardest texts of one after the other, in any order; the two edits of the first of these, each
# made alone.
COMPARISON_TYPE = pa.struct(
    [
        ("op", pa.string()),
        ("one_call", pa.list_(pa.string())),
        ("two_calls", pa.list_(pa.string())),
        ("independent", pa.list_(pa.string())),
    ]
)
NEGATIVES_SCHEMA = pa.schema(
    [
        (words.UID, pa.string()),
        (words.CAPTION, pa.string()),
        (words.NEGATIVES, pa.list_(NEGATIVE_TYPE)),
        (words.STATUS, pa.string()),
    ]
)

# The training pairs of a shard, in order of position; an image must have its SHA-256 when it is loaded.
# ``image`` of a negative states that a picture shows it. Loaded pairs have an additional column ``image``.
# Where pictures show negatives they also have ``negative_images``: every negative's picture bytes, else null.
HARD_TYPE = pa.struct(
    [("text", pa.string()), ("op", pa.string()), ("kind", pa.string()), ("image", pa.bool_())]
)
PAIRS_SCHEMA = pa.schema(
    [
        (words.POSITION, pa.int32()),
        (words.UID, pa.string()),
        (words.IMAGE_SHA256, pa.string()),
        (words.CAPTIONS, pa.list_(pa.string())),
        (words.NUM_ROWS, pa.int64()),
        (words.NEGATIVES, pa.list_(HARD_TYPE)),
    ]
)

# ``score`` is the value that the rule's last gate ranked by, larger is better: PAS, alignment, draw in
# [0, 1), minus PAS, words, phrases, displacement in [0, 2], residual in cosines.
# ``image_sha256`` is of the image as it is written to ``shards/``, which may be in another file format than
# the input's; without shards, of the input's own. Null where there is no image.
KEPT_SCHEMA = pa.schema(
    [
        (words.UID, pa.string()),
        (words.KEY, pa.string()),
        (words.SHARD, pa.string()),
        (words.IMAGE_SHA256, pa.string()),
        (words.CAPTION, pa.string()),
        (words.ALIGNMENT, pa.float32()),
        (words.MEAN_PAS, pa.float32()),
        (words.SCORE, pa.float32()),
    ]
)

# One figure of a run of continual learning: ``after`` which task, -1 before the first; ``of`` a task by its
# place in the order met, of a zero-shot set by its number, or of the method.
CONTINUAL_SCHEMA = pa.schema(
    [
        ("after", pa.int32()),
        ("of", pa.string()),
        ("number", pa.int32()),
        ("figure", pa.string()),
        ("value", pa.float64()),
    ]
)

# An example of a benchmark: an image, its true captions and its false ones, and their scores by the model:
# cosines, empty where the status is not ok. ``text_scores``, where there are several positives, are the
# cosines of all pairs of the texts, positives first, the upper triangle row by row.
EXAMPLE_SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("split", pa.string()),
        ("id", pa.string()),
        (words.IMAGE, pa.string()),
        ("group", pa.string()),
        ("op", pa.string()),
        ("kind", pa.string()),
        (words.STATUS, pa.string()),
        ("defects", pa.list_(pa.string())),
        ("positives", pa.list_(pa.string())),
        ("negatives", pa.list_(pa.string())),
        ("positive_scores", pa.list_(pa.float32())),
        ("negative_scores", pa.list_(pa.float32())),
        ("text_scores", pa.list_(pa.float32())),
    ]
)


def example_schema(controls: Sequence[str]) -> pa.Schema:
    """Return EXAMPLE_SCHEMA with the scores of each baseline, one for every positive and negative."""
    sides = [f"{control}_{side}" for control in controls for side in ("positives", "negatives")]
    return pa.schema([*EXAMPLE_SCHEMA, *(pa.field(side, pa.list_(pa.float64())) for side in sides)])


# An image and a class: the true one's rank among ``num_classes`` (1 + how many others score at least as high,
# ``ties`` of them the same) and its margin, score less that of the best other class; ``predicted`` is that
# one where the true one is not strictly first. All null where the status is not ok.
CLASSIFIED_SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("split", pa.string()),
        ("id", pa.string()),
        (words.IMAGE, pa.string()),
        (words.STATUS, pa.string()),
        ("label", pa.string()),
        ("predicted", pa.string()),
        ("rank", pa.int32()),
        ("ties", pa.int32()),
        ("margin", pa.float32()),
        ("num_classes", pa.int32()),
    ]
)

# An image as a query for its captions, or a caption as a query for its image: ``rank`` and ``ties`` of the
# best of the ``num_own`` right targets among ``num_targets``. All null where the status is not ok.
RETRIEVED_SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("split", pa.string()),
        ("id", pa.string()),
        (words.IMAGE, pa.string()),
        ("direction", pa.string()),
        ("query", pa.string()),
        (words.STATUS, pa.string()),
        ("defects", pa.list_(pa.string())),
        ("rank", pa.int32()),
        ("ties", pa.int32()),
        ("num_own", pa.int32()),
        ("num_targets", pa.int32()),
    ]
)
