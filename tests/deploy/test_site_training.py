"""A deployed site and a server that asks for more than the job's author signed: it gets a reason, and nothing else."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_conformance_deployed import deployed

sys.path.insert(0, str(Path(__file__).parents[1]))
from winnow.config.schema import Experiment
from winnow.core import Failure, ModelError, Outcome, Reply, Selected, Task, wrap
from winnow.deploy.jobs.site_training import training_handlers
from winnow.deploy.jobs.task_executor import SiteHandlers
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import DEFAULT_INPUTS, RunInputs
from winnow.learn.client_round_method import TrainSettings
from winnow.learn.handlers import FineTuning, LossEvaluationSettings, PersonalEvaluationSettings
from winnow.learn.secure_randomness import secure_stream
from winnow.privacy.secagg.simulated_identities import simulated_identities
from winnow.runs.event_log import decode_event
from world import blobs, experiment

LOCAL = "filters=[{name='local-dp', noise_multiplier=5.0, clip=1.0}]"
PRIVATE = {
    "dp-sgd": ("client={name='dp-sgd', noise_multiplier=5.0}",),
    "local-dp": (LOCAL,),
    "discrete-gaussian": (
        "collect.name=secure",
        "collect.encoding={name='discrete-gaussian', clip=1.0, noise_multiplier=5.0}",
    ),
}
FILTERS = {
    "local-dp": LOCAL,
    "sparse-vector": "filters=[{name='sparse-vector', epsilon=0.1}]",
    "exclude": "filters=[{name='exclude', variables=['*weight']}]",
    "clip": "filters=[{name='clip', norm=0.01}]",
    "percentile": "filters=[{name='percentile'}]",
}


def site_of(folder: Path, *sets: str, algorithm: str = "fedavg") -> tuple[Experiment, SiteHandlers]:
    wanted = experiment("engine.execution=loop", *sets, algorithm=algorithm)
    job = deployed(wanted, folder)
    return wanted, training_handlers(wanted, DEFAULT_INPUTS, job.sites[0], 0, simulated_identities())


def asked(service: SiteHandlers, name: str, settings: Any, **payload: Any) -> Outcome:
    handler = wrap(service.handlers[name], (*service.outer_filters, *service.filters))
    task = Task(name=name, client=0, round=1, version=0, payload=payload, settings=settings)
    (outcome,) = handler([task], service.site)
    return outcome


def as_signed(wanted: Experiment, **otherwise: Any) -> TrainSettings:
    signed = TrainSettings(
        local=wanted.local,
        client=wanted.client,
        seed=wanted.seed,
        profile=False,
        start_loss=wanted.composed().needs_start_loss,
    )
    return replace(signed, **otherwise)


@pytest.mark.parametrize("way", ["dp-sgd", "local-dp"])
def test_a_site_draws_its_noise_from_the_system(way: str, tmp_path: Path) -> None:
    """A simulation repeats its noise; here whoever knows the seed must not be able to subtract it."""
    updates = []
    for folder in ("one", "other"):
        wanted, service = site_of(tmp_path / folder, *PRIVATE[way])
        assert service.site.randomness is secure_stream
        reply = asked(service, "train", as_signed(wanted), model=service.site.initial)
        assert isinstance(reply, Reply)
        updates.append(reply.payload["model"])
    assert not any(torch.equal(updates[0][name], updates[1][name]) for name in updates[0])


@pytest.mark.parametrize("name", FILTERS)
def test_a_task_without_a_model_gets_no_update_past_the_filters(name: str, tmp_path: Path) -> None:
    wanted, service = site_of(tmp_path, FILTERS[name])
    assert isinstance(asked(service, "train", as_signed(wanted), model=service.site.initial), Reply)
    with pytest.raises(ModelError, match="contains no model"):
        asked(service, "train", as_signed(wanted))
    with pytest.raises(ModelError, match="contains no model"):
        asked(service, "train", as_signed(wanted), other=service.site.initial)


@pytest.mark.parametrize("way", PRIVATE)
def test_losses_of_any_model_are_not_to_be_had(way: str, tmp_path: Path) -> None:
    wanted, service = site_of(tmp_path, *PRIVATE[way])
    assert not {"evaluate-loss", "profile", "evaluate-reference", "evaluate-personal"} & service.handlers.keys()
    reply = asked(service, "train", as_signed(wanted), model=service.site.initial)
    assert isinstance(reply, Reply)
    assert {name for name, value in reply.metrics.items() if not math.isnan(value)} == {"steps", "total_step_size"}
    for otherwise in ({"start_loss": True}, {"profile": True}, {"seed": 77}):
        refused = asked(service, "train", as_signed(wanted, **otherwise), model=service.site.initial)
        assert isinstance(refused, Failure)
        assert "differ from those the job's author signed" in refused.reason


@pytest.mark.parametrize(
    ("algorithm", "served"),
    [("afl", True), ("tifl", True), ("power-of-choice", True), ("oort", True), ("qfedavg", False), ("fedavg", False)],
)
def test_losses_are_told_where_the_algorithm_asks_for_them(algorithm: str, served: bool, tmp_path: Path) -> None:
    wanted, service = site_of(tmp_path, algorithm=algorithm)
    assert ("evaluate-loss" in service.handlers) == served
    if served:
        reply = asked(service, "evaluate-loss", LossEvaluationSettings(), model=service.site.initial)
        assert isinstance(reply, Reply)
        assert reply.metrics["start_loss"] > 0
    reply = asked(service, "train", as_signed(wanted), model=service.site.initial)
    assert isinstance(reply, Reply)
    assert ("start_loss" in reply.metrics) == (algorithm in ("afl", "oort", "qfedavg"))


def test_clients_tune_models_as_it_was_signed(tmp_path: Path) -> None:
    wanted, service = site_of(
        tmp_path, "evaluation.tune_epochs=2", "evaluation.tune_every=2", "data.local_test=0.3", "evaluation.by=clients"
    )
    tuning = FineTuning(local=wanted.local, epochs=2, seed=wanted.seed, own=True)
    judged = replace(service, handlers={"evaluate-personal": lambda tasks, site: [Reply(task=task) for task in tasks]})
    for asked_for, signed in ((None, True), (tuning, True), (replace(tuning, epochs=500), False)):
        settings = PersonalEvaluationSettings(client=wanted.client, metrics=("accuracy",), tuning=asked_for)
        assert isinstance(asked(judged, "evaluate-personal", settings), Reply) == signed


def test_whom_poisson_sampling_invites_cannot_be_foreseen(tmp_path: Path) -> None:
    """By the seed: a simulation repeats, and of two deployed runs each invites others than it and than the other."""
    central = "collect={name='central-dp', noise_multiplier=2.0}"
    wanted = experiment("engine.execution=loop", "rounds=6", "select.name=poisson", central, algorithm="fedavg")
    drawn = []
    for _ in range(2):
        with prepare_run(wanted, RunInputs(dataset=blobs())) as ready:
            drawn.append(invited(list(ready.training.run(ready.federation))))
    assert drawn[0] == drawn[1]
    for name in ("one", "other"):
        job = deployed(wanted, tmp_path / name)
        job.run()
        drawn.append(invited([decode_event(line.encode()) for line in job.lines]))
    assert drawn[0] != drawn[2] != drawn[3] != drawn[0]


def invited(events: list[Any]) -> list[list[int]]:
    return [event.clients.tolist() for event in events if isinstance(event, Selected)]
