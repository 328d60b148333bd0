"""DP-SGD at the sites (Abadi et al., 2016), by opacus: what leaves a client hides each of its samples."""

import warnings
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from importlib import import_module
from math import ceil
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from winnow.core import ConfigError, ModelError
from winnow.core.installed_package import install_command
from winnow.learn.algorithm_part import TOLD_BY_CLIENTS, EvidenceKind
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.local_optimiser import LocalOptimiser, Sgd
from winnow.learn.stack import CohortTrainingResult, Loss, ModelState
from winnow.privacy.dp.privacy_loss import GaussianRelease
from winnow.privacy.dp.settings import ClipNorm, Delta, EpsilonBudget, NoiseMultiplier


class DpSgd(ClientUpdate):
    """θ ← θ − η·(Σ_i clip(g_i) + N(0, (z·C)²)) / B over batches in which each sample is with probability B/n.

    z is `noise_multiplier`, C `clip`, B the batch size of `local`, or n where that is smaller. What is not finite in
    g_i counts as 0. A client's ε is that of its own sampling rate and of all steps that it has taken; it hides a
    sample, not the client. Clients train one after another.
    """

    name: Literal["dp-sgd"] = "dp-sgd"
    noise_multiplier: NoiseMultiplier
    clip: ClipNorm = 1.0
    delta: Delta = 1e-5
    epsilon: EpsilonBudget | None = None
    needs: ClassVar[Mapping[str, str]] = {"local": "sgd", "schedule": "rounds"}
    bounds_samples: ClassVar[bool] = True
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = frozenset(TOLD_BY_CLIENTS)

    def update(self, training: LocalTraining) -> LocalResult:
        start = {name: tensor[0] for name, tensor in training.model.items()}
        states = [self._trained(training, int(client), start) for client in training.clients]
        steps = [planned_steps(training.local, int(size)) for size in training.data.sizes(training.clients)]
        device = training.data.device
        trained = CohortTrainingResult(
            states={name: torch.stack([state[name] for state in states]) for name in start},
            loss=torch.full((len(states),), torch.nan, device=device),  # no noise covers it, so it is not told
            steps=torch.tensor(steps, device=device),
        )
        return LocalResult(model=trained.states, trained=trained)

    def privacy_text(self) -> str:
        budget = "" if self.epsilon is None else f", and the run stops before that exceeds {self.epsilon:g}"
        return (
            f"dp-sgd: each client trains with gradients bounded to {self.clip:g} a sample and noise of "
            f"{self.noise_multiplier:g} times that, so that what leaves it hides whether any one sample was there, "
            "from the server too. It does not hide the client, nor what many of its samples have in common. The worst "
            f"client's ε, at δ = {self.delta:g}, is told after every round{budget}. It costs accuracy, and time: "
            "clients train one after another."
        )

    def notice(self, module: nn.Module) -> str:
        """A model that cannot be trained so is refused before the run."""
        self._private(deepcopy(module))
        return ""

    def release(self, local: LocalOptimiser, size: int, times: int) -> GaussianRelease:
        """What a client with so many samples has released that took part so often."""
        return GaussianRelease(
            noise=self.noise_multiplier,
            times=times * planned_steps(local, size),
            sampling_probability=min(1.0, local.batch_size / size),
        )

    def further_releases(self, times: int) -> list[GaussianRelease]:
        """What a client that took part so often has released besides its steps."""
        return []

    def _trained(self, training: LocalTraining, client: int, start: ModelState) -> ModelState:
        module = deepcopy(training.execution.module)
        module.load_state_dict(start)
        rng = training.randomness(training.seed, "dp-sgd", training.round, client)
        rows = torch.as_tensor(training.data.rows_of(client))
        private, optimizer = self._private(module), self._optimizer(module, training, len(rows), rng)
        for _ in range(planned_steps(training.local, len(rows))):
            drawn = rows[torch.from_numpy(rng.random(len(rows)) < training.local.batch_size / len(rows))]
            optimizer.zero_grad()
            self._gradients(private, training, drawn)
            _check_buffers(module, start)
            optimizer.step()
        noisy = {name: tensor.detach().clone() for name, tensor in module.named_parameters(remove_duplicate=False)}
        return {**start, **noisy}

    def _gradients(self, private: Any, training: LocalTraining, rows: Tensor) -> None:
        x, y = training.data.samples(rows) if len(rows) else (None, None)
        self._sample_gradients(private, x, y, training.execution.loss)

    @staticmethod
    def _sample_gradients(private: Any, x: Tensor | None, y: Tensor | None, loss: Loss) -> None:
        """Every sample's own gradient, where the optimiser looks for it; an empty batch (None) has none."""
        if x is None or y is None:
            for parameter in private.parameters():
                parameter.grad_sample = parameter.new_zeros(0, *parameter.shape)
            return
        with warnings.catch_warnings():  # samples need no gradients, of which torch would warn the hooks
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            torch.autograd.backward(loss(private(x), y).mean())
        for parameter in private.parameters():
            if parameter.requires_grad:  # a bound times infinity is no number: one sample would spoil the whole model
                parameter.grad_sample.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def _private(self, module: nn.Module) -> Any:
        """The module with hooks that keep every sample's gradient."""
        library = _opacus()
        for name, layer in module.named_modules():
            if isinstance(layer, _BatchNorm) or getattr(layer, "track_running_stats", False):
                raise _cannot_train(f"{type(layer).__name__} ({name}) mixes samples, or keeps statistics of them")
        try:
            return library.GradSampleModule(module.train(), batch_first=True, loss_reduction="mean", strict=True)
        except NotImplementedError as error:
            raise _cannot_train(str(error).splitlines()[0]) from None

    def _optimizer(self, module: nn.Module, training: LocalTraining, samples: int, rng: np.random.Generator) -> Any:
        local = training.local
        assert isinstance(local, Sgd), "refused when the configuration was read"
        moving = [parameter for parameter in module.parameters() if parameter.requires_grad]
        plain = torch.optim.SGD(
            moving, lr=training.rate, momentum=local.momentum, nesterov=local.nesterov, weight_decay=local.weight_decay
        )
        batch = min(local.batch_size, samples)
        bounding = _opacus(".optimizers").DPOptimizer(
            plain, noise_multiplier=0.0, max_grad_norm=self.clip, expected_batch_size=batch
        )
        # opacus would draw the noise by a torch generator, whose seed has 32 bits: they can be tried out
        bounding.attach_step_hook(partial(_add_noise, self.noise_multiplier * self.clip / batch, rng))
        return bounding


def _add_noise(deviation: float, rng: np.random.Generator, optimizer: Any) -> None:
    """To the bounded and divided gradients, before the step."""
    for parameter in optimizer.params:
        parameter.grad += torch.from_numpy(rng.normal(0.0, deviation, tuple(parameter.shape))).to(parameter.grad)


def _check_buffers(module: nn.Module, start: ModelState) -> None:
    """Whatever a layer makes of samples but gradients has neither bound nor noise."""
    for name, tensor in module.named_buffers():
        if name in start and not torch.equal(tensor, start[name]):
            raise _cannot_train(f"buffer {name} depends on the samples")


def _cannot_train(reason: str) -> ModelError:
    return ModelError(f'client.name = "dp-sgd" cannot train this model: {reason}; use another')


def planned_steps(local: LocalOptimiser, size: int) -> int:
    """As many as plain training would take."""
    return local.steps if local.steps is not None else (local.epochs or 1) * ceil(size / local.batch_size)


def _opacus(module: str = "") -> Any:
    try:
        return import_module(f"opacus{module}")  # seconds to import, and an extra
    except ImportError:
        raise ConfigError(f"client.name = 'dp-sgd' needs opacus: {install_command('privacy')}") from None
