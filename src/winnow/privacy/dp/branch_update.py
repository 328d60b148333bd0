"""A model whose branch is shared and has a loss of its own, with private parts beside it: transfer through phones.

The paper (Wu et al., 2023) trains everything by one loss: then private towers, moved by gradients without noise, are in
every shared gradient, and leaving out one sample changes all of them. Here shared gradients depend on shared parameters
and the sample alone, so that clipping bounds what a sample changes, and ε is true.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from winnow.core import ConfigError, Payload
from winnow.learn.algorithms.fedper import PRIVATE_PART
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.local_optimiser import Sgd
from winnow.learn.phone_network import BRANCH
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import only
from winnow.privacy.dp import dp_sgd
from winnow.privacy.dp.dp_sgd import DpSgd
from winnow.privacy.dp.privacy_loss import GaussianRelease
from winnow.privacy.dp.settings import NoiseMultiplier

PREFIX, RELEASED = f"{BRANCH}.", f"{BRANCH}.released"


class BranchMethod(ClientUpdate):
    """A round at K clients: towers and fusion with the branch as it came, and the branch by its own loss.

    A client's own model has the branch that its fusion was trained with. That of the others' average, a round younger,
    would be read by a fusion that has never seen it: a party with few rows would lose more than the others teach it.
    In the first round each client also sends its part of the branch's table (`released`).
    """

    needs: ClassVar[Mapping[str, str]] = {"local": "sgd", "schedule": "rounds"}
    has_personal_model: ClassVar[bool] = True
    bounds_samples: ClassVar[bool] = True

    def private_names(self, module: nn.Module) -> frozenset[str]:
        if not isinstance(getattr(module, BRANCH, None), nn.Module) or not hasattr(module, "branch_inputs"):
            raise ConfigError(
                f"client.name = {getattr(self, 'name', '')!r} needs a model with a part {BRANCH!r} that all share, "
                'such as model.name = "phones"'
            )
        return frozenset(name for name in module.state_dict() if not name.startswith(PREFIX))

    def personal_model(self, model: ModelState, kept: Payload) -> ModelState:
        return model | dict(kept.get(BRANCH, {})) | dict(kept.get(PRIVATE_PART, {}))

    def update(self, training: LocalTraining) -> LocalResult:
        module = training.execution.module
        private = self.private_names(module)
        own = training.stored_part(PRIVATE_PART, only(training.model, private))
        came = {name: tensor for name, tensor in training.model.items() if name not in private}
        start = {name: tensor[0] for name, tensor in came.items()}
        trained = training.train(came | own, trainable=private)
        branches = [self._branch(training, int(client), start) for client in training.clients]
        shared = {name: torch.stack([branch[name] for branch in branches]) for name in start}
        if training.round == 1:
            released = torch.stack([self._released(training, int(client)) for client in training.clients])
            shared = shared | {RELEASED: released.to(came[RELEASED])}
        told = (
            trained if self.tells_loss else dataclasses.replace(trained, loss=torch.full_like(trained.loss, torch.nan))
        )
        read = {name: tensor.expand(len(branches), *tensor.shape[1:]) for name, tensor in came.items()}
        keep = {PRIVATE_PART: only(trained.states, private), BRANCH: read}
        return LocalResult(model=shared, trained=told, keep=keep)

    tells_loss: ClassVar[bool] = True

    @abstractmethod
    def _branch(self, training: LocalTraining, client: int, start: ModelState) -> ModelState:
        """The branch after a client's steps of its own loss."""

    @abstractmethod
    def _released(self, training: LocalTraining, client: int) -> Tensor:
        """A client's part of the table."""


class BranchUpdate(BranchMethod):
    """Without noise: ε = ∞."""

    name: Literal["branch"] = "branch"

    def privacy_text(self) -> str:
        return "branch: towers and fusion stay with each client; what is sent of the shared branch has no noise."

    def _branch(self, training: LocalTraining, client: int, start: ModelState) -> ModelState:
        module = _loaded(training, start)
        local, branch = training.local, getattr(module, BRANCH)
        assert isinstance(local, Sgd), "refused when the configuration was read"
        optimizer = torch.optim.SGD(
            branch.parameters(), lr=training.rate, momentum=local.momentum, weight_decay=local.weight_decay
        )
        rng = training.randomness(training.seed, "branch", training.round, client)
        rows = torch.as_tensor(training.data.rows_of(client))
        batch = min(local.batch_size, len(rows))
        for _ in range(dp_sgd.planned_steps(local, len(rows))):
            drawn = rows[torch.from_numpy(rng.random(len(rows)) < batch / len(rows))]
            x, y = training.data.samples(drawn)
            optimizer.zero_grad()
            torch.autograd.backward(training.execution.loss(branch(module.branch_inputs(x)), y).sum() / batch)
            optimizer.step()
        return _branch_state(module)

    def _released(self, training: LocalTraining, client: int) -> Tensor:
        return _contributions(training, client).sum(0)


class PrivateBranchUpdate(BranchMethod, DpSgd):
    """DP-SGD on the branch, and Σ clip(v_i) + N(0, (z_e·C)²) for its table, once, over rows' contributions v_i.

    z_e is `table_noise`; C is `clip` in both. ε counts both.
    """

    name: Literal["dp-branch"] = "dp-branch"  # type: ignore[assignment]
    table_noise: NoiseMultiplier = 5.0
    tells_loss: ClassVar[bool] = False

    def privacy_text(self) -> str:
        return (
            f"{super().privacy_text()} This holds for the shared branch, which has a loss of its own; towers and "
            f"fusion stay with each client, without noise. The table of what phones sound like leaves once, in the "
            f"first round, with noise of {self.table_noise:g} times its bound, and is in ε."
        )

    def notice(self, module: nn.Module) -> str:
        self.private_names(module)
        self._private(deepcopy(getattr(module, BRANCH)))
        return ""

    def further_releases(self, times: int) -> list[GaussianRelease]:
        return [GaussianRelease(noise=self.table_noise, times=min(times, 1))]

    def _branch(self, training: LocalTraining, client: int, start: ModelState) -> ModelState:
        module = _loaded(training, start)
        branch = getattr(module, BRANCH)
        rng = training.randomness(training.seed, "dp-sgd", training.round, client)
        rows = torch.as_tensor(training.data.rows_of(client))
        private, optimizer = self._private(branch), self._optimizer(branch, training, len(rows), rng)
        for _ in range(dp_sgd.planned_steps(training.local, len(rows))):
            drawn = rows[torch.from_numpy(rng.random(len(rows)) < training.local.batch_size / len(rows))]
            optimizer.zero_grad()
            x, y = training.data.samples(drawn) if len(drawn) else (None, None)
            self._sample_gradients(private, None if x is None else module.branch_inputs(x), y, training.execution.loss)
            optimizer.step()
        return _branch_state(module)

    def _released(self, training: LocalTraining, client: int) -> Tensor:
        rng = training.randomness(training.seed, "table", training.round, client)
        total = clipped_sum(_contributions(training, client), self.clip)
        return total + torch.from_numpy(rng.normal(0.0, self.table_noise * self.clip, tuple(total.shape))).to(total)


def clipped_sum(contributions: Tensor, clip: float) -> Tensor:
    """Σ_i v_i·min(1, C/‖v_i‖): one row changes it by no more than C. What is not finite counts as 0."""
    flat = contributions.flatten(1).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    factors = (clip / flat.norm(dim=1).clamp_min(1e-12)).clamp_max(1.0)
    total: Tensor = (flat * factors[:, None]).sum(0)
    return total.reshape(contributions.shape[1:])


@torch.no_grad()
def _contributions(training: LocalTraining, client: int) -> Tensor:
    module: Any = training.execution.module
    x, _ = training.data.samples(torch.as_tensor(training.data.rows_of(client)))
    found: Tensor = module.released_sums(x)
    return found


def _loaded(training: LocalTraining, start: ModelState) -> Any:
    """A copy of the module with the branch as it was sent."""
    module = deepcopy(training.execution.module)
    module.load_state_dict(start, strict=False)
    return module


def _branch_state(module: nn.Module) -> ModelState:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items() if name.startswith(PREFIX)}
