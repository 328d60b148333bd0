"""`winnow site` as it is run: a small process that ends when told to, and may be killed at any moment."""

import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from papers import a_project
from siting import POLICY, WORKER, Script, World, agent_at, deploy, serving, settle, task, wait_for

from support.needs import SANDBOX
from winnow.deploy.client.free_port import free_port
from winnow.deploy.sandbox import isolation
from winnow.deploy.sandbox.child_entry_point import OUTPUT_FILTER_MODULE
from winnow.deploy.sandbox.child_entry_point import WORKER_MODULE as REAL_WORKER
from winnow.deploy.wire.messages import ControlAgent, DeployResult, Hello, SubmitResult

CLIP = '[[filters]]\nname = "clip"\nnorm = 1.0\n'
AGENT = """
import sys
from pathlib import Path
from winnow.deploy.site import agent_process
from winnow.deploy.site.agent import Agent
agent_process.Agent = lambda *given: Agent(*given, worker=sys.argv[2])
agent_process.run_agent(Path(sys.argv[1]))
"""


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd="/")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def winnow_site(world: World, *options: str) -> list[str]:
    return [sys.executable, "-c", "from winnow.cli import main; main()", "site", str(world.kit_folder), *options]


@pytest.fixture
def world(tmp_path: Path, port: int) -> World:
    server = {"name": "server-1", "organisation": "Institute", "hosts": ["localhost"], "port": port}
    return World(tmp_path / "project", project=a_project(servers=[server]))


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server(world: World, script: Script, port: int) -> Iterator[Any]:
    with serving(world, script, f"grpc://localhost:{port}") as running:
        yield running


def resident_mb(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def test_an_idle_site_is_small_and_ends_when_told_to(world: World, script: Script, server: Any) -> None:
    with started(*winnow_site(world)) as process:
        script.wait(Hello)
        time.sleep(1.0)
        loaded = Path(f"/proc/{process.pid}/maps").read_text()
        assert resident_mb(process.pid) < 60
        assert "torch" not in loaded
        assert "numpy" not in loaded
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    lines = said.splitlines()
    assert "site plant-a (Plant A): data turbines; 2 CPUs, 2000 MB, 0 GPUs; servers grpc://localhost:" in lines[0]
    assert lines[-1].endswith("stopped")


def test_other_users_of_the_machine_may_read_nothing_of_it(world: World, script: Script, server: Any) -> None:
    """Whatever its umask was: state, logs, downloads, replies, what clients keep, what the worker wrote."""
    (world.kit_folder / "state").mkdir(mode=0o755)
    with started(
        "/bin/sh", "-c", f"umask 0; exec {shlex.join([sys.executable, '-c', AGENT, str(world.kit_folder), WORKER])}"
    ):
        first = task()
        script.tell(deploy(script, world.bundle()), first, settle(first), task(round=2))
        script.wait(SubmitResult, 2)
        made = [world.kit_folder / "state", *(world.kit_folder / "state").rglob("*"), *world.kit_folder.glob("audit*")]
        assert {"site.sqlite", "worker.log", "work", "kept", "replies", "parts", "count"} <= {
            path.name for path in made
        }
        assert any(path.parent.name == "kept" for path in made)
        assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_told_to_restart_it_begins_anew(world: World, script: Script, server: Any) -> None:
    import json

    world.allow("remote_control = true\n")
    with started(*winnow_site(world, "--json-logs")) as process:
        script.wait(Hello)
        script.orders.append(ControlAgent(restart=True))
        script.wait(Hello, 2)
        script.orders.append(ControlAgent(restart=False))
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [json.loads(line)["message"] for line in said.splitlines()].count("agent stopped") == 2


def test_mistakes_are_one_line(world: World, tmp_path: Path) -> None:
    for command, problem in (
        ([*winnow_site(world)[:-1], str(tmp_path / "none")], "does not exist; winnow provision creates kits"),
        (winnow_site(world, "--config", str(tmp_path / "none")), "cannot be read: No such file"),
        ([*winnow_site(world)[:-1], str(world.folder / "kits" / "the-lead")], "this command needs the kit of a site"),
    ):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 2
        assert problem in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow(part="kills")
def test_killed_at_any_moment_it_answers_once_and_keeps_what_was_settled(
    world: World, script: Script, server: Any
) -> None:
    """A chain of rounds, each of which needs what the last one kept, under a storm of SIGKILLs."""
    chance = random.Random(3)
    script.tell(deploy(script, world.bundle(), first_client=0))
    answers: dict[str, set[Any]] = {}
    kills = 0
    for number in range(1, 5):
        assigned = task("slow", settings=0.1, clients=(0, 1), round=number)
        script.outstanding[1:] = [*script.outstanding[1:2], assigned] if number > 1 else [assigned]
        while len(answers.get(assigned.task.id, ())) < 2:
            with started(sys.executable, "-c", AGENT, str(world.kit_folder), WORKER) as process:
                kills += 1
                until = time.monotonic() + chance.uniform(0.5, 1.0) + kills / 10
                while time.monotonic() < until and len(answers.get(assigned.task.id, ())) < 2:
                    for given in script.all_of(SubmitResult):
                        if given.result.failure is None:
                            answers.setdefault(given.result.task, set()).add(
                                (given.result.client, given.result.blob.digest)
                            )
                    time.sleep(0.02)
                process.kill()
        script.outstanding[1:] = [settle(assigned)]
    for given in script.all_of(SubmitResult):
        assert given.result.failure is None
    assert [len(each) for each in answers.values()] == [2, 2, 2, 2]
    assert kills >= 4
    last = [each for each in script.all_of(SubmitResult) if each.result.task == assigned.task.id]
    assert [script.payload(each)["kept"] for each in last[:2]] == [[1, 2, 3], [1, 2, 3]]


def test_a_killed_agents_processes_end_with_it(world: World, script: Script, server: Any) -> None:
    with started(sys.executable, "-c", AGENT, str(world.kit_folder), WORKER) as process:
        script.tell(deploy(script, world.bundle()), task("slow", settings=60.0))
        script.wait(DeployResult)
        children = Path(f"/proc/{process.pid}/task")
        workers = [int(each) for path in children.glob("*/children") for each in path.read_text().split()]
        assert workers
        process.kill()
        process.wait()
        wait_for(lambda: not any(Path(f"/proc/{each}").exists() for each in workers), "end of the workers")


@SANDBOX.unless(isolation.sandbox_unavailable_reason() is None)
@pytest.mark.parametrize(("own_code", "filters"), [(False, ""), (True, ""), (True, CLIP)])
def test_the_real_worker_starts_behind_its_walls(tmp_path: Path, script: Script, own_code: bool, filters: str) -> None:
    import numpy as np

    from winnow.config.resolve import resolve, to_toml

    experiment = resolve("demo", sets=["engine.execution=loop"], rounds=2)
    name, folder, sizes = experiment.data.name, tmp_path / "clients", [7, 5]
    folder.mkdir()
    for client, size in enumerate(sizes):
        np.savez(folder / f"{client}.npz", x=np.zeros((size, 8, 8), np.float32), y=np.arange(size) % 10)
    site = f'[resources]\nmemory_mb = 4000\ncpus = 1\n[data.{name}]\nfolder = "{folder}"\nclasses = 10\n'
    world = World(tmp_path / "project", policy=POLICY.replace("turbines", name) + filters, site=site)
    files = {"mine.py": "x = 1"} if own_code else {}
    with (
        serving(world, script, "memory://real") as running,
        agent_at(world, running.url, REAL_WORKER, OUTPUT_FILTER_MODULE),
    ):
        script.tell(deploy(script, world.bundle(to_toml(experiment), **files)))
        joined = script.wait(DeployResult, seconds=60)
        assert joined.accepted, joined.reason
        assert joined.data.sizes == sizes
        script.tell(deploy(script, world.bundle(), job="job-2"))
        assert not script.wait(DeployResult, 2).accepted
