"""The composition probe: embeddings of edited, paraphrased and shuffled captions by an encoder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from raycomp.config import ScorerConfig, from_dict
from raycomp.core import probe as core
from raycomp.curation.config import read_config
from raycomp.data import runs
from raycomp.data.files import Folder, absolute_uri
from raycomp.data.parquet import OTHERS, read_columns, to_matrix
from raycomp.evaluation.benchmarks.choice import Choice
from raycomp.language.concepts import list_readings, swap_conjuncts
from raycomp.models.architecture import fingerprint_scorer
from raycomp.models.parser import Parser, load_lexicon, load_parser
from raycomp.negatives import captions
from raycomp.negatives.config import NegativesConfig
from raycomp.probe.config import ProbeConfig
from raycomp.table import Column, Columns, Numeral, Table, number, take_estimate, write_cell
from raycomp.words import CAPTION, IMAGE_EMBEDDING, IMAGE_SHA256, NEGATIVES, NO_CAPTION, OPERATIONS, UID

PARAPHRASE = "paraphrase"
OTHER = "other caption"
ANY = "any"
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)

Encode = Callable[[list[str]], np.ndarray]


@dataclass(frozen=True)
class EditedPairs:
    """The pairs of one line of the table, as the numbers of their rows and of their edited texts."""

    op: str
    calls: int
    row_N: np.ndarray
    edit_N: np.ndarray


@dataclass(frozen=True)
class Embeddings:
    """All embeddings, of length 1: T texts, B rows, each row's uid, texts and image."""

    text_TD: np.ndarray
    same_T: np.ndarray
    """One number for all texts that differ in white space or case alone."""
    uid_B: np.ndarray
    caption_B: np.ndarray
    paraphrase_B: np.ndarray
    """-1 where a row has none, as in ``other_B``."""
    other_B: np.ndarray
    image_BD: np.ndarray | None


def embed(
    encode: Encode,
    rows: Sequence[Mapping[str, Any]],
    index: dict[str, int],
    image_embeddings: np.ndarray | None,
) -> Embeddings:
    """Embed the texts of ``index``, in its order; ValueError on embeddings of different sizes."""
    text_TD = _unit(encode(list(index)), len(index), "texts")
    image_BD = None if image_embeddings is None else _unit(image_embeddings, len(rows), "images")
    if image_BD is not None and image_BD.shape[1] != text_TD.shape[1]:
        raise ValueError(f"images have {image_BD.shape[1]} dims and texts {text_TD.shape[1]}: must be equal")
    paraphrase_B, other_B = (
        np.array([index[text] if (text := _take(row, name)) else -1 for row in rows])
        for name in (PARAPHRASE, OTHER)
    )
    return Embeddings(
        text_TD,
        np.unique([" ".join(text.lower().split()) for text in index], return_inverse=True)[1],
        np.unique([str(row[UID]) for row in rows], return_inverse=True)[1],
        np.array([index[row[CAPTION]] for row in rows]),
        paraphrase_B,
        other_B,
        image_BD,
    )


def _take(row: Mapping[str, Any], name: str) -> str | None:
    text = row.get(name)
    return text if text and text != row[CAPTION] else None


def shuffle_captions(
    rows: Sequence[Mapping[str, Any]], rng: np.random.Generator
) -> dict[float, list[str | None]]:
    """Return each row's caption shuffled to each share; None where it has fewer than two words."""
    texts = [row[CAPTION] if len(row[CAPTION].split()) > 1 else None for row in rows]
    return {
        share: [None if text is None else core.shuffle_words(text, share, rng) for text in texts]
        for share in SHARES
    }


def index_texts(rows: Sequence[Mapping[str, Any]], shuffled: dict[float, list[str | None]]) -> dict[str, int]:
    """Number every text to embed, each once, in the order of its first occurrence."""
    texts: dict[str | None, None] = {}
    for row in rows:
        negatives = (negative["text"] for negative in row[NEGATIVES] or ())
        texts |= dict.fromkeys((row[CAPTION], _take(row, PARAPHRASE), _take(row, OTHER), *negatives))
    for column in shuffled.values():
        texts |= dict.fromkeys(column)
    return {text: i for i, text in enumerate(text for text in texts if text is not None)}


def _unit(embeddings: np.ndarray, num: int, name: str) -> np.ndarray:
    """Check and return embeddings as fp32 rows of length 1."""
    import torch

    from raycomp.core.alignment import normalise

    embeddings = np.asarray(embeddings)
    if embeddings.ndim != 2 or len(embeddings) != num:
        raise ValueError(f"embeddings of {num} {name}: must be [{num}, dims], are {embeddings.shape}")
    if not np.isfinite(embeddings).all():
        raise ValueError(f"embeddings of {name}: must be finite")
    return normalise(torch.tensor(embeddings)).numpy()


def list_pairs(
    rows: Sequence[Mapping[str, Any]], index: dict[str, int], embeddings: Embeddings
) -> list[EditedPairs]:
    """Return the lines of the table: the two baselines, each (calls, operation), and each number of calls."""
    found: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for i, row in enumerate(rows):
        for negative in row[NEGATIVES] or ():
            pair = (i, index[negative["text"]])
            found.setdefault((negative["calls"], negative["op"]), []).append(pair)
            found.setdefault((negative["calls"], ANY), []).append(pair)
    lines = []
    for name, text_B in ((PARAPHRASE, embeddings.paraphrase_B), (OTHER, embeddings.other_B)):
        row_N = np.flatnonzero(text_B >= 0)
        lines.append(EditedPairs(name, 0, row_N, text_B[row_N]))

    def place(key: tuple[int, str]) -> tuple[bool, int, list[int], str]:
        calls, op = key
        known = [OPERATIONS.index(part) if part in OPERATIONS else len(OPERATIONS) for part in op.split("+")]
        return op == ANY, calls, known, op

    for calls, op in sorted(found, key=place):
        lines.append(EditedPairs(op, calls, *np.array(found[calls, op]).T))
    return lines


# A row of fewer pairs does not lower the common number of pairs of all A-distances, where others have more.
FEWEST_PAIRS = 100
MOST_PAIRS = 2000
_CURVE = {"a_eighth": "N/8", "a_quarter": "N/4", "a_half": "N/2"}
"""The learning curve of the A-distance: its values and their columns."""
_NUM_DRAWS = 200
_NUM_REFITS = 50


@dataclass(frozen=True)
class ProbeResult:
    """Two tables of plain rows; a value ``x`` has its 95 % interval, resampling uids, in x_low and x_high.

    A row of ``operations`` is one operation and number of calls, with ``num_uids`` and ``num_pairs``. First
    come two baselines for every other row: paraphrases, with the same meaning, and other captions of the
    same image, with other true statements; last all operations of a number of calls together. Values:

    ``distance`` = |g(T) - g(T~)|; ``relative`` and ``over_other`` = that over the paraphrases' and the other
    captions' distance, for rows that have one; ``farther`` = share of pairs whose edit is farther from the
    caption than its paraphrase, ties half; ``text_drop`` = 1 - cos, ``image_drop`` = s(I, T) - s(I, T~),
    ``accuracy`` of choosing T, chance 0.5. ``a_distance``, a lower bound of the A-distance, uses one drawn
    pair of each of ``num_compared`` captions, the same number in every row, whatever their uids: no caption
    and no edit is in it twice, ignoring white space and case. With it come a_null_mean, a_null_low,
    a_null_high and its learning curve: ``a_eighth``, ``a_quarter`` and ``a_half`` of the pairs. NaN: not
    available.
    A row of ``permutation`` is a ``share`` of shuffled words and the mean ``cosine`` to the caption.
    """

    operations: list[dict[str, Any]]
    permutation: list[dict[str, Any]]
    num_uids: int
    num_paraphrased: int
    num_with_other: int
    num_compared: int
    has_images: bool


def probe_composition(
    encode: Encode,
    rows: Sequence[Mapping[str, Any]],
    image_embeddings: np.ndarray | None = None,
    seed: int = 0,
    num_compared: int | None = None,
) -> ProbeResult:
    """Embed captions, paraphrases, other captions, negatives and shuffled captions once each, and measure.

    ``rows`` are rows of the negatives' table (uid, caption, negatives with text, op, calls), optionally with
    a ``paraphrase`` and an ``other caption``; one equal to its caption counts as none. ``encode`` maps texts
    to [texts, dims], of any length; ``image_embeddings`` has one row per row. The seed draws shuffles, pairs,
    folds and resamples, the same for every encoder. A-distances use ``num_compared`` captions; None = the
    size of the smallest line of one call that has ``FEWEST_PAIRS`` or more, else of the smallest of all lines
    that have them, else of the smallest line; at most ``MOST_PAIRS``. Raises ValueError on no rows and on
    embeddings of another number or rank, or that are not finite.
    """
    if not rows:
        raise ValueError("rows: must be at least 1, are 0")
    shuffled = shuffle_captions(rows, np.random.default_rng([seed, 0]))
    index = index_texts(rows, shuffled)
    embeddings = embed(encode, rows, index, image_embeddings)
    lines = list_pairs(rows, index, embeddings)
    same_B = embeddings.same_T[embeddings.caption_B]
    drawn = [  # the pairs of each line that its A-distance may use, in drawn order
        core.draw_pairs(same_B[one.row_N], embeddings.same_T[one.edit_N], np.random.default_rng([seed, 3]))
        for one in lines
    ]
    if num_compared is None:
        num_pairs = [len(rows_M) for rows_M in drawn]
        many = [(one.calls, num) for one, num in zip(lines, num_pairs, strict=True) if num >= FEWEST_PAIRS]
        enough = (
            [num for calls, num in many if calls == 1]
            or [num for _, num in many]
            or [num for num in num_pairs if num >= core.LEAST_PAIRS]
        )
        num_compared = min([*enough, MOST_PAIRS]) if enough else 0
    return ProbeResult(
        operations=[
            _measure(pairs, embeddings, seed)
            | _measure_sets(pairs, rows_M, embeddings, num_compared, np.random.default_rng([seed, 4]))
            for pairs, rows_M in zip(lines, drawn, strict=True)
        ],
        permutation=_measure_shuffles(shuffled, index, embeddings, np.random.default_rng([seed, 2])),
        num_uids=len(np.unique(embeddings.uid_B)),
        num_paraphrased=len(np.unique(embeddings.uid_B[lines[0].row_N])),
        num_with_other=len(np.unique(embeddings.uid_B[lines[1].row_N])),
        num_compared=num_compared,
        has_images=embeddings.image_BD is not None,
    )


def _measure(pairs: EditedPairs, embeddings: Embeddings, seed: int) -> dict[str, Any]:
    """Return one line of the table, without values that compare sets. All values share resamples."""
    uid_N, text_TD = embeddings.uid_B[pairs.row_N], embeddings.text_TD
    first_ND, second_ND = text_TD[embeddings.caption_B[pairs.row_N]], text_TD[pairs.edit_N]
    distance_N = core.pair_distance(first_ND, second_ND)
    near_N, has_N = _distance_to(embeddings.paraphrase_B, pairs, embeddings)
    other_N, has_other_N = _distance_to(embeddings.other_B, pairs, embeddings)
    fresh = partial(np.random.default_rng, [seed, 1])
    near_M, other_M = near_N[has_N], other_N[has_other_N]
    values = {
        "distance": _mean(distance_N, uid_N, fresh()),
        "relative": core.bootstrap_ratio(distance_N[has_N], near_M, uid_N[has_N], fresh(), _NUM_DRAWS),
        "farther": _mean(core.count_wins(distance_N[has_N] - near_M), uid_N[has_N], fresh()),
        "over_other": core.bootstrap_ratio(
            distance_N[has_other_N], other_M, uid_N[has_other_N], fresh(), _NUM_DRAWS
        ),
        "text_drop": _mean(1 - core.pair_similarity(first_ND, second_ND), uid_N, fresh()),
        "image_drop": core.NO_INTERVAL,
        "accuracy": core.NO_INTERVAL,
    }
    if embeddings.image_BD is not None:
        image_ND = embeddings.image_BD[pairs.row_N]
        drop_N = core.pair_similarity(image_ND, first_ND) - core.pair_similarity(image_ND, second_ND)
        values["image_drop"] = _mean(drop_N, uid_N, fresh())
        values["accuracy"] = _mean(core.two_way_choice(image_ND, first_ND, second_ND), uid_N, fresh())
    line = {"op": pairs.op, "calls": pairs.calls, "num_uids": len(np.unique(uid_N)), "num_pairs": len(uid_N)}
    for name, value in values.items():
        line |= value.under(name)
    return line


def _distance_to(
    text_B: np.ndarray, pairs: EditedPairs, embeddings: Embeddings
) -> tuple[np.ndarray, np.ndarray]:
    """Return each pair's distance from the caption to a text of its row, and whether the row has one."""
    text_N = text_B[pairs.row_N]
    caption_ND = embeddings.text_TD[embeddings.caption_B[pairs.row_N]]
    return core.pair_distance(caption_ND, embeddings.text_TD[text_N]), text_N >= 0


def _measure_sets(
    pairs: EditedPairs,
    rows_M: np.ndarray,
    embeddings: Embeddings,
    num_compared: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Return the A-distance of one line, from the first ``num_compared`` of its drawn pairs."""
    a = core.NO_DISTANCE
    if core.LEAST_PAIRS <= num_compared <= len(rows_M):
        drawn = rows_M[:num_compared]
        first_MD = embeddings.text_TD[embeddings.caption_B[pairs.row_N[drawn]]]
        second_MD = embeddings.text_TD[pairs.edit_N[drawn]]
        a = core.bound_a_distance(first_MD, second_MD, rng, _NUM_REFITS, _NUM_DRAWS)
    null = {"a_null_mean": a.null_mean, "a_null_low": a.null_low, "a_null_high": a.null_high}
    curve = dict(zip(_CURVE, a.curve, strict=True))
    return core.Interval(a.value, a.low, a.high).under("a_distance") | null | curve


def _mean(value_N: np.ndarray, uid_N: np.ndarray, rng: np.random.Generator) -> core.Interval:
    return core.bootstrap_ratio(value_N, np.ones(len(value_N)), uid_N, rng, _NUM_DRAWS)


def _measure_shuffles(
    shuffled: dict[float, list[str | None]],
    index: dict[str, int],
    embeddings: Embeddings,
    rng: np.random.Generator,
) -> list[dict[str, Any]]:
    """Return the permutation-sensitivity curve, one row per share."""
    curve = []
    for share, column in shuffled.items():
        row_N = np.array([i for i, text in enumerate(column) if text is not None], dtype=int)
        first_ND = embeddings.text_TD[embeddings.caption_B[row_N]]
        second_ND = embeddings.text_TD[[index[column[i]] for i in row_N]]
        cosine = _mean(core.pair_similarity(first_ND, second_ND), embeddings.uid_B[row_N], rng)
        curve.append({"share": share, "num": len(row_N), **cosine.under("cosine")})
    return curve


_SETS = (
    "The A-distance compares the set of originals with the set of edits. The values are 2 (1 - 2 err) for "
    "the held-out error err of a linear classifier, a lower bound on average; values below 0 count as 0. "
    "Where the curve still rises towards N the bound is loose; do not compare values of different N. The "
    "interval covers the expected value at this N: only its lower end bounds the A-distance. Two SWAPs "
    "restore the caption, so both sets can have one distribution, and the A-distance is near 0 even for a "
    "perfect encoder. The distance of pairs relative to paraphrases, and the accuracy, show whether the "
    "encoder distinguishes the edit."
)
_NO_IMAGES = "s(I,T) - s(I,T~) and accuracy need image embeddings; images is not set."
_FIRST = ("operation", "calls")
_RATIOS = (
    "How far an edit moves the text embedding: |g(T)-g(T~)|; divided by the distance to the caption's "
    "paraphrase; share of the pairs with a paraphrase whose edit is farther than it; divided by the distance "
    "to another caption of the image. 95 % intervals over samples."
)


def report_probe(result: ProbeResult, notes: Sequence[str] = ()) -> list[Table | str]:
    """Return the tables. ``notes`` are sentences below them."""
    lead = (
        f"{result.num_uids:,} samples, {result.num_paraphrased:,} with a paraphrase, "
        f"{result.num_with_other:,} with another caption of the image."
    )
    ratios = {"relative": "over paraphrase", "farther": "farther than it", "over_other": "over other"}
    over = (Column(name, digits=2) for name in ratios.values())
    columns: Columns = (*_FIRST, "pairs", Column("|g(T)-g(T~)|", digits=3), *over)
    distances = [
        (*_name(line), line["num_pairs"], *(take_estimate(line, name) for name in ("distance", *ratios)))
        for line in result.operations
    ]
    measures = {"text_drop": "1 - cos(g(T), g(T~))", "image_drop": "s(I,T) - s(I,T~)", "accuracy": "accuracy"}
    heads: Columns = (*_FIRST, *(Column(name, digits=3) for name in measures.values()))
    drops = [(*_name(line), *(take_estimate(line, name) for name in measures)) for line in result.operations]
    cosine = Column("mean cosine to the caption", digits=3)
    curve = [(100 * row["share"], row["num"], take_estimate(row, "cosine")) for row in result.permutation]
    return [
        lead,
        Table("Distances", columns, distances, _RATIOS),
        Table("Cosines", heads, drops),
        _report_sets(result),
        Table("Shuffled words", (Column("words shuffled", "%", 0), "captions", cosine), curve),
        *([] if result.has_images else [_NO_IMAGES]),
        *notes,
    ]


def say_probe(result: ProbeResult) -> str:
    """Return a sentence with the distance of all edits over that of paraphrases; "" if it is not known."""
    line = result.operations[-1] if result.operations else {}
    ratio = take_estimate(line, "relative") if line else None
    if ratio is None or ratio.value != ratio.value:
        return ""
    return f"Edits move the text embedding {write_cell(ratio, 2)} times as far as paraphrases ({line['op']})"


def _report_sets(result: ProbeResult) -> Table:
    heads = (Column(name, digits=2) for name in (*_CURVE.values(), "N"))
    columns: Columns = (*_FIRST, *heads, "labels at random")
    rows = []
    for line in result.operations:
        low, high = (line[f"a_null_{end}"] for end in ("low", "high"))
        null = Numeral(f"{number(low, 2)} to {number(high, 2)}") if low == low else None
        rows.append((*_name(line), *(line[name] for name in _CURVE), take_estimate(line, "a_distance"), null))
    note = (
        f"A lower bound from one pair of each of N = {result.num_compared:,} captions (- where a row has "
        f"fewer). Labels at random: the middle 95 % of values if original and edit are swapped at random. "
        f"{_SETS}"
    )
    if not result.num_compared:
        return Table("A-distance", columns, [], "Not measured: too few captions have an edit.")
    return Table("A-distance", columns, rows, note)


def _name(line: dict[str, Any]) -> tuple[str, int | None]:
    return line["op"], line["calls"] or None


Row = dict[str, Any]
_NOT_DRAWN = "not_drawn"


@dataclass(frozen=True)
class Material:
    """Rows to probe ``scorer`` with, their images' embeddings by it if available, and notes on them."""

    rows: list[Row]
    images: np.ndarray | None
    scorer: ScorerConfig
    notes: tuple[str, ...]
    num_read: int
    left_out: dict[str, int]
    """Number of rows that were read and excluded, by reason."""


@dataclass(frozen=True)
class _Curation:
    run: dict[str, Any]
    uri: str


def read_negatives(config: ProbeConfig) -> Material:
    """Read the negatives in ``config.input``, their captions' paraphrases, and the images' embeddings.

    Raises ValueError where the folder holds no negatives, and where ``config.images`` is not the required
    curation.
    """
    run = runs.read_finished(config.input)
    if run["kind"] != "negatives":
        raise ValueError(f"input={config.input!r}: holds {run['kind']}, must hold negatives")
    written = from_dict(NegativesConfig(), run["config"])
    uris = runs.list_negatives(run, absolute_uri(config.input))
    found = [row for uri in uris for row in read_columns(uri, [UID, CAPTION, NEGATIVES]).to_pylist()]
    num_written = run["funnel"]["read"]
    if len(found) != num_written:
        raise ValueError(f"input={config.input!r}: holds {len(found)} rows, the run wrote {num_written}")
    rows = [row for row in found if row[CAPTION]]
    left_out = {NO_CAPTION: len(found) - len(rows)}
    if config.sample is not None:
        drawn = np.random.default_rng(config.seed).permutation(len(rows))[: config.sample]
        left_out[_NOT_DRAWN] = len(rows) - len(drawn)
        rows = [rows[i] for i in sorted(drawn)]
    add_paraphrases(rows, load_parser(written.parser.name))
    other = None
    if config.images:
        scored = runs.read_finished(config.images)
        if scored["kind"] not in runs.SUBSET_KINDS:
            raise ValueError(f"images={config.images!r}: holds {scored['kind']}, must hold a curation")
        other = _Curation(scored, absolute_uri(config.images))
    # Behind the negatives is the curation that they were written from: at its old place, or moved to images.
    folder = Folder(absolute_uri(written.input))
    places = [_Curation(found_run, folder.uri)] if (found_run := runs.read_run(folder)) else []
    places += [other] if other else []
    wanted = run["fingerprint"]["input"]
    behind = next((place for place in places if runs.identify(place.run) == wanted), None)
    if behind:
        _add_others(rows, behind)
    ranker = read_config(other.run["config"]).scorer if other else written.ranker
    scorer = config.scorer or ranker
    notes = [_describe_ranking(written, run, scorer)]
    if other:
        num_uids = len({row[UID] for row in rows})
        if lost := num_uids - _check_images(rows, config, scorer, behind, other):
            of_uids = f"For {lost:,} of {num_uids:,} captions the image could not be compared"
            notes.append(f"{of_uids} with the negatives' image.")
    elif behind and captions.is_scored_by(scorer, behind.run, behind.uri):
        other = behind
    images = None
    if other:
        uids = [row[UID] for row in rows]
        vectors = _read_by_uid(other, IMAGE_EMBEDDING, set(uids))
        if len(vectors) < len(set(uids)):
            raise ValueError(f"{other.uri}: the curation no longer holds all captions of the negatives")
        images = np.stack([vectors[uid] for uid in uids]).astype(np.float32)
    return Material(rows, images, scorer, tuple(notes), len(found), left_out)


def add_paraphrases(rows: Sequence[Row], parser: Parser) -> None:
    """Add to rows the caption with two conjuncts in the other order, where it has the same parse."""
    lexicon = load_lexicon()
    parsed = parser.tokens([row[CAPTION] for row in rows])
    swapped = [swap_conjuncts(row[CAPTION], tokens) for row, tokens in zip(rows, parsed, strict=True)]
    found = {i: text for i, text in enumerate(swapped) if text}
    for i, again in zip(found, parser.tokens(list(found.values())), strict=True):
        own, _ = list_readings(tuple(again), lexicon)
        if own in list_readings(tuple(parsed[i]), lexicon)[1]:
            rows[i][PARAPHRASE] = swapped[i]


def _add_others(rows: Sequence[Row], behind: _Curation) -> None:
    """Add to rows another caption of their image, where there is one."""
    others = {
        uid: texts[0]
        for source in captions.list_curated(behind.run, behind.uri)
        for table in captions.load_captions(source, 10_000)
        for uid, texts in zip(table[UID].to_pylist(), table[OTHERS].to_pylist(), strict=True)
        if texts
    }
    for row in rows:
        row[OTHER] = others.get(row[UID])


def _check_images(
    rows: Sequence[Row],
    config: ProbeConfig,
    scorer: ScorerConfig,
    behind: _Curation | None,
    images: _Curation,
) -> int:
    """Return for how many uids the pictures were compared, by their hashes, with those in ``behind``.

    Raises ValueError unless ``images`` was scored by the scorer, and holds the images of the rows.
    """
    where = f"images={config.images!r}"
    if not captions.is_scored_by(scorer, images.run, images.uri):
        raise ValueError(f"{where}: was not scored by scorer.model={scorer.model!r} with {scorer.weights!r}")
    wanted = {row[UID] for row in rows}
    said = _read_by_uid(images, CAPTION, wanted)
    lost = sum(said.get(row[UID]) != row[CAPTION] for row in rows)
    if lost:
        raise ValueError(
            f"{where}: must hold the captions of the negatives; {lost} of {len(rows)} are missing"
        )
    if behind is None:
        return 0
    ours, theirs = (_read_by_uid(curation, IMAGE_SHA256, wanted) for curation in (behind, images))
    compared = [uid for uid in wanted if ours.get(uid) and theirs[uid]]
    others = sum(ours[uid] != theirs[uid] for uid in compared)
    if others:
        raise ValueError(f"{where}: must hold the images of the negatives; {others} of {len(wanted)} differ")
    return len(compared)


def _read_by_uid(curation: _Curation, name: str, wanted: set[str]) -> dict[str, Any]:
    """Return a column of the curation's corpus by uid, for the wanted uids."""
    found: dict[str, Any] = {}
    for uri in runs.list_scores(curation.run, curation.uri):
        table = captions.read_aligned(uri, [UID, name])
        values = to_matrix(table[name]) if name == IMAGE_EMBEDDING else table[name].to_pylist()
        pairs = zip(table[UID].to_pylist(), values, strict=True)
        found |= {uid: value for uid, value in pairs if uid in wanted}
    return found


def _describe_ranking(written: NegativesConfig, run: dict[str, Any], scorer: ScorerConfig) -> str:
    """Name the model that ranked the negatives; models are compared by the weights' bytes, not by name."""
    if not written.negatives.rank:
        return "No model ranked the negatives."
    is_own = fingerprint_scorer(scorer) == run["fingerprint"].get("scorer")
    ranker = f"{'the probed' if is_own else 'another'} model, {written.ranker.model} with"
    return (
        f"The negatives were ranked by {ranker} {written.ranker.weights}: its accuracies are low by choice."
    )


def read_sugarcrepe_pp(choices: Sequence[Choice], scorer: ScorerConfig) -> Material:
    """Make rows of SugarCrepe++: the second caption of an image is the paraphrase; no image is read.

    A row's uid is its image, so that captions of one image are one unit. Defective rows are left out.
    """
    rows = [
        {
            UID: choice.image,
            CAPTION: choice.positives[0],
            PARAPHRASE: choice.positives[1],
            NEGATIVES: [{"text": text, "op": choice.op, "calls": 1} for text in choice.negatives],
        }
        for choice in choices
        if not choice.defects
    ]
    lost = len(choices) - len(rows)
    notes = (f"SugarCrepe++: {lost:,} defective rows were left out.",)
    return Material(rows, None, scorer, notes, len(choices), {"defective": lost})
