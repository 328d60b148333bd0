"""Methods at the client, what clients keep, and how they judge their own models."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from textbook import State, assert_same, mean, steps, train_client
from winnow.core import Evaluated, Reply, RoundFinished, Selected, Task
from winnow.data import DataSettings, federate
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.client_store import ClientStore
from winnow.learn.handlers import HANDLERS
from winnow.simulate import SimulatedFederation
from world import blobs, experiment, prepared


def invited_by_round(ready: PreparedRun) -> list[list[int]]:
    events = list(ready.training.run(ready.federation))
    return [event.clients.tolist() for event in events if isinstance(event, Selected)]


def test_fedprox_pulls_every_step_towards_the_global_model() -> None:
    ready = prepared("rounds=1", "client.mu=0.7", algorithm="fedprox")
    start = dict(ready.training.model)
    (clients,) = invited_by_round(ready)
    own = [train_client(ready, k, 1, start, lambda name, value: 0.7 * (value - start[name])) for k in clients]
    assert_same(ready.training.model, mean(own))


def test_fedprox_invites_by_the_size_of_data() -> None:
    sizes = ("data.clients=3", "data.partition={name='normal-sizes', mean=70, sd=60}", "select.count=1")
    ready = prepared("rounds=400", "local.steps=1", "data.test=0", *sizes, algorithm="fedprox")
    counts = np.bincount(np.concatenate(invited_by_round(ready)), minlength=3)
    expected = ready.federation.population.sizes / ready.federation.population.sizes.sum()
    assert np.abs(counts / counts.sum() - expected).max() < 4 * np.sqrt(0.25 / 400)
    assert expected.max() - expected.min() > 0.1, "the test needs clients of different sizes"


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_scaffold_equals_its_paper_over_three_rounds(rate: float) -> None:
    ready = prepared("rounds=3", "local.momentum=0.0", f"server.learning_rate={rate}", algorithm="scaffold")
    x = dict(ready.training.model)
    cohorts = invited_by_round(ready)
    c = {name: torch.zeros_like(tensor) for name, tensor in x.items()}
    of_client = {k: dict(c) for k in range(8)}
    for number, clients in enumerate(cohorts, 1):
        models, changes = [], []
        for k in clients:
            own = of_client[k]
            y = train_client(ready, k, number, x, lambda name, value, c=c, own=own: c[name] - own[name])
            new = {n: own[n] - c[n] + (x[n] - y[n]) / (steps(ready, k) * 0.1) for n in x}
            models.append(y)
            changes.append({n: new[n] - own[n] for n in x})
            of_client[k] = new
        average, change = mean(models), mean(changes)
        x = {n: x[n] + rate * (average[n] - x[n]) for n in x}
        c = {n: c[n] + len(clients) / 8 * change[n] for n in x}
    assert_same(ready.training.model, x)
    for k in range(8):
        kept = ready.federation.store.read(k)
        if kept:
            assert_same(dict(kept["control"]), of_client[k])


@pytest.mark.parametrize("aggregate", ["partial", "median", "trimmed-mean", "multi-krum"])
def test_a_client_whose_update_is_not_finite_keeps_what_it_had(aggregate: str) -> None:
    """Refused by a mean, passed over by a robust rule: nothing that came of it stays."""

    def spoilt(tasks, site):
        replies = HANDLERS["train"](tasks, site)
        return [_with_nan(reply) if reply.task.client == 2 else reply for reply in replies]

    def _with_nan(reply: Reply) -> Reply:
        bad = {name: torch.full_like(tensor, torch.nan) for name, tensor in reply.payload["model"].items()}
        return Reply(
            task=reply.task,
            payload={**reply.payload, "model": bad},
            metrics=reply.metrics,
            new_client_state=reply.new_client_state,
        )

    ready = prepared("select.count=8", "rounds=2", f"aggregate.name={aggregate}", algorithm="scaffold")
    federation = SimulatedFederation(
        site=ready.federation.site,
        handlers=HANDLERS | {"train": spoilt},
        population=ready.federation.population,
        fleet=ready.federation.fleet,
    )
    list(ready.training.run(federation))
    assert not federation.store.read(2)
    assert all(federation.store.read(k) for k in range(8) if k != 2)


def test_what_a_refused_client_proposed_to_keep_is_forgotten() -> None:
    """It would be held until the client is invited again, which may be never."""
    made = []

    def answer(tasks, site):
        replies = [Reply(task=task, new_client_state={"own": {"w": torch.zeros(3)}}) for task in tasks]
        made.extend(weakref.ref(reply.new_client_state["own"]["w"]) for reply in replies)
        return replies

    ready = prepared()
    federation = SimulatedFederation(
        site=None,
        handlers={"train": answer},
        population=ready.federation.population,
        fleet=ready.federation.fleet,
    )
    tasks = [Task(name="train", client=k, round=1, version=0) for k in range(4)]
    with federation.dispatch(tasks) as exchange:
        next(iter(exchange))  # the others are cancelled
    federation.settle(())
    gc.collect()
    assert len(made) == 4
    assert all(reference() is None for reference in made)


def test_what_stays_at_the_client_never_reaches_the_workflow() -> None:
    ready = prepared("rounds=2", algorithm="scaffold")
    seen = []
    apply = ready.training.apply
    ready.training.apply = lambda gathered, *args: seen.append(gathered) or apply(gathered, *args)
    list(ready.training.run(ready.federation))
    replies = [reply for gathered in seen for reply in gathered.answered]
    assert replies
    assert all(not reply.new_client_state and not reply.task.client_state for reply in replies)


@pytest.mark.parametrize("execution", ["native", "stacked", "loop"])
def test_workers_carry_what_clients_keep(execution: str) -> None:
    """SCAFFOLD's control variates are in the parent's store, wherever training happens."""
    models = []
    for workers in (0, 2):
        sets = (f"engine.workers={workers}", "engine.chunk=2", f"engine.execution={execution}")
        with prepared("rounds=3", *sets, algorithm="scaffold") as ready:
            list(ready.training.run(ready.federation))
            models.append(ready.training.model)
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_a_run_continues_with_what_clients_kept() -> None:
    whole = prepared("rounds=6", "select.count=5", algorithm="scaffold")
    list(whole.training.run(whole.federation))
    first = prepared("rounds=6", "select.count=5", algorithm="scaffold")
    for event in first.training.run(first.federation):
        if isinstance(event, RoundFinished) and event.round == 3:
            break
    same = experiment("rounds=6", "select.count=5", algorithm="scaffold")
    second = prepare_run(same, RunInputs(dataset=blobs()), snapshot=first.snapshot())
    list(second.training.run(second.federation))
    assert all(torch.equal(t, second.training.model[name]) for name, t in whole.training.model.items())


# The store -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(-1, 1, width=32)), max_size=60))
def test_a_store_remembers_the_last_of_every_client(writes: list[tuple[int, float]]) -> None:
    store, expected = ClientStore(31), dict[int, float]()
    for client, value in writes:
        store.write(client, {"part": {"a": torch.full((2, 3), value), "b": torch.tensor(value)}})
        expected[client] = value
    again = ClientStore(31)
    again.restore(store.state())
    for each in (store, again):
        for client in range(31):
            kept = each.read(client)
            assert bool(kept) == (client in expected)
            if kept:
                assert torch.equal(kept["part"]["a"], torch.full((2, 3), expected[client]))
                assert float(kept["part"]["b"]) == expected[client]


# Own tests -----------------------------------------------------------------------------------------------------------


@given(st.integers(3, 40), st.floats(0.05, 0.9), st.integers(0, 5))
def test_clients_keep_a_share_of_their_samples_for_their_own_tests(clients: int, share: float, seed: int) -> None:
    settings = DataSettings(clients=clients, reference=60, test=40, local_test=share)
    plain = federate(blobs(), settings.model_copy(update={"local_test": 0.0}), seed)
    spread = federate(blobs(), settings, seed)
    assert spread.local_test is not None
    for k in range(clients):
        training, own = set(spread.clients.rows_of(k).tolist()), set(spread.local_test.rows_of(k).tolist())
        assert not training & own
        assert training | own == set(plain.clients.rows_of(k).tolist())
        assert len(own) == min(max(1, round(share * len(training | own))), len(training | own) - 1)


def test_fedbn_keeps_norms_at_clients_and_averages_the_rest() -> None:
    """Over three rounds by hand: where clients depart from, what the server averages, and who is judged by what."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    sets = ("data.local_test=0.25", "rounds=3", "aggregate.weights=uniform")
    ready = prepare_run(experiment(*sets, algorithm="fedbn"), RunInputs(dataset=blobs(), module=model))
    x, norms = dict(ready.training.model), dict[int, State]()
    events = list(ready.training.run(ready.federation))
    for number, clients in enumerate((e.clients.tolist() for e in events if isinstance(e, Selected)), 1):
        own = {k: train_client(ready, k, number, x | norms.get(k, {})) for k in clients}
        norms |= {
            k: {name: tensor for name, tensor in state.items() if name.startswith("1.")} for k, state in own.items()
        }
        counter = "1.num_batches_tracked"
        states = [{name: t for name, t in state.items() if name != counter} for state in own.values()]
        x = mean(states) | {counter: x[counter]}
    found = {name: tensor for name, tensor in ready.training.model.items() if name != counter}
    assert_same(found, {name: tensor for name, tensor in x.items() if name != counter})
    scores = []
    for k in range(8):
        ready.module.load_state_dict(ready.training.model | norms.get(k, {}))
        rows = ready.federation.site.local_test.rows_of(k)
        data = ready.federation.site.local_test
        scores.append(float((ready.module.eval()(data.x[rows]).argmax(1) == data.y[rows]).double().mean()))
    assert events[-1].metrics["clients"]["accuracy"] == pytest.approx(np.mean(scores))


def test_own_scores_are_means_over_clients() -> None:
    ready = prepared("data.local_test=0.3", "rounds=1", algorithm="fedavg-rp")
    events = list(ready.training.run(ready.federation))
    assert isinstance(events[0], Evaluated)
    ready.module.load_state_dict(ready.training.model)
    own, scores = ready.federation.site.local_test, []
    for k in range(8):
        rows = own.rows_of(k)
        guesses = ready.module.eval()(own.x[rows]).argmax(1)
        scores.append(float((guesses == own.y[rows]).double().mean()))
    metrics = events[-1].metrics["clients"]
    assert metrics["accuracy"] == pytest.approx(np.mean(scores))
    assert metrics["spread"] == pytest.approx(np.std(scores))
    assert metrics["lowest_decile"] == pytest.approx(np.quantile(scores, 0.1))
