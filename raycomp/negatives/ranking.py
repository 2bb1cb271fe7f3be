"""Similarity of candidates to their caption by the scorer's text encoder; flags of those that may be
true.

The scorer says where the photo stands among photos of the corpus for the phrase that a REPLACE or an ADD
brings in, and the captions say how often it is mentioned. SWAPs and other relations are not screened: an
image-text model orders these pairs little better than by chance.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from raycomp.core.alignment import find_ranks, has_unit_length, is_suspect, pair_cosine
from raycomp.data.parquet import COUNTERFACTUALS, TOKENS, add_columns, read_columns, to_matrix
from raycomp.language.overlap import Context, Phrase, count_captions, count_phrase, say_phrase
from raycomp.models.architecture import load_tokens
from raycomp.models.device import Device
from raycomp.models.language_model import LanguageModel
from raycomp.negatives.config import SUGGEST, NegativesConfig
from raycomp.negatives.judges import judge_by_model, load_context, set_fields
from raycomp.negatives.write import ADD_SIMILARITY, ADDITIONS, NEW_PHRASES, SAME, SUGGESTION, drop, suggest
from raycomp.run.local import load_clip
from raycomp.words import IMAGE_EMBEDDING, LANGUAGE_MODEL, NEGATIVES, PHRASE_RANK, PHRASE_RATE, SUSPECT


class Screen:
    """Sets ``phrase_rank``, ``phrase_rate`` and ``suspect`` of negatives.

    ``embed`` returns the embeddings [K, D] of K texts.
    """

    def __init__(self, sample_uri: str, context: Context, times: float, embed: Callable[[list[str]], Tensor]):
        vectors = read_columns(sample_uri)[IMAGE_EMBEDDING].to_pylist()
        self.sample_SD = torch.tensor(vectors, dtype=torch.float32)
        self.context, self.num_captions = context, count_captions(context)
        self.times, self.embed = times, embed
        self.known: dict[Phrase, Tensor] = {}

    def __call__(self, table: pa.Table) -> pa.Table:
        """Read the column of new phrases, which is dropped, and the photos' embeddings."""
        phrases = [tuple(phrase) for row in table[NEW_PHRASES].to_pylist() for phrase in row]
        row_T = np.repeat(np.arange(len(table)), [len(row) for row in table[NEGATIVES].to_pylist()])
        at_P = np.array([place for place, phrase in enumerate(phrases) if phrase], np.int64)
        fields: dict[str, list] = {
            name: [None] * len(phrases) for name in (PHRASE_RANK, PHRASE_RATE, SUSPECT)
        }
        if len(at_P):
            image_ND = torch.from_numpy(to_matrix(table[IMAGE_EMBEDDING]).astype(np.float32))
            found = self._judge([phrases[place] for place in at_P], image_ND[row_T[at_P]])
            for name, values in zip(fields, found, strict=True):
                for place, value, rank in zip(at_P, values.tolist(), found[0].tolist(), strict=True):
                    fields[name][place] = value if rank == rank else None
        return set_fields(table.drop_columns([NEW_PHRASES]), fields)

    def _judge(self, phrases: list[Phrase], image_PD: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ranks, rates and flags of P phrases of a batch."""
        new = [phrase for phrase in dict.fromkeys(phrases) if phrase not in self.known]
        if new:
            self.known |= dict(zip(new, self.embed([say_phrase(phrase) for phrase in new]), strict=True))
        phrase_PD = torch.stack([self.known[phrase] for phrase in phrases])
        rank_P = find_ranks(image_PD, phrase_PD, self.sample_SD)
        counts = [count_phrase(phrase, self.context) for phrase in phrases]
        rate_P = (np.array(counts) / max(1, self.num_captions)).clip(max=1).astype(np.float32)
        return rank_P, rate_P, is_suspect(rank_P, rate_P, self.times)


class Rank:
    """One actor: load the models once, then add each candidate's similarity to its caption, and the gaps that
    language models give it."""

    def __init__(
        self,
        config: NegativesConfig,
        num_threads: int | None = None,
        screened_by: tuple[str, str] | None = None,
    ):
        """``screened_by``: the files of photos and of counts that negatives are screened by."""
        writing = config.negatives
        self.clip = load_clip(config.ranker, num_threads) if writing.rank else None
        self.device = self.clip.device if self.clip else Device(None, num_threads)
        self.screen = None
        if self.clip and screened_by:
            photos_uri, counts_uri = screened_by
            text, tokenize = self.clip.text, load_tokens(config.ranker)
            context = load_context(counts_uri)
            self.screen = Screen(photos_uri, context, writing.screen, lambda x: text.embed(tokenize(x))[0])
        place, folder = self.device.place, writing.judge_model
        self.suggests = self.judge = None
        if writing.engine == SUGGEST:
            self.suggests = LanguageModel(config.llm.model, "llm.model", place)
        if folder:
            is_same = self.suggests and folder == config.llm.model
            self.judge = self.suggests if is_same else LanguageModel(folder, "negatives.judge_model", place)

    def __call__(self, table: pa.Table) -> pa.Table:
        """See ``Screen``, ``rank``, ``suggest`` and ``judge_by_model``."""
        if self.screen:
            table = self.screen(table)
        if self.clip:
            text = self.clip.text
            # Candidates differ from their caption in length, so each text is encoded by itself.
            table = rank(table, lambda token_KL: text.embed(token_KL)[0])
        if self.suggests:
            table = suggest(table, self.suggests.compute_likelihoods)
        if self.judge and self.judge is self.suggests:
            return set_fields(table, {LANGUAGE_MODEL: pc.list_flatten(table[SUGGESTION]).to_pylist()})
        return judge_by_model(table, self.judge.compute_likelihoods) if self.judge else table


def rank(table: pa.Table, embed: Callable[[np.ndarray], Tensor]) -> pa.Table:
    """Set ``similarity`` = cos(g(caption), g(candidate)); for ADDs also the minimum cos(g(input), g(output)).

    If the rows hold their images' embeddings, also set ``image_drop``. Both are null if an embedding is not
    finite or not of length 1: such a candidate comes last, and such an ADD is outside every neighbourhood.
    Candidates with the tokens of their caption, such as those that differ behind the context, are dropped.
    N rows, K texts of all of them: the captions, then each row's candidates and inputs; T candidates.
    """
    texts = table[COUNTERFACTUALS].combine_chunks()
    lists = table[NEGATIVES].combine_chunks()
    count_N = lists.value_lengths().to_numpy(zero_copy_only=False)
    token_KN = np.concatenate([to_matrix(table[TOKENS]), to_matrix(texts.flatten())])
    text_KD = embed(token_KN)
    size_N = texts.value_lengths().to_numpy(zero_copy_only=False)
    first_N = len(table) + np.cumsum(size_N) - size_N
    row_T = np.repeat(np.arange(len(table)), count_N)
    at_T = np.arange(len(row_T)) + np.repeat(first_N - np.cumsum(count_N) + count_N, count_N)
    similarity_T = pair_cosine(text_KD[row_T], text_KD[at_T]).numpy()
    is_good_K = has_unit_length(text_KD).numpy()
    is_bad_T = ~(is_good_K[row_T] & is_good_K[at_T])
    fields = {"similarity": pa.array(similarity_T, mask=is_bad_T)}
    if IMAGE_EMBEDDING in table.column_names:
        image_ND = torch.from_numpy(to_matrix(table[IMAGE_EMBEDDING]).astype(np.float32))
        alignment_N = pair_cosine(image_ND, text_KD[: len(table)])
        drop_T = alignment_N[row_T] - pair_cosine(image_ND[row_T], text_KD[at_T])
        fields["image_drop"] = pa.array(drop_T.numpy(), mask=is_bad_T)
        table = table.drop_columns([IMAGE_EMBEDDING])
    table, columns = set_fields(table, fields), {}
    if ADDITIONS in table.column_names:
        least = _least_similarity(table[ADDITIONS].to_pylist(), first_N, text_KD)
        columns[ADD_SIMILARITY] = pa.array(least, pa.list_(pa.float32()))
        table = table.drop_columns([ADDITIONS])
    table = add_columns(table.drop_columns([TOKENS, COUNTERFACTUALS]), columns)
    is_same_T = (token_KN[at_T] == token_KN[row_T]).all(1)
    if not is_same_T.any():
        return table
    stays = [(~own).tolist() for own in np.split(is_same_T, np.cumsum(count_N)[:-1])]
    return drop(table, stays, lambda one: f"{one['op']}: {SAME}")


def _least_similarity(
    steps: Sequence[Sequence[Sequence[Sequence[int]]]], first_N: np.ndarray, text_KD: Tensor
) -> list[list[float | None]]:
    """Return for each row's candidates the minimum cos(g(input), g(output)) of its ADDs; None without one."""
    pairs = [
        [place - 1 + first if place else row for place in pair]
        for row, first in enumerate(first_N.tolist())
        for of_candidate in steps[row]
        for pair in of_candidate
    ]
    at_P2 = np.array(pairs, np.int64).reshape(-1, 2)
    first_PD, second_PD = text_KD[at_P2[:, 0]], text_KD[at_P2[:, 1]]
    is_good_P = has_unit_length(first_PD) & has_unit_length(second_PD)
    cosines = iter(pair_cosine(first_PD, second_PD).where(is_good_P, -torch.inf).tolist())
    return [
        [min((next(cosines) for _ in of_candidate), default=None) for of_candidate in of_row]
        for of_row in steps
    ]
