"""What people do with a federation, on one that really runs: a server and two sites as processes."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import winnow
from command_line import Outcome, call
from waiting import PATIENCE, eventually
from winnow.config.resolve import resolve
from winnow.core import RunError, WinnowError
from winnow.deploy.client import local_federation as local_federation_module
from winnow.deploy.client.bundle import describe_job
from winnow.deploy.client.connection import Connection
from winnow.deploy.client.local_federation import LocalFederation, local_federation
from winnow.experiment.run import run_experiment
from winnow.learn.algorithm import Recipe
from winnow.runs import RunFolder

SETS = ("data.clients=6", "select.fraction=0.5", "local.epochs=1")
FILE = """
name = "mine"
rounds = 2
seed = 5
plugins = ["mine.py"]
algorithm = "mine"

[data]
name = "digits"
clients = 6

[model]
name = "python"
factory = "net.py:make"

[select]
fraction = 0.5

[local]
name = "sgd"
learning_rate = 0.1

[engine]
execution = "loop"

[job]
min_sites = 2
"""
PLUGIN = """
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.selection import UniformSelector

Recipe(name="mine", summary="FedAvg under another name.", select=UniformSelector, aggregate=PartialAggregation)
"""
NET = """
from torch import nn

def make(sample_shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, outputs))
"""
PROGRAM = """
import winnow
from parts.widths import WIDTH
from torch import nn, manual_seed

manual_seed(3)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 10))
result = winnow.run("demo", model=model, data="digits", clients=6, seed=5, rounds=2, select={"fraction": 0.5},
                    engine={"execution": "loop"})
print(f"best of the program {result.best:.4f}")
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    described = describe_job("demo", sets=SETS, seed=5)
    with_code = replace(described, files={"any.py": b""})  # so that the sites' policies allow own code
    with local_federation(with_code, 2, tmp_path_factory.mktemp("federation")) as running:
        yield running


@pytest.fixture
def me(federation: LocalFederation) -> Connection:
    return federation.connection


@pytest.fixture
def command(federation: LocalFederation, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    return lambda *words: call(capsys, *words, "--kit", federation.kit("me"))


def same(one: Path, other: Path) -> bool:
    ours, theirs = load_file(one), load_file(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def connected(me: Connection) -> set[str]:
    return {site.site for site in me.sites() if site.connected}


# The same model as the simulation's -----------------------------------------------------------------------------------


def test_fedprof_gives_the_simulations_model_bit_for_bit(me: Connection, tmp_path: Path) -> None:
    sets = [*SETS, "engine.execution=loop"]
    run_experiment(resolve("demo", sets=sets, seed=5, rounds=3, algorithm="fedprof"), out=tmp_path / "simulated")
    job = me.submit("demo", sets=sets, seed=5, rounds=3, algorithm="fedprof", min_sites=2)
    assert job.wait(120).round == 3
    run = job.download(tmp_path / "deployed")
    for name in ("best.safetensors", "last.safetensors"):
        assert same(run / name, tmp_path / "simulated" / name)
    raw = np.random.default_rng(0).integers(0, 17, (50, 1, 8, 8))  # split folders say that they hold them divided by 16
    ours, theirs = (winnow.load(folder).predict_proba(raw) for folder in (run, tmp_path / "simulated"))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    view = RunFolder.open(run)
    assert view.label.clock == "wall"
    assert view.summary().best == RunFolder.open(tmp_path / "simulated").summary().best


@pytest.mark.slow(part="deploy")
def test_other_executions_give_it_within_rounding(me: Connection, tmp_path: Path) -> None:
    run_experiment(resolve("demo", sets=SETS, seed=5, rounds=1), out=tmp_path / "simulated")
    job = me.submit("demo", sets=SETS, seed=5, rounds=1, min_sites=2)
    job.wait(120)
    ours = load_file(job.download(tmp_path / "deployed") / "last.safetensors")
    for name, tensor in load_file(tmp_path / "simulated" / "last.safetensors").items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-3, atol=1e-4)


# What can be submitted ------------------------------------------------------------------------------------------------


def test_a_file_brings_its_plugins_and_its_models_factory(
    me: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recipe, "known", dict(Recipe.known))  # the plugin is run here, too; other tests need not know
    for name, text in (("mine.toml", FILE), ("mine.py", PLUGIN), ("net.py", NET)):
        (tmp_path / name).write_text(text)
    job = me.submit(tmp_path / "mine.toml")
    job.wait(120)
    run = job.download(tmp_path / "deployed")
    assert RunFolder.open(run).label.algorithm == "mine"
    as_dealt_out = {"data": resolve("demo", sets=SETS).data}
    run_experiment(resolve(tmp_path / "mine.toml").model_copy(update=as_dealt_out), out=tmp_path / "simulated")
    assert same(run / "last.safetensors", tmp_path / "simulated" / "last.safetensors")


def test_a_program_brings_the_modules_beside_it(me: Connection, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "widths.py").write_text("WIDTH = 9\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    for _ in range(2):  # the second time the modules have been seen before
        described = describe_job(tmp_path / "program.py")
        assert set(described.files) == {"program.py", "parts/__init__.py", "parts/widths.py"}
    job = me.submit(described, min_sites=2)
    job.wait(120)
    said = [line.text for line in job.lines() if line.kind == "log"]
    assert any(line.startswith("best of the program 0.") for line in said)
    weights = load_file(job.download(tmp_path / "run") / "best.safetensors")
    assert weights["1.weight"].shape == (9, 64)


# Following, looking, ending -------------------------------------------------------------------------------------------


def test_a_job_from_submission_to_report(
    command: Callable[..., Outcome], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = [word for each in SETS for word in ("--set", each)]
    submitted = command("submit", "demo", "--rounds", 2, "--min-sites", 2, "--name", "walk", *options)
    assert (submitted.code, submitted.out) == (0, "walk\n")
    followed = command("logs", "walk", "--follow")
    assert "server: submitted by admin me" in followed.out
    assert "round 2: accuracy 0." in followed.out
    assert followed.out.rstrip().endswith("finished after round 2")
    listed = command("jobs", "--json")
    [state] = [each for each in json.loads(listed.out) if each["job"] == "walk"]
    assert (state["status"], state["round"], state["rounds"], state["sites"]) == (
        "finished",
        2,
        2,
        ["site-1", "site-2"],
    )
    assert "walk" in command("jobs").out
    fetched = command("download", "walk", "--out", tmp_path / "run")
    assert fetched.out == f"{tmp_path / 'run'}\n"
    shown = call(capsys, "show", tmp_path / "run")
    assert "finished, 2 rounds" in shown.out
    assert "wall time" in shown.out
    assert call(capsys, "report", tmp_path / "run", "--out", tmp_path / "page.html").code == 0
    assert "the job had already ended" in command("abort", "walk").out
    assert command("clone", "walk", "--name", "walk-again").out == "walk-again\n"
    assert "finished after round 2" in command("logs", "walk-again", "--follow").out
    command("download", "walk-again", "--out", tmp_path / "again")
    assert same(tmp_path / "run" / "last.safetensors", tmp_path / "again" / "last.safetensors")


def test_a_job_that_waits_says_for_what_and_can_be_aborted(me: Connection, command: Callable[..., Outcome]) -> None:
    job = me.submit("demo", min_sites=9)
    eventually(lambda: "of 9" in job.state().reason, "a reason to wait")
    assert job.state().status == "queued"
    with pytest.raises(RunError, match="still queued after 0 seconds"):
        job.wait(0)
    assert command("abort", job.name, "--reason", "it was a try").out == f"{job.name}: aborted\n"
    with pytest.raises(RunError, match="aborted: me: it was a try"):
        job.wait(60)


def test_what_cannot_be_is_refused_in_one_line(command: Callable[..., Outcome], tmp_path: Path) -> None:
    unknown = command("logs", "nothing")
    assert (unknown.code, unknown.err) == (2, "winnow: error: there is no job called nothing\n")
    assert command("sites", "stop", "nowhere").err == "winnow: error: no site called nowhere has ever connected\n"
    misspelt = command("submit", "demo", "--sites", "site-1, sit-2")
    assert (misspelt.code, misspelt.out) == (2, "")
    assert misspelt.err == "winnow: error: no site called sit-2 has ever connected; did you mean 'site-2'?\n"
    early = command("submit", "demo", "--out", tmp_path / "run")
    assert early.err.startswith("winnow: error: --out needs --wait")
    for words in (("submit", "demo", "--name", "bad name/.."), ("logs", "bad name/..")):
        nameless = command(*words)
        assert nameless.err.startswith("winnow: error: 'bad name/..' cannot be the name of a job: it must have at most")


def test_status_and_sites(command: Callable[..., Outcome]) -> None:
    assert command("status").out.splitlines()[0].startswith("leader server since ")
    assert json.loads(command("status", "--json").out)["sites"] == 2
    for words in (["sites"], ["sites", "list"]):
        listed = command(*words)
        assert listed.out.count("connected") == 2
        assert "digits" in listed.out
    assert [each["site"] for each in json.loads(command("sites", "list", "--json").out)] == ["site-1", "site-2"]


def test_the_same_from_python(federation: LocalFederation, tmp_path: Path) -> None:
    with winnow.connect(federation.kit("me")) as connection:
        job = connection.submit("demo", sets=SETS, rounds=1, sites=("site-1",), name="alone")
        state = job.wait(120)
        assert (state.sites, next(iter(state.metrics))) == (["site-1"], "reference")
        assert connection.job("alone").state().status == "finished"
        assert "alone" in [each.job for each in connection.jobs()]
        assert (job.download(tmp_path / "run") / "result.json").is_file()


def test_a_site_is_restarted(federation: LocalFederation, command: Callable[..., Outcome]) -> None:
    assert command("sites", "restart", "site-1").out == "site-1 restarts\n"
    log = federation.folder / "logs" / "site-1.log"
    eventually(lambda: log.read_text().count("site site-1 (") == 2, "a new beginning")
    eventually(lambda: "site-1" in connected(federation.connection), "site-1 again")
    assert federation.processes["site-1"].poll() is None, "it is the same process"


def test_a_site_is_stopped(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_short_heartbeat(folder: Path, *given: Any, **more: Any) -> None:
        configure(folder, *given, **more)
        file = folder / "project" / "kits" / "server" / "server.toml"
        file.write_text("heartbeat = 0.5\n" + file.read_text())

    configure = local_federation_module._configure
    monkeypatch.setattr(local_federation_module, "_configure", with_short_heartbeat)
    with local_federation(describe_job("demo", sets=SETS, seed=5), 1, tmp_path) as own:
        stopped = call(capsys, "sites", "stop", "site-1", "--kit", own.kit("me"))
        assert stopped.out == "site-1 stops\n"
        assert own.processes["site-1"].wait(PATIENCE) == 0
        eventually(lambda: connected(own.connection) == set(), "site-1 has gone")


def test_a_site_whose_policy_forbids_it_is_not_said_to_stop(
    federation: LocalFederation, command: Callable[..., Outcome]
) -> None:
    policy = federation.kit("site-1") / "policy.toml"
    allowing = policy.read_text()
    policy.write_text(allowing.replace("remote_control = true", "remote_control = false"))
    refused = command("sites", "stop", "site-1")
    policy.write_text(allowing)
    assert refused.code == 2
    assert refused.err == (
        "winnow: error: site-1 does not stop: this site's policy does not allow its agent to be stopped or restarted "
        "remotely\n"
    )
    assert federation.processes["site-1"].poll() is None


def test_a_list_of_jobs_fits_80_columns(
    me: Connection, command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "fedavg-with-a-name-0a1b2c"
    job = me.submit("demo", sets=SETS, rounds=1, min_sites=9, name=name)
    eventually(lambda: "of 9" in job.state().reason, "a reason to wait")
    lines = command("jobs").out.splitlines()
    job.abort()
    [row] = [line for line in lines if line.strip().startswith(f"{name}  ")]
    assert len(row) <= 80
    assert "queued" in row
    assert any(line.startswith(f"{name} queued: waiting for sites: ") for line in lines)


# Before anything is sent ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "import winnow, numpy as np\nwinnow.run(data=(np.zeros((40, 3)), np.arange(40) % 2))",
            "passes data as arrays",
        ),
        ("x = 1", "does not call winnow.run or winnow.run_workflow"),
        ("raise SystemExit(0)", "does not call winnow.run or winnow.run_workflow"),
        ('import winnow\nwinnow.run("demo"\n', "^program.py, line 2: SyntaxError: '\\(' was never closed$"),
        ("import winnow\n\nprint(x)\n", "^program.py, line 3: NameError: name 'x' is not defined$"),
        ("import json\njson.loads('{')\n", "^program.py, line 2: JSONDecodeError: Expecting"),
        ("import beside\n", "^beside.py, line 2: ZeroDivisionError: "),
        ("import winnow\nwinnow.run('demo', rounds=0)", "rounds"),
    ],
)
def test_a_program_that_cannot_be_a_job_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(text)
    (tmp_path / "beside.py").write_text("\n1 / 0\n")
    with pytest.raises(WinnowError, match=told) as raised:
        describe_job(tmp_path / "program.py")
    assert "\n" not in str(raised.value)


def test_options_do_not_go_with_a_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with pytest.raises(WinnowError, match="is a program; pass rounds, seed to"):
        describe_job(tmp_path / "program.py", rounds=3, seed=0, sets=())


@pytest.mark.parametrize("command", [("local", "run", "demo"), ("submit", "demo", "--wait", "--kit", "kit")])
def test_a_folder_that_cannot_take_the_result_is_refused_first(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for begins in ("winnow.deploy.client.local_federation.local_federation", "winnow.deploy.client.connection.connect"):
        monkeypatch.setattr(begins, lambda *_, **__: pytest.fail("it was begun"))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "result.json").write_text("{}")
    for name, told in (
        ("file", "is a file, and a folder is needed here"),
        ("file/below", "is a file, and a folder is needed here"),
        ("done", "contains a finished run; choose another --out"),
    ):
        refused = call(capsys, *command, "--out", tmp_path / name)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert told in refused.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["done", "file"]
