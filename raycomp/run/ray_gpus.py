"""GPUs of a cluster: the maximum, the wait for the first, and the check that all scorers have the same."""

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray

from raycomp.config import UserError
from raycomp.run.progress import Progress
from raycomp.run.ray_private import find_limits
from raycomp.run.run import say_gpu

# `ray up` writes the cluster's config here on the head, in json; a submitted job's driver runs there, too.
_CLUSTER_CONFIG = Path("~/ray_bootstrap_config.yaml")
# A label that Ray gives to a node whose starter names its group in RAY_NODE_TYPE_NAME.
_GROUP = "ray.io/node-group"
MIXED: Mapping[str, Any] = {"name": "GPUs of several kinds"}
"""In place of a kind of GPU: any, each recorded with the rows that it computed."""
_ANYWHERE: Mapping[str, Any] = {}


def count_offered(resource: str) -> float:
    """Return how much of a resource ("GPU", "CPU") the cluster has once its autoscaler is at its maximum.

    inf where the autoscaler has no limit, or where nodes are started in groups of unknown limits, as KubeRay
    does; 0 where nothing starts nodes.
    """
    reported = find_limits()
    if reported is not None:
        most = reported.get(resource, 0)
        return math.inf if most >= 2**31 else most
    path = _CLUSTER_CONFIG.expanduser()
    if path.is_file():
        return _count_in_file(json.loads(path.read_text()), resource)
    return math.inf if _has_groups() else 0


def _has_groups() -> bool:
    """Whether a node says which group of nodes it was started from; nodes started by hand belong to none."""
    return any(node["Alive"] and _GROUP in node["Labels"] for node in ray.nodes())


def _count_in_file(config: Mapping[str, Any], resource: str) -> float:
    """Return the maximum of a resource of the workers and the head of a cluster.yaml."""
    types: Mapping[str, Any] = config.get("available_node_types", {})
    head, left = config.get("head_node_type", ""), config.get("max_workers", math.inf)
    has = {name: one.get("resources", {}).get(resource, 0) for name, one in types.items()}
    most = has.get(head, 0)
    for name in sorted(set(types) - {head}, key=has.__getitem__, reverse=True):
        taken = min(left, types[name].get("max_workers", left))
        most += taken * has[name] if has[name] else 0
        left -= taken
    return most


def describe_gpu() -> dict[str, Any] | None:
    """Return the GPU of this process. Only processes that call this load torch, which takes 2 s."""
    from raycomp.models import device

    return device.describe_gpu()


def _probe_gpu() -> tuple[str, dict[str, Any] | None]:
    return ray.util.get_node_ip_address(), describe_gpu()


def await_gpu(
    limit_s: float | None,
    where: Mapping[str, Any] = _ANYWHERE,
    probe: Callable[[], Any] = _probe_gpu,
    share: float = 1.0,
) -> dict[str, Any]:
    """Return the description of the first GPU once there is one; report the wait meanwhile.

    ``where`` are the options of tasks that require nodes with labels; ``share`` of a GPU is enough.

    Raises ValueError where no GPU came within ``limit_s``, or where torch finds none on a node with a GPU.
    """
    asked_at = time.strftime("%H:%M:%S")
    asked = ray.remote(num_cpus=0, num_gpus=share, **where)(probe).remote()
    try:
        with Progress("start", 1, unit="GPU"):
            ready, _ = ray.wait([asked], timeout=limit_s)
    except BaseException:
        ray.cancel(asked)
        raise
    if not ready:
        ray.cancel(asked)
        there = ray.cluster_resources().get("GPU", 0)
        raise ValueError(
            f"cluster.gpu: no GPU was free within cluster.wait_s={limit_s:g} s, requested at {asked_at} "
            f"({there:.0f} available); set cluster.gpu=true to keep waiting, cluster.gpu=false for CPUs"
        )
    node, found = ray.get(asked)
    if found is None:
        raise ValueError(_say_none(node))
    return found


def _say_none(node: str) -> str:
    return (
        f"cluster.gpu: node {node} reports a GPU, but torch finds none there; fix its driver, or set "
        f"cluster.gpu=false to score on CPUs"
    )


def check_gpu(wanted: Mapping[str, Any]) -> str:
    """Return this process's kind of GPU. Raises UserError unless it is the wanted one, or any will do."""
    found = describe_gpu()
    if found is None:
        raise UserError(_say_none(ray.util.get_node_ip_address()))
    if wanted not in (MIXED, found):
        raise UserError(
            f"cluster: a scorer has {say_gpu(found)}, the run was started on {say_gpu(wanted)}, and their "
            f"scores differ in the last bits; give all scorers GPUs of one kind by cluster.labels, or set "
            f"cluster.mixed_gpus=true in another folder"
        )
    return say_gpu(found)
