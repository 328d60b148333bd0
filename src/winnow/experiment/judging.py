"""Who judges the models of a run."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.core import ConfigError, Population
from winnow.data import Examples
from winnow.experiment.schema import Experiment
from winnow.learn.examine import Examiner
from winnow.learn.handlers import JudgeSettings, Tuning
from winnow.learn.judge import AtClients, AtServer, ByEachClient, ByTunedClients, Judge, Reference
from winnow.learn.plan import Plan
from winnow.learn.stack import as_tensor
from winnow.learn.store import ClientStore


def judge_of(
    experiment: Experiment,
    plan: Plan,
    examiner: Examiner,
    *,
    sizes: NDArray[np.int64],
    own_test_sizes: NDArray[np.int64] | None,
    reference: Examples,
    test: Examples,
    device: torch.device,
    store: ClientStore | None,
) -> Judge:
    """The reference and, beside it, a test set and the clients themselves, as far as the experiment has them.

    `store` is what clients keep, where one process has it all.
    """
    judge: Reference = (
        _at_clients(experiment, Population(sizes=sizes), plan)
        if experiment.reference_clients
        else AtServer("reference", examiner, tensors_of(reference, device), plan.metric)
    )
    beside: list[Reference] = []
    if len(test) and not (plan.private and plan.judged_by != "reference"):  # its private part nobody trains
        beside.append(AtServer("test", examiner, tensors_of(test, device), plan.metric))
    if own_test_sizes is not None:
        judging = np.flatnonzero(own_test_sizes).tolist()
        settings = JudgeSettings(client=experiment.client, metric=plan.metric)
        beside.append(ByEachClient(judging, settings, plan.private))
        if experiment.judge.tune_epochs:
            beside.append(_tuned(experiment, judging, plan, store))
    return Judge(judge, *beside)


def _tuned(experiment: Experiment, judging: list[int], plan: Plan, store: ClientStore | None) -> ByTunedClients:
    asked = experiment.judge
    own = asked.tune_from == "own"
    if store is None and not own:
        raise ConfigError(
            "judge.tune_from = 'average' needs what all clients keep, as a simulation has it; write 'own'"
        )
    tuning = Tuning(local=experiment.local, epochs=asked.tune_epochs, seed=experiment.seed, own=own)
    settings = JudgeSettings(client=experiment.client, metric=plan.metric, tuning=tuning)
    return ByTunedClients(judging, settings, plan.private, every=asked.tune_every, from_average=None if own else store)


def _at_clients(experiment: Experiment, population: Population, plan: Plan) -> AtClients:
    holders = experiment.reference_clients
    if max(holders) >= len(population):
        raise ConfigError(f"reference_clients: there is no client {max(holders)}; the last is {len(population) - 1}")
    return AtClients(
        {k: int(population.sizes[k]) for k in holders},
        experiment.select.matched.start(holders, len(population), plan.elements),
        private=plan.private,
        metric=plan.metric,
        message_bytes=plan.message_bytes,
        profile_bytes=plan.profile_bytes,
    )


def tensors_of(examples: Examples, device: torch.device) -> tuple[Tensor, Tensor]:
    return as_tensor(examples.x, device), as_tensor(examples.y, device)
