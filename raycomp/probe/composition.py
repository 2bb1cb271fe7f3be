"""The input of the composition probe: negatives with the images behind them, or SugarCrepe++."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycomp.config import ScorerConfig, from_dict
from raycomp.curation.config import read_config
from raycomp.data.arrow import OTHERS, to_matrix
from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns
from raycomp.data.paths import absolute_uri
from raycomp.data.runs import SUBSET_KINDS, identify, list_negatives, list_scores, read_finished, read_run
from raycomp.evaluation.benchmarks.choice import Choice
from raycomp.language.conjuncts import swap_conjuncts
from raycomp.language.judge.paraphrase import find_readings
from raycomp.models.describe import fingerprint_scorer
from raycomp.models.lexicon import load_lexicon
from raycomp.models.parser import Parser, load_parser
from raycomp.negatives.captions import is_scored_by, list_curated, load_captions, read_aligned
from raycomp.negatives.config import NegativesConfig
from raycomp.probe.config import ProbeConfig
from raycomp.probe.probe_pairs import OTHER, PARAPHRASE
from raycomp.words import (
    CAPTION,
    IMAGE_EMBEDDING,
    IMAGE_SHA256,
    NEGATIVES,
    NO_CAPTION,
    UID,
)

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
    run = read_finished(config.input)
    if run["kind"] != "negatives":
        raise ValueError(f"input={config.input!r}: holds {run['kind']}, must hold negatives")
    written = from_dict(NegativesConfig(), run["config"])
    found = _read_rows(run, config.input)
    rows = [row for row in found if row[CAPTION]]
    left_out = {NO_CAPTION: len(found) - len(rows)}
    if config.sample is not None:
        drawn = np.random.default_rng(config.seed).permutation(len(rows))[: config.sample]
        left_out[_NOT_DRAWN] = len(rows) - len(drawn)
        rows = [rows[i] for i in sorted(drawn)]
    add_paraphrases(rows, load_parser(written.parser.name))
    other = _open_images(config.images) if config.images else None
    behind = _find_behind(written, run, other)
    if behind:
        _add_others(rows, behind)
    scorer = _choose_scorer(config, written, other)
    notes = [_describe_ranking(written, run, scorer)]
    if other:
        num_compared = _check_images(rows, config, scorer, behind, other)
        notes += _describe_compared(num_compared, len({row[UID] for row in rows}))
    elif behind and is_scored_by(scorer, behind.run, behind.uri):
        other = behind
    images = _take_images(rows, other) if other else None
    return Material(rows, images, scorer, tuple(notes), len(found), left_out)


def _read_rows(run: dict[str, Any], source: str) -> list[Row]:
    uris = list_negatives(run, absolute_uri(source))
    rows = [row for uri in uris for row in read_columns(uri, [UID, CAPTION, NEGATIVES]).to_pylist()]
    if len(rows) != run["funnel"]["read"]:
        raise ValueError(f"input={source!r}: holds {len(rows)} rows, the run wrote {run['funnel']['read']}")
    return rows


def add_paraphrases(rows: Sequence[Row], parser: Parser) -> None:
    """Add to rows the caption with two conjuncts in the other order, where it has the same parse."""
    lexicon = load_lexicon()
    parsed = parser.tokens([row[CAPTION] for row in rows])
    swapped = [swap_conjuncts(row[CAPTION], tokens) for row, tokens in zip(rows, parsed, strict=True)]
    found = {i: text for i, text in enumerate(swapped) if text}
    for i, again in zip(found, parser.tokens(list(found.values())), strict=True):
        own, _ = find_readings(tuple(again), lexicon)
        if own in find_readings(tuple(parsed[i]), lexicon)[1]:
            rows[i][PARAPHRASE] = swapped[i]


def _find_behind(written: NegativesConfig, run: dict[str, Any], other: _Curation | None) -> _Curation | None:
    """Return the curation that the negatives were written from: its old place, or ``other`` after a move."""
    folder = Folder(absolute_uri(written.input))
    behind = read_run(folder)
    places = [_Curation(behind, folder.uri)] if behind else []
    places += [other] if other else []
    return next((place for place in places if identify(place.run) == run["fingerprint"]["input"]), None)


def _add_others(rows: Sequence[Row], behind: _Curation) -> None:
    """Add to rows another caption of their image, where there is one."""
    others = {
        uid: texts[0]
        for source in list_curated(behind.run, behind.uri)
        for table in load_captions(source, 10_000)
        for uid, texts in zip(table[UID].to_pylist(), table[OTHERS].to_pylist(), strict=True)
        if texts
    }
    for row in rows:
        row[OTHER] = others.get(row[UID])


def _open_images(source: str) -> _Curation:
    run = read_finished(source)
    if run["kind"] not in SUBSET_KINDS:
        raise ValueError(f"images={source!r}: holds {run['kind']}, must hold a curation")
    return _Curation(run, absolute_uri(source))


def _choose_scorer(config: ProbeConfig, written: NegativesConfig, images: _Curation | None) -> ScorerConfig:
    """Return the requested scorer, else the one behind ``images``, else the one that ranked the negatives."""
    if config.scorer is not None:
        return config.scorer
    return read_config(images.run["config"]).scorer if images else written.ranker


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
    if not is_scored_by(scorer, images.run, images.uri):
        raise ValueError(f"{where}: was not scored by scorer.model={scorer.model!r} with {scorer.weights!r}")
    wanted = {row[UID] for row in rows}
    captions = _read_by_uid(images, CAPTION, wanted)
    lost = sum(captions.get(row[UID]) != row[CAPTION] for row in rows)
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
    for uri in list_scores(curation.run, curation.uri):
        table = read_aligned(uri, [UID, name])
        pairs = zip(table[UID].to_pylist(), table[name].to_pylist(), strict=True)
        found |= {uid: value for uid, value in pairs if uid in wanted}
    return found


def _take_images(rows: Sequence[Row], curation: _Curation) -> np.ndarray:
    """Return the embedding of each row's image, fp32."""
    wanted = {row[UID] for row in rows}
    found: dict[str, np.ndarray] = {}
    for uri in list_scores(curation.run, curation.uri):
        table = read_aligned(uri, [UID, IMAGE_EMBEDDING])
        image_ND = to_matrix(table[IMAGE_EMBEDDING])
        places = enumerate(table[UID].to_pylist())
        found |= {uid: image_ND[place] for place, uid in places if uid in wanted}
    if len(found) < len(wanted):
        raise ValueError(f"{curation.uri}: the curation no longer holds all captions of the negatives")
    return np.stack([found[row[UID]] for row in rows]).astype(np.float32)


def _describe_ranking(written: NegativesConfig, run: dict[str, Any], scorer: ScorerConfig) -> str:
    """Name the model that ranked the negatives; models are compared by the weights' bytes, not by name."""
    if not written.negatives.rank:
        return "No model ranked the negatives."
    ranker = f"{written.ranker.model} with {written.ranker.weights}"
    if fingerprint_scorer(scorer) == run["fingerprint"].get("scorer"):
        return f"The negatives were ranked by the probed model, {ranker}: its accuracies are low by choice."
    return f"The negatives were ranked by another model, {ranker}: its accuracies are low by choice."


def _describe_compared(num_compared: int, num_uids: int) -> list[str]:
    """Describe how many pictures could not be verified as those of the negatives."""
    if num_compared == num_uids:
        return []
    lost = num_uids - num_compared
    return [
        f"For {lost:,} of {num_uids:,} captions the image could not be compared with the negatives' image."
    ]


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
