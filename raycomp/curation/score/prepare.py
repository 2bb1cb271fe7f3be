"""The stages on CPUs: pixels of one size and tokens; phrases, nonces and counterfactuals.

Go et al. (arXiv 2605.22651), Eq. 2. Many processes do this on each machine. open_clip takes 5 s and 600 MB in
each process, so it is not loaded.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp import words
from raycomp.config import ParserConfig, ScorerConfig
from raycomp.core.selection import from_keys
from raycomp.curation.config import AttributeConfig, NonceConfig
from raycomp.curation.score.columns import to_text
from raycomp.curation.select.filters import KEYS_MATCHED, REMOVED_CONTENT, blank_rows, load_removed
from raycomp.data import parquet
from raycomp.language.phrases import make_counterfactual
from raycomp.models.architecture import NonceMaker, ScorerSpec, load_tokens, place_ids
from raycomp.models.images import VIEW_SIDE, ImageFault, hash_view, measure_look, prepare_viewed
from raycomp.models.parser import MAX_CHARACTERS, Parser, load_languages, load_parser, name_language
from raycomp.models.resize import resize_picture
from raycomp.run.executor import RESIZED_BY
from raycomp.schema import CAPTION_SCHEMA, PHRASE_TYPE, PICTURE_SCHEMA

# Of a SHA-256, enough for every corpus.
_HASH_DIGITS = 32
# The values of PICTURE_SCHEMA, all or none.
Picture = tuple[Any, ...]


def prepare(
    table: pa.Table,
    scorer: ScorerConfig,
    spec: ScorerSpec,
    max_pixels: int,
    extra_columns: tuple[str, ...] = (),
    fast_decode: bool = False,
    removed: str | None = None,
) -> pa.Table:
    """Add pixels, tokens, image size and hash to rows of SAMPLE_SCHEMA; drop image bytes.

    An unusable row stays, with its status and zero pixels. Rows with stored embeddings get no pixels; their
    embeddings are scaled to length 1. Rows of the list ``removed`` lose their content.
    """
    table = parquet.hash_images(table)
    removal = load_removed(removed) if removed else None
    if removal is not None:
        is_removed_N, matched = removal.find_rows(table)
        table = blank_rows(table, is_removed_N, REMOVED_CONTENT)
        found = [[*chain(*map(from_keys, matched.values()))], *[[]] * len(table)][: len(table)]
        table = table.append_column(KEYS_MATCHED, pa.array(found, pa.list_(pa.string())))
    statuses, num = table[words.STATUS].to_pylist(), len(table)
    looks: list[Picture] = [(None,) * len(PICTURE_SCHEMA)] * num
    sizes: list[tuple[int | None, int | None]] = [(None, None)] * num
    if words.IMAGE_EMBEDDING in table.column_names:
        name, value_NM = words.IMAGE_EMBEDDING, _scale_embeddings(table, statuses)
    else:
        name = words.PIXELS
        value_NM = _prepare_images(table, statuses, sizes, looks, spec, max_pixels, fast_decode)
    fields = [json.loads(text) if text else {} for text in table[words.JSON].to_pylist()]
    for row, one in enumerate(fields):
        width, height = (one.get(name) for name in (words.ORIGINAL_WIDTH, words.ORIGINAL_HEIGHT))
        if all(type(side) is int and 0 < side < 2**31 for side in (width, height)):
            sizes[row] = width, height  # of the image before a downloader resized it
    texts = zip(table[words.CAPTION].to_pylist(), statuses, strict=True)
    captions = [parquet.readable(caption) if status == words.OK else "" for caption, status in texts]
    # Null for an empty text, which stands for a bad row.
    counts = [len(caption.split()) or None for caption in captions]
    columns = {
        words.STATUS: pa.array(statuses, pa.string()),
        words.ORIGINAL_WIDTH: pa.array([width for width, _ in sizes], pa.int32()),
        words.ORIGINAL_HEIGHT: pa.array([height for _, height in sizes], pa.int32()),
        **_make_columns(PICTURE_SCHEMA, zip(*looks, strict=True)),
        **_make_columns(CAPTION_SCHEMA, (counts, [*map(name_language, captions)])),
        name: parquet.to_fixed_lists(value_NM),
        parquet.TOKENS: parquet.to_fixed_lists(load_tokens(scorer)(captions)),
        **{name: pa.array([to_text(f.get(name)) for f in fields], pa.string()) for name in extra_columns},
    }
    if name == words.PIXELS:
        columns[RESIZED_BY] = pa.array([resize_picture.resizer.name] * num, pa.string())
    return parquet.add_columns(table.drop_columns([words.IMAGE]), columns)


def load_measures() -> None:
    """Load what the columns of pictures and captions need, once in a process."""
    load_languages()
    hash_view(np.zeros((VIEW_SIDE, VIEW_SIDE, 3), np.uint8))


def _prepare_images(
    table: pa.Table,
    statuses: list[str],
    sizes: list[tuple[int | None, int | None]],
    looks: list[Picture],
    spec: ScorerSpec,
    max_pixels: int,
    fast_decode: bool,
) -> np.ndarray:
    """Return pixels [rows, values]; writes faults into ``statuses``, (width, height) into ``sizes``, and the
    columns of pictures into ``looks``. Images of one name, the hash of their bytes, are decoded once."""
    first: dict[str | None, int] = {}
    pixels_NM = np.zeros((len(table), spec.image.num_values), np.uint8)
    named = zip(table[words.IMAGE].to_pylist(), table[words.IMAGE_SHA256].to_pylist(), strict=True)
    for i, (data, name) in enumerate(named):
        if data is None or statuses[i] != words.OK:
            continue
        same = first.setdefault(name, i)
        if same != i:
            pixels_NM[i], statuses[i] = pixels_NM[same], statuses[same]
            sizes[i], looks[i] = sizes[same], looks[same]
            continue
        try:
            pixels, sizes[i], view = prepare_viewed(data, spec.image, max_pixels, fast_decode)
            pixels_NM[i] = pixels.reshape(-1)
            digest = hashlib.sha256(pixels.tobytes()).hexdigest()[:_HASH_DIGITS]
            looks[i] = *measure_look(view, pixels), hash_view(view), digest
        except ImageFault as fault:
            statuses[i] = fault.status
    return pixels_NM


def _scale_embeddings(table: pa.Table, statuses: list[str]) -> np.ndarray:
    """Return stored embeddings as fp32 rows of length 1; writes into ``statuses`` if a row has length 0."""
    import torch  # a process that decodes images does not need it

    from raycomp.core.alignment import has_unit_length, normalise

    unit_ND = normalise(torch.from_numpy(parquet.to_matrix(table[words.IMAGE_EMBEDDING]).copy()))
    for i in np.flatnonzero(~has_unit_length(unit_ND).numpy()):
        if statuses[i] == words.OK:
            statuses[i] = words.BAD_EMBEDDING
    return unit_ND.numpy()


def _make_columns(schema: pa.Schema, values: Iterable[Sequence[Any]]) -> dict[str, pa.Array]:
    return {one.name: pa.array(column, one.type) for one, column in zip(schema, values, strict=True)}


@lru_cache(maxsize=1)
def _tools(parser: ParserConfig, nonce: NonceConfig, scorer: ScorerConfig) -> tuple[Parser, NonceMaker]:
    """The objects that parsing needs, loaded once per process."""
    return load_parser(parser.name), NonceMaker(load_tokens(scorer), nonce.seed, scorer.model)


def parse(
    table: pa.Table,
    parser: ParserConfig,
    nonce: NonceConfig,
    attribute: AttributeConfig,
    scorer: ScorerConfig,
) -> pa.Table:
    """Add phrases with their nonces, and the tokens of caption and counterfactuals.

    The counterfactual tokens of a row are ordered by phrase, then by nonce. A phrase without a valid nonce
    stays, with an empty list; ``faults`` holds the reason. With ``attribute.targets=content`` adjectives,
    verbs and relation words follow the phrases of their row, with class CONTENT; ``attribute`` separates
    them.
    """
    find, maker = _tools(parser, nonce, scorer)
    captions = table[words.CAPTION].to_pylist()
    keys = table[words.UID].to_pylist() if nonce.key == "sample" else [""] * len(captions)
    rows, edits, faults = [], [], []
    parsed = find.parse_content(captions, attribute.targets == words.CONTENT)
    for caption, key, (phrases, content) in zip(captions, keys, parsed, strict=True):
        made: list[Any] = []
        for some in (phrases, content):
            spans = [(phrase.target_start, phrase.target_end) for phrase in some]
            made += maker.make(caption[:MAX_CHARACTERS], spans, attribute.nonces, key)
        faults.append([nonce for nonce in made[: len(phrases)] if isinstance(nonce, str)])
        row, edited = [], []
        for phrase, nonces in zip((*phrases, *content), made, strict=True):
            start, end = phrase.target_start, phrase.target_end
            drawn = [] if isinstance(nonces, str) else nonces
            said = {"text": caption[phrase.start : phrase.end], "target": caption[start:end], "nonces": drawn}
            row.append({**phrase._asdict(), **said, "drops": [], "drop": None, "displacement": None})
            for one in drawn:
                is_read = len(caption) - (end - start) + len(one) <= MAX_CHARACTERS
                text = "" if is_read else parquet.readable(make_counterfactual(caption, start, end, one))
                edited.append(maker.splice(caption, start, end, one) if is_read else maker.encode(text))
        rows.append(row)
        edits.append(edited)
    place = partial(place_ids, maker.tokenizer)
    caption_NL = place([maker.encode(parquet.readable(caption)) for caption in captions])
    edited_TL = place([ids for group in edits for ids in group])
    columns = {
        words.STATUS: pa.array([get_phrase_status(row) for row in rows], pa.string()),
        words.PHRASES: pa.array(rows, pa.list_(PHRASE_TYPE)),
        parquet.FAULTS: pa.array(faults, pa.list_(pa.string())),
        parquet.TOKENS: parquet.to_fixed_lists(caption_NL),
        parquet.COUNTERFACTUALS: parquet.nest(edited_TL, [len(group) for group in edits]),
    }
    return parquet.add_columns(table, columns)


def get_phrase_status(phrases: list[dict[str, Any]]) -> str:
    """Return ok, or the reason why a caption with these phrases has no mean PAS. CONTENT does not count."""
    phrases = [phrase for phrase in phrases if phrase["target_class"] != words.CONTENT]
    if not phrases:
        return words.NO_PHRASE
    classes = {phrase["target_class"] for phrase in phrases if phrase["nonces"]}
    return (
        words.NO_VALID_NONCE
        if not classes
        else words.NO_SEEN_PHRASE
        if classes == {words.UNSEEN}
        else words.OK
    )
