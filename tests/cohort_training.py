"""Local training of a cohort from a `LocalStart`, without a round around it."""

from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack import CohortTrainingResult, Execution, GradientRule, LocalStart, LocalTraining, TensorData
from winnow.learn.stack.client_tensors import Indices


def train(
    execution: Execution,
    start: LocalStart,
    local: LocalOptimiser,
    data: TensorData,
    clients: Indices,
    *,
    round: int,
    seed: int,
    phase: int = 0,
    slope: GradientRule | None = None,
) -> CohortTrainingResult:
    job = LocalTraining(
        execution=execution, data=data, clients=clients, local=local, round=round, seed=seed, sent={}, stored=()
    )
    terms = {"pull": start.pull, "anchor": start.anchor, "drift": start.drift, "moving": start.moving}
    return job.train(start.states, **terms, phase=phase, slope=slope)
