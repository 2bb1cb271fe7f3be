"""What it costs to check a finished run before it is read: requests to S3, and seconds.

    python -m bench.run_checks [--files 10000] [--read 100]

Writes the manifest of a run of FILES small Parquet files to an S3 server of this machine (moto) behind the
tests' proxy, which here only counts. Then asks, each in turn: what lists the files, as readers did before
manifests; what checks them (``check_results``), and again in the same process; and what opens READ of them
by plain names, and as results whose footers are compared. Last line one JSON object.
"""

import argparse
import io
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from bench.s3_requests import ENVIRONMENT, run_server
from raycomp.data.files import Folder, hash_file
from raycomp.data.parquet import read_columns
from raycomp.data.runs import MANIFEST, check_results, write_manifest
from raycomp.table import Table
from tests.faults.proxy import Proxy, run_proxy

BUCKET = "bench"


def write_run(folder: Folder, num_files: int) -> dict[str, Any]:
    """Write the files and their manifest; return what run.json would record of it."""
    buffer = io.BytesIO()
    pq.write_table(pa.table({"uid": [f"{i:032x}" for i in range(20)]}), buffer)
    data = buffer.getvalue()
    uris = [folder.at("scores", f"{i:05d}.parquet") for i in range(num_files)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda uri: folder.write_bytes(data, uri[len(folder.uri) + 1 :]), uris))
    known = {uri: hash_file(uri, io.BytesIO(data)) for uri in uris}
    return {"manifest": write_manifest(folder, ("scores",), known)}


def count(proxy: Proxy, work: Callable[[], Any]) -> tuple[Any, dict[str, int], float]:
    """Return what the work returns, its requests by kind, and its seconds."""
    proxy.start({})
    started = time.perf_counter()
    found = work()
    seconds = time.perf_counter() - started
    return found, dict(sorted(Counter(request.kind for request in proxy.seen).items())), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--read", type=int, default=100)
    args = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    with run_server() as upstream, run_proxy(upstream) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
        fs.S3FileSystem(endpoint_override=proxy.endpoint, allow_bucket_creation=True).create_dir(BUCKET)
        folder = Folder(f"s3://{BUCKET}/run")
        run = write_run(folder, args.files)
        size = len(folder.read_bytes(MANIFEST))
        results: list[Any] = []
        steps: dict[str, Callable[[], Any]] = {
            "list, as before": lambda: folder.list_names("scores"),
            "check": lambda: results.extend(check_results(folder, run, "scores").values()),
            "check again": lambda: check_results(folder, run, "scores"),
            "open by name": lambda: [read_columns(str(uri)) for uri in results[: args.read]],
            "open as results": lambda: [read_columns(uri) for uri in results[: args.read]],
        }
        rows = []
        for name, work in steps.items():
            _, kinds, seconds = count(proxy, work)
            rows.append({"step": name, "requests": sum(kinds.values()), "seconds": seconds, **kinds})
    kinds_of = sorted({kind for row in rows for kind in row} - {"step", "requests", "seconds"})
    columns = ("step", "requests", "seconds", *kinds_of)
    print(Table("", columns, [tuple(row.get(name, 0) for name in columns) for row in rows]).to_text())
    print(json.dumps({"files": args.files, "manifest_bytes": size, "rows": rows}))


if __name__ == "__main__":
    main()
