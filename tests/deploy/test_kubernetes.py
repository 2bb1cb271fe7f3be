"""deploy/rayjob.yaml and the image that it names, as far as they can be tried without Kubernetes."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from raycomp.cli import Reader, read_values
from raycomp.config import override
from raycomp.config.commands import import_command

ROOT = Path(__file__).parents[2]
# Of those that KubeRay 1.6 has, and Kubernetes refuses any other:
# https://docs.ray.io/en/master/cluster/kubernetes/references/api.html
JOB = (
    "entrypoint runtimeEnvYAML backoffLimit activeDeadlineSeconds shutdownAfterJobFinishes "
    "ttlSecondsAfterFinished rayClusterSpec"
)
CLUSTER = "rayVersion authOptions enableInTreeAutoscaling autoscalerOptions headGroupSpec workerGroupSpecs"
GROUP = "groupName minReplicas maxReplicas labels rayStartParams template"


@pytest.fixture(scope="module")
def job() -> dict:
    return yaml.safe_load((ROOT / "deploy" / "rayjob.yaml").read_text())


def test_it_says_nothing_that_kuberay_does_not_know(job):
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    assert set(spec) <= set(JOB.split())
    cluster = spec["rayClusterSpec"]
    assert set(cluster) <= set(CLUSTER.split())
    assert set(cluster["headGroupSpec"]) <= {"rayStartParams", "template"}
    for group in cluster["workerGroupSpecs"]:
        assert set(group) <= set(GROUP.split())
        assert all(isinstance(value, str) for value in group["labels"].values())


def test_the_cluster_is_the_shape_of_cluster_yaml(job):
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["rayVersion"] == version("ray")
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    types = yaml.safe_load((ROOT / "cluster.yaml").read_text())["available_node_types"]
    groups = {group["groupName"].replace("-", "_"): group for group in cluster["workerGroupSpecs"]}
    assert set(groups) == set(types) - {"head"}
    for name, group in groups.items():
        assert group["labels"] == types[name]["labels"] and group["maxReplicas"] == types[name]["max_workers"]
        asked = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert int(asked.get("nvidia.com/gpu", 0)) == types[name]["resources"].get("GPU", 0)


def list_pods(job: dict) -> Iterator[tuple[str, dict]]:
    """Yield every group of pods: its name and the template of its pods."""
    cluster = job["spec"]["rayClusterSpec"]
    yield "head", cluster["headGroupSpec"]["template"]
    for group in cluster["workerGroupSpecs"]:
        yield group["groupName"], group["template"]


def test_every_pod_is_one_of_kubernetes(job):
    """The CRD of KubeRay embeds the pods' schema, which is checked here as Kubernetes publishes it."""
    validate = pytest.importorskip("kubernetes_validate").validate
    for name, template in list_pods(job):
        metadata = {"name": name, **template.get("metadata", {})}
        validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}, "1.35", True
        )
        with pytest.raises(Exception, match="tolerationz"):
            wrong = {**template["spec"], "tolerationz": []}
            validate({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": wrong}, "1.35", True)


# What nodes of each kind are labelled, as their clouds document it; some teams taint spot nodes alike.
SPOT = [
    {"eks.amazonaws.com/capacityType": "SPOT"},
    {"karpenter.sh/capacity-type": "spot"},
    {"cloud.google.com/gke-spot": "true"},
    {"kubernetes.azure.com/scalesetpriority": "spot"},
]
LASTING = [{"eks.amazonaws.com/capacityType": "ON_DEMAND"}, {"karpenter.sh/capacity-type": "on-demand"}, {}]
GPU = {"nvidia.com/gpu": "present"}


def fits(spec: dict, labels: dict[str, str], taints: dict[str, str]) -> bool:
    """Return whether Kubernetes may put a pod on a node with these labels and NoSchedule taints."""

    def holds(rule: dict) -> bool:
        return (labels.get(rule["key"]) in rule["values"]) == (rule["operator"] == "In")

    def tolerates(one: dict, key: str) -> bool:
        same = one["operator"] == "Exists" or one["value"] == taints[key]
        return one["key"] == key and one["effect"] == "NoSchedule" and same

    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    tolerated = all(any(tolerates(one, key) for one in spec.get("tolerations", [])) for key in taints)
    return tolerated and any(
        all(map(holds, term["matchExpressions"])) for term in affinity["nodeSelectorTerms"]
    )


def test_spot_nodes_run_the_spot_groups_and_others_what_must_last(job):
    for name, template in list_pods(job):
        spec, is_spot, has_gpu = template["spec"], name.endswith("-spot"), name.startswith("gpu")
        for labels in SPOT:
            assert fits(spec, labels, {}) == fits(spec, labels, labels) == is_spot, name
            assert fits(spec, labels, {**labels, **GPU}) == (is_spot and has_gpu), name
        for labels in LASTING:
            assert fits(spec, labels, {}) == (not is_spot), name
            assert fits(spec, labels, GPU) == (name == "gpu"), name
        stays = template.get("metadata", {}).get("annotations", {}).get("karpenter.sh/do-not-disrupt")
        assert stays == (None if is_spot else "true"), name
        assert "ephemeral-storage" in spec["containers"][0]["resources"]["requests"], name
    assert job["spec"]["activeDeadlineSeconds"] > 3600 and job["spec"]["backoffLimit"] > 0


def test_its_line_is_one_of_raycomp_that_grows_with_the_cluster(job, monkeypatch):
    """Nodes of KubeRay name their group and no limit; the line is taken there, with every GPU it may have."""
    from raycomp.run import ray_cluster, ray_session

    python, flag, module, *line = shlex.split(job["spec"]["entrypoint"])
    assert (python, flag, module) == ("python", "-m", "raycomp.run.ray_job")
    assert line[0] == "curate"
    command = import_command("curate")
    config, out = read_values("curate", command, Reader(command, line[1:]).read())
    assert out.startswith("s3://")
    node = {"Alive": True, "Labels": {"ray.io/node-group": "headgroup"}, "Resources": {}}
    node["NodeManagerHostname"] = "head"
    monkeypatch.setattr(ray_cluster.state, "get_max_resources_from_cluster_config", lambda: None)
    monkeypatch.setattr(ray_cluster.ray, "nodes", lambda: [node])
    monkeypatch.setattr(ray_cluster.ray, "cluster_resources", lambda: {"GPU": 1.0})
    monkeypatch.setattr(ray_cluster, "await_gpu", lambda limit_s, where, share: {"name": "NVIDIA L4"})
    cluster = config.cluster
    session = ray_session._describe(cluster)
    groups = {group["groupName"]: group for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]}
    assert (session.least_scorers, session.num_scorers) == (1, groups["gpu-spot"]["maxReplicas"])
    with pytest.raises(ValueError, match=r"^cluster\.scorers=none: must be MIN\.\.MAX where"):
        ray_session._describe(override(cluster, "scorers", None))


def test_the_image_has_what_it_copies_and_calls(job):
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split()), line
    assert "wget" in text  # KubeRay's probes
    assert "ENV PATH=/opt/venv/bin:$PATH" in text  # what `python` of the entrypoint is
    tag = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tag.endswith(f"/raycomp:{project['version']}")
