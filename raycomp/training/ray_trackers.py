"""The trackers of a training on Ray Train: Ray's own integrations open them, on rank 0."""

import os

from raycomp.training.trackers import PROJECT, RUN_TAG, Mlflow, Openers, TrackedRun, Tracker, Wandb


def open_wandb(run: TrackedRun) -> Tracker:
    """Start, or resume, a run. Ray reads WANDB_PROJECT_NAME, wandb itself WANDB_PROJECT."""
    from ray.air.integrations.wandb import setup_wandb

    project = os.environ.get("WANDB_PROJECT_NAME") or os.environ.get("WANDB_PROJECT", PROJECT)
    settings = dict(run.settings)
    return Wandb(setup_wandb(settings, id=run.id, name=run.name, project=project, resume="allow"))


def open_mlflow(run: TrackedRun) -> Tracker:
    """Start a run."""
    from ray.air.integrations.mlflow import setup_mlflow

    return Mlflow(
        setup_mlflow(
            dict(run.settings),
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI"),
            experiment_name=os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT),
            create_experiment_if_not_exists=True,
            run_name=run.name,
            tags={RUN_TAG: run.id},
        )
    )


OPENERS: Openers = {"wandb": open_wandb, "mlflow": open_mlflow}
