"""Environment variables for tasks on other machines: the driver's keys, endpoints, trackers, Ray Data's.

Variables that name a file or a role of this machine (AWS_PROFILE, AWS_WEB_IDENTITY_TOKEN_FILE) are not
forwarded: each node has its own.
"""

import json
import os
from typing import Any

from raycomp.models.deferred import IN_WORKER
from raycomp.run.ray_private import JOB_VARIABLE

_NAMES = {
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "HF_TOKEN",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "WANDB_API_KEY",
    "WANDB_BASE_URL",
    "WANDB_ENTITY",
    "WANDB_MODE",
    "WANDB_PROJECT",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_USERNAME",
}
_PREFIXES = ("AZURE_STORAGE_", "RAY_DATA_")


def forward_environment() -> dict[str, Any]:
    """Return the runtime environment that forwards them to every worker, and marks it as raycomp's.

    The ``env_vars`` of a submitted job are left out: Ray forwards those itself, and rejects a duplicate name.
    """
    job = json.loads(os.environ.get(JOB_VARIABLE, "{}"))
    already = (job.get("runtime_env") or {}).get("env_vars") or {}
    names = [name for name in os.environ if name in _NAMES or name.startswith(_PREFIXES)]
    found = {name: os.environ[name] for name in sorted(names)} | {IN_WORKER: "1"}
    return {"env_vars": {name: value for name, value in found.items() if name not in already}}
