"""``ray up cluster.yaml`` would start: it goes through Ray's own preparation, on an AWS that is simulated."""

import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto")

ROOT = Path(__file__).parents[2]
REGION = "us-east-1"
MARKET = "ray.io/market-type"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An AWS with the roles of deploy/iam.yaml and nothing else; Ray's provider makes the rest."""
    from ray.autoscaler._private.aws import node_provider

    def list_instances(region: str, credentials: Any = None) -> list[dict[str, Any]]:
        # All of them at once take the simulation 20 s.
        types = ["m7i.2xlarge", "m7i.4xlarge", "g6.4xlarge"]
        return boto3.client("ec2", region).describe_instance_types(InstanceTypes=types)["InstanceTypes"]

    with pytest.MonkeyPatch.context() as patch, moto.mock_aws():
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # where the provider leaves its key
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        patch.setattr(node_provider, "list_ec2_instances", list_instances)
        boto3.client("cloudformation", REGION).create_stack(
            StackName="raycomp",
            TemplateBody=(ROOT / "deploy" / "iam.yaml").read_text(),
            Parameters=[{"ParameterKey": "Bucket", "ParameterValue": "my-bucket"}],
            Capabilities=["CAPABILITY_NAMED_IAM"],
        )
        yield


def read() -> dict[str, Any]:
    """Return cluster.yaml."""
    return yaml.safe_load((ROOT / "cluster.yaml").read_text())


def start(config: dict[str, Any]) -> dict[str, Any]:
    """Do what ``ray up`` does up to its first node of every type; return the config that came of it."""
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(config)
    validate_config(config)
    config = AWSNodeProvider.fillout_available_node_types_resources(config)
    config = AWSNodeProvider.bootstrap_config(config)
    provider = AWSNodeProvider(config["provider"], config["cluster_name"])
    for name, node in config["available_node_types"].items():
        provider.create_node(node["node_config"], {"ray-user-node-type": name}, 1)
    return config


def find_faults(config: dict[str, Any]) -> Iterator[str]:
    """Yield what Ray's preparation lets pass, and would fail or lie open on AWS."""
    from ray.autoscaler._private.aws.config import DEFAULT_AMI

    types, head = config["available_node_types"], config["head_node_type"]
    for name, node in types.items():
        setup = node["node_config"]
        if setup["ImageId"] in DEFAULT_AMI.values():
            yield f"{name}: the image is Ubuntu 18.04, too old for Python 3.11 and CUDA 13"
        if "IamInstanceProfile" not in setup:
            yield f"{name}: without a role it reaches no bucket"
        if setup.get("MetadataOptions") != {"HttpTokens": "required"}:
            yield f"{name}: its role can be had by whoever makes it ask a URL"
        is_spot = setup.get("InstanceMarketOptions", {}).get("MarketType") == "spot"
        if node.get("labels", {}).get(MARKET) != ("spot" if is_spot else "on-demand"):
            yield f"{name}: its label does not say how it is bought"
    if types[head]["resources"] != {"CPU": 0}:
        yield "work comes to the head"
    if types[head]["node_config"]["IamInstanceProfile"] in [
        node["node_config"].get("IamInstanceProfile") for name, node in types.items() if name != head
    ]:
        yield "workers may start and end nodes"
    yield from find_faults_of_commands(config)


def find_faults_of_commands(config: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with what is run on the nodes."""
    setup = [*config["head_setup_commands"], *config["worker_setup_commands"]]
    if any("ray-wheels" in line or re.search(r"\bpip3? install '?boto3", line) for line in setup):
        yield "Ray's defaults install something else than constraints.txt has"
    if not any("boto3" in find_installed(line) for line in config["head_setup_commands"]):
        yield "the head's environment has no boto3, which starts nodes"
    if not any("vllm" in find_installed(line) for line in config["worker_setup_commands"]):
        yield "the workers' environment has no vllm, which writes negatives"
    starts = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    starts = [line for line in starts if re.search(r"\bray start\b|raycomp\.run\.ray_spot", line)]
    if not all(line.startswith(". ~/raycomp/deploy/env.sh;") for line in starts):
        yield "a node starts without what deploy/env.sh sets"
    head_start = next(line for line in starts if "--head" in line)
    if "--dashboard-host=127.0.0.1" not in head_start.split():
        yield "the dashboard runs anybody's code"
    if f"export AWS_REGION={config['provider']['region']};" not in head_start:
        yield "AWS_REGION is another than the nodes'"
    if "~/.ray/auth_token" not in config["file_mounts"]:
        yield "nodes have no token"
    if not any("raycomp.run.ray_spot $RAY_HEAD_IP:6379" in line for line in starts):
        yield "nobody heeds what AWS says of spot nodes"


def find_installed(line: str) -> set[str]:
    """Return the packages that a line's extras of raycomp name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.search(r'-e "?\.\[([a-z,]+)\]', line)
    wanted = extras[1].split(",") if extras else []
    return {Requirement(text).name for extra in wanted for text in project["optional-dependencies"][extra]}


def test_it_would_start(cloud):
    config = start(read())
    assert list(find_faults(config)) == []
    # Every node type came up, with the role and the market that it asks for.
    reservations = boto3.client("ec2", REGION).describe_instances()["Reservations"]
    made = {
        tag["Value"]: (node["IamInstanceProfile"]["Arn"].rpartition("/")[2], node.get("InstanceLifecycle"))
        for reservation in reservations
        for node in reservation["Instances"]
        for tag in node["Tags"]
        if tag["Key"] == "ray-user-node-type"
    }
    assert made == {
        "head": ("raycomp-head", None),
        "cpu_spot": ("raycomp-worker", "spot"),
        "gpu_spot": ("raycomp-worker", "spot"),
        "gpu": ("raycomp-worker", None),
    }


def edit(path: str, value: Any = None) -> Callable[[dict[str, Any]], None]:
    """Return what sets the entry at ``path``, and deletes it where there is no value."""

    def change(config: dict[str, Any]) -> None:
        *folders, name = path.split("/")
        for part in folders:
            config = config[part]
        config.pop(name, None)
        if value is not None:
            config[name] = value

    return change


def replace(name: str, old: str, new: str) -> Callable[[dict[str, Any]], None]:
    """Return what changes every command in a list."""

    def change(config: dict[str, Any]) -> None:
        assert any(old in line for line in config[name])
        config[name] = [line.replace(old, new) for line in config[name]]

    return change


NODES = "available_node_types"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (edit(f"{NODES}/head/node_config/ImageId"), "head: the image is Ubuntu 18.04"),
        (edit(f"{NODES}/gpu/node_config/ImageId", "latest_dlami"), "gpu: the image is Ubuntu 18.04"),
        (edit(f"{NODES}/gpu_spot/node_config/IamInstanceProfile"), "gpu_spot: without a role"),
        (
            edit(f"{NODES}/gpu/node_config/IamInstanceProfile", {"Name": "raycomp-head"}),
            "start and end nodes",
        ),
        (edit(f"{NODES}/cpu_spot/node_config/MetadataOptions"), "cpu_spot: its role can be had"),
        (edit(f"{NODES}/gpu_spot/labels"), "gpu_spot: its label"),
        (edit(f"{NODES}/gpu_spot/node_config/InstanceMarketOptions"), "gpu_spot: its label"),
        (edit(f"{NODES}/head/resources", {"CPU": 8}), "work comes to the head"),
        (edit("setup_commands"), "Ray's defaults install"),
        (edit("head_setup_commands"), "Ray's defaults install"),
        (replace("setup_commands", "[cluster,vllm]", "[vllm]"), "no boto3"),
        (replace("setup_commands", "[cluster,vllm]", "[cluster]"), "no vllm"),
        (edit("head_start_ray_commands"), "the dashboard runs anybody's code"),
        (replace("head_start_ray_commands", "=127.0.0.1", "=0.0.0.0"), "the dashboard runs anybody's code"),
        (replace("worker_start_ray_commands", ". ~/raycomp/deploy/env.sh; ", ""), "deploy/env.sh"),
        (replace("worker_start_ray_commands", "raycomp.run.ray_spot", "nothing"), "nobody heeds"),
        (edit("provider/region", "eu-west-1"), "AWS_REGION is another"),
        (edit("file_mounts"), "nodes have no token"),
    ],
)
def test_what_ray_would_let_pass_is_found(cloud, change, said):
    from ray.autoscaler._private.aws.config import _check_ami
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = read()
    change(config)
    config = prepare_config(config)
    validate_config(config)
    _check_ami(config)
    assert any(said in fault for fault in find_faults(config))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (edit(f"{NODES}/gpu/spot", True), "spot"),
        (edit(f"{NODES}/gpu/resources", {"GPU": 0.5}), "0.5 is not of type 'integer'"),
        (edit(f"{NODES}/gpu/node_config/InstanceType", "g6.4xlrage"), "g6.4xlrage is not available"),
        (edit(f"{NODES}/gpu/node_config/IamInstanceProfile", {"Name": "nobody"}), "nobody"),
        (edit("head_node_type", "haed"), "head_node_type"),
    ],
)
def test_ray_refuses_what_it_sees(cloud, change, said):
    config = read()
    change(config)
    with pytest.raises(Exception, match=re.escape(said)):
        start(config)


def test_every_node_asks_for_the_token_and_finds_python():
    line = f'HOME=/h; . {ROOT}/deploy/env.sh; echo "$RAY_AUTH_MODE $RAY_JOB_STOP_WAIT_TIME_S $PATH"'
    said = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
    mode, wait_s, path = said.split()
    assert mode == "token" and int(wait_s) > 3 and path.startswith("/h/raycomp/.venv/bin:")


def test_workers_may_use_the_bucket_and_nothing_else(cloud):
    iam = boto3.client("iam", REGION)
    may = {role: list(find_allowed(iam, role)) for role in ("raycomp-head", "raycomp-worker")}
    assert {resource for _, resource in may["raycomp-worker"]} == {
        "arn:aws:s3:::my-bucket",
        "arn:aws:s3:::my-bucket/*",
    }
    assert all(action.startswith("s3:") for action, _ in may["raycomp-worker"])
    of_nodes = set(may["raycomp-head"]) - set(may["raycomp-worker"])
    needed = {"ec2:RunInstances", "ec2:TerminateInstances", "ssm:GetParameters"}
    assert needed <= {action for action, _ in of_nodes}
    roles = {resource for action, resource in of_nodes if action == "iam:PassRole"}
    assert roles == {"arn:aws:iam::123456789012:role/raycomp-worker"}
    assert not any("*" in action for action, _ in [*may["raycomp-head"], *may["raycomp-worker"]])


def find_allowed(iam: Any, role: str) -> Iterator[tuple[str, str]]:
    """Yield what a role may do, and to what."""
    for policy in iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]:
        found = iam.get_policy_version(PolicyArn=policy["PolicyArn"], VersionId="v1")["PolicyVersion"]
        document = found["Document"]
        for statement in (json.loads(document) if isinstance(document, str) else document)["Statement"]:
            actions = statement["Action"]
            for action in [actions] if isinstance(actions, str) else actions:
                yield action, statement["Resource"]
