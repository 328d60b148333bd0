"""Models in two parts, one of which stays with its client: FedPer, LG-FedAvg and FedRep."""

from functools import partial
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import nn

from winnow.core import ConfigError, Payload
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.selection import UniformSelector
from winnow.learn.shared_and_private_parts import entries_from_layer, entries_matching, last_layer
from winnow.learn.stack import ModelState, StateLayout
from winnow.learn.tensor_arithmetic import only

PRIVATE_PART = "own"


class PrivatePartUpdate(ClientUpdate):
    """A model whose `private` part, its head or its body, stays with the client and is never sent.

    The head is the layer `cut` and all after it (the last layer unless given), or what is called by one of `names`
    (`fc2.*`); the body is the rest.
    """

    private: Literal["head", "body"] = "head"
    cut: str | None = None
    names: tuple[str, ...] = ()
    has_personal_model: ClassVar[bool] = True

    @model_validator(mode="after")
    def _one_cut(self) -> Self:
        if self.cut is not None and self.names:
            raise ValueError("set cut or names, not both")
        return self

    @property
    def _key(self) -> str:
        """The setting that says where the parts meet."""
        return "client.names" if self.names else "client.cut"

    def head(self, module: nn.Module) -> frozenset[str]:
        """The entries of a state that make up the head."""
        head = (
            entries_matching(module, self.names)
            if self.names
            else entries_from_layer(module, self.cut or last_layer(module))
        )
        if len(head) == len(module.state_dict()):
            instead = "let client.names match fewer entries" if self.names else "choose a later layer"
            raise ConfigError(f"{self._key}: the head would be the whole model; {instead}")
        return head

    def private_names(self, module: nn.Module) -> frozenset[str]:
        head = self.head(module)
        for name, first in StateLayout.of(module).aliases.items():
            if (name in head) != (first in head):
                raise ConfigError(
                    f"{self._key}: {name} and {first} share one tensor, so both must be private or both sent"
                )
        return head if self.private == "head" else frozenset(module.state_dict()) - head

    def personal_model(self, model: ModelState, kept: Payload) -> ModelState:
        return model | dict(kept.get(PRIVATE_PART, {}))

    def private_parts(self, training: LocalTraining) -> ModelState:
        """The clients' private parts, [K, ...]; before the first training the initial one, which all parties build."""
        names = self.private_names(training.execution.module)
        return training.stored_part(
            PRIVATE_PART, {name: tensor for name, tensor in training.model.items() if name in names}
        )


class SplitUpdate(PrivatePartUpdate):
    """Both parts are trained together, from the common part and the client's own."""

    name: Literal["split"] = "split"

    def update(self, training: LocalTraining) -> LocalResult:
        own = self.private_parts(training)
        trained = training.train(training.model | own)
        return LocalResult(
            model=_without(trained.states, own), trained=trained, keep={PRIVATE_PART: only(trained.states, own)}
        )


class AlternatingUpdate(PrivatePartUpdate):
    """FedRep's scheme (Collins et al., 2021; SRPFL, equations 3 and 4): first the head is trained while the body stands
    still, then the body while the head does.

    `head_epochs` is τ_h; the body is trained for as long as `local` says, τ_φ. A round has so many `turns` of both.
    """

    name: Literal["alternating"] = "alternating"
    head_epochs: int = Field(10, ge=1)
    turns: int = Field(1, ge=1)

    def passes(self, local: LocalOptimiser, samples: int) -> float:
        return self.turns * (self.head_epochs + local.passes(samples))

    def update(self, training: LocalTraining) -> LocalResult:
        own, head = self.private_parts(training), self.head(training.execution.module)
        body = frozenset(training.model) - head
        states = training.model | own
        for turn in range(self.turns):
            fitted = training.train(states, trainable=head, epochs=self.head_epochs, phase=2 * turn)
            trained = training.train(fitted.states, trainable=body, phase=2 * turn + 1)
            states = trained.states
        return LocalResult(
            model=_without(trained.states, own), trained=trained, keep={PRIVATE_PART: only(trained.states, own)}
        )


def _without(states: ModelState, private: ModelState) -> ModelState:
    return {name: tensor for name, tensor in states.items() if name not in private}


fedper = Recipe(
    name="fedper",  # Arivazhagan et al., 2019
    summary="shared body, private heads",
    select=UniformSelector,
    client=SplitUpdate,
    aggregate=PartialAggregation,
)

lg_fedavg = Recipe(
    name="lg-fedavg",  # Liang et al., 2020
    summary="shared head, private bodies",
    select=UniformSelector,
    client=partial(SplitUpdate, private="body"),
    aggregate=PartialAggregation,
)

fedrep = Recipe(
    name="fedrep",
    summary="private heads and shared body, trained alternately",
    select=UniformSelector,
    client=AlternatingUpdate,
    aggregate=PartialAggregation,
)
