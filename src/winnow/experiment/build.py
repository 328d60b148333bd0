"""From an experiment's settings to the objects that simulate it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from winnow.config.compatibility_checks import fingerprint
from winnow.config.schema import EngineSettings, Experiment
from winnow.core import Federation, Population, RunError, Snapshot, VirtualClock
from winnow.data import (
    ClientsOnDemand,
    DataConditions,
    DataSet,
    DataSettings,
    FederatedData,
    OnDemand,
    federate,
    load,
)
from winnow.experiment.evaluators import build_evaluator, to_tensors
from winnow.experiment.executors import local_handlers, open_worker_pool
from winnow.experiment.setup import PROBE_SAMPLES, RunInfo, TrainingSetup, device_for, loss_for, module_for
from winnow.learn.client_store import ClientStore
from winnow.learn.handlers import LearningSite
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.stack import (
    ClientSamples,
    LazyTensorData,
    Loss,
    TensorData,
    allow_tf32,
    choose_execution,
    clients_that_fit,
    free_bytes,
    model_state,
)
from winnow.learn.training import TrainingWorkflow
from winnow.learn.update_filters import FilteredFederation, site_filters
from winnow.privacy.dp.noise_source import simulated as simulated_noise
from winnow.simulate import SimulatedFederation, WorkerPool

CLIENT_STATE_PREFIX = "clients/"
"""Under this name a checkpoint holds what clients keep."""


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that is ready to start. The conditions are for the recorder; nothing else here can reach them."""

    experiment: Experiment
    """The settings with what was chosen for this machine written in."""
    training: TrainingWorkflow
    federation: Federation
    """The clients as the workflow reaches them: through the filters, if there are any."""
    simulated: SimulatedFederation[LearningSite]
    """The clients themselves, with their data and what they keep."""
    module: nn.Module
    conditions: DataConditions
    facts: RunInfo
    fingerprint: str
    """Tells whether a run that is resumed has the data, the model and the loss it began with."""
    pool: WorkerPool | None
    """The workers, if this process has any; they are dismissed on leaving the context."""

    def snapshot(self) -> Snapshot:
        """The workflow's state and what clients keep: all that it takes to continue."""
        own, kept = self.training.snapshot(), self.simulated.store.state()
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
    *,
    data_directory: Path | None = None,
    dataset: DataSet | OnDemand | None = None,
    module: nn.Module | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    snapshot: Snapshot | None = None,
    begun_with: str = "",
) -> PreparedRun:
    """Load and spread the data, build the model, and bind them to the algorithm.

    `dataset`, `module` and `loss` replace what the settings name; a snapshot continues an earlier run, which must have
    `begun_with` the same inputs.
    """
    torch.set_num_threads(experiment.engine.threads or 1)  # torch's sums depend on it: never the machine's choice
    allow_tf32(experiment.engine.precision)
    data = dataset or load(experiment.data, data_directory)
    spread = federate(data, data_settings_for(experiment), experiment.seed, in_place=data is not dataset)
    world = _RunAssembly(
        experiment=experiment,
        spread=spread,
        module=(module or module_for(experiment, spread.reference, spread.clients.classes)).to(
            device_for(experiment.engine.device)
        ),
        loss=loss_for(experiment, spread.clients.classes, loss),
    )
    if begun_with not in ("", world.fingerprint):
        raise RunError("the run was begun with other data, another model or another loss; use another --out")
    return _bind(world, snapshot)


def data_settings_for(experiment: Experiment) -> DataSettings:
    """Where clients hold the reference set, no rows are set aside for one."""
    return experiment.data.model_copy(update={"reference": 0}) if experiment.reference_clients else experiment.data


@dataclass(frozen=True, kw_only=True)
class _RunAssembly:
    """What a run is about: data spread over clients, a model, a loss."""

    experiment: Experiment
    spread: FederatedData
    module: nn.Module
    loss: Loss

    @cached_property
    def device(self) -> torch.device:
        return device_for(self.experiment.engine.device)

    @cached_property
    def data(self) -> ClientSamples:
        clients = self.spread.clients
        if isinstance(clients, ClientsOnDemand):
            return LazyTensorData(loader=clients, device=self.device)
        return TensorData.from_client_data(clients, self.device)

    @cached_property
    def local_test(self) -> TensorData | None:
        """The clients' own tests, on the same tensors as their other samples."""
        own = self.spread.local_test
        if own is None or not isinstance(self.data, TensorData):
            return None
        return TensorData(x=self.data.x, y=self.data.y, rows=own.rows, offsets=own.offsets)

    @cached_property
    def population(self) -> Population:
        return Population(sizes=self.spread.clients.sizes)

    @cached_property
    def subject(self) -> TrainingSetup:
        return TrainingSetup(
            experiment=self.experiment,
            module=self.module,
            loss=self.loss,
            some=self.data.first_samples(PROBE_SAMPLES),
            classes=self.spread.clients.classes,
        )

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.spread, model_state(self.module), self.loss)


def _bind(world: _RunAssembly, snapshot: Snapshot | None) -> PreparedRun:
    experiment, population, subject = world.experiment, world.population, world.subject
    facts = subject.facts(population.sizes)
    site = subject.site(world.data, world.local_test)
    store = ClientStore(len(population))
    training = _training(world, facts, store)
    if snapshot is not None:
        training.restore(_to_device(world.device, snapshot))
    chosen = {"execution": facts.execution, "device": world.device.type, "chunk": _chunk(world, site)}
    engine = experiment.engine.model_copy(update=chosen)
    remake = partial(_rebuild_site, world.data, world.local_test, world.module, world.loss, facts.layer, engine)
    pool = open_worker_pool(engine, site, remake, population.sizes)
    bits = 8 * world.data.first_samples(1)[0].nbytes
    besides = experiment.collect.at_sites().around(experiment.select.comparison.at_sites())
    handlers = local_handlers(engine, population.sizes) if pool is None else pool.handlers()
    simulated = SimulatedFederation(
        site=site,
        handlers={**handlers, **besides.handlers},
        filters=(simulated_noise, *besides.filters, *site_filters(experiment.filters)),
        population=population,
        fleet=experiment.fleet.draw(
            len(population), experiment.seed, sample_bits=bits, corrupted=world.spread.conditions.corrupted
        ),
        clock=VirtualClock(snapshot.values["now"] if snapshot else 0.0),
        store=store,
    )
    if snapshot is not None:
        kept = _to_device(world.device, snapshot).arrays
        simulated.store.restore(
            {n.removeprefix(CLIENT_STATE_PREFIX): a for n, a in kept.items() if n.startswith(CLIENT_STATE_PREFIX)}
        )
    return PreparedRun(
        experiment=experiment.model_copy(update={"engine": engine}),
        training=training,
        federation=FilteredFederation(simulated, experiment.filters) if experiment.filters else simulated,
        simulated=simulated,
        module=world.module,
        conditions=world.spread.conditions,
        facts=facts,
        fingerprint=world.fingerprint,
        pool=pool,
    )


def _training(world: _RunAssembly, facts: RunInfo, store: ClientStore) -> TrainingWorkflow:
    """The workflow, and who judges its models."""
    plan, spread = world.subject.plan(facts), world.spread
    judge = build_evaluator(
        world.experiment,
        plan,
        world.subject.evaluator,
        sizes=world.population.sizes,
        local_test_sizes=None if spread.local_test is None else spread.local_test.sizes,
        reference=spread.reference,
        test=spread.test,
        device=world.device,
        store=store,
    )
    held = to_tensors(spread.reference, world.device)
    emulate = world.subject.emulation(plan, held, world.population.sizes)
    return TrainingWorkflow(plan, world.subject.initial, judge, emulate)


def _chunk(world: _RunAssembly, site: LearningSite) -> int | None:
    """The clients to train together: on a CUDA device no more than its memory has room for."""
    experiment = world.experiment
    if experiment.engine.chunk is not None or world.device.type == "cpu":
        return experiment.engine.chunk
    x, y = world.data.first_samples(PROBE_SAMPLES)
    fit = clients_that_fit(site.execution, x, y, experiment.local, free_bytes(world.device))
    clients = len(world.population)
    training = experiment.schedule.together(experiment.select.cohort_size(clients), clients)
    together = clients if experiment.evaluation.tune_epochs else training
    return fit if fit < together else None


def _rebuild_site(
    data: ClientSamples,
    local_test: TensorData | None,
    module: nn.Module,
    loss: Loss,
    layer: str | None,
    engine: EngineSettings,
) -> LearningSite:
    """The site made anew, for a worker that cannot share this process's and has one core."""
    chosen = choose_execution(
        module, *data.first_samples(PROBE_SAMPLES), loss, engine.execution, threads=1, precision=engine.precision
    )
    evaluator = ModelEvaluator(module, loss, layer, chosen)
    initial = model_state(module)
    return LearningSite(data=data, execution=chosen, evaluator=evaluator, initial=initial, local_test=local_test)


def _to_device(device: torch.device, snapshot: Snapshot) -> Snapshot:
    """The snapshot with its tensors where the run computes."""
    arrays = {name: a.to(device) if isinstance(a, Tensor) else a for name, a in snapshot.arrays.items()}
    return Snapshot(arrays=arrays, values=snapshot.values)
