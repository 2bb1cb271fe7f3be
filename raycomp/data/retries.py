"""How patient a run is with its storage: every such option, each with its reason.

Three layers, the inner ones used up before the outer ones count. A store's client repeats a request, which
mends all that passes within seconds, on workers and on the driver alike. A reader opens its file anew, which
also mends a disk or mount whose errors nobody else repeats. Ray runs a task again, which also mends a lost
worker. With a storage that stays down the driver gives up after about half a minute, a task after at most
five.
"""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

Item = TypeVar("Item")

# 25 ms, then twice as long each time: 26 s in all. A request of which one in five fails is lost once in 5e7.
_S3_RETRIES = 10
# A server that sends and takes no byte for so long has lost the request. The client's own 3 s would repeat
# what a loaded server only answers late, as it does when it puts the parts of a large object together.
_S3_SILENCE_S = 10.0
# The client's own 1 s is one lost packet away from failing; a connection that takes longer will not come.
_S3_CONNECT_S = 5.0
# Of Google's as many seconds as of S3. Arrow gives Azure's client no option: 5 s or so; adlfs takes a minute.
_GCS_RETRY_S = 26.0

# Two more tries: what the storage itself repeats comes here only when that was in vain.
READ_ATTEMPTS = 3
# Doubled before the last try: a disk or mount that hangs is back within some seconds.
READ_PAUSE_S = 5.0

# These do not pass by waiting.
_FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)

# Ray's name for the number of times a stage of a dataset is run again after one of STORAGE_ERRORS; a lost
# worker is not counted here. Low, for each try is already patient.
MAP_RETRIES = 2
# What Arrow (by store) and botocore say where a storage request fails that may pass the next time.
STORAGE_ERRORS = (
    "AWS Error",
    "google::cloud::Status",
    "Azure Error",
    "NETWORK_CONNECTION",
    "SLOW_DOWN",
    "SlowDown",
    "Connection reset",
    "timed out",
)
# Of a task over one file. Lost workers count here too, and spot machines go one after the other.
TASK_RETRIES = {"max_retries": 5, "retry_exceptions": [OSError]}


def gcs_patience() -> dict[str, Any]:
    """Return how ``fs.GcsFileSystem`` repeats."""
    return {"retry_time_limit": timedelta(seconds=_GCS_RETRY_S)}


def s3_patience() -> dict[str, object]:
    """Return how ``fs.S3FileSystem`` waits and repeats."""
    return {
        # The standard strategy, pyarrow's default, has a quota of 100 retries for the life of a file system:
        # Arrow never tells it of a success, so nothing fills it up, and a long run fails at the next error.
        "retry_strategy": fs.AwsDefaultS3RetryStrategy(max_attempts=_S3_RETRIES),
        "request_timeout": _S3_SILENCE_S,
        "connect_timeout": _S3_CONNECT_S,
    }


def read_again(
    read: Callable[[Item], Iterator[pa.Table]], item: Item, first_pause_s: float = READ_PAUSE_S
) -> Iterator[pa.Table]:
    """Yield the tables of ``read(item)``; after an OSError read anew, skipping what was yielded."""
    num_yielded = 0
    for attempt in range(READ_ATTEMPTS):
        try:
            for i, table in enumerate(read(item)):
                if i >= num_yielded:
                    num_yielded += 1
                    yield table
            return
        except _FINAL:
            raise
        except OSError:
            if attempt == READ_ATTEMPTS - 1:
                raise
            time.sleep(first_pause_s * 2**attempt)
