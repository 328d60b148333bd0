"""A server that renumbers a site's clients, to have one noisy update again and again, gets one a round."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from siting import POLICY, Script, World, agent_at, deploy, serving, task

from winnow.config.resolve import resolve, to_toml
from winnow.config.schema import Experiment
from winnow.deploy.jobs.task_settings import encode_settings
from winnow.deploy.sandbox.child_entry_point import OUTPUT_FILTER_MODULE, WORKER_MODULE
from winnow.deploy.wire.messages import (
    AssignTask,
    ClientResult,
    DeployJob,
    DeployResult,
    PeerSite,
    StopJob,
    SubmitResult,
)
from winnow.deploy.wire.safetensors_files import write_arrays
from winnow.deploy.wire.task_digest import with_task_id
from winnow.learn.client_round_method import TrainSettings
from winnow.learn.models import build_model

WANTED = resolve(
    "demo",
    algorithm="fedavg",
    rounds=2,
    sets=[
        "engine.execution=loop",
        "model={name='mlp', hidden=[4]}",
        "filters=[{name='local-dp', clip=1.0, noise_multiplier=2.0, delta=1e-4}]",
    ],
)


class Hostile:
    """Speaks to an agent whose data have one client, under whatever number it likes."""

    def __init__(self, folder: Path, wanted: Experiment = WANTED) -> None:
        clients, name = folder / "clients", wanted.data.name
        clients.mkdir(parents=True)
        np.savez(clients / "0.npz", x=np.ones((6, 8, 8), np.float32), y=np.arange(6))
        site = f'[resources]\nmemory_mb = 4000\ncpus = 1\n[data.{name}]\nfolder = "{clients}"\nclasses = 10\n'
        self.world = World(folder / "project", policy=POLICY.replace("turbines", name), site=site)
        self.script = Script(folder / "server")
        self._bundle = self.world.bundle(to_toml(wanted))
        self._joined = self._given = 0

    def deploy(self, first: int | None, listed: tuple[int, int], *, anew: bool) -> DeployResult:
        """Deploy the job, where it runs or once it was stopped; what the site says to it."""
        kit = self.world.kit()
        own = PeerSite(site=kit.name, first_client=listed[0], client_count=listed[1], certificate=kit.certificate_pem)
        order: DeployJob = deploy(self.script, self._bundle, first_client=first, peer_sites=[own])
        self.script.tell(*[StopJob(job="job-1")] * anew, order)
        self._joined += 1
        joined: DeployResult = self.script.wait(DeployResult, self._joined, seconds=120)
        return joined

    def train(self, client: int, round: int) -> ClientResult:
        """Ask for an update, of a model that nobody was asked to train before."""
        model = {name: tensor + self._given for name, tensor in _model().items()}
        settings = TrainSettings(
            local=WANTED.local, client=WANTED.client, seed=WANTED.seed, profile=False, start_loss=False
        )
        return self.ask("train", client, round, encode_settings(settings), model=model)

    def ask(self, name: str, client: int, round: int, settings: bytes = b"null", **parts: Any) -> ClientResult:
        blobs = {}
        for part, arrays in parts.items():
            write_arrays(self.script.spool.folder / part, arrays)
            blobs[part] = self.script.hold((self.script.spool.folder / part).read_bytes())
        wire = replace(task(name, clients=(client,), round=round).task, settings=settings, parts=blobs)
        self.script.tell(AssignTask(job="job-1", task=with_task_id(wire)))
        self._given += 1
        given: SubmitResult = self.script.wait(SubmitResult, self._given, seconds=120)
        return given.result


def _model() -> dict[str, Any]:
    return dict(build_model(WANTED.model, (8, 8), 10, seed=0).state_dict())


@contextmanager
def attacking(server: Hostile) -> Iterator[Hostile]:
    with (
        serving(server.world, server.script, "grpc://localhost:0") as running,
        agent_at(server.world, running.url, WORKER_MODULE, OUTPUT_FILTER_MODULE),
    ):
        yield server


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Hostile]:
    with attacking(Hostile(tmp_path)) as server:
        yield server


@pytest.mark.parametrize("wanted", [6, pytest.param(60, marks=pytest.mark.slow(part="attacks"))])
def test_a_client_under_many_numbers_lets_out_one_update_a_round(wanted: int, hostile: Hostile) -> None:
    """So many noisy updates of one client the server would like to have in one round."""
    assert hostile.deploy(0, (0, 1), anew=False).accepted
    assert hostile.train(0, 1).blob is not None
    for number in range(1, wanted):
        joined = hostile.deploy(number, (0, wanted), anew=number > 1)
        assert joined.reason.startswith(
            f"the server numbers this site's clients from {number}, but this job started with "
        )
        assert not joined.accepted
        assert hostile.train(number, 1).failure == "this site does not participate in the job"
    assert hostile.deploy(None, (0, wanted), anew=True).accepted, "its list of sites is not believed"
    assert all(hostile.train(number, 1).blob is None for number in range(1, wanted, 2))
    assert "was already released" in str(hostile.train(0, 1).failure)
    assert hostile.train(0, 2).blob is not None
    assert "was already released" in str(hostile.train(0, 2).failure)
