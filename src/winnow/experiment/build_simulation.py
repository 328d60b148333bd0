"""From an experiment's settings to the objects that simulate it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from winnow.config.compatibility_checks import fingerprint
from winnow.config.label_checks import method_name
from winnow.config.schema import EngineSettings, Experiment
from winnow.core import Federation, Population, RunError, Snapshot, VirtualClock, stream
from winnow.data import (
    ClientsOnDemand,
    DataConditions,
    DataSettings,
    FederatedData,
    NaturalPartition,
    Preprocessing,
    federate,
)
from winnow.data.hidden_labels import with_labelled_rows
from winnow.data.known_sets import KNOWN_SETS
from winnow.data.preprocessing import Label
from winnow.data.types import ClientNames
from winnow.experiment.build_ensemble import simulated_ensemble
from winnow.experiment.build_training_workflow import (
    DEFAULT_INPUTS,
    PROBE_SAMPLES,
    RunInputs,
    TrainingSetup,
    set_up_device,
    set_up_training,
)
from winnow.experiment.encode_data import SampleEncoder, encode_federated
from winnow.experiment.ensemble_setup import second_stage
from winnow.experiment.load_data import load_data
from winnow.experiment.model_card_data import DataSizes
from winnow.experiment.open_worker_pool import local_handlers, open_worker_pool
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
    ClientSamples,
    LazyTensorData,
    ModelState,
    TensorData,
    as_tensor,
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
    dataset = inputs.dataset or load_data(experiment.data, inputs.data_directory)
    federated = federate(
        dataset, data_settings_for(experiment), experiment.seed, in_place=dataset is not inputs.dataset
    )
    preprocessing, device = federated.preprocessing, set_up_device(experiment.engine)
    if experiment.encode is not None:
        encoder = SampleEncoder(experiment.encode, preprocessing, device, features, inputs.on_encoded)
        federated = encode_federated(federated, encoder)
    left_out = ""
    if not experiment.client.uses_unlabelled:
        federated, left_out = with_labelled_rows(federated, method_name(experiment.client))
    data, local_test = _client_tensors(federated, device)
    setup = set_up_training(
        experiment,
        inputs,
        data.first_samples(PROBE_SAMPLES),
        federated.clients.classes,
        stream,
        preprocessing=federated.preprocessing,
        selection_is_public=False,
        labels_notice=left_out,
    )
    found = _checked_fingerprint(federated, setup, inputs.metrics, expected_fingerprint)
    sizes, store = federated.clients.sizes, ClientStore(len(federated.clients))
    shown = None if federated.open is None else as_tensor(federated.open, data.device)
    ensemble = None if experiment.ensemble is None else simulated_ensemble(setup, federated, inputs)
    training: TrainingWorkflow | EnsembleWorkflow
    if ensemble is not None:
        plan, training = ensemble.plan, ensemble.workflow()
    else:
        plan = setup.plan(sizes, federated.reference, federated.client_names, 0 if shown is None else len(shown))
        training = setup.workflow(
            plan,
            sizes=sizes,
            local_test_sizes=None if federated.local_test is None else federated.local_test.sizes,
            reference=federated.reference,
            test=federated.test,
            store=store,
            names=federated.client_names,
            server_labelled=federated.server_labelled,
            open_samples=federated.open,
        )
    site = setup.model.site(data, local_test, shown)
    if snapshot is not None:
        _restore(_to_device(data.device, snapshot), training, store)
    experiment = experiment.model_copy(update={"engine": _chosen_engine(experiment, site, len(sizes))})
    rebuild = partial(setup.model.on_one_core().site, data, local_test, shown)
    pool = open_worker_pool(experiment.engine, site, rebuild, sizes)
    second = second_stage(setup, inputs)
    simulation = _simulation(experiment, site, pool, federated, store, training.now, second)
    return PreparedRun(
        experiment=experiment,
        training=training,
        federation=FilteredFederation(simulation, experiment.filters) if experiment.filters else simulation,
        simulation=simulation,
        store=store,
        module=setup.model.module if ensemble is None else ensemble.made.net,
        model_settings=experiment.model if ensemble is None else ensemble.made.model_settings,
        fitted_estimator=setup.fitted_estimator,
        conditions=federated.conditions,
        preprocessing=preprocessing,
        client_names=federated.client_names,
        class_labels=federated.preprocessing.labels(federated.clients.classes or 0),
        sizes=DataSizes(
            clients=len(sizes),
            samples=int(sizes.sum()),
            reference=len(federated.reference),
            test=len(federated.test),
        ),
        plan=plan,
        fingerprint=found,
        clock=clock or _clock(experiment, federated),
        score_pseudo_labels=partial(
            score_pseudo_labels, site, federated.hidden_labels, experiment.client.label_threshold
        ),
        write_reference=partial(
            write_reference_file, experiment=experiment, model=setup.model, training=training, private=plan.private
        ),
        pool=pool,
    )


def _clock(experiment: Experiment, federated: FederatedData) -> RunClock:
    """Devices are simulated where a fleet is described or clients are made up. The user's data that come with their
    clients (owners, a file for each) belong to somebody real, of whose machines nothing is known.
    """
    data = experiment.data
    given = isinstance(federated.clients, ClientsOnDemand) or isinstance(data.partition, NaturalPartition)
    own = data.path is not None or data.name not in KNOWN_SETS
    return "none" if given and own and "fleet" not in experiment.model_fields_set else "device"


def data_settings_for(experiment: Experiment) -> DataSettings:
    """Where clients hold the reference set, no rows are set aside for one."""
    return experiment.data.model_copy(update={"reference": 0}) if experiment.reference_clients else experiment.data


def _client_tensors(federated: FederatedData, device: torch.device) -> tuple[ClientSamples, TensorData | None]:
    """The clients' samples, and their local tests on the same tensors."""
    clients, local_test = federated.clients, federated.local_test
    if isinstance(clients, ClientsOnDemand):
        return LazyTensorData(loader=clients, device=device), None
    data = TensorData.from_client_data(clients, device)
    if local_test is None:
        return data, None
    return data, TensorData(x=data.x, y=data.y, rows=local_test.rows, offsets=local_test.offsets)


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
