"""The processes of a job, at the server and at the sites, give the model that the simulation gives."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from broker import Broker
from safetensors.torch import load_file

from winnow.config.resolve import resolve, to_toml
from winnow.config.schema import Experiment
from winnow.data import DataSettings, OnDemand, from_frame
from winnow.data.split_into_site_folders import split_into_folders
from winnow.deploy.jobs.ipc_messages import CannotRunJob, JobFailed, JobFinished
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.prepare_clients import data_settings_for
from winnow.experiment.run import run_experiment


def small(algorithm: str = "fedprof", **options: Any) -> Experiment:
    sets = ["engine.execution=loop", "data.clients=9", "select.fraction=0.5", "local.epochs=1"]
    return resolve("demo", sets=[*sets, *options.pop("sets", ())], algorithm=algorithm, rounds=3, seed=5, **options)


def dealt(experiment: Experiment, folder: Path, sites: int = 3) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    list(split_into_folders(data_settings_for(experiment), experiment.seed, sites, folder))
    name = experiment.data.name
    own = [{"folder": str(folder / f"site-{i}" / name)} for i in range(1, sites + 1)]
    return own, {name: {"folder": str(folder / "server" / name), "classes": 10}}


def events_of(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("algorithm", ["fedrep"])
def test_a_deployed_run_gives_the_simulations_model_bit_for_bit(
    algorithm: str, tmp_path: Path, fork_server: Path
) -> None:
    experiment = small(algorithm)
    simulated = run_experiment(experiment, out=tmp_path / "simulated")
    broker = Broker(
        to_toml(experiment), *dealt(experiment, tmp_path / "data"), tmp_path / "job", fork_server=fork_server
    )
    try:
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, JobFinished), ended
    for name in ("best", "last"):
        ours = load_file(ended.output[f"{name}.safetensors"])
        assert same(ours, load_file(tmp_path / "simulated" / f"{name}.safetensors"))
    rounds = [event for event in events_of(broker.lines) if event["kind"] == "round_finished"]
    assert [event["metrics"]["reference"] for event in rounds] == [
        dict(event.metrics["reference"]) for event in simulated.view.events() if event.kind == "round_finished"
    ]


def test_a_runner_that_was_killed_goes_on_from_the_last_committed_round(tmp_path: Path, fork_server: Path) -> None:
    experiment = small("scaffold")
    run_experiment(experiment, out=tmp_path / "simulated")
    broker = Broker(
        to_toml(experiment), *dealt(experiment, tmp_path / "data"), tmp_path / "job", fork_server=fork_server
    )
    try:
        assert broker.run(stop_after=1) is None
        assert broker.round == 1
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, JobFinished), ended
    assert same(load_file(ended.output["last.safetensors"]), load_file(tmp_path / "simulated" / "last.safetensors"))
    assert [event["round"] for event in events_of(broker.lines) if event["kind"] == "round_finished"] == [1, 2, 3]


PROGRAM = """
import torch
import winnow
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))
result = winnow.run("demo", model=model, data="digits", clients=9, seed=5, rounds=2, engine={"execution": "loop"},
                    select={"fraction": 0.5})
print(f"best {result.best:.4f}")
"""


def test_a_program_runs_unchanged(tmp_path: Path, fork_server: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    scope: dict[str, Any] = {}
    exec(compile(PROGRAM, "program.py", "exec"), scope)
    simulated = scope["result"]
    experiment = simulated.experiment
    broker = Broker("", *dealt(experiment, tmp_path / "data"), tmp_path / "job", fork_server=fork_server)
    broker.with_program("program.py", PROGRAM, "name = 'mine'")
    try:
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, JobFinished), ended
    assert same(load_file(ended.output["best.safetensors"]), dict(simulated.model.state_dict()))


def test_a_server_without_a_reference_set_says_what_to_do(tmp_path: Path, fork_server: Path) -> None:
    experiment = small()
    own, _ = dealt(experiment, tmp_path / "data")
    broker = Broker(to_toml(experiment), own, {}, tmp_path / "job", fork_server=fork_server)
    try:
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, JobFailed)
    assert "the server has no reference set for 'digits'" in ended.reason


def test_a_site_without_its_data_says_so(tmp_path: Path, fork_server: Path) -> None:
    experiment = small()
    broker = Broker(
        to_toml(experiment), [{"folder": str(tmp_path / "nowhere")}], {}, tmp_path / "job", fork_server=fork_server
    )
    try:
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, CannotRunJob)
    assert "the site's data do not match its configuration" in ended.reason
    assert "there is no folder" in broker.sites[0].notes[0]


def test_a_job_that_states_how_tables_are_read_trains_as_the_simulation_does(tmp_path: Path, fork_server: Path) -> None:
    rng = np.random.default_rng(0)
    hospitals = [_patients(rng, rows) for rows in (40, 60, 50)]  # the last is the server's
    for number, rows in enumerate(hospitals):
        pandas.DataFrame(rows).to_csv(tmp_path / f"{number}.csv", index=False)
    stated = from_frame(hospitals[2], targets="outcome").preprocessing
    experiment = small("fedavg")
    stating = experiment.model_copy(update={"data": DataSettings(name="stays", preprocessing=stated)})
    sites = [{"file": str(tmp_path / f"{number}.csv"), "targets": ["outcome"]} for number in range(2)]
    server = {"stays": {"reference": str(tmp_path / "2.csv"), "targets": ["outcome"]}}
    broker = Broker(to_toml(stating), sites, server, tmp_path / "job", fork_server=fork_server)
    try:
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, JobFinished), ended
    pairs = [(stated.transform(rows), (rows["outcome"] == "well").astype(int)) for rows in hospitals]
    population = OnDemand(clients=2, sizes=[40, 60], load=lambda k: pairs[k], classes=2, reference=pairs[2])
    simulating = experiment.model_copy(update={"data": DataSettings(clients=2)})
    run_experiment(simulating, inputs=RunInputs(dataset=population), out=tmp_path / "simulated")
    assert same(load_file(ended.output["last.safetensors"]), load_file(tmp_path / "simulated" / "last.safetensors"))
    assert not [line for line in broker.log if "units" in line]


@pytest.mark.parametrize(("noise", "told"), [(False, True), (True, False)])
def test_a_site_whose_units_differ_is_named_before_the_first_round(
    tmp_path: Path, fork_server: Path, *, noise: bool, told: bool
) -> None:
    """Its own log says so in any case; the job's does not where the job claims differential privacy."""
    rng = np.random.default_rng(0)
    years, months = _patients(rng, 40), _patients(rng, 60)
    months["age"] = months["age"] * 12
    for name, rows in (("years", years), ("months", months)):
        pandas.DataFrame(rows).to_csv(tmp_path / f"{name}.csv", index=False)
    stated = from_frame(years, targets="outcome").preprocessing
    filters = ({"name": "local-dp", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5},) if noise else ()
    experiment = small("fedavg", filters=filters)
    experiment = experiment.model_copy(update={"data": DataSettings(name="stays", preprocessing=stated)})
    sites = [{"file": str(tmp_path / f"{name}.csv"), "targets": ["outcome"]} for name in ("years", "months")]
    server = {"stays": {"reference": str(tmp_path / "years.csv"), "targets": ["outcome"]}}
    broker = Broker(to_toml(experiment), sites, server, tmp_path / "job", fork_server=fork_server)
    try:
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, JobFinished), ended
    line = "column 'age' is about 16 times larger than the job states: other units?"
    named = [each for each in broker.log if "units" in each]
    assert named == ([f"site {broker.sites[1].name}: {line}"] if told else [])
    assert [note for note in broker.sites[1].notes if line in note]
    assert not [note for note in broker.sites[0].notes if "units" in note]


def _patients(rng: np.random.Generator, rows: int) -> dict[str, Any]:
    """A column of text, and one with missing values."""
    age, sex = rng.normal(60, 10, rows), np.array(["f", "m"], object)[rng.integers(0, 2, rows)]
    age[::7], sex[::5] = np.nan, None
    return {"age": age, "sex": sex, "outcome": np.where(rng.random(rows) < 0.5, "ill", "well").astype(object)}
