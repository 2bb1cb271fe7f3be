"""What tasks on other machines need of the driver's environment: keys, places and Ray Data's options.

What names a file or a role of this machine (AWS_PROFILE, AWS_WEB_IDENTITY_TOKEN_FILE) stays here: each node
has its own.
"""

import json
import os
from typing import Any

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
}
_PREFIXES = ("AZURE_STORAGE_", "RAY_DATA_")


def forward_environment() -> dict[str, Any] | None:
    """Return the runtime environment that takes them to every worker, none where there is nothing to take.

    What a submitted job's own ``env_vars`` say is left to them: Ray takes those along, and refuses a name
    twice.
    """
    job = json.loads(os.environ.get(JOB_VARIABLE, "{}"))
    already = (job.get("runtime_env") or {}).get("env_vars") or {}
    names = [name for name in os.environ if name in _NAMES or name.startswith(_PREFIXES)]
    found = {name: os.environ[name] for name in sorted(names) if name not in already}
    return {"env_vars": found} if found else None
