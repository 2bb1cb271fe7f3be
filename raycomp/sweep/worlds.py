"""The little worlds of a sweep: pairs that a scorer of their own has scored once, and an exam."""

from dataclasses import replace
from typing import Any

from raycomp.config import to_dict
from raycomp.curate.config import AlignConfig, AttributeConfig, CurateConfig
from raycomp.data.folder import Folder
from raycomp.evaluate.world import write_exam
from raycomp.study.config import StudyConfig
from raycomp.study.world import Place, curation
from raycomp.sweep.config import SweepConfig
from raycomp.train.little_world import EXAM_SEED
from raycomp.worlds.pairs import ALL_PAIRS, hold_out

CURATED, ALL, NEGATIVES, EXAM = "curated", "all", "negatives", "exam"
READY = "ready.json"


def list_places(config: SweepConfig, work: Folder) -> list[Place]:
    """Return the worlds of all seeds, those of development first."""
    sizes = vars(config.worlds)
    study = StudyConfig(
        pairs=sizes["pairs"],
        scorer_pairs=sizes["scorer_pairs"],
        scorer_steps=sizes["scorer_steps"],
        batch_size=sizes["batch_size"],
        scenes=sizes["scenes"],
        seed=config.seed,
        cluster=config.cluster,
    )
    numbers = range(config.seeds + config.report_seeds)
    return [Place(number, work.at(f"world-{number:02d}"), study) for number in numbers]


def scored_dials() -> dict[str, Any]:
    """Return the dials that every world is scored with, as run.json has them."""
    return to_dict(CurateConfig(align=AlignConfig(keep=0.7), attribute=AttributeConfig(keep=0.5, pool=1.0)))


def world_curation(place: Place) -> CurateConfig:
    """Return the config that scores a world's pairs: all of them by both scores."""
    config = replace(curation(place), extra_columns=())
    known = to_dict(config)
    assert all(known[group] == scored_dials()[group] for group in ("align", "attribute", "select"))
    return config


def make_exam(place: Place) -> None:
    """Write a world's exam: scenes of colours and shapes that its pairs show together."""
    seen = ALL_PAIRS - hold_out(place.number)
    write_exam(place.files.at(EXAM), place.config.scenes, place.seed + EXAM_SEED, seen)
