"""Rows that differ only in what combines the leaves: these are trained once and combined in every way."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from winnow.config.schema import Experiment
from winnow.core import RoundFinished
from winnow.data import DataSet, DataSettings, federate
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.load_data import load_data
from winnow.experiment.prepare_clients import data_settings_for
from winnow.experiment.run import run_experiment
from winnow.learn.ensemble.ensemble_net import Combination, EnsembleNet, combined, joined_state
from winnow.learn.ensemble.ensemble_workflow import EnsembleWorkflow
from winnow.learn.evaluation import CombinedEvaluator, Evaluation
from winnow.learn.metrics import Measurement, Metric
from winnow.learn.representation_profile import SendTasks
from winnow.learn.stack import ModelState, as_tensor

Reading = tuple[float, float]
"""The metric on the reference set and on the test set."""
OVER = "over-arch"
SIMPLE: tuple[Combination, ...] = ("median", "max")
"""What the workflow itself does not score, besides the mean."""


@cache
def _data_set(settings: DataSettings, folder: Path | None) -> DataSet:
    found = load_data(settings, folder)
    assert isinstance(found, DataSet)
    return found


def loaded(data: DataSettings, folder: Path | None) -> RunInputs:
    """Inputs with the data in memory, read once for all rows of a process: splits differ, samples do not."""
    return RunInputs(dataset=_data_set(DataSettings(name=data.name), folder))


def model_trace(experiment: Experiment, inputs: RunInputs) -> list[Reading]:
    """One federated model's scores, by round."""
    result = run_experiment(experiment, inputs=inputs)
    metric = result.plan.metric
    return [(row[f"reference.{metric}"], row[f"test.{metric}"]) for row in result.history]


class _Unscored:
    """Scores nothing. What leaves score by themselves is most of the work, and no row shows it."""

    def evaluate(self, state: ModelState, version: int, round: int, send_tasks: SendTasks) -> Evaluation:
        return Evaluation(metrics={}, profile=None)


def family_traces(experiment: Experiment, ways: Sequence[str], inputs: RunInputs) -> dict[str, list[Reading]]:
    """The scores of each way to combine the leaves, by round. An over-arch has rounds of its own: the experiment asks
    for one if it is among the ways, and for the mean otherwise.
    """
    assert inputs.dataset is not None
    held = federate(inputs.dataset, data_settings_for(experiment), experiment.seed)
    sets = [(as_tensor(each.x, "cpu"), as_tensor(each.y, "cpu")) for each in (held.reference, held.test)]
    traces: dict[str, list[Reading]] = {way: [] for way in ways}
    others = [way for way in SIMPLE if way in ways]
    with prepare_run(experiment, inputs) as prepared:
        training, metric = cast(EnsembleWorkflow, prepared.training), prepared.plan.metrics[0]
        for leaf in training.leaves:
            leaf.training.evaluator = CombinedEvaluator(_Unscored())
        net = deepcopy(cast(EnsembleNet, prepared.module))
        for event in training.run(prepared.federation):
            if not isinstance(event, RoundFinished):
                continue
            way = "mean" if training.over is None else OVER
            if way in traces:
                traces[way].append((event.metrics["reference"][metric.name], event.metrics["test"][metric.name]))
            if others and training.over is None:
                leaves = [leaf.training.model for leaf in training.leaves]
                found = [_scores(net, leaves, *each, metric, others) for each in sets]
                for way in others:
                    traces[way].append((found[0][way], found[1][way]))
    return traces


@torch.no_grad()
def _scores(
    net: EnsembleNet, leaves: Sequence[ModelState], x: Tensor, y: Tensor, metric: Metric, ways: Sequence[Combination]
) -> Mapping[str, float]:
    """The metric of what these leaves give, combined in each way."""
    net.load_state_dict(joined_state(leaves), strict=False)
    outputs = torch.stack([leaf(x).flatten(1)[:, : net.outputs] for leaf in net.leaves])
    found: dict[str, float] = {}
    for way in ways:
        measured = Measurement([metric])
        measured.add(combined(outputs, way, net.prediction), y)
        found[way] = measured.scores()[metric.name]
    return found
