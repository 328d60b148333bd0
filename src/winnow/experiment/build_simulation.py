"""From an experiment's settings to the objects that simulate it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from winnow.config.compatibility_checks import fingerprint
from winnow.config.schema import EngineSettings, Experiment
from winnow.core import Federation, Population, RunError, Snapshot, VirtualClock, stream
from winnow.data import (
    ClientsOnDemand,
    DataConditions,
    FederatedData,
    NaturalPartition,
    Preprocessing,
)
from winnow.data.known_sets import KNOWN_SETS
from winnow.data.preprocessing import Affine, Label
from winnow.data.types import ClientNames
from winnow.experiment.build_ensemble import simulated_ensemble
from winnow.experiment.build_training_workflow import (
    DEFAULT_INPUTS,
    PROBE_SAMPLES,
    RunInputs,
    TrainingSetup,
    set_up_training,
)
from winnow.experiment.ensemble_setup import second_stage
from winnow.experiment.model_card_data import DataSizes
from winnow.experiment.open_worker_pool import local_handlers, open_worker_pool
from winnow.experiment.prepare_clients import prepare_clients
from winnow.experiment.pseudo_label_scores import score_pseudo_labels
from winnow.experiment.reference_file import write_reference_file
from winnow.learn.client_store import ClientStore
from winnow.learn.ensemble.ensemble_workflow import EnsembleWorkflow
from winnow.learn.ensemble.leaf_outputs import SecondStageSites
from winnow.learn.handlers import HANDLERS
from winnow.learn.learning_site import LearningSite
from winnow.learn.metrics import Metric
from winnow.learn.models import ModelSettings
from winnow.learn.run_plan import TrainingPlan
from winnow.learn.stack import (
    ModelState,
    clients_that_fit,
    free_bytes,
)
from winnow.learn.training_workflow import TrainingWorkflow
from winnow.learn.update_filters import FilteredFederation, site_filters
from winnow.runs import RunClock
from winnow.runs.evaluation_record import PseudoLabelScores
from winnow.simulate import SimulatedFederation, WorkerPool

CLIENT_STATE_PREFIX = "clients/"
"""Under this name a checkpoint holds the clients' states."""


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that is ready to start. The conditions are for the recorder; nothing else here can reach them."""

    experiment: Experiment
    """The settings with what was chosen for this machine written in."""
    training: TrainingWorkflow | EnsembleWorkflow
    federation: Federation
    """The clients as the workflow reaches them: through the filters, if there are any."""
    simulation: SimulatedFederation[LearningSite]
    """The clients themselves, with their data."""
    store: ClientStore
    """What each client keeps."""
    module: nn.Module
    fitted_estimator: Callable[[], Any]
    """The scikit-learn estimator with the module's parameters; None where the model is none."""
    conditions: DataConditions
    preprocessing: Preprocessing
    feature_scaling: Affine | None
    """By which the server standardised an encoder's features, if it did."""
    client_names: ClientNames
    class_labels: Sequence[Label]
    """What classes are called, in the order of their numbers; none in a regression."""
    sizes: DataSizes
    plan: TrainingPlan
    fingerprint: str
    """Tells whether a resumed run has the data, the model and the loss that it started with."""
    clock: RunClock
    """Whose time and energy the run tells."""
    score_pseudo_labels: Callable[[ModelState], PseudoLabelScores | None]
    """What a model makes of samples whose labels are hidden from clients, for the recorder."""
    write_reference: Callable[[Path], Path | None]
    """Writes into a folder what owners can compare their data with."""
    model_settings: ModelSettings
    """What builds the module."""
    pool: WorkerPool | None
    """The workers, if this process has any; leaving the context ends them."""

    def snapshot(self) -> Snapshot:
        """The workflow's state and the clients': all that it takes to continue."""
        own, kept = self.training.snapshot(), self.store.state()
        arrays = {**own.arrays, **{f"{CLIENT_STATE_PREFIX}{name}": array for name, array in kept.items()}}
        return Snapshot(arrays=arrays, values=own.values)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pool is not None:
            self.pool.close()


def prepare_run(
    experiment: Experiment,
    inputs: RunInputs = DEFAULT_INPUTS,
    *,
    snapshot: Snapshot | None = None,
    expected_fingerprint: str = "",
    clock: RunClock | None = None,
    features: Path | None = None,
) -> PreparedRun:
    """Load the data and split them over the clients, build the model, and bind them to the algorithm.

    A snapshot continues an earlier run, which had this `clock`, and whose inputs had the `expected_fingerprint`. What a
    frozen encoder makes of the samples is kept in the folder `features`.
    """
    clients = prepare_clients(experiment, inputs, features)
    federated, sizes = clients.federated, clients.federated.clients.sizes
    setup = set_up_training(
        experiment,
        inputs,
        clients.samples.first_samples(PROBE_SAMPLES),
        federated.clients.classes,
        stream,
        preprocessing=federated.preprocessing,
        selection_is_public=False,
        labels_notice=clients.labels_notice,
    )
    found = _checked_fingerprint(federated, setup, inputs.metrics, expected_fingerprint)
    store = ClientStore(len(sizes))
    prepare = _plain_training if experiment.ensemble is None else _ensemble_training
    plan, training, module, model_settings = prepare(setup, federated, inputs, store)
    held = clients.samples, clients.local_test, clients.open_samples
    site = setup.model.site(*held)
    if snapshot is not None:
        _restore(_to_device(clients.samples.device, snapshot), training, store)
    experiment = experiment.model_copy(update={"engine": _chosen_engine(experiment, site, len(sizes))})
    clock = clock or _clock(experiment, federated)
    second = second_stage(setup, inputs)
    with ExitStack() as on_failure:
        pool = open_worker_pool(experiment.engine, site, partial(setup.model.on_one_core().site, *held), sizes)
        if pool is not None:
            on_failure.callback(pool.close)
        simulation = _simulation(experiment, site, pool, federated, store, training.now, second)
        federation = FilteredFederation(simulation, experiment.filters) if experiment.filters else simulation
        on_failure.pop_all()
    return PreparedRun(
        experiment=experiment,
        training=training,
        federation=federation,
        simulation=simulation,
        store=store,
        module=module,
        model_settings=model_settings,
        fitted_estimator=setup.fitted_estimator,
        conditions=federated.conditions,
        preprocessing=clients.preprocessing,
        feature_scaling=federated.feature_scaling,
        client_names=federated.client_names,
        class_labels=federated.preprocessing.labels(federated.clients.classes or 0),
        sizes=clients.sizes,
        plan=plan,
        fingerprint=found,
        clock=clock,
        score_pseudo_labels=partial(
            score_pseudo_labels, site, federated.hidden_labels, experiment.client.label_threshold
        ),
        write_reference=partial(
            write_reference_file, experiment=experiment, model=setup.model, training=training, private=plan.private
        ),
        pool=pool,
    )


class _PreparedTraining(NamedTuple):
    """A workflow, and the module whose states are its models."""

    plan: TrainingPlan
    workflow: TrainingWorkflow | EnsembleWorkflow
    module: nn.Module
    model_settings: ModelSettings


def _plain_training(
    setup: TrainingSetup, federated: FederatedData, inputs: RunInputs, store: ClientStore
) -> _PreparedTraining:
    sizes, shown = federated.clients.sizes, federated.open
    plan = setup.plan(sizes, federated.reference, federated.client_names, 0 if shown is None else len(shown))
    workflow = setup.workflow(
        plan,
        sizes=sizes,
        local_test_sizes=None if federated.local_test is None else federated.local_test.sizes,
        reference=federated.reference,
        test=federated.test,
        store=store,
        names=federated.client_names,
        server_labelled=federated.server_labelled,
        open_samples=shown,
    )
    return _PreparedTraining(plan, workflow, setup.model.module, setup.experiment.model)


def _ensemble_training(
    setup: TrainingSetup, federated: FederatedData, inputs: RunInputs, store: ClientStore
) -> _PreparedTraining:
    built = simulated_ensemble(setup, federated, inputs)
    return _PreparedTraining(built.plan, built.workflow(), built.made.net, built.made.model_settings)


def _clock(experiment: Experiment, federated: FederatedData) -> RunClock:
    """Devices are simulated where a fleet is described or clients are made up. The user's data that come with their
    clients (owners, a file for each) belong to somebody real, of whose machines nothing is known.
    """
    data = experiment.data
    given = isinstance(federated.clients, ClientsOnDemand) or isinstance(data.partition, NaturalPartition)
    own = data.path is not None or data.name not in KNOWN_SETS
    return "none" if given and own and "fleet" not in experiment.model_fields_set else "device"


def _checked_fingerprint(
    federated: FederatedData, setup: TrainingSetup, own_metrics: Sequence[Metric], expected: str
) -> str:
    found = fingerprint(federated, setup.model.initial, setup.model.loss, setup.model.own, own_metrics)
    if expected not in ("", found):
        raise RunError(
            "the run was started with different data, a different model, loss or training step, or another metric of "
            "your own; choose another --out"
        )
    return found


def _restore(snapshot: Snapshot, training: TrainingWorkflow | EnsembleWorkflow, store: ClientStore) -> None:
    training.restore(snapshot)
    store.restore(
        {
            name.removeprefix(CLIENT_STATE_PREFIX): array
            for name, array in snapshot.arrays.items()
            if name.startswith(CLIENT_STATE_PREFIX)
        }
    )


def _to_device(device: torch.device, snapshot: Snapshot) -> Snapshot:
    """The snapshot with its tensors where the run computes."""
    arrays = {name: a.to(device) if isinstance(a, Tensor) else a for name, a in snapshot.arrays.items()}
    return Snapshot(arrays=arrays, values=snapshot.values)


def _simulation(
    experiment: Experiment,
    site: LearningSite,
    pool: WorkerPool | None,
    federated: FederatedData,
    store: ClientStore,
    now: float,
    second: SecondStageSites | None,
) -> SimulatedFederation[LearningSite]:
    sizes = federated.clients.sizes
    besides = experiment.collect.site_extension(stream).around(experiment.select.comparison.site_extension(stream))
    handlers = local_handlers(experiment.engine, sizes) if pool is None else pool.handlers()
    handlers = handlers if second is None else second.handlers(handlers, HANDLERS)
    return SimulatedFederation(
        site=site,
        handlers={**handlers, **besides.handlers},
        filters=(*besides.filters, *site_filters(experiment.filters, stream)),
        population=Population(sizes=sizes),
        fleet=experiment.fleet.draw(
            len(sizes),
            experiment.seed,
            sample_bits=8 * site.data.first_samples(1)[0].nbytes,
            corrupted=federated.conditions.corrupted,
        ),
        clock=VirtualClock(now),
        store=store,
    )


def _chosen_engine(experiment: Experiment, site: LearningSite, clients: int) -> EngineSettings:
    """The settings, with what was chosen for this machine written in."""
    chunk = _chunk(experiment, site, clients)
    chosen = {"execution": site.execution.name, "device": site.data.device.type, "chunk": chunk}
    return experiment.engine.model_copy(update=chosen)


def _chunk(experiment: Experiment, site: LearningSite, clients: int) -> int | None:
    """The clients to train together: on a CUDA device no more than its memory has room for."""
    if experiment.engine.chunk is not None or site.data.device.type == "cpu":
        return experiment.engine.chunk
    x, y = site.data.first_samples(PROBE_SAMPLES)
    fit = clients_that_fit(site.execution, x, y, experiment.local, free_bytes(site.data.device))
    training = experiment.schedule.together(experiment.select.cohort_size(clients), clients)
    everybody = experiment.evaluation.tune_epochs or experiment.select.trains_all_first
    together = clients if everybody else training
    return fit if fit < together else None
