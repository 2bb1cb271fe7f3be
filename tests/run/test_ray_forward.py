"""What tasks elsewhere need of the driver's environment goes with them; what is this machine's own stays."""

import json
import os

import pytest

from raycomp.models.deferred import IN_WORKER
from raycomp.run.ray_session import forward_environment

OWN = {IN_WORKER: "1"}


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in [*os.environ]:
        if name.startswith(("AWS_", "AZURE_", "HF_", "MLFLOW_", "RAY_", "WANDB_")):
            monkeypatch.delenv(name)


def test_keys_and_places_are_taken(monkeypatch):
    wanted = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_REGION": "b",
        "HF_TOKEN": "c",
        "MLFLOW_TRACKING_URI": "e",
        "WANDB_API_KEY": "f",
        "RAY_DATA_VERBOSE": "1",
        "AZURE_STORAGE_KEY": "d",
    }
    kept = ("AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "HF_HOME", "RAY_ADDRESS", "WANDB_DIR")
    for name, value in [*dict.fromkeys(kept, "mine").items(), *wanted.items()]:
        monkeypatch.setenv(name, value)
    assert forward_environment() == {"env_vars": wanted | OWN}


def test_what_a_submitted_job_names_itself_is_left_to_it(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "here")
    monkeypatch.setenv("HF_TOKEN", "mine")
    job = {"runtime_env": {"env_vars": {"AWS_REGION": "there"}, "working_dir": "gcs://a.zip"}, "metadata": {}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    assert forward_environment() == {"env_vars": {"HF_TOKEN": "mine"} | OWN}
