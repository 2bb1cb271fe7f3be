"""What a curation of very many pairs would take, by the rates in RESULTS.md: the tables of docs/scale.md.

    python -m bench.at_scale

Nothing is timed here. Shards have 10,000 pairs, as img2dataset writes them; 70 % of the pairs are attributed
and half are kept. A vCPU counts as one core of the machine on which the rates of CPUs were measured, a GPU as
one H100 with ViT-B/16 in bf16.
"""

from raycomp.curation.config import CurateConfig
from raycomp.table import Column, Table

PAIRS = (1e8, 1e9, 12.8e9)
PER_SHARD = 10_000
ATTRIBUTED = 0.7
# Rows a second of one core, or of one GPU.
DECODE, FAST_DECODE, PARSE = 130.0, 361.0, 1505.0
ALIGN, ATTRIBUTE = 3714.0, 4399.0
# Core seconds of 1e8 rows: duplicates, pool, choice (scale_rows.py, two cores).
BETWEEN = {"duplicates": 2 * 217.0, "pool": 2 * 65.0, "choice": 2 * 172.0}
DIMS, OTHER_BYTES = 512, 600
NODE = "8 H100, 192 vCPU"
NODE_GPUS, NODE_CPUS = 8, 192
HOUR = 3600


def name_pairs(pairs: float) -> str:
    """Return a number of pairs as one writes it."""
    return f"{pairs:.3g}".replace("e+0", "e").replace("e+", "e")


def count_hours(pairs: float, decode: float = DECODE) -> dict[str, float]:
    """Return core hours and GPU hours by step."""
    steps = {"decode": pairs / decode, "parse": ATTRIBUTED * pairs / PARSE}
    steps |= {name: seconds * pairs / 1e8 for name, seconds in BETWEEN.items()}
    steps |= {"align": pairs / ALIGN, "attribute": ATTRIBUTED * pairs / ATTRIBUTE}
    return {name: seconds / HOUR for name, seconds in steps.items()}


def list_steps() -> Table:
    """Return the hours of every step."""
    where = dict.fromkeys(("align", "attribute"), "GPU")
    hours = [count_hours(pairs) for pairs in PAIRS]
    rows = [(name, where.get(name, "core"), *(each[name] for each in hours)) for name in hours[0]]
    rows.insert(1, ("decode, fast", "core", *(count_hours(pairs, FAST_DECODE)["decode"] for pairs in PAIRS)))
    return Table(
        "", ("step", "hours of a", *(Column(name_pairs(pairs), "pairs", 1) for pairs in PAIRS)), rows
    )


def list_bounds() -> Table:
    """Return what binds on a node, and how long one and eight of them take, phase by phase."""
    rows = []
    for name, cores, gpus in (
        ("align, exact decoding", DECODE, ALIGN),
        ("align, fast decoding", FAST_DECODE, ALIGN),
        ("attribute", PARSE, ATTRIBUTE),
    ):
        on_cores, on_gpus = NODE_CPUS * cores, NODE_GPUS * gpus
        share = ATTRIBUTED if name == "attribute" else 1.0
        hours = [share * pairs / min(on_cores, on_gpus) / HOUR for pairs in PAIRS]
        binds = "GPUs" if on_gpus < on_cores else "CPUs"
        rows.append((name, on_cores, on_gpus, binds, *hours))
    columns = (Column("cores", "rows/s", 0), Column("GPUs", "rows/s", 0), "binds")
    return Table("", ("phase", *columns, *(Column(name_pairs(pairs), "hours", 1) for pairs in PAIRS)), rows)


def list_sizes() -> Table:
    """Return what there is of shards, waves and bytes of scores."""
    per_wave = CurateConfig(input="none").waves.shards_per_wave
    rows = []
    for pairs in PAIRS:
        shards = pairs / PER_SHARD
        bytes_ = [pairs * (DIMS * each + OTHER_BYTES) / 1e12 for each in (4, 2)]
        rows.append((name_pairs(pairs), shards, shards / per_wave, *bytes_, pairs / 2 * 16 / 1e9))
    columns = (Column("shards", "", 0), Column("waves", "of each phase", 0))
    columns += (Column("scores, float32", "TB", 1), Column("float16", "TB", 1), Column("subset.npy", "GB", 1))
    return Table("", ("pairs", *columns), rows)


def main() -> None:
    """Print the tables."""
    for table in (list_steps(), list_bounds(), list_sizes()):
        print(table.to_text(), end="\n\n")


if __name__ == "__main__":
    main()
