"""Homomorphic aggregation with sites of their own: over messages and files it gives the simulation's model."""

import sys
from pathlib import Path

import pytest
import torch
from loopback import StoppedError
from test_conformance_deployed import deployed

sys.path.insert(0, str(Path(__file__).parents[1]))
from winnow.experiment.build import prepare
from world import blobs, experiment

pytest.importorskip("tenseal", reason="needs the extra `encryption`")

SETS = ("engine.execution=loop", "rounds=3", "select.count=5", "collect={name='homomorphic', holder=1}")


@pytest.mark.parametrize("algorithm", ["fedavg-rp", "scaffold"])
def test_a_deployed_run_equals_the_simulation(algorithm: str, tmp_path: Path) -> None:
    wanted = experiment(*SETS, algorithm=algorithm)
    result = deployed(wanted, tmp_path).run()
    simulated = prepare(wanted, dataset=blobs())
    list(simulated.training.run(simulated.federation))
    assert result.summary.rounds == wanted.rounds
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(tensor, simulated.training.best[name]), name


def test_a_runner_that_begins_anew_goes_on_with_fresh_keys(tmp_path: Path) -> None:
    wanted = experiment(*SETS, algorithm="fedavg-rp")
    whole = deployed(wanted, tmp_path / "whole").run()
    broken = deployed(wanted, tmp_path / "broken")
    with pytest.raises(StoppedError):
        broken.run(stop_after=1)
    resumed = broken.run()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
