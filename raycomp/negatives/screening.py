"""Flag negatives that may be true of their photo: ``negatives.screen``.

The scorer says where the photo stands among photos of the corpus for the phrase that a REPLACE or an ADD
brings in, and the captions say how often it is mentioned. SWAPs and other relations are not screened: an
image-text model orders these pairs little better than by chance.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raycomp.core.screening import find_ranks, is_suspect
from raycomp.data.arrow import to_matrix
from raycomp.data.parquet import read_columns
from raycomp.language.context import Context
from raycomp.language.new_phrases import Phrase, count_captions, count_phrase, say_phrase
from raycomp.negatives.judges import set_fields
from raycomp.negatives.write import NEW_PHRASES
from raycomp.words import IMAGE_EMBEDDING, NEGATIVES, PHRASE_RANK, PHRASE_RATE, SUSPECT


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
