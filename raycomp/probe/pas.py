"""``raycomp probe pas``: a curation's samples, and the scorer, words and nonces of the measurement."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import ScorerConfig
from raycomp.core.selection import Threshold, hash_uids, keep_mask, parse_uids
from raycomp.curation.config import CurateConfig, NonceConfig, find_selection, read_config
from raycomp.curation.marks import list_marked
from raycomp.curation.measures import find_corpus
from raycomp.curation.rules import ALIGN_PAS, find_rule
from raycomp.curation.select import Gates
from raycomp.data.arrow import readable, to_matrix
from raycomp.data.runs import SUBSET_KINDS, identify, read_finished
from raycomp.language.control_words import ControlWords, find_word_set
from raycomp.models.lexicon import load_lexicon
from raycomp.models.nonces import NonceMaker
from raycomp.models.parser import MAX_CHARACTERS, PACKAGED, fingerprint_folder
from raycomp.negatives.captions import is_scored_by
from raycomp.probe.calibration import NUM_AGAIN, Encode, PasResult, Redraw, Samples, probe_samples
from raycomp.probe.config import ProbeConfig
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    CONTENT,
    CONTENT_WORDS,
    IMAGE_EMBEDDING,
    IMAGE_SHA256,
    PHRASES,
    UID,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class OpenedPas:
    """A curation or selection whose samples are read, and the scorer that made their embeddings."""

    samples: Samples
    scorer: ScorerConfig
    name: str
    """The scorer's name, and whether it is untrained."""
    nonce: NonceConfig
    keep: float
    """The share of the samples that the run keeps by PAS."""
    fingerprint: Callable[[], dict[str, str]]
    """What results depend on; ValueError where the scorer is no longer the one that scored."""


def open_pas(config: ProbeConfig) -> OpenedPas:
    """Open the curation or selection in ``config.input``; phrases and nonces are its own.

    Raises ValueError where there is none, where another scorer made its image embeddings, and where no sample
    has phrases.
    """
    run = read_finished(config.input)
    if run["kind"] not in SUBSET_KINDS:
        raise ValueError(f"input={config.input!r}: holds {run['kind']}, must hold a curation or selection")
    written = read_config(run["config"])
    scorer = config.scorer or written.scorer
    name = f"{scorer.model} {scorer.weights}"

    def fingerprint() -> dict[str, str]:
        if not is_scored_by(scorer, run, config.input):
            raise ValueError(f"scorer={name!r}: must be the scoring model of {config.input}")
        return {"input": identify(run), "lexicon": fingerprint_folder(PACKAGED.with_name("lexicon"))}

    fingerprint()
    said = name + ", untrained: its drops are noise" * scorer.weights.startswith("random:")
    samples = read_samples(run, config.input, config.sample, config.seed)
    return OpenedPas(samples, scorer, said, written.nonce, _kept_share(run, written), fingerprint)


def measure_pas(opened: OpenedPas, seed: int) -> PasResult:
    """Measure the drops; ``seed`` draws the words and pictures to compare with."""
    from raycomp.models.clip import load_tokenizer

    maker = NonceMaker(load_tokenizer(opened.scorer), opened.nonce.seed, opened.scorer.model)
    length = maker.tokenizer.context_length
    words = ControlWords(load_lexicon(), maker.encode, length, opened.samples.vocabulary, seed)
    redraw, encode = make_redraw(maker, opened.nonce), _make_encode(opened.scorer)
    return probe_samples(opened.samples, encode, words, redraw, opened.keep, seed)


def read_samples(run: dict[str, Any], source: str, count: int | None, seed: int) -> Samples:
    """Return at most ``count`` samples with phrases of the curation or selection in ``source``.

    They passed the gate by alignment, if the rule has a second gate: PAS ranks there. The draw depends on
    seed and uid alone. Raises ValueError where there are none.
    """
    words: set[str] = set()
    pool: list[pa.Table] = []
    selection = find_selection(read_config(run["config"]))
    names = [PHRASES, CONTENT_WORDS] if selection.targets == CONTENT else [PHRASES]
    for file in list_marked(run, source):
        table = file.read([UID, CAPTION, ALIGNMENT, IMAGE_SHA256, *names, IMAGE_EMBEDDING])
        table = table.filter(pa.array(find_corpus(table)))
        words.update(*map(find_word_set, table[CAPTION].to_pylist()))
        table = table.filter(pa.array(_passes_align(table, run)))
        pool.append(table.filter(pc.greater(pc.list_value_length(table[PHRASES]), 0)))
        if count is not None:
            pool = [_draw(pa.concat_tables(pool), count, seed)]
    table = pa.concat_tables(pool) if pool else None
    if not table:
        raise ValueError(f"input={source!r}: no sample has phrases; curate with select.rule=cpi")
    uids, captions, images = (table[name].to_pylist() for name in (UID, CAPTION, IMAGE_SHA256))
    lists = zip(*(table[name].to_pylist() for name in names), strict=True)
    phrases = [[phrase for some in row for phrase in some] for row in lists]
    image_ND = to_matrix(table[IMAGE_EMBEDDING]).astype(np.float32)
    alignment_N = table[ALIGNMENT].to_numpy().astype(np.float64)
    scores = uids, captions, phrases, images, image_ND, alignment_N, frozenset(words), selection
    fit = Gates.from_dict(run["gates"]).fit
    if fit is None or selection.rule.attribute_by != ALIGN_PAS:
        return Samples(*scores, selection.reading)
    base_N = fit.residuals({ALIGNMENT: alignment_N}, np.zeros(len(alignment_N)))
    return Samples(*scores, selection.ranking, base_N)


def _passes_align(table: pa.Table, run: dict[str, Any]) -> np.ndarray:
    """Return which rows passed the gate by alignment, bool (N,); all rows where it is the only gate."""
    written = read_config(run["config"])
    if find_rule(written.select.rule).attribute_by is None:
        return np.ones(len(table), bool)
    gate = Threshold.from_dict(run["gates"]["align"])
    return keep_mask(gate, table[ALIGNMENT].to_numpy(), parse_uids(table[UID]))


def _draw(table: pa.Table, count: int, seed: int) -> pa.Table:
    drawn = np.argsort(hash_uids(parse_uids(table[UID]), seed), kind="stable")[:count]
    return table.take(np.sort(drawn))


def _make_encode(scorer: ScorerConfig) -> Encode:
    """Load the scorer; its text tower shares the prefixes of a caption and its variants."""
    from raycomp.models.clip import Clip, load_tokenizer
    from raycomp.models.weights_check import refuse_bad

    clip, tokenize = Clip(scorer), load_tokenizer(scorer)

    def encode(captions: list[str], variants: list[list[str]]) -> tuple["Tensor", "Tensor"]:
        texts = [readable(text) for text in [*captions, *(text for group in variants for text in group)]]
        tokens_TN = tokenize(texts).numpy().astype(np.int32)
        counts = np.array([len(group) for group in variants])
        found = clip.text.embed(tokens_TN[: len(captions)], tokens_TN[len(captions) :], counts)
        for text_TD in found:
            refuse_bad(text_TD, scorer.said_weights, "texts")
        return found

    return encode


def make_redraw(maker: NonceMaker, config: NonceConfig) -> Redraw:
    """Return a function that draws a target's nonces as the curation did, but more of them."""

    def redraw(uid: str, caption: str, spans: list[tuple[int, int]]) -> list[list[str]]:
        key = uid if config.key == "sample" else ""
        made = maker.make(caption[:MAX_CHARACTERS], spans, NUM_AGAIN, key)
        return [[] if isinstance(nonces, str) else nonces for nonces in made]

    return redraw


def _kept_share(run: dict[str, Any], written: CurateConfig) -> float:
    """Return the share of samples with a PAS that the run keeps, or would keep by the rule cpi."""
    gates = run["gates"]
    if gates["attribute"] and gates["num_scored"]:
        return gates["attribute"]["count"] / gates["num_scored"]
    return min(1.0, written.attribute.keep / max(written.align.keep, written.pool, 1e-9))
