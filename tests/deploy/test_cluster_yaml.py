"""``ray up cluster.yaml`` would start: it goes through Ray's own preparation, on an AWS that is simulated."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
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
KEY = "arn:aws:kms:us-east-1:123456789012:key/"
STACK = {"Input": "my-pool", "Output": "my-bucket", "InputKey": f"{KEY}in", "OutputKey": f"{KEY}out"}


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
            Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in STACK.items()],
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
    for name, node in config["available_node_types"].items():
        lines = node.get("worker_setup_commands", config["worker_setup_commands"])
        has_vllm = any("vllm" in find_installed(line) for line in lines)
        if node["resources"].get("GPU") and not has_vllm:
            yield f"{name}: its environment has no vllm, which writes negatives"
        if name.startswith("cpu") and (has_vllm or not any("--torch-backend cpu" in line for line in lines)):
            yield f"{name}: installs vLLM or CUDA, which a node without a GPU does not run"
    starts = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    starts = [line for line in starts if re.search(r"\bray start\b|raycomp\.run\.ray_spot", line)]
    if not all(line.startswith(". ~/raycomp/deploy/env.sh;") for line in starts):
        yield "a node starts without what deploy/env.sh sets"
    if not all("; again ray start " in line for line in starts if "ray start" in line):
        yield "a node whose first start fails is given up"
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


def edit(path: str, value: Any = None) -> dict[str, Any]:
    """Return cluster.yaml with another entry at ``path``, or without it where there is no value."""
    config = place = read()
    *folders, name = path.split("/")
    for part in folders:
        place = place[part]
    place.pop(name)
    if value is not None:
        place[name] = value
    return config


NODES = "available_node_types"


def test_what_ray_would_let_pass_is_found(cloud):
    from ray.autoscaler._private.aws.config import _check_ami
    from ray.autoscaler._private.util import prepare_config, validate_config

    for config, said in [
        (edit(f"{NODES}/gpu/node_config/ImageId", "latest_dlami"), "gpu: the image is Ubuntu 18.04"),
        (edit(f"{NODES}/gpu_spot/node_config/IamInstanceProfile"), "gpu_spot: without a role"),
        (edit(f"{NODES}/cpu_spot/node_config/MetadataOptions"), "cpu_spot: its role can be had"),
        (edit(f"{NODES}/gpu_spot/node_config/InstanceMarketOptions"), "gpu_spot: its label"),
        (edit(f"{NODES}/head/resources", {"CPU": 8}), "work comes to the head"),
        (edit("setup_commands"), "Ray's defaults install"),
        (edit(f"{NODES}/cpu_spot/worker_setup_commands"), "cpu_spot: installs vLLM or CUDA"),
        (edit("head_start_ray_commands"), "the dashboard runs anybody's code"),
        (edit("provider/region", "eu-west-1"), "AWS_REGION is another"),
        (edit("file_mounts"), "nodes have no token"),
    ]:
        config = prepare_config(config)
        validate_config(config)
        _check_ami(config)
        assert any(said in fault for fault in find_faults(config)), said


def test_every_node_asks_for_the_token_and_finds_python():
    line = f'HOME=/h; . {ROOT}/deploy/env.sh; echo "$RAY_AUTH_MODE $RAY_JOB_STOP_WAIT_TIME_S $PATH"'
    said = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
    mode, wait_s, path = said.split()
    assert mode == "token" and int(wait_s) > 3 and path.startswith("/h/raycomp/.venv/bin:")


@pytest.mark.parametrize(("failures", "code", "starts"), [(0, 0, 1), (3, 0, 4), (9, 7, 5)])
def test_a_start_that_fails_is_repeated(tmp_path, failures, code, starts):
    """In place of Ray a script that fails so often; each line of its log is a call."""
    ray = tmp_path / "raycomp" / ".venv" / "bin" / "ray"
    ray.parent.mkdir(parents=True)
    ray.write_text(
        '#!/bin/sh\necho "$*" >> "$HOME/log"\n[ "$1" = stop ] && exit 0\n'
        f'[ "$(grep -c start "$HOME/log")" -gt {failures} ] || exit 7\n'
    )
    ray.chmod(0o755)
    line = f'sleep() {{ :; }}; . {ROOT}/deploy/env.sh; again ray start --address="a b"'
    done = subprocess.run(["bash", "-c", line], env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert done.returncode == code
    assert (tmp_path / "log").read_text().split("\n")[:-1] == [
        line for _ in range(starts) for line in ("stop", "start --address=a b")
    ][1:]


def test_uv_has_the_options_that_nodes_use():
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("this environment has no uv")
    known = subprocess.run(
        [uv, "pip", "install", "--help"], capture_output=True, text=True, check=True
    ).stdout
    lists = [read()["setup_commands"], read()[NODES]["cpu_spot"]["worker_setup_commands"]]
    lines = [line for lines in lists for line in lines if "uv pip install" in line]
    assert len(lines) == 2
    for line in lines:
        options = re.findall(r"--[a-z-]+", line.partition("uv pip install")[2])
        assert all(re.search(rf"{option}\b", known) for option in options), options


def test_cloudformation_takes_the_roles():
    """cfn-lint knows every resource and action of IAM; CloudFormation takes no aliases."""
    lint = pytest.importorskip("cfnlint.api").lint
    text = (ROOT / "deploy" / "iam.yaml").read_text()
    assert lint(text, regions=[REGION]) == []
    for right, wrong in [("kms:GenerateDataKey", "kms:GenerateKeys"), ("Effect: Allow", "Efect: Allow")]:
        assert lint(text.replace(right, wrong, 1), regions=[REGION])


ACCOUNT = "arn:aws:ec2:us-east-1:123456789012"
NODE, TOKEN = f"{ACCOUNT}:instance/i-1", {"ec2:MetadataHttpTokens": "required"}
OURS = {
    "aws:RequestTag/ray-cluster-name": "raycomp",
    "aws:TagKeys": ["Name", "ray-cluster-name", "ray-node-status"],
}
STARTS = {"ec2:InstanceType": "g6.4xlarge", **TOKEN, **OURS}
MARKED = {"aws:ResourceTag/ray-cluster-name": "raycomp", "aws:TagKeys": ["ray-node-status"]}
BOTH, HEAD = ("raycomp-head", "raycomp-worker"), ("raycomp-head",)


def test_a_role_may_do_what_its_nodes_do_and_no_more(cloud):
    """The policies as CloudFormation makes them. The simulated AWS judges no conditions; this test does."""
    iam, to_ec2 = boto3.client("iam", REGION), {"iam:PassedToService": "ec2.amazonaws.com"}
    statements = {role: find_statements(iam, role) for role in BOTH}
    for roles, action, resource, context in [
        (BOTH, "s3:GetObject", "arn:aws:s3:::my-pool/00000.tar", {}),
        (BOTH, "s3:ListBucket", "arn:aws:s3:::my-pool", {}),
        ((), "s3:PutObject", "arn:aws:s3:::my-pool/00000.tar", {}),
        (BOTH, "s3:PutObject", "arn:aws:s3:::my-bucket/curated/run.json", {}),
        (BOTH, "s3:AbortMultipartUpload", "arn:aws:s3:::my-bucket/a", {}),
        ((), "s3:GetObject", "arn:aws:s3:::another/a", {}),
        ((), "s3:DeleteBucket", "arn:aws:s3:::my-bucket", {}),
        (BOTH, "kms:Decrypt", f"{KEY}in", {}),
        ((), "kms:GenerateDataKey", f"{KEY}in", {}),
        (BOTH, "kms:GenerateDataKey", f"{KEY}out", {}),
        (HEAD, "ec2:RunInstances", NODE, STARTS),
        (HEAD, "ec2:RunInstances", f"{ACCOUNT}:subnet/subnet-1", {}),
        ((), "ec2:RunInstances", NODE, {**STARTS, "ec2:InstanceType": "p5.48xlarge"}),
        ((), "ec2:RunInstances", NODE, {**STARTS, "ec2:MetadataHttpTokens": "optional"}),
        ((), "ec2:RunInstances", NODE, {**STARTS, "aws:RequestTag/ray-cluster-name": "another"}),
        (HEAD, "ec2:CreateTags", NODE, {**OURS, "ec2:CreateAction": "RunInstances"}),
        (HEAD, "ec2:CreateTags", NODE, MARKED),
        ((), "ec2:CreateTags", NODE, {**MARKED, "aws:TagKeys": ["team"]}),
        (HEAD, "ec2:TerminateInstances", NODE, MARKED),
        ((), "ec2:TerminateInstances", NODE, {}),
        (HEAD, "iam:PassRole", "arn:aws:iam::123456789012:role/raycomp-worker", to_ec2),
        ((), "iam:PassRole", "arn:aws:iam::123456789012:role/raycomp-head", to_ec2),
        (HEAD, "ssm:GetParameters", "arn:aws:ssm:us-east-1::parameter/aws/service/deeplearning/ami/x", {}),
    ]:
        found = tuple(role for role in BOTH if is_allowed(statements[role], action, resource, context))
        assert found == roles, (action, resource, context)


def test_the_head_may_start_each_type_of_worker():
    """Nodes of a type that is missing in its role would be requested for ever."""
    config = read()
    types = {node["node_config"]["InstanceType"] for name, node in config[NODES].items() if name != "head"}
    text = (ROOT / "deploy" / "iam.yaml").read_text()
    assert set(re.search(r"Default: (m7i\S+)", text)[1].split(",")) == types
    assert config["cluster_name"] == re.search(r"Cluster: {Type: String, Default: (\w+)", text)[1]


def find_statements(iam: Any, role: str) -> list[dict[str, Any]]:
    """Return the statements of a role's policies."""
    found = []
    for policy in iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]:
        version = iam.get_policy_version(PolicyArn=policy["PolicyArn"], VersionId="v1")["PolicyVersion"]
        document = version["Document"]
        found += (json.loads(document) if isinstance(document, str) else document)["Statement"]
    return found


def is_allowed(
    statements: list[dict[str, Any]], action: str, resource: str, context: Mapping[str, Any]
) -> bool:
    """Return whether one of the statements, which all allow, covers the request; as AWS documents it."""

    def covers(statement: dict[str, Any]) -> bool:
        named = action in as_list(statement["Action"])
        return named and any(fnmatchcase(resource, one) for one in as_list(statement["Resource"]))

    def holds(operator: str, key: str, wanted: Any) -> bool:
        there = context.get(key)
        if operator == "StringEquals":
            return there in as_list(wanted)
        assert operator == "ForAllValues:StringLike"
        return all(any(fnmatchcase(one, pattern) for pattern in as_list(wanted)) for one in there or [])

    return any(
        covers(one)
        and all(
            holds(how, *rule) for how, rules in one.get("Condition", {}).items() for rule in rules.items()
        )
        for one in statements
    )


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
