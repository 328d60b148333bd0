"""Differential privacy between real processes: noise that nobody can foresee, bounds at sites, a budget that holds."""

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
import torch
from broker import Broker
from killing import job_processes
from loopback import Loopback, StoppedError
from msgspec.structs import replace as changed
from scipy.optimize import brentq
from scipy.stats import norm
from test_conformance_deployed import deployed
from test_jobs_processes import dealt, small
from test_secure_deployed import Notebook, hire

from waiting import eventually

sys.path.insert(0, str(Path(__file__).parents[1]))
from command_line import call
from winnow.config.resolve import resolve, to_toml
from winnow.config.schema import Experiment
from winnow.core import AnyEvent, Rejected, Reply, RoundFinished, Selected, Stopped, Task
from winnow.deploy.client.bundle import describe_job
from winnow.deploy.client.download import write_run_folder
from winnow.deploy.client.job_progress import LogFormatter
from winnow.deploy.client.local_federation import LocalFederation, local_federation
from winnow.deploy.jobs.ipc_messages import DispatchTask, JobFinished, RunTask
from winnow.deploy.jobs.lazy_array_loading import open_arrays, open_parts
from winnow.deploy.jobs.mandatory_filters import mandatory_filters
from winnow.deploy.jobs.snapshot_file import load_snapshot
from winnow.deploy.site.agent import STATE_FILE
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.handlers import ProfileSettings
from winnow.privacy.secagg.simulated_identities import simulated_identities
from winnow.runs import RunFolder
from winnow.runs.event_log import decode_event
from world import blobs, experiment

DELTA, Z = 5e-4, 2.0
NOISE = f"noise_multiplier={Z}, delta={DELTA}"
CENTRAL = f"collect={{name='central-dp', {NOISE}}}"
WAYS = {
    "central-dp": (CENTRAL,),
    "poisson": (CENTRAL, "select.name=poisson"),
    "local-dp": (f"filters=[{{name='local-dp', clip=1.0, {NOISE}}}]",),
    "dp-sgd": (f"client={{name='dp-sgd', {NOISE}}}",),
    "discrete-gaussian": ("collect.name=secure", f"collect.encoding={{name='discrete-gaussian', clip=1.0, {NOISE}}}"),
    "profiles": (
        CENTRAL,
        "select.name=profile",
        f"select.profile_comparison={{name='noisy', clip=5.0, noise_multiplier={Z}}}",
    ),
}
WAYS["profiles by class"] = (*WAYS["profiles"], "select.profile=by-class")
TOLD = {"local-dp": "local_epsilon", "dp-sgd": "record_epsilon"}
BUDGET = {
    "local-dp": "filters=[{{name='local-dp', clip=1.0, {noise}, epsilon={budget}}}]",
    "dp-sgd": "client.epsilon={budget}",
    "discrete-gaussian": "collect.encoding.epsilon={budget}",
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS)


def private(way: str, *sets: str) -> Experiment:
    return experiment("engine.execution=loop", "rounds=3", *WAYS[way], *sets, algorithm="fedavg")


def flat(model: Any) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for _, tensor in sorted(model.items())])


def simulated(wanted: Experiment) -> torch.Tensor:
    with prepare_run(wanted, RunInputs(dataset=blobs())) as run:
        list(run.training.run(run.federation))
        return flat(run.training.model)


def log_of(lines: Sequence[str]) -> list[AnyEvent]:
    return [decode_event(line.encode()) for line in lines]


def spent(log: Sequence[AnyEvent], way: str) -> list[float]:
    """What each round says that privacy has cost."""
    return [event.metrics["privacy"][TOLD.get(way, "epsilon")] for event in log if isinstance(event, RoundFinished)]


# What it must have cost -----------------------------------------------------------------------------------------------


def gaussian(inverse_variance: float) -> float:
    """ε of a Gaussian release, from its exact δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ), where μ = 1/σ."""
    mu = inverse_variance**0.5

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)) - DELTA

    return float(brentq(excess, 0.0, 100.0)) if inverse_variance else 0.0


def sampled(chance: float, times: int) -> float:
    accountant = dp.pld.PLDAccountant(value_discretization_interval=1e-3)
    event = dp.PoissonSampledDpEvent(chance, dp.GaussianDpEvent(Z)) if chance < 1 else dp.GaussianDpEvent(Z)
    return float(accountant.compose(event, times).get_epsilon(DELTA))


def concentrated(times: int) -> float:
    accountant = dp.rdp.RdpAccountant()
    return float(accountant.compose(dp.ZCDpEvent(1 / (2 * Z**2)), times).get_epsilon(DELTA))


def owed(way: str, log: Sequence[AnyEvent], sizes: Sequence[int]) -> list[float]:
    """ε after each round, worked out from whom the rounds invited."""
    times, found = np.zeros(len(sizes), int), []
    for event in log:
        if isinstance(event, Selected):
            times[event.clients] += 1
            found.append(_owed(way, times, sizes))
    return found


def _owed(way: str, times: np.ndarray, sizes: Sequence[int]) -> float:
    most = int(times.max())
    if way == "dp-sgd":
        steps = [(size, 2 * ceil(size / 8) * int(often)) for size, often in zip(sizes, times, strict=True) if often]
        return max(sampled(min(1.0, 8 / size), count) for size, count in {*steps})
    if way == "discrete-gaussian":
        return concentrated(most)
    return gaussian(((2 * most + 1) if way.startswith("profiles") else most) / Z**2)


def sizes_of(job: Loopback) -> list[int]:
    return [size for member in job.members for size in member.data.sizes]


# Over messages and files ----------------------------------------------------------------------------------------------


@EVERY_WAY
def test_noise_is_the_operating_systems(way: str, tmp_path: Path) -> None:
    """A simulation repeats under its seed. Two deployed runs differ, from each other and from the simulation."""
    wanted = private(way, "rounds=1")
    here = [simulated(wanted) for _ in range(2)]
    assert torch.equal(*here)
    jobs = [deployed(wanted, tmp_path / name) for name in ("one", "other")]
    for job in jobs:
        job.run()
    one, other = (
        flat({n: t for n, t in load_snapshot(tmp_path / name / "committed").arrays.items() if n.startswith("model/")})
        for name in ("one", "other")
    )
    for first, second in ((one, other), (one, here[0]), (other, here[0])):
        assert (first != second).float().mean() > 0.9


@EVERY_WAY
def test_a_job_that_begins_anew_keeps_what_was_spent(way: str, tmp_path: Path) -> None:
    job = deployed(private(way), tmp_path)
    with pytest.raises(StoppedError):
        job.run(stop_after=2)
    result = job.run()
    log = log_of(job.lines)
    assert [event.round for event in log if isinstance(event, RoundFinished)] == [1, 2, 3]
    assert spent(log, way) == pytest.approx(owed(way, log, sizes_of(job)), rel=2e-3)
    assert result.summary.privacy_spent == {TOLD.get(way, "epsilon"): spent(log, way)[-1]}


@EVERY_WAY
def test_a_job_stops_at_its_budget_and_does_not_go_on_when_it_begins_anew(way: str, tmp_path: Path) -> None:
    """All clients take part in each round, so that the budget lasts for two rounds, whoever counts."""
    unbounded = deployed(private(way, "select.count=8"), tmp_path / "unbounded")
    unbounded.run()
    costs = spent(log_of(unbounded.lines), way)
    budget = (costs[1] + costs[2]) / 2
    bounded = BUDGET.get(way, "collect.epsilon={budget}").format(budget=budget, noise=NOISE)
    job = deployed(private(way, "select.count=8", bounded), tmp_path / "bounded")
    for _ in range(2):
        result = job.run()
        assert result.summary.rounds == 2
        assert f"epsilon = {budget:g} does not last for round 3" in (result.summary.stopped or "")
        assert isinstance([*result.view.log][-1], Stopped)
        assert spent(result.view.log, way) == pytest.approx(costs[:2])


def test_poisson_sampling_amplifies_nothing_where_the_log_says_who_was_drawn(tmp_path: Path) -> None:
    """Whoever reads a job's lines knows the rounds with a client: its ε is that of those rounds, in full."""
    job = deployed(private("poisson", "rounds=4"), tmp_path)
    job.run()
    log = log_of(job.lines)
    drawn = [event.clients.tolist() for event in log if isinstance(event, Selected)]
    assert len(drawn) == 4, "the lines say it"
    most = max(sum(client in invited for invited in drawn) for client in range(8))
    assert spent(log, "poisson")[-1] == pytest.approx(gaussian(most / Z**2), rel=2e-3)


class Overheard(Loopback):
    """A line on which somebody listens to what sites answer."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.updates: list[torch.Tensor] = []
        self.profiles: list[np.ndarray] = []

    def _do(self, message: DispatchTask) -> None:
        before = len(self._messages)
        super()._do(message)
        sent = {part: open_arrays(self._blob(blob.digest)) for part, blob in message.task.parts.items()}
        for answered in list(self._messages)[before:]:
            parts = open_parts(Path(answered.path))
            if "model" in parts:
                self.updates.append(flat(parts["model"]) - flat(sent["model"]))
            if "profile" in parts:
                self.profiles.append(np.concatenate([np.asarray(parts["profile"][n]) for n in ("mean", "variance")]))

    def _blob(self, digest: str) -> Path:
        return self.folder / "job" / "blobs" / digest


@pytest.mark.parametrize("by", ["the job", "the site"])
def test_updates_leave_bounded_and_noisy(by: str, tmp_path: Path) -> None:
    """Whether the job asks for it or a site insists on it: with next to no noise no update is longer than the bound."""
    bound, filtering = 0.01, {"name": "local-dp", "clip": 0.01, "noise_multiplier": 1e-6}
    asked = f"filters=[{{name='local-dp', clip={bound}, noise_multiplier=1e-6}}]" if by == "the job" else "filters=[]"
    job = deployed(experiment("engine.execution=loop", "rounds=2", asked, algorithm="fedavg"), tmp_path, Overheard)
    assert isinstance(job, Overheard)
    if by == "the site":
        hire(job, simulated_identities(), mandatory_filters([filtering]))
    job.run()
    assert len(job.updates) == 6
    assert all(float(update.norm()) == pytest.approx(bound, rel=1e-3) for update in job.updates)


def test_profiles_leave_bounded_and_noisy(tmp_path: Path) -> None:
    faint = "select.profile_comparison={name='noisy', clip=0.5, noise_multiplier=1e-6}"
    wanted = private("profiles", faint)
    job = deployed(wanted, tmp_path, Overheard)
    assert isinstance(job, Overheard)
    job.run()
    assert len(job.profiles) == 8 + 3 * 3
    for profile in job.profiles:
        mean, variance = np.split(profile, 2)
        assert mean @ mean + variance.sum() == pytest.approx(0.25, rel=1e-3)


def test_profiles_by_class_leave_bounded_and_noisy_as_in_a_simulation(tmp_path: Path) -> None:
    """With next to no noise: Σ_c n_c/n · (‖μ_c‖² + Σv_c) is the bound, and numbers are those of the simulation."""
    faint = "select.profile_comparison={name='noisy', clip=0.5, noise_multiplier=1e-9}"
    wanted = private("profiles by class", faint, "select.min_class_rows=1")
    job = deployed(wanted, tmp_path, Overheard)
    assert isinstance(job, Overheard)
    job.run()
    with prepare_run(wanted, RunInputs(dataset=blobs())) as run:
        classes = ProfileSettings(classes=run.plan.profile_classes)
        tasks = [Task(name="profile", client=k, round=1, version=0, settings=classes) for k in range(8)]
        with run.federation.dispatch(tasks) as exchange:
            here = {reply.task.client: reply.payload["profile"] for reply in exchange if isinstance(reply, Reply)}
    assert len(job.profiles) == 8 + 3 * 3
    for client, part in here.items():
        shares = part["counts"] / part["counts"].sum()
        assert part["counts"].sum() == sizes_of(job)[client]
        size = shares @ ((part["mean"] ** 2).sum(1) + part["variance"].sum(1))
        assert size == pytest.approx(0.25, rel=1e-3)
        there = [np.abs(each - np.concatenate([part["mean"], part["variance"]])).max() for each in job.profiles[:8]]
        assert min(there) < 1e-4


class Insistent(Loopback):
    """A server that asks once more for what it has got, by the same task and by one of a later round than there is."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.more: dict[str, set[str | None]] = {"again": set(), "later": set()}

    def _do(self, message: DispatchTask) -> None:
        super()._do(message)
        task, blobs = message.task, self.folder / "job" / "blobs"
        parts = {part: str(blobs / blob.digest) for part, blob in task.parts.items()}
        for how, when in (("again", task.round), ("later", self.experiment.rounds + 1)):
            answers = self.executors[int(message.site)].execute(RunTask(task=changed(task, round=when), parts=parts))
            self.more[how] |= {did.result.failure for did in answers}


@pytest.mark.parametrize("way", ["local-dp", "dp-sgd", "profiles", "profiles by class"])
def test_a_site_lets_nothing_out_twice_for_noise_would_average_out(way: str, tmp_path: Path) -> None:
    job = deployed(private(way), tmp_path, Insistent)
    assert isinstance(job, Insistent)
    hire(job, Notebook(tmp_path))
    assert job.run().summary.rounds == 3
    assert not [event for event in log_of(job.lines) if isinstance(event, Rejected)]
    things = ("first profile", "profile") if way.startswith("profiles") else ("update",)
    assert job.more["again"] == {f"a noisy {each} of this round or a later one was already released" for each in things}
    assert job.more["later"] == {"the task is for round 4; the job has rounds 1 to 3"}


def test_without_noise_at_the_site_it_answers_whoever_asks(tmp_path: Path) -> None:
    """So that the test above could fail."""
    job = deployed(private("central-dp"), tmp_path, Insistent)
    assert isinstance(job, Insistent)
    hire(job, Notebook(tmp_path))
    job.run()
    assert job.more == {"again": {None}, "later": {None}}


class Spendthrift(Loopback):
    """A server that keeps no book: it has all clients train in every round, whatever was spent, and new workers do."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.notebook = Notebook(self.folder)
        hire(self, self.notebook)

    def _commit(self, message: Any) -> None:
        hire(self, self.notebook)
        super()._commit(message)


@pytest.mark.parametrize("way", ["local-dp", "dp-sgd", "discrete-gaussian"])
def test_a_site_keeps_to_the_budget_that_the_author_signed(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winnow.privacy.dp.run_accounting.DpAccountant.exhausted_reason", lambda book: None)
    free = deployed(private(way, "select.count=8"), tmp_path / "free")
    free.run()
    costs = spent(log_of(free.lines), way)
    budget = (costs[1] + costs[2]) / 2
    bounded = BUDGET[way].format(budget=budget, noise=NOISE)
    job = deployed(private(way, "select.count=8", bounded), tmp_path / "bounded", Spendthrift)
    log = job.run().view.log
    folded = [len(event.aggregated) for event in log if isinstance(event, RoundFinished)]
    assert folded[:2] == [8, 8]
    assert folded[2] < 8 if way == "dp-sgd" else folded[2] == 0, "under dp-sgd clients with more data spend less"
    reasons = {event.reason for event in log if isinstance(event, Rejected) and event.client >= 0}
    assert any(f"epsilon = {budget:g} does not last for 3 updates of this client" in each for each in reasons)


# Between processes ----------------------------------------------------------------------------------------------------


def brokered(
    wanted: Experiment, folder: Path, fork_server: Path, stop_after: int | None = None, sites: int = 3
) -> tuple[Broker, JobFinished]:
    """A job between processes, whose runner is killed after a round if so wanted, and begins anew."""
    broker = Broker(to_toml(wanted), *dealt(wanted, folder / "data", sites), folder / "job", fork_server=fork_server)
    try:
        if stop_after:
            assert broker.run(stop_after=stop_after) is None
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, JobFinished), ended
    return broker, ended


@pytest.mark.slow(part="kills")
def test_a_killed_runner_goes_on_to_the_budget_and_the_downloaded_job_tells_of_it(
    tmp_path: Path, fork_server: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = (gaussian(2 / Z**2) + gaussian(3 / Z**2)) / 2
    sets = ["select.name=poisson", "select.fraction=1.0", CENTRAL, f"collect.epsilon={budget}"]
    wanted = small("fedavg", sets=sets)
    broker, ended = brokered(wanted, tmp_path, fork_server, stop_after=1, sites=1)
    log = log_of(broker.lines)
    assert spent(log, "poisson") == pytest.approx([gaussian(1 / Z**2), gaussian(2 / Z**2)], rel=2e-3)
    stopped = log[-1]
    assert isinstance(stopped, Stopped)
    result = json.loads(Path(ended.output["result.json"]).read_text())
    assert result["privacy"] == {"epsilon": spent(log, "poisson")[-1]}
    assert result["stopped"] == stopped.reason
    (tmp_path / "events").write_text("".join(f"{line}\n" for line in broker.lines))
    files = {name: Path(path) for name, path in ended.output.items()}
    files |= {"events": tmp_path / "events", "checkpoint": broker.checkpoint or tmp_path}
    write_run_folder(tmp_path / "run", to_toml(wanted), files, submitted=0.0, finished=True)
    told = call(capsys, "explain", str(tmp_path / "run")).out
    assert f"ε {result['privacy']['epsilon']:.3g}" in told
    assert "noise of 2 times the bound hides whether a client" in " ".join(told.split())
    assert stopped.reason in " ".join(call(capsys, "show", str(tmp_path / "run")).out.split())


# Between real sites ---------------------------------------------------------------------------------------------------

LEAVING = {"local-dp": ["update"], "dp-sgd": ["update"], "profiles": ["profile", "first profile"]}
SETS = ("data.clients=9", "select.count=3", "local.epochs=2", "local.batch_size=8", "engine.execution=loop")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    with local_federation(describe_job("demo", sets=SETS, seed=5), 3, tmp_path_factory.mktemp("federation")) as running:
        yield running


def departures(federation: LocalFederation, job: str) -> dict[tuple[str, int, str], int]:
    """By site, client and thing, how often it has left."""
    found = {}
    for name in ("site-1", "site-2", "site-3"):
        base = sqlite3.connect(federation.kit(name) / "state" / STATE_FILE)
        rows = base.execute(
            "SELECT client, what, times FROM departures JOIN submissions USING (submission) WHERE job = ?", (job,)
        )
        found |= {(name, client, what): times for client, what, times in rows}
        base.close()
    return found


@pytest.mark.slow(part="kills")
@EVERY_WAY
def test_a_federation_whose_runner_is_killed_amid_a_round_loses_no_epsilon_and_counts_none_twice(
    way: str, federation: LocalFederation, tmp_path: Path
) -> None:
    sets = [*SETS, *WAYS[way]]
    job = federation.connection.submit("demo", sets=sets, min_sites=3, seed=5, rounds=4, algorithm="fedavg")
    eventually(lambda: job.state().round >= 1, "the second round is under way")
    for runner in job_processes(federation.kit("server"), federation.processes["server"].pid):
        os.kill(runner, signal.SIGKILL)
    assert job.wait(300).round == 4
    lines = [line.text for line in job.lines()]
    assert any("the job's process ended; restarting it" in line for line in lines)
    log = RunFolder.open(job.download(tmp_path / "run")).log
    assert [event.round for event in log if isinstance(event, RoundFinished)] == [1, 2, 3, 4]
    assert [event.round for event in log if isinstance(event, Selected)] == [1, 2, 3, 4]
    sizes = prepare_run(resolve("demo", sets=SETS, seed=5)).federation.population.sizes.tolist()
    assert spent(log, way) == pytest.approx(owed(way, log, sizes), rel=2e-3)
    left = departures(federation, job.name)
    for client in range(9):
        times = sum(client in event.clients for event in log if isinstance(event, Selected))
        site, place = f"site-{client // 3 + 1}", client % 3
        for what in LEAVING.get(way, ()):
            assert left.get((site, place, what), 0) == (1 if what == "first profile" else times)


@pytest.mark.slow(part="deploy")
def test_a_federations_job_stops_at_its_budget_and_its_log_says_why(
    federation: LocalFederation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = (gaussian(2 / Z**2) + gaussian(3 / Z**2)) / 2
    sets = [*SETS, *WAYS["central-dp"], "select.count=9", f"collect.epsilon={budget}"]
    job = federation.connection.submit("demo", sets=sets, min_sites=3, seed=5, rounds=4, algorithm="fedavg")
    assert job.wait(200).round == 2
    told = list(map(LogFormatter().format, job.lines()))
    assert any(line is not None and f"ε {gaussian(2 / Z**2):.3g}" in line for line in told)
    assert any(line is not None and line.startswith("stopped after round 2: collect.epsilon") for line in told)
    folder = job.download(tmp_path / "run")
    assert isinstance(list(RunFolder.open(folder).log)[-1], Stopped)
    assert f"ε {gaussian(2 / Z**2):.3g}" in call(capsys, "explain", str(folder)).out
