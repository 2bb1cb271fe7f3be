"""The composition probe: what an encoder's embeddings make of edited, paraphrased and shuffled captions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from raycomp.core.alignment import normalise
from raycomp.core.probe import (
    NO_INTERVAL,
    bootstrap_ratio,
    pair_distance,
    pair_similarity,
    proxy_a_distance,
    shuffle_words,
    two_way_choice,
)
from raycomp.schema import CAPTION, NEGATIVES, OPERATIONS, UID

PARAPHRASE = "paraphrase"
ANY = "any"
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_NUM_DRAWS = 200

Encode = Callable[[list[str]], np.ndarray]


@dataclass(frozen=True)
class ProbeResult:
    """Two tables of plain rows; a value ``x`` has its 95 % interval, resampling uids, in x_low and x_high.

    A row of ``operations`` is one operation and number of calls, with ``num_uids`` and ``num_pairs``; first
    the paraphrases, the null that every other row is read against; last all operations of a number of calls
    together. Values: ``a_distance`` (also a_null_mean, a_null_low, a_null_high), ``distance`` =
    |g(T) - g(T~)|, ``relative`` = that over the paraphrases' of the same uids, ``text_drop`` = 1 - cos,
    ``image_drop`` = s(I, T) - s(I, T~), ``accuracy`` of choosing T, chance 0.5. NaN: not to be had.
    A row of ``permutation`` is a ``share`` of shuffled words and the mean ``cosine`` to the caption.
    """

    operations: list[dict[str, Any]]
    permutation: list[dict[str, Any]]
    num_uids: int
    num_paraphrased: int
    has_images: bool


@dataclass(frozen=True)
class _Pairs:
    """The pairs of one line of the table, as the numbers of their rows and of their edited texts."""

    op: str
    calls: int
    row_N: np.ndarray
    edit_N: np.ndarray


@dataclass(frozen=True)
class _Embeddings:
    """All that was embedded, of length 1: T texts, B rows, each row's uid, caption, paraphrase and image."""

    text_TD: np.ndarray
    uid_B: np.ndarray
    caption_B: np.ndarray
    paraphrase_B: np.ndarray
    """-1 where a row has none."""
    image_BD: np.ndarray | None


def probe_composition(
    encode: Encode,
    rows: Sequence[Mapping[str, Any]],
    image_embeddings: np.ndarray | None = None,
    seed: int = 0,
) -> ProbeResult:
    """Embed captions, paraphrases, negatives and shuffled captions once each, and measure.

    ``rows`` are rows of the negatives' table (uid, caption, negatives with text, op, calls), which may have a
    ``paraphrase`` more; one equal to its caption counts as none. ``encode`` takes texts to [texts, dims], of
    any length; ``image_embeddings`` has one row per row. The seed draws shuffles, folds and resamples.
    Raises ValueError on no rows and on embeddings of another number, rank or that are not finite.
    """
    if not rows:
        raise ValueError("rows: must be at least 1, are 0")
    shuffled = _shuffle(rows, np.random.default_rng([seed, 0]))
    index = _index_texts(rows, shuffled)
    text_TD = _unit(encode(list(index)), len(index), "texts")
    image_BD = None if image_embeddings is None else _unit(image_embeddings, len(rows), "images")
    if image_BD is not None and image_BD.shape[1] != text_TD.shape[1]:
        raise ValueError(f"images have {image_BD.shape[1]} dims and texts {text_TD.shape[1]}: must be equal")
    paraphrase_B = [index[text] if (text := _paraphrase(row)) else -1 for row in rows]
    embeddings = _Embeddings(
        text_TD,
        np.unique([str(row[UID]) for row in rows], return_inverse=True)[1],
        np.array([index[row[CAPTION]] for row in rows]),
        np.array(paraphrase_B),
        image_BD,
    )
    lines = _list_pairs(rows, index, embeddings)
    return ProbeResult(
        operations=[_measure(pairs, embeddings, np.random.default_rng([seed, 1])) for pairs in lines],
        permutation=_measure_shuffles(shuffled, index, embeddings, np.random.default_rng([seed, 2])),
        num_uids=len(np.unique(embeddings.uid_B)),
        num_paraphrased=len(np.unique(embeddings.uid_B[embeddings.paraphrase_B >= 0])),
        has_images=image_BD is not None,
    )


def _paraphrase(row: Mapping[str, Any]) -> str | None:
    text = row.get(PARAPHRASE)
    return text if text and text != row[CAPTION] else None


def _shuffle(rows: Sequence[Mapping[str, Any]], rng: np.random.Generator) -> dict[float, list[str | None]]:
    """Return each row's caption shuffled to each share; None where it has fewer than two words."""
    captions = [row[CAPTION] if len(row[CAPTION].split()) > 1 else None for row in rows]
    return {
        share: [None if text is None else shuffle_words(text, share, rng) for text in captions]
        for share in SHARES
    }


def _index_texts(
    rows: Sequence[Mapping[str, Any]], shuffled: dict[float, list[str | None]]
) -> dict[str, int]:
    """Number every text that is to be embedded, each once, in the order of its first occurrence."""
    texts: dict[str | None, None] = {}
    for row in rows:
        negatives = (negative["text"] for negative in row[NEGATIVES] or ())
        texts |= dict.fromkeys((row[CAPTION], _paraphrase(row), *negatives))
    for column in shuffled.values():
        texts |= dict.fromkeys(column)
    texts.pop(None, None)
    return {text: i for i, text in enumerate(texts)}


def _unit(embeddings: np.ndarray, num: int, name: str) -> np.ndarray:
    """Check and return embeddings as fp32 rows of length 1."""
    embeddings = np.asarray(embeddings)
    if embeddings.ndim != 2 or len(embeddings) != num:
        raise ValueError(f"embeddings of {num} {name}: must be [{num}, dims], are {embeddings.shape}")
    if not np.isfinite(embeddings).all():
        raise ValueError(f"embeddings of {name}: must be finite")
    return normalise(torch.tensor(embeddings)).numpy()


def _list_pairs(
    rows: Sequence[Mapping[str, Any]], index: dict[str, int], embeddings: _Embeddings
) -> list[_Pairs]:
    """Return the lines of the table: paraphrases, each (calls, operation), and each number of calls."""
    found: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for i, row in enumerate(rows):
        for negative in row[NEGATIVES] or ():
            pair = (i, index[negative["text"]])
            found.setdefault((negative["calls"], negative["op"]), []).append(pair)
            found.setdefault((negative["calls"], ANY), []).append(pair)
    row_N = np.flatnonzero(embeddings.paraphrase_B >= 0)
    lines = [_Pairs(PARAPHRASE, 0, row_N, embeddings.paraphrase_B[row_N])]
    for calls, op in sorted(found, key=_place):
        lines.append(_Pairs(op, calls, *np.array(found[calls, op]).T))
    return lines


def _place(key: tuple[int, str]) -> tuple[bool, int, list[int], str]:
    calls, op = key
    known = [OPERATIONS.index(part) if part in OPERATIONS else len(OPERATIONS) for part in op.split("+")]
    return op == ANY, calls, known, op


def _measure(pairs: _Pairs, embeddings: _Embeddings, rng: np.random.Generator) -> dict[str, Any]:
    """Return one line of the table."""
    uid_N, text_TD = embeddings.uid_B[pairs.row_N], embeddings.text_TD
    first_ND, second_ND = text_TD[embeddings.caption_B[pairs.row_N]], text_TD[pairs.edit_N]
    distance_N = pair_distance(first_ND, second_ND)
    paraphrase_N = embeddings.paraphrase_B[pairs.row_N]
    has_N = paraphrase_N >= 0
    other_M = pair_distance(first_ND[has_N], text_TD[paraphrase_N[has_N]])
    a = proxy_a_distance(first_ND, second_ND, uid_N, rng, _NUM_DRAWS)
    values = {
        "a_distance": a[:3],
        "distance": _mean(distance_N, uid_N, rng),
        "relative": bootstrap_ratio(distance_N[has_N], other_M, uid_N[has_N], rng, _NUM_DRAWS),
        "text_drop": _mean(1 - pair_similarity(first_ND, second_ND), uid_N, rng),
        "image_drop": NO_INTERVAL,
        "accuracy": NO_INTERVAL,
    }
    if embeddings.image_BD is not None:
        image_ND = embeddings.image_BD[pairs.row_N]
        drop_N = pair_similarity(image_ND, first_ND) - pair_similarity(image_ND, second_ND)
        values["image_drop"] = _mean(drop_N, uid_N, rng)
        values["accuracy"] = _mean(two_way_choice(image_ND, first_ND, second_ND), uid_N, rng)
    line = {"op": pairs.op, "calls": pairs.calls, "num_uids": len(np.unique(uid_N)), "num_pairs": len(uid_N)}
    for name, (value, low, high) in values.items():
        line |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return line | {"a_null_mean": a.null_mean, "a_null_low": a.null_low, "a_null_high": a.null_high}


def _mean(value_N: np.ndarray, uid_N: np.ndarray, rng: np.random.Generator) -> tuple[float, float, float]:
    return bootstrap_ratio(value_N, np.ones(len(value_N)), uid_N, rng, _NUM_DRAWS)


def _measure_shuffles(
    shuffled: dict[float, list[str | None]],
    index: dict[str, int],
    embeddings: _Embeddings,
    rng: np.random.Generator,
) -> list[dict[str, Any]]:
    """Return the permutation-sensitivity curve, one row per share."""
    curve = []
    for share, column in shuffled.items():
        row_N = np.array([i for i, text in enumerate(column) if text is not None], dtype=int)
        first_ND = embeddings.text_TD[embeddings.caption_B[row_N]]
        second_ND = embeddings.text_TD[[index[column[i]] for i in row_N]]
        value, low, high = _mean(pair_similarity(first_ND, second_ND), embeddings.uid_B[row_N], rng)
        curve.append(
            {"share": share, "num": len(row_N), "cosine": value, "cosine_low": low, "cosine_high": high}
        )
    return curve


def format_probe(result: ProbeResult) -> str:
    """Return the tables as text, with the sentences without which they mislead."""
    head = f"{'operation':<18}{'calls':>5}"
    lines = [
        f"{result.num_uids:,} uids, {result.num_paraphrased:,} with a paraphrase; in brackets 95 % intervals",
        f"{head}{'pairs':>8}{'A-distance':>19}{'its null':>12}{'|g(T)-g(T~)|':>22}{'over paraphrase':>20}",
        *(_format_distances(line) for line in result.operations),
        "",
        f"{head}{'1 - cos(g(T), g(T~))':>27}{'s(I,T) - s(I,T~)':>29}{'accuracy':>22}",
        *(_format_drops(line) for line in result.operations),
        "",
        f"{'words shuffled':<18}{'captions':>9}{'mean cosine to the caption':>30}",
        *(f"{row['share']:<18.0%}{row['num']:>9,}{_span(row, 'cosine', 30)}" for row in result.permutation),
        "",
        "A-distance compares the set of originals with that of edits. Where editing twice gives the caption",
        "back (SWAP) the two can have one distribution, and it is near 0 even for a perfect encoder: whether",
        "it sees the edit is said by the distance of pairs, over that of paraphrases, and by the accuracy.",
    ]
    if not result.has_images:
        lines.append("s(I,T) - s(I,T~) and accuracy need image embeddings; none were given.")
    return "\n".join(lines)


def _format_distances(line: dict[str, Any]) -> str:
    null = f"{_show(line['a_null_low'], 2)} {_show(line['a_null_high'], 2)}".replace("- -", "-")
    text = f"{line['op']:<18}{line['calls'] or '':>5}{line['num_pairs']:>8,}"
    text += f"{_span(line, 'a_distance', 19, 2)}{null:>12}"
    return f"{text}{_span(line, 'distance', 22)}{_span(line, 'relative', 20, 2)}"


def _format_drops(line: dict[str, Any]) -> str:
    text = f"{line['op']:<18}{line['calls'] or '':>5}{_span(line, 'text_drop', 27)}"
    return f"{text}{_span(line, 'image_drop', 29)}{_span(line, 'accuracy', 22)}"


def _span(line: dict[str, Any], name: str, width: int, digits: int = 3) -> str:
    """Return "value (low high)", right-aligned; without what there is not."""
    value, low, high = (_show(line[name + end], digits) for end in ("", "_low", "_high"))
    return f"{value if low == '-' else f'{value} ({low} {high})':>{width}}"


def _show(value: float, digits: int = 3) -> str:
    return "-" if np.isnan(value) else f"{round(value, digits) + 0.0:.{digits}f}"
