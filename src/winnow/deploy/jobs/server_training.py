"""Training as a job's runner does it: the same workflow as in a simulation, with clients elsewhere."""

from collections.abc import Sequence

import numpy as np
import torch

from winnow.config.resolve import to_toml
from winnow.config.schema import Experiment
from winnow.core import DataError, RunError
from winnow.data import Examples
from winnow.deploy.jobs.deployed_run import DeployedRun, OnEvent
from winnow.deploy.jobs.ipc import JobSite
from winnow.deploy.jobs.local_data import load_server_data
from winnow.deploy.wire.messages import DataDescription
from winnow.experiment.evaluators import build_evaluator, to_tensors
from winnow.experiment.run import Result, RunInputs
from winnow.experiment.setup import PROBE_SAMPLES, RunInfo, TrainingSetup, device_for, loss_for, module_for
from winnow.learn.stack import allow_tf32, as_tensor
from winnow.learn.training import TrainingWorkflow
from winnow.learn.update_filters import FilteredFederation
from winnow.runs import RunLabel, RunView, file_names
from winnow.runs.checkpoint import save_arrays


def learn(drive: DeployedRun, experiment: Experiment, inputs: RunInputs, on_event: OnEvent) -> Result:
    """Run an experiment's workflow over the sites of a job."""
    torch.set_num_threads(experiment.engine.threads or 1)
    allow_tf32(experiment.engine.precision)
    members = drive.begin.members
    where = {member.site: member.clients_from for member in members if member.data.sizes}
    experiment = experiment.model_copy(update={"collect": experiment.collect.between(where)})
    held = load_server_data(experiment.data.name, drive.begin.data.get(experiment.data.name, {}))
    subject = _subject(experiment, inputs, common_description(members), held)
    facts = subject.facts(np.array([size for member in members for size in member.data.sizes], np.int64))
    training = _training(subject, facts, members, held)
    committed = drive.committed()
    if committed is not None:
        training.restore(committed)
    drive.run(
        training,
        on_event,
        now=training.now,
        rounds=experiment.rounds,
        deadline=experiment.job.task_timeout,
        around=lambda federation: (
            FilteredFederation(federation, experiment.filters) if experiment.filters else federation
        ),
    )
    return _result(drive, subject, facts, training)


def common_description(members: Sequence[JobSite]) -> DataDescription:
    """What all sites' samples are like; sites whose differ cannot learn together."""
    first = members[0]
    for member in members[1:]:
        for what in ("sample_shape", "outputs", "classification", "tokens"):
            ours, theirs = getattr(member.data, what), getattr(first.data, what)
            if ours != theirs:
                raise DataError(
                    f"the data of {member.site} and {first.site} do not go together: "
                    f"{what.replace('_', ' ')} is {ours} at one and {theirs} at the other"
                )
        for what, key in (("columns", "features"), ("labels", "classes")):
            ours, theirs = getattr(member.data, what), getattr(first.data, what)
            if ours and theirs and ours != theirs:
                raise DataError(
                    f"the {what} of {member.site} and {first.site} are not the same in the same order; "
                    f"compare {key} = […] of the data in both site.toml"
                )
    return first.data


def _subject(
    experiment: Experiment,
    inputs: RunInputs,
    described: DataDescription,
    held: tuple[Examples | None, Examples | None],
) -> TrainingSetup:
    """What is learnt, tried on samples of the server's own, or on zeros where it has none."""
    name = experiment.data.name
    if held[0] is None and not experiment.reference_clients:
        raise DataError(
            f"the server holds no reference set for {name!r}: name one in server.toml ([data.{name}] folder = …), "
            "or say which clients hold it: reference_clients = [0]"
        )
    classes = described.outputs if described.classification else None
    like = held[0] or held[1] or zero_examples(described, PROBE_SAMPLES)
    if list(like.x.shape[1:]) != described.sample_shape:
        shape = list(like.x.shape[1:])
        raise DataError(f"the server's {name} has samples of shape {shape}, the sites' have {described.sample_shape}")
    device = device_for(experiment.engine.device)
    module = inputs.module if inputs.module is not None else module_for(experiment, like, classes)
    return TrainingSetup(
        experiment=experiment,
        module=module.to(device),
        loss=loss_for(experiment, classes, inputs.loss),
        some=(as_tensor(like.x[:PROBE_SAMPLES], device), as_tensor(like.y[:PROBE_SAMPLES], device)),
        classes=classes,
        draws_are_told=True,  # the job's lines and its downloaded log say who was invited, folded and refused
    )


def zero_examples(described: DataDescription, samples: int) -> Examples:
    """So many samples of the right shape and type."""
    x = np.zeros((samples, *described.sample_shape), np.int64 if described.tokens else np.float32)
    y = np.zeros(samples, np.int64)
    return Examples(x=x, y=y if described.classification else np.zeros((samples, described.outputs), np.float32))


def _training(
    subject: TrainingSetup, facts: RunInfo, members: Sequence[JobSite], held: tuple[Examples | None, Examples | None]
) -> TrainingWorkflow:
    sizes = [size for member in members for size in member.data.sizes]
    own = [size for member in members for size in member.data.local_test_sizes]
    plan, nothing = subject.plan(facts), zero_examples(common_description(members), 0)
    device = device_for(subject.experiment.engine.device)
    judge = build_evaluator(
        subject.experiment,
        plan,
        subject.evaluator,
        sizes=np.array(sizes, np.int64),
        local_test_sizes=np.array(own, np.int64) if len(own) == len(sizes) else None,
        reference=held[0] or nothing,
        test=held[1] or nothing,
        device=device,
        store=None,
    )
    held_here = to_tensors(held[0] or nothing, device)
    return TrainingWorkflow(plan, subject.initial, judge, subject.emulation(plan, held_here, np.array(sizes, np.int64)))


def _result(drive: DeployedRun, subject: TrainingSetup, facts: RunInfo, training: TrainingWorkflow) -> Result:
    experiment = subject.experiment
    for name, model in (("best", training.best), ("last", training.model)):
        path = drive.folder / file_names.model_file(name)
        save_arrays(path, {k: t for k, t in model.items() if k not in facts.private}, {"format": "pt"})
        drive.output[path.name] = str(path)
    label = RunLabel(
        name=experiment.name,
        algorithm=experiment.algorithm,
        seed=experiment.seed,
        metric=facts.metric,
        target=experiment.target,
        evaluated_by=experiment.evaluation.by,
    )
    view = RunView(label=label, log=drive.log, config_text=to_toml(experiment))
    drive.put_out_result(view, parameters=facts.parameters, message_bytes=facts.message_bytes, private=facts.private)
    subject.module.cpu().load_state_dict(training.best)
    return Result(
        experiment=experiment,
        facts=facts,
        summary=view.summary(),
        view=view,
        model=subject.module.eval(),
        personal=_stays_at_its_site,
    )


def _stays_at_its_site(client: int) -> torch.nn.Module:
    raise RunError("what a client keeps stays at its site; its own model is not here")
