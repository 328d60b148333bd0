"""Runs shown in other people's dashboards: TensorBoard, MLflow and Weights & Biases read what a run records."""

from winnow.tracking import mlflow_tracker as _mlflow  # noqa: F401  # makes the trackers known
from winnow.tracking import tensorboard_tracker as _tensorboard  # noqa: F401
from winnow.tracking import wandb_tracker as _wandb  # noqa: F401
from winnow.tracking.tracker import TrackedRun, Tracker, TrackWriter

__all__ = ["TrackWriter", "TrackedRun", "Tracker"]
