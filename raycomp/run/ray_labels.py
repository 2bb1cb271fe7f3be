"""Selection of a cluster's nodes by their labels."""

from typing import Any

import ray

from raycomp.config import ClusterConfig
from raycomp.run.ray_gpus import count_offered

# A resource that Ray gives to the head alone, and a label that it gives to every node.
_HEAD = "node:__internal_head__"
_NODE_ID = "ray.io/node-id"


def ask_labels(config: ClusterConfig) -> dict[str, Any]:
    """Return the option by which tasks and actors require ``cluster.labels``, empty for any node.

    Raises ValueError where no node has the labels and no autoscaler can add one: Ray would wait forever.
    """
    wanted = config.selector
    if not wanted:
        return {}
    nodes = [node["Labels"] for node in ray.nodes() if node["Alive"]]
    has_autoscaler = count_offered("CPU") or count_offered("GPU")
    if not has_autoscaler and not any(wanted.items() <= labels.items() for labels in nodes):
        said = ",".join(config.labels)
        raise ValueError(
            f"cluster.labels={said!r}: no node has these labels and no autoscaler can add one; label a node"
        )
    return {"label_selector": wanted}


def leave_head_alone() -> dict[str, Any]:
    """Return the option that keeps tasks without CPUs off a head without any: such a head does no work.

    Empty elsewhere: a laptop's only node is its head.
    """
    nodes = [node for node in ray.nodes() if node["Alive"] and _HEAD in node["Resources"]]
    idle = [node["NodeID"] for node in nodes if not node["Resources"].get("CPU")]
    return {"label_selector": {_NODE_ID: f"!{idle[0]}"}} if idle else {}
