"""Deployments at size: many sites, large models, and workflows that never load torch."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from bench.deploy import large
from bench.deploy.exchange import mean_after, write_program
from bench.deploy.world import rss, uses_torch, world
from broker import Broker

from winnow.deploy.jobs import lazy_array_loading
from winnow.deploy.jobs.ipc_messages import JobFinished
from winnow.deploy.wire.safetensors_files import StoredArrays

MB = 1e6

NO_TORCH = """
import sys

import numpy as np

import winnow
from winnow.core import Reply
from winnow.core.scatter_gather import ScatterAndGather


def train(tasks, holdings):
    loaded = {"loss": float("torch" in sys.modules)}
    return [
        Reply(task=task, payload={"model": {"w": task.payload["model"]["w"] + 1}}, metrics=loaded) for task in tasks
    ]


winnow.run_workflow(ScatterAndGather("train", {"w": np.zeros(3, np.float32)}, 2), {"train": train}, data="numbers")
assert "torch" not in sys.modules
"""


def run_program(text: str, folder: Path, sites: int) -> Broker:
    data = folder / "numbers.npz"
    np.savez(data, x=np.zeros((4, 2), np.float32), y=np.zeros((4, 1), np.float32))
    broker = Broker("", [{"file": str(data)}] * sites, {}, folder / "job", fork_server=None)
    broker.with_program("own.py", text, "name = 'own'")
    try:
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, JobFinished), ended
    return broker


def test_a_workflow_of_plain_arrays_loads_torch_neither_at_the_server_nor_at_sites(tmp_path: Path) -> None:
    """Also where a task has the name of one that learning sites know."""
    broker = run_program(NO_TORCH, tmp_path, 2)
    rounds = [event for line in broker.lines if (event := json.loads(line))["kind"] == "round_finished"]
    assert [event["loss"] for event in rounds] == [0.0, 0.0]
    assert broker.checkpoint is not None
    with StoredArrays(broker.checkpoint) as stored:
        assert stored.numpy("a/w").tolist() == [2.0, 2.0, 2.0]


@pytest.mark.slow(part="deploy")
def test_arrays_that_stay_in_files_give_the_same_mean(tmp_path: Path) -> None:
    """More than what is read into memory at once, over two rounds: tasks, replies, and what a round has made."""
    floats = lazy_array_loading.MAX_IN_MEMORY_BYTES // 4 // 3
    program = write_program(tmp_path, arrays=4, length=floats, rounds=2).read_text()
    broker = run_program(program, tmp_path, 3)
    assert broker.checkpoint is not None
    with StoredArrays(broker.checkpoint) as stored:
        names = [name for name in stored if name.startswith("a/")]
        assert len(names) == 4
        assert all(np.all(stored.numpy(name) == mean_after(3, 2)) for name in names)


@pytest.mark.slow(part="endurance")
def test_many_idle_sites_stay_connected_and_small(tmp_path: Path) -> None:
    sites = 60
    with world(tmp_path, sites) as here:
        time.sleep(12)
        agents = [here.processes[name].pid for name in here.names]
        assert here.connected() == sites
        assert not any(map(uses_torch, [*agents, here.server]))
        assert max(map(rss, agents)) < 60 * MB
        chosen = tuple(here.names[:5])
        job = here.connection.submit(write_program(tmp_path, arrays=2, length=1000, rounds=2), sites=chosen)
        assert job.wait(120).round == 2
        assert here.connected() == sites


@pytest.mark.slow(part="endurance")
def test_a_large_model_passes_through_the_server_in_little_memory() -> None:
    peaks, _ = large.carry(512, 6)
    assert peaks.above < 300 * MB
    assert not peaks.torch
