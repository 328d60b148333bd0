"""Who evaluates the models of a run."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from winnow.config.compatibility_checks import probe_notice
from winnow.config.schema import Experiment
from winnow.core import ConfigError, Population
from winnow.experiment.build_learning_site import ModelSetup
from winnow.learn.client_store import ClientStore
from winnow.learn.evaluation import (
    CombinedEvaluator,
    Evaluator,
    FineTunedEvaluator,
    PersonalEvaluator,
    ReferenceClientsEvaluator,
    ServerEvaluator,
)
from winnow.learn.final_evaluation import FinalEvaluator
from winnow.learn.handlers import FineTuning, PersonalEvaluationSettings
from winnow.learn.linear_probe import ProbingEvaluator
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.run_plan import TrainingPlan


def build_evaluator(
    experiment: Experiment,
    plan: TrainingPlan,
    model: ModelSetup,
    *,
    sizes: NDArray[np.int64],
    local_test_sizes: NDArray[np.int64] | None,
    reference: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    store: ClientStore | None,
    server_labelled: tuple[Tensor, Tensor] | None = None,
) -> CombinedEvaluator:
    """The reference and, beside it, a test set and the clients themselves, as far as the experiment has them.

    `store` is what clients keep, where one process has it all. A probe is fitted to what the server has labelled.
    """
    evaluator = model.evaluator
    first: Evaluator = (
        _at_clients(experiment, Population(sizes=sizes), plan)
        if experiment.reference_clients
        else ServerEvaluator("reference", evaluator, reference, plan.metrics, plan.profile_classes)
    )
    beside: list[Evaluator] = []
    tests = [ServerEvaluator("test", evaluator, test, plan.metrics)] if _test_counts(plan, test) else []
    if experiment.probes and isinstance(first, ServerEvaluator):
        first = _probing_evaluator(plan, model, first, tests, server_labelled)
    else:
        beside += tests
    if local_test_sizes is not None:
        tested_clients = np.flatnonzero(local_test_sizes).tolist()
        settings = PersonalEvaluationSettings(client=experiment.client, metrics=(plan.metric,))
        beside.append(PersonalEvaluator(tested_clients, settings, plan.private))
        if experiment.evaluation.tune_epochs:
            beside.append(_fine_tuned_evaluator(experiment, tested_clients, plan, store))
    return CombinedEvaluator(first, *beside)


def _probing_evaluator(
    plan: TrainingPlan,
    model: ModelSetup,
    reference: ServerEvaluator,
    tests: Sequence[ServerEvaluator],
    rows: tuple[Tensor, Tensor] | None,
) -> ProbingEvaluator:
    if plan.classes is None:
        raise ConfigError("evaluation.probe tells classes apart, and this is a regression; remove it")
    if rows is None and not len(reference.y):
        raise ConfigError(
            "a linear probe needs labelled samples at the server, which has none; give it a reference set"
        )
    return ProbingEvaluator(model.module, model.loss, plan.metrics, plan.classes, reference, tests, rows)


def build_final_evaluator(
    experiment: Experiment,
    plan: TrainingPlan,
    evaluator: ModelEvaluator,
    *,
    classes: int | None,
    local_test_sizes: NDArray[np.int64] | None,
    reference: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
) -> FinalEvaluator:
    """Evaluates what came of a run: on the test set or else the reference set, and by every client with a test."""
    held = None
    if _test_counts(plan, test):
        held = ServerEvaluator("test", evaluator, test, plan.metrics)
    elif len(reference[0]) and not plan.private and not experiment.probes:  # a probe may know the reference set
        held = ServerEvaluator("reference", evaluator, reference, plan.metrics)
    sizes = np.zeros(0, np.int64) if local_test_sizes is None else local_test_sizes
    return FinalEvaluator(
        held=held,
        local_test_sizes={k: int(sizes[k]) for k in np.flatnonzero(sizes).tolist()},
        client=experiment.client,
        private=plan.private,
        metrics=plan.metrics,
        classes=classes or 0,
        note=probe_notice(probes=experiment.probes),
        sequences=classes is not None and reference[1].dim() > 1,
    )


def _test_counts(plan: TrainingPlan, test: tuple[Tensor, Tensor]) -> bool:
    """Whether there is a test set, and it tells something: not of a private part, which nobody trains at the server."""
    return len(test[0]) > 0 and not (plan.private and plan.evaluated_by != "reference")


def _fine_tuned_evaluator(
    experiment: Experiment, tested_clients: list[int], plan: TrainingPlan, store: ClientStore | None
) -> FineTunedEvaluator:
    asked = experiment.evaluation
    own = asked.tune_from == "own"
    if store is None and not own:
        raise ConfigError(
            "evaluation.tune_from = 'average' needs the state of all clients, which only a simulation has; use 'own'"
        )
    tuning = FineTuning(local=experiment.local, epochs=asked.tune_epochs, seed=experiment.seed, own=own)
    settings = PersonalEvaluationSettings(client=experiment.client, metrics=(plan.metric,), tuning=tuning)
    return FineTunedEvaluator(
        tested_clients, settings, plan.private, every=asked.tune_every, from_average=None if own else store
    )


def _at_clients(experiment: Experiment, population: Population, plan: TrainingPlan) -> ReferenceClientsEvaluator:
    holders = experiment.reference_clients
    if max(holders) >= len(population):
        raise ConfigError(
            f"reference_clients: client {max(holders)} does not exist; the last client is {len(population) - 1}"
        )
    return ReferenceClientsEvaluator(
        {k: int(population.sizes[k]) for k in holders},
        experiment.select.comparison.start(holders, len(population), plan.elements, _class_count(plan)),
        private=plan.private,
        metrics=plan.metrics,
        message_bytes=plan.message_bytes,
        profile_bytes=plan.profile_bytes,
        profile_classes=plan.profile_classes,
    )


def _class_count(plan: TrainingPlan) -> int | None:
    """How many classes profiles have; None where they are marginal."""
    return None if plan.profile_classes is None else plan.profile_classes.count
