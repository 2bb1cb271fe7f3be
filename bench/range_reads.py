"""What kept offsets save when the kept samples of a tar are read again.

    python -m bench.range_reads [--samples 20000] [--bytes 20000]

One tar of images of random bytes on the local disk. A share of its samples, drawn at random, or a tenth in a
row from the middle on, is read from the tar's start and by ranges, in turn; the least seconds of three. Bytes
are those of the planned ranges (of the whole tar where these are more than half of it), and of the tar up to
the last sample that is wanted. Requests are buffers of 512 KiB, as on a disk.
Last line one JSON object.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from raycomp.data import reader
from raycomp.data.inputs import expand_input
from raycomp.data.reader import extract, plan_ranges, read_shard
from raycomp.data.samples import write_tar

REPEATS = 3


def main() -> None:
    """Print a row for each share: bytes, requests and seconds of both ways."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=20_000)
    options = parser.parse_args()
    rng, rows = random.Random(0), []
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "0.tar")
        write_tar(path, draw_samples(options, rng))
        (shard,) = expand_input(path)
        offsets = [one for table in read_shard(shard, 1000) for one in table["offset"].to_pylist()]
        for name, positions in list_picks(options.samples, rng):
            rows.append({"kept": name, **measure(shard, positions, offsets)})
            print(rows[-1], flush=True)
    print(json.dumps(rows))


def draw_samples(options: argparse.Namespace, rng: random.Random) -> Iterator[tuple[str, dict[str, bytes]]]:
    for i in range(options.samples):
        yield f"{i:08d}", {"jpg": rng.randbytes(options.bytes), "txt": b"a dog on the grass", "json": b"{}"}


def list_picks(num: int, rng: random.Random) -> list[tuple[str, set[int]]]:
    """Return the samples that are read, by name."""
    shares = [
        (f"{share:.1%}", set(rng.sample(range(num), int(share * num)))) for share in (0.001, 0.01, 0.1, 0.5)
    ]
    middle = set(range(num // 2, num // 2 + num // 10))
    return [*shares, ("all", set(range(num))), ("a tenth in the middle", middle)]


def measure(shard, positions: set[int], offsets: list[int | None]) -> dict:
    """Return bytes, requests and seconds of reading from the start, and by ranges."""
    buffer = reader._DISK_BUFFER_BYTES
    end = offsets[max(positions) + 1] if max(positions) + 1 < len(offsets) else None
    size = Path(shard.uri).stat().st_size
    planned = plan_ranges(positions, offsets, buffer // 2)
    lengths = [(size if stop is None else stop) - start for _, start, stop, _ in planned]
    if sum(lengths) > size / 2:
        lengths = [size]
    seconds: dict[str, float] = {}
    for _ in range(REPEATS):
        for way, known in (("start", None), ("ranges", offsets)):
            began = time.perf_counter()
            count = sum(1 for _ in extract(shard, positions, known))
            assert count == len(positions)
            seconds[way] = min(seconds.get(way, 1e9), time.perf_counter() - began)
    from_start = size if end is None else end
    return {
        "mb_from_start": round(from_start / 1e6, 1),
        "mb_by_ranges": round(sum(lengths) / 1e6, 1),
        "requests_from_start": -(-from_start // buffer),
        "requests_by_ranges": sum(-(-length // buffer) for length in lengths),
        "s_from_start": round(seconds["start"], 3),
        "s_by_ranges": round(seconds["ranges"], 3),
    }


if __name__ == "__main__":
    main()
