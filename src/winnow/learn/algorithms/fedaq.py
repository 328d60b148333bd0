"""FedAC (Yuan and Ma, 2020) and FedAQ (algorithm 7 of its paper): accelerated local steps whose two sequences both
travel. FedAQ quantises both.
"""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

from winnow.core import Payload
from winnow.learn.accelerated_sgd import AcceleratedSgd
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.algorithms.fedpaq import EIGHT_BITS
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.selection import UniformSelector
from winnow.learn.server_optimiser import RoundAggregate, ServerOptimiser
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import combine, minus, only, plus

ITERATE = "iterate"
"""The part with the main sequence, w; the model is ag, which the theorems bound and which is evaluated."""


class AcceleratedUpdate(ClientUpdate):
    """τ accelerated steps from (w_k, ag_k). Sent are ag_τ as the model and w_τ − w_k; nothing is kept."""

    name: Literal["accelerated"] = "accelerated"
    upload_factor: ClassVar[float] = 2.0
    extra_parts: ClassVar[tuple[str, ...]] = (ITERATE,)
    needs: ClassVar[Mapping[str, str]] = {"server": "accelerated", "local": "accelerated"}

    def update(self, training: LocalTraining) -> LocalResult:
        assert isinstance(training.local, AcceleratedSgd)  # by `needs`
        w, ag = training.received_part(ITERATE), only(training.model, training.trained)
        start = {**training.model, **combine(training.local.query_point, w, ag)}
        trained = training.train(start, slots=(w, ag))
        return LocalResult(model=trained.states, trained=trained, parts={ITERATE: minus(trained.slots[0], w)})


class AcceleratedServerOptimiser(ServerOptimiser):
    """w ← w + mean(w_τ − w), and the aggregate is the new ag; both go out with every task."""

    name: Literal["accelerated"] = "accelerated"
    download_factor: ClassVar[float] = 2.0
    needs: ClassVar[Mapping[str, str]] = {"client": "accelerated"}

    def start(self, trained: ModelState) -> ModelState:
        return {name: tensor.clone() for name, tensor in trained.items()}

    def broadcast(self, state: ModelState) -> Payload:
        return {ITERATE: state}

    def step(self, state: ModelState, model: ModelState, aggregate: RoundAggregate) -> tuple[ModelState, ModelState]:
        return plus(state, aggregate.parts[ITERATE]), aggregate.model


fedac = Recipe(
    name="fedac",
    summary="accelerated local steps",
    select=UniformSelector,
    local=AcceleratedSgd,
    client=AcceleratedUpdate,
    aggregate=partial(PartialAggregation, weights="uniform"),
    server=AcceleratedServerOptimiser,
)

fedaq = Recipe(
    name="fedaq",
    summary="accelerated local steps, quantised",
    select=UniformSelector,
    local=AcceleratedSgd,
    client=AcceleratedUpdate,
    aggregate=partial(PartialAggregation, weights="uniform"),
    server=AcceleratedServerOptimiser,
    filters=EIGHT_BITS,
)
