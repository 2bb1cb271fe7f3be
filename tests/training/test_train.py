"""The training loop on a model of a few hundred numbers, step by step."""

import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from raycomp.config import ScorerConfig
from raycomp.core.losses import clip_loss
from raycomp.models.clip import Clip
from raycomp.training.config import FitConfig
from raycomp.training.loop import MAX_LOGIT_SCALE, Batch, Trainer, make_optimizer
from raycomp.training.towers import PairsObjective, learning_rate_at


class Towers(nn.Module):
    """Two linear towers with the names that the loop and the decay rule know."""

    def __init__(self, scale: float = 2.0):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.visual = nn.Linear(12, 4)
        self.token_embedding = nn.Embedding(10, 4)
        self.ln_final = nn.LayerNorm(4)
        self.logit_scale = nn.Parameter(torch.tensor(scale))
        with torch.no_grad():
            for parameter in (self.visual.weight, self.visual.bias, self.token_embedding.weight):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def encode_image(self, image_BCHW: Tensor) -> Tensor:
        return self.visual(image_BCHW.flatten(1))

    def encode_text(self, token_BN: Tensor) -> Tensor:
        return self.ln_final(self.token_embedding(token_BN).sum(1))


def toy_batches() -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(1)
    image_SCHW = torch.randn(8, 3, 2, 2, generator=generator)
    token_SN = torch.randint(10, (8, 3), generator=generator)
    while True:
        row_B = torch.randperm(8, generator=generator)[:4]
        yield Batch(image_SCHW[row_B], token_SN[row_B])


def train(model: Towers, config: FitConfig, num_steps: int) -> list[float]:
    objective = PairsObjective(model, config, num_steps, 4)
    return [reported.loss for reported in Trainer(objective, num_steps).run(toy_batches())]


def test_loop_takes_the_steps_of_adamw_written_out() -> None:
    config = FitConfig(learning_rate=0.05, warmup=1 / 3, weight_decay=0.3)
    model, counterpart = Towers(), Towers()
    losses = train(model, config, 6)
    free = {"visual.bias", "ln_final.weight", "ln_final.bias", "logit_scale"}
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in counterpart.named_parameters()}
    for step, batch in zip(range(6), toy_batches(), strict=False):
        image_BD = nn.functional.normalize(counterpart.encode_image(batch.image_RCHW), dim=-1)
        text_BD = nn.functional.normalize(counterpart.encode_text(batch.token_RN), dim=-1)
        loss = clip_loss(image_BD, text_BD, counterpart.logit_scale.exp())
        assert losses[step] == pytest.approx(loss.item(), rel=1e-4)
        counterpart.zero_grad()
        loss.backward()
        rate = learning_rate_at(step, 6, config)
        with torch.no_grad():
            for name, value in counterpart.named_parameters():
                first, second = moments[name]
                first.mul_(0.9).add_(0.1 * value.grad)
                second.mul_(0.98).add_(0.02 * value.grad**2)
                value.mul_(1 - rate * (0 if name in free else 0.3))
                step_size = (first / (1 - 0.9 ** (step + 1))) / (
                    (second / (1 - 0.98 ** (step + 1))).sqrt() + 1e-6
                )
                value.sub_(rate * step_size)
    for name, value in counterpart.named_parameters():
        assert torch.allclose(value, model.state_dict()[name], atol=1e-4), name


def test_decay_spares_what_open_clip_spares(tiny_scorer: ScorerConfig) -> None:
    model = Clip(tiny_scorer, device="cpu").model
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    free, decayed = (
        {names[id(p)] for p in group["params"]} for group in make_optimizer(model, FitConfig()).param_groups
    )
    assert free | decayed == set(names.values()) and not free & decayed
    assert {"logit_scale", "visual.class_embedding", "ln_final.weight"} <= free
    assert {"token_embedding.weight", "visual.conv1.weight", "text_projection"} <= decayed
    assert {name for name in free if not name.endswith((".bias", "_bias"))} == {
        name
        for name in names.values()
        if name in ("logit_scale", "visual.class_embedding") or ("ln_" in name and name.endswith("weight"))
    }


def test_schedule_rises_and_falls_to_zero() -> None:
    config = FitConfig(warmup=0.1, learning_rate=1.0)
    rates = [learning_rate_at(step, 100, config) for step in range(101)]
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rates[10] == 1 and rates[55] == pytest.approx(0.5) and rates[100] == pytest.approx(0)
    assert all(a > b for a, b in pairwise(rates[10:]))


def test_logit_scale_stays_between_one_and_a_hundred() -> None:
    config = FitConfig(warmup=0.0, learning_rate=0.1)
    for start, end in ((9.0, MAX_LOGIT_SCALE), (-3.0, 0.0)):
        model = Towers(scale=start)
        train(model, config, 3)
        assert math.isclose(model.logit_scale.item(), end, abs_tol=0.2) and model.logit_scale.item() >= 0
        assert model.logit_scale.item() <= MAX_LOGIT_SCALE + 1e-6
