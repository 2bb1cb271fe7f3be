"""Heads on frozen embeddings, one task after another: COMPO-REALIGN, its ablations, and no training.

B samples of a step, C of them, K past entries, T texts, N samples, P primitives of each at most, V names, D
dims.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycomp.config import UserError
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Keys, Split, Stream
from raycomp.continual.streams.build import make_tokens
from raycomp.core import compo_realign as core
from raycomp.core.continual import BufferEntry, MicroBuffer, cycle_errors, judge_read_out, reword
from raycomp.data.runs import fetch_model
from raycomp.models.clip import Clip, refuse_bad


class Learner(Protocol):
    """A method during its training on tasks; its draws depend on its seed, the task and the step.

    It is constructed from its config, its seed and the stream alone: a new one that is given an old one's
    state continues bit for bit.
    """

    def start_task(self, number: int, train: Split) -> None:
        """Prepare for task ``number``, from 0; called again, before ``restore``, when a run resumes within
        it."""

    def step(self, step: int, row_B: np.ndarray) -> dict[str, float]:
        """Learn from these rows of the task; return step metrics, ``loss`` at least.

        Raises UserError if the loss is not finite.
        """

    def end(self) -> None:
        """Close the task: update the memory."""

    def find_keys(self, split: Split) -> Keys:
        """Return a split as embedded by the method now; the split's task is not given."""

    def state(self) -> dict[str, Any]:
        """Return the learned state: tensors, numbers, texts, and lists and dicts of them."""

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from this state."""


class Frozen(Learner):
    """The unchanged model, without a state."""

    def step(self, step: int, row_B: np.ndarray) -> dict[str, float]:
        """Is not called: the loop takes no steps."""
        raise AssertionError("a frozen model takes no step")

    def find_keys(self, split: Split) -> Keys:
        """Return the embeddings unchanged."""
        return Keys(split.image_ND, split.text_TD)

    def state(self) -> dict[str, Any]:
        """No state."""
        return {}


# Added to a seed, so that a head's weights, its steps and its buffer are drawn independently.
_WEIGHTS, _STEPS, _BUFFER, _POWER, _PARAPHRASES = 11, 12, 13, 14, 15
_TEXTS_AT_ONCE = 4096
# Interval in steps of reports of sigma where no option depends on it.
_REPORT_EVERY = 10


class Rows(NamedTuple):
    """Texts and their primitives, as inputs of the composer."""

    text_BD: Tensor
    index_BP: Tensor
    """Indices of names; 0 for padding."""
    valid_BP: Tensor
    group_B: Tensor
    """Texts with the same set of primitives share a number."""

    def take(self, row_C: Tensor) -> "Rows":
        return Rows(*(value[row_C] for value in self))


class HeadLearner:
    """A composer that learns tasks in order; the model of its embeddings stays frozen.

    A class of yours may derive from it: ``gather`` and ``draw_past`` choose what a step learns from.
    """

    def __init__(self, config: ContinualConfig, stream: Stream, seed: int):
        self.config, self.stream, self.seed = config, stream, seed
        self.places = {name: place for place, name in enumerate(stream.names)}
        self.groups: dict[tuple[str, ...], int] = {}
        self.name_VD = torch.from_numpy(stream.name_VD)
        head, trust = config.head, config.trust
        generator = torch.Generator().manual_seed(1000 * seed + _WEIGHTS)
        dim = self.name_VD.shape[1]
        self.composer = core.Composer(dim, head.hidden, generator, head.mix, head.pool, head.shaped)
        self.buffer = MicroBuffer(config.buffer.size, 1000 * seed + _BUFFER, config.buffer.max_bytes)
        self.trust = core.TrustRegion(
            trust.mode, trust.gamma, trust.quantile, trust.first, trust.reduce, trust.alpha or 1.0
        )
        self.text_of = {
            text: row_D
            for task in stream.tasks
            for text, row_D in zip(task.train.texts, task.train.text_TD, strict=True)
        }
        """The frozen model would embed a past text exactly as before."""
        self.number, self.optimizer = 0, _make_optimizer(self.composer, config)
        self.reworded: Rows | None = None  # paraphrases of the task's compositions, once a step needs them

    def start_task(self, number: int, train: Split) -> None:
        """Open the task with a new optimiser."""
        self.number, self.train = number, train
        self.rows = self._make_rows(train.text_TD, train.primitives)
        self.image_ND, self.own_N = torch.from_numpy(train.image_ND), torch.from_numpy(train.own_N)
        self.optimizer, self.reworded = _make_optimizer(self.composer, self.config), None

    def step(self, step: int, row_B: np.ndarray) -> dict[str, float]:
        """Take a step on these rows; report loss, sigma, alpha, the gradient's length and s(z_v, e^_c).

        With a trust region, every tenth step is also reported as a fraction of a whole step.
        """
        head, trust = self.config.head, self.config.trust
        image_BD, rows, past = self.gather(step, torch.from_numpy(row_B))
        raw_BPD = self.name_VD[rows.index_BP]
        is_bound, is_reported = trust.mode == "spectral", step % _REPORT_EVERY == 0
        is_exact = trust.power_steps is None
        raw_BPD.requires_grad_((is_bound or is_reported) and is_exact and trust.primitives == "raw")
        made = self.composer(raw_BPD, rows.valid_BP)
        loss = core.compo_realign(
            image_BD,
            rows.text_BD if head.text == "literal" else self.composer.adapt(rows.text_BD),
            made.composed_BD if head.synthetic else None,
            rows.group_B,
            1 / head.temperature,
            None if past is None else core.Past(past.text_BD, self._compose(past), past.group_B),
            self.config.buffer.reading,
            head.c2v,
            head.same,
        ).total
        similarity_B = (image_BD * made.composed_BD).sum(1)
        reported = {"loss": float(loss.detach()), "similarity": float(similarity_B.detach().mean())}
        if not math.isfinite(reported["loss"]):
            raise UserError(
                f"loss={reported['loss']} at step {step} of task {self.number}: must be finite; "
                f"head.learning_rate={head.learning_rate} may be too high"
            )
        if not loss.requires_grad:  # captions are frozen, and nothing else is a positive
            return {**reported, "gradient": 0.0}
        sigma_B = similarity_B.detach()
        if is_bound or is_reported:
            sigma_B = self._compute_sigma(step, image_BD, similarity_B, raw_BPD, made, rows.valid_BP)
            reported["sigma"] = float(sigma_B.max())
        reported["alpha"] = alpha = self.trust.take_alpha(sigma_B)
        parameters = core.list_parameters(self.optimizer)
        self.optimizer.zero_grad()
        loss.backward(inputs=parameters)
        reported["gradient"] = math.hypot(*(float(p.grad.norm()) for p in parameters if p.grad is not None))
        if trust.mode == "off" or not is_reported:
            core.take_step(self.optimizer, alpha, trust.apply)
        else:
            reported["realised"] = core.measure_step(self.optimizer, alpha, trust.apply)
        return reported

    def end(self) -> None:
        """Add the task to the buffer."""
        kind, train = self.config.buffer.kind, self.train
        if kind == "none":
            return
        entries = []
        for row, place in enumerate(train.own_N):
            image = train.image_ND[row].astype(np.float32).tobytes() if kind == "image" else b""
            entries.append(BufferEntry(train.texts[place], train.primitives[place], image))
        self.buffer.add(self.number, entries)

    def find_keys(self, split: Split) -> Keys:
        """Return the split with the compositions of its texts."""
        return Keys(split.image_ND, split.text_TD, self.compose(split)[None])

    def compose(self, split: Split) -> np.ndarray:
        """Return e^_c of every text, fp32 (T, D)."""
        rows = self._make_rows(split.text_TD, split.primitives)
        parts = torch.arange(len(rows.text_BD)).split(_TEXTS_AT_ONCE)
        with torch.no_grad():
            return torch.cat([self._compose(rows.take(part)) for part in parts]).numpy()

    def read_out(self, split: Split) -> dict[str, float]:
        """Return how well primitives are recovered from a composition, how far R is from orthogonal, the
        buffer's contents in figures, and the step sizes.

        By R^T and by solving; CCE against the text's own primitives, AUC against all names of the stream.
        Texts with the same primitives count once.
        """
        rows = self._make_rows(split.text_TD, split.primitives)
        first_B = np.sort(np.unique(rows.group_B.numpy(), return_index=True)[1])
        rows = rows.take(torch.from_numpy(first_B))
        with torch.no_grad():
            made = self.composer(self.name_VD[rows.index_BP], rows.valid_BP)
        is_own_BV = np.zeros((len(rows.text_BD), len(self.name_VD)), bool)
        sample_Q, place_Q = rows.valid_BP.nonzero(as_tuple=True)
        is_own_BV[sample_Q.numpy(), rows.index_BP[sample_Q, place_Q].numpy()] = True
        matrix_DD = self.composer.matrix()
        eye_DD = torch.eye(len(matrix_DD), dtype=matrix_DD.dtype)
        found = {"orthogonality_error": float((matrix_DD.T @ matrix_DD - eye_DD).abs().max())}
        for name, by_solve in (("transpose", False), ("solve", True)):
            direction_BD = self.composer.decompose(made.composed_BD, by_solve)
            errors_B = cycle_errors(direction_BD.numpy(), made.shaped_BPD.numpy(), rows.valid_BP.numpy())
            found[f"cce_{name}"] = float(errors_B.mean())
            score_BV = self.composer.read_out(direction_BD, self.name_VD).numpy()
            if not is_own_BV.all() and np.isfinite(score_BV).all():
                judged = judge_read_out(score_BV, is_own_BV)
                found |= {f"pr_auc_{name}": judged.pr_auc, f"roc_auc_{name}": judged.roc_auc}
        return {
            **found,
            "buffer_entries": len(self.buffer.entries()),
            "buffer_bytes": self.buffer.num_bytes,
            **({} if self.reworded is None else {"paraphrases": len(self.reworded.group_B)}),
            "alpha_realised": self.trust.mean_alpha,
            "gamma": self.trust.gamma or float("nan"),
        }

    def state(self) -> dict[str, Any]:
        """Return the composer, its optimiser, the buffer and the progress of the trust region."""
        return {
            "composer": self.composer.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "buffer": self.buffer.to_dict(),
            "trust": self.trust.to_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from this state."""
        self.composer.load_state_dict(state["composer"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.buffer = MicroBuffer.from_dict(state["buffer"])
        self.trust.restore(state["trust"])

    def gather(self, step: int, row_B: Tensor) -> tuple[Tensor, Rows, Rows | None]:
        """Return the images and texts of a step, and the past texts drawn with them.

        Past images are added to the batch as samples.
        """
        rows, image_BD = self.rows.take(self.own_N[row_B]), self.image_ND[row_B]
        buffer = self.config.buffer
        if self.number and (buffer.kind, buffer.reading) == ("text", core.PARAPHRASE):
            past = self.reword()
            return image_BD, rows, past.take(torch.isin(past.group_B, rows.group_B).nonzero()[:, 0])
        entries = self.draw_past(np.random.default_rng([self.seed, _STEPS, self.number, step]))
        if not entries:
            return image_BD, rows, None
        text_KD = np.stack([self.text_of[entry.text] for entry in entries])
        past = self._make_rows(text_KD, [entry.primitives for entry in entries])
        if self.config.buffer.kind != "image":
            return image_BD, rows, past
        image_KD = np.stack([np.frombuffer(entry.image, np.float32) for entry in entries])
        width = max(rows.index_BP.shape[1], past.index_BP.shape[1])
        wide = []
        for some in (rows, past):
            pad = (0, width - some.index_BP.shape[1])
            wide.append(some._replace(index_BP=F.pad(some.index_BP, pad), valid_BP=F.pad(some.valid_BP, pad)))
        joined = Rows(*(torch.cat(pair) for pair in zip(*wide, strict=True)))
        return torch.cat([image_BD, torch.from_numpy(image_KD)]), joined, None

    def reword(self) -> Rows:
        """Return the paraphrases of the task's compositions, drawn and embedded once a task."""
        if self.reworded is None:
            rng = np.random.default_rng([self.seed, _PARAPHRASES, self.number])
            captions = dict(zip(self.train.texts, self.train.primitives, strict=True))
            found = reword(self.buffer.entries(), captions, rng)
            text_KD = self.embed_texts([*found.values()]) if found else self.train.text_TD[:0]
            self.reworded = self._make_rows(text_KD, [*found])
        return self.reworded

    def embed_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Return the frozen model's embeddings of texts that the stream does not have, fp32 (T, D)."""
        model = self.config.model
        text_TD = Clip(fetch_model(model)).text.embed(make_tokens(texts, model))[0]
        refuse_bad(text_TD, model.said_weights, "texts")
        return text_TD.numpy()

    def draw_past(self, rng: np.random.Generator) -> list[BufferEntry]:
        """Draw entries of past tasks; their texts are keys of ``text_of``."""
        buffer = self.config.buffer
        return self.buffer.draw(buffer.draw, rng) if self.number and buffer.kind != "none" else []

    def _make_rows(self, text_TD: np.ndarray, primitives: Sequence[Collection[str]]) -> Rows:
        layout = core.make_layout(primitives)
        place_V = np.array([self.places[name] for name in layout.names], np.int64)
        index_TP = np.where(layout.valid_BP, place_V[layout.index_BP] if len(place_V) else 0, 0)
        sets = (tuple(sorted(set(names))) for names in primitives)
        group_T = np.array([self.groups.setdefault(names, len(self.groups)) for names in sets], np.int64)
        index, valid, group = map(torch.from_numpy, (index_TP, layout.valid_BP, group_T))
        return Rows(torch.from_numpy(np.ascontiguousarray(text_TD)), index, valid, group)

    def _compose(self, rows: Rows) -> Tensor:
        return self.composer(self.name_VD[rows.index_BP], rows.valid_BP).composed_BD

    def _compute_sigma(
        self,
        step: int,
        image_BD: Tensor,
        similarity_B: Tensor,
        raw_BPD: Tensor,
        made: core.Composed,
        valid_BP: Tensor,
    ) -> Tensor:
        """Return sigma of every sample by ``trust.power_steps``, or exactly; it has no gradient."""
        trust, head, is_raw = self.config.trust, self.config.head, self.config.trust.primitives == "raw"
        if trust.power_steps is not None:
            compose = self.composer if is_raw else self.composer.combine
            start_BPD = (raw_BPD if is_raw else made.shaped_BPD).detach()
            key = np.random.SeedSequence((self.seed, _POWER, self.number, step)).generate_state(1)[0]

            def similarity(primitive_BPD: Tensor) -> Tensor:
                return (image_BD * compose(primitive_BPD, valid_BP).composed_BD).sum(1)

            with torch.no_grad():
                generator = torch.Generator().manual_seed(int(key))
                return core.power_sigma(similarity, start_BPD, trust.power_steps, generator)
        if is_raw:
            return core.compute_sigma(similarity_B, raw_BPD)
        if head.mix == core.LINEAR or head.pool == core.ATTENTION:
            return core.compute_sigma(similarity_B, made.shaped_BPD)
        return core.shaped_sigma(similarity_B.detach(), made.mean_BD.detach(), valid_BP.sum(1))


def _make_optimizer(composer: core.Composer, config: ContinualConfig) -> torch.optim.Optimizer:
    head = config.head
    kind = torch.optim.AdamW if head.optimizer == "adamw" else torch.optim.SGD
    # An identity without a shaper has no parameters to train.
    parameters = list(composer.parameters()) or [torch.nn.Parameter(torch.zeros(()))]
    return kind(parameters, lr=head.learning_rate, weight_decay=head.weight_decay)
