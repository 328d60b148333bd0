"""Every algorithm, deployed: over messages and files it gives the simulation's model, interrupted or not."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from loopback import Loopback, StoppedError

sys.path.insert(0, str(Path(__file__).parents[1]))
from winnow.config.schema import Experiment
from winnow.data import ClientData, federate
from winnow.deploy.jobs.local_data import SiteData
from winnow.experiment.build import data_settings_for, prepare_run
from winnow.experiment.setup import RunInputs
from winnow.learn.algorithm import Recipe
from world import blobs, experiment

SITES = 3
BY_SPEED = {"cfcfm", "oort", "tifl", "srpfl", "lg-srpfl", "flanp", "srpfl-fedprof", "flanp-fedprof", "safa", "fedbuff"}
"""Whom these invite, or whose replies they fold, depends on who is quick, which the fleet says otherwise than we."""
ROUNDED = {"norm-bound", "qfedavg"}
"""These take norms or losses over tensors that lie otherwise in memory here, which shows in the last bits."""


def deployed(wanted: Experiment, folder: Path, line: type[Loopback] = Loopback) -> Loopback:
    """The clients of the simulation, dealt out to sites."""
    spread = federate(blobs(), data_settings_for(wanted), wanted.seed)
    clients = spread.clients
    assert isinstance(clients, ClientData)
    sites = []
    for own in np.array_split(np.arange(len(clients)), SITES):
        first, last = own[0], own[-1] + 1
        offsets = clients.offsets[first : last + 1]
        rows = clients.rows[offsets[0] : offsets[-1]]
        data = ClientData(
            x=clients.x[rows],
            y=clients.y[rows],
            rows=np.arange(len(rows)),
            offsets=offsets - offsets[0],
            classes=clients.classes,
        )
        sites.append(SiteData(clients=data, own_test=None, tokens=False))
    held = folder / "held"
    held.mkdir(parents=True)
    for name, part in (("reference", spread.reference), ("test", spread.test)):
        np.savez(held / f"{name}.npz", x=part.x, y=part.y)
    return line(wanted, sites, {"folder": str(held), "classes": clients.classes}, folder)


@pytest.mark.parametrize("algorithm", sorted(Recipe.known))
class TestEveryAlgorithm:
    def test_a_deployed_run_equals_the_simulation(self, algorithm: str, tmp_path: Path) -> None:
        wanted = experiment("engine.execution=loop", algorithm=algorithm)
        result = deployed(wanted, tmp_path).run()
        simulated = prepare_run(wanted, RunInputs(dataset=blobs()))
        list(simulated.training.run(simulated.federation))
        assert result.summary.rounds == wanted.rounds
        tolerance = 1e-5 if algorithm in ROUNDED else 0.0
        if algorithm not in BY_SPEED:
            for name, tensor in result.model.state_dict().items():
                torch.testing.assert_close(tensor, simulated.training.best[name], rtol=tolerance, atol=tolerance)

    def test_a_runner_that_begins_anew_goes_on_as_if_nothing_had_been(self, algorithm: str, tmp_path: Path) -> None:
        wanted = experiment("engine.execution=loop", algorithm=algorithm)
        whole = deployed(wanted, tmp_path / "whole").run()
        broken = deployed(wanted, tmp_path / "broken")
        with pytest.raises(StoppedError):
            broken.run(stop_after=2)
        resumed = broken.run()
        assert resumed.summary.rounds == whole.summary.rounds
        if algorithm not in BY_SPEED:
            for name, tensor in whole.model.state_dict().items():
                assert torch.equal(tensor, resumed.model.state_dict()[name]), name
