"""Published methods that train the model: ZSCL, C-CLIP, DIKI, and CL-MoE, adapted to ranking answers.

B rows of a batch, R rows of a pass, N rows in all, T texts, L tokens of context (of counts: layers with
experts), E experts, G tasks so far, D dims; of ZSCL, N reference images, T reference texts, B of either drawn
for a step.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Keys, Split
from raycomp.continual.methods.tuner import TaskBatch, Tuner, encode
from raycomp.core import losses
from raycomp.models import adapters
from raycomp.models.architecture import ScorerSpec
from raycomp.models.clip import Clip
from raycomp.training.towers import Made, add_up, gather, slice_own, to_image

TOWERS = ("image", "text")
# Zscl: the largest number of reference texts that a step's images are compared with.
_MOST_TEXTS = 1024


@dataclass(frozen=True)
class HeldBatch(TaskBatch):
    """Rows of a task, and of the reference images that a step draws."""

    reference_RCHW: Tensor | None = None
    drawn: tuple[np.ndarray, np.ndarray] = (np.empty(0, np.int64), np.empty(0, np.int64))
    """Reference images and texts of the step, of all ranks."""


class Zscl(Tuner):
    """Zheng et al. 2023, arXiv:2303.06628, following the authors' code, with CLIP's loss of the task's pairs.

    ``distil`` is applied between images drawn from the reference and the first model's reference texts: each
    image should rank the texts as the first model did (images), and each text the images (texts). The logits
    of both sides have the first model's scale. The text tower is regularized by the other two parts alone:
    the squared distance from the weights at the start of the task (l2), and the mean of those weights and of
    the weights at every ``tune.ensemble``-th step. This mean is the result of a task; without such a step,
    the last weights are.

    The authors' reference is ImageNet with Conceptual Captions. A reference of the stream's own kind
    preserves the model's knowledge of such images, and less of its knowledge of other images, which general
    zero-shot test sets measure. Further choices: no label smoothing, because there are no classes; the logit
    scale is trained as in ``finetune``.
    """

    def __init__(
        self, clip: Clip, spec: ScorerSpec, config: ContinualConfig, seed: int, reference: Split | None
    ):
        """``reference``: images and texts, not pairs, whose similarities are preserved; may be none where
        ``tune.distil`` is 0."""
        super().__init__(clip, spec, config, seed)
        self.reference = reference.pixels if reference is not None else None
        if self.config.distil:
            assert reference is not None and reference.pixels is not None, "zscl needs a reference"
            assert reference.token_TL is not None, "a reference has tokens"
            model = self.model.eval()
            self.image_ND = torch.from_numpy(self.embed(model, "image", reference.pixels)).to(self.device)
            self.text_TD = torch.from_numpy(self.embed(model, "text", reference.token_TL)).to(self.device)
            self.scale = self.model.logit_scale.detach().exp()
        self.start: dict[str, Tensor] = {}
        self.mean: dict[str, Tensor] = {}
        self.count = 0
        """Number of weights in the mean, in addition to those of the start."""

    def open(self) -> None:
        """Store the weights at the start of the task."""
        self.start = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        self.mean, self.count = {name: value.clone() for name, value in self.start.items()}, 0

    def batch(self, step: int, row_B: np.ndarray) -> TaskBatch:
        """Return this rank's rows, and those of the reference images that the step draws."""
        plain = super().batch(step, row_B)
        if not self.config.distil:
            return plain
        assert self.reference is not None
        rng = np.random.default_rng([self.seed, self.number, step])
        # Distinct rows, all of them if there are no more than a step takes.
        image_B = np.sort(rng.permutation(len(self.image_ND))[: self.config.batch_size])
        text_T = np.sort(rng.permutation(len(self.text_TD))[:_MOST_TEXTS])
        pixels = torch.from_numpy(self.reference[image_B[slice_own(len(image_B))]]).to(self.device)
        return HeldBatch(
            **vars(plain), reference_RCHW=to_image(pixels, self.spec.image), drawn=(image_B, text_T)
        )

    def embed_batch(self, batch: TaskBatch) -> Made:
        """Add the reference images, of length 1, and the distance of the weights from the start."""
        made = super().embed_batch(batch)
        if isinstance(batch, HeldBatch):
            made["reference"] = F.normalize(self.model.encode_image(batch.reference_RCHW).float(), dim=-1)
        if self.config.l2:
            far = [(value - self.start[name]).square().sum() for name, value in self.model.named_parameters()]
            made["l2"] = torch.stack(far).sum()
        return made

    def losses(self, made: Made, batch: TaskBatch) -> dict[str, Tensor]:
        """Return CLIP's loss and the regularization losses; a part of weight 0 is left out."""
        parts = super().losses(made, batch)
        if isinstance(batch, HeldBatch):
            image_B, text_T = batch.drawn
            image_BD, text_TD = gather(made["reference"], len(image_B)), self.text_TD[text_T]
            student_BT = self.scale * image_BD @ text_TD.T
            teacher_BT = self.scale * self.image_ND[image_B] @ text_TD.T
            parts["images"] = self.config.distil * losses.distil(student_BT, teacher_BT)
            parts["texts"] = self.config.distil * losses.distil(student_BT.T, teacher_BT.T)
        if self.config.l2:
            parts["l2"] = self.config.l2 * made["l2"]
        return parts

    def after(self, step: int) -> None:
        """Add these weights to the mean at every ``tune.ensemble``-th step."""
        if (step + 1) % self.config.ensemble:
            return
        self.count += 1
        for name, value in self.model.named_parameters():
            self.mean[name] += (value.detach() - self.mean[name]) / (self.count + 1)

    @torch.no_grad()
    def close(self) -> None:
        """Set the weights to the mean."""
        if self.count:
            for name, value in self.model.named_parameters():
                value.copy_(self.mean[name])
        self.start, self.mean, self.count = {}, {}, 0

    def learned(self) -> dict[str, Any]:
        """Return the weights, those of the start and their mean."""
        return {**super().learned(), "start": self.start, "mean": self.mean, "count": self.count}

    def relearn(self, learned: dict[str, Any]) -> None:
        """Restore them."""
        super().relearn(learned)
        self.start, self.mean = (
            {name: value.to(self.device) for name, value in learned[part].items()}
            for part in ("start", "mean")
        )
        self.count = learned["count"]


class CClip(Tuner):
    """Liu et al., ICLR 2025: CLIP's loss, and ``consolidate`` of the model with the model before the task.

    Each task trains new adapters (raycomp.models.adapters) and the logit scale. ``tune.merge`` of the change
    is added to the weights at the end; evaluations within a task use this sum, too. The text leaves one
    detail open; chosen here: the projector of the new features, one for images and texts, is a matrix that
    starts each task at the identity, so that both models agree at the start. Left out: dropout in the
    adapters, and separate learning rates for the towers.
    """

    def __init__(self, clip: Clip, spec: ScorerSpec, config: ContinualConfig, seed: int):
        """Raise UserError if a tower has no attention that takes adapters."""
        super().__init__(clip, spec, config, seed)
        adapters.find_blocks(self.model, "method=c-clip")
        self.adapted: Any = None
        """The model of an open task, with its adapters; ``model`` stays as it was before."""
        self.task = nn.ModuleDict()
        """Parameters that the task trains: adapters and projector."""

    def open(self) -> None:
        """Put new adapters on a copy of the model."""
        self.adapted = copy.deepcopy(self.model)
        key = np.random.SeedSequence((self.seed, self.number)).generate_state(1)[0]
        added = adapters.add_adapters(self.adapted, self.config.rank, int(key))
        projector = nn.Linear(self.spec.embedding_dim, self.spec.embedding_dim, bias=False)
        nn.init.eye_(projector.weight)
        self.task = nn.ModuleDict({"adapters": added, "projector": projector}).to(self.device)
        self.model.eval()

    def embed_batch(self, batch: TaskBatch) -> Made:
        """Add the projected features of both towers, and the features of the model before the task."""
        made, project = super().embed_batch(batch), self.task["projector"]
        with torch.no_grad():
            old = encode(self.model, batch)
        new = project(made["image"]).float(), project(made["text"]).float()
        return {**made, "new_image": new[0], "new_text": new[1], "old_image": old[0], "old_text": old[1]}

    def losses(self, made: Made, batch: TaskBatch) -> dict[str, Tensor]:
        """Return CLIP's loss and the consolidation loss."""
        new, old = (
            (gather(made[f"{age}_image"], batch.num_rows), gather(made[f"{age}_text"], batch.num_rows))
            for age in ("new", "old")
        )
        return {**super().losses(made, batch), "consolidation": losses.consolidate(new, old)}

    def close(self) -> None:
        """Merge a share of the adapters into the weights."""
        self.model = self.seen_model()
        self.adapted, self.task = None, nn.ModuleDict()

    @property
    def trained(self) -> nn.Module:
        """Adapters and projector."""
        return self.task

    @property
    def clip(self) -> Any:
        """The model with its adapters."""
        return self.adapted

    def seen_model(self) -> Any:
        """Return the model with a share of the adapters' current change merged."""
        if self.adapted is None:
            return self.model
        mixed, share = copy.deepcopy(self.model), self.config.merge
        whole = adapters.merge_adapters(self.task["adapters"]).state_dict()
        mixed.load_state_dict(
            {
                name: value + share * (whole[name] - value) if value.is_floating_point() else value
                for name, value in self.model.state_dict().items()
            }
        )
        return mixed

    def learned(self) -> dict[str, Any]:
        """Return the weights before the task, and the parameters that the task trains."""
        named = self.task.named_parameters()
        task = {name: value for name, value in named if value.requires_grad}
        return {**super().learned(), "task": task}

    def relearn(self, learned: dict[str, Any]) -> None:
        """Restore what ``learned`` returned; the adapters are created again, as they belong to its
        weights."""
        super().relearn(learned)
        if self.train is None or not learned["task"]:
            return
        self.open()
        with torch.no_grad():
            for name, value in self.task.named_parameters():
                if value.requires_grad:
                    value.copy_(learned["task"][name])


class Diki(Tuner):
    """Tang et al. 2024, arXiv:2407.05342, following the authors' code, with CLIP's loss of the task's pairs.

    Only ``tune.contexts`` keys and values of each of the first ``tune.depth`` layers of both towers are
    trained, at ten times the learning rate. An input takes the prompts of the task whose Gaussian of the
    frozen model's features gives it the highest density p; their residual has the weight sigmoid(log p / D -
    1).

    Differences: a text's task is chosen by the Gaussian of the task's texts, and the text takes its own
    prompts. The authors give all texts the prompts of the query image, which embeds every text anew for every
    task and is undefined where the text is the query. Covariances are shrunk as in ``fit_gaussian``, for
    tasks with few samples. AdamW replaces their SGD, as in all methods here.
    """

    times = 10.0

    def __init__(self, clip: Clip, spec: ScorerSpec, config: ContinualConfig, seed: int):
        """Raise UserError if a tower is not made of plain blocks."""
        super().__init__(clip, spec, config, seed)
        self.model.requires_grad_(False)
        blocks = adapters.find_blocks(self.model, "method=diki")
        self.depths = {tower: min(self.config.depth, len(blocks[tower])) for tower in TOWERS}
        self.widths = {tower: blocks[tower][0].attn.embed_dim for tower in TOWERS}
        self.choices = {tower: adapters.PromptChoice() for tower in TOWERS}
        for tower in TOWERS:
            adapters.add_prompts(blocks[tower], self.depths[tower], self.choices[tower])
        self.gaussians: dict[str, list[losses.Gaussian]] = {tower: [] for tower in TOWERS}

    def open(self) -> None:
        """Add new prompts; fit the Gaussians of the task's images and texts in the frozen model's
        features."""
        assert self.train is not None
        features = {"image": self.train.image_ND, "text": self.train.text_TD}
        for tower in TOWERS:
            # A task that is opened again after a resume must not exist twice.
            del self.choices[tower].sets[self.number :], self.gaussians[tower][self.number :]
            self._add(tower)
            self.gaussians[tower].append(losses.fit_gaussian(torch.from_numpy(np.array(features[tower]))))

    def _add(self, tower: str) -> None:
        sets = self.choices[tower].sets
        key = np.random.SeedSequence((self.seed, len(sets), TOWERS.index(tower)))
        generator = torch.Generator().manual_seed(int(key.generate_state(1)[0]))
        made = adapters.Prompts(self.depths[tower], self.config.contexts, self.widths[tower], generator)
        sets.append(made.to(self.device))

    def embed_batch(self, batch: TaskBatch) -> Made:
        """Embed the task's rows by the task's prompts, at full weight."""
        for tower in TOWERS:
            self.route(tower)
        return super().embed_batch(batch)

    @property
    def trained(self) -> nn.Module:
        """The prompts of the open task."""
        return nn.ModuleDict({tower: choice.sets[-1] for tower, choice in self.choices.items()})

    def choose(self, tower: str, feature_ND: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the prompt index of each row, int64 (N,), and the weight of its residual, fp32 (N,); nothing
        before the first task, which has no prompts."""
        if not self.gaussians[tower]:
            return ()
        features = torch.from_numpy(np.array(feature_ND))
        log_GN = torch.stack([losses.log_density(features, gaussian) for gaussian in self.gaussians[tower]])
        best_N, set_N = log_GN.max(0)
        return set_N.numpy(), torch.sigmoid(best_N / feature_ND.shape[1] - 1).float().numpy()

    def route(self, tower: str, *chosen_R: Tensor) -> None:
        """Give each row its prompts; without any, the prompts of the open task at full weight."""
        choice = self.choices[tower]
        choice.set_R, choice.share_R = chosen_R or (None, None)

    def learned(self) -> dict[str, Any]:
        """Return the prompts and Gaussians of all tasks."""
        return {
            tower: {
                "prompts": [one.state_dict() for one in self.choices[tower].sets],
                "gaussians": [gaussian._asdict() for gaussian in self.gaussians[tower]],
            }
            for tower in TOWERS
        }

    def relearn(self, learned: dict[str, Any]) -> None:
        """Restore them."""
        for tower in TOWERS:
            self.choices[tower].sets.clear()
            for state in learned[tower]["prompts"]:
                self._add(tower)
                self.choices[tower].sets[-1].load_state_dict(state)
            self.gaussians[tower] = [losses.Gaussian(**parts) for parts in learned[tower]["gaussians"]]


class ClMoe(Tuner):
    """After CL-MoE (arXiv:2503.00413), whose model writes answers, for a CLIP that ranks them as texts.

    Kept: LoRA experts in the MLP of every block, each of rank ``tune.rank``. An instance router, a softmax at
    every position; training uses this router alone. A task router, the frequency with which experts were
    among a task's best two; both routers have equal weight when something is embedded. The task is then the
    one whose mean of the frozen model's features is nearest. Momentum of the experts after each task
    (``expert_momentum``), layer by layer. Experts and routers have ten times the learning rate of whole
    models.

    Left out or changed: the language model, its prompt and its token loss, replaced by CLIP's loss of the
    task's pairs; one mean per task replaces several cluster centres of its questions and images; images and
    texts have separate experts, and their task is chosen separately. Routers stay as the last task left them,
    as in the paper.
    """

    times = 10.0

    def __init__(self, clip: Clip, spec: ScorerSpec, config: ContinualConfig, seed: int):
        """Raise UserError if a tower is not made of plain blocks."""
        super().__init__(clip, spec, config, seed)
        self.model.requires_grad_(False)
        blocks = adapters.find_blocks(self.model, "method=cl-moe")
        generator = torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
        self.routes = {tower: adapters.Routes() for tower in TOWERS}
        self.layers: list[adapters.ExpertLinear] = []
        for tower in TOWERS:
            sizes = (self.config.experts, self.config.rank)
            self.layers += adapters.add_experts(blocks[tower], *sizes, self.routes[tower], generator)
        self.model.to(self.device)
        self.shares: list[list[Tensor]] = []
        """For every closed task, how often each layer's experts were chosen, (E,)."""
        self.centres: dict[str, list[Tensor]] = {tower: [] for tower in TOWERS}
        """Mean feature (D,) of every task, the open one included."""
        self.before: list[list[Tensor]] = []
        """Each layer's experts at the start of the open task."""

    def open(self) -> None:
        """Reset the counts; store the experts and the task's mean feature of the frozen model."""
        assert self.train is not None
        for layer in self.layers:
            layer.count_E.zero_()
        self.before = [[value.detach().clone() for value in (layer.down, layer.up)] for layer in self.layers]
        features = {"image": self.train.image_ND, "text": self.train.text_TD}
        for tower, centres in self.centres.items():
            del centres[self.number :]
            centres.append(torch.from_numpy(features[tower].mean(0)))

    def after(self, step: int) -> None:
        """Count the experts chosen by the positions of all ranks."""
        count_LE = add_up(torch.stack([layer.take_count() for layer in self.layers]))
        for layer, count_E in zip(self.layers, count_LE, strict=True):
            layer.count_E += count_E

    @torch.no_grad()
    def close(self) -> None:
        """Average experts with their weights before the task, by how specific each is to this task."""
        self.shares.append([layer.share() for layer in self.layers])
        for number, (layer, before) in enumerate(zip(self.layers, self.before, strict=True)):
            keep_E = losses.expert_momentum(torch.stack([shares[number] for shares in self.shares]))
            keep_E11 = keep_E[:, None, None].to(self.device)
            for value, old in zip((layer.down, layer.up), before, strict=True):
                value.copy_(keep_E11 * old + (1 - keep_E11) * value)
        self.before = []

    def find_keys(self, split: Split) -> Keys:
        """Embed all pixels and tokens; each row is routed as a row of the task with the nearest mean."""
        try:
            return super().find_keys(split)
        finally:
            for tower in TOWERS:
                self.route(tower)

    def seen_model(self) -> Any:
        """Return the model, whose task router has the counts of all tasks so far, the open one included."""
        shares = [*self.shares]
        if self.train is not None:
            shares.append([layer.share() for layer in self.layers])
        for number, layer in enumerate(self.layers if shares else ()):
            layer.task_GE = torch.stack([one[number] for one in shares])
        return self.model

    def choose(self, tower: str, feature_ND: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the index of the task with the nearest mean for each row, int64 (N,); nothing before the
        first task."""
        if not self.centres[tower]:
            return ()
        centre_GD = torch.stack(self.centres[tower])
        return (torch.cdist(torch.from_numpy(np.array(feature_ND)), centre_GD).argmin(1).numpy(),)

    def route(self, tower: str, *chosen_R: Tensor) -> None:
        """Set the task of each row; none: the instance router alone."""
        (self.routes[tower].task_R,) = chosen_R or (None,)

    def learned(self) -> dict[str, Any]:
        """Return experts, routers and counts of all layers, and the tasks' statistics."""
        layers = [
            {"down": layer.down, "up": layer.up, "router": layer.router, "count_E": layer.count_E}
            for layer in self.layers
        ]
        return {"layers": layers, "shares": self.shares, "centres": self.centres, "before": self.before}

    @torch.no_grad()
    def relearn(self, learned: dict[str, Any]) -> None:
        """Restore what ``learned`` returned."""
        for layer, values in zip(self.layers, learned["layers"], strict=True):
            for name, value in values.items():
                getattr(layer, name).copy_(value)
        self.shares, self.before = (
            [[value.to(self.device) for value in values] for values in learned[part]]
            for part in ("shares", "before")
        )
        self.centres = learned["centres"]
