"""The options of training."""

from dataclasses import dataclass, field

from raycomp.config.options import (
    CODE,
    FREE,
    INPUT,
    NUM_PIXELS,
    PLACE,
    SHARE,
    SHARE_OR_INPUT,
    ClusterConfig,
    ColumnsConfig,
    ModelConfig,
    OptionGroup,
    check,
    checked_by,
    one_of,
    read_share_or_none,
    within,
)
from raycomp.training.losses import get_loss
from raycomp.words import TOWERS

TRACKERS = ("wandb", "mlflow")
EPOCHS = 5
LEAST_GPU = 0.0001
"""Ray's unit of resources: a smaller share of a GPU would be none."""


def _check_held_out(name: str, value: str | float) -> None:
    share = read_share_or_none(value)
    fits = bool(str(value)) if share is None else 0 < share <= 0.5
    wanted = "a share above 0 and at most 0.5, or an input (a path that is a number as ./NAME)"
    check(fits, name, value, wanted)


def _check_tower(name: str, value: str) -> None:
    tower, colon, count = value.partition(":")
    is_tower = tower in TOWERS and (not colon or count.isdecimal())
    check(is_tower, name, value, "image or text, or one of them and :N")


@dataclass(frozen=True)
class FitConfig(OptionGroup, name="train"):
    """The optimization: AdamW with warm-up and cosine, as in open_clip."""

    loss: str = field(default="clip", metadata=CODE)
    """clip, siglip; negclip, ceclip (both need ``negatives``); triplet (needs ``negatives`` and
    ``negative_images``); or FILE.py:NAME, your own loss."""
    steps: int | None = field(default=None, metadata={"instead": "train.epochs"} | within("at least 1"))
    """Optimizer steps, in place of the ``epochs`` of a preset or file; none = those of ``epochs``."""
    epochs: int | None = field(default=None, metadata={"instead": "train.steps"} | within("at least 1"))
    """Passes over the pairs, in place of the ``steps`` of a preset or file; none = 5 unless that is set."""
    batch_size: int = field(default=256, metadata=within("at least 2"))
    """Pairs per step, over all workers; the loss compares each image with all captions of the batch."""
    workers: int | None = field(default=None, metadata=FREE | within("at least 1"))
    """Processes that share a batch; none = one for each GPU, or one on a machine without GPUs."""
    gpus_per_worker: float = field(default=1.0, metadata=FREE)
    """Share of a GPU that a worker reserves, 0 to 1. Below 1 there is one worker, and other runs on the
    cluster may use the rest: with 0.25 four trials of a sweep share a GPU. Ray divides the GPU's time, not
    its memory, so all of them together must fit."""
    learning_rate: float = field(default=5e-4, metadata=within("above 0, and finite"))
    """Maximum learning rate, at the end of the warm-up; it then falls to 0 along half a cosine. The default
    suits random weights; for fine-tuning use 1e-6 to 1e-5."""
    warmup: float = field(default=0.05, metadata=within("from 0 to below 1"))
    """Share of the steps in which the learning rate rises: 0.05 of 10,000 is 500."""
    weight_decay: float = field(default=0.2, metadata=within("at least 0, and finite"))
    """Weight decay of matrices; biases, norms and the logit scale have none."""
    beta1: float = field(default=0.9, metadata=within("from 0 to below 1"))
    beta2: float = field(default=0.98, metadata=within("from 0 to below 1"))
    eps: float = field(default=1e-6, metadata=within("above 0, and finite"))
    """AdamW's epsilon."""
    clip_norm: float | None = field(default=None, metadata=within("above 0, and finite"))
    """Maximum norm of the gradient of all weights together; none = no clipping."""
    autocast: bool = False
    """Compute in bf16 where that is safe, which is faster on GPUs; weights and optimizer keep
    ``model.precision``, best fp32."""
    accumulate: int = field(default=1, metadata=within("at least 1"))
    """Number of parts in which a worker embeds its rows, to save memory; above 1 each row is embedded twice.
    The loss is still that of the whole batch."""
    num_negatives: int = field(default=1, metadata=within("at least 1"))
    """Maximum number of hard negatives per caption in a batch, drawn again in every epoch; 1 for triplet."""
    crop: tuple[float, ...] = (0.9, 1.0)
    """Smallest and largest share of an image's area in a random crop, as in open_clip. 1 and 1 = the
    preprocessing of evaluation, without a crop."""
    fast_decode: bool = False
    """Decode large JPEGs at a reduced scale: faster, with slightly different pixels."""
    max_pixels: int = field(default=100_000_000, metadata=NUM_PIXELS)
    """Pairs whose image has more pixels are dropped; for a curation its own limit applies."""
    window: int = field(default=8, metadata=within("at least 1"))
    """Number of shards whose pairs are shuffled together. Memory holds three windows with their images."""
    imc: float = field(default=0.3, metadata=within("at least 0, and finite"))
    """ceclip: weight of the contrast between captions and negatives. Zhang et al. (arXiv 2306.08832)."""
    cmr: float = field(default=0.2, metadata=within("at least 0, and finite"))
    """ceclip: weight of the ranking loss, by which an image prefers its caption by a margin."""
    freeze: tuple[str, ...] = field(default=(), metadata=checked_by(_check_tower))
    """Towers whose weights are fixed, joined with commas: image, text; image:3 = all but its last 3 groups of
    layers (the projection is one group, each block is one)."""
    lora_rank: int | None = field(default=None, metadata=within("at least 1"))
    """LoRA: train adapters of this rank for the query, key and value matrices of both towers, and add them to
    the weights at the end; none = train all weights."""
    keep_start: float = field(default=0.0, metadata=SHARE)
    """WiSE-FT: share of the initial weights in the written model, against forgetting in fine-tuning; 0 = the
    trained weights."""
    seed: int = field(default=0, metadata=within("at least 0"))
    """Draws the order of the pairs, their crops, captions and negatives; the seed of random weights is in
    ``model.weights``."""
    checkpoint_steps: int = field(default=500, metadata=FREE | within("at least 1"))
    """Steps between checkpoints. Steps are taken while one is written. A kill loses at most these steps and
    those taken since the write of the last one started."""
    prefetch: bool = field(default=False, metadata=FREE)
    """Copy the next batch to the GPU from pinned memory, in a thread, while a step is computed. The batches
    stay the same. The gain has not been measured."""
    keep_checkpoints: int = field(default=2, metadata=FREE | within("at least 1"))
    """Number of checkpoints that are kept, the last ones."""
    evaluate_steps: int | None = field(default=None, metadata=FREE | within("at least 1"))
    """Steps from one evaluation to the next, of ``held_out`` and of a function that Python gave
    ``raycomp.train``; none = ten evaluations of ``held_out``, the function only at the end."""
    held_out: str | None = field(default=None, metadata=SHARE_OR_INPUT | checked_by(_check_held_out))
    """Pairs to evaluate during training: a share of the training pairs (0.02, at most 0.5), which is left out
    of training, or another input. At most 1,000 pairs are evaluated, by their loss and recall@1."""
    log_to: tuple[str, ...] = field(default=(), metadata=FREE | one_of(TRACKERS))
    """Experiment trackers that also get every metric, joined with commas: wandb, mlflow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_one = not get_loss(self.loss).negative_images or self.num_negatives == 1
        check(is_one, "train.num_negatives", self.num_negatives, f"1 with train.loss={self.loss}")
        both = self.steps is None or self.epochs is None
        check(both, "train.epochs", self.epochs, f"none with train.steps={self.steps}")
        most = f"at most train.batch_size={self.batch_size}, a pair for each"
        check((self.workers or 1) <= self.batch_size, "train.workers", self.workers, most)
        share = self.gpus_per_worker
        check(LEAST_GPU <= share <= 1, "train.gpus_per_worker", share, "above 0 and at most 1")
        is_whole = share == 1 or (self.workers or 1) == 1
        one = f"1 with train.workers={self.workers}; set train.workers=1 to share a GPU"
        check(is_whole, "train.gpus_per_worker", share, one)
        check(len(set(self.log_to)) == len(self.log_to), "train.log_to", self.log_to, "each tracker once")
        crop = self.crop
        fits = len(crop) == 2 and 0 < crop[0] <= crop[1] <= 1
        check(fits, "train.crop", crop, "two shares above 0, the larger one last")

    @property
    def length(self) -> str:
        """Steps or epochs, and the pairs of a step, for readers."""
        length = f"{self.steps:,} steps" if self.steps else f"{self.epochs or EPOCHS} epochs in steps"
        return f"{length} of {self.batch_size:,} pairs"

    @property
    def num_workers(self) -> int | None:
        """The workers that are set; one where a GPU is shared."""
        return 1 if self.gpus_per_worker < 1 else self.workers


@dataclass(frozen=True)
class TrainConfig(OptionGroup):
    """Pairs in, a model out."""

    input: str = field(default="", metadata=INPUT)
    """A folder that ``raycomp curate`` or ``select`` wrote, with or without shards; or images with captions
    in any layout of ``raycomp curate``."""
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    subset: str | None = field(default=None, metadata=PLACE)
    """A ``subset.npy`` or ``kept.parquet`` with the pairs to train on. A pair listed k times is used k times
    in each epoch. none = all pairs, once."""
    negatives: str | None = field(default=None, metadata=PLACE)
    """A folder that ``raycomp negatives`` wrote for the same pairs. Or your own negatives, FILE.parquet with
    the columns uid, caption and negatives, a list of texts in each row."""
    negative_images: str | None = field(default=None, metadata=PLACE)
    """Parquet with a row for each negative that has an image: uid, negative (its text), and image (bytes) or
    path."""
    hard_images: str | None = field(default=None, metadata=PLACE)
    """Parquet with uid and neighbours, the uids of the pairs with the most similar images (raycomp negatives
    writes it with negatives.export=neighbours). In each epoch a pair is followed by one of the first three of
    them, so that both are in one batch, but for the ends of batches; each pair still comes once. Neighbours
    in other shards are left out."""
    max_bad_fraction: float = field(default=0.05, metadata=FREE | SHARE)
    """Maximum share of bad rows, 0 to 1; above it the run stops with exit code 3 before the first step.
    Duplicates and rows outside ``subset`` do not count as bad. A curation has its own limit. The same limit
    applies to ``negative_images``."""
    model: ModelConfig = field(default_factory=lambda: ModelConfig(weights="random:0"))
    train: FitConfig = field(default_factory=FitConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)

    def __post_init__(self) -> None:
        super().__post_init__()
        precision = self.model.precision
        check(precision == "fp32", "model.precision", precision, "fp32; train.autocast=true computes in bf16")
        name, loss = self.train.loss, get_loss(self.train.loss)
        folder = f"a folder that raycomp negatives wrote, which train.loss={name} needs; add --negatives DIR"
        folder += " or FILE.parquet"
        check(bool(self.negatives) or not loss.negatives, "negatives", self.negatives, folder)
        files = f"Parquet with images of negatives, which train.loss={name} needs; add --negative_images FILE"
        has_images = bool(self.negative_images) or not loss.negative_images
        check(has_images, "negative_images", self.negative_images, files)
