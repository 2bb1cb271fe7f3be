"""One cell: a world with a cue, its scorer, its pairs scored once, what rules make of each kind of fault."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import ClusterConfig, override_all
from raycomp.core.metrics import auc, auc_interval
from raycomp.core.selection import parse_uids
from raycomp.core.text_classifier import fit_text_classifier
from raycomp.curate.command import curate
from raycomp.curate.config import AlignConfig, AttributeConfig, CurateConfig, find_arm
from raycomp.curate.measures import read_corpus
from raycomp.curate.rules import NUM_PHRASES, PAS
from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns
from raycomp.data.runs import list_scores, read_finished
from raycomp.data.tar import write_tar
from raycomp.run.executor import use
from raycomp.run.local import Local
from raycomp.screen.config import Cue, ScreenConfig
from raycomp.screen.judge import AGGREGATES, PAPER, Corpus, count_traits, judge
from raycomp.train.little_world import FIT, TrainedScorer, World
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
from raycomp.worlds.crowds import (
    KINDS,
    MISSING_STAMP,
    SCORER_TEMPLATES,
    Pair,
    draw_pair,
    least_things,
    show_crowd,
)
from raycomp.worlds.faults import NO_FAULT
from raycomp.worlds.render import encode_jpeg

ARCHITECTURE = {
    "embed_dim": 128,
    "vision_cfg": {"image_size": 48, "layers": 3, "width": 128, "head_width": 64, "patch_size": 8},
    "text_cfg": {"context_length": 64, "vocab_size": 49408, "width": 128, "heads": 2, "layers": 3},
}
_TRAIN, _HELD_OUT, _SOUND, _STAMPED, _FAULTY, _CAPTIONS, _WEIGHTS = range(7)
_NUM_HELD_OUT = 500
_PER_SHARD = 500
_JUNK, _STAMP = 0.5, 0.25
_FACTS = ("fault", "stamped", "things", "template")
_ONE = ClusterConfig(executor="local", num_cpus=1)


@dataclass(frozen=True)
class ScreenCell:
    """A world and a cue."""

    world: int
    cue: Cue

    @property
    def name(self) -> str:
        return f"{self.world:03d}-{self.cue.name}"


def run_cell(cell: ScreenCell, config: ScreenConfig, work: Folder, out: Folder) -> None:
    """Write cells/NAME.json: the scorer, a row of every rule, share and kind, traits and text-only AUCs."""
    started, folder = time.perf_counter(), Folder(work.at(cell.name))
    folder.remove()
    trained = _train_scorer(cell, config, folder)
    trained_s = time.perf_counter() - started
    table = _score(cell, config, folder, trained)
    found: dict[str, list[Any]] = {"rows": [], "traits": [], "text": []}
    for number, kind in enumerate(KINDS):
        score_text, told = _fit_text(cell, config, kind, number)
        corpus = _read_kind(table, kind, score_text)
        found["text"].append({"kind": kind, **told})
        found["rows"] += [{"kind": kind, **asdict(row)} for row in judge(corpus)]
        found["traits"] += [
            {"kind": kind, "rule": rule, "trait": trait, "sound": sound, "kept": kept}
            for rule, trait, sound, kept in count_traits(corpus)
        ]
    facts = {
        "world": cell.world,
        "cue": cell.cue.name,
        "recall": [trained.image_to_text, trained.text_to_image],
        "last_loss": trained.losses[-1],
        "train_s": trained_s,
        "seconds": time.perf_counter() - started,
        "coverage": _count_nonces(table),
    }
    out.write_json({**facts, **found}, "cells", f"{cell.name}.json")
    folder.remove()


def _train_scorer(cell: ScreenCell, config: ScreenConfig, folder: Folder) -> TrainedScorer:
    import torch

    from raycomp.train.tiny_clip import train_scorer

    torch.set_num_threads(1)
    world = World(*(folder.at(part) for part in ("train", "curate", "held_out")))
    logo = {"logo": cell.cue.share, "name_logo": cell.cue.named, "stamp": _STAMP}
    seed = [config.seed, cell.world]

    def draw_training() -> Iterator[Pair]:
        for i in range(config.scorer_pairs):
            rng = np.random.default_rng([*seed, _TRAIN, i])
            kind = KINDS[rng.integers(len(KINDS))] if rng.random() < 1 / 3 else NO_FAULT
            more = {"stamp": 1.0} if kind == MISSING_STAMP else {}
            yield draw_pair(
                rng, kind, SCORER_TEMPLATES, least=least_things(kind), junk=_JUNK, **{**logo, **more}
            )

    def draw_held_out() -> Iterator[Pair]:
        for i in range(_NUM_HELD_OUT):
            yield draw_pair(np.random.default_rng([*seed, _HELD_OUT, i]), NO_FAULT, least=2, **logo)

    _write_shards(world.train, draw_training(), [*seed, _TRAIN])
    _write_shards(world.held_out, draw_held_out(), [*seed, _HELD_OUT])
    fit = replace(FIT, steps=config.scorer_steps, batch_size=config.batch_size)
    weights = int(np.random.default_rng([*seed, _WEIGHTS]).integers(2**31))
    trained = train_scorer(world, folder.at("scorer"), weights, fit, architecture=ARCHITECTURE)
    for part in (world.train, world.held_out):
        Folder(part).remove()
    return trained


def _draw_pairs(cell: ScreenCell, config: ScreenConfig) -> Iterator[tuple[Pair, bool]]:
    """Yield the pairs to score, and whether they belong to the corpus in which all captions have a stamp."""
    groups = [(NO_FAULT, False, config.sound, _SOUND), (NO_FAULT, True, config.sound, _STAMPED)]
    groups += [(kind, kind == MISSING_STAMP, config.faulty, _FAULTY + i) for i, kind in enumerate(KINDS)]
    for fault, is_stamped, count, part in groups:
        for i in range(count):
            rng = np.random.default_rng([config.seed, cell.world, part + 100, i])
            yield _draw(cell.cue, fault, is_stamped, rng), is_stamped


def _draw(cue: Cue, fault: str, is_stamped: bool, rng: np.random.Generator, least: int = 1) -> Pair:
    logo = float(fault != NO_FAULT) if cue.with_faults else cue.share
    least = max(least, least_things(fault))
    return draw_pair(rng, fault, least=least, logo=logo, name_logo=cue.named, stamp=float(is_stamped))


def _write_shards(folder: str, pairs: Iterator[Pair], seed: Sequence[int], stamped: bool = False) -> None:
    written: list[tuple[str, dict[str, bytes]]] = []
    for i, pair in enumerate(pairs):
        written.append(_to_sample(i, pair, np.random.default_rng([*seed, 50, i]), stamped))
    for start in range(0, len(written), _PER_SHARD):
        write_tar(f"{folder}/{start // _PER_SHARD:05d}.tar", written[start : start + _PER_SHARD])


def _to_sample(i: int, pair: Pair, rng: np.random.Generator, stamped: bool) -> tuple[str, dict[str, bytes]]:
    facts = {
        "fault": pair.fault,
        "stamped": int(stamped),
        "things": len(pair.said.things),
        "template": pair.template,
    }
    image = encode_jpeg(show_crowd(pair.shown, rng))
    text = pair.caption.encode()
    return f"{i:09d}", {"jpg": image, "txt": text, "json": json.dumps(facts).encode()}


def _score(cell: ScreenCell, config: ScreenConfig, folder: Folder, trained: TrainedScorer) -> pa.Table:
    """Score all pairs once, all words of theirs; return the scores."""
    samples = []
    for i, (pair, stamped) in enumerate(_draw_pairs(cell, config)):
        rng = np.random.default_rng([config.seed, cell.world, 99, i])
        samples.append(_to_sample(i, pair, rng, stamped))
    for start in range(0, len(samples), _PER_SHARD):
        write_tar(folder.at("curate", f"{start // _PER_SHARD:05d}.tar"), samples[start : start + _PER_SHARD])
    curation = CurateConfig(
        input=folder.at("curate"),
        scorer=trained.scorer,
        align=AlignConfig(keep=1.0),
        attribute=AttributeConfig(keep=0.5, targets=CONTENT),
        extra_columns=_FACTS,
        materialize=False,
        cluster=_ONE,
    )
    with use(Local(1)):
        curate(curation, folder.at("scored"), lambda line: None)
    columns = [UID, STATUS, CAPTION, ALIGNMENT, PHRASES, CONTENT_WORDS, *_FACTS]
    uris = list_scores(read_finished(folder.at("scored")), folder.at("scored"))
    return pa.concat_tables([read_columns(uri, columns) for uri in uris])


def _read_kind(table: pa.Table, kind: str, score_text: Any) -> Corpus:
    """Return the corpus of one kind of fault: its pairs, and the sound ones that could have had it."""
    is_stamped = pc.equal(table["stamped"], str(int(kind == MISSING_STAMP)))
    is_long = pc.greater_equal(table["things"].cast(pa.int32()), least_things(kind))
    is_own = pc.is_in(table["fault"], pa.array([NO_FAULT, kind]))
    own = table.filter(pc.and_(pc.and_(is_stamped, is_own), is_long))
    arms = {
        f"{targets} {unit} {how}": (targets, unit, how, own)
        for targets in TARGETS
        for unit in UNITS
        for how in AGGREGATES
    }
    arms[PAPER] = (NOUNS, UNITS[0], "mean", _take_first_nonce(own))
    readings, num_targets_N = {}, None
    for name, (targets, unit, how, rows) in arms.items():
        settings = {"attribute.targets": targets, "attribute.unit": unit, "attribute.aggregate": how}
        corpus = read_corpus(rows, find_arm(override_all(CurateConfig(), settings)))
        assert len(corpus.row_M) == len(own), "every pair has an alignment"
        readings[name] = corpus.measures[PAS].astype(np.float64)
        if targets == NOUNS:
            num_targets_N = corpus.measures[NUM_PHRASES]
    assert num_targets_N is not None
    captions = own[CAPTION].to_pylist()
    return Corpus(
        fault_N=np.array(own["fault"].to_pylist()) != NO_FAULT,
        alignment_N=own[ALIGNMENT].to_numpy().astype(np.float64),
        text_N=-score_text(captions),
        readings=readings,
        num_targets_N=num_targets_N,
        num_things_N=own["things"].cast(pa.int32()).to_numpy(),
        template_N=own["template"].cast(pa.int32()).to_numpy(),
        draw_N=parse_uids(own[UID])[:, 0],
    )


def _take_first_nonce(table: pa.Table) -> pa.Table:
    """Return the table with each drop that of the first nonce."""
    lists = table[PHRASES].to_pylist()
    for phrase in (phrase for row in lists for phrase in row or ()):
        phrase["drop"] = phrase["drops"][0] if phrase["drops"] else None
    place = table.schema.get_field_index(PHRASES)
    return table.set_column(place, PHRASES, pa.array(lists, table.schema.field(PHRASES).type))


def _fit_text(cell: ScreenCell, config: ScreenConfig, kind: str, number: int) -> tuple[Any, dict[str, float]]:
    """Fit a text-only classifier to drawn captions; return its log-odds of a fault, and its AUC on others."""
    rng = np.random.default_rng([config.seed, cell.world, _CAPTIONS, number])
    least, stamped = least_things(kind), kind == MISSING_STAMP
    fault_N = rng.random(2 * config.captions) < 1 / 3
    captions = [
        _draw(cell.cue, kind if fault else NO_FAULT, stamped, rng, least).caption for fault in fault_N
    ]
    half = config.captions
    fitted = fit_text_classifier(captions[:half], fault_N[:half])
    score_N, rest_N = fitted.score(captions[half:]), fault_N[half:]
    low, high = auc_interval(score_N[rest_N], score_N[~rest_N])
    told = {"auc": float(auc(score_N[rest_N], score_N[~rest_N])), "auc_low": low, "auc_high": high}
    return fitted.score, told


def _count_nonces(table: pa.Table) -> dict[str, list[int]]:
    """Return how many targets there are, and have a valid nonce, of phrases and of other content words."""
    found = {}
    for name in (PHRASES, CONTENT_WORDS):
        drops = pc.struct_field(table[name].combine_chunks().flatten(), "drop")
        found[name] = [len(drops), len(drops) - drops.null_count]
    return found
