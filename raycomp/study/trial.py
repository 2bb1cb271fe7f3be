"""One run: select pairs of a world by a selection rule, train a tiny CLIP on them, evaluate it."""

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import ModelConfig, exact_share, override_all
from raycomp.core.outcomes import judge_choices
from raycomp.core.selection import parse_uids, random_scores
from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns, write_table
from raycomp.data.paths import KEPT_FILE, RUN
from raycomp.data.runs import list_scores, read_finished
from raycomp.evaluation.config import EvaluateConfig
from raycomp.schema import STUDY_RUN_SCHEMA
from raycomp.study.config import StudyConfig
from raycomp.study.runs import ALIGN, CPI, DRAWN_IN_POOL, FULL, METHODS, ORACLE, RANDOM, StudyRun
from raycomp.sweep.metric import world_evaluation
from raycomp.sweep.seed_training import SELECTED, TRAINED, run_commands
from raycomp.sweep.worlds import CURATED, FAULT, TEST_SET, UNSEEN, Place, list_places, write_negatives
from raycomp.training.config import TrainConfig
from raycomp.training.little_world import FIT
from raycomp.training.losses import find_loss
from raycomp.training.negative_images import write_negative_images
from raycomp.words import ACCURACY, AUGMENTED_ACCURACY, BRITTLENESS, RECALLS, TEST, UID
from raycomp.worlds.faults import NO_FAULT

KEEP = 0.5
_SUBSET_SCHEMA = pa.schema([(UID, pa.string())])
# The oracle draws from all pairs.
RULES = {
    FULL: "full",
    ORACLE: "full",
    CPI: "cpi",
    ALIGN: "align_only",
    DRAWN_IN_POOL: "align70_random50",
    RANDOM: "random",
}
# Added to a run's seed: worlds have their own offsets, and no run shares a scorer's weights and order.
_RUN_SEED = 6_000_000


def list_worlds(config: StudyConfig, work: Folder) -> list[Place]:
    return list_places(config.worlds, work, config.seed, config.sizes, config.cluster, config.unseen_scenes)


def make_negatives(one_run: StudyRun, place: Place) -> None:
    """Write a run's negatives, and their pictures, unless an earlier run did."""
    loss, (name, images) = find_loss(METHODS[one_run.method].loss), _name_negatives(one_run)
    done = f"{images if loss.negative_images else name}.json"
    if not loss.negatives or place.files.exists(done):
        return
    write_negatives(place, name, one_run.writing)
    if loss.negative_images:
        write_negative_images(place.files.at(name), place.files.at(images))
    place.files.write_json({}, done)


def _name_negatives(one_run: StudyRun) -> tuple[str, str]:
    """Return the names of the folders of its negatives and of pictures of them, in its world."""
    what = f"{one_run.operation or 'all'}-{one_run.writing.calls}".lower()
    return f"negatives-{what}", f"images-{what}"


def run_one(one_run: StudyRun, place: Place, config: StudyConfig, out: Folder) -> None:
    """Train and evaluate a run on one thread; write cells/NAME.parquet, and NAME.json last, which marks the
    run as done.

    The numbers depend on the run, the world and the config's options alone.
    """
    started = time.perf_counter()
    # Draws weights, order, negatives and random subsets: the same in all runs of one seed.
    seed = _RUN_SEED + 1000 * config.seed + one_run.seed
    work, curated = Folder(place.files.at("cells", one_run.name)), place.files.at(CURATED)
    tables = [read_columns(uri, [UID, FAULT]) for uri in list_scores(read_finished(curated), curated)]
    scores = pa.concat_tables(tables)
    settings = {"select.rule": RULES[one_run.subset], "seed": seed}
    training = _describe_training(one_run, place, config, seed)
    if one_run.subset == ORACLE:
        training = replace(training, subset=work.at("oracle.parquet"))
        write_table(draw_clean(scores, seed), work.at("oracle.parquet"), _SUBSET_SCHEMA)
    metrics = run_commands(curated, settings, training, _describe_evaluations(place), work, is_local=True)
    kept = training.subset or Folder(work.at(SELECTED)).at(KEPT_FILE)
    trained = Folder(work.at(TRAINED)).read_json(RUN)
    rows = [_read_rows(Folder(work.at(test_set)), test_set == TEST_SET) for test_set in metrics]
    write_table(pa.concat_tables(rows), out.at("cells", f"{one_run.name}.parquet"), STUDY_RUN_SCHEMA)
    facts = {
        "cell": one_run.to_dict(),
        "world": place.number,
        "scorer": place.describe_scorer(),
        **count_faults(one_run.subset, read_columns(kept, [UID])[UID], scores),
        "losses": [trained["first_loss"], trained["last_loss"]],
        **{way: metrics[TEST_SET][f"retrieval.{name}@1.{TEST}"].value for way, name in RECALLS.items()},
        "seconds": time.perf_counter() - started,
    }
    out.write_json(facts, "cells", f"{one_run.name}.json")
    work.remove()


def _describe_training(one_run: StudyRun, place: Place, config: StudyConfig, seed: int) -> TrainConfig:
    method, (negatives, images) = METHODS[one_run.method], _name_negatives(one_run)
    loss = find_loss(method.loss)
    fit = replace(
        FIT,
        loss=method.loss,
        steps=config.steps,
        batch_size=config.batch_size,
        num_negatives=method.num_negatives,
        crop=(1.0, 1.0),
        seed=seed,
    )
    return TrainConfig(
        negatives=place.files.at(negatives) if loss.negatives else None,
        negative_images=place.files.at(images) if loss.negative_images else None,
        model=ModelConfig(place.scorer.model, f"random:{seed}"),
        train=fit,
    )


def _describe_evaluations(place: Place) -> dict[str, EvaluateConfig]:
    """Return the evaluation of a model: the seen pairs, with retrieval among them, and the unseen ones."""
    seen, unseen = (world_evaluation(place.files.at(name)) for name in (TEST_SET, UNSEEN))
    retrieval = {"benchmarks": (*seen.benchmarks, "retrieval"), "retrieval.input": place.files.at(TEST_SET)}
    return {TEST_SET: override_all(seen, retrieval), UNSEEN: unseen}


def draw_clean(scores: pa.Table, seed: int) -> pa.Table:
    """Return the uids of the oracle: drawn from the pairs without a fault, half as many as all pairs.

    ``scores``: uid, and fault, null or "none" for a pair without one.
    """
    clean = scores.filter(pc.equal(pc.fill_null(scores[FAULT], NO_FAULT), NO_FAULT))
    order = np.argsort(-random_scores(parse_uids(clean[UID]), seed), kind="stable")
    return clean.select([UID]).take(order[: exact_share(KEEP, len(scores))])


def count_faults(subset: str, uids: pa.ChunkedArray, scores: pa.Table) -> dict[str, Any]:
    """Return the number of pairs of a selection rule, and how many of them have each fault, "none" included.

    Raises ValueError if it selects fewer rows than it should: all but ``full`` have exactly half.
    """
    wanted = len(scores) if subset == FULL else exact_share(KEEP, len(scores))
    if len(uids) != wanted:
        raise ValueError(f"{subset}: has {len(uids)} pairs, must have {wanted}; set more pairs per world")
    own = pc.fill_null(scores.filter(pc.is_in(scores[UID], uids))[FAULT], NO_FAULT)
    return {"pairs": wanted, "faults": dict(sorted(Counter(own.to_pylist()).items()))}


def _read_rows(evaluated: Folder, is_seen: bool) -> pa.Table:
    """Return a row of STUDY_RUN_SCHEMA for each negative of an evaluation."""
    table = read_columns(evaluated.at("scores", "world.parquet"))
    found = judge_choices(table["positive_scores"].to_pylist(), table["negative_scores"].to_pylist())
    columns = {
        "scene": table["id"].cast(pa.int32()),
        "category": pc.binary_join_element_wise(table["op"], table["kind"], " "),
        "seen": np.full(len(table), is_seen),
        "right": found[ACCURACY].right_N > 0,
        "augmented": found[AUGMENTED_ACCURACY].right_N > 0,
        "brittle": found[BRITTLENESS].right_N > 0,
    }
    return pa.table(columns)
