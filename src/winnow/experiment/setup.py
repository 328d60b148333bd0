"""What is learnt: a model and its loss, tried on a few samples, and what follows from them for all who take part.

A simulation makes one of these; in deployment the server and every site make one each, from the same settings.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.config.compatibility_checks import (
    check_batch_norm,
    check_cohort,
    check_outputs,
    check_profile_layer,
    reference_evaluation_notice,
)
from winnow.config.schema import Experiment
from winnow.core import ConfigError, Population
from winnow.data import Examples
from winnow.learn.algorithm_part import DataSummary
from winnow.learn.emulated_client import EmulateUpdate, emulate_client, single_client_data
from winnow.learn.handlers import LearningSite
from winnow.learn.metrics import metric_name
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.models import build_model
from winnow.learn.privacy_accountant import AccountantFactory
from winnow.learn.representation_profile import ELEMENT_BYTES
from winnow.learn.stack import (
    ClientSamples,
    Execution,
    Loss,
    ModelState,
    StateLayout,
    StepBenchmark,
    TensorData,
    as_loss,
    choose_execution,
    model_state,
)
from winnow.learn.training_plan import TrainingPlan
from winnow.privacy.dp import accountant_for

PROBE_SAMPLES = 4
"""Samples with which a model's execution is tried out."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What is known of a run before it starts, for progress lines and results."""

    metric: str
    parameters: int
    message_bytes: int
    profile_bytes: int
    elements: int
    """The length of a profile; 0 where replies carry none."""
    execution: str
    notice: str
    layer: str | None
    private: tuple[str, ...]
    """The entries of the model's state that stay with each client."""


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """A model, its loss and a few samples, where they are computed with."""

    experiment: Experiment
    module: nn.Module
    loss: Loss
    some: tuple[Tensor, Tensor]
    classes: int | None
    draws_are_told: bool = False
    """Whether others than the server learn whom each round invites."""

    @cached_property
    def execution(self) -> Execution:
        engine = self.experiment.engine
        pace = StepBenchmark(clock=time.perf_counter, batch_size=self.experiment.local.batch_size)
        return choose_execution(
            self.module, *self.some, self.loss, engine.execution, engine.threads, pace, engine.precision
        )

    @cached_property
    def layer(self) -> str | None:
        """The layer that is profiled, if any is."""
        return self.experiment.select.layer_for(self.module, self.some[0])

    @cached_property
    def initial(self) -> ModelState:
        """The model that every party builds from the broadcast seed."""
        return model_state(self.module)

    @cached_property
    def private(self) -> frozenset[str]:
        return frozenset(self.experiment.client.private_names(self.module))

    @cached_property
    def ledger(self) -> AccountantFactory:
        """Opens the book of what privacy the run costs."""
        whole, filters = self.experiment.composed(), self.experiment.filters
        return accountant_for(whole, filters, draws_are_told=self.draws_are_told)

    @cached_property
    def evaluator(self) -> ModelEvaluator:
        return ModelEvaluator(self.module, self.loss, self.layer, self.execution)

    def site(self, data: ClientSamples, local_test: TensorData | None) -> LearningSite:
        """A party that hosts these data."""
        return LearningSite(
            data=data, execution=self.execution, evaluator=self.evaluator, initial=self.initial, local_test=local_test
        )

    def facts(self, sizes: NDArray[np.int64]) -> RunInfo:
        """What is known once a way to compute has been chosen; whatever cannot work with such clients is refused."""
        experiment, module = self.experiment, self.module
        some_x, select = self.some[0], experiment.select
        check_outputs(module, some_x, self.classes, self.loss)
        untrainable = check_batch_norm(module, experiment.local, sizes)
        select.start(Population(sizes=sizes))  # what cannot be selected is said now, before anything is written
        self.ledger(Population(sizes=sizes))  # and so is a budget that does not last for one round
        check_cohort(experiment.composed(), len(sizes))
        shared = {name: tensor for name, tensor in self.initial.items() if name not in self.private}
        execution = self.execution
        check_profile_layer(module, self.layer, self.private)
        profile_bytes = self.evaluator.profile_bytes(some_x[:1]) if self.layer is not None else 0
        drawn = select.sampling_probability(len(sizes)) is not None  # then all may come at once
        summary = DataSummary(
            clients=len(sizes),
            largest_cohort=len(sizes) if drawn else select.cohort_size(len(sizes)),
            shared_model=shared,
            reference_clients=experiment.reference_clients,
            profile_length=profile_bytes // ELEMENT_BYTES,
        )
        for part in (*experiment.filters, *experiment.composed().parts):
            part.check_data(summary)
        notices = (
            execution.notice,
            untrainable,
            reference_evaluation_notice(experiment.evaluation.by, self.private),
            experiment.client.notice(module),
        )
        sent = sum(tensor.nbytes for tensor in shared.values())
        return RunInfo(
            metric=metric_name(experiment.metric, self.classes, pooled=_evaluated_by_clients(experiment)),
            parameters=sum(p.numel() for p in module.parameters()),
            message_bytes=experiment.fleet.message_bytes(sent),
            profile_bytes=select.comparison.profile_bytes(profile_bytes),
            elements=profile_bytes // ELEMENT_BYTES,
            execution=execution.name,
            notice="; ".join(filter(None, notices)),
            layer=self.layer,
            private=tuple(name for name in self.initial if name in self.private),
        )

    def emulation(
        self, plan: TrainingPlan, held: tuple[Tensor, Tensor], sizes: NDArray[np.int64]
    ) -> EmulateUpdate | None:
        """A client with as many of the server's samples as others have on average, if the collection asks for it."""
        if not self.experiment.collect.emulates:
            return None
        x, y = (tensor[: max(1, round(sizes.mean()))] for tensor in held)
        if not len(x):
            raise ConfigError(
                'collect.parameter_source = "public" needs samples at the server, which holds none; write "sum"'
            )
        return emulate_client(plan, self.site(single_client_data(x, y), None), len(x))

    def plan(self, facts: RunInfo) -> TrainingPlan:
        """What does not change during the run."""
        experiment = self.experiment
        return TrainingPlan(
            algorithm=experiment.composed(),
            rounds=experiment.rounds,
            seed=experiment.seed,
            metric=facts.metric,
            message_bytes=facts.message_bytes,
            profile_bytes=facts.profile_bytes,
            elements=facts.elements,
            layout=StateLayout.of(self.module),
            private=self.private,
            evaluated_by=experiment.evaluation.by,
            ledger=self.ledger,
        )


def module_for(experiment: Experiment, like: Examples, classes: int | None) -> nn.Module:
    """The model that the settings name, for samples like these."""
    outputs = classes if classes is not None else like.y.shape[1]
    return build_model(experiment.model, like.x.shape[1:], outputs, experiment.seed)


def loss_for(experiment: Experiment, classes: int | None, given: Callable[[Tensor, Tensor], Tensor] | None) -> Loss:
    """The loss that was given, or the one that the settings name for this kind of task."""
    if given is not None:
        return as_loss(given)
    default = "mse" if classes is None else "cross-entropy"
    if experiment.loss is not None and (experiment.loss == "mse") != (default == "mse"):
        kind = "a regression" if classes is None else "a classification"
        raise ConfigError(f"loss: {experiment.loss!r} does not fit {kind}; leave it out or write {default!r}")
    return as_loss(experiment.loss or default)


def device_for(asked: str) -> torch.device:
    """Where to compute."""
    present = torch.cuda.is_available()
    if asked == "cuda" and not present:
        raise ConfigError("engine.device: torch sees no CUDA device here; write 'cpu' or 'auto'")
    return torch.device("cuda" if present and asked != "cpu" else "cpu")


def _evaluated_by_clients(experiment: Experiment) -> bool:
    return bool(experiment.reference_clients) or experiment.evaluation.by != "reference"
