"""``python -m lab theory``: text encoders with the same alignment loss, with and without composition.

Built: g* and g** of ``theory/scm.py``, exact; on data whose order is redundant, and on data in which every
scene also occurs mirrored, where g** has a higher loss. Trained: two text towers, with and without access to
the order of the tokens, on the same redundant pairs. The theorems state existence; training need not find it.

The built rows show the theorems as follows, premise by premise (``theory/premises.py``; the table prints it).
SWAP: premise and conclusion, where order is redundant; in mirrored data two z_inv fit every token, the
premise fails, and g** has a higher InfoNCE. REPLACE: that g** stays, condition and conclusion in one, by a
majority of tokens where the paper intersects all. ADD: the conclusion alone, as no z_inv is shared.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.statistics import held_out_r2
from lab.theory import scm
from lab.theory.config import TheoryConfig
from lab.theory.premises import check_premises
from raycomp.config import to_dict
from raycomp.core.losses import clip_loss
from raycomp.core.metrics import student_95
from raycomp.core.probe import Interval, pair_distance, two_way_choice
from raycomp.data.files import absolute_uri, check_writable
from raycomp.report.page import render_page
from raycomp.run.run import Say, start_run
from raycomp.table import Column, Columns, Numeral, Table, join_text, plain, take_estimate, write_cell
from raycomp.words import ADD, OK, OPERATIONS

BUILT, TRAINED = "built", "trained"
UNORDERED, ORDERED = "order-blind", "order-sensitive"
INFONCE = "infonce"
_SETTING = ("version", "mirrored", "num_scenes")
# The measures of a row, and their labels in the table.
MEASURES = {
    INFONCE: "InfoNCE",
    "swap": "accuracy, SWAP",
    "replace": "accuracy, REPLACE",
    "add": "accuracy, ADD",
    "paraphrase_distance": "distance of synonyms",
    "text_invariant_r2": "R2 z_inv from text",
    "text_private_r2": "R2 private from text",
    "image_invariant_r2": "R2 z_inv from image",
    "image_private_r2": "R2 private from image",
}
# The premises over every edit of every caption (``premises.Premise``), and their labels in the table.
PREMISES = {
    "nearest": "smallest |z_inv(caption) - z_inv(edit)|",
    "single": "edits whose tokens share one z_inv",
    "same": "edits with the caption's g**",
}
PREMISE_COLUMNS = tuple(f"{op.lower()}_{name}" for op in OPERATIONS for name in PREMISES)
SCALE = 20.0
# Version, share of mirrored scenes, scenes. Training has few scenes: an order-insensitive tower memorizes
# every scene and needs long to approach the loss of the other. From 32 scenes a regression learns less than
# from 160; its R^2 for the exact encoders on 64 scenes is the reference of the trained ones.
SETTINGS = ((BUILT, 0.0, 320), (BUILT, 1.0, 320), (BUILT, 0.0, 64), (TRAINED, 0.0, 64))
_NUM_HELD_OUT, _NUM_BATCHES = 1024, 8
_STEPS, _BATCH, _RATE, _WIDTH, _DIM = 1000, 128, 4e-3, 64, 32

Encode = Callable[[np.ndarray], np.ndarray]


def theory(config: TheoryConfig, out: str, say: Say = print) -> dict[str, Any]:
    """Measure the theory into the folder ``out``, print its tables; return what run.json holds.

    A finished run of the same config is unchanged. Raises ValueError for errors that the user can fix.
    """
    out = absolute_uri(str(out))
    check_writable(out)
    outputs = ("theory.json", "theory.txt", "tables")
    with start_run("theory", config, dict, out, say, outputs=outputs) as run:
        if run.is_finished:
            return run.record
        rows = run_theory(range(config.seeds))
        blocks = report_theory(rows)
        run.folder.write_json({"config": to_dict(config), "rows": rows}, "theory.json")
        run.folder.write_bytes((join_text(blocks) + "\n").encode(), "theory.txt")
        tables = [block for block in blocks if isinstance(block, Table)]
        for i, table in enumerate(tables, 1):
            run.folder.write_bytes(table.to_csv().encode(), "tables", f"theory-{i}.csv")
        run.close({OK: len(rows)}, {OK: len(rows)}, OK)
        say(join_text(blocks))
        template = Path(__file__).with_name("page.html.jinja")
        page = render_page(template, run=run.record, blocks=blocks, headline=say_theory(rows))
        run.report(f"{len(rows):,} of {len(rows):,} took part", page)
    return run.record


def run_theory(seeds: Sequence[int] = range(5), steps: int = _STEPS) -> list[dict[str, Any]]:
    """Return one row for each of ``SETTINGS``, seed and encoder, with all ``MEASURES``.

    A seed draws a world, its data and the towers' weights. InfoNCE is the symmetric loss of batches of 128 at
    inverse temperature ``SCALE`` (even g* is not at 0: a batch repeats scenes, and scenes are similar). SWAP,
    REPLACE and ADD are accuracies of the choice between caption and edit given the image. The synonyms'
    distance is |g(T) - g(T')|. The rest are R^2 of a latent given the text or image embedding, on scenes that
    the regression did not see. Each operator also has the values of ``PREMISES`` in the world, as in
    ``swap_nearest``. ``steps`` are training steps. Raises ValueError without seeds.
    """
    if not len(seeds):
        raise ValueError("seeds: must be at least 1, are 0")
    rows = []
    for version, mirrored, num_scenes in SETTINGS:
        for seed in seeds:
            world = scm.draw_world(seed, num_scenes, mirrored)
            premises = _list_premises(world)
            for encoder in (UNORDERED, ORDERED):
                is_built = version == BUILT
                text, image = build(world, encoder) if is_built else train(world, encoder, seed, steps)
                row = {"version": version, "mirrored": mirrored, "num_scenes": num_scenes, "seed": seed}
                measured = measure(world, text, image, np.random.default_rng([seed, 1]))
                rows.append(row | {"encoder": encoder} | measured | premises)
    return rows


def _list_premises(world: scm.World) -> dict[str, float]:
    return {
        f"{op.lower()}_{name}": value
        for op, premise in check_premises(world).items()
        for name, value in premise._asdict().items()
    }


def measure(world: scm.World, text: Encode, image: Encode, rng: np.random.Generator) -> dict[str, float]:
    """Return all ``MEASURES`` of a pair of encoders on fresh pairs of ``world``."""
    sample = scm.draw_sample(world, _NUM_HELD_OUT, rng)
    image_ND, text_ND = image(sample.image_NI), text(scm.observe_texts(world, sample.texts))
    batches = zip(np.split(image_ND, _NUM_BATCHES), np.split(text_ND, _NUM_BATCHES), strict=True)
    losses = [clip_loss(torch.tensor(i), torch.tensor(t), SCALE).item() for i, t in batches]
    values = {INFONCE: float(np.mean(losses))}
    for op, edit in scm.OPERATORS.items():
        edited_ND = text(scm.observe_texts(world, edit(sample.texts, rng)))
        values[op.lower()] = float(two_way_choice(image_ND, text_ND, edited_ND).mean())
    same_ND = text(scm.observe_texts(world, scm.paraphrase(sample.texts)))
    values["paraphrase_distance"] = float(pair_distance(text_ND, same_ND).mean())
    style_NM = sample.texts.style_NKP.reshape(_NUM_HELD_OUT, -1)
    sides = (("text", text_ND, style_NM), ("image", image_ND, sample.private_NP))
    for name, embedding_ND, private_NM in sides:
        for block, latent_NM in (("invariant", sample.invariant_NZ), ("private", private_NM)):
            r2 = held_out_r2(embedding_ND, latent_NM, sample.scene_N, np.random.default_rng(0))
            values[f"{name}_{block}_r2"] = r2
    return values


def build(world: scm.World, encoder: str) -> tuple[Encode, Encode]:
    """Return the text encoder g** (order-insensitive) or g*, and the image encoder f*."""
    encode = scm.encode_by_votes if encoder == UNORDERED else scm.encode_by_order
    return lambda column_NKE: encode(world, column_NKE), lambda image_NI: scm.encode_images(world, image_NI)


class _TextTower(nn.Module):
    """A small network on each token, then a second one on their mean, or on their sequence."""

    def __init__(self, num_columns: int, column_size: int, is_ordered: bool):
        super().__init__()
        self.token = nn.Sequential(nn.Linear(column_size, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH))
        self.is_ordered = is_ordered
        self.head = _make_head(_WIDTH * (num_columns if is_ordered else 1))

    def forward(self, column_NKE: Tensor) -> Tensor:
        valid_NK1 = (column_NKE != 0).any(dim=2, keepdim=True)
        hidden_NKW = self.token(column_NKE) * valid_NK1
        pooled = hidden_NKW.flatten(1) if self.is_ordered else hidden_NKW.sum(1)
        return F.normalize(self.head(pooled), dim=1)


class _ImageTower(nn.Sequential):
    def forward(self, image_NI: Tensor) -> Tensor:
        return F.normalize(super().forward(image_NI), dim=1)


def _make_head(size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, 256), nn.ReLU(), nn.Linear(256, _DIM))


def train(world: scm.World, encoder: str, seed: int, steps: int) -> tuple[Encode, Encode]:
    """Train a text and an image tower by InfoNCE, on fresh pairs in every step; return them as encoders.

    Uses one thread; torch's random state and number of threads are restored.
    """
    rng = np.random.default_rng([seed, 2])
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sample = scm.draw_sample(world, 1, rng)
        column_NKE = scm.observe_texts(world, sample.texts)
        _, num_columns, column_size = column_NKE.shape
        text = _TextTower(num_columns, column_size, is_ordered=encoder == ORDERED)
        image = _ImageTower(*_make_head(sample.image_NI.shape[1]))
    optimizer = torch.optim.Adam([*text.parameters(), *image.parameters()], lr=_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for image_BI, column_BKE in islice(_draw_batches(world, rng), steps):
        loss = clip_loss(image(image_BI), text(column_BKE), SCALE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    torch.set_num_threads(num_threads)
    return _to_arrays(text), _to_arrays(image)


def _draw_batches(world: scm.World, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield fresh pairs without end, drawn many batches at a time for speed."""
    while True:
        sample = scm.draw_sample(world, 32 * _BATCH, rng)
        column_NKE = scm.observe_texts(world, sample.texts)
        yield from zip(_tensor(sample.image_NI).split(_BATCH), _tensor(column_NKE).split(_BATCH), strict=True)


def _tensor(value: np.ndarray) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


def _to_arrays(tower: nn.Module) -> Encode:
    def encode(value: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return tower(_tensor(value)).numpy()

    return encode


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per setting and encoder: each measure's mean and standard deviation over seeds.

    Premises have the minimum over seeds: it holds in every world.
    ``infonce_more`` is its InfoNCE minus that of the order-sensitive encoder of the same seed: the mean over
    seeds, with its 95 % interval by Student's t. NaN for a single seed.
    """
    table = []
    for setting in dict.fromkeys(map(_setting, rows)):
        ordered_S = _column(rows, setting, ORDERED, INFONCE)
        for encoder in (UNORDERED, ORDERED):
            line = dict(zip(_SETTING, setting, strict=True)) | {"encoder": encoder}
            line["num_seeds"] = len(ordered_S)
            for name in MEASURES:
                value_S = _column(rows, setting, encoder, name)
                line |= {name: float(value_S.mean()), f"{name}_sd": _spread(value_S)}
            for name in PREMISE_COLUMNS:
                line[name] = float(_column(rows, setting, encoder, name).min())
            more_S = _column(rows, setting, encoder, INFONCE) - ordered_S
            mean, half = float(more_S.mean()), _half_width(more_S)
            table.append(line | Interval(mean, mean - half, mean + half).under("infonce_more"))
    return table


def _setting(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _SETTING)


def _column(rows: list[dict[str, Any]], setting: tuple[Any, ...], encoder: str, name: str) -> np.ndarray:
    return np.array([row[name] for row in rows if _setting(row) == setting and row["encoder"] == encoder])


def _half_width(value_S: np.ndarray) -> float:
    """Return half of the 95 % interval of a mean."""
    return float(student_95(max(len(value_S) - 1, 1)) * _spread(value_S) / len(value_S) ** 0.5)


def _spread(value_S: np.ndarray) -> float:
    return float(value_S.std(ddof=1)) if len(value_S) > 1 else float("nan")


def report_theory(rows: list[dict[str, Any]]) -> list[Table | str]:
    """Return the results of ``run_theory``: means over seeds, with standard deviations in brackets."""
    lines = summarise(rows)
    count = lines[0]["num_seeds"]
    means = f"Means over {count} seeds (standard deviation)" if count > 1 else "One seed"
    blocks: list[Table | str] = [f"{means}; chance of a choice is 0.5."]
    for unordered, ordered in zip(lines[::2], lines[1::2], strict=True):
        blocks += _report_setting(unordered, ordered)
    return [*blocks, _report_shown(lines)]


def _report_setting(unordered: dict[str, Any], ordered: dict[str, Any]) -> list[Table]:
    reported = "every scene also occurs mirrored" if unordered["mirrored"] else "order is redundant"
    title = f"{unordered['version']}, {unordered['num_scenes']} scenes, {reported}"
    more = take_estimate(unordered, "infonce_more")
    rows = [
        (head, _report_mean(unordered, name), _report_mean(ordered, name)) for name, head in MEASURES.items()
    ]
    note = f"InfoNCE, {UNORDERED} minus {ORDERED}, with its 95 % interval: {plain(write_cell(more))}"
    tables = [Table(title, ("measure", UNORDERED, ORDERED), rows, note)]
    if unordered["version"] == BUILT:
        premises = [
            (head, *(unordered[f"{op.lower()}_{name}"] for op in OPERATIONS))
            for name, head in PREMISES.items()
        ]
        columns: Columns = (
            "all edits of all captions",
            *(Column(op, digits=3) for op in OPERATIONS),
        )
        tables.append(Table(f"Premises: {title}", columns, premises, "The minimum over seeds."))
    return tables


def _report_mean(line: dict[str, Any], name: str) -> Numeral:
    spread = line[f"{name}_sd"]
    return Numeral(f"{line[name]:z.3f}" + (f" ({spread:.3f})" if spread == spread else ""))


def say_theory(rows: list[dict[str, Any]]) -> str:
    """Return a sentence that compares both encoders where order is redundant, built from the model."""
    unordered, ordered = summarise(rows)[:2]
    return (
        f"With an InfoNCE loss of {unordered[INFONCE]:.3f} and {ordered[INFONCE]:.3f}, encoders without and "
        f"with word order score {unordered['swap']:.3f} and {ordered['swap']:.3f} on SWAP"
    )


def _report_shown(lines: list[dict[str, Any]]) -> str:
    """Describe what the built rows show of the theorems, and what they do not."""
    least = min(line[f"{ADD.lower()}_nearest"] for line in lines)
    return (
        "SWAP (Theorem 7) asks that an edit's tokens share one z_inv: premise and conclusion are shown where "
        "all do. REPLACE (Theorem 8) asks for the caption's g**, here by a majority of tokens: no z_inv fits "
        "them all. ADD (Theorem 9) asks for a z_inv that caption and edit share, but theirs differ by at "
        f"least {least:.3f}: the conclusion is shown, not from its premise."
    )
