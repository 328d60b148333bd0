"""Training on a table between organisations: common units from the owners' statistics, scores as in the simulation."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from table_world import TableWorld, running

import winnow
from winnow.core import WinnowError
from winnow.data import DataSet, DataSettings, Preprocessing
from winnow.data.preprocessing import Column
from winnow.deploy.jobs.table_data import load_table_data
from winnow.deploy.site.config import load_config
from winnow.experiment.load_data import load_data
from winnow.experiment.saved_model import load_model

SITES = ("east", "north", "west")
COLUMNS = """
[tables.patients.columns]
age = { level = "protected", bounds = [0, 110] }
pressure = { level = "protected", bounds = [50, 300] }
glucose = { level = "protected", bounds = [0, 1000] }
ward = { level = "public", values = ["a", "b"] }
diagnosis = { level = "protected", values = ["well", "ill"] }
patient = { level = "private", key = true }
"""
POLICY = """
[[queries]]
people = ["ana"]
tables = ["patients"]
allow = ["statistics"]
[[jobs]]
people = ["ana"]
data = ["patients"]
"""
EXPERIMENT = """
algorithm = "fedavg"
rounds = 12
metric = "accuracy"
seed = 1
[data]
path = "federation.toml"
table = "patients"
targets = ["diagnosis"]
reference = 200
test = 0
[model]
name = "linear"
[local]
name = "sgd"
batch_size = 16
learning_rate = 0.05
"""


def patients(seed: int, rows: int) -> pd.DataFrame:
    """Two diagnoses that three measurements tell apart, in units that differ by a factor of thousands."""
    rng = np.random.default_rng([5, seed])
    ill = rng.random(rows) < 0.5
    frame = pd.DataFrame(
        {
            "age": rng.normal(50 + 6 * ill, 12).round(),
            "pressure": rng.normal(125 + 12 * ill, 14).round(),
            "glucose": rng.normal(400 + 180 * ill, 90).round(1),
            "ward": rng.choice(["a", "b", "c"], rows),
            "diagnosis": np.where(ill, "ill", "well"),
            "patient": [f"p{seed}-{row}" for row in range(rows)],
        }
    )
    frame.loc[rng.random(rows) < 0.1, "pressure"] = np.nan
    return frame


@pytest.mark.slow(part="deploy")
def test_a_deployed_run_scores_as_its_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = TableWorld(tmp_path / "world", SITES)
    (tmp_path / "world").mkdir(exist_ok=True)
    for number, site in enumerate(SITES):
        frame = patients(number, 600)
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
        frame.to_csv(world.kit(site) / "patients.csv", index=False)
        (world.kit(site) / "site.toml").write_text('[tables.patients]\nfile = "patients.csv"\n' + COLUMNS)
        (world.kit(site) / "policy.toml").write_text(POLICY)
    held_out = patients(99, 2000)
    patients(98, 200).to_csv(world.kit("server") / "reference.csv", index=False)
    with (world.kit("server") / "server.toml").open("a") as file:
        file.write('\n[data.patients]\nreference = "reference.csv"\ntargets = ["diagnosis"]\n')
    (tmp_path / "federation.toml").write_text(
        '[tables.patients]\nfiles = ["east.csv", "north.csv", "west.csv"]\n' + COLUMNS
    )
    (tmp_path / "training.toml").write_text(EXPERIMENT)
    told: list[str] = []
    with running(world) as connection:
        job = connection.submit(tmp_path / "training.toml", min_sites=3, on_line=told.append)
        state = job.wait()
        log = "\n".join(line.text for line in job.lines(follow=False))
        assert state.status == "finished", log
        job.download(tmp_path / "deployed")
    assert told == ["common units of 4 columns from 3 owners"]
    assert "other units" not in log
    winnow.run(tmp_path / "training.toml", out=tmp_path / "simulated")
    deployed, simulated = (load_model(tmp_path / name) for name in ("deployed", "simulated"))
    for one, other in zip(deployed.preprocessing.columns, simulated.preprocessing.columns, strict=True):
        assert one == other
    scores = [np.mean(model.predict(held_out) == held_out.diagnosis) for model in (deployed, simulated)]

    assert scores[1] > 0.8
    assert abs(scores[0] - scores[1]) <= 0.02, scores


def test_a_site_encodes_its_rows_as_the_simulation_does(tmp_path: Path) -> None:
    frames = {site: patients(number, 60) for number, site in enumerate(SITES)}
    for site, frame in frames.items():
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
    files = ", ".join(f'"{site}.csv"' for site in SITES)
    (tmp_path / "federation.toml").write_text(f"[tables.patients]\nfiles = [{files}]\n{COLUMNS}")
    settings = DataSettings(path=tmp_path / "federation.toml", table="patients", targets=("diagnosis",))
    simulated = load_data(settings)
    assert isinstance(simulated, DataSet)
    wanted = DataSettings(table="patients", targets=("diagnosis",), preprocessing=simulated.preprocessing)
    for number, site in enumerate(SITES):
        config = f'[tables.patients]\nfile = "{site}.csv"\n{COLUMNS}'
        (tmp_path / "site.toml").write_text(config)
        section = load_config(tmp_path).tables["patients"].worker_table("patients", tmp_path, {})
        own = load_table_data(section, wanted, "job")
        rows = simulated.owners == number
        np.testing.assert_array_equal(own.clients.x, simulated.x[rows])
        np.testing.assert_array_equal(own.clients.y, simulated.y[rows])
    pooled = pd.concat(frames.values())
    age, pressure, glucose, ward = simulated.preprocessing.columns
    for column in (age, pressure, glucose):
        assert column.shift == pytest.approx(pooled[column.name].mean(), abs=1e-4)
        assert column.width == pytest.approx(pooled[column.name].std(), abs=1e-4)
    assert (age.marks_missing, pressure.marks_missing, pressure.fill) == (False, True, pressure.shift)
    assert ward.categories == ("a", "b")
    assert simulated.preprocessing.classes == ("well", "ill")


def test_rows_without_a_listed_target_and_other_sets_are_left_out(tmp_path: Path) -> None:
    rows = "".join(f"{number},{'ill' if number % 2 else 'well'}\n" for number in range(60))
    (tmp_path / "a.csv").write_text("age,diagnosis\n" + rows + "5,\n6,unknown\n")
    (tmp_path / "b.csv").write_text("age,diagnosis\n7,ill\n")
    columns = {
        "age": {"level": "protected", "bounds": [0, 110]},
        "diagnosis": {"level": "protected", "values": ["well", "ill"]},
    }
    section = {"sets": {"train": str(tmp_path / "a.csv"), "test": str(tmp_path / "b.csv")}, "columns": columns}
    stated = Preprocessing(columns=(Column(name="age", shift=30.0),), classes=("well", "ill"))
    wanted = DataSettings(table="patients", targets=("diagnosis",), preprocessing=stated)
    data = load_table_data(section, wanted, "job")
    assert np.array_equal(data.clients.x[:, 0], np.arange(60) - 30)
    assert np.array_equal(data.clients.y, np.arange(60) % 2)


@pytest.mark.parametrize(
    ("columns", "targets", "line"),
    [
        (("patient",), ("diagnosis",), "column 'patient' is private; nothing is trained on it"),
        (("age",), ("patient",), "column 'patient'"),
        (("secret",), ("diagnosis",), "there is no column 'secret'"),
    ],
)
def test_a_job_gets_no_private_or_undeclared_column_whatever_it_states(
    tmp_path: Path, columns: tuple[str, ...], targets: tuple[str, ...], line: str
) -> None:
    patients(0, 30).assign(secret=1).to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "site.toml").write_text(f'[tables.patients]\nfile = "rows.csv"\n{COLUMNS}')
    section = load_config(tmp_path).tables["patients"].section
    stated = Preprocessing(columns=tuple(Column(name=name) for name in columns), classes=("well", "ill"))
    wanted = DataSettings(table="patients", targets=targets, preprocessing=stated)
    with pytest.raises(WinnowError, match=line):
        load_table_data(section, wanted, "job")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"targets": ("patient",)}, "column 'patient' is private"),
        ({"targets": ("age", "diagnosis")}, "a classification has one target column"),
        ({"features": ("aeg",)}, "there is no column 'aeg'; did you mean 'age'"),
        ({"table": "patient"}, "has no table 'patient'; did you mean 'patients'"),
        ({"path": Path("nowhere.toml")}, "there is no file"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    patients(0, 60).to_csv(tmp_path / "a.csv", index=False)
    patients(1, 60).to_csv(tmp_path / "b.csv", index=False)
    (tmp_path / "federation.toml").write_text(f'[tables.patients]\nfiles = ["a.csv", "b.csv"]\n{COLUMNS}')
    given = {"path": tmp_path / "federation.toml", "table": "patients", "targets": ("diagnosis",), **changes}
    with pytest.raises(WinnowError, match=re.escape(line)):
        load_data(DataSettings(**given))
