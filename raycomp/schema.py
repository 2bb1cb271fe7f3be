"""Column names, statuses and table schemas: the words that every floor shares.

A row is one sample of the input, good or bad. ``uid`` joins tables, never ``key``.
"""

import pyarrow as pa

# What a sample is called and where it stood.
UID = "uid"
KEY = "key"
SHARD = "shard"
POSITION = "position"
URL = "url"
IMAGE_SHA256 = "image_sha256"
ORIGINAL_WIDTH = "original_width"
ORIGINAL_HEIGHT = "original_height"
CAPTION = "caption"
STATUS = "status"

# What scoring adds.
ALIGNMENT = "alignment"
MEAN_PAS = "mean_pas"
PHRASES = "phrases"
IMAGE_EMBEDDING = "image_embedding"

# What selection adds.
SCORE = "score"

# What only travels between stages.
SHARD_ORDINAL = "shard_ordinal"
IMAGE = "image"
JSON = "json"
IS_LAST = "is_last"
PIXELS = "pixels"

OK = "ok"
CORRUPT_IMAGE = "corrupt_image"
IMAGE_TOO_LARGE = "image_too_large"
NO_IMAGE = "no_image"
NO_CAPTION = "no_caption"
EMPTY_CAPTION = "empty_caption"
BAD_ENCODING = "bad_encoding"
BAD_JSON = "bad_json"
BAD_EMBEDDING = "bad_embedding"
LINKED_MEMBER = "linked_member"
AMBIGUOUS_KEY = "ambiguous_key"
NO_PHRASE = "no_phrase"
NO_VALID_NONCE = "no_valid_nonce"
NO_SEEN_PHRASE = "no_seen_phrase"
DUPLICATE_UID = "duplicate_uid"
UID_CONFLICT = "uid_conflict"
TRUNCATED_SHARD = "truncated_shard"
UNREADABLE_SHARD = "unreadable_shard"
EMPTY_SHARD = "empty_shard"

STATUSES = {
    OK: "scored; nothing wrong with it",
    CORRUPT_IMAGE: "the image bytes do not decode",
    IMAGE_TOO_LARGE: "more pixels than prepare.max_pixels, refused before decoding",
    NO_IMAGE: "the sample has no image",
    NO_CAPTION: "the sample has no caption",
    EMPTY_CAPTION: "the caption is empty or white space",
    BAD_ENCODING: "the caption is not UTF-8",
    BAD_JSON: "the sample's json member does not parse to an object",
    BAD_EMBEDDING: "the stored image embedding is zero, not finite or unreadable",
    LINKED_MEMBER: "image, txt or json is a link out of the sample; tar -h --hard-dereference stores data",
    AMBIGUOUS_KEY: "file names with dots before the extension: the key ends at the first dot, so no image",
    NO_PHRASE: "aligned, but the parser found no phrase in the caption",
    NO_VALID_NONCE: "aligned, with phrases, but none of them has a valid nonce",
    NO_SEEN_PHRASE: "aligned, but no phrase with a valid nonce has a target that a picture can show",
    DUPLICATE_UID: "an earlier sample has this uid, image and caption; outside the corpus",
    UID_CONFLICT: "another image or caption before it has this uid; outside the corpus. Name the inputs "
    "(a=...::b=...) where they were first curated",
    TRUNCATED_SHARD: "a shard ends before its last sample does; one row for the shard",
    UNREADABLE_SHARD: "a shard is not of the format its name says; one row for the shard",
    EMPTY_SHARD: "a shard holds no sample; one row for the shard",
}
# What hard negatives add: a row's status is one of these, OK, NO_CAPTION, EMPTY_CAPTION.
NO_CONCEPT = "no_concept"
NO_NEGATIVE = "no_negative"
NO_REPLY = "no_reply"
NEGATIVE_STATUSES = {
    NO_CONCEPT: "no operation has anything in the caption to act on",
    NO_NEGATIVE: "every candidate was rejected",
    NO_REPLY: "the engine gave no reply that can be read, however often it was asked",
}
# Rows of these statuses stand for a shard, not for a sample.
SHARD_STATUSES = (TRUNCATED_SHARD, UNREADABLE_SHARD, EMPTY_SHARD)
# Rows of these statuses have an alignment.
ALIGNED_STATUSES = (OK, NO_PHRASE, NO_VALID_NONCE, NO_SEEN_PHRASE)

# Phrase kinds (Go et al., arXiv 2605.22651, section 5.2).
OBJECT = "object"
RELATION = "relation"
PREDICATE = "predicate"
KINDS = (OBJECT, RELATION, PREDICATE)
# Classes of their targets: nouns, and of these the ones that no picture can show ("day", "view").
HEAD = "head"
UNSEEN = "unseen"

# Operators on captions (token-aware causal lens on CLIP, Algorithm 1), and the third kind that they act on.
SWAP, REPLACE, ADD = "SWAP", "REPLACE", "ADD"
OPERATIONS = (SWAP, REPLACE, ADD)
ATTRIBUTE = "attribute"
CONCEPT_KINDS = (OBJECT, ATTRIBUTE, RELATION)

# Why a row that was read is not in the subset; bad rows are dropped by their status.
DROPPED_ALIGNMENT = "below_alignment_gate"
DROPPED_RANDOM = "not_drawn"
DROPPED_UNSCORED = "no_score_for_attribution_gate"
DROPPED_ATTRIBUTION = "below_attribution_gate"
DROPPED_CONTROL = "below_control_gate"
KEPT = "kept"
GATE_REASONS = (DROPPED_ALIGNMENT, DROPPED_RANDOM, DROPPED_UNSCORED, DROPPED_ATTRIBUTION, DROPPED_CONTROL)

# One sample as a reader yields it. ``image`` is null where there is none; ``json`` is the sample's own
# json member as text (null where there is none); ``is_last`` marks the last row of its shard. A shard with
# stored embeddings has a column ``image_embedding`` more, and no image.
SAMPLE_SCHEMA = pa.schema(
    [
        (SHARD_ORDINAL, pa.int32()),
        (POSITION, pa.int32()),
        (UID, pa.string()),
        (KEY, pa.string()),
        (SHARD, pa.string()),
        (URL, pa.string()),
        (CAPTION, pa.string()),
        (IMAGE, pa.large_binary()),
        (JSON, pa.string()),
        (STATUS, pa.string()),
        (IS_LAST, pa.bool_()),
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


def aligned_schema(
    embedding_dim: int, embedding_dtype: str, extra_columns: tuple[str, ...] = ()
) -> pa.Schema:
    """Return the schema of a shard's rows after alignment; ``embedding_dtype`` is float32 or float16.

    ``alignment`` and ``image_embedding`` are null on bad and duplicate rows.
    """
    value = {"float32": pa.float32(), "float16": pa.float16()}[embedding_dtype]
    return pa.schema(
        [
            (UID, pa.string()),
            (KEY, pa.string()),
            (SHARD, pa.string()),
            (POSITION, pa.int32()),
            (URL, pa.string()),
            (IMAGE_SHA256, pa.string()),
            (ORIGINAL_WIDTH, pa.int32()),
            (ORIGINAL_HEIGHT, pa.int32()),
            (CAPTION, pa.string()),
            (STATUS, pa.string()),
            (ALIGNMENT, pa.float32()),
            (IMAGE_EMBEDDING, pa.list_(value, embedding_dim)),
            *((name, pa.string()) for name in extra_columns),
        ]
    )


# What attribution adds to a row of the pool.
ATTRIBUTED_SCHEMA = pa.schema(
    [
        (POSITION, pa.int32()),
        (STATUS, pa.string()),
        (MEAN_PAS, pa.float32()),
        (PHRASES, pa.list_(PHRASE_TYPE)),
    ]
)


def scores_schema(aligned: pa.Schema) -> pa.Schema:
    """Return the schema of a ``scores/`` file: the aligned columns, mean PAS and phrases after alignment.

    ``phrases`` and ``mean_pas`` are null on rows that were not attributed. ``mean_pas`` is over the phrases
    of class HEAD, null where none of them has a valid nonce.
    """
    at = aligned.get_field_index(ALIGNMENT) + 1
    added = [ATTRIBUTED_SCHEMA.field(MEAN_PAS), ATTRIBUTED_SCHEMA.field(PHRASES)]
    return pa.schema([*list(aligned)[:at], *added, *list(aligned)[at:]])


# One hard negative of a caption. After several ``calls`` ``op`` and ``kind`` are joined by "+" in the order
# applied; ``source`` is the engine that wrote it; ``similarity`` is cos(g(caption), g(text)) of the scorer's
# text encoder, null where nothing ranked; ``concepts`` are the concepts acted on, in order; ``image_drop`` =
# s(I, caption) - s(I, text), null where the ranking scorer did not embed the image. It hints at negatives
# that are true of the image, and rejects none: the captions alone decide what is a negative.
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
    ]
)
NEGATIVES = "negatives"
# Three ways to spend the same two operations on a caption: the hardest text of each (two texts), one after
# the other (one text), and the two edits of that text, each made alone (two texts).
COMPARISON = "comparison"
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
        (UID, pa.string()),
        (CAPTION, pa.string()),
        (NEGATIVES, pa.list_(NEGATIVE_TYPE)),
        (STATUS, pa.string()),
    ]
)

# ``score`` is Score of Eq. 5 under cpi; under another rule what its last gate ranked by, larger is better:
# alignment, draw in [0, 1), minus PAS, words, phrases, displacement in [0, 2], residual in cosines.
KEPT_SCHEMA = pa.schema(
    [
        (UID, pa.string()),
        (KEY, pa.string()),
        (SHARD, pa.string()),
        (ALIGNMENT, pa.float32()),
        (MEAN_PAS, pa.float32()),
        (SCORE, pa.float32()),
    ]
)
