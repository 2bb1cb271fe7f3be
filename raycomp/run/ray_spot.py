"""Drains a Ray node on AWS once AWS announces its interruption: no new work is scheduled on it.

``python -m raycomp.run.ray_spot HEAD:PORT``, with RAY_CLOUD_INSTANCE_ID set as Ray's autoscaler sets it. The
notice comes two minutes ahead. Ray then starts nothing more here, and does not count losses here as failures.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime

_METADATA = "http://169.254.169.254"
_POLL_S = 5.0
_TIMEOUT_S = 2.0


def main(head: str) -> int:
    """Wait for the notice, then drain this node of the cluster at ``head``; return the exit code."""
    instance = os.environ["RAY_CLOUD_INSTANCE_ID"]
    deadline = wait_for_notice(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", _METADATA))
    print(f"{instance}: AWS will stop this machine at {deadline:%H:%M:%S} UTC", flush=True)
    from raycomp.run.ray_cluster import drain_node  # Ray takes 200 MB, and most nodes are never interrupted

    refused = drain_node(head, instance, int(deadline.timestamp() * 1000))
    print(f"{instance}: {refused or 'drained'}", flush=True)
    return 1 if refused else 0


def wait_for_notice(metadata: str, poll_s: float = _POLL_S) -> datetime:
    """Return the time at which AWS will stop this machine, once the notice is there."""
    while True:
        try:
            notice = _get(f"{metadata}/latest/meta-data/spot/instance-action", metadata)
        except OSError as error:  # asked again: the service fails at times
            print(f"{metadata}: {error}", file=sys.stderr, flush=True)
            notice = None
        if notice is not None and notice["action"] in ("stop", "terminate"):
            return datetime.fromisoformat(notice["time"]).astimezone(UTC)
        time.sleep(poll_s)


def _get(url: str, metadata: str) -> dict[str, str] | None:
    """Return an entry of the instance metadata, None where there is no such entry."""
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    ask = urllib.request.Request(f"{metadata}/latest/api/token", method="PUT", headers=lifetime)
    with urllib.request.urlopen(ask, timeout=_TIMEOUT_S) as answer:
        token = answer.read().decode()
    ask = urllib.request.Request(url, headers={"X-aws-ec2-metadata-token": token})
    try:
        with urllib.request.urlopen(ask, timeout=_TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
