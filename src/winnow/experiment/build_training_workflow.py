"""What a run needs, put together once, for all who take part.

A simulation makes one `TrainingSetup`; in deployment the server and every site make one each, from the same settings.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.config.compatibility_checks import (
    check_batch_norm,
    check_cohort,
    check_outputs,
    check_own_training,
    check_profile_layer,
    one_class_notice,
    output_width,
    probe_notice,
    reference_evaluation_notice,
    server_model_notice,
)
from winnow.config.label_checks import check_augmentation, check_open, method_name
from winnow.config.schema import EngineSettings, Experiment
from winnow.core import ConfigError, ModelError, Population, Randomness
from winnow.core.join_names import listed
from winnow.data import DataSet, Examples, OnDemand, Preprocessing
from winnow.data.preprocessing import NO_LABEL
from winnow.data.types import Features
from winnow.experiment.build_assessor import build_assessor, evidence_layer
from winnow.experiment.build_evaluator import build_evaluator, build_final_evaluator
from winnow.experiment.build_learning_site import ModelSetup
from winnow.experiment.encode_data import OnEncoded, say_nothing
from winnow.learn.accountant_interface import AccountantFactory
from winnow.learn.adapted_model import adapt_model, own_module
from winnow.learn.algorithm import Algorithm
from winnow.learn.algorithm_part import DataSummary
from winnow.learn.algorithms.gap_gain import TargetFeatures
from winnow.learn.client_store import ClientStore
from winnow.learn.ensemble.ensemble_net import InputMask
from winnow.learn.extended_model import ExtendedModel, extend_model
from winnow.learn.metrics import Metric, chosen_metrics, in_original_units
from winnow.learn.models import build_model
from winnow.learn.representation_profile import ELEMENT_BYTES
from winnow.learn.run_plan import TrainingPlan
from winnow.learn.sklearn_models import estimator_model, estimator_notice, fitted_estimator
from winnow.learn.stack import (
    Loss,
    ModelState,
    OwnTraining,
    StateLayout,
    allow_tf32,
    as_loss,
    as_tensor,
)
from winnow.learn.teacher import Distiller, Teacher
from winnow.learn.training_workflow import TrainingWorkflow
from winnow.learn.trial_update_on_server_samples import EmulateUpdate, emulate_client, single_client_data
from winnow.privacy.dp import accountant_for

PROBE_SAMPLES = 4
"""Samples with which a model's execution is tried out."""


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """What Python code may hand over instead of names in a configuration."""

    dataset: DataSet | OnDemand | None = None
    module: nn.Module | None = None
    estimator: Any = None
    """A scikit-learn estimator in the place of a module."""
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    own: OwnTraining | None = None
    """A training step or a whole local loop of the user's own."""
    metrics: tuple[Metric, ...] = ()
    """Metrics of the user's own, which the configuration names."""
    data_directory: Path | None = None
    on_encoded: OnEncoded = say_nothing
    """Is told how far a frozen encoder has come."""


DEFAULT_INPUTS = RunInputs()


def set_up_training(
    experiment: Experiment,
    inputs: RunInputs,
    probe: tuple[Tensor, Tensor],
    classes: int | None,
    randomness: Randomness,
    *,
    preprocessing: Preprocessing,
    selection_is_public: bool,
    labels_notice: str = "",
) -> "TrainingSetup":
    """The model and its loss as every party builds them, and tries them on a few samples (`probe`)."""
    check_augmentation(experiment.client, preprocessing)
    probe = x, _ = probe[0], _some_label(probe[1])
    module, own = _module(experiment, inputs, probe, classes)
    if own is not None:
        check_own_training(own, experiment.client)
    with _naming_features(preprocessing):
        module = adapt_model(module.to(x.device), preprocessing.inputs, experiment.model.output, x)
        method = experiment.client
        module = extend_model(module, method, x, classes, experiment.seed, method_name(method))
        layer = experiment.select.layer_for(module, x)
    private = frozenset(experiment.client.private_names(module))
    model = ModelSetup(
        module=module,
        loss=_loss(experiment, classes, inputs.loss, module, x),
        own=own,
        own_steps=getattr(experiment.client, "name", "") if experiment.client.own_steps else "",
        layer=layer,
        evidence_layer=layer or evidence_layer(experiment, module, x, private),
        outputs=output_count(classes, probe[1]),
        probe=probe,
        engine=experiment.engine,
        batch_size=experiment.local.batch_size,
        metrics=_metrics(experiment, inputs, classes, preprocessing),
        randomness=randomness,
    )
    return TrainingSetup(
        experiment=experiment,
        model=model,
        estimator=inputs.estimator,
        classes=classes,
        preprocessing=preprocessing,
        selection_is_public=selection_is_public,
        labels_notice=labels_notice,
    )


def _some_label(y: Tensor) -> Tensor:
    """Labels to try a loss with, also where there are none."""
    return y if y.is_floating_point() else torch.where(y == NO_LABEL, 0, y)


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """An experiment and its model, and what follows from them: the plan and the workflow of the run."""

    experiment: Experiment
    model: ModelSetup
    estimator: Any
    """The scikit-learn estimator that the model stands for, if it does."""
    classes: int | None
    preprocessing: Preprocessing
    """What made the samples out of raw rows."""
    selection_is_public: bool
    """Whether others than the server learn which clients each round selects."""
    labels_notice: str = ""
    """What a user should know about samples without labels."""

    @cached_property
    def private(self) -> frozenset[str]:
        return frozenset(self.experiment.client.private_names(self.model.module))

    @property
    def _sequences(self) -> bool:
        """Whether a sample has a sequence of labels."""
        return self.classes is not None and self.model.probe[1].dim() > 1

    @cached_property
    def _open_accountant(self) -> AccountantFactory:
        whole, filters = self.experiment.composed(), self.experiment.filters
        return accountant_for(whole, filters, selection_is_public=self.selection_is_public)

    def fitted_estimator(self) -> Any:
        """The estimator with the model's parameters as they are now; None without one."""
        if self.estimator is None:
            return None
        labels = None if self.classes is None else self.preprocessing.labels(self.classes)
        return fitted_estimator(self.estimator, own_module(self.model.module), labels)

    def plan(
        self, sizes: NDArray[np.int64], reference: Examples, names: Sequence[str], open_rows: int = 0
    ) -> TrainingPlan:
        """The run with clients of these sizes and names, and this reference set; whatever cannot work is refused here,
        before anything is written.
        """
        experiment, module, layer = self.experiment, self.model.module, self.model.layer
        probe_x, select = self.model.probe[0], experiment.select
        check_open(experiment.client, open_rows, self.classes)
        own_loss = self.model.own is not None  # its outputs may be for more than predictions
        check_outputs(module, probe_x, self.classes, self.model.loss, may_have_more=self._sequences or own_loss)
        untrainable = check_batch_norm(module, experiment.local, sizes)
        whole = self._algorithm(Population(sizes=sizes), names)
        shared = {name: tensor for name, tensor in self.model.initial.items() if name not in self.private}
        with _naming_features(self.preprocessing):
            execution = self.model.execution
        check_profile_layer(module, layer, self.private)
        elements = self.model.evaluator.profile_elements(probe_x[:1]) if layer is not None else 0
        profile_classes = select.profile_classes(self.classes, reference.y, sequences=self._sequences)
        profile_bytes = profile_classes.profile_bytes(elements) if profile_classes else ELEMENT_BYTES * elements
        self._check_data(whole, len(sizes), shared, elements * (profile_classes.count if profile_classes else 1))
        return TrainingPlan(
            algorithm=whole,
            rounds=experiment.rounds,
            seed=experiment.seed,
            metrics=self.model.metrics,
            message_bytes=experiment.fleet.message_bytes(sum(tensor.nbytes for tensor in shared.values())),
            profile_bytes=select.comparison.profile_bytes(profile_bytes),
            elements=elements,
            profile_classes=profile_classes,
            layout=StateLayout.of(module),
            sample_shape=tuple(probe_x.shape[1:]),
            outputs=output_count(self.classes, self.model.probe[1]),
            built_outputs=built_outputs(experiment, self.classes, self.model.probe[1]),
            classes=self.classes,
            private=self.private,
            evaluated_by=experiment.evaluation.by,
            accountant=self._open_accountant,
            parameters=sum(p.numel() for p in module.parameters()),
            predicted_rows=experiment.client.predicted_rows(open_rows),
            layer=layer,
            notice=self._notice(reference, execution.notice, untrainable),
        )

    def _algorithm(self, population: Population, names: Sequence[str]) -> Algorithm:
        """The algorithm for these clients."""
        whole, select = self.experiment.composed(), self.experiment.select
        whole = replace(whole, select=select.for_clients(names), aggregate=whole.aggregate.for_clients(names))
        whole.select.start(population)  # refuses what cannot be selected
        self._open_accountant(population)  # refuses a budget that does not last for one round
        check_cohort(whole, len(population))
        return whole

    def _check_data(self, whole: Algorithm, clients: int, shared: ModelState, profile_length: int) -> None:
        """Whether every part of the run can work with so many clients, and with a model of this size."""
        select = self.experiment.select
        sampled = select.sampling_probability(clients) is not None  # then all may come at once
        summary = DataSummary(
            clients=clients,
            largest_cohort=clients if sampled else select.cohort_size(clients),
            shared_model=shared,
            reference_clients=self.experiment.reference_clients,
            profile_length=profile_length,
        )
        for part in (*self.experiment.filters, *whole.parts):
            part.check_data(summary)

    def _notice(self, reference: Examples, execution: str, untrainable: str) -> str:
        """All that a user should know before the run."""
        experiment = self.experiment
        notices = (
            self.preprocessing.notice(),
            self.labels_notice,
            execution,
            untrainable,
            reference_evaluation_notice(experiment.evaluation.by, self.private),
            server_model_notice(experiment.collect, experiment.evaluation.by),
            probe_notice(probes=experiment.probes),
            one_class_notice(self.model.metrics[0], reference),
            experiment.client.notice(self.model.module),
            estimator_notice(self.estimator),
        )
        return "; ".join(filter(None, notices))

    def workflow(
        self,
        plan: TrainingPlan,
        *,
        sizes: NDArray[np.int64],
        local_test_sizes: NDArray[np.int64] | None,
        reference: Examples,
        test: Examples,
        store: ClientStore | None,
        names: Sequence[str],
        server_labelled: Examples | None = None,
        open_samples: Features | None = None,
        initial: ModelState | None = None,
        alone: bool = True,
    ) -> TrainingWorkflow:
        """The workflow of the run; `reference` and `test` are the server's samples, `names` the clients'. On those that
        are `server_labelled` the server trains itself, if its part of the algorithm does, and likewise on open ones.
        It may start from an `initial` model of its own. Where it is not `alone`, but a part of another workflow, it is
        not for it to evaluate its outcome, nor to assess clients.
        """
        held, tested = self.tensors(reference), self.tensors(test)
        taught = None if server_labelled is None else self.tensors(server_labelled)
        evaluator = build_evaluator(
            self.experiment,
            plan,
            self.model,
            server_labelled=taught,
            sizes=sizes,
            local_test_sizes=local_test_sizes,
            reference=held,
            test=tested,
            store=store,
        )
        final = build_final_evaluator(
            self.experiment,
            plan,
            self.model.evaluator,
            classes=self.classes,
            local_test_sizes=local_test_sizes,
            reference=held,
            test=tested,
        )
        assessor = (
            build_assessor(
                self.experiment, plan, self.model, self.preprocessing, sizes=sizes, names=names, reference=held
            )
            if alone
            else None
        )
        emulation = self._emulation(plan, held, sizes)
        teacher = None if taught is None else self._teacher(*taught)
        distiller = None if open_samples is None else self._distiller(open_samples)
        start, own_final = initial or self.model.initial, final if alone else None
        target = self._target_features(held[0]) if self.experiment.server.needs_target else None
        return TrainingWorkflow(plan, start, evaluator, emulation, own_final, assessor, teacher, distiller, target)

    def _teacher(self, x: Tensor, y: Tensor) -> Teacher:
        return Teacher(
            execution=self.model.execution,
            x=x,
            y=y,
            local=self.experiment.local,
            seed=self.experiment.seed,
            randomness=self.model.randomness,
        )

    def _distiller(self, shown: Features) -> Distiller:
        return Distiller(
            execution=self.model.execution,
            x=as_tensor(shown, self.model.probe[0].device),
            local=self.experiment.local,
            seed=self.experiment.seed,
            randomness=self.model.randomness,
        )

    def _target_features(self, x: Tensor) -> TargetFeatures:
        module = self.model.execution.module
        assert isinstance(module, ExtendedModel), "fade, which such a server needs, has a head of its own"
        return TargetFeatures(module=deepcopy(module), x=x)

    def tensors(self, examples: Examples) -> tuple[Tensor, Tensor]:
        device = self.model.probe[0].device
        return as_tensor(examples.x, device), as_tensor(examples.y, device)

    def _emulation(
        self, plan: TrainingPlan, held: tuple[Tensor, Tensor], sizes: NDArray[np.int64]
    ) -> EmulateUpdate | None:
        """A client with as many of the server's samples as others have on average, if the collection asks for it."""
        if not self.experiment.collect.emulates:
            return None
        x, y = (tensor[: max(1, round(sizes.mean()))] for tensor in held)
        if not len(x):
            raise ConfigError(
                'collect.parameter_source = "public" needs samples at the server, which has none; use "sum"'
            )
        return emulate_client(plan, self.model.site(single_client_data(x, y), None), len(x))


@contextmanager
def _naming_features(preprocessing: Preprocessing) -> Iterator[None]:
    """A model that does not take the samples may have been made for the columns, of which there are fewer."""
    try:
        yield
    except ModelError as error:
        columns, features = len(preprocessing.columns), preprocessing.features
        if columns == len(features) or "does not accept" not in str(error):
            raise
        made = f"{columns} columns of the data make {len(features)} features ({listed(features)})"
        raise ModelError(f"{error}; {made}") from error


def _module(
    experiment: Experiment, inputs: RunInputs, probe: tuple[Tensor, Tensor], classes: int | None
) -> tuple[nn.Module, OwnTraining | None]:
    """The model that was given, or the one that the settings name, and the training of its own that it needs."""
    x, y = probe
    if inputs.estimator is not None:
        return estimator_model(
            inputs.estimator,
            tuple(x.shape[1:]),
            output_count(classes, y),
            classification=classes is not None,
            seed=experiment.seed,
        )
    if inputs.module is not None:
        return inputs.module, inputs.own
    shape, outputs = tuple(x.shape[1:]), built_outputs(experiment, classes, y)
    built = build_model(experiment.model, shape, outputs, experiment.seed)
    private = experiment.ensemble is not None and experiment.ensemble.private
    return nn.Sequential(InputMask(shape), built) if private else built, inputs.own


def output_count(classes: int | None, y: Tensor) -> int:
    """How many classes there are, or values of a regression."""
    return classes if classes is not None else y.shape[1]


def built_outputs(experiment: Experiment, classes: int | None, y: Tensor) -> int:
    """How many outputs a model by name has: one for two classes if the loss wants that."""
    outputs = output_count(classes, y)
    return 1 if experiment.loss == "bce" and outputs == 2 else outputs


def _loss(
    experiment: Experiment,
    classes: int | None,
    given: Callable[[Tensor, Tensor], Tensor] | None,
    module: nn.Module,
    x: Tensor,
) -> Loss:
    """The loss that was given, or the one that the settings name for this kind of task."""
    if given is not None:
        return as_loss(given)
    if experiment.loss is None and classes == 2 and output_width(module, x) == 1:
        return as_loss("bce")
    default = "mse" if classes is None else "cross-entropy"
    if experiment.loss is not None and (experiment.loss == "mse") != (default == "mse"):
        kind = "regression" if classes is None else "classification"
        raise ConfigError(f"loss: {experiment.loss!r} cannot be used for {kind}; omit it or use {default!r}")
    if experiment.loss == "bce" and classes != 2:
        raise ConfigError(f"loss: 'bce' is for two classes, but the data has {classes}; use 'cross-entropy'")
    return as_loss(experiment.loss or default)


def _metrics(
    experiment: Experiment, inputs: RunInputs, classes: int | None, preprocessing: Preprocessing
) -> tuple[Metric, ...]:
    """What models are scored by, the deciding metric first; in the units of the data."""
    at_clients = bool(experiment.reference_clients)
    chosen = chosen_metrics(
        experiment.metric,
        experiment.metrics,
        inputs.metrics,
        classes,
        by_clients=at_clients or experiment.evaluation.by != "reference",
        reference_at_clients=at_clients,
    )
    if not preprocessing.targets:
        return chosen
    shift, width = zip(*((target.shift, target.width) for target in preprocessing.targets), strict=True)
    return tuple(in_original_units(metric, shift, width) for metric in chosen)


def set_up_device(engine: EngineSettings) -> torch.device:
    """Where to compute, after torch was told how; to be called before anything is computed."""
    torch.set_num_threads(engine.threads or 1)  # torch's sums depend on it: never the machine's choice
    allow_tf32(engine.precision)
    asked, present = engine.device, torch.cuda.is_available()
    if asked == "cuda" and not present:
        raise ConfigError("engine.device: torch finds no CUDA device; use 'cpu' or 'auto'")
    return torch.device("cuda" if present and asked != "cpu" else "cpu")
