"""One run: a world with a cue, its scorer, its pairs scored once, the results of rules on each kind of
fault."""

import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab.screen.config import ScreenConfig
from lab.screen.draws import (
    FACTS,
    HELD_OUT,
    TRAIN,
    WEIGHTS,
    ScreenRun,
    draw_samples,
    fit_captions,
    write_pairs,
    write_samples,
)
from lab.screen.judge import AGGREGATES, PAPER, Corpus, count_traits, judge
from lab.worlds.crowds import KINDS, MISSING_STAMP, SCORER_TEMPLATES, Pair, draw_pair, least_things
from lab.worlds.faults import NO_FAULT
from lab.worlds.shards import FIT, TrainedScorer, World
from raycomp.config import ClusterConfig, override_all
from raycomp.core.selection import parse_uids
from raycomp.curation.command import curate
from raycomp.curation.config import (
    NUM_PHRASES,
    PAS,
    CurateConfig,
    make_selection,
)
from raycomp.curation.select.measures import read_corpus
from raycomp.data.files import Folder
from raycomp.data.parquet import read_columns
from raycomp.data.runs import list_scores, read_finished
from raycomp.run.executor import use
from raycomp.run.local import Local
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    CONTENT,
    CONTENT_WORDS,
    NOUNS,
    PHRASES,
    STATUS,
    TARGETS,
    UID,
    UNITS,
)

ARCHITECTURE = {
    "embed_dim": 96,
    "vision_cfg": {"image_size": 48, "layers": 2, "width": 96, "head_width": 48, "patch_size": 8},
    "text_cfg": {"context_length": 64, "vocab_size": 49408, "width": 96, "heads": 2, "layers": 2},
}
_NUM_HELD_OUT = 500
_JUNK, _STAMP = 0.5, 0.25
_ONE = ClusterConfig(executor="local", num_cpus=1)


def run_one(one_run: ScreenRun, config: ScreenConfig, work: Folder, out: Folder) -> None:
    """Write cells/NAME.json: the scorer, a row for every rule, share and kind, traits of the kept pairs."""
    started, folder = time.perf_counter(), Folder(work.at(one_run.name))
    folder.remove()
    trained = _train_scorer(one_run, config, folder)
    trained_s = time.perf_counter() - started
    table = _score(one_run, config, folder, trained)
    found: dict[str, list[Any]] = {"rows": [], "traits": []}
    for kind in KINDS:
        corpus = _read_kind(table, kind, fit_captions(one_run, config, kind).score)
        found["rows"] += [{"kind": kind, **asdict(row)} for row in judge(corpus)]
        found["traits"] += [
            {"kind": kind, "rule": rule, "trait": trait, "sound": sound, "kept": kept}
            for rule, trait, sound, kept in count_traits(corpus)
        ]
    facts = {
        "world": one_run.world,
        "cue": one_run.cue.name,
        "recall": [trained.image_to_text, trained.text_to_image],
        "last_loss": trained.losses[-1],
        "train_s": trained_s,
        "seconds": time.perf_counter() - started,
        "coverage": _count_nonces(table),
    }
    out.write_json({**facts, **found}, "cells", f"{one_run.name}.json")
    folder.remove()


def _train_scorer(one_run: ScreenRun, config: ScreenConfig, folder: Folder) -> TrainedScorer:
    import torch

    from lab.worlds.tiny_clip import train_scorer

    torch.set_num_threads(1)
    world = World(*(folder.at(part) for part in ("train", "curate", "held_out")))
    draw = partial(draw_pair, logo=one_run.cue.share, name_logo=one_run.cue.named)
    seed = [config.seed, one_run.world]

    def draw_training() -> Iterator[Pair]:
        for i in range(config.scorer_pairs):
            rng = np.random.default_rng([*seed, TRAIN, i])
            kind = KINDS[rng.integers(len(KINDS))] if rng.random() < 1 / 3 else NO_FAULT
            stamp = 1.0 if kind == MISSING_STAMP else _STAMP
            yield draw(rng, kind, SCORER_TEMPLATES, least=least_things(kind), stamp=stamp, junk=_JUNK)

    def draw_held_out() -> Iterator[Pair]:
        for i in range(_NUM_HELD_OUT):
            yield draw(np.random.default_rng([*seed, HELD_OUT, i]), NO_FAULT, least=2, stamp=_STAMP)

    write_pairs(world.train, draw_training(), [*seed, TRAIN])
    write_pairs(world.held_out, draw_held_out(), [*seed, HELD_OUT])
    fit = replace(FIT, steps=config.scorer_steps, batch_size=config.batch_size)
    weights = int(np.random.default_rng([*seed, WEIGHTS]).integers(2**31))
    trained = train_scorer(world, folder.at("scorer"), weights, fit, architecture=ARCHITECTURE)
    for part in (world.train, world.held_out):
        Folder(part).remove()
    return trained


def _score(one_run: ScreenRun, config: ScreenConfig, folder: Folder, trained: TrainedScorer) -> pa.Table:
    """Score all pairs once; return the scores."""
    write_samples(folder.at("curate"), draw_samples(one_run, config))
    curation = CurateConfig(input=folder.at("curate"), scorer=trained.scorer, cluster=_ONE)
    with use(Local(1)):
        return score_all(curation, FACTS, folder.at("scored"))


def score_all(config: CurateConfig, facts: tuple[str, ...], out: str) -> pa.Table:
    """Score all pairs once, on all of their words, for every rule and reading; return the scores, with the
    fields ``facts`` of the samples' json."""
    changes: dict[str, Any] = {
        "align.keep": 1.0,
        "attribute.keep": 0.5,
        "attribute.pool": 1.0,
        "materialize": False,
    }
    changes |= {"attribute.targets": CONTENT, "attribute.nonces": 2, "extra_columns": facts}
    curate(override_all(config, changes), out, lambda line: None)
    columns = [UID, STATUS, CAPTION, ALIGNMENT, PHRASES, CONTENT_WORDS, *facts]
    return pa.concat_tables([read_columns(uri, columns) for uri in list_scores(read_finished(out), out)])


def _read_kind(table: pa.Table, kind: str, score_text: Any) -> Corpus:
    """Return the corpus of one kind of fault: its pairs, and the correct ones that could have had it."""
    is_stamped = pc.equal(table["stamped"], str(int(kind == MISSING_STAMP)))
    is_long = pc.greater_equal(table["things"].cast(pa.int32()), least_things(kind))
    is_own = pc.is_in(table["fault"], pa.array([NO_FAULT, kind]))
    own = table.filter(pc.and_(pc.and_(is_stamped, is_own), is_long))
    readings, num_targets_N = read_readings(own)
    return Corpus(
        fault_N=np.array(own["fault"].to_pylist()) != NO_FAULT,
        alignment_N=own[ALIGNMENT].to_numpy().astype(np.float64),
        text_N=-score_text(own[CAPTION].to_pylist()),
        readings=readings,
        num_targets_N=num_targets_N,
        draw_N=parse_uids(own[UID])[:, 0],
        num_things_N=own["things"].cast(pa.int32()).to_numpy(),
        template_N=own["template"].cast(pa.int32()).to_numpy(),
    )


def read_readings(table: pa.Table) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the PAS of every pair by each reading, and its number of nouns with a drop; all pairs have an
    alignment."""
    variants = {
        f"{targets} {unit} {how}": (targets, unit, how, table)
        for targets in TARGETS
        for unit in UNITS
        for how in AGGREGATES
    }
    variants[PAPER] = (NOUNS, UNITS[0], "mean", _take_first_nonce(table))
    readings, num_targets_N = {}, np.zeros(len(table))
    for name, (targets, unit, how, rows) in variants.items():
        settings = {"attribute.targets": targets, "attribute.unit": unit, "attribute.aggregate": how}
        corpus = read_corpus(rows, make_selection(override_all(CurateConfig(), settings)))
        assert len(corpus.row_M) == len(table), "every pair has an alignment"
        readings[name] = corpus.measures[PAS].astype(np.float64)
        if targets == NOUNS:
            num_targets_N = corpus.measures[NUM_PHRASES]
    return readings, num_targets_N


def _take_first_nonce(table: pa.Table) -> pa.Table:
    """Return the table with each drop replaced by that of the first nonce."""
    lists = table[PHRASES].to_pylist()
    for phrase in (phrase for row in lists for phrase in row or ()):
        phrase["drop"] = phrase["drops"][0] if phrase["drops"] else None
    place = table.schema.get_field_index(PHRASES)
    return table.set_column(place, PHRASES, pa.array(lists, table.schema.field(PHRASES).type))


def _count_nonces(table: pa.Table) -> dict[str, list[int]]:
    """Return the number of targets, and of targets with a valid nonce, of phrases and of other content
    words."""
    found = {}
    for name in (PHRASES, CONTENT_WORDS):
        drops = pc.struct_field(table[name].combine_chunks().flatten(), "drop")
        found[name] = [len(drops), len(drops) - drops.null_count]
    return found
