"""Ensembles between parties: the simulation's model, and what a lying server or site cannot do."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loopback import StoppedError, TimedLoopback
from test_conformance_deployed import deployed

sys.path.insert(0, str(Path(__file__).parents[1]))
from winnow.config.schema import Experiment
from winnow.core import ConfigError, ModelError, Task
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.ensemble.cluster_rules import SiteClusters, names_alone
from winnow.learn.ensemble.leaf_outputs import LEAVES
from world import blobs, experiment

GROUPS = "{name = 'random', count = 2}"
OVER = "{name = 'over-arch', at = 'clients', rounds = 2, hidden = [4]}"


def ensemble(combine: str, *sets: str, clusters: str = GROUPS) -> Experiment:
    return experiment(
        "engine.execution=loop",
        "fleet.name=exponential",
        "quality.evidence=[]",
        f"ensemble={{clusters = {clusters}, combine = {combine}}}",
        *sets,
        algorithm="fedavg",
    )


@pytest.mark.parametrize(
    "combine",
    [pytest.param("'mean'", marks=pytest.mark.slow(part="deploy")), OVER],
    ids=["mean", "over-arch"],
)
def test_a_deployed_ensemble_equals_the_simulation_interrupted_or_not(combine: str, tmp_path: Path) -> None:
    wanted = ensemble(combine)
    run = prepare_run(wanted, RunInputs(dataset=blobs()))
    list(run.training.run(run.federation))
    job = deployed(wanted, tmp_path, TimedLoopback)
    with pytest.raises(StoppedError):
        job.run(2 if combine == "'mean'" else wanted.rounds + 1)
    result = job.run()
    for name, tensor in result.model.state_dict().items():
        torch.testing.assert_close(tensor, run.training.best[name], rtol=1e-5, atol=1e-6)


def test_leaves_follow_the_sites_certified_names() -> None:
    """What a site calls its clients stands behind its own name: none joins another's leaf by calling itself so."""
    rule = SiteClusters(groups={"north": ("a", "b"), "south": ("c",)})
    found = rule.clusters(names_alone(["a, client 0", "a, c", "b", "c, a"]), 0)
    assert {name: members.tolist() for name, members in found.items()} == {"north": [0, 1, 2], "south": [3]}
    with pytest.raises(ConfigError, match="'d' is in no group"):
        rule.clusters(names_alone(["a", "d", "c"]), 0)


def second_stage_task(wanted: Experiment, change: Any) -> tuple[Any, Task, Any]:
    """A simulated site, a task of its second stage that a server has changed, and the handler that gets it."""
    run = prepare_run(wanted, RunInputs(dataset=blobs()))
    sent: list[Task] = []
    dispatch = run.simulation.dispatch

    def watched(tasks: Any, *until: Any) -> Any:
        tasks = list(tasks)
        sent.extend(task for task in tasks if LEAVES in task.payload)
        return dispatch(tasks, *until)

    run.simulation.dispatch = watched  # type: ignore[method-assign]
    list(run.training.run(run.federation))
    task = sent[0]
    lie = Task(
        name=task.name,
        client=task.client,
        round=task.round,
        version=task.version,
        settings=task.settings,
        payload={**task.payload, LEAVES: change(dict(task.payload[LEAVES]))},
    )
    return run.simulation.site, lie, run.simulation.handlers["train"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda leaves: {n: t[:1] if n.endswith("weight") else t for n, t in leaves.items()},
            "different shape or type",
        ),
        (lambda leaves: {n: t.double() for n, t in leaves.items()}, "different shape or type"),
        (lambda leaves: dict(list(leaves.items())[1:]), "others, or more or fewer"),
        (lambda leaves: leaves | {f"leaves.{k}.x": torch.zeros(1) for k in range(9)}, "the job has at most 2"),
        (lambda leaves: {n: torch.full_like(t, torch.nan) for n, t in leaves.items()}, "not finite"),
        (lambda leaves: {n: torch.full_like(t, torch.inf) for n, t in leaves.items()}, "not finite"),
    ],
    ids=["shape", "type", "fewer", "more", "NaN", "infinite"],
)
def test_a_site_refuses_leaves_that_are_not_the_jobs(change: Any, message: str) -> None:
    site, lie, handler = second_stage_task(ensemble(OVER), change)
    with pytest.raises(ModelError, match=message):
        handler([lie], site)


@pytest.mark.parametrize("clusters", ["{name = 'k-means', count = 2}", "{name = 'loss', count = 2}"])
def test_clusters_that_take_clients_data_are_refused_between_parties(clusters: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cluster by"):
        deployed(ensemble("'mean'", clusters=clusters), tmp_path, TimedLoopback).run()


def test_no_leaf_output_and_no_sample_leaves_a_site_in_the_second_stage(tmp_path: Path) -> None:
    """Replies of the second stage carry the over-arch's tensors, and nothing else."""
    wanted = ensemble(OVER)
    run = prepare_run(wanted, RunInputs(dataset=blobs()))
    events = list(run.training.run(run.federation))
    assert events
    site, task, handler = second_stage_task(wanted, lambda leaves: leaves)
    (reply,) = handler([task], site)
    assert set(reply.payload) == {"model"}
    assert {name: tuple(t.shape) for name, t in reply.payload["model"].items()} == {
        name: tuple(t.shape) for name, t in task.payload["model"].items()
    }
    assert np.isfinite(reply.metrics["loss"])
