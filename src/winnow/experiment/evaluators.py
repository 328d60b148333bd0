"""Who evaluates the models of a run."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from winnow.config.schema import Experiment
from winnow.core import ConfigError, Population
from winnow.learn.client_store import ClientStore
from winnow.learn.evaluation import (
    CombinedEvaluator,
    Evaluator,
    FineTunedEvaluator,
    PersonalEvaluator,
    ReferenceClientsEvaluator,
    ServerEvaluator,
)
from winnow.learn.handlers import FineTuning, PersonalEvaluationSettings
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.training_plan import TrainingPlan


def build_evaluator(
    experiment: Experiment,
    plan: TrainingPlan,
    evaluator: ModelEvaluator,
    *,
    sizes: NDArray[np.int64],
    local_test_sizes: NDArray[np.int64] | None,
    reference: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    store: ClientStore | None,
) -> CombinedEvaluator:
    """The reference and, beside it, a test set and the clients themselves, as far as the experiment has them.

    `store` is what clients keep, where one process has it all.
    """
    first: Evaluator = (
        _at_clients(experiment, Population(sizes=sizes), plan)
        if experiment.reference_clients
        else ServerEvaluator("reference", evaluator, reference, plan.metric)
    )
    beside: list[Evaluator] = []
    if len(test[0]) and not (plan.private and plan.evaluated_by != "reference"):  # its private part nobody trains
        beside.append(ServerEvaluator("test", evaluator, test, plan.metric))
    if local_test_sizes is not None:
        judging = np.flatnonzero(local_test_sizes).tolist()
        settings = PersonalEvaluationSettings(client=experiment.client, metric=plan.metric)
        beside.append(PersonalEvaluator(judging, settings, plan.private))
        if experiment.evaluation.tune_epochs:
            beside.append(_fine_tuned_evaluator(experiment, judging, plan, store))
    return CombinedEvaluator(first, *beside)


def _fine_tuned_evaluator(
    experiment: Experiment, judging: list[int], plan: TrainingPlan, store: ClientStore | None
) -> FineTunedEvaluator:
    asked = experiment.evaluation
    own = asked.tune_from == "own"
    if store is None and not own:
        raise ConfigError(
            "evaluation.tune_from = 'average' needs the state of all clients, which only a simulation has; use 'own'"
        )
    tuning = FineTuning(local=experiment.local, epochs=asked.tune_epochs, seed=experiment.seed, own=own)
    settings = PersonalEvaluationSettings(client=experiment.client, metric=plan.metric, tuning=tuning)
    return FineTunedEvaluator(
        judging, settings, plan.private, every=asked.tune_every, from_average=None if own else store
    )


def _at_clients(experiment: Experiment, population: Population, plan: TrainingPlan) -> ReferenceClientsEvaluator:
    holders = experiment.reference_clients
    if max(holders) >= len(population):
        raise ConfigError(
            f"reference_clients: client {max(holders)} does not exist; the last client is {len(population) - 1}"
        )
    return ReferenceClientsEvaluator(
        {k: int(population.sizes[k]) for k in holders},
        experiment.select.comparison.start(holders, len(population), plan.elements),
        private=plan.private,
        metric=plan.metric,
        message_bytes=plan.message_bytes,
        profile_bytes=plan.profile_bytes,
    )
