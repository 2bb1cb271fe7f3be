"""Which nodes of a cluster are asked for, by their labels."""

from typing import Any

import ray

from raycomp.cluster.gpus import count_offered
from raycomp.config import ClusterConfig


def ask_labels(config: ClusterConfig) -> dict[str, Any]:
    """Return the option of tasks and actors that asks for nodes with ``cluster.labels``, none for any node.

    Raises ValueError where no node has them and no autoscaler can bring one: Ray would wait for ever.
    """
    wanted = config.selector
    if not wanted:
        return {}
    nodes = [node["Labels"] for node in ray.nodes() if node["Alive"]]
    has_autoscaler = count_offered("CPU") or count_offered("GPU")
    if not has_autoscaler and not any(wanted.items() <= labels.items() for labels in nodes):
        said = ",".join(config.labels)
        raise ValueError(f"cluster.labels={said!r}: no node has them, and no autoscaler would bring one")
    return {"label_selector": wanted}
