"""The stages of scoring, each a step from a table to the same rows with more columns.

On CPUs: pixels of one size and tokens; phrases, nonces and counterfactuals (Go et al., arXiv 2605.22651,
Eq. 2). Many processes do this on each machine. open_clip takes 5 s and 600 MB in each process, and torch 2 s,
so this file loads neither before a scorer does.

On scorers: align image and caption, then measure the drop of each counterfactual (Eqs. 3 to 5). Only the text
tower runs then: the image embedding is stored.
"""

import hashlib
import json
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.config import ParserConfig, ScorerConfig
from raycomp.core.alignment import aggregate_drops, has_unit_length, normalise, pair_cosine, pair_drop
from raycomp.core.selection import from_keys
from raycomp.curation.config import AttributeConfig, NonceConfig
from raycomp.curation.score import columns as own_scorers
from raycomp.curation.score.columns import OwnScorers, to_text
from raycomp.curation.select.filters import KEYS_MATCHED, REMOVED_CONTENT, blank_rows, load_removed
from raycomp.data import parquet
from raycomp.language.phrases import make_counterfactual
from raycomp.models.architecture import NonceMaker, ScorerSpec, load_tokens, place_ids
from raycomp.models.images import VIEW_SIDE, ImageFault, hash_view, measure_look, prepare_viewed
from raycomp.models.parser import MAX_CHARACTERS, Parser, load_languages, load_parser, name_language
from raycomp.models.resize import resize_picture
from raycomp.run.executor import RESIZED_BY
from raycomp.run.local import load_clip
from raycomp.schema import CAPTION_SCHEMA, PHRASE_TYPE, PICTURE_SCHEMA

if TYPE_CHECKING:
    import torch


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
    import torch

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


class Align:
    """One actor: load CLIP once, then add ``alignment`` and the image embedding to every table."""

    def __init__(
        self,
        config: ScorerConfig,
        spec: ScorerSpec,
        num_threads: int | None = None,
        scorers: Sequence[str] = (),
    ):
        self.clip = load_clip(config, num_threads)
        self.device = self.clip.device
        self.spec = spec
        self.embedding_dtype = np.dtype(config.embedding_dtype)
        self.own = OwnScorers(scorers)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Score the rows whose status is ok; the others get nulls.

        A row whose image or caption has an embedding that is not finite or not of length 1 gets the status
        bad_embedding. Raises UserError, naming the weights, if that holds for all of the first rows.
        The image tower receives rows with pixels, each image of a table once. Stored embeddings, of length 1,
        are used unchanged.
        ``alignment`` is s(I, T), a cosine in fp32, -1 to 1. ``shuffled_alignment`` is the score of a
        mismatched pair: the cosine with the caption of ``pair_strangers``, null if there is none. It is the
        only column that depends on the other rows, and it is written to no file. The user's scorers add
        their columns.
        """
        valid_N = np.array([status == words.OK for status in table[words.STATUS].to_pylist()], dtype=bool)
        image_BD = self._embed_images(table, valid_N)
        text_BD, _ = self.clip.text.embed(parquet.to_matrix(table[parquet.TOKENS])[valid_N])
        is_good_B = has_unit_length(image_BD) & has_unit_length(text_BD)
        if not is_good_B.all():
            image_BD, text_BD = image_BD[is_good_B], text_BD[is_good_B]
            was_valid_N, valid_N = valid_N, valid_N.copy()
            valid_N[was_valid_N] = is_good_B.numpy()
            is_bad = pa.array(was_valid_N & ~valid_N)
            statuses = pc.if_else(is_bad, words.BAD_EMBEDDING, table[words.STATUS])
            table = parquet.add_columns(table, {words.STATUS: statuses})
        captions = _take(table[words.CAPTION], valid_N)
        hashes = _take(table[words.IMAGE_SHA256], valid_N)  # null for stored embeddings
        images = [name or vector.numpy().tobytes() for name, vector in zip(hashes, image_BD, strict=True)]
        stranger_B = pair_strangers(images, captions)
        has_stranger_N = valid_N.copy()
        has_stranger_N[valid_N] = stranger_B >= 0
        shuffled_B = pair_cosine(image_BD, text_BD[stranger_B])[stranger_B >= 0]
        embedding_ND = np.zeros((len(valid_N), self.spec.embedding_dim), self.embedding_dtype)
        embedding_ND[valid_N] = image_BD.numpy()
        columns = {
            words.ALIGNMENT: _scatter(pair_cosine(image_BD, text_BD), valid_N),
            parquet.SHUFFLED_ALIGNMENT: _scatter(shuffled_B, has_stranger_N),
            words.IMAGE_EMBEDDING: parquet.to_fixed_lists(embedding_ND, valid_N),
        }
        if self.own.needs:
            arrays: dict[str, Any] = {own_scorers.CAPTIONS: captions}
            arrays[own_scorers.IMAGE_EMBEDDINGS] = image_BD.float().numpy()
            arrays[own_scorers.TEXT_EMBEDDINGS] = text_BD.float().numpy()
            if own_scorers.PIXELS in self.own.needs:
                arrays[own_scorers.PIXELS] = self._read_pixels(table)[valid_N]
            columns |= self.own(arrays, valid_N)
        spent = [name for name in (words.PIXELS, parquet.TOKENS) if name in table.column_names]
        return parquet.add_columns(table.drop_columns(spent), columns)

    def _read_pixels(self, table: pa.Table) -> np.ndarray:
        image = self.spec.image
        return parquet.to_matrix(table[words.PIXELS]).reshape(-1, image.height, image.width, 3)

    def _embed_images(self, table: pa.Table, valid_N: np.ndarray) -> "torch.Tensor":
        import torch

        if words.IMAGE_EMBEDDING in table.column_names:
            return torch.from_numpy(parquet.to_matrix(table[words.IMAGE_EMBEDDING])[valid_N])
        if not valid_N.any():
            return torch.empty(0, self.spec.embedding_dim)
        first_U, which_B = parquet.find_distinct(_take(table[words.IMAGE_SHA256], valid_N))
        return self.clip.embed_pixels(self._read_pixels(table), np.flatnonzero(valid_N)[first_U])[which_B]


def pair_strangers(images: Sequence[Hashable], captions: Sequence[str]) -> np.ndarray:
    """Return for each row the next row, cyclically, with another image and another caption.

    int64 (B,), -1 if there is none. Captions of one photo are often adjacent, and a photo with another of its
    own captions is a true pair.
    """
    size = len(images)
    found_B = np.full(size, -1)
    for i, (image, caption) in enumerate(zip(images, captions, strict=True)):
        after = (j % size for j in range(i + 1, i + size))
        found_B[i] = next((j for j in after if images[j] != image and captions[j] != caption), -1)
    return found_B


def _take(column: pa.ChunkedArray, valid_N: np.ndarray) -> list[Any]:
    return column.filter(pa.array(valid_N)).to_pylist()


def _scatter(value_B: "torch.Tensor", valid_N: np.ndarray) -> pa.Array:
    """Return values at the valid rows, null elsewhere."""
    value_N = np.zeros(len(valid_N), np.float32)
    value_N[valid_N] = value_B.numpy()
    return pa.array(value_N, mask=~valid_N)


class Attribute:
    """One actor: load the text tower once, then fill in drops, displacements and mean PAS."""

    def __init__(self, config: ScorerConfig, num_threads: int | None = None):
        self.clip = load_clip(config, num_threads)
        self.device = self.clip.device

    def __call__(self, table: pa.Table) -> pa.Table:
        """Take parsed rows. ``drop`` = s(I, T) - s(I, T~), where s(I, T) is the stored alignment (Eq. 3).

        A nonce is invalid if its counterfactual's embedding is not finite or not of length 1. Raises
        UserError, naming the weights, if all of the first embeddings are invalid.
        Letters: N rows; P phrases and T counterfactuals of all rows, concatenated row by row.
        """
        import torch

        others = table[parquet.COUNTERFACTUALS].combine_chunks()
        count_N = others.value_lengths().to_numpy(zero_copy_only=False)
        caption_ND, text_TD = self.clip.text.embed(
            parquet.to_matrix(table[parquet.TOKENS]), parquet.to_matrix(others.flatten()), count_N
        )
        image_ND = torch.from_numpy(parquet.to_matrix(table[words.IMAGE_EMBEDDING]).astype(np.float32))
        row_T = np.repeat(np.arange(len(table)), count_N)
        is_good_T = has_unit_length(text_TD) & has_unit_length(caption_ND)[row_T]
        if not is_good_T.all():
            table = _drop_nonces(table, is_good_T.tolist())
            text_TD, row_T = text_TD[is_good_T], row_T[is_good_T.numpy()]
        alignment_N = table[words.ALIGNMENT].to_numpy()
        drop_T = pair_drop(alignment_N[row_T], pair_cosine(image_ND[row_T], text_TD).numpy())
        displacement_T = 1 - pair_cosine(caption_ND[row_T], text_TD).numpy()
        columns = _fill(table[words.PHRASES].combine_chunks(), drop_T, displacement_T)
        return parquet.add_columns(table.drop_columns([parquet.TOKENS, parquet.COUNTERFACTUALS]), columns)


def _drop_nonces(table: pa.Table, is_good_T: list[bool]) -> pa.Table:
    """Return the rows without the nonces of bad counterfactuals, as ``parse`` leaves invalid ones."""
    rows, faults = table[words.PHRASES].to_pylist(), table[parquet.FAULTS].to_pylist()
    is_good = iter(is_good_T)
    for phrases, reasons in zip(rows, faults, strict=True):
        for phrase in phrases:
            made = phrase["nonces"]
            phrase["nonces"] = [nonce for nonce in made if next(is_good)]
            lost = bool(made) and not phrase["nonces"] and phrase["target_class"] != words.CONTENT
            reasons += [words.BAD_EMBEDDING] * lost
    columns = {
        words.STATUS: pa.array(map(get_phrase_status, rows), pa.string()),
        words.PHRASES: pa.array(rows, pa.list_(PHRASE_TYPE)),
        parquet.FAULTS: pa.array(faults, pa.list_(pa.string())),
    }
    return parquet.add_columns(table, columns)


def _fill(phrases: pa.ListArray, drop_T: np.ndarray, displacement_T: np.ndarray) -> dict[str, pa.Array]:
    """Return the phrases with drops and displacements, those of class CONTENT separately, and mean PAS.

    The mean (Eq. 5, mu) is over the phrases whose target a picture can show. It does not depend on
    ``attribute.targets``, which takes effect at selection.
    """
    flat = dict(zip(PHRASE_TYPE.names, phrases.flatten().flatten(), strict=True))
    offset_T = _offsets(flat["nonces"])
    drop_P = aggregate_drops(drop_T, offset_T, "mean")
    displacement_P = aggregate_drops(displacement_T, offset_T, "mean")
    flat["drops"] = pa.ListArray.from_arrays(pa.array(offset_T), pa.array(drop_T))
    flat["drop"] = pa.array(drop_P, mask=np.isnan(drop_P))
    flat["displacement"] = pa.array(displacement_P, mask=np.isnan(displacement_P))
    filled = pa.StructArray.from_arrays(list(flat.values()), fields=list(PHRASE_TYPE))
    offset_P = _offsets(phrases)
    shown_P = pc.equal(flat["target_class"], words.HEAD).to_numpy(zero_copy_only=False)
    mean_N = aggregate_drops(np.where(shown_P, drop_P, np.float32(np.nan)), offset_P, "mean")
    content_P = pc.equal(flat["target_class"], words.CONTENT).to_numpy(zero_copy_only=False)
    return {
        words.PHRASES: _keep(filled, offset_P, ~content_P),
        words.CONTENT_WORDS: _keep(filled, offset_P, content_P),
        words.MEAN_PAS: pa.array(mean_N, mask=np.isnan(mean_N)),
    }


def _keep(filled: pa.StructArray, offset_E: np.ndarray, keep_P: np.ndarray) -> pa.ListArray:
    """Return the lists that the offsets mark, reduced to the selected phrases."""
    before_P = np.concatenate([[0], np.cumsum(keep_P)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(before_P[offset_E]), filled.filter(pa.array(keep_P)))


def _offsets(lists: pa.ListArray) -> np.ndarray:
    sizes = lists.value_lengths().to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
