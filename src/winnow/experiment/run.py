"""Runs an experiment to its end, in memory or in a folder from which it can be resumed."""

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from winnow.config.resolve import experiment_from_table, to_toml
from winnow.config.schema import Experiment
from winnow.core import AnyEvent, RoundFinished, RunError, Snapshot
from winnow.data import DataConditions, DataSet, OnDemand
from winnow.experiment.build import PreparedRun, prepare_run
from winnow.experiment.execution_context import current_context
from winnow.experiment.setup import RunInfo
from winnow.explain.html_report import write_reports
from winnow.learn.client_store import ClientStore
from winnow.learn.client_update import ClientUpdate
from winnow.learn.stack import ModelState
from winnow.runs import RunFolder, RunLabel, RunView, Summary, file_names, points, result_record
from winnow.runs.checkpoint import load_checkpoint
from winnow.runs.metrics_file import row_of
from winnow.runs.summary import abandoned_text, privacy_spent_rows

CHECKPOINT_SECONDS = 2.0
"""At most this much work, or one round if that takes longer, is done again after a kill."""

CHECKPOINT_INTERVAL_FACTOR = 10
"""Checkpoints that take long (clients may keep a lot) are so much rarer than the time they take."""

OnStart = Callable[[PreparedRun], object]
OnEvent = Callable[[AnyEvent], object]


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """What Python code may hand over in the place of names in a configuration."""

    dataset: DataSet | OnDemand | None = None
    module: nn.Module | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    data_directory: Path | None = None


DEFAULT_INPUTS = RunInputs()


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """A finished run: what it achieved, and the model with its best parameters."""

    experiment: Experiment
    facts: RunInfo
    summary: Summary
    view: RunView
    model: nn.Module
    """The best common model; a part that stays with the clients is as all parties build it at the start."""
    personal: Callable[[int], nn.Module]
    """The model that a client, by its number, uses itself after the last round."""

    @property
    def best(self) -> float | None:
        """The best value of the metric on the reference set, or by the clients if they judge."""
        return self.summary.best.value if self.summary.best else None

    @property
    def history(self) -> list[dict[str, float]]:
        """One row a round, ready for a data frame: round, seconds, joules, loss and every metric (`test.accuracy`)."""
        return [row_of(point) for point in points(self.view.events())]

    def report(self, path: str | Path) -> Path:
        """Write this run's report, one file that opens offline."""
        return write_run_report(Path(path), self.view)

    def __repr__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._facts())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._facts())
        return f"<table>{''.join(rows)}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        summary = self.summary
        readings = {"best": summary.best, "test": summary.test_best, "last": summary.last}
        shown = [(f"{name} {summary.metric}", f"{r.value:.4f} (round {r.round})") for name, r in readings.items() if r]
        reached = "not reached" if summary.rounds_to_target is None else f"reached in round {summary.rounds_to_target}"
        target = [] if summary.target is None else [(f"target {summary.target:g}", reached)]
        ends = {"stopped": summary.stopped, "abandoned": abandoned_text(summary)}
        return [*shown, *target, *privacy_spent_rows(summary), *((name, why) for name, why in ends.items() if why)]


def run_experiment(
    experiment: Experiment,
    *,
    inputs: RunInputs = DEFAULT_INPUTS,
    out: Path | None = None,
    resume: bool = False,
    on_start: OnStart = lambda prepared: None,
    on_event: OnEvent = lambda event: None,
) -> Result:
    """Run an experiment; `on_start` and `on_event` watch it."""
    place = current_context()
    if place is not None:
        return place.execute(experiment, inputs, on_event)
    threads = torch.get_num_threads()
    try:
        if out is None:
            return _in_memory(experiment, inputs, on_start, on_event)
        if resume:
            return _resume_in_folder(experiment, inputs, out, on_start, on_event)
        return _start_in_folder(experiment, inputs, out, on_start, on_event)
    finally:
        torch.set_num_threads(threads)  # a notebook keeps its own


def load_result(out: Path, inputs: RunInputs = DEFAULT_INPUTS) -> Result:
    """The result of a finished run, with its best model; nothing is written."""
    threads, view = torch.get_num_threads(), RunFolder.open(out)
    snapshot = load_checkpoint(out / file_names.CHECKPOINT).snapshot
    try:
        with _prepare(stored_experiment(out), inputs, snapshot, view.label.inputs) as prepared:
            return _result(prepared, view)
    finally:
        torch.set_num_threads(threads)


def stored_experiment(path: Path) -> Experiment:
    """The experiment that a run folder holds."""
    view = RunFolder.open(path)
    return experiment_from_table(view.config, str(path / file_names.CONFIG))


def _label(prepared: PreparedRun) -> RunLabel:
    experiment = prepared.experiment
    return RunLabel(
        name=experiment.name,
        algorithm=experiment.algorithm,
        seed=experiment.seed,
        metric=prepared.facts.metric,
        target=experiment.target,
        inputs=prepared.fingerprint,
        evaluated_by=experiment.evaluation.by,
    )


def conditions_record(conditions: DataConditions) -> dict[str, Any]:
    return {"labels": list(conditions.labels), "of_client": conditions.of_client.tolist()}


def _prepare(
    experiment: Experiment, inputs: RunInputs, snapshot: Snapshot | None = None, begun_with: str = ""
) -> PreparedRun:
    return prepare_run(
        experiment,
        data_directory=inputs.data_directory,
        dataset=inputs.dataset,
        module=inputs.module,
        loss=inputs.loss,
        snapshot=snapshot,
        begun_with=begun_with,
    )


def _start_in_folder(
    experiment: Experiment, inputs: RunInputs, out: Path, on_start: OnStart, on_event: OnEvent
) -> Result:
    with _prepare(experiment, inputs) as prepared:
        config, conditions = to_toml(prepared.experiment), conditions_record(prepared.conditions)
        with RunFolder.create(out, config, conditions, _label(prepared)) as folder:
            return _run_to_folder(prepared, folder, on_start, on_event)


def _in_memory(experiment: Experiment, inputs: RunInputs, on_start: OnStart, on_event: OnEvent) -> Result:
    events: list[AnyEvent] = []
    with _prepare(experiment, inputs) as prepared:
        on_start(prepared)
        for event in prepared.training.run(prepared.federation):
            events.append(event)
            on_event(event)
    view = RunView(
        label=_label(prepared),
        log=events,
        config_text=to_toml(prepared.experiment),
        conditions=conditions_record(prepared.conditions),
    )
    return _result(prepared, view)


def _resume_in_folder(
    experiment: Experiment, inputs: RunInputs, out: Path, on_start: OnStart, on_event: OnEvent
) -> Result:
    stored = stored_experiment(out)
    check_same_experiment(experiment, stored, out)
    begun_with = RunFolder.open(out).label.inputs
    folder, snapshot = RunFolder.resume(out)
    with folder:
        longer = stored.model_copy(update={"rounds": experiment.rounds})
        with _prepare(longer, inputs, snapshot, begun_with) as prepared:
            if longer.rounds > stored.rounds:
                folder.extend(to_toml(longer))
            return _run_to_folder(prepared, folder, on_start, on_event)


def check_same_experiment(asked: Experiment, stored: Experiment, out: Path) -> None:
    """A run can only be resumed as what it is; more rounds may be asked for."""
    old, new = stored.model_dump(), asked.model_dump()
    left_open = {"execution": "auto", "device": "auto", "chunk": None}  # what a run chooses for its machine
    chosen = {key: value for key, value in new["engine"].items() if key not in left_open or value != left_open[key]}
    new["engine"] = old["engine"] | chosen
    differing = [key for key in new if key != "rounds" and new[key] != old[key]]
    if differing:
        raise RunError(
            f"{out} holds a run with another {differing[0]}; resume it without options, or use another --out"
        )
    if asked.rounds < stored.rounds:
        raise RunError(f"{out} holds a run of {stored.rounds} rounds; ask for no fewer, or use another --out")


def _run_to_folder(prepared: PreparedRun, folder: RunFolder, on_start: OnStart, on_event: OnEvent) -> Result:
    on_start(prepared)
    due = time.monotonic() + CHECKPOINT_SECONDS
    for event in prepared.training.run(prepared.federation):
        folder.record(event)
        if isinstance(event, RoundFinished) and time.monotonic() > due:
            due = _save(prepared, folder)
        on_event(event)
    _save(prepared, folder)
    view = folder.view()
    result = _result(prepared, view)
    write_run_report(folder.path / file_names.REPORT, view)
    folder.finish(
        result_record(
            result.summary,
            view.label,
            parameters=prepared.facts.parameters,
            message_bytes=prepared.facts.message_bytes,
            wall_seconds=folder.wall_seconds,
            private=prepared.facts.private,
        )
    )
    return result


def _save(prepared: PreparedRun, folder: RunFolder) -> float:
    """Write a checkpoint; when the next one is due: not so soon that writing them would take much of the time."""
    begun = time.monotonic()
    training, private = prepared.training, prepared.facts.private
    models = {
        name: {key: tensor for key, tensor in model.items() if key not in private}
        for name, model in (("best", training.best), ("last", training.model))
    }
    folder.checkpoint(prepared.snapshot(), models)
    done = time.monotonic()
    return done + max(CHECKPOINT_SECONDS, CHECKPOINT_INTERVAL_FACTOR * (done - begun))


def _result(prepared: PreparedRun, view: RunView) -> Result:
    training, store = prepared.training, prepared.simulated.store
    prepared.module.cpu().load_state_dict(training.best)
    return Result(
        experiment=prepared.experiment,
        facts=prepared.facts,
        summary=view.summary(),
        view=view,
        model=prepared.module.eval(),
        personal=partial(_personal, prepared.experiment.client, prepared.module, training.model, store),
    )


def _personal(update: ClientUpdate, like: nn.Module, common: ModelState, store: ClientStore, client: int) -> nn.Module:
    if not 0 <= client < len(store):
        raise RunError(f"there is no client {client}; the last is {len(store) - 1}")
    own = deepcopy(like)
    own.load_state_dict(update.personal_model(common, store.read(client)))
    return own.eval()


def write_run_report(path: Path, view: RunView) -> Path:
    """Write the report of one run."""
    return write_reports(path, [view])
