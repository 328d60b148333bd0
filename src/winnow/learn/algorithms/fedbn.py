"""FedBN (Li et al., 2021): clients keep their own batch normalisation, because their features differ in scale."""

from typing import ClassVar, Literal

from torch import nn

from winnow.core import Payload
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import only

NORMS = "norms"


class LocalBatchNormUpdate(ClientUpdate):
    """Training departs from the global model with the client's own normalisation layers, statistics included.

    The whole model is sent, so that the global one has averaged statistics and can be evaluated as well. What a client
    uses itself has its own. A model without batch normalisation is trained as by FedAvg-RP.
    """

    name: Literal["local-batch-norm"] = "local-batch-norm"
    has_personal_model: ClassVar[bool] = True

    def update(self, training: LocalTraining) -> LocalResult:
        names = norm_names(training.execution.module)
        own = training.stored_part(NORMS, only(training.model, names))
        trained = training.train(training.model | own)
        return LocalResult(model=trained.states, trained=trained, keep={NORMS: only(trained.states, names)})

    def notice(self, module: nn.Module) -> str:
        return "" if norm_names(module) else "the model has no batch normalisation; fedbn behaves like fedavg-rp"

    def personal_model(self, model: ModelState, kept: Payload) -> ModelState:
        return model | dict(kept.get(NORMS, {}))


def norm_names(module: nn.Module) -> list[str]:
    """The entries of a state that belong to batch normalisation."""
    norms = nn.modules.batchnorm._BatchNorm
    paths = [path for path, layer in module.named_modules() if isinstance(layer, norms)]
    return [name for name in module.state_dict() if name.rpartition(".")[0] in paths]


fedbn = Recipe(
    name="fedbn",
    summary="clients keep their own batch normalisation",
    select=UniformSelector,
    client=LocalBatchNormUpdate,
    aggregate=PartialAggregation,
)
