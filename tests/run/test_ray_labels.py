"""A label is asked for only where a node has it, or an autoscaler may bring one that does."""

import pytest

from raycomp.config import ClusterConfig, override
from raycomp.run import ray_cluster
from raycomp.run.ray_cluster import ask_labels, leave_head_alone

SPOT, OTHER = {"ray.io/market-type": "spot", "zone": "a"}, {"ray.io/market-type": "on-demand"}


def see(monkeypatch, *nodes: tuple[bool, dict[str, str]], offered: dict[str, int] | None = None) -> None:
    """Let the cluster have these nodes, each alive or not, and an autoscaler with something to offer."""
    found = [{"Alive": alive, "Labels": has} for alive, has in nodes]
    monkeypatch.setattr(ray_cluster.ray, "nodes", lambda: found)
    monkeypatch.setattr(ray_cluster.state, "get_max_resources_from_cluster_config", lambda: offered)


def test_nothing_is_asked_where_no_label_is_named():
    assert ask_labels(ClusterConfig()) == {}  # not even the cluster
    assert override(ClusterConfig(), "labels", "a=b,c=d=e").selector == {"a": "b", "c": "d=e"}
    for text in ["a", "=b", "a="]:
        with pytest.raises(ValueError, match=r"cluster\.labels='.*': must be KEY=VALUE"):
            override(ClusterConfig(), "labels", text)


def test_a_node_that_is_there_must_have_them_all(monkeypatch):
    see(monkeypatch, (True, OTHER), (True, SPOT))
    one = ClusterConfig(labels=("zone=a", "ray.io/market-type=spot"))
    assert ask_labels(one) == {"label_selector": {"zone": "a", "ray.io/market-type": "spot"}}
    two = ClusterConfig(labels=("zone=a", "ray.io/market-type=on-demand"))
    with pytest.raises(ValueError, match=r"labels='zone=a,ray.io/market-type=on-demand': no node has"):
        ask_labels(two)


def test_a_node_that_is_gone_counts_only_where_another_may_come(monkeypatch):
    config = ClusterConfig(labels=("ray.io/market-type=spot",))
    see(monkeypatch, (False, SPOT), (True, OTHER))
    with pytest.raises(ValueError, match="no autoscaler can add one"):
        ask_labels(config)
    see(monkeypatch, (False, SPOT), (True, OTHER), offered={"GPU": 8})
    assert ask_labels(config) == {"label_selector": {"ray.io/market-type": "spot"}}


def test_what_asks_for_no_cpu_stays_off_a_head_without_any(monkeypatch):
    def see_head(cpus: dict[str, float]) -> None:
        head = {"Alive": True, "NodeID": "a", "Resources": {"node:__internal_head__": 1.0, **cpus}}
        other = {"Alive": True, "NodeID": "b", "Resources": {"CPU": 4.0}}
        monkeypatch.setattr(ray_cluster.ray, "nodes", lambda: [other, head])

    see_head({"CPU": 2.0})
    assert leave_head_alone() == {}
    see_head({})
    assert leave_head_alone() == {"label_selector": {"ray.io/node-id": "!a"}}
