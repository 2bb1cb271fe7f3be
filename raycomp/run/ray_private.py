"""Ray's private interfaces. ``tests/run/test_ray_private.py`` checks what raycomp expects of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import worker
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from ray._private.state import actors, state
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.operators.map_operator import MapOperator

JOB_VARIABLE = RAY_JOB_CONFIG_JSON_ENV_VAR
"""The environment variable that holds the config of a submitted job, as json."""
# Ray Data's name of a pool's actors.
_POOL_CLASS = "MapWorker("


def count_restarts() -> int:
    """Return how often this actor was restarted."""
    return actors(ray.get_runtime_context().get_actor_id())["NumRestarts"]


def count_pool() -> int:
    """Return how many actors of Ray Data's pools this driver has, with their models loaded."""
    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    alive = actors(job_id=job, actor_state_name="ALIVE")
    return sum(one["ActorClassName"].startswith(_POOL_CLASS) for one in alive.values())


def find_limits() -> dict[str, int] | None:
    """Return the maximum of each resource that the autoscaler reports; None where it reports none."""
    return state.get_max_resources_from_cluster_config()


@contextmanager
def catch_notes(log: Callable[[str], None]) -> Iterator[None]:
    """Send what Ray's nodes report to ``log``: Ray prints it on stdout, and has no option for that."""
    before = worker.print_to_stdstream

    def catch(data: dict[str, Any], ignore_prefix: bool) -> None:
        for line in data["lines"]:
            log(line)

    worker.print_to_stdstream = catch
    try:
        yield
    finally:
        worker.print_to_stdstream = before


class ForgetBlocks(ExecutionCallback):
    """Drops Ray Data's records of finished blocks, which are unused."""

    def on_execution_step(self, executor: Any) -> None:
        """Drop them after every step."""
        for operator in executor._topology:
            if isinstance(operator, MapOperator):
                operator._output_blocks_stats.clear()


def drain_node(head: str, instance: str, deadline_ms: int) -> str:
    """Report to the cluster at ``head`` that a machine ends then; return why that was refused, else ""."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # type: ignore[attr-defined]

    gcs = GcsClient(address=head)
    nodes = [node for node in gcs.get_all_node_info().values() if node.instance_id == instance]
    if not nodes:
        return f"no node of the cluster at {head}"
    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, why_not = gcs.drain_node(nodes[0].node_id.hex(), reason, "spot interruption", deadline_ms)
    return "" if accepted else why_not
