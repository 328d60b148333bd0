"""Training in a job's runner at the server: the same workflow as in a simulation, over the sites' clients."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from winnow.config.resolve import to_toml
from winnow.config.schema import Experiment
from winnow.core import DataError, RunError
from winnow.data import Examples, Preprocessing
from winnow.deploy.jobs.deployed_run import DeployedRun, OnEvent
from winnow.deploy.jobs.encode_party_data import encode_server_data
from winnow.deploy.jobs.ipc_messages import JobSite
from winnow.deploy.jobs.measurement_units_check import unit_lines
from winnow.deploy.jobs.party_data import ServerData, load_server_data
from winnow.deploy.wire.messages import DataDescription
from winnow.experiment.build_ensemble import deployed_ensemble
from winnow.experiment.build_training_workflow import (
    PROBE_SAMPLES,
    RunInputs,
    TrainingSetup,
    set_up_device,
    set_up_training,
)
from winnow.experiment.encode_data import feature_preprocessing
from winnow.experiment.model_card_data import DataSizes
from winnow.experiment.provenance import Provenance
from winnow.experiment.reference_file import write_reference_file
from winnow.experiment.run import Result, evaluation_record
from winnow.experiment.saved_model import trained_model
from winnow.learn.adapted_model import own_module
from winnow.learn.ensemble.ensemble_workflow import EnsembleWorkflow
from winnow.learn.extended_model import model_without_heads, state_without_heads
from winnow.learn.models import ModelSettings
from winnow.learn.run_plan import TrainingPlan
from winnow.learn.secure_randomness import secure_stream
from winnow.learn.stack import as_tensor
from winnow.learn.training_workflow import TrainingWorkflow
from winnow.learn.update_filters import FilteredFederation
from winnow.runs import RunLabel, RunView, file_names
from winnow.runs.checkpoint import save_arrays


def run_training(run: DeployedRun, experiment: Experiment, inputs: RunInputs, on_event: OnEvent) -> Result:
    """Train over the sites of a job."""
    members = run.start.members
    first_clients = {member.site: member.first_client for member in members if member.data.sizes}
    experiment = experiment.model_copy(update={"collect": experiment.collect.for_sites(first_clients)})
    table = run.start.data.get(experiment.data.name, {})
    own = load_server_data(experiment.data.name, table, experiment.data.preprocessing)
    own = encode_server_data(experiment, own, run.folder, run.log_line)
    held = (own.reference, own.test)
    described = common_description(members)
    _check_labelled(experiment, own.labelled, described)
    encoded = own.preprocessing if experiment.encode is None else feature_preprocessing(own.preprocessing)
    setup = _setup(experiment, inputs, described, held, encoded)
    sizes = np.array([size for member in members for size in member.data.sizes], np.int64)
    tested = np.array([size for member in members for size in _local_test_sizes(member)], np.int64)
    nothing = zero_examples(described, 0)
    module, settings = setup.model.module, experiment.model
    training: TrainingWorkflow | EnsembleWorkflow
    if experiment.ensemble is not None:
        samples = held[0] or nothing, held[1] or nothing, own.labelled
        ensemble = deployed_ensemble(setup, inputs, sizes, run.client_names, *samples)
        plan, training = ensemble.plan, ensemble.workflow()
        module, settings = ensemble.made.net, ensemble.made.model_settings
    else:
        plan = setup.plan(sizes, held[0] or nothing, run.client_names, 0 if own.open is None else len(own.open))
        training = setup.workflow(
            plan,
            sizes=sizes,
            local_test_sizes=tested if tested.any() else None,
            reference=held[0] or nothing,
            test=held[1] or nothing,
            store=None,
            names=run.client_names,
            server_labelled=own.labelled,
            open_samples=own.open,
        )
    committed = run.committed_state()
    if committed is not None:
        training.restore(committed)
    else:
        for line in (plan.notice, *unit_lines(members, experiment.data.preprocessing)):
            run.log_line(line)
        if experiment.data.local_test and not tested.any():
            run.log_line("data.local_test has no effect: it is for sites to hold rows out (local_test in site.toml)")
    run.execute(
        training,
        on_event,
        now=training.now,
        rounds=experiment.rounds if experiment.ensemble is None else training.rounds,
        task_timeout=experiment.job.task_timeout,
        wrap_federation=lambda federation: (
            FilteredFederation(federation, experiment.filters) if experiment.filters else federation
        ),
    )
    kept = DataSizes(
        clients=len(sizes),
        samples=int(sizes.sum()),
        reference=len(held[0] or nothing),
        test=len(held[1] or nothing),
    )
    return _result(run, setup, DeployedModule(module, settings), plan, training, kept, own)


def _check_labelled(experiment: Experiment, labelled: Examples | None, described: DataDescription) -> None:
    """A server that is to train has labelled samples, like those of the sites."""
    name, labels = experiment.data.name, experiment.data.labels
    if labelled is None:
        if labels is not None and labels.at == "server":
            raise DataError(
                f"the server has no labelled samples of {name!r}, which data.labels wants there; "
                f"set labelled = … below [data.{name}] in server.toml"
            )
        return
    if (shape := list(labelled.x.shape[1:])) != described.sample_shape:
        raise DataError(
            f"the server's labelled samples of {name!r} have shape {shape}, the sites' have {described.sample_shape}"
        )


def _local_test_sizes(member: JobSite) -> Sequence[int]:
    """How many samples each client of a site keeps for a test: none where the site does not say so of each."""
    told, clients = member.data.local_test_sizes, len(member.data.sizes)
    return told if len(told) == clients else [0] * clients


def common_description(members: Sequence[JobSite]) -> DataDescription:
    """What all sites' samples are like; sites with different ones cannot train together."""
    first = members[0]
    for member in members[1:]:
        for what in ("sample_shape", "outputs", "classification", "tokens"):
            ours, theirs = getattr(member.data, what), getattr(first.data, what)
            if ours != theirs:
                raise DataError(
                    f"the data of {member.site} and {first.site} do not match: "
                    f"{what.replace('_', ' ')} is {ours} at {member.site} and {theirs} at {first.site}"
                )
        for what, key in (("columns", "features"), ("labels", "classes")):
            ours, theirs = getattr(member.data, what), getattr(first.data, what)
            if ours and theirs and ours != theirs:
                raise DataError(
                    f"the {what} of {member.site} and {first.site} differ in names or order; "
                    f"compare {key} = […] in the site.toml of both"
                )
    return first.data


def _setup(
    experiment: Experiment,
    inputs: RunInputs,
    described: DataDescription,
    held: Sequence[Examples | None],
    preprocessing: Preprocessing,
) -> TrainingSetup:
    """The model, tried on the server's own samples, or on zeros where it has none."""
    name = experiment.data.name
    if held[0] is None and not experiment.reference_clients:
        raise DataError(
            f"the server has no reference set for {name!r}; set [data.{name}] folder = … in server.toml, "
            "or name the clients that hold it: reference_clients = [0]"
        )
    classes = described.outputs if described.classification else None
    like = held[0] or held[1] or zero_examples(described, PROBE_SAMPLES)
    if list(like.x.shape[1:]) != described.sample_shape:
        shape = list(like.x.shape[1:])
        raise DataError(f"the server's {name} has samples of shape {shape}, the sites' have {described.sample_shape}")
    device = set_up_device(experiment.engine)
    probe = as_tensor(like.x[:PROBE_SAMPLES], device), as_tensor(like.y[:PROBE_SAMPLES], device)
    # the job's log lists the clients that were selected, aggregated and rejected
    return set_up_training(
        experiment,
        inputs,
        probe,
        classes,
        secure_stream,
        preprocessing=preprocessing,
        selection_is_public=True,
    )


def zero_examples(described: DataDescription, samples: int) -> Examples:
    """So many samples of the right shape and type."""
    x = np.zeros((samples, *described.sample_shape), np.int64 if described.tokens else np.float32)
    y = np.zeros(samples, np.int64)
    return Examples(x=x, y=y if described.classification else np.zeros((samples, described.outputs), np.float32))


class DeployedModule(NamedTuple):
    """The module that is trained, and what builds it."""

    module: nn.Module
    settings: ModelSettings


def _result(
    run: DeployedRun,
    setup: TrainingSetup,
    trained: DeployedModule,
    plan: TrainingPlan,
    training: TrainingWorkflow | EnsembleWorkflow,
    kept: DataSizes,
    own: ServerData,
) -> Result:
    preprocessing = own.preprocessing
    experiment, names, module = setup.experiment, run.client_names, trained.module
    best, last = (
        state_without_heads(module, {name: t for name, t in model.items() if name not in plan.private})
        for model in (training.best, training.model)
    )
    for name, model in (("best", best), ("last", last)):
        path = run.folder / file_names.model_file(name)
        save_arrays(path, model, {"format": "pt"})
        run.output[path.name] = str(path)
    label = RunLabel(
        name=experiment.name,
        algorithm=experiment.algorithm,
        seed=experiment.seed,
        metric=plan.metric,
        target=experiment.target,
        evaluated_by=experiment.evaluation.by,
        lower_is_better=plan.lower_is_better,
    )
    view = RunView(label=label, log=run.log, config_text=to_toml(experiment))
    if training.outcome is not None:
        labels = setup.preprocessing.labels(setup.classes or 0)
        evaluation = evaluation_record(training.outcome, view.summary(), names, labels)
        run.add_output(file_names.EVALUATION, evaluation.to_json().decode())
        view = replace(view, evaluation=evaluation)
    run.add_result(view, parameters=plan.parameters, message_bytes=plan.message_bytes, private=plan.private_names)
    module.cpu().load_state_dict(training.best)
    made = Provenance(started=datetime.now(UTC).isoformat(timespec="seconds"), machine="a federation", commit="")
    built = experiment.model_copy(update={"model": trained.settings})
    saved = trained_model(built, plan, view.summary(), module, preprocessing, kept, made, own.feature_scaling)
    saved.describe(run.folder, "best.safetensors", best)
    run.output |= {name: str(run.folder / name) for name in (file_names.MODEL, file_names.CARD)}
    summary = write_reference_file(run.folder, experiment, setup.model, training, plan.private)
    if summary is not None:
        run.output[summary.name] = str(summary)
    return Result(
        experiment=experiment,
        plan=plan,
        summary=view.summary(),
        view=view,
        model=own_module(model_without_heads(module.eval())),
        estimator=setup.fitted_estimator(),
        personal=_no_personal_model,
        preprocessing=preprocessing,
        saved=saved,
        client_names=names,
    )


def _no_personal_model(client: int) -> torch.nn.Module:
    raise RunError("personal models stay at the clients' sites; they are not available here")
