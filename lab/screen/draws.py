"""The random draws of a screen: the pairs of a run as shards, and captions alone for the text-only
classifier."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.screen.config import CUES, Cue, ScreenConfig
from lab.statistics import auc_interval
from lab.text_classifier import TextClassifier, fit_text_classifier
from lab.worlds.crowds import KINDS, MISSING_STAMP, Pair, draw_pair, least_things, show_crowd
from lab.worlds.faults import NO_FAULT
from lab.worlds.render import encode_jpeg
from raycomp.core.metrics import auc
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar

FACTS = ("fault", "stamped", "things", "template")
"""Fields of a sample's json."""
TRAIN, HELD_OUT, _SOUND, _STAMPED, _FAULTY, _RULE, WEIGHTS, _CHECK = range(8)
"""Parts of a world, each with seeds of its own."""
_PER_SHARD = 500
_RULE_SHARE = 0.1
"""Of ``captions``: the part for fitting the rule that combines alignment and text, in each world."""
Sample = tuple[str, dict[str, bytes]]


@dataclass(frozen=True)
class ScreenRun:
    """A world and a cue."""

    world: int
    cue: Cue

    @property
    def name(self) -> str:
        return f"{self.world:03d}-{self.cue.name}"


def draw_samples(one_run: ScreenRun, config: ScreenConfig) -> Iterator[Sample]:
    """Yield the pairs that are scored, as WebDataset samples."""
    for i, (pair, stamped) in enumerate(draw_pairs(one_run, config)):
        yield _to_sample(i, pair, np.random.default_rng([config.seed, one_run.world, 99, i]), stamped)


def draw_pairs(one_run: ScreenRun, config: ScreenConfig) -> Iterator[tuple[Pair, bool]]:
    """Yield the pairs to score, and whether they belong to the corpus in which all captions have a stamp."""
    groups = [(NO_FAULT, False, config.sound, _SOUND), (NO_FAULT, True, config.sound, _STAMPED)]
    groups += [(kind, kind == MISSING_STAMP, config.faulty, _FAULTY + i) for i, kind in enumerate(KINDS)]
    for fault, is_stamped, count, part in groups:
        for i in range(count):
            rng = np.random.default_rng([config.seed, one_run.world, part + 100, i])
            yield _draw(one_run.cue, fault, is_stamped, rng), is_stamped


def write_pairs(folder: str, pairs: Iterable[Pair], seed: Sequence[int]) -> None:
    """Write pairs as shards; their pictures are drawn from ``seed``."""
    samples = (_to_sample(i, pair, np.random.default_rng([*seed, 50, i])) for i, pair in enumerate(pairs))
    write_samples(folder, samples)


def write_samples(folder: str, samples: Iterable[Sample]) -> None:
    """Write samples as WebDataset shards of 500."""
    written = list(samples)
    for start in range(0, len(written), _PER_SHARD):
        write_tar(f"{folder}/{start // _PER_SHARD:05d}.tar", written[start : start + _PER_SHARD])


def fit_captions(one_run: ScreenRun, config: ScreenConfig, kind: str) -> TextClassifier:
    """Return a text-only classifier of one kind of fault, for the rule that adds it to alignment."""
    rng = np.random.default_rng([config.seed, one_run.world, _RULE, KINDS.index(kind)])
    return fit_text_classifier(*_draw_captions(one_run.cue, kind, round(_RULE_SHARE * config.captions), rng))


def check_captions(cue: str, config: ScreenConfig, out: Folder) -> None:
    """Write captions/CUE.json: per kind, the faults that a classifier fitted to ``captions`` finds in as many
    others."""
    found = []
    for kind in KINDS:
        rng = np.random.default_rng([config.seed, config.first_world, _CHECK, KINDS.index(kind)])
        fitted = fit_text_classifier(*_draw_captions(CUES[cue], kind, config.captions, rng))
        captions, fault_N = _draw_captions(CUES[cue], kind, config.captions, rng)
        score_N = fitted.score(captions)
        faulty, sound = score_N[fault_N], score_N[~fault_N]
        low, high = auc_interval(faulty, sound)
        found.append({"kind": kind, "auc": float(auc(faulty, sound)), "auc_low": low, "auc_high": high})
    out.write_json({"cue": cue, "captions": config.captions, "text": found}, "captions", f"{cue}.json")


def _draw_captions(cue: Cue, kind: str, num: int, rng: np.random.Generator) -> tuple[list[str], np.ndarray]:
    """Return captions, a third of them of pairs with the fault, and a mask of those."""
    fault_N = rng.random(num) < 1 / 3
    drawn = (_draw(cue, kind if fault else NO_FAULT, kind == MISSING_STAMP, rng, kind) for fault in fault_N)
    return [pair.caption for pair in drawn], fault_N


def _draw(cue: Cue, fault: str, stamped: bool, rng: np.random.Generator, as_long_as: str = "") -> Pair:
    logo = float(fault != NO_FAULT) if cue.with_faults else cue.share
    least = max(least_things(fault), least_things(as_long_as))
    return draw_pair(rng, fault, least=least, logo=logo, name_logo=cue.named, stamp=float(stamped))


def _to_sample(i: int, pair: Pair, rng: np.random.Generator, stamped: bool = False) -> Sample:
    values = (pair.fault, int(stamped), len(pair.said.things), pair.template)
    facts: dict[str, Any] = dict(zip(FACTS, values, strict=True))
    image = encode_jpeg(show_crowd(pair.shown, rng))
    return f"{i:09d}", {"jpg": image, "txt": pair.caption.encode(), "json": json.dumps(facts).encode()}
