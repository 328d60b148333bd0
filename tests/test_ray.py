"""Cohorts answered by actors on a Ray cluster: one on this machine, with two cores."""

import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from registries import restored
from winnow.config.plugins import load_plugins
from winnow.core import ConfigError, ModelError, RoundFinished, Task
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.stack.user_training_functions import OwnBatch, OwnStep, StepFunction
from winnow.simulate import RayWorkers, WorkerPool
from world import blobs, experiment, prepared

SETS = ("engine.chunk=2", "select.count=7", "rounds=3", "data.partition.name=dirichlet", "local.batch_size=16")


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """Do not look for leaks: until the process ends, Ray keeps its logs, and connections even to lost actors."""


@pytest.fixture(autouse=True, scope="module")
def _no_leaks_by_module() -> None:
    """Do not look for leaks in this module either."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, while it is imported and starts
        import ray

        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def trained(*sets: str, kill_after_round: int | None = None) -> tuple[list[str], dict[str, torch.Tensor]]:
    with prepared(*SETS, *sets) as ready:
        events = []
        for event in ready.training.run(ready.federation):
            events.append(repr(event))
            if isinstance(event, RoundFinished) and event.round == kill_after_round:
                assert ready.pool is not None
                os.kill(ready.pool.processes[0], signal.SIGKILL)
        return events, dict(ready.training.model)


PLUGIN = """
from typing import Literal

from winnow.learn.client_round_method import ClientUpdate, LocalResult


class Held(ClientUpdate):
    name: Literal["held"] = "held"

    def update(self, training):
        trained = training.train(proximal_weight=0.5, anchor=training.model)
        return LocalResult(model=trained.states, trained=trained)
"""


def same(one: tuple[list[str], dict[str, torch.Tensor]], other: tuple[list[str], dict[str, torch.Tensor]]) -> bool:
    return one[0] == other[0] and all(torch.equal(one[1][name], other[1][name]) for name in one[1])


@pytest.mark.slow(part="executions")  # Ray gives a node 30 seconds to start, which a busy machine does not keep to
@pytest.mark.usefixtures("cluster")
class TestOnACluster:
    def test_actors_give_what_this_process_gives_even_when_one_is_killed(self) -> None:
        here = trained()
        assert same(trained('engine.workers="ray"', kill_after_round=1), here)

    def test_what_a_plugin_defines_is_known_to_actors(self, tmp_path: Path) -> None:
        plugin = tmp_path / "held.py"
        plugin.write_text(PLUGIN)
        with restored():
            load_plugins([plugin], "here")
            here, there = (trained("client.name=held", *sets) for sets in ((), ('engine.workers="ray"',)))
        assert same(here, there)

    def test_a_mistake_in_making_the_site_is_raised_as_it_is(self) -> None:
        def make_site() -> object:
            raise ModelError("the model has no such layer")

        crew = RayWorkers(make_site, {"train": print})
        pool = WorkerPool(crew, names=["train"], sizes=np.ones(1), workers=1, chunk=1, clock=time.monotonic)
        with pytest.raises(ModelError, match=r"^the model has no such layer$"):
            pool.answer([Task(name="train", client=0, round=1, version=0)])

    def test_a_model_of_a_script_travels_with_its_code(self) -> None:
        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(5, 3)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.layer(x).tanh()

        def model(*sets: str) -> dict[str, torch.Tensor]:
            torch.manual_seed(0)
            asked = experiment(*SETS, *sets, algorithm="fedavg-rp")
            loss = lambda outputs, targets: (outputs - torch.eye(3)[targets]).square().sum(1)  # noqa: E731
            with prepare_run(asked, RunInputs(dataset=blobs(), module=Net(), loss=loss)) as ready:
                list(ready.training.run(ready.federation))
                return ready.training.model

        here, there = model(), model('engine.workers="ray"')
        assert all(torch.equal(here[name], there[name]) for name in here)

    def test_a_training_step_travels_with_its_code_or_one_line_says_why_not(self) -> None:
        lock = threading.Lock()

        def step(model: torch.nn.Module, batch: OwnBatch) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(model(batch.x), batch.y, label_smoothing=0.1)

        def locked(model: torch.nn.Module, batch: OwnBatch) -> torch.Tensor:
            with lock:
                return step(model, batch)

        def model(own: StepFunction, *sets: str) -> dict[str, torch.Tensor]:
            inputs = RunInputs(dataset=blobs(), own=OwnStep(own))
            with prepare_run(experiment(*SETS, *sets, algorithm="fedavg-rp"), inputs) as ready:
                list(ready.training.run(ready.federation))
                return ready.training.model

        here, there = model(step), model(step, 'engine.workers="ray"')
        assert all(torch.equal(here[name], there[name]) for name in here)
        with pytest.raises(ConfigError, match=r"the training step .* cannot be sent to workers: .*lock"):
            model(locked, 'engine.workers="ray"')


def test_an_address_where_nobody_is_takes_no_patience() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(
            ConfigError, match=f"^engine.ray_address: cannot connect to {address} .*; check that the Ray cluster"
        ):
            prepared('engine.workers="ray"', f'engine.ray_address="{address}"')


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'^engine.workers = "ray" needs an extra: pip install .*\[ray\]'):
        RayWorkers(dict, {})
