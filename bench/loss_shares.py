"""CPU seconds of one rank's share of each loss: its own rows, forward and backward.

    python -m bench.loss_shares [--pairs 4096] [--dims 512] [--ranks 1 2 4] [--rounds 5]

A rank holds the embeddings of all pairs and computes the share of its rows, with the gradients of all
embeddings, which it would send to the other ranks. Before shares every rank computed the whole loss, which is
the column of one rank. Shares run alone, in turn, on one thread. ``negclip`` and ``ceclip`` have two
negatives per caption, ``triplet`` one. Expected: the seconds of R ranks are those of one divided by R. The
number in brackets is the ratio to that. Last line one JSON object.
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import normalize

from raycomp.core.batches import slice_of
from raycomp.core.losses import ceclip_parts, clip_loss, negclip_loss, siglip_loss, triplet_loss

SCALE = 1 / 0.07


def draw(*shape: int) -> Tensor:
    return normalize(torch.randn(*shape), dim=-1).requires_grad_()


def make_losses(num: int, dims: int) -> dict[str, Callable[[slice], Tensor]]:
    """Return each loss of one batch, as a function of the own rows."""
    torch.manual_seed(0)
    image, text, shown, negative = (draw(num, dims) for _ in range(4))
    negatives = draw(num, 2, dims)
    valid = torch.ones(num, 2, dtype=torch.bool)

    def ceclip(own: slice) -> Tensor:
        margin, kind = torch.zeros(1), torch.zeros(num, 2, dtype=torch.int64)
        parts = ceclip_parts(image, text, negatives, valid, kind, margin, SCALE, own=own)
        return parts.negclip + parts.imc + parts.cmr

    return {
        "clip": lambda own: clip_loss(image, text, SCALE, own),
        "negclip": lambda own: negclip_loss(image, text, negatives, valid, SCALE, own),
        "ceclip": ceclip,
        "triplet": lambda own: triplet_loss(image, text, shown, negative, valid[:, 0], SCALE, own),
        "siglip": lambda own: siglip_loss(image, text, SCALE, -10.0, own),
    }


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=4096)
    parser.add_argument("--dims", type=int, default=512)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    losses = make_losses(args.pairs, args.dims)
    found: dict[str, dict[int, list[float]]] = {name: {num: [] for num in args.ranks} for name in losses}
    for _ in range(args.rounds + 1):  # the first round warms up
        for name, loss in losses.items():
            for num in args.ranks:
                started = time.process_time()
                loss(slice_of(num - 1, num, args.pairs)).backward()
                found[name][num].append(time.process_time() - started)
    report = {}
    for name, seconds in found.items():
        middle = {num: median(values[1:]) for num, values in seconds.items()}
        times = {num: middle[args.ranks[0]] * args.ranks[0] / num for num in args.ranks}
        report[name] = {
            num: [round(middle[num], 3), round(middle[num] / times[num], 2)] for num in args.ranks
        }
        cells = (f"{seconds:.3f} s ({over:.2f})" for seconds, over in report[name].values())
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(json.dumps({"pairs": args.pairs, "dims": args.dims, "seconds_and_ratio_to_1/R": report}))


if __name__ == "__main__":
    main()
