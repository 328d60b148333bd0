"""What a lying client can do to an ensemble: nothing to other leaves, and to its own no more than to one model."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from meddling import Liar
from winnow.config.resolve import resolve
from winnow.core import Outcome, Rejected, Reply
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.ensemble.ensemble_workflow import EnsembleWorkflow

LIAR = 7
Lie = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def ran(lie: Callable[[Reply], Reply], clusters: str = "random") -> tuple[EnsembleWorkflow, list[Rejected]]:
    wanted = {
        "algorithm": "fedavg",
        "rounds": 1 if clusters == "loss" else 2,
        "select": {"fraction": 1.0},
        "local": {"name": "sgd", "learning_rate": 0.1, "batch_size": 16},
        "aggregate": {"name": "partial"},
        "data": {"name": "digits", "clients": 12},
        "model": {"name": "mlp", "hidden": [16]},
        "quality": {"evidence": []},
        "ensemble": {"clusters": {"name": clusters, "count": 3}},
    }

    def told(outcome: Outcome) -> Outcome:
        return lie(outcome) if isinstance(outcome, Reply) and outcome.task.client == LIAR else outcome

    with prepare_run(resolve(wanted), RunInputs()) as made:
        events = list(made.training.run(Liar(made.federation, outcome=told)))
        assert isinstance(made.training, EnsembleWorkflow)
        return made.training, [event for event in events if isinstance(event, Rejected)]


def instead(change: Lie) -> Callable[[Reply], Reply]:
    return lambda reply: replace(reply, payload={**reply.payload, "model": change(dict(reply.payload["model"]))})


@pytest.mark.parametrize(
    "lie",
    [
        lambda model: {name: torch.full_like(tensor, torch.nan) for name, tensor in model.items()},
        lambda model: {name: torch.full_like(tensor, torch.inf) for name, tensor in model.items()},
        lambda model: {name: tensor[:1] for name, tensor in model.items()},
        lambda model: dict(list(model.items())[1:]),
        lambda model: {f"leaves.0.{name}": tensor for name, tensor in model.items()},
    ],
    ids=["NaN", "infinite", "shape", "fewer", "names of the whole ensemble"],
)
def test_a_leaf_takes_no_model_that_is_none_and_names_who_sent_it(lie: Lie) -> None:
    honest, _ = ran(lambda reply: reply)
    training, rejected = ran(instead(lie))
    assert {event.client for event in rejected} == {LIAR}
    assert len(rejected) == 2
    for mine, theirs in zip(training.leaves, honest.leaves, strict=True):
        assert all(torch.isfinite(tensor).all() for tensor in mine.training.model.values())
        same = all(torch.equal(mine.training.model[name], theirs.training.model[name]) for name in mine.training.model)
        assert same == (LIAR not in mine.members)


@pytest.mark.parametrize("told", [np.nan, -np.inf, -1e300, None], ids=["NaN", "-inf", "-1e300", "nothing"])
def test_a_client_that_makes_its_losses_up_moves_nobody_but_itself(told: float | None) -> None:
    def lie(reply: Reply) -> Reply:
        if "start_loss" not in reply.metrics or reply.task.name != "evaluate-loss":
            return reply
        others = {name: value for name, value in reply.metrics.items() if name != "start_loss"}
        return replace(reply, metrics=others if told is None else others | {"start_loss": told})

    def groups(change: Callable[[Reply], Reply]) -> list[set[int]]:
        training, rejected = ran(change, clusters="loss")
        assert not rejected
        return [set(leaf.members.tolist()) for leaf in training.leaves]

    lied = groups(lie)
    assert [group - {LIAR} for group in lied] == [group - {LIAR} for group in groups(lambda reply: reply)]
    assert sum(LIAR in group for group in lied) == 1
