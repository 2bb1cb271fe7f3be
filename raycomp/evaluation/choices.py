"""Benchmarks of choices: is the image closer to its true captions than to its false ones?

M pictures, T texts, N rows that have a picture, K captions of them all, D embedding dims.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raycomp.data.paths import ShardPath
from raycomp.evaluation.benchmarks.choice import Choice
from raycomp.evaluation.evaluation import Picture, Pictures, Statuses, Texts
from raycomp.schema import example_schema
from raycomp.words import AMBIGUOUS_IMAGE, BAD_EMBEDDING, IMAGE_CONTROLS, NO_IMAGE, OK, STATUS

# Rows of two matrices whose cosines are computed at once.
_BLOCK = 65_536


@dataclass(frozen=True)
class ChoiceEvaluation:
    """A benchmark's rows, and the places of their images."""

    name: str
    choices: Sequence[Choice]
    uris: Mapping[str, str]
    """Image uri by the name of a choice's image, for the images that were found."""
    score_texts: Callable[[Sequence[str]], Mapping[str, np.ndarray]]
    """Scores of T texts by the text-only baselines: by name, an array (T,)."""
    seed: int = 0
    """Seed of the draw of another image for each row, for the shuffled-image baseline."""
    shards: Sequence[ShardPath] = ()
    ambiguous: Collection[str] = ()
    """Image names that match several files."""

    @property
    def pictures(self) -> list[Picture]:
        named = ((self.uris.get(choice.image), choice.box) for choice in self.choices)
        return [Picture(uri, box) for uri, box in named if uri is not None]

    def list_texts(self, pictures: Pictures) -> list[str]:
        """Return the captions of the rows that have a picture."""
        judged = zip(self.choices, self._list_statuses(pictures), strict=True)
        return [text for choice, status in judged if status == OK for text in _list_captions(choice)]

    def _list_statuses(self, pictures: Pictures, bad: Collection[str] = ()) -> list[str]:
        """Return the status of every row; one with a ``bad`` text has the status bad_embedding."""
        statuses = []
        for choice in self.choices:
            uri = self.uris.get(choice.image)
            if uri is None:
                status = AMBIGUOUS_IMAGE if choice.image in self.ambiguous else NO_IMAGE
            else:
                status = pictures.status_M[pictures.place[Picture(uri, choice.box)]]
                if status == OK and any(text in bad for text in _list_captions(choice)):
                    status = BAD_EMBEDDING
            statuses.append(status)
        return statuses

    def find_statuses(self, pictures: Pictures) -> dict[str, Statuses]:
        """Return the status of every image; of one that is used in several boxes, the first fault."""
        found: dict[str, str] = {}
        for choice, status in zip(self.choices, self._list_statuses(pictures), strict=True):
            if found.get(choice.image, OK) == OK:
                found[choice.image] = status
        return {self.name: list(found.items())}

    def grade(self, pictures: Pictures, texts: Texts) -> pa.Table:
        """Return EXAMPLE_SCHEMA's rows in the benchmark's order, with the scores of the baselines.

        With a single image there are no baselines that use another image.
        """
        pictures = pictures.asked
        statuses = self._list_statuses(pictures, texts.bad)
        is_ok = [status == OK for status in statuses]
        rows = [choice for choice, has in zip(self.choices, is_ok, strict=True) if has]
        place_N = np.array([pictures.place[Picture(self.uris[row.image], row.box)] for row in rows], int)
        row_K = np.repeat(np.arange(len(rows)), [len(_list_captions(choice)) for choice in rows])
        text_K = np.array([texts.place[text] for choice in rows for text in _list_captions(choice)], int)
        score_K = {"": _compute_cosines(pictures.image_MD, place_N[row_K], texts.text_TD, text_K)}
        own, own_K = np.unique(text_K, return_inverse=True)
        names = np.array(list(texts.place), object)[own].tolist()
        text_only = self.score_texts(names) if names else {}
        score_K |= {name: score_T[own_K] for name, score_T in text_only.items()}
        for name, image_ND in self._show_others(rows, pictures.image_MD[place_N]).items():
            score_K[name] = _compute_cosines(image_ND, row_K, texts.text_TD, text_K)
        controls = [name for name in score_K if name]
        columns: dict[str, list] = {
            name: [getattr(choice, name) for choice in self.choices] for name in Choice._fields
        }
        columns[STATUS] = statuses
        for name in ("", *controls):
            sides = _split(score_K[name], rows, is_ok)
            columns |= {f"{name}_{side}s" if name else f"{side}_scores": sides[side] for side in sides}
        columns["text_scores"] = _nest(list(_compare_texts(rows, texts)), is_ok)
        schema = example_schema(controls)
        return pa.table({field.name: pa.array(columns[field.name], field.type) for field in schema}, schema)

    def _show_others(self, rows: Sequence[Choice], image_ND: np.ndarray) -> dict[str, np.ndarray]:
        """Return each row's embedding of another image of the benchmark, and the mean of all images."""
        import torch

        from raycomp.core.alignment import normalise

        names, first_U, which_N = np.unique(
            [choice.image for choice in rows], return_index=True, return_inverse=True
        )
        if len(names) < 2:
            return {}
        rng = np.random.default_rng(self.seed)
        other_N = (which_N + rng.integers(1, len(names), len(rows))) % len(names)
        mean_1D = normalise(torch.from_numpy(image_ND[first_U].mean(axis=0, keepdims=True))).numpy()
        shown = image_ND[first_U[other_N]], np.repeat(mean_1D, len(rows), axis=0)
        return dict(zip(IMAGE_CONTROLS, shown, strict=True))


def _list_captions(choice: Choice) -> tuple[str, ...]:
    return choice.positives + choice.negatives


def _compute_cosines(
    first_MD: np.ndarray, first_K: np.ndarray, second_TD: np.ndarray, second_K: np.ndarray
) -> np.ndarray:
    """Return the cosines of K pairs of rows, fp32 (K,)."""
    import torch

    from raycomp.core.alignment import pair_cosine

    parts = [np.zeros(0, np.float32)]
    for start in range(0, len(first_K), _BLOCK):
        some = slice(start, start + _BLOCK)
        pair = (torch.from_numpy(first_MD[first_K[some]]), torch.from_numpy(second_TD[second_K[some]]))
        parts.append(pair_cosine(*pair).numpy())
    return np.concatenate(parts)


def _compare_texts(rows: Sequence[Choice], texts: Texts) -> Iterator[list[float]]:
    """Yield the cosines of all pairs of a row's captions where several are true; else an empty list."""
    for choice in rows:
        if len(choice.positives) < 2:
            yield []
            continue
        text_CD = texts.take(_list_captions(choice))
        first, second = np.triu_indices(len(text_CD), 1)
        yield _compute_cosines(text_CD, first, text_CD, second).tolist()


def _split(
    score_K: np.ndarray, rows: Sequence[Choice], is_ok: Sequence[bool]
) -> dict[str, list[list[float]]]:
    """Return the scores of each row's positives and negatives, empty for a row that has no picture."""
    ends = np.cumsum([0, *(len(_list_captions(choice)) for choice in rows)])
    scores = score_K.tolist()
    sides: dict[str, list[list[float]]] = {"positive": [], "negative": []}
    for choice, start, end in zip(rows, ends, ends[1:], strict=False):
        middle = start + len(choice.positives)
        sides["positive"].append(scores[start:middle])
        sides["negative"].append(scores[middle:end])
    return {side: _nest(found, is_ok) for side, found in sides.items()}


def _nest(found: list[list[float]], is_ok: Sequence[bool]) -> list[list[float]]:
    """Return the lists of the rows that have them, and empty lists for the others."""
    left = iter(found)
    return [next(left) if has else [] for has in is_ok]
