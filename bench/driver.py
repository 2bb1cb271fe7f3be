"""What the driver itself does with a store far away: requests, time and memory by the number of shards.

    python -m bench.driver [--shards 300,1000,3000] [--rows 20] [--delay-ms 30] [--num-cpus 8]

Curates SHARDS files of ROWS captions with stored embeddings from and to an S3 server of this machine (moto)
behind a proxy that holds every request back by the delay. The proxy has two ports, one for the driver and one
for the workers, so that it can separate their requests. The input is a brace list. Each size is a process
of its own, with a Ray cluster of its own.

"outside" is the wall time of the run less that of its two scoring phases; "memory" is what the driver's peak
grew by since Ray was there. Slopes are those of the straight line closest to the sizes, per 1,000 shards.
Last line one JSON object.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from aiohttp import ClientSession, TCPConnector, web
from pyarrow import fs
from yarl import URL

import raycomp
from bench.s3_requests import ENVIRONMENT, run_server, write_scorer
from lab.worlds.samples import world_shards
from raycomp.config import ClusterConfig, ScorerConfig
from raycomp.curation.config import CurateConfig, PrepareConfig
from raycomp.run.executor import connect
from raycomp.table import Table
from tests.faults.proxy import name_kind

DRIVER, WORKERS = "driver", "workers"
BUCKET, ARRAY, WIDTH = "bench", "b32_img", 32
_OWN_HEADERS = {"content-length", "transfer-encoding", "connection", "keep-alive", "server", "date"}


class Proxy:
    """Forwards every request after ``delay_s``; counts who asked what of which folder."""

    def __init__(self, upstream: str, delay_s: float):
        self.upstream, self.delay_s = upstream, delay_s
        self.seen: dict[str, Counter] = {DRIVER: Counter(), WORKERS: Counter()}
        self.ports: dict[str, int] = {}

    async def serve(self, ready: threading.Event, done: asyncio.Event) -> None:
        """Listen on a port for each of the two until ``done``."""
        connector = TCPConnector(limit=64)
        async with ClientSession(connector=connector, auto_decompress=False) as self.session:
            runners = []
            for who in self.seen:
                app = web.Application(client_max_size=1 << 30)
                app.router.add_route("*", "/{key:.*}", self._make_handler(who))
                runners.append(web.AppRunner(app, access_log=None))
                await runners[-1].setup()
                site = web.TCPSite(runners[-1], "127.0.0.1", 0)
                await site.start()
                self.ports[who] = runners[-1].addresses[0][1]
            ready.set()
            await done.wait()
            for runner in runners:
                await runner.cleanup()

    def _make_handler(self, who: str) -> Any:
        async def handle(request: web.Request) -> web.Response:
            url = urlsplit(request.raw_path)
            kind = name_kind(request.method, url.path, parse_qs(url.query, keep_blank_values=True))
            self.seen[who][kind, name_place(url.path)] += 1
            body = await request.read()
            await asyncio.sleep(self.delay_s)
            headers = {n: v for n, v in request.headers.items() if n.lower() not in _OWN_HEADERS}
            target = URL(self.upstream + request.raw_path, encoded=True)
            options = {"headers": headers, "data": body or None, "allow_redirects": False}
            async with self.session.request(request.method, target, **options) as answer:
                data = await answer.read()
                kept = {n: v for n, v in answer.headers.items() if n.lower() not in _OWN_HEADERS}
                if request.method == "HEAD" and "Content-Length" in answer.headers:
                    kept["Content-Length"] = answer.headers["Content-Length"]
                return web.Response(body=data, status=answer.status, headers=kept)

        return handle


def name_place(path: str) -> str:
    """Return the folder that a request is about, at most three deep."""
    parts = [part for part in path.strip("/").split("/")[1:] if "." not in part]
    return "/".join(parts[:3]) or "."


@contextmanager
def run_proxy(upstream: str, delay_s: float) -> Iterator[Proxy]:
    """Run the proxy in a thread while the block runs."""
    proxy, ready = Proxy(upstream, delay_s), threading.Event()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(proxy.serve(ready, done)), daemon=True)
    thread.start()
    assert ready.wait(30), "the proxy did not start"
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()


def write_input(endpoint: str, num_shards: int, rows: int) -> str:
    """Write metadata and embeddings straight to the server; return the brace list that names them."""
    store = fs.S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True)
    store.create_dir(BUCKET)
    samples = [members for _, part in world_shards(200, 0, 0, per_shard=200) for _, members in part]
    captions = [members["txt"].decode() for members in samples]
    rng = np.random.default_rng(0)

    def write(shard: int) -> None:
        first = shard * rows
        texts = [captions[i % len(captions)] for i in range(first, first + rows)]
        uids = [f"{i * 7919:016x}{i:016x}" for i in range(first, first + rows)]
        stem = f"{BUCKET}/in/{shard:05d}"
        with store.open_output_stream(f"{stem}.parquet") as file:
            pq.write_table(pa.table({"uid": uids, "text": texts}), file)
        with store.open_output_stream(f"{stem}.npz") as file:
            np.savez(file, **{ARRAY: vectors[shard]})

    vectors = rng.standard_normal((num_shards, rows, WIDTH)).astype(np.float16)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(num_shards)))
    return f"s3://{BUCKET}/in/{{00000..{num_shards - 1:05d}}}.parquet"


def curate(spec: str, model: str, out: str, num_cpus: int, endpoints: dict[str, str]) -> dict[str, Any]:
    """Curate in this process, the driver; return what it took."""
    os.environ["AWS_ENDPOINT_URL"] = endpoints[WORKERS]
    with connect(ClusterConfig(executor="ray", num_cpus=num_cpus)):
        os.environ["AWS_ENDPOINT_URL"] = endpoints[DRIVER]
        config = CurateConfig(
            input=spec,
            scorer=ScorerConfig(model=model, weights="random:0"),
            prepare=PrepareConfig(stored_embeddings=ARRAY),
        )
        before = resource.getrusage(resource.RUSAGE_SELF)
        started = time.monotonic()
        run = raycomp.curate(config, out)
        wall_s = time.monotonic() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
    scoring_s = sum(phase["wall_s"] for phase in run["phases"])
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    memory_mb = (after.ru_maxrss - before.ru_maxrss) / 1024
    return {
        "rows": run["funnel"]["read"],
        "kept": run["funnel"]["kept"],
        "wall_s": wall_s,
        "outside_s": wall_s - scoring_s,
        "cpu_s": cpu_s,
        "memory_mb": memory_mb,
    }


def measure(num_shards: int, args: argparse.Namespace) -> dict[str, Any]:
    """Curate ``num_shards`` shards in a process of its own, on a store of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        run_server() as server,
        run_proxy(server, args.delay_ms / 1000) as proxy,
    ):
        spec = write_input(server, num_shards, args.rows)
        endpoints = {who: f"http://127.0.0.1:{port}" for who, port in proxy.ports.items()}
        one = [spec, write_scorer(Path(folder)), f"s3://{BUCKET}/out", args.num_cpus, endpoints]
        line = [sys.executable, "-m", "bench.driver", "--one", json.dumps(one)]
        done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
    places = Counter()
    for (kind, place), count in proxy.seen[DRIVER].items():
        places[f"{kind} {place}"] += count
    totals = {who: seen.total() for who, seen in proxy.seen.items()}
    return {"shards": num_shards, **totals, **found, "places": dict(places.most_common())}


SHOWN = ("shards", "rows", DRIVER, WORKERS, "wall_s", "outside_s", "cpu_s", "memory_mb")


def find_slopes(sizes: list[dict[str, Any]]) -> dict[str, float]:
    """Return by how much each quantity grows per 1,000 shards."""
    shards = np.array([size["shards"] for size in sizes]) / 1000
    return {name: float(np.polyfit(shards, [size[name] for size in sizes], 1)[0]) for name in SHOWN[2:]}


def main() -> None:
    """Measure every size; print the table and the slopes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", default="300,1000,3000")
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--delay-ms", type=float, default=30.0)
    parser.add_argument("--num-cpus", type=int, default=8)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    if args.one:
        print(json.dumps(curate(*json.loads(args.one))))
        return
    sizes = []
    for text in args.shards.split(","):
        sizes.append(measure(int(text), args))
        print(json.dumps(sizes[-1]), flush=True)
    slopes = find_slopes(sizes) if len(sizes) > 1 else {}
    rows = [tuple(size[name] for name in SHOWN) for size in sizes]
    if slopes:
        rows.append(("per 1,000", None, *(slopes[name] for name in SHOWN[2:])))
    print(Table("", SHOWN, rows).to_text())
    print(json.dumps({"sizes": sizes, "slopes": slopes}))


if __name__ == "__main__":
    main()
