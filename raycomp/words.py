"""Column names, statuses and kinds: the words that every layer shares. Imports nothing.

A row is one sample of the input, good or bad. ``uid`` joins tables, never ``key``.
"""

# The identity and place of a sample.
UID = "uid"
KEY = "key"
SHARD = "shard"
POSITION = "position"
OFFSET = "offset"
URL = "url"
IMAGE_ID = "image_id"
IMAGE_SHA256 = "image_sha256"
ORIGINAL_WIDTH = "original_width"
ORIGINAL_HEIGHT = "original_height"
# What a picture and a caption are like: models/images.py.
BRIGHTNESS, COLOURFULNESS, SHARPNESS = "brightness", "colourfulness", "sharpness"
PERCEPTUAL_HASH, PIXELS_HASH = "perceptual_hash", "pixels_hash"
CAPTION_WORDS, CAPTION_LANGUAGE = "caption_words", "caption_language"
CAPTION = "caption"
STATUS = "status"

# Added by scoring.
ALIGNMENT = "alignment"
MEAN_PAS = "mean_pas"
PHRASES = "phrases"
IMAGE_EMBEDDING = "image_embedding"

# Added by selection.
SCORE = "score"

# Exchanged by stages only.
SHARD_ORDINAL = "shard_ordinal"
IMAGE = "image"
JSON = "json"
IS_LAST = "is_last"
PIXELS = "pixels"

OK = "ok"
CORRUPT_IMAGE = "corrupt_image"
IMAGE_TOO_LARGE = "image_too_large"
NO_IMAGE = "no_image"
NOT_DOWNLOADED = "not_downloaded"
IMAGE_FILE_MISSING = "image_file_missing"
IMAGE_PATH_REFUSED = "image_path_refused"
NO_CAPTION = "no_caption"
EMPTY_CAPTION = "empty_caption"
BAD_ENCODING = "bad_encoding"
BAD_JSON = "bad_json"
BAD_ROW = "bad_row"
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
REMOVED = "removed"

STATUSES = {
    OK: "scored; nothing wrong with it",
    CORRUPT_IMAGE: "the image bytes do not decode",
    IMAGE_TOO_LARGE: "more pixels than max_pixels; refused before decoding",
    NO_IMAGE: "there is no image, or a list of several",
    NOT_DOWNLOADED: "img2dataset's column status says that the image could not be fetched; not a bad row",
    IMAGE_FILE_MISSING: "there is no file at the image's path, below the table's folder or columns.root",
    IMAGE_PATH_REFUSED: "it lies outside the table folder; set columns.root to a folder above the images",
    NO_CAPTION: "the sample has no caption",
    EMPTY_CAPTION: "the caption is empty or white space",
    BAD_ENCODING: "the caption, or the name of its image, is not UTF-8",
    BAD_JSON: "the sample's json member does not parse to an object",
    BAD_ROW: "a line of the list has other fields than its header, or a quote that is not closed",
    BAD_EMBEDDING: "an embedding of the image or a text is unreadable, not finite or not of length 1",
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
    REMOVED: "removed on request, by update --remove or by removed; its uid and place stay, no content",
}
# Added by hard negatives: a row's status is one of these, OK, NO_CAPTION, EMPTY_CAPTION.
NO_CONCEPT = "no_concept"
NO_NEGATIVE = "no_negative"
NO_REPLY = "no_reply"
NEGATIVE_STATUSES = {
    NO_CONCEPT: "no operation has anything in the caption to act on",
    NO_NEGATIVE: "every candidate was rejected",
    NO_REPLY: "the engine gave no reply that can be read, however often it was asked",
}
# Faults of samples of a stream of tasks, in addition to these.
NO_PRIMITIVE = "no_primitive"
BAD_FIELD = "bad_field"
# Handling of test samples with a training image: reported, or left out with a status.
OVERLAPS = WARN, DROP = "warn", "drop"
CONTAMINATED = "contaminated"
CONTINUAL_STATUSES = {
    NO_PRIMITIVE: "a text of the sample names no primitive, and the parser finds none in it",
    BAD_FIELD: "primitives, candidates, candidate_primitives or kind are not as they should be",
    CONTAMINATED: "of a test, and a task trains on its image",
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
# Classes of their targets: nouns, and among these the ones that no picture can show ("day", "view").
HEAD = "head"
UNSEEN = "unseen"
# The targets that count for a sample's PAS. The last value is also a class, of adjectives, verbs and relation
# words, which have their own column.
TARGETS = SHOWABLE, NOUNS, CONTENT = "showable", "nouns", "content"
CONTENT_WORDS = "content_words"
# The aggregated value of each target: its drop, or the drop per displacement of its nonces.
UNITS = PER_TARGET, PER_DISPLACEMENT = "drop", "per_displacement"

# Operators on captions (token-aware causal lens on CLIP, Algorithm 1), and the third kind that they act on.
SWAP, REPLACE, ADD = "SWAP", "REPLACE", "ADD"
OPERATIONS = (SWAP, REPLACE, ADD)
ATTRIBUTE = "attribute"
CONCEPT_KINDS = (OBJECT, ATTRIBUTE, RELATION)

# The columns of a negatives file in addition to uid, caption and status.
NEGATIVES = "negatives"
COMPARISON = "comparison"
# The text of one negative, in tables with a row for each.
NEGATIVE = "negative"

# The result of a row, in tables made for looking: KEPT, or one of the reasons below.
OUTCOME = "outcome"
# Why a row that was read is not in the subset; bad rows are dropped by their status.
DROPPED_ALIGNMENT = "below_alignment_gate"
DROPPED_RANDOM = "not_drawn"
DROPPED_UNSCORED = "no_score_for_attribution_gate"
DROPPED_ATTRIBUTION = "below_attribution_gate"
DROPPED_CONTROL = "below_control_gate"
KEPT = "kept"
# Why a row is not used for training, in addition to its status.
NOT_IN_SUBSET, HELD_OUT = "not_in_subset", "held_out"
# Measures of held-out pairs during training; the recalls are recall@1, from 0 to 1.
HELD_OUT_LOSS = "held_out_loss"
HELD_OUT_MEASURES = (HELD_OUT_LOSS, "held_out_recall_image_to_text", "held_out_recall_text_to_image")

# Columns of a training pair in addition to position, uid, negatives and image.
CAPTIONS = "captions"
# The number of the pair's rows in an epoch, at least 1: one, or how often a subset names it.
FIRST_ROW = "first_row"
NUM_ROWS = "num_rows"
NEGATIVE_IMAGES = "negative_images"
# Columns of marks/: the reason why a row is dropped before shares are counted, and after the rule's gates.
MARK, MARK_AFTER = "mark", "mark_after"
FILTERED, FILTER_NULL, EXCLUDED, NEAR_DUPLICATE = "filtered", "filter_null", "excluded", "near_duplicate"
CLUSTER, CLUSTER_FULL = "cluster", "cluster_full"
MARK_REASONS = (FILTERED, FILTER_NULL, EXCLUDED, CONTAMINATED, NEAR_DUPLICATE, CLUSTER_FULL)
# Rules by which rows are near-duplicates, and the column of their groups in marks/.
EXACT, SAME_PIXELS, PERCEPTUAL = "exact", "pixels", "perceptual"
SEMANTIC, SAME_CAPTION = "semantic", "captions"
NEAR_RULES = (EXACT, SAME_PIXELS, PERCEPTUAL, SEMANTIC, SAME_CAPTION)
DUPLICATE_GROUP = "duplicate_group"
# The column of marks/ that says which test sets a row is in.
CONTAMINATED_BY = "contaminated_by"
FILTERED_AFTER, FILTER_NULL_AFTER, EXCLUDED_AFTER = "filtered_after", "filter_null_after", "excluded_after"
AFTER_REASONS = (FILTERED_AFTER, FILTER_NULL_AFTER, EXCLUDED_AFTER)
GATE_REASONS = (DROPPED_ALIGNMENT, DROPPED_RANDOM, DROPPED_UNSCORED, DROPPED_ATTRIBUTION, DROPPED_CONTROL)
# Outcomes in the order of the pipeline: reading, marks, gates, marks after the gates.
PIPELINE = (*STATUSES, *MARK_REASONS, *GATE_REASONS, *AFTER_REASONS)

NEIGHBOURS = "neighbours"
"""A column: uids of the pairs with the most similar images, the most similar first."""

# What a screened negative has.
PHRASE_RANK, PHRASE_RATE, SUSPECT = "phrase_rank", "phrase_rate", "suspect"

# Baselines of a benchmark: some are text-only, others use another image.
SHORTER_CAPTION, UNIGRAM, BIGRAM, LANGUAGE_MODEL = "shorter_caption", "unigram", "bigram", "language_model"
SHUFFLED_IMAGE, MEAN_IMAGE = "shuffled_image", "mean_image"
TEXT_CONTROLS = (SHORTER_CAPTION, UNIGRAM, BIGRAM, LANGUAGE_MODEL)
IMAGE_CONTROLS = (SHUFFLED_IMAGE, MEAN_IMAGE)
CONTROLS = TEXT_CONTROLS + IMAGE_CONTROLS

# The metrics of an example of a benchmark.
ACCURACY, AUGMENTED_ACCURACY, BRITTLENESS, TOT = "accuracy", "augmented_accuracy", "brittleness", "tot"
TEXT_SCORE, IMAGE_SCORE, GROUP_SCORE = "text", "image", "group"
ACC1, ACC5, MEAN_PER_CLASS_RECALL = "acc1", "acc5", "mean_per_class_recall"
# Queries and targets, and the metrics (``@k``), which CLIP_benchmark names by the target.
IMAGE_TO_TEXT, TEXT_TO_IMAGE = "image_to_text", "text_to_image"
RECALLS = {IMAGE_TO_TEXT: "text_retrieval_recall", TEXT_TO_IMAGE: "image_retrieval_recall"}
MEAN_RECALL = "mean_recall"
# The split of benchmarks with only one, and the split of training examples.
TEST, TRAIN = "test", "train"
# Why a picture is left out, in addition to its status as a sample.
NO_LABEL, AMBIGUOUS_IMAGE = "no_label", "ambiguous_image"
UNREADABLE_PICTURE = "unreadable_picture"
PICTURE_STATUSES = {
    NO_LABEL: "the sample names no class",
    AMBIGUOUS_IMAGE: "several files may be meant by the name, or several names by the file",
    UNREADABLE_PICTURE: "the picture of the negative is not there, too large or does not decode",
}
# Pictures of these statuses are missing; those of another one are present and bad.
MISSING_STATUSES = (NO_IMAGE, AMBIGUOUS_IMAGE)
# Defects of a query: another image has its text, or exactly its image's embedding.
SHARED_CAPTION, DUPLICATE_IMAGE = "shared_caption", "twin_image"
MICRO, MACRO = "micro", "macro"

# The functions that aggregate the drops of a caption's phrases to one score.
AGGREGATES = ("mean", "min", "max", "fraction_supported")
# The towers of a CLIP.
TOWERS = ("image", "text")
