"""deploy/rayjob.yaml and the image that it names, as far as they can be tried without Kubernetes."""

import re
import shlex
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from raycomp.arguments import COMMANDS, parse_arguments

ROOT = Path(__file__).parents[2]
# Of those that KubeRay 1.6 has, and Kubernetes refuses any other:
# https://docs.ray.io/en/master/cluster/kubernetes/references/api.html
JOB = "entrypoint runtimeEnvYAML backoffLimit shutdownAfterJobFinishes ttlSecondsAfterFinished rayClusterSpec"
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


def test_its_line_is_one_of_raycomp(job):
    python, flag, module, *line = shlex.split(job["spec"]["entrypoint"])
    assert (python, flag, module) == ("python", "-m", "raycomp")
    args = parse_arguments(line)
    assert args.command is COMMANDS["curate"] and args.out.startswith("s3://")


def test_the_image_has_what_it_copies_and_calls(job):
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split()), line
    assert "wget" in text  # KubeRay's probes
    assert "ENV PATH=/opt/venv/bin:$PATH" in text  # what `python` of the entrypoint is
    tag = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tag.endswith(f"/raycomp:{project['version']}")
