"""Homomorphic aggregation with sites of their own: over messages and files it gives the simulation's model."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from broker import Broker, SiteStub
from loopback import StoppedError
from safetensors.torch import load_file
from test_conformance_deployed import deployed
from test_jobs_processes import dealt, events_of, same, small
from test_site_numbers import Hostile, attacking

sys.path.insert(0, str(Path(__file__).parents[1]))
from winnow.config.resolve import resolve, to_toml
from winnow.config.schema import Experiment
from winnow.deploy.jobs.ipc_messages import DispatchTask, JobFinished, TaskResult
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run import run_experiment
from winnow.privacy.homomorphic.site import ENCRYPT, MAKE_KEY
from world import blobs, experiment

SETS = ("engine.execution=loop", "rounds=3", "select.count=5", "collect={name='homomorphic', key_holder=1}")


@pytest.mark.parametrize("algorithm", ["fedavg-rp", "scaffold"])
def test_a_deployed_run_equals_the_simulation(algorithm: str, tmp_path: Path) -> None:
    wanted = experiment(*SETS, algorithm=algorithm)
    result = deployed(wanted, tmp_path).run()
    simulated = prepare_run(wanted, RunInputs(dataset=blobs()))
    list(simulated.training.run(simulated.federation))
    assert result.summary.rounds == wanted.rounds
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(tensor, simulated.training.best[name]), name


def test_a_runner_that_begins_anew_goes_on_with_fresh_keys(tmp_path: Path) -> None:
    wanted = experiment(*SETS, algorithm="fedavg-rp")
    whole = deployed(wanted, tmp_path / "whole").run()
    broken = deployed(wanted, tmp_path / "broken")
    with pytest.raises(StoppedError):
        broken.run(stop_after=1)
    resumed = broken.run()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


@pytest.mark.slow(part="kills")
def test_whatever_becomes_of_its_processes_a_site_makes_one_key_a_round(tmp_path: Path) -> None:
    """The agent remembers: a server that has the job deployed anew, and so another worker, gets no second key."""
    wanted = resolve(
        "demo", algorithm="fedavg", sets=["engine.execution=loop", "collect={name='homomorphic', key_holder=0}"]
    )

    def key(server: Hostile, round: int) -> str | None:
        session = np.frombuffer(os.urandom(16), np.uint8)
        return server.ask(MAKE_KEY, 0, round, secure={"session": session, "count": np.array([10.0])}).failure

    with attacking(Hostile(tmp_path, wanted)) as server:
        assert server.deploy(0, (0, 1), anew=False).accepted
        assert key(server, 1) is None
        assert server.deploy(0, (0, 1), anew=True).accepted
        assert key(server, 1) == "a key for this round or a later one already exists"
        assert key(server, 2) is None


# Between processes ----------------------------------------------------------------------------------------------------

SUMS = ("collect={name='homomorphic', key_holder=1}", "job.task_timeout=20")


def brokered(wanted: Experiment, folder: Path, fork_server: Path, sites: int) -> Broker:
    return Broker(to_toml(wanted), *dealt(wanted, folder / "data", sites), folder / "job", fork_server=fork_server)


@pytest.mark.slow(part="deploy")
def test_processes_give_the_simulations_model_bit_for_bit(tmp_path: Path, fork_server: Path) -> None:
    """Exactly: sums of whole steps have no noise left."""
    wanted = small("fedavg", sets=SUMS)
    run_experiment(wanted, out=tmp_path / "simulated")
    broker = brokered(wanted, tmp_path, fork_server, 2)
    try:
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, JobFinished), ended
    assert same(load_file(ended.output["last.safetensors"]), load_file(tmp_path / "simulated" / "last.safetensors"))
    assert not [event for event in events_of(broker.lines) if event["kind"] == "rejected"]
    assert {"homomorphic-encrypt", "homomorphic-decrypt"} <= {*broker.sites[0].done}


@pytest.mark.slow(part="kills")
@pytest.mark.parametrize(("victim", "folded"), [("site-3", [9, 6, 6]), ("site-1", [9, 0, 0])])
def test_a_site_that_dies_amid_a_round_is_left_out(
    victim: str,
    folded: list[int],
    tmp_path: Path,
    fork_server: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the others the sum is told as ever; not so if it was the holder of the key, whom nobody can replace."""
    wanted = small("fedavg", sets=[*SUMS, "select.fraction=1.0"])
    work = SiteStub.do

    def do(site: SiteStub, dispatch: DispatchTask, blobs: Path) -> list[TaskResult]:
        if (site.name, dispatch.task.name, dispatch.task.round) == (victim, ENCRYPT, 2):
            site.process.kill()
        return work(site, dispatch, blobs)

    monkeypatch.setattr(SiteStub, "do", do)
    broker = brokered(wanted, tmp_path, fork_server, 3)
    try:
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, JobFinished), ended
    events = events_of(broker.lines)
    assert [len(event["aggregated"]) for event in events if event["kind"] == "round_finished"] == folded
    reasons = [event["reason"] for event in events if event["kind"] == "rejected"]
    assert all("no answer within 20 seconds" in each or "who holds the key, did not answer" in each for each in reasons)
