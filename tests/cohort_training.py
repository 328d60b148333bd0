"""Local training of a cohort from a `LocalStart`, without a round around it."""

from winnow.core import stream
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack import CohortTrainingResult, Execution, GradientRule, LocalStart, LocalTraining, TensorData
from winnow.learn.stack.flat_client_data import Indices


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
    gradient_rule: GradientRule | None = None,
) -> CohortTrainingResult:
    training = LocalTraining(
        execution=execution,
        data=data,
        clients=clients,
        local=local,
        round=round,
        seed=seed,
        sent={},
        stored=(),
        randomness=stream,
    )
    terms = {
        "proximal_weight": start.proximal_weight,
        "anchor": start.anchor,
        "gradient_offset": start.gradient_offset,
        "trainable": start.trainable,
        "slots": start.slots,
    }
    return training.train(start.states, **terms, phase=phase, gradient_rule=gradient_rule)
