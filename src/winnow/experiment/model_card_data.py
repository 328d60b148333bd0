"""What a trained model's card says of it: data, algorithm, scores, privacy, and where and when it was trained."""

import math
from typing import Annotated

from msgspec import Meta, Struct
from torch import nn

from winnow.config.schema import Experiment
from winnow.core.installed_package import installed_version
from winnow.experiment.provenance import Provenance
from winnow.learn.models import ModelSettings
from winnow.learn.run_plan import TrainingPlan
from winnow.runs.summary import EVALUATED_BY_TEXT, Summary, privacy_spent_lines

MODEL_NAMES_OWN = ("in-memory", "python")
"""Models that are somebody's own code."""

Text = Annotated[str, Meta(max_length=1000)]
Count = Annotated[int, Meta(ge=0)]


class Score(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A metric of this model on one set of samples."""

    measured: Text
    metric: Text
    value: float
    round: Count


class DataSizes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many clients there were, and samples at them and in the server's two sets."""

    clients: Count
    samples: Count
    reference: Count
    test: Count


class ModelInfo(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a model comes from."""

    name: Text
    model: Text
    algorithm: Text
    seed: Count
    rounds: Count
    data: Text
    sizes: DataSizes
    scores: Annotated[list[Score], Meta(max_length=1000)]
    privacy: Annotated[list[Text], Meta(max_length=100)]
    parameters: Count
    private: Annotated[list[Text], Meta(max_length=100_000)]
    """What of the model stays with each client, and is not here."""
    date: Text
    machine: Text
    commit: Text
    """Of the repository in which it was trained; empty outside of one."""
    winnow: Text


def model_info(
    experiment: Experiment,
    plan: TrainingPlan,
    summary: Summary,
    module: nn.Module,
    sizes: DataSizes,
    made: Provenance,
) -> ModelInfo:
    name = settings_name(experiment.model)
    readings = {EVALUATED_BY_TEXT[summary.evaluated_by]: summary.best, "on the test set": summary.test_best}
    return ModelInfo(
        name=experiment.name[:1000],
        model=type(module).__name__ if name in MODEL_NAMES_OWN else name,
        algorithm=experiment.algorithm,
        seed=experiment.seed,
        rounds=summary.rounds,
        data=experiment.data.name[:1000],
        sizes=sizes,
        scores=[
            Score(measured=measured, metric=summary.metric, value=reading.value, round=reading.round)
            for measured, reading in readings.items()
            if reading is not None and math.isfinite(reading.value)
        ],
        privacy=privacy_spent_lines(summary.privacy_spent, summary.privacy_budgets),
        parameters=plan.parameters,
        private=list(plan.private_names),
        date=made["started"],
        machine=made["machine"],
        commit=made["commit"],
        winnow=installed_version(),
    )


def settings_name(settings: ModelSettings) -> str:
    """The name by which a configuration chooses these."""
    return next(name for name, member in ModelSettings.members.items() if type(settings) is member)
