"""Make the little world and train its tiny CLIP, as the demo does before it curates; draw negatives.

Command: python lab/jobs/little_world.py --out runs/little_world [--seed 0] [--steps 500]
         python lab/jobs/little_world.py --negatives out/demo-negatives --out out/demo-negative-images
Cost: 16 s for the world and 62 to 73 s for training on 2 cores; 96 MB of shards and 30 MB of weights.
Result: WebDataset shards of rendered scenes with exact captions in OUT/train, OUT/curate and OUT/held_out; a
third of OUT/curate has a planted fault, named in each json's `fault`. OUT/scorer/model.json and
OUT/scorer/model.safetensors, with recall@1 among 1,000 held-out pairs (image to text, text to image) of
0.851, 0.842 with seed 0 and 0.773, 0.779 with seed 1 (same pairs); 0.884, 0.870 after 600 steps (74 s) with
seed 0. It varies that much with the seed and the number of threads.
With --negatives, a folder of `raycomp negatives`: Parquet files in OUT, as train.loss=triplet takes them,
with an image for each negative that a scene shows while it does not show the caption, too. Of one call on
1,500 captions of OUT/curate 2,906 of 4,500 have one (SWAP and REPLACE 97 %, ADD none: it brings in what no
scene holds), of two calls 4,250 of 9,000; 10 s.
"""

import argparse
from dataclasses import replace

from lab.worlds.negative_images import write_negative_images
from lab.worlds.shards import FIT, make_world
from lab.worlds.tiny_clip import train_scorer


def main() -> None:
    """Parse the command line and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", required=True, help="folder for the shards and the scorer, or the images")
    parser.add_argument("--seed", type=int, default=0, help="draws the world, the weights and the order")
    parser.add_argument("--steps", type=int, default=FIT.steps, help="training steps")
    parser.add_argument("--negatives", help="draw these instead, of a folder that raycomp negatives wrote")
    arguments = parser.parse_args()
    if arguments.negatives:
        for (op, outcome), count in sorted(write_negative_images(arguments.negatives, arguments.out).items()):
            print(f"{op}: {count:,} {outcome}")
    else:
        make(arguments.out, arguments.seed, arguments.steps)


def make(out: str, seed: int, steps: int) -> None:
    """Make the world, train, and print the results and the command to curate with it."""
    world = make_world(out, seed)
    config = replace(FIT, steps=steps)
    trained = train_scorer(world, f"{out}/scorer", seed, config, on_step=print_step)
    print(
        f"{steps} steps of {config.batch_size} on {trained.num_train:,} pairs "
        f"in {trained.train_s:.0f} s; "
        f"recall@1 among {trained.num_held_out:,} held-out pairs: "
        f"image to text {trained.image_to_text:.3f}, text to image {trained.text_to_image:.3f}"
    )
    print(
        f"raycomp curate --set input={world.curate} --set scorer.model={trained.scorer.model} "
        f"--set scorer.weights={trained.scorer.weights} --out {out}/curated"
    )


def print_step(step: int, loss: float) -> None:
    """Print every fiftieth step."""
    if step % 50 == 0:
        print(f"step {step}: loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
