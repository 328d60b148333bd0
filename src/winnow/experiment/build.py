"""From an experiment's settings to the objects that run it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from winnow.core import ConfigError, Population, RunError, Snapshot, VirtualClock
from winnow.data import Conditions, DataSet, DataSettings, Examples, Federated, federate, load
from winnow.experiment.answering import handlers_here, open_pool
from winnow.experiment.checks import check_batches, check_outputs, fingerprint
from winnow.experiment.schema import Experiment
from winnow.fleet import Fleet
from winnow.learn.examine import Examiner
from winnow.learn.handlers import LearningSite
from winnow.learn.judge import AtClients, AtServer, Judge
from winnow.learn.metrics import metric_name
from winnow.learn.models import build_model
from winnow.learn.stack import Force, Loss, Pace, TensorData, as_loss, as_tensor, choose_execution, model_state
from winnow.learn.training import Plan, Training
from winnow.simulate import InProcess, WorkerPool

SAMPLE = 4
"""Samples with which a model's execution is tried out."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a run before it starts, for progress lines and results."""

    metric: str
    parameters: int
    message_bytes: int
    execution: str
    notice: str
    layer: str | None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run that is ready to start. The conditions are for the recorder; nothing else here can reach them."""

    experiment: Experiment
    """The settings with what was chosen for this machine written in."""
    training: Training
    federation: InProcess[LearningSite]
    module: nn.Module
    conditions: Conditions
    facts: Facts
    fingerprint: str
    """Tells whether a run that is resumed has the data, the model and the loss it began with."""
    pool: WorkerPool | None
    """The workers, if this process has any; they are dismissed on leaving the context."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pool is not None:
            self.pool.close()


def prepare(
    experiment: Experiment,
    *,
    data_directory: Path | None = None,
    dataset: DataSet | None = None,
    module: nn.Module | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    snapshot: Snapshot | None = None,
    begun_with: str = "",
) -> Prepared:
    """Load and spread the data, build the model, and bind them to the algorithm.

    `dataset`, `module` and `loss` replace what the settings name; a snapshot continues an earlier run, which must have
    `begun_with` the same inputs.
    """
    torch.set_num_threads(experiment.engine.threads or 1)  # torch's sums depend on it: never the machine's choice
    dataset = dataset or load(experiment.data, data_directory)
    spread = federate(dataset, _held_out(experiment), experiment.seed)
    module = module or _build(experiment, dataset)
    chosen_loss = _loss(experiment, dataset, loss)
    mark = fingerprint(spread, model_state(module), chosen_loss)
    if begun_with not in ("", mark):
        raise RunError("the run was begun with other data, another model or another loss; use another --out")
    return _bind(experiment, dataset, spread, module, chosen_loss, snapshot, mark)


def _bind(
    experiment: Experiment,
    dataset: DataSet,
    spread: Federated,
    module: nn.Module,
    loss: Loss,
    snapshot: Snapshot | None,
    mark: str,
) -> Prepared:
    device = _device(experiment.engine.device)
    module = module.to(device)
    data, algorithm = TensorData.from_client_data(spread.clients, device), experiment.composed()
    initial = model_state(module)
    some_x, some_y = data.x[:SAMPLE], data.y[:SAMPLE]
    check_outputs(module, some_x, dataset, loss)
    pace = Pace(clock=time.perf_counter, batch_size=algorithm.local.batch_size)
    asked = experiment.engine
    execution = choose_execution(module, some_x, some_y, loss, asked.execution, asked.threads, pace)
    notices = [execution.notice, check_batches(module, algorithm.local, spread.clients.sizes)]
    layer = algorithm.select.layer_for(module, some_x)
    examiner = Examiner(module, loss, layer, execution)
    population = Population(sizes=spread.clients.sizes)
    algorithm.select.start(population)  # what cannot be selected is said now, before anything is written
    message_bytes = experiment.fleet.message_bytes(sum(t.nbytes for t in initial.values()))
    profile_bytes = examiner.profile_bytes(data.x[:1]) if layer is not None else 0
    metric = metric_name(experiment.metric, dataset.classes, pooled=bool(experiment.reference_clients))
    plan = Plan(
        algorithm=algorithm,
        rounds=experiment.rounds,
        seed=experiment.seed,
        metric=metric,
        message_bytes=message_bytes,
        profile_bytes=profile_bytes,
    )
    judge = Judge(
        _at_clients(experiment.reference_clients, population, plan)
        if experiment.reference_clients
        else AtServer("reference", examiner, _tensors(spread.reference, device), metric),
        AtServer("test", examiner, _tensors(spread.test, device), metric) if len(spread.test) else None,
    )
    training = Training(plan, initial, judge)
    if snapshot is not None:
        training.restore(_on(device, snapshot))
    fleet = Fleet.draw(experiment.fleet, len(population), experiment.seed, sample_bits=8 * data.x[0].nbytes)
    engine = experiment.engine.model_copy(update={"execution": execution.name, "device": device.type})
    site = LearningSite(data=data, execution=execution, examiner=examiner, initial=initial)
    pool = open_pool(engine, site, partial(_site, data, module, loss, layer, engine.execution), population.sizes)
    federation = InProcess(
        site=site,
        handlers=handlers_here(engine, population.sizes) if pool is None else pool.handlers(),
        population=population,
        fleet=fleet,
        clock=VirtualClock(snapshot.values["now"] if snapshot else 0.0),
    )
    facts = Facts(
        metric=metric,
        parameters=sum(p.numel() for p in module.parameters()),
        message_bytes=message_bytes,
        execution=execution.name,
        notice="; ".join(filter(None, notices)),
        layer=layer,
    )
    return Prepared(
        experiment=experiment.model_copy(update={"engine": engine}),
        training=training,
        federation=federation,
        module=module,
        conditions=spread.conditions,
        facts=facts,
        fingerprint=mark,
        pool=pool,
    )


def _site(data: TensorData, module: nn.Module, loss: Loss, layer: str | None, execution: Force) -> LearningSite:
    """The site made anew, for a worker that cannot share this process's."""
    chosen = choose_execution(module, data.x[:SAMPLE], data.y[:SAMPLE], loss, execution)
    examiner = Examiner(module, loss, layer, chosen)
    return LearningSite(data=data, execution=chosen, examiner=examiner, initial=model_state(module))


def _held_out(experiment: Experiment) -> DataSettings:
    """Where clients hold the reference set, no rows are set aside for one."""
    return experiment.data.model_copy(update={"reference": 0}) if experiment.reference_clients else experiment.data


def _build(experiment: Experiment, dataset: DataSet) -> nn.Module:
    outputs = dataset.classes if dataset.classes is not None else dataset.y.shape[1]
    return build_model(experiment.model, dataset.x.shape[1:], outputs, experiment.seed)


def _loss(experiment: Experiment, dataset: DataSet, given: Callable[[Tensor, Tensor], Tensor] | None) -> Loss:
    if given is not None:
        return as_loss(given)
    default = "mse" if dataset.classes is None else "cross-entropy"
    if experiment.loss is not None and (experiment.loss == "mse") != (default == "mse"):
        kind = "a regression" if dataset.classes is None else "a classification"
        raise ConfigError(f"loss: {experiment.loss!r} does not fit {kind}; leave it out or write {default!r}")
    return as_loss(experiment.loss or default)


def _at_clients(holders: Sequence[int], population: Population, plan: Plan) -> AtClients:
    if max(holders) >= len(population):
        raise ConfigError(f"reference_clients: there is no client {max(holders)}; the last is {len(population) - 1}")
    return AtClients(
        {k: int(population.sizes[k]) for k in holders},
        metric=plan.metric,
        message_bytes=plan.message_bytes,
        profile_bytes=plan.profile_bytes,
    )


def _on(device: torch.device, snapshot: Snapshot) -> Snapshot:
    """The snapshot with its tensors where the run computes."""
    arrays = {name: a.to(device) if isinstance(a, Tensor) else a for name, a in snapshot.arrays.items()}
    return Snapshot(arrays=arrays, values=snapshot.values)


def _tensors(examples: Examples, device: torch.device) -> tuple[Tensor, Tensor]:
    return as_tensor(examples.x, device), as_tensor(examples.y, device)


def _device(asked: str) -> torch.device:
    present = torch.cuda.is_available()
    if asked == "cuda" and not present:
        raise ConfigError("engine.device: torch sees no CUDA device here; write 'cpu' or 'auto'")
    return torch.device("cuda" if present and asked != "cpu" else "cpu")
