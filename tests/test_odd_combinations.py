"""Parts that meet in ways no named algorithm has, and numbers at the edge of what they can be."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from one_point import ByHand, played, ready, vector
from winnow.core import ConfigError, Handler, Population, Reply, RoundFinished, RunError, Task
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run_folders import check_same_experiment
from winnow.learn.aggregation import Contribution
from winnow.learn.algorithms.qfedavg import FairAggregation
from winnow.simulate import SimulatedFederation
from world import blobs, experiment, prepared

BUFFERED = ("rounds=8", "schedule={name='buffered', buffer_size=2}", "fleet.speed_ghz={mean=1.0, sd=0.5}")


@pytest.mark.parametrize("select", ["{name='first-come', count=3}", "{name='uniform', count=5, replacement=true}"])
def test_a_buffer_bears_with_invitations_of_any_size(select: str) -> None:
    run = prepared(*BUFFERED, "rounds=30", f"select={select}", algorithm="fedbuff", seed=1)
    rounds = [event for event in run.training.run(run.federation) if isinstance(event, RoundFinished)]
    assert [event.round for event in rounds] == list(range(1, 31))


def test_a_buffer_that_is_too_small_for_a_rule_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"schedule\.buffer_size = 2: aggregate\.name = 'krum' needs 3 updates"):
        experiment(*BUFFERED, "aggregate.name=krum", algorithm="fedbuff")


@pytest.mark.parametrize(("select", "asked"), [("valuation", 8), ("utility", 8)])
def test_clients_are_asked_once_a_version_however_often_a_schedule_wants_proposals(select: str, asked: int) -> None:
    run = prepared(*BUFFERED, "rounds=1", f"select={{name='{select}', count=3}}", algorithm="fedbuff")
    heard, handle = Counter[str](), run.federation.handlers["evaluate-loss"]

    def listen(tasks: Sequence[Task], site: object) -> object:
        heard[tasks[0].name] += len(tasks)
        return handle(tasks, site)

    run.federation.handlers["evaluate-loss"] = listen
    list(run.training.run(run.federation))
    assert heard["evaluate-loss"] == asked


def test_scheme_2_counts_those_waited_for_where_more_are_invited() -> None:
    """w_k = N/K·|D_k|/|D| with K = 2 merged clients, though all four are set to work at first."""
    run = ready("cfcfm", "aggregate={name='partial', weights='scheme-2'}", "select.count=2", "rounds=1")
    hand, theta = ByHand.of(run), vector(run.training.model)
    [(invited, merged, model)] = played(run)
    assert (len(invited), len(merged)) == (4, 2)
    weights = 4 / 2 * hand.sizes / hand.sizes.sum()
    np.testing.assert_allclose(model, sum(weights[k] * hand.train(k, theta) for k in merged), rtol=1e-4, atol=1e-5)


def test_what_a_client_keeps_is_that_of_its_last_answer() -> None:
    def count(tasks: list[Task], site: object) -> list[Reply]:
        return [Reply(task=task, new_client_state={"own": {"round": torch.tensor(task.round)}}) for task in tasks]

    fleet = prepared().federation.fleet
    world = SimulatedFederation(
        site=None, handlers={"count": count}, population=Population(sizes=np.ones(8, int)), fleet=fleet
    )
    tasks = [Task(name="count", client=3, round=number, version=0) for number in (1, 2)]
    for task in tasks:
        with world.dispatch([task]) as exchange:
            list(exchange)
    world.settle(tasks)
    assert int(world.store.read(3)["own"]["round"]) == 2


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_fair_weights_of_any_losses_are_finite(order: tuple[int, ...]) -> None:
    """Only ratios of F_k^q count; here they are 10^-120 and less, so the client with the highest loss stands alone."""
    losses, q, rate = (1e-6, 1.0, 1e6), 20.0, 0.5
    fold = FairAggregation(q=q).start(
        {"w": torch.zeros(1)}, Population(sizes=np.ones(3, int)), 3, np.random.default_rng()
    )
    for k in order:
        told = {"start_loss": losses[k], "total_step_size": rate, "steps": 1.0}
        fold.add(Contribution(model={"w": torch.tensor([k + 1.0])}, client=k, metrics=told))
    alone = 3.0 / (1 + q / losses[2] / rate * 3.0**2)
    assert fold.finish()["w"].item() == pytest.approx(alone, rel=1e-5)


def test_a_head_that_is_trained_for_longer_costs_more() -> None:
    """Two epochs of the body, as `local` says, and as many of the head as are set."""
    for epochs in (1, 7):
        run = prepared(f"client.head_epochs={epochs}", algorithm="fedrep")
        [task] = run.training.tasks([0], run.federation.population.sizes)
        assert task.work.training_passes == epochs + 2


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 5), nn.Linear(5, 5)
        self.head.weight = self.body.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu())


@pytest.mark.parametrize("private", ["head", "body"])
def test_a_tensor_in_both_parts_of_a_model_cannot_be_private(private: str) -> None:
    with pytest.raises(ConfigError, match=r"head\.weight and body\.weight share one tensor"):
        prepare_run(
            experiment(f"client.private={private}", algorithm="fedper"), RunInputs(dataset=blobs(), module=Tied())
        )


def test_a_run_that_chose_its_chunk_can_be_resumed_without_naming_it() -> None:
    asked = experiment()
    engine = asked.engine.model_copy(update={"chunk": 7, "device": "cuda", "execution": "stacked"})
    stored = asked.model_copy(update={"engine": engine})
    check_same_experiment(asked, stored, Path("run"))
    with pytest.raises(RunError, match="a different engine"):
        check_same_experiment(experiment("engine.chunk=3"), stored, Path("run"))


def test_nobody_who_profiles_at_first_is_no_reason_to_stop() -> None:
    run = prepared(algorithm="fedprof")

    def mute(handle: Handler[object], tasks: Sequence[Task], site: object) -> object:
        return [
            Reply(task=task, payload={"profile": {}}) if task.round <= 2 else o
            for task, o in zip(tasks, handle(tasks, site), strict=True)
        ]

    for name, handle in run.federation.handlers.items():
        run.federation.handlers[name] = partial(mute, handle)
    assert [event.round for event in run.training.run(run.federation) if isinstance(event, RoundFinished)] == [
        1,
        2,
        3,
        4,
    ]
