"""The worlds of the study: where each lies, what is drawn of which seed, and how it is scored."""

from dataclasses import dataclass, replace

import pyarrow as pa

from raycomp.config import ScorerConfig, WavesConfig
from raycomp.curate.config import AlignConfig, AttributeConfig, CurateConfig
from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns, write_table
from raycomp.study.arms import FAULT
from raycomp.study.config import StudyConfig
from raycomp.study.pool import Exam, Pool, load_arrays, make_exam, make_pool, save_arrays
from raycomp.train.little_world import FIT, World, make_world
from raycomp.words import ALIGNMENT, CAPTION, MEAN_PAS, STATUS, UID
from raycomp.worlds.exam import draw_exam
from raycomp.worlds.faults import DEFAULT_MIX
from raycomp.worlds.pairs import ALL_PAIRS, hold_out

# Added to a world's seed; the world's parts have those of train/little_world.
_SEEN_SEED, _UNSEEN_SEED, _NEGATIVE_SEED = 3_000_000, 4_000_000, 5_000_000
# Of a scorer's retrieval.
_NUM_HELD_OUT = 500
_FAULTY = 3
"""One pair in so many has a fault; none has an image that does not decode."""
_MIX = {fault: share for fault, share in DEFAULT_MIX.items() if fault != "corrupt_image"}
_MADE, _SCORES, _POOL, _SEEN, _UNSEEN = "made.json", "scores.parquet", "pool.npz", "seen.npz", "unseen.npz"
_FIGURES = ("image_to_text", "text_to_image", "train_s")
SCORES_SCHEMA = pa.schema(
    [
        (UID, pa.string()),
        (STATUS, pa.string()),
        (CAPTION, pa.string()),
        (ALIGNMENT, pa.float32()),
        (MEAN_PAS, pa.float32()),
        (FAULT, pa.string()),
    ]
)


@dataclass(frozen=True)
class Place:
    """One world of the study and the folder it lies in."""

    number: int
    folder: str
    config: StudyConfig

    @property
    def seed(self) -> int:
        return 100 * self.config.seed + self.number

    @property
    def files(self) -> Folder:
        return Folder(self.folder)

    @property
    def is_made(self) -> bool:
        """Whether its scorer is trained."""
        return self.files.exists(_MADE)

    @property
    def is_ready(self) -> bool:
        """Whether cells can be trained in it."""
        return self.files.exists(_UNSEEN)

    @property
    def scorer(self) -> ScorerConfig:
        return ScorerConfig(**self.files.read_json(_MADE)["scorer"])

    def describe_scorer(self) -> dict[str, float]:
        """Return its retrieval among held-out clean pairs, 0 to 1, and the seconds it was trained for."""
        made = self.files.read_json(_MADE)
        return {name: made[name] for name in _FIGURES}

    @property
    def shards(self) -> str:
        return self.files.at("world", "curate")


def make_scorer(place: Place) -> None:
    """Draw the world's shards; train its scorer on clean pairs of all colours and shapes, on one thread."""
    import torch

    from raycomp.train.tiny_clip import train_scorer

    torch.set_num_threads(1)
    config, seed = place.config, place.seed
    num_faulty = config.pairs // _FAULTY
    world = make_world(
        place.files.at("world"),
        seed,
        num_train=config.scorer_pairs,
        num_clean=config.pairs - num_faulty,
        num_faulty=num_faulty,
        num_held_out=_NUM_HELD_OUT,
        mix=_MIX,
        pairs=ALL_PAIRS - hold_out(place.number),
    )
    assert World(world.train, place.shards, world.held_out) == world
    fit = replace(FIT, steps=config.scorer_steps, batch_size=config.batch_size)
    trained = train_scorer(world, place.files.at("scorer"), seed, fit)
    scorer = {"model": trained.scorer.model, "weights": trained.scorer.weights}
    facts = {name: getattr(trained, name) for name in _FIGURES}
    place.files.write_json({"scorer": scorer, **facts}, _MADE)
    for part in ("train", "held_out"):
        place.files.remove("world", part)


def curation(place: Place) -> CurateConfig:
    """Return the config by which raycomp scores the world's pairs: all of them by both scores."""
    return CurateConfig(
        input=place.shards,
        scorer=place.scorer,
        align=AlignConfig(keep=0.7),
        attribute=AttributeConfig(keep=0.5, pool=1.0),
        waves=WavesConfig(shards_per_wave=4),
        cluster=replace(place.config.cluster, gpu=False),
        extra_columns=(FAULT,),
        materialize=False,
    )


def make_ready(place: Place, scores: list[str]) -> None:
    """Write what trainings need of a world whose pairs have these files of scores."""
    import torch

    torch.set_num_threads(1)
    config, files, scorer = place.config, place.files, place.scorer
    unseen = hold_out(place.number)
    seen = ALL_PAIRS - unseen
    table = pa.concat_tables([read_columns(uri, SCORES_SCHEMA.names) for uri in scores])
    write_table(table, files.at(_SCORES), SCORES_SCHEMA)
    save_arrays(make_pool(place.shards, table, scorer, place.seed + _NEGATIVE_SEED, seen), files, _POOL)
    seen_scenes = draw_exam(config.scenes, place.seed + _SEEN_SEED, seen)
    save_arrays(make_exam(seen_scenes, scorer), files, _SEEN)
    unseen_scenes = draw_exam(config.unseen_scenes, place.seed + _UNSEEN_SEED, some_of=unseen)
    save_arrays(make_exam(unseen_scenes, scorer), files, _UNSEEN)


def load_scores(place: Place) -> pa.Table:
    """Return the scores of a world's pairs, in the order of its pool."""
    return read_columns(place.files.at(_SCORES), SCORES_SCHEMA.names)


def load_pool(place: Place) -> Pool:
    """Return what trainings take of a world."""
    return load_arrays(Pool, place.files, _POOL)


def load_exams(place: Place) -> dict[bool, Exam]:
    """Return the exams of a world, by whether all of its colours and shapes were seen together."""
    return {True: load_arrays(Exam, place.files, _SEEN), False: load_arrays(Exam, place.files, _UNSEEN)}
