"""A model as a party runs it. Every `LearningSite` is made here: a simulation's, a worker's, a deployed site's."""

import time
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor, nn

from winnow.config.schema import EngineSettings
from winnow.core import Randomness
from winnow.learn.client_quality.evidence_pass import EvidencePass
from winnow.learn.extended_model import loss_of_predictions, trained_form
from winnow.learn.learning_site import LearningSite
from winnow.learn.metrics import Metric, metrics_by_name
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.stack import (
    ClientSamples,
    Execution,
    Loss,
    ModelState,
    OwnTraining,
    StepBenchmark,
    TensorData,
    choose_execution,
    model_state,
)


@dataclass(frozen=True, kw_only=True)
class ModelSetup:
    """A model, its loss and a few samples, on the device that computes, and what follows from them."""

    module: nn.Module
    """The model as training knows it, with a method's further heads; the user's own is in it."""
    loss: Loss
    own: OwnTraining | None
    """A training step or a whole local loop of the user's own."""
    own_steps: str
    """The name of the method at the client if it takes steps of its own."""
    layer: str | None
    """The layer that is profiled, if any is."""
    evidence_layer: str | None
    """The layer whose outputs clients tell of when their data are assessed, if any is."""
    outputs: int
    """Classes, or values of a regression."""
    probe: tuple[Tensor, Tensor]
    """Samples with which the execution is tried out."""
    engine: EngineSettings
    batch_size: int
    metrics: tuple[Metric, ...]
    """What models are scored by; the first decides."""
    randomness: Randomness

    @cached_property
    def execution(self) -> Execution:
        engine = self.engine
        benchmark = StepBenchmark(clock=time.perf_counter, batch_size=self.batch_size)
        return choose_execution(
            trained_form(self.module),
            *self.probe,
            loss_of_predictions(self.module, self.loss),
            engine.execution,
            engine.threads,
            benchmark,
            engine.precision,
            self.own,
            engine.compile,
            self.own_steps,
        )

    @cached_property
    def initial(self) -> ModelState:
        """The model that every party builds from the broadcast seed."""
        return model_state(self.module)

    @cached_property
    def evaluator(self) -> ModelEvaluator:
        return ModelEvaluator(self.module, self.loss, self.layer, self.execution)

    @cached_property
    def evidence_pass(self) -> EvidencePass:
        """With which clients' data are looked at: often through the same layer as profiles."""
        if self.evidence_layer == self.layer:
            return EvidencePass(self.evaluator, self.outputs)
        watching = ModelEvaluator(self.module, self.loss, self.evidence_layer, self.execution)
        return EvidencePass(watching, self.outputs)

    def site(
        self, data: ClientSamples, local_test: TensorData | None, open_samples: Tensor | None = None
    ) -> LearningSite:
        """A party that hosts these data."""
        return LearningSite(
            data=data,
            execution=self.execution,
            evaluator=self.evaluator,
            evidence_pass=self.evidence_pass,
            initial=self.initial,
            local_test=local_test,
            metrics=metrics_by_name(self.metrics),
            randomness=self.randomness,
            open=open_samples,
        )

    def on_one_core(self) -> "ModelSetup":
        """The same for a worker on another machine, which sets up for itself the execution that was chosen here."""
        engine = self.engine.model_copy(update={"execution": self.execution.name, "threads": 1})
        return replace(self, engine=engine)
