"""Runs an experiment, in memory or in a folder from which it can be resumed."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from winnow.config.resolve import to_toml
from winnow.config.schema import Experiment
from winnow.core import AnyEvent, RoundFinished, RunError
from winnow.data import Preprocessing
from winnow.data.preprocessing import Label
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import DEFAULT_INPUTS, RunInputs
from winnow.experiment.execution_context import OnEvent, current_context
from winnow.experiment.provenance import Provenance, provenance
from winnow.experiment.run_folders import check_same_experiment, holds_run, is_finished, run_name, stored_experiment
from winnow.experiment.saved_model import SavedModel, trained_model
from winnow.explain.report_with_privacy import write_reports, write_run_report
from winnow.learn.adapted_model import own_module
from winnow.learn.client_store import ClientStore
from winnow.learn.extended_model import model_without_heads, state_without_heads
from winnow.learn.final_evaluation import FinalEvaluation, SetScores
from winnow.learn.run_plan import TrainingPlan
from winnow.learn.stack import ModelState
from winnow.runs import (
    EvaluationRecord,
    RunFolder,
    RunLabel,
    RunView,
    SampleScores,
    Summary,
    file_names,
    points,
    result_record,
)
from winnow.runs.atomic_write import warn_if_unwritten
from winnow.runs.checkpoint import load_checkpoint
from winnow.runs.client_table import read_client_table
from winnow.runs.metrics_csv import row_of
from winnow.runs.output_file import check_output
from winnow.runs.summary import abandoned_text, privacy_spent_rows
from winnow.tracking import Tracker
from winnow.tracking.track_run import RunTracking, tracked_run

if TYPE_CHECKING:
    import plotly.graph_objects as go

CHECKPOINT_SECONDS = 2.0
"""At most this much work, or one round if that takes longer, is done again after a kill."""

CHECKPOINT_INTERVAL_FACTOR = 10
"""The time between checkpoints is at least so many times what one takes: clients may keep a lot of state."""

OnStart = Callable[[PreparedRun], object]


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """A finished run: what it achieved, and the model with its best parameters."""

    experiment: Experiment
    plan: TrainingPlan
    """What was known before the run started: the metric, the profiled layer, private names, sizes."""
    summary: Summary
    view: RunView
    model: nn.Module
    """The best shared model; its private part, which stays with the clients, is the initial one."""
    personal: Callable[[int], nn.Module]
    """The model that a client, by its number, uses itself after the last round."""
    preprocessing: Preprocessing
    """What made the model's inputs out of raw rows, and makes labels or values out of its outputs."""
    saved: SavedModel
    """The model with all that it takes to use it elsewhere."""
    estimator: Any
    """The scikit-learn estimator with the best coefficients, if `model` was one; it takes rows as the model does."""
    client_names: Sequence[str]
    """The owner of each client; "client 0", … where there are none."""

    @property
    def classes(self) -> tuple[Label, ...] | None:
        """The labels as the data have them, in the order of the model's outputs; None in a regression."""
        return self.saved.classes

    @property
    def best(self) -> float | None:
        """The best value of the metric on the reference set, or by the clients if they evaluate."""
        return self.summary.best.value if self.summary.best else None

    @property
    def confusion(self) -> NDArray[np.int64] | None:
        """How many samples of each class (rows) the best model takes for each class (columns), in the order of
        `classes`: on the test set, or else the reference set. None in a regression.
        """
        overall = self.view.evaluation and self.view.evaluation.overall
        return None if not overall or overall.confusion is None else np.array(overall.confusion, np.int64)

    @property
    def per_class(self) -> list[dict[str, Any]]:
        """One row per class, for a data frame: samples, precision, recall and F1 of the best model on the same set."""
        return self.view.evaluation.per_class if self.view.evaluation else []

    @property
    def by_client(self) -> list[dict[str, Any]]:
        """One row per client with a test of its own (`data.local_test`), for a data frame: its name, samples, every
        metric and the confusion matrix of the best model; of the client's own model where it has one.
        """
        return self.view.evaluation.client_rows if self.view.evaluation else []

    @property
    def clients(self) -> list[dict[str, Any]]:
        """One row per client, the worst first, for a data frame: name, samples, how often it was invited to train, the
        score of its data (1 is the alarm threshold), the verdict and the evidence for it.
        """
        return [row.record() for row in read_client_table(self.view).rows]

    @property
    def history(self) -> list[dict[str, float]]:
        """One row per round, for a data frame: round, seconds, joules, loss and every metric (`test.accuracy`)."""
        return [row_of(point) for point in points(self.view.events())]

    def predict(self, rows: Any) -> NDArray[Any]:
        """The label of each raw row as the data had it, or its value in the original units."""
        return self.saved.predict(rows)

    def predict_proba(self, rows: Any) -> NDArray[np.float64]:
        """The probability of each class for each raw row, in the order of `classes`."""
        return self.saved.predict_proba(rows)

    def save(self, folder: str | Path) -> Path:
        """Write the model into a folder that `winnow.load` reads, with its preprocessing and a card."""
        return self.saved.save(folder)

    def export_onnx(self, path: str | Path) -> Path:
        """Write the model in ONNX, for programs without Winnow and torch."""
        return self.saved.export_onnx(path)

    def export_torchscript(self, path: str | Path) -> Path:
        """Write the model in TorchScript, for C++ programs."""
        return self.saved.export_torchscript(path)

    def report(self, path: str | Path) -> Path:
        """Write this run's report, one file that opens offline."""
        check_output(Path(path), ".html")
        return write_reports(Path(path), [self.view])

    def plot(self, what: str | None = None, *, over: str = "round") -> "go.Figure":
        """A figure of the report: the metric or another one by its name, over "round", "time" or "energy"; or the
        "loss", the "confusion" matrix, the "clients" by the score of their data, their "selection", or FedProf's
        "scores" by round.
        """
        from winnow.report.notebook_plots import plot_run  # noqa: PLC0415 - Plotly takes a while to import

        return plot_run(self.view, what, over)

    def __repr__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from winnow.report.markup import html_table  # noqa: PLC0415 - Plotly takes a while to import
        from winnow.report.notebook_plots import metric_chart  # noqa: PLC0415

        return html_table(run_name(self.experiment), ("", "value"), self._rows()) + metric_chart([self.view])

    def _rows(self) -> list[tuple[str, str]]:
        summary = self.summary
        readings = {"best": summary.best, "test": summary.test_best, "last": summary.last}
        shown = [(f"{name} {summary.metric}", f"{r.value:.4f} (round {r.round})") for name, r in readings.items() if r]
        for data, values in summary.best_metrics.items():
            besides = (name for name in values if name in {metric.name for metric in self.plan.metrics[1:]})
            shown += [(f"{data} {name}", f"{values[name]:.4f}") for name in besides]
        reached = "not reached" if summary.rounds_to_target is None else f"reached in round {summary.rounds_to_target}"
        target = [] if summary.target is None else [(f"target {summary.target:g}", reached)]
        notes = "; ".join(self.view.evaluation.notes) if self.view.evaluation else ""
        ends = {"stopped": summary.stopped, "abandoned": abandoned_text(summary), "note": notes}
        return [*shown, *target, *privacy_spent_rows(summary), *((name, why) for name, why in ends.items() if why)]


def run_experiment(
    experiment: Experiment,
    *,
    inputs: RunInputs = DEFAULT_INPUTS,
    out: Path | None = None,
    resume: bool = False,
    report: bool = True,
    on_start: OnStart = lambda prepared: None,
    on_event: OnEvent = lambda event: None,
) -> Result:
    """Run an experiment in memory, or in the folder `out`; `on_start` and `on_event` watch it.

    With `resume` the run that the folder holds is continued, or only read if it is finished. Without `report` the
    folder has no report of its own: a comparison has one for all its runs.
    """
    context = current_context()
    if context is not None:
        return context.run_experiment(experiment, inputs, on_event)
    with ExitStack() as closing:
        closing.callback(torch.set_num_threads, torch.get_num_threads())  # a notebook keeps its own
        prepared, record = _open(experiment, inputs, out, resume=resume, closing=closing)
        if isinstance(record, RunView):
            return _result(prepared, record)
        on_start(prepared)
        tracking = _tracking(experiment.tracking, prepared, record, closing)
        due = time.monotonic() + CHECKPOINT_SECONDS
        events: list[AnyEvent] = []
        for event in prepared.training.run(prepared.federation):
            if isinstance(record, RunLabel):
                events.append(event)
            else:
                record.record(event)
                if isinstance(event, RoundFinished) and _checkpoint_due(prepared, event, due):
                    due = _save(prepared, record)
            tracking.follow(event)
            on_event(event)
        if isinstance(record, RunLabel):
            view = _memory_view(prepared, record, events)
        else:
            view = _finish(prepared, record, report)
        tracking.close(finished=True)
        return _result(prepared, view)


def _tracking(
    trackers: Sequence[Tracker], prepared: PreparedRun, record: RunFolder | RunLabel, closing: ExitStack
) -> RunTracking:
    """The trackers of a run, which have been told what it had done before."""
    tracking = RunTracking()
    if not trackers:
        return tracking
    view = _memory_view(prepared, record, []) if isinstance(record, RunLabel) else record.view()
    name = run_name(prepared.experiment) if view.path is None else view.path.resolve().name
    closing.callback(tracking.close, finished=False)  # which a finished run has done before
    tracking.begin(trackers, tracked_run(view, name), view.events())
    return tracking


def _open(
    experiment: Experiment, inputs: RunInputs, out: Path | None, *, resume: bool, closing: ExitStack
) -> tuple[PreparedRun, RunFolder | RunView | RunLabel]:
    """The run, ready to start or to continue, and its folder; a view if it is finished, its label in memory."""
    if out is None:
        prepared = closing.enter_context(prepare_run(experiment, inputs))
        return prepared, _label(prepared)
    features = out / file_names.FEATURES
    if not (resume and holds_run(out)):
        prepared = closing.enter_context(prepare_run(experiment, inputs, features=features))
        config = to_toml(prepared.experiment)
        conditions = _conditions(prepared)
        return prepared, closing.enter_context(RunFolder.create(out, config, conditions, _label(prepared)))
    view, stored = RunFolder.open(out), stored_experiment(out)
    prepare = partial(prepare_run, inputs=inputs, expected_fingerprint=view.label.inputs, clock=view.label.clock)
    prepare = partial(prepare, features=features)
    if is_finished(out, experiment):
        snapshot = load_checkpoint(out / file_names.CHECKPOINT).snapshot
        return closing.enter_context(prepare(stored, snapshot=snapshot)), view
    check_same_experiment(experiment, stored, out)
    folder, state = RunFolder.resume(out)
    closing.enter_context(folder)
    longer = stored.model_copy(update={"rounds": experiment.rounds})
    prepared = closing.enter_context(prepare(longer, snapshot=state))
    if longer.rounds > stored.rounds:
        folder.extend(to_toml(longer))
    return prepared, folder


def _label(prepared: PreparedRun) -> RunLabel:
    experiment = prepared.experiment
    return RunLabel(
        name=experiment.name,
        algorithm=experiment.algorithm,
        seed=experiment.seed,
        metric=prepared.plan.metric,
        target=experiment.target,
        inputs=prepared.fingerprint,
        evaluated_by=experiment.evaluation.by,
        lower_is_better=prepared.plan.lower_is_better,
        clock=prepared.clock,
        **provenance(experiment.engine.device),
    )


def evaluation_record(
    outcome: FinalEvaluation, summary: Summary, names: Sequence[str], labels: Sequence[Label]
) -> EvaluationRecord:
    """What evaluation.json says of a run's outcome: clients and classes by their names."""
    overall, data = outcome.overall, outcome.data or ""
    return EvaluationRecord(
        round=summary.best.round if summary.best else 0,
        overall=None if overall is None else _scores(data, overall),
        by_client=[_scores(names[client], scores) for client, scores in outcome.by_client.items()],
        classes=[str(label) for label in labels],
        notes=list(outcome.notes),
    )


def _scores(name: str, found: SetScores) -> SampleScores:
    confusion = None if found.confusion is None else [list(row) for row in found.confusion]
    return SampleScores(name=name, samples=found.samples, metrics=dict(found.metrics), confusion=confusion)


def _evaluation(prepared: PreparedRun, view: RunView) -> EvaluationRecord | None:
    outcome = prepared.training.outcome
    if outcome is None:
        return None
    record = evaluation_record(outcome, view.summary(), prepared.client_names, prepared.class_labels)
    return replace(record, pseudo_labels=prepared.score_pseudo_labels(prepared.training.model))


def _conditions(prepared: PreparedRun) -> dict[str, Any]:
    """What conditions.json holds; names are the owners', none where clients have only numbers."""
    return {
        "labels": list(prepared.conditions.labels),
        "of_client": prepared.conditions.of_client.tolist(),
        "names": list(prepared.client_names.owners),
        "sizes": prepared.federation.population.sizes.tolist(),
    }


def _memory_view(prepared: PreparedRun, label: RunLabel, events: list[AnyEvent]) -> RunView:
    view = RunView(
        label=label,
        log=events,
        config_text=to_toml(prepared.experiment),
        conditions=_conditions(prepared),
    )
    return replace(view, evaluation=_evaluation(prepared, view))


def _finish(prepared: PreparedRun, folder: RunFolder, report: bool) -> RunView:
    """Make the folder that of a finished run: the result, and what may fail beside it: a full disk does not make a
    trained run unfinished.
    """
    evaluation = _evaluation(prepared, folder.view())
    if evaluation is not None:
        with warn_if_unwritten("the scores by class and client", "the run is finished without them"):
            folder.save_evaluation(evaluation)
    view, plan = folder.view(), prepared.plan
    folder.finish(
        result_record(
            view.summary(),
            view.label,
            parameters=plan.parameters,
            message_bytes=plan.message_bytes,
            wall_seconds=folder.wall_seconds,
            private=plan.private_names,
        )
    )
    if report:
        write_run_report(view)
    return view


def _checkpoint_due(prepared: PreparedRun, event: RoundFinished, due: float) -> bool:
    """Also after the last round: whoever adds rounds continues there, without the events that end this run."""
    return time.monotonic() > due or event.round == prepared.training.rounds


def _save(prepared: PreparedRun, folder: RunFolder) -> float:
    """Write a checkpoint; when the next one is due: not so soon that writing them would take much of the time."""
    started = time.monotonic()
    training = prepared.training
    models = {"best": _shared(prepared, training.best), "last": _shared(prepared, training.model)}
    folder.checkpoint(prepared.snapshot(), models)
    done = time.monotonic()
    return done + max(CHECKPOINT_SECONDS, CHECKPOINT_INTERVAL_FACTOR * (done - started))


def _shared(prepared: PreparedRun, model: ModelState) -> ModelState:
    """What of a model does not stay with the clients, without the heads that a method has beside it."""
    shared = {name: tensor for name, tensor in model.items() if name not in prepared.plan.private}
    return state_without_heads(prepared.module, shared)


def _saved_model(prepared: PreparedRun, view: RunView) -> SavedModel:
    """The best model; in the run folder, too, once the run has finished."""
    label = view.label
    saved = trained_model(
        prepared.experiment.model_copy(update={"model": prepared.model_settings}),
        prepared.plan,
        view.summary(),
        prepared.module,
        prepared.preprocessing,
        prepared.sizes,
        Provenance(started=label.started, machine=label.machine, commit=label.commit),
        prepared.feature_scaling,
    )
    if view.path is not None:
        with warn_if_unwritten("the model's description", "the run is finished; continue it to write it again"):
            saved = saved.described_in(view.path, _shared(prepared, prepared.training.best))
        with warn_if_unwritten("the reference's summary", "owners cannot check their data without it"):
            prepared.write_reference(view.path)
    return saved


def _result(prepared: PreparedRun, view: RunView) -> Result:
    training, store = prepared.training, prepared.store
    prepared.module.cpu().load_state_dict(training.best)
    return Result(
        experiment=prepared.experiment,
        plan=prepared.plan,
        summary=view.summary(),
        view=view,
        model=own_module(model_without_heads(prepared.module.eval())),
        estimator=prepared.fitted_estimator(),
        personal=partial(_personal, prepared.experiment, prepared.module, training.model, store),
        preprocessing=prepared.preprocessing,
        saved=_saved_model(prepared, view),
        client_names=prepared.client_names,
    )


def _personal(settings: Experiment, like: nn.Module, common: ModelState, store: ClientStore, client: int) -> nn.Module:
    if not 0 <= client < len(store):
        raise RunError(f"client {client} does not exist; the last client is {len(store) - 1}")
    own, kept = deepcopy(like), store.read(client)
    own.load_state_dict(settings.client.personal_model(settings.collect.client_model(common, kept), kept))
    return own_module(model_without_heads(own.eval()))
