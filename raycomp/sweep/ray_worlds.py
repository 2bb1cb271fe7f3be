"""The little worlds of a sweep, each scored once for all trials."""

from collections.abc import Sequence

from raycomp.curate.command import curate, select
from raycomp.negatives.command import negatives
from raycomp.negatives.config import NegativesConfig
from raycomp.run.run import Run, Say
from raycomp.run.tasks import map_some
from raycomp.study.world import Place, make_scorer
from raycomp.sweep.worlds import ALL, CURATED, NEGATIVES, READY, make_exam, world_curation


def make_worlds(places: Sequence[Place], with_negatives: bool, num_tasks: int, run: Run, say: Say) -> None:
    """Make what is missing of the worlds: pairs and a scorer, scores, an exam; negatives by rules."""
    left = [place for place in places if not place.files.exists(READY)]
    check = run.lease.check
    unmade = [(place,) for place in left if not place.is_made]
    for made, *_ in map_some(make_scorer, unmade, num_tasks, check, "scorers", "world"):
        say(f"world {made.number}: scorer trained")
    for _ in map_some(make_exam, [(place,) for place in left], num_tasks, check, "exams", "world"):
        pass
    for place in left:
        scored = place.files.at(CURATED)
        curate(world_curation(place), scored, say_nothing)
        if with_negatives:
            everything = place.files.at(ALL)
            select(scored, {"select.rule": "full", "materialize": False}, everything, say_nothing)
            rules = NegativesConfig(input=everything, cluster=place.config.cluster)
            negatives(rules, place.files.at(NEGATIVES), say_nothing)
        place.files.write_json({}, READY)
        say(f"world {place.number}: scored")


def say_nothing(line: str) -> None:
    """What a trial or a world runs is no run that anybody looks at."""
