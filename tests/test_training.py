"""The training workflow: a round against an independent calculation, and what it refuses, keeps and never sees."""

import gc
from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from textbook import State, samples
from winnow.core import Outcome, Rejected, Reply, RoundFinished, Scored, Selected, Task, stream
from winnow.data import DataConditions
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.algorithm import Recipe
from winnow.learn.handlers import HANDLERS
from winnow.learn.representation_profile import Profile, divergence
from winnow.simulate import SimulatedFederation
from world import blobs, experiment, prepared

ALGORITHMS = sorted(Recipe.known)
LEAVE_OUT_OUTLIERS = {"krum", "median", "multi-krum", "trimmed-mean"}
SUMS_IN_ROUNDS = [
    name
    for name in ALGORITHMS
    if Recipe.known[name].schedule is None and not Recipe.known[name].filters and name not in LEAVE_OUT_OUTLIERS
    if name != "ds-fl"  # sends predictions, which test_ds_fl spoils
]
"""What is not finite spoils a sum, and so is refused; other rules, and filters, may pass over it, see test_robust."""


def events_of(ready: PreparedRun) -> list:
    return list(ready.training.run(ready.federation))


def with_handlers(ready: PreparedRun, **replaced) -> PreparedRun:
    """The same run with some of the site's handlers exchanged."""
    federation = ready.federation
    changed = SimulatedFederation(
        site=federation.site,
        handlers=HANDLERS | replaced,
        population=federation.population,
        fleet=federation.fleet,
    )
    return PreparedRun(**{**vars(ready), "federation": changed})


def plainly_trained(module: nn.Module, x, y, client: int, number: int, seed: int) -> dict[str, torch.Tensor]:
    """SGD written as a textbook would, with the documented order of batches."""
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    order = stream(seed, "batches", number, client)
    for _ in range(2):
        for batch in np.array_split(rows := order.permutation(len(x)), range(8, len(rows), 8)):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimiser.step()
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def test_a_round_of_fedavg_rp_equals_a_plain_calculation() -> None:
    ready = prepared("rounds=1", "engine.execution=stacked", algorithm="fedavg-rp")
    start = {name: tensor.clone() for name, tensor in ready.training.model.items()}
    data = ready.federation.site.data
    (invited,) = [event for event in events_of(ready) if isinstance(event, Selected)]
    total, weight = {}, 0
    for client in invited.clients.tolist():
        rows = data.rows[data.offsets[client] : data.offsets[client + 1]]
        module = ready.module
        module.load_state_dict(start)
        trained = plainly_trained(module, data.x[rows], data.y[rows], client, 1, 0)
        for name, tensor in trained.items():
            total[name] = total.get(name, 0) + len(rows) * tensor
        weight += len(rows)
    for name, tensor in ready.training.model.items():
        torch.testing.assert_close(tensor, total[name] / weight, rtol=1e-4, atol=1e-5)


def test_selection_uses_the_profiles_of_the_model_in_hand() -> None:
    """Scores of round 2 recomputed from data and models: invited clients against version 0's reference (round 1)."""
    ready = prepared("rounds=2", "select.alpha=5", algorithm="fedprof")
    site, judge = ready.federation.site, ready.training.evaluator
    start = dict(ready.training.model)
    scored = []
    for event in ready.training.run(ready.federation):
        if isinstance(event, Scored):
            scored.append(event.scores)
        if isinstance(event, RoundFinished) and event.round == 1:
            break
    reference = judge._reference
    clients = range(len(ready.federation.population))
    first = [profile_by_hand(ready, start, client) for client in clients]
    seen = site.evaluator.evaluate(start, reference.x, reference.y, reference.metrics)
    expected = np.exp(-5 * divergence(first, seen.profile))
    np.testing.assert_allclose(scored[0], expected / expected.sum(), rtol=1e-5)


def profile_by_hand(ready: PreparedRun, state: State, client: int) -> Profile:
    """The mean and variance of what the profiled layer gives for a client's samples."""
    module, (x, _), seen = deepcopy(ready.module), samples(ready, client), []
    module.load_state_dict(state)
    module.get_submodule(ready.plan.layer).register_forward_hook(lambda layer, given, out: seen.append(out))
    module.eval()(x)
    outputs = seen[0].detach().double().numpy()
    return Profile(mean=outputs.mean(0).astype(np.float32), variance=outputs.var(0).astype(np.float32))


def test_first_profiles_need_no_model_and_only_the_invited_refresh_theirs() -> None:
    asked: list[tuple[str, int, bool, float]] = []

    def spy(name: str):
        def handler(tasks: Sequence[Task], site) -> Sequence[Outcome]:
            asked.extend((name, task.client, "model" in task.payload, task.work.profiling_passes) for task in tasks)
            return HANDLERS[name](tasks, site)

        return handler

    ready = with_handlers(prepared("rounds=3", algorithm="fedprof"), profile=spy("profile"), train=spy("train"))
    invited = [event.clients.tolist() for event in events_of(ready) if isinstance(event, Selected)]
    profiled = [(client, carried) for name, client, carried, _ in asked if name == "profile"]
    assert profiled == [(client, False) for client in range(8)]
    trained = [client for name, client, _, passes in asked if name == "train" and passes == 1]
    assert trained == [client for clients in invited for client in clients]


@pytest.mark.parametrize("algorithm", SUMS_IN_ROUNDS)
def test_updates_that_are_not_finite_are_refused_and_recorded(algorithm: str) -> None:
    def poisoned(tasks: Sequence[Task], site) -> Sequence[Outcome]:
        replies = list(HANDLERS["train"](tasks, site))
        model = {name: tensor * float("nan") for name, tensor in replies[0].payload["model"].items()}
        return [Reply(task=tasks[0], payload={**replies[0].payload, "model": model}), *replies[1:]]

    ready = with_handlers(prepared(algorithm=algorithm), train=poisoned)
    events = events_of(ready)
    refused = [event for event in events if isinstance(event, Rejected)]
    assert len(refused) == 4
    assert {event.reason for event in refused} == {"the update contains values that are not finite or too large"}
    assert all(torch.isfinite(tensor).all() for tensor in ready.training.model.values())
    for event in events:
        if isinstance(event, RoundFinished):
            assert not {refusal.client for refusal in refused if refusal.round == event.round} & set(event.aggregated)


@pytest.mark.parametrize(
    ("algorithm", "part"),
    [("fedavg", "model"), ("scaffold", "control"), ("fednova", "effective_steps"), ("fednova", "model")],
)
def test_a_reply_that_lacks_a_part_is_refused(algorithm: str, part: str) -> None:
    def forgetful(tasks: Sequence[Task], site) -> Sequence[Outcome]:
        first, *others = HANDLERS["train"](tasks, site)
        payload = {name: arrays for name, arrays in first.payload.items() if name != part}
        return [
            Reply(task=first.task, payload=payload, metrics=first.metrics, new_client_state=first.new_client_state),
            *others,
        ]

    ready = with_handlers(prepared("rounds=2", algorithm=algorithm), train=forgetful)
    events = events_of(ready)
    assert [event.reason for event in events if isinstance(event, Rejected)] == [f"the reply carries no {part}"] * 2
    assert all(len(event.aggregated) == 2 for event in events if isinstance(event, RoundFinished))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda model: {"0.weight": torch.zeros(2)}, "the update's tensor names differ from the model's"),
        (lambda model: {name: t[..., :1] for name, t in model.items()}, "has the wrong shape or type"),
        (lambda model: {name: t.double() for name, t in model.items()}, "has the wrong shape or type"),
    ],
)
def test_malformed_updates_are_refused(spoil, reason: str) -> None:
    def corrupt(tasks: Sequence[Task], site) -> Sequence[Outcome]:
        return [
            Reply(task=reply.task, payload={"model": spoil(reply.payload["model"])})
            for reply in HANDLERS["train"](tasks, site)
        ]

    ready = with_handlers(prepared("rounds=1", algorithm="fedavg"), train=corrupt)
    start = dict(ready.training.model)
    refused = [event for event in events_of(ready) if isinstance(event, Rejected)]
    assert len(refused) == 3
    assert all(reason in event.reason for event in refused)
    assert all(torch.equal(start[name], tensor) for name, tensor in ready.training.model.items())


@pytest.mark.parametrize(
    "part", [{"mean": np.zeros(3), "variance": np.zeros(3)}, {"mean": np.full(12, np.nan), "variance": np.ones(12)}, {}]
)
def test_malformed_profiles_are_refused_and_such_clients_come_last(part) -> None:
    def corrupt(tasks: Sequence[Task], site) -> Sequence[Outcome]:
        replies = list(HANDLERS["profile"](tasks, site))
        return [Reply(task=tasks[0], payload={"profile": part}), *replies[1:]]

    ready = with_handlers(prepared("rounds=1", algorithm="fedprof"), profile=corrupt)
    events = events_of(ready)
    (refused,) = [event for event in events if isinstance(event, Rejected)]
    assert refused.client == 0
    assert "profile" in refused.reason
    (scored,) = [event for event in events if isinstance(event, Scored)]
    assert scored.scores[0] == scored.scores.min()


def test_a_client_drawn_twice_trains_once_and_counts_twice() -> None:
    trained: list[int] = []

    def spy(tasks: Sequence[Task], site) -> Sequence[Outcome]:
        trained.extend(task.client for task in tasks)
        return HANDLERS["train"](tasks, site)

    ready = with_handlers(
        prepared("rounds=6", "select.replacement=true", "select.count=7", algorithm="fedavg-rp"), train=spy
    )
    invited = [event for event in events_of(ready) if isinstance(event, Selected)]
    assert all(event.counts.sum() == 7 for event in invited)
    assert any(event.counts.max() > 1 for event in invited)
    assert trained == [client for event in invited for client in event.clients]


def test_the_reference_may_sit_with_clients() -> None:
    ready = prepared("rounds=3", "reference_clients=[2, 5]", algorithm="fedprof")
    events = events_of(ready)
    finished = [event for event in events if isinstance(event, RoundFinished)]
    assert all("accuracy" in event.metrics["reference"] for event in finished)
    assert all("accuracy" in event.metrics["test"] for event in finished)
    site, last = ready.federation.site, ready.training.model
    hits = []
    for client in (2, 5):
        rows = site.data.rows[site.data.offsets[client] : site.data.offsets[client + 1]]
        ready.module.load_state_dict(last)
        hits += (ready.module(site.data.x[rows]).argmax(1) == site.data.y[rows]).tolist()
    assert finished[-1].metrics["reference"]["accuracy"] == pytest.approx(np.mean(hits), abs=1e-6)


def test_profiling_costs_only_where_profiles_are_made() -> None:
    for algorithm in ("fedavg", "fedprof"):
        costs = [e.cost for e in events_of(prepared(algorithm=algorithm)) if isinstance(e, RoundFinished)]
        assert all((cost.profiling_joules > 0) == (algorithm == "fedprof") for cost in costs)


def test_the_best_model_is_kept_beside_the_last() -> None:
    ready = prepared("rounds=8", algorithm="fedavg-rp")
    best, scores = {}, {}
    for event in ready.training.run(ready.federation):
        if isinstance(event, RoundFinished):
            scores[event.round] = event.metrics["reference"]["accuracy"]
            if scores[event.round] == max(scores.values()) and list(scores.values()).count(scores[event.round]) == 1:
                best = dict(ready.training.model)
    assert all(torch.equal(best[name], tensor) for name, tensor in ready.training.best.items())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_that_learns_can_reach_what_was_done_to_the_data(algorithm: str) -> None:
    """Everything reachable from the workflow and the federation, half-way through a run, holds no conditions."""
    ready = prepare_run(experiment(algorithm=algorithm), RunInputs(dataset=blobs()))
    run = ready.training.run(ready.federation)
    next(run)
    seen: set[int] = set()
    queue: list[object] = [ready.training, ready.federation, run]
    modules = type(gc)
    while queue:
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, modules | type):
            continue
        seen.add(id(thing))
        assert not isinstance(thing, DataConditions)
        assert thing is not ready.conditions.of_client
        if not callable(thing) or not hasattr(thing, "__globals__"):
            queue.extend(gc.get_referents(thing))
        else:
            queue.extend([thing.__closure__, thing.__defaults__])
    assert id(ready.training.model) in seen
