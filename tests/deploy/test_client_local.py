"""A federation on one machine from one command: it runs, says what went wrong, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from command_line import call
from support.needs import data_set
from waiting import PATIENCE, eventually
from winnow.config.resolve import resolve
from winnow.core import ConfigError, RunError
from winnow.data.split_into_site_folders import split_into_folders
from winnow.deploy.client import local_federation as local
from winnow.deploy.client.bundle import describe_job
from winnow.deploy.client.local_federation import local_federation
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run import run_experiment
from winnow.runs import EvaluationRecord

COMMAND = [sys.executable, "-m", "winnow.cli", "local", "--sites", "2", "run"]


def begun(folder: Path, *words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "TMPDIR": str(folder / "temporary"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    (folder / "temporary").mkdir()
    return subprocess.Popen(
        [*COMMAND, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that speak of this folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


@pytest.mark.parametrize("ending", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow(part="deploy"))])
def test_an_interrupt_leaves_no_process_and_no_folder(ending: signal.Signals, tmp_path: Path) -> None:
    running = begun(tmp_path, "demo", "--rounds", "500", "--set", "data.clients=6", "--out", "run")
    temporary = tmp_path / "temporary"

    def all_started() -> bool:
        assert running.poll() is None, running.communicate()
        return len(processes_of(temporary)) >= 3  # a server and two sites

    eventually(all_started)
    running.send_signal(ending)
    time.sleep(0.1)
    running.send_signal(signal.SIGINT)  # an impatient second one
    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert said.splitlines()[-1] == "winnow: stopped; all processes have ended and their files are deleted"
    assert processes_of(temporary) == []
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "run").exists()


@pytest.mark.slow(part="deploy")
def test_a_job_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import winnow\nfrom torch import nn\n\n"
        "def make(shape, outputs):\n    return nn.Linear(3, outputs)\n\n"
        "winnow.run('demo', model=make((1,), 10), data='digits', clients=4)\n"
    )
    running = begun(tmp_path, "program.py")
    try:
        _, said = running.communicate(timeout=PATIENCE)
    finally:
        running.terminate()
    assert running.returncode == 2
    last = said.splitlines()[-1]
    assert last.startswith("winnow: error: job demo-")
    assert "failed: the model does not accept a batch" in last
    assert list((tmp_path / "temporary").iterdir()) == []


PRINTING = """
import winnow

print("site site-1 rejected the job: its policy forbids it")
print("site site-1 is excluded: no contact for 4 s")
winnow.run("demo", data="digits", clients=4, rounds=1, engine={"execution": "loop"})
"""


@pytest.mark.slow(part="deploy")
def test_a_job_that_prints_what_the_server_logs_about_lost_sites_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PRINTING)
    done = call(capsys, "local", "--sites", 2, "run", "program.py", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert "server: site site-1 rejected the job: its policy forbids it" in done.err
    assert "finished, 1 round" in done.out
    scores = EvaluationRecord.read(tmp_path / "run" / "evaluation.json")
    assert scores is not None
    assert scores.overall is not None
    assert np.sum(scores.overall.confusion) == scores.overall.samples > 0


def test_a_site_that_rejects_the_job_ends_a_local_federation_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidding(folder: Path, names: Sequence[str], *rest: Any, **more: Any) -> None:
        configure(folder, names, *rest, **more)
        (folder / "project" / "kits" / names[0] / "policy.toml").write_text("jobs = []")

    configure = local._configure
    monkeypatch.setattr(local, "_configure", forbidding)
    options = ["--rounds", 1, "--set", "data.clients=4", "--out", tmp_path / "run"]
    done = call(capsys, "local", "run", "demo", "--sites", 2, *options)
    assert done.code == 2
    assert re.search(r"job \S+ cannot continue: site site-1 .*admin me .* may not run jobs here", done.err), done.err
    assert not (tmp_path / "run").exists()


def test_a_server_that_does_not_start_is_told_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winnow.deploy.client.local_federation._configure", lambda folder, *_, **__: _spoil(folder))
    described = describe_job("demo", sets=["data.clients=4"])
    with pytest.raises(RunError, match=r"server did not start: winnow: error: .*server\.toml"):
        local_federation(described, 1, tmp_path / "federation").__enter__()


@pytest.mark.parametrize(
    ("keeper", "told"),
    [("true", "keeper = true names none"), ("'site-9'", "there is no site 'site-9' in the job")],
)
def test_a_keeper_that_is_no_site_is_refused_before_anything_starts(keeper: str, told: str, tmp_path: Path) -> None:
    described = describe_job("demo", algorithm="fedavg", sets=["collect.name=secure", f"collect.keeper={keeper}"])
    with pytest.raises(ConfigError, match=f'{told}; write keeper = "SITE", one of site-1, site-2'):
        local_federation(described, 2, tmp_path / "federation").__enter__()
    assert list(tmp_path.iterdir()) == []
    describe_job("demo", algorithm="fedavg", sets=["collect.name=secure", "collect.keeper=site-9"]).check_parties(None)


def _spoil(folder: Path) -> None:
    (folder / "project" / "kits" / "server" / "server.toml").write_text("nonsense = 1")


def test_the_same_data_as_in_the_simulation_are_dealt_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    done = call(capsys, "data", "split", "demo", "--sites", 3, "--out", tmp_path / "dealt", "--set", "data.clients=4")
    lines = done.out.splitlines()
    assert [line.rpartition("/")[2].partition(",")[0] for line in lines] == [
        "site-1: 2 clients",
        "site-2: 1 client",
        "site-3: 1 client",
        "server: reference and test sets",
    ]
    again = call(capsys, "data", "split", "demo", "--sites", 3, "--out", tmp_path / "dealt")
    assert again.err == f"winnow: error: {tmp_path / 'dealt'} is not empty; choose another --out\n"
    many = call(capsys, "data", "split", "demo", "--sites", 99, "--out", tmp_path / "many")
    assert "the data has only" in many.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dealt"]


def test_nothing_is_left_of_data_that_could_not_be_dealt_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winnow.data.split_into_site_folders._write_held", _full)
    with pytest.raises(OSError, match="No space"):
        split_into_folders(resolve("demo").data, 0, 2, tmp_path / "dealt")
    assert list(tmp_path.iterdir()) == []


def _full(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_commands_of_federations_say_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "winnow.cli.federation.require_deploy_extra.find_spec", lambda name: None if name == "grpc" else name
    )
    for words in (
        ["provision", "p.toml"],
        ["server", "kit"],
        ["site", "kit"],
        ["local", "run", "demo"],
        ["submit", "demo", "--kit", "me"],
        *([command, "job", "--kit", "me"] for command in ("logs", "abort", "clone", "download")),
        *([command, "--kit", "me"] for command in ("jobs", "status", "sites")),
        ["sites", "stop", "x", "--kit", "me"],
        ["audit", "verify", "kit"],
    ):
        done = call(capsys, *words)
        assert done.code == 2, words
        assert re.fullmatch(r"winnow: error: federations need grpc: pip install .*\[deploy\]['\"]\n", done.err), words


@pytest.mark.slow(part="deploy")
def test_fedprof_on_gas_turbine_over_five_sites_is_the_simulation(tmp_path: Path, data_directory: Path) -> None:
    data_set(data_directory, "gas_turbine")
    sets = ["engine.execution=loop", "data.clients=50"]
    experiment = resolve("gas-turbine", sets=sets, seed=3, rounds=10, algorithm="fedprof")
    run_experiment(experiment, inputs=RunInputs(data_directory=data_directory), out=tmp_path / "simulated")
    described = describe_job("gas-turbine", sets=sets, seed=3, rounds=10, algorithm="fedprof")
    with local_federation(described, 5, tmp_path / "federation", data_directory=data_directory) as federation:
        job = federation.connection.submit(described, min_sites=5)
        job.wait(600)
        run = job.download(tmp_path / "deployed")
    for name in ("best.safetensors", "last.safetensors"):
        ours, theirs = load_file(run / name), load_file(tmp_path / "simulated" / name)
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
