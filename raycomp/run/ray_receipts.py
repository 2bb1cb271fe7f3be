"""Receipts of staged parts, as a pass yields them; what fails on the way told in the user's words."""

import re
from collections.abc import Iterator
from typing import Any

from ray.data import Dataset
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import ActorDiedError, UserCodeException

from raycomp.config import ClusterFailed
from raycomp.run.parts import Stalled

_STORAGE_FAILED = re.compile(
    r"^(?:OSError|PermissionError|TimeoutError|Connection\w*Error): (.+)\n\n"
    r"The above exception was the direct cause of the following exception:$",
    re.MULTILINE,
)
_OWN_FAILED = re.compile(r"^raycomp\.config\.check\.(UserError|ClusterFailed): (.+)$", re.MULTILINE)
_RAISED = {"UserError": ValueError, "ClusterFailed": ClusterFailed}


def read_receipts(dataset: Dataset) -> Iterator[list[dict[str, Any]]]:
    """Run a dataset, yield its receipts block by block.

    Ray Data tells a stage's errors by their traceback alone. Raises OSError where a stage's storage failed,
    ValueError where the user can mend what did, ClusterFailed where a GPU did, Stalled where nothing came for
    too long.
    """
    try:
        receipts: Any
        for receipts in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield receipts.to_pylist()
    except ExecutionTimeoutError as error:
        raise Stalled("no block came") from error
    except (UserCodeException, ActorDiedError) as error:  # the second, where a model is loaded
        if said := _OWN_FAILED.search(str(error)):
            raise _RAISED[said[1]](said[2]) from error
        if said := _STORAGE_FAILED.search(str(error)):
            raise OSError(said[1]) from error
        raise
