"""All options for retries of storage requests, each with its reason.

There are three layers; an outer layer acts after the inner ones failed. A store's client repeats a request,
which covers all faults that pass within seconds, on workers and on the driver alike. A reader opens its file
anew, which also covers a disk or mount, whose errors have no other retry. Ray repeats a task, which also
covers a lost worker. With a storage that stays down the driver gives up after about half a minute, a task
after at most five.
"""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

Item = TypeVar("Item")

# 25 ms, doubled each time: 26 s in all. At a failure rate of one in five, one request in 5e7 is lost.
_S3_RETRIES = 10
# A server without traffic for this long has lost the request. The client's own 3 s would repeat requests that
# a loaded server only answers late, for example while it assembles the parts of a large object.
_S3_SILENCE_S = 10.0
# The client's own 1 s fails after one lost packet; a connection that takes longer than this will not come.
_S3_CONNECT_S = 5.0
# The same number of seconds for Google as for S3. Arrow has no such option for Azure: about 5 s; adlfs takes
# a minute.
_GCS_RETRY_S = 26.0

# Two more attempts: an error arrives here only after the storage's own retries failed.
READ_ATTEMPTS = 3
# Doubled before the last attempt: a hung disk or mount is back within some seconds.
READ_PAUSE_S = 5.0

# Waiting does not fix these.
_FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)

# Ray's name for the number of times that a dataset's stage is repeated after one of STORAGE_ERRORS; a lost
# worker is not counted here. Low, as each attempt already has retries.
MAP_RETRIES = 2
# Messages of Arrow (by store) and botocore for a failed storage request that may succeed the next time.
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
# For a task over one file. Lost workers count here too, and spot machines are lost one after the other.
TASK_RETRIES = {"max_retries": 5, "retry_exceptions": [OSError]}


def gcs_patience() -> dict[str, Any]:
    """Return the retry options of ``fs.GcsFileSystem``."""
    return {"retry_time_limit": timedelta(seconds=_GCS_RETRY_S)}


def s3_patience() -> dict[str, object]:
    """Return the timeout and retry options of ``fs.S3FileSystem``."""
    return {
        # The standard strategy, pyarrow's default, has a quota of 100 retries for the life of a file system.
        # Arrow never reports a success to it, so the quota is never refilled; a long run fails in the end.
        "retry_strategy": fs.AwsDefaultS3RetryStrategy(max_attempts=_S3_RETRIES),
        "request_timeout": _S3_SILENCE_S,
        "connect_timeout": _S3_CONNECT_S,
    }


def read_again(
    read: Callable[[Item], Iterator[pa.Table]], item: Item, first_pause_s: float = READ_PAUSE_S
) -> Iterator[pa.Table]:
    """Yield the tables of ``read(item)``; after an OSError read again, skipping the yielded tables."""
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
