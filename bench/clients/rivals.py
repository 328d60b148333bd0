"""Rules by which others tell bad clients from good ones, each from the same training run: one number a client, and the
higher it is, the more suspicious the client.
"""

from collections.abc import Callable
from functools import lru_cache
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray

from bench.clients.observations import RoundObservation, RunObservations
from winnow.core import stream
from winnow.learn.aggregation import WeightedSum
from winnow.learn.client_quality.contribution import ContributionEstimate, ContributionEstimator
from winnow.learn.client_quality.reference_utility import ReferenceUtility
from winnow.learn.client_quality.update_evidence import lengths_and_cosines
from winnow.learn.metric_functions import predicted_classes
from winnow.learn.representation_profile import divergence
from winnow.learn.stack import ModelState

Rival = Callable[[RunObservations], NDArray[np.float64]]

EVALUATIONS = 150
"""Coalitions that a round may measure: about twice what Winnow spends."""
NOTHING_KNOWN = ContributionEstimate(mean=0, standard_error=inf, leave_one_out=0, leave_one_out_error=inf, rounds=0)
SMALLEST_SHARE = 1e-3
"""FedCE's shares are cut off here, as in NVFlare."""


def loss(run: RunObservations) -> NDArray[np.float64]:
    """The mean loss of the final model on the client's samples."""
    return np.array([_mean_loss(run, x, y) for x, y in run.clients])


def _mean_loss(run: RunObservations, x: torch.Tensor, y: torch.Tensor) -> float:
    rows, owner = torch.arange(len(x)), torch.zeros(len(x), dtype=torch.int64)
    return float(run.evaluator.losses(run.final, x, y, rows, owner, 1)[0])


def fedprof(run: RunObservations) -> NDArray[np.float64]:
    """div(RP_k, RP_V) of FedProf's equations 9 and 10, under the final model: one profile for all classes."""
    profiles = [run.evaluator.evaluate(run.final, x, y, ()).profile for x, y in (*run.clients, run.reference)]
    assert all(profile is not None for profile in profiles)
    return divergence(profiles[:-1], profiles[-1])


def update_norm(run: RunObservations) -> NDArray[np.float64]:
    """‖Δ_k‖ over the round's median, the mean of its logarithm: what norm bounding cuts off (Sun et al., 2019)."""
    return _mean_by_client(run, lambda seen: np.log(seen[0] / np.median(seen[0])))


def update_cosine(run: RunObservations) -> NDArray[np.float64]:
    """1 − cos(Δ_k, mean of the other updates), the mean over rounds."""
    return _mean_by_client(run, lambda seen: 1 - seen[1])


def _mean_by_client(
    run: RunObservations,
    number: Callable[[tuple[NDArray[np.float64], NDArray[np.float64]]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    sums, counts = np.zeros(len(run.clients)), np.zeros(len(run.clients))
    for observed in run.rounds:
        clients = [reply.task.client for reply in observed.replies]
        weights = np.array([observed.weights[client] for client in clients])
        sums[clients] += number(lengths_and_cosines(observed.replies, run.trained, weights))
        counts[clients] += 1
    return sums / np.maximum(counts, 1)


def gtg_shapley(run: RunObservations) -> NDArray[np.float64]:
    """The lower a client's Shapley value, summed over rounds (GTG-Shapley, Liu et al., 2022)."""
    return -np.array([each.mean * each.rounds for each in _contributions(run)])


def leave_one_out(run: RunObservations) -> NDArray[np.float64]:
    """The lower U(all) − U(all others), the mean over rounds."""
    return -np.array([each.leave_one_out for each in _contributions(run)])


@lru_cache(maxsize=1)
def _contributions(run: RunObservations) -> list[ContributionEstimate]:
    utility = ReferenceUtility(run.execution, *run.reference, stream(run.seed, "bench", "contribution"))
    estimator = ContributionEstimator()
    for i, observed in enumerate(run.rounds):
        rng = stream(run.seed, "bench", "contribution", i)
        estimator.observe(observed.start, observed.replies, observed.weights, utility, rng, EVALUATIONS)
    found = estimator.estimates()
    return [found.get(k, NOTHING_KNOWN) for k in range(len(run.clients))]


def fedce(run: RunObservations) -> NDArray[np.float64]:
    """FedCE's share of a client after the last round (Jiang et al., 2023; NVFlare's `FedCEModelAggregator`, "plus").

    In gradient space, 1 − cos(Δ_k, Σ_{j≠k} c_j·Δ_j), with the shares c of the round before, averaged over rounds. In
    data space, the error on the client's own samples of the model without it, (θ − w_k·θ_k) / (1 − w_k), averaged over
    rounds. Each is normalised to a sum of 1, and a client's share is their sum, normalised again. FedCE takes what is
    unlike for valuable, and weights clients by it; here it is what makes a client suspicious. Read the other way round,
    its AUC is 1 less this one.
    """
    clients = len(run.clients)
    shares = np.full(clients, 1 / clients)
    cosines, errors, counts = np.zeros(clients), np.zeros(clients), np.zeros(clients)
    for observed in run.rounds:
        present = [reply.task.client for reply in observed.replies]
        cosines[present] += lengths_and_cosines(observed.replies, run.trained, shares[present])[1]
        errors[present] += _errors_without(run, observed)
        counts[present] += 1
        seen = np.maximum(counts, 1)
        shares = _shares(_shares(1 - cosines / seen) + _shares(errors / seen))
    return shares


def _shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    positive = np.maximum(values, 0)
    return np.maximum(positive / max(positive.sum(), 1e-12), SMALLEST_SHARE)


def _errors_without(run: RunObservations, observed: RoundObservation) -> NDArray[np.float64]:
    """The share of each client's samples that the round's model gets wrong, if the client had not been in it."""
    found = []
    for left_out in observed.replies:
        total = WeightedSum(observed.start)
        for reply in observed.replies:
            if reply is not left_out:
                total.add(reply.payload["model"], observed.weights[reply.task.client])
        found.append(_error(run, total.mean(), *run.clients[left_out.task.client]))
    return np.array(found)


def _error(run: RunObservations, state: ModelState, x: torch.Tensor, y: torch.Tensor) -> float:
    outputs = run.evaluator.outputs(state, x, torch.arange(len(x)))
    return float((predicted_classes(outputs) != y).double().mean())


RIVALS: dict[str, Rival] = {
    "loss": loss,
    "FedProf's score": fedprof,
    "update norm": update_norm,
    "update cosine": update_cosine,
    "GTG-Shapley": gtg_shapley,
    "leave-one-out": leave_one_out,
    "FedCE": fedce,
}
