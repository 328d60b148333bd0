"""Every algorithm, deployed: over messages and files it gives the simulation's model, interrupted or not.

The clients take as long as the simulated ones, on a clock of the test's own, so that algorithms that depend on speed
and those that do not wait for rounds are compared like all others.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loopback import Loopback, StoppedError, TimedLoopback

sys.path.insert(0, str(Path(__file__).parents[1]))
from winnow.config.schema import Experiment
from winnow.core import AnyEvent, DataError
from winnow.data import ClientData, Preprocessing, federate
from winnow.deploy.jobs.party_data import SiteData
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.prepare_clients import data_settings_for
from winnow.learn.algorithm import Recipe
from winnow.learn.extended_model import state_without_heads
from winnow.runs.event_log import encode_event
from world import blobs, experiment

SITES = 3
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
        sites.append(
            SiteData(clients=data, local_test=None, preprocessing=Preprocessing(), tokens=False, open=spread.open)
        )
    held = folder / "held"
    held.mkdir(parents=True)
    for name, part in (("reference", spread.reference), ("test", spread.test), ("labelled", spread.server_labelled)):
        if part is None:
            continue
        np.savez(held / f"{name}.npz", x=part.x, y=part.y)
    if spread.open is not None:
        np.savez(held / "open.npz", x=spread.open)
    return line(wanted, sites, {"folder": str(held), "classes": clients.classes}, folder)


def settings(algorithm: str) -> Experiment:
    """Clients differ in speed, which decides whom some algorithms select or wait for.

    Sites round at random by chance of their own; so here those that quantise round to the nearest.
    """
    nearest = ["filters=[{name = 'compress', quantise = 'min-max'}]"] if Recipe.known[algorithm].filters else []
    return experiment("engine.execution=loop", "fleet.name=exponential", *nearest, algorithm=algorithm)


@cache
def simulated(algorithm: str) -> tuple[Sequence[AnyEvent], Mapping[str, torch.Tensor]]:
    run = prepare_run(settings(algorithm), RunInputs(dataset=blobs()))
    return list(run.training.run(run.federation)), state_without_heads(run.module, run.training.best)


def course(events: Iterable[AnyEvent]) -> list[Any]:
    """Who was selected, who entered the model and when; scores and losses follow from the model."""
    lines = [json.loads(encode_event(event)) for event in events]
    left_out = {"metrics", "loss", "cost", "joules", "scores", "at"}
    return [(round(line["at"], 6), {key: line[key] for key in line.keys() - left_out}) for line in lines]


@pytest.mark.parametrize("algorithm", sorted(Recipe.known))
@pytest.mark.parametrize("stop_after", [pytest.param(None, marks=pytest.mark.slow(part="deploy")), 2])
def test_a_deployed_run_equals_the_simulation_interrupted_or_not(
    stop_after: int | None, algorithm: str, tmp_path: Path
) -> None:
    events, model = simulated(algorithm)
    job = deployed(settings(algorithm), tmp_path, TimedLoopback)
    if stop_after is not None:
        with pytest.raises(StoppedError):
            job.run(stop_after)
    result = job.run()
    assert course(result.view.log) == course(events)
    tolerance = 1e-5 if algorithm in ROUNDED else 0.0
    for name, tensor in result.model.state_dict().items():
        torch.testing.assert_close(tensor, model[name], rtol=tolerance, atol=tolerance)


def test_a_server_that_is_to_train_needs_labelled_samples_like_those_of_the_sites(tmp_path: Path) -> None:
    job = deployed(settings("semifl"), tmp_path)
    held = tmp_path / "held" / "labelled.npz"
    with np.load(held) as file:
        x, y = file["x"], file["y"]
    np.savez(held, x=x[:, :3], y=y)
    with pytest.raises(DataError, match=r"labelled samples of 'digits' have shape \[3\], the sites' have \[5\]"):
        job.run()
    held.unlink()
    with pytest.raises(DataError, match=r"set labelled = … below \[data\.digits\] in server\.toml"):
        job.run()
