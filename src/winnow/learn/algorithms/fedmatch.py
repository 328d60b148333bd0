"""FedMatch (Jeong et al., 2021): a model is the sum of two, σ learnt from labels and ψ from what has none, for which a
client asks the models of others that are like its own. Labels are at clients or at the server.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from winnow.core import Payload, Reply
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.algorithm_part import ALL_EVIDENCE, EvidenceKind
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.helper_models import CLIENT, HELPERS, chosen_helpers, helper_memory, received_psi
from winnow.learn.local_optimiser import Sgd
from winnow.learn.pseudo_labels import SURE
from winnow.learn.selection import UniformSelector
from winnow.learn.server_optimiser import RoundAggregate
from winnow.learn.stack import ModelState
from winnow.learn.stack.local_training_start import expand_to_clients
from winnow.learn.teaching_server import TeachingServer
from winnow.learn.tensor_arithmetic import only, scaled
from winnow.learn.two_part_gradient import PSI, RATE, SEEN, VELOCITY, TwoPartGradient

OWN = "own"
PSI_SHARE = 0.2 / 1.2
"""Of the first model; the authors begin with σ and ψ = 0.2·σ."""
ROUND = "round"


class FedMatchUpdate(ClientUpdate):
    """Steps of σ on labelled samples and of ψ on the others; see `TwoPartGradient`. Helpers are the `helpers` nearest
    of those that the server sends, by probabilities for one image of noise; a client that is new here has none.

    Changes smaller than `smallest_change` are not made, so that what is sent differs in few places from what came.
    """

    name: Literal["fedmatch"] = "fedmatch"
    threshold: float = Field(0.75, ge=0, le=1)
    labelled_weight: float = Field(10.0, ge=0)
    helper_weight: float = Field(0.01, ge=0)
    agreement_weight: float = Field(0.01, ge=0)
    l2: float = Field(10.0, ge=0)
    l1: float = Field(1e-4, ge=0)
    helpers: int = Field(2, ge=0, le=16)
    unlabelled_ratio: int = Field(10, ge=1)
    smallest_change: float = Field(5e-5, ge=0)
    training_factor: ClassVar[float] = 3.0
    upload_factor: ClassVar[float] = 2.0
    extra_parts: ClassVar[tuple[str, ...]] = (PSI,)
    own_steps: ClassVar[bool] = True
    uses_unlabelled: ClassVar[bool] = True
    labels_at: ClassVar[frozenset[str]] = frozenset({"clients", "some", "server"})
    needs: ClassVar[Mapping[str, str]] = {"server": "fedmatch", "schedule": "rounds", "local": "sgd"}
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = ALL_EVIDENCE

    @property
    def label_threshold(self) -> float:
        return self.threshold

    def privacy_text(self) -> str:
        return (
            "fedmatch: the server sees every client's update, and clients are sent the ψ of others: what these learnt "
            "from their unlabelled data is seen by clients, not by the server alone."
        )

    def update(self, training: LocalTraining) -> LocalResult:
        psi, count = received_psi(training), len(training.clients)
        rule = TwoPartGradient(
            threshold=self.threshold,
            labelled_weight=self.labelled_weight,
            helper_weight=self.helper_weight,
            agreement_weight=self.agreement_weight,
            l2=self.l2,
            l1=self.l1,
            helpers=self.helpers,
            unlabelled_ratio=self.unlabelled_ratio,
            local=_sgd(training),
        )
        none = torch.zeros(1, 1, device=training.data.device)
        memory = {f"{PSI}/{name}": tensor for name, tensor in psi.items()}
        memory |= {f"{VELOCITY}/{name}": torch.zeros_like(tensor) for name, tensor in psi.items()}
        memory |= {SURE: none, SEEN: none, RATE: none + training.rate}
        memory |= helper_memory(training, chosen_helpers(training, OWN, self.helpers), psi, self.helpers)
        trained = training.train(gradient_rule=rule, memory=memory)
        moved = {name: trained.memory[f"{PSI}/{name}"] for name in psi}
        model, psi = self._sent(
            training, trained.states, {n: expand_to_clients(t, count) for n, t in psi.items()}, moved
        )
        return LocalResult(
            model=model,
            trained=trained,
            parts={PSI: psi},
            keep={OWN: model},
            metrics={SURE: (trained.memory[SURE] / trained.memory[SEEN]).squeeze(1)},
        )

    def _sent(
        self, training: LocalTraining, model: ModelState, psi: ModelState, moved: ModelState
    ) -> tuple[ModelState, ModelState]:
        """The model and its ψ with changes that are large enough; what does not change is the same to the last bit."""
        sent, parts = dict(model), {}
        for name, before in psi.items():
            came = training.model[name]
            of_psi = moved[name] - before
            of_sigma = model[name] - came - of_psi
            of_psi, of_sigma = (torch.where(d.abs() < self.smallest_change, 0.0, d) for d in (of_psi, of_sigma))
            parts[name] = before + of_psi
            sent[name] = came + (of_sigma + of_psi)
        return sent, parts


def _sgd(training: LocalTraining) -> Sgd:
    assert isinstance(training.local, Sgd), "another optimiser is refused before a run begins"
    return training.local


class FedMatchServer(TeachingServer):
    """The means of models and of ψ, and σ is the rest. In each `helper_rounds`-th round the ψ of at most `bank` clients
    of the round become those that clients choose their helpers from. Labels at the server train σ, as ψ stays.
    """

    name: Literal["fedmatch"] = "fedmatch"  # type: ignore[assignment]
    helper_rounds: int = Field(10, ge=1)
    bank: int = Field(5, ge=0, le=64)
    sees_updates: ClassVar[bool] = True
    labelled_weight: ClassVar[float] = 10.0  # λ_s
    download_factor: ClassVar[float] = 7.0
    needs: ClassVar[Mapping[str, str]] = {"client": "fedmatch"}

    def start(self, trained: ModelState) -> ModelState:
        """ψ, and in how many rounds there have been updates."""
        psi = scaled(trained, PSI_SHARE)
        return {f"{PSI}/{name}": tensor for name, tensor in psi.items()} | {ROUND: torch.zeros(1, dtype=torch.int64)}

    def step(self, state: ModelState, model: ModelState, aggregate: RoundAggregate) -> tuple[ModelState, ModelState]:
        if aggregate.replies:
            psi = only(aggregate.parts[PSI], aggregate.trained_names)
            bank = self._bank(aggregate.replies) if int(state[ROUND]) % self.helper_rounds == 0 else _helpers_of(state)
            state = {f"{PSI}/{name}": tensor for name, tensor in psi.items()} | {ROUND: state[ROUND] + 1} | bank
        _, moved = super().step({}, model, aggregate)
        return state, moved

    def _bank(self, replies: Sequence[Reply]) -> ModelState:
        """The ψ of the first clients by their numbers, [bank, ...], and these."""
        chosen = sorted(replies, key=lambda reply: reply.task.client)[: self.bank]
        if not chosen:
            return {}
        stacked = {
            f"{HELPERS}/{name}": torch.stack([torch.as_tensor(reply.payload[PSI][name]) for reply in chosen])
            for name in chosen[0].payload[PSI]
        }
        return stacked | {f"{HELPERS}/{CLIENT}": torch.tensor([reply.task.client for reply in chosen])}

    def broadcast(self, state: ModelState) -> Payload:
        parts: dict[str, dict[str, Tensor]] = {PSI: {}, HELPERS: {}}
        for path, tensor in state.items():
            part, _, name = path.partition("/")
            if part in parts:
                parts[part][name] = tensor
        return {part: named for part, named in parts.items() if named}


def _helpers_of(state: ModelState) -> ModelState:
    return {name: tensor for name, tensor in state.items() if name.startswith(f"{HELPERS}/")}


fedmatch = Recipe(
    name="fedmatch",
    summary="two-part models; clients' likes help without labels",
    select=UniformSelector,
    client=FedMatchUpdate,
    aggregate=PartialAggregation,
    server=FedMatchServer,
)
