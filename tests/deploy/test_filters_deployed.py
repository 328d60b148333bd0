"""Every filter, deployed: what it changes and what it keeps at its site is what it is in a simulation."""

import sys
from pathlib import Path

import pytest
import torch
from loopback import StoppedError
from test_conformance_deployed import deployed

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_filters_conformance import FILTERS, asked
from winnow.config.schema import Experiment
from winnow.core import stream
from winnow.deploy.jobs.snapshot_file import load_snapshot
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from world import blobs, experiment

DRAWN = {"sparse-vector", "local-dp", "compress", "random-k", "many"}
"""These draw by chance, which no seed foretells where there is somebody to protect."""


def filtered(name: str) -> Experiment:
    return experiment("engine.execution=loop", asked(FILTERS[name]), algorithm="scaffold")


def model_after(folder: Path) -> dict[str, torch.Tensor]:
    arrays = load_snapshot(folder / "committed").arrays
    return {name.removeprefix("model/"): array for name, array in arrays.items() if name.startswith("model/")}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", FILTERS)
def test_with_a_simulations_chance_a_deployed_run_that_was_interrupted_gives_its_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCAFFOLD sends a second part, and clients take part several times, so that what was left out comes later."""
    monkeypatch.setattr("winnow.deploy.jobs.site_training.secure_stream", stream)
    wanted = filtered(name)
    job = deployed(wanted, tmp_path)
    with pytest.raises(StoppedError):
        job.run(stop_after=2)
    job.run()
    with prepare_run(wanted, RunInputs(dataset=blobs())) as simulated:
        list(simulated.training.run(simulated.federation))
        assert same(model_after(tmp_path), dict(simulated.training.model))


@pytest.mark.parametrize("name", FILTERS)
def test_chance_is_the_operating_systems(name: str, tmp_path: Path) -> None:
    for folder in ("one", "other"):
        deployed(filtered(name), tmp_path / folder).run()
    assert same(model_after(tmp_path / "one"), model_after(tmp_path / "other")) == (name not in DRAWN)
