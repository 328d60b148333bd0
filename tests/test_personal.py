"""Models of clients' own: who judges them, on what, and that what is private stays where it is."""

import gc
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from child_processes import running
from test_kill import kill_after_a_checkpoint, settled
from textbook import samples
from winnow.api import compare, run
from winnow.cli import main
from winnow.core import (
    UNTIL_ALL,
    ConfigError,
    DataError,
    Outcome,
    Reply,
    RoundFinished,
    RunError,
    Selected,
    Task,
    stream,
)
from winnow.data import DataSet, DataSettings, federate
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.client_store import ClientStore
from winnow.learn.metrics import METRICS
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.personal_evaluation import personal_outputs, scores_by_client
from winnow.learn.stack import TensorData, as_loss, choose_execution, model_state
from winnow.runs.checkpoint import load_checkpoint
from world import BASE, blobs, experiment, prepared

OWN = ("data.local_test=0.25", "evaluation.by=clients")
TUNED = ("data.local_test=0.25", "evaluation.tune_epochs=3", "evaluation.tune_every=2")


def with_official_split(rows: int, official: int, classes: int = 4, seed: int = 0) -> DataSet:
    plain = blobs(rows, classes=classes, seed=seed)
    return DataSet(name="split", x=plain.x, y=plain.y, classes=classes, test_rows=np.arange(rows - official, rows))


def own_accuracy(ready: PreparedRun, client: int, state: dict[str, torch.Tensor]) -> float:
    own = ready.federation.site.local_test
    rows = own.rows_of(client)
    ready.module.load_state_dict(state)
    return float((ready.module.eval()(own.x[rows]).argmax(1) == own.y[rows]).double().mean())


# Judged by whom -----------------------------------------------------------------------------------------------------


def test_the_clients_scores_decide_where_they_judge() -> None:
    ready = prepared(*OWN, "rounds=6", algorithm="fedper")
    best, chosen, models = -1.0, 0, {}
    for event in ready.training.run(ready.federation):
        if isinstance(event, RoundFinished):
            models[event.round] = ready.training.model
            score = event.metrics["clients"]["accuracy"]
            best, chosen = (score, event.round) if score > best else (best, chosen)
            assert ready.training.best is models[chosen]
            assert "test" not in event.metrics, "a head that nobody trains has nothing to test"


def test_a_result_and_its_report_are_the_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"data": {**BASE["data"], "local_test": 0.25}, "evaluation": {"by": "clients"}, "rounds": 5}
    result = run({**BASE, **options, "algorithm": "fedper", "target": 0.3}, out=tmp_path / "run")
    scores = {row["round"]: row["clients.accuracy"] for row in result.history}
    assert result.best == max(scores.values())
    assert result.summary.rounds_to_target == min(n for n, score in scores.items() if score >= 0.3)
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record["evaluated_by"] == "clients"
    assert record["private"] == ["3.weight", "3.bias"]
    assert load_file(tmp_path / "run" / "best.safetensors").keys() == {"1.weight", "1.bias"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "by each client on its own samples" in page
    assert "Fairness across clients" in page
    assert "on the reference set" not in page
    with pytest.raises(SystemExit):
        main(["show", str(tmp_path / "run")])
    assert "by each client on its own samples" in capsys.readouterr().out


def test_judges_may_differ_between_algorithms_of_a_comparison(tmp_path: Path) -> None:
    table = {
        **BASE,
        "data": {**BASE["data"], "local_test": 0.25},
        "evaluation": {"by": "clients"},
        "algorithms": {"fedavg-rp": {"evaluation": {"by": "tuned", "tune_epochs": 1, "tune_every": 2}}},
    }
    outcome = compare(table, algorithms=["fedrep", "fedavg-rp"], seeds=2)
    page = outcome.report(tmp_path / "report.html").read_text()
    assert "fedavg-rp by each client on its own samples, after fine-tuning" in page
    assert all(record.best is not None for record in outcome.records)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["evaluation.by=clients"], "evaluation.by = 'clients' needs data.local_test"),
        (["evaluation.by=tuned", "data.local_test=0.2"], "evaluation.by = 'tuned' needs evaluation.tune_epochs"),
        (["evaluation.tune_epochs=1", "evaluation.tune_every=2"], "evaluation.tune_epochs needs data.local_test"),
        (["evaluation.tune_epochs=1", "data.local_test=0.2"], "evaluation.tune_every = 10, but there are 4 rounds"),
    ],
)
def test_judges_that_cannot_judge_are_refused_by_name(sets: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        experiment(*sets)


def test_fedrep_serves_clients_of_few_classes_far_better_than_fedavg() -> None:
    table = {
        **BASE,
        "rounds": 20,
        "data": {"clients": 30, "partition": {"name": "classes", "per_client": 2}, "local_test": 0.3},
        "model": {"name": "mlp"},
        "select": {"fraction": 0.2},
        "local": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.5, "batch_size": 10},
        "evaluation": {"by": "clients"},
    }
    best = {record.algorithm: record.best for record in compare(table, algorithms="fedrep,fedavg-rp", seeds=1).records}
    assert best["fedrep"] > best["fedavg-rp"] + 0.25


def test_a_private_part_judged_by_the_reference_is_remarked_upon() -> None:
    assert "evaluation.by = 'clients'" in prepared(algorithm="fedper").plan.notice
    assert "evaluation.by" not in prepared(*OWN, algorithm="fedper").plan.notice
    assert "evaluation.by" not in prepared(algorithm="ditto").plan.notice


def test_a_result_gives_each_clients_own_model() -> None:
    result = run({**BASE, "algorithm": "fedrep", "data": {**BASE["data"], "local_test": 0.25}}, data=None)
    heads = {k: result.personal(k).state_dict()[result.plan.private_names[0]] for k in range(8)}
    initial = result.model.state_dict()[result.plan.private_names[0]]
    taken_part = {k for e in result.view.events() if isinstance(e, Selected) for k in e.clients.tolist()}
    for k, head in heads.items():
        assert torch.equal(head, initial) == (k not in taken_part)
    with pytest.raises(RunError, match="client 8 does not exist; the last client is 7"):
        result.personal(8)


# Looking at many models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["native", "stacked", "vmap", "loop"])
@pytest.mark.parametrize("shared", ["all", "some", "nothing"])
@pytest.mark.parametrize("metric", ["accuracy", "r2"])
def test_each_model_is_scored_on_its_clients_rows(way: str, shared: str, metric: str) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    sizes = [4, 1, 9, 30, 2]
    x = torch.randn(60, 5)
    y = torch.randint(0, 3, (60,)) if metric == "accuracy" else torch.randn(60, 3)
    loss = as_loss("cross-entropy" if metric == "accuracy" else "mse")
    data = TensorData(x=x, y=y, rows=np.random.default_rng(0).permutation(60), offsets=np.cumsum([0, *sizes, 3]))
    execution = choose_execution(module, x[:4], y[:4], loss, way)
    own = {"all": [], "some": ["2.weight", "2.bias"], "nothing": list(module.state_dict())}[shared]
    states = {
        name: torch.randn(5, *tensor.shape) if name in own else tensor.unsqueeze(0)
        for name, tensor in model_state(module).items()
    }
    clients = np.array([0, 1, 2, 3, 4])
    evaluator = ModelEvaluator(module, loss, None, execution)
    found = scores_by_client(
        *personal_outputs(execution, evaluator, states, data, clients), sizes, [METRICS[metric]], loss
    )
    for k in clients:
        module.load_state_dict({name: tensor[min(k, len(tensor) - 1)] for name, tensor in states.items()})
        rows = data.rows_of(k)
        outputs = module(x[rows]).detach()
        if metric == "accuracy":
            score = (outputs.argmax(1) == y[rows]).double().mean()
            mean = nn.functional.cross_entropy(outputs, y[rows])
        else:
            spread = y[rows].double().var(0, unbiased=False)
            score = (1 - (outputs - y[rows]).square().mean(0) / spread).mean() if len(rows) > 1 else torch.nan
            mean = (outputs - y[rows]).square().mean()
        assert found[metric][k] == pytest.approx(float(score), rel=1e-4, abs=1e-6, nan_ok=True)
        assert found["loss"][k] == pytest.approx(float(mean), rel=1e-4)


# Tuning -------------------------------------------------------------------------------------------------------------


def tuned_by_hand(ready: PreparedRun, client: int, number: int, start: dict, moving: set[str]) -> dict:
    """Three epochs of the small world's SGD on some entries of a model."""
    module, (x, y), local = ready.module, samples(ready, client), ready.experiment.local
    module.load_state_dict(start)
    parameters = [p for name, p in module.named_parameters() if name in moving]
    optimiser = torch.optim.SGD(parameters, lr=local.rate(number), momentum=local.momentum)
    order = stream(ready.experiment.seed, "batches", number, client, "phase -1")
    module.train()
    for _ in range(3):
        for batch in np.array_split(rows := order.permutation(len(x)), range(8, len(rows), 8)):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimiser.step()
    return model_state(module)


@pytest.mark.parametrize(
    ("algorithm", "start"), [("fedavg-rp", "own"), ("fedper", "own"), ("fedper", "average"), ("ditto", "own")]
)
def test_tuned_models_are_what_clients_make_of_them(algorithm: str, start: str) -> None:
    """FedAvg with fine-tuning; heads tuned from one's own or from their average (the protocol of SRPFL's code)."""
    ready = prepared(*TUNED, f"evaluation.tune_from={start}", "rounds=4", algorithm=algorithm)
    events = list(ready.training.run(ready.federation))
    measured = [e.metrics["tuned"] for e in events if isinstance(e, RoundFinished) and "tuned" in e.metrics]
    assert len(measured) == 2
    assert "tuned" in events[0].metrics
    kept = {k: ready.federation.store.read(k) for k in range(8)}
    part = {"fedper": "own", "ditto": "personal", "fedavg-rp": "none"}[algorithm]
    heads = [each[part] for each in kept.values() if part in each]
    average = {n: torch.stack([head[n] for head in heads]).mean(0) for n in heads[0]} if heads else {}
    moving = set(ready.plan.private_names) or set(ready.training.model)
    scores = []
    for k in range(8):
        begin = ready.training.model | (average if start == "average" else dict(kept[k].get(part, {})))
        scores.append(own_accuracy(ready, k, tuned_by_hand(ready, k, 4, begin, moving)))
    assert measured[-1]["accuracy"] == pytest.approx(np.mean(scores), abs=1e-6)
    assert measured[-1]["spread"] == pytest.approx(np.std(scores), abs=1e-6)
    assert measured[-1]["highest_decile"] == pytest.approx(np.quantile(scores, 0.9), abs=1e-6)


def test_measuring_changes_nothing() -> None:
    """Neither the model, nor what clients keep, nor the clock."""
    plain, watched = prepared("data.local_test=0.25", algorithm="fedrep"), prepared(*TUNED, algorithm="fedrep")
    logs = [list(ready.training.run(ready.federation)) for ready in (plain, watched)]
    for name, tensor in plain.training.model.items():
        assert torch.equal(tensor, watched.training.model[name])
    assert plain.federation.store.state().keys() == watched.federation.store.state().keys()
    assert [event.at for event in logs[0]] == [event.at for event in logs[1]]


def test_a_tuned_run_resumes_as_if_nothing_had_happened() -> None:
    sets = (*TUNED, "evaluation.tune_from=average", "evaluation.by=tuned", "rounds=6")
    whole = prepared(*sets, algorithm="fedrep")
    list(whole.training.run(whole.federation))
    first = prepared(*sets, algorithm="fedrep")
    for event in first.training.run(first.federation):
        if isinstance(event, RoundFinished) and event.round == 3:
            break
    second = prepare_run(experiment(*sets, algorithm="fedrep"), RunInputs(dataset=blobs()), snapshot=first.snapshot())
    list(second.training.run(second.federation))
    for mine, theirs in ((whole.training.best, second.training.best), (whole.training.model, second.training.model)):
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


# Own tests from an official split -----------------------------------------------------------------------------------


@pytest.mark.parametrize("in_place", [True, False])
@given(per_client=st.integers(1, 4), clients=st.integers(4, 12), seed=st.integers(0, 3))
def test_official_rows_are_dealt_out_by_class(in_place: bool, per_client: int, clients: int, seed: int) -> None:
    dataset = with_official_split(600, 200)
    settings = DataSettings(
        clients=clients,
        partition={"name": "classes", "per_client": per_client},
        reference=40,
        test=40,
        local_test="official",
    )
    official = {row.tobytes() for row in dataset.x[dataset.test_rows]}
    spread = federate(with_official_split(600, 200), settings, seed, in_place=in_place)
    held = {row.tobytes() for row in (*spread.reference.x, *spread.test.x)}
    seen: set[bytes] = set()
    for k in range(clients):
        training, own = spread.clients.client(k), spread.local_test.client(k)
        assert set(own.y.tolist()) <= set(training.y.tolist())
        rows = {row.tobytes() for row in own.x}
        assert rows <= official - held - seen
        seen |= rows
    classes = {int(label) for k in range(clients) for label in spread.clients.client(k).y}
    spare = sum(
        1 for x, y in zip(dataset.x[-200:], dataset.y[-200:], strict=True) if x.tobytes() not in held and y in classes
    )
    assert len(seen) == spare, "every spare row of a class that somebody holds is used"


def test_official_rows_follow_the_share_of_a_class() -> None:
    settings = DataSettings(
        clients=6, partition={"name": "dirichlet", "alpha": 0.5}, reference=0.01, test=0, local_test="official"
    )
    spread = federate(with_official_split(6000, 3000), settings, 0)
    held = np.stack([np.bincount(spread.clients.client(k).y, minlength=4) for k in range(6)])
    dealt = np.stack([np.bincount(spread.local_test.client(k).y, minlength=4) for k in range(6)])
    assert np.abs(dealt - dealt.sum(0) * held / held.sum(0)).max() <= 1


def test_official_rows_need_an_official_split() -> None:
    settings = DataSettings(clients=4, local_test="official")
    with pytest.raises(DataError, match="blobs has no official test split"):
        federate(blobs(), settings, 0)
    greedy = DataSettings(clients=4, reference=100, test=100, local_test="official")
    with pytest.raises(DataError, match="the server uses the whole test split; lower"):
        federate(with_official_split(600, 200), greedy, 0)
    with pytest.raises(ConfigError, match="neither a share of each client's rows"):
        experiment("data.local_test=1.5")


# What is private stays ----------------------------------------------------------------------------------------------


class Recording:
    """A federation that remembers every task that leaves the server and every outcome that reaches it."""

    def __init__(self, inner) -> None:
        self._inner, self.tasks, self.outcomes = inner, list[Task](), list[Outcome]()

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def dispatch(self, tasks: Iterable[Task], until=UNTIL_ALL):
        tasks = list(tasks)
        self.tasks += tasks
        exchange = self._inner.dispatch(tasks, until)
        deliver = type(exchange).__iter__

        class Heard(type(exchange)):
            def __iter__(heard) -> Iterator[Outcome]:
                for outcome in deliver(heard):
                    self.outcomes.append(outcome)
                    yield outcome

        exchange.__class__ = Heard
        return exchange


@pytest.mark.parametrize("algorithm", ["fedper", "fedrep", "lg-fedavg"])
def test_no_private_tensor_is_in_any_message(algorithm: str) -> None:
    ready = prepared(*OWN, "evaluation.tune_epochs=1", "evaluation.tune_every=1", algorithm=algorithm)
    federation = Recording(ready.federation)
    list(ready.training.run(federation))
    private = set(ready.plan.private_names)
    kept = [tensor for k in range(8) for tensor in ready.federation.store.read(k).get("own", {}).values()]
    assert private
    assert kept
    replies = [outcome for outcome in federation.outcomes if isinstance(outcome, Reply)]
    assert {task.name for task in federation.tasks} == {"train", "evaluate-personal"}
    assert not any(task.client_state for task in federation.tasks)
    assert not any(reply.new_client_state or reply.task.client_state for reply in replies)
    for payload in (*(task.payload for task in federation.tasks), *(reply.payload for reply in replies)):
        for part in payload.values():
            assert not private & part.keys()
            for tensor in part.values():
                assert not any(tensor.shape == own.shape and torch.equal(tensor, own) for own in kept)


@pytest.mark.slow(part="kills")
def test_heads_survive_a_kill(tmp_path: Path) -> None:
    options = ["--algorithm", "fedrep", "--rounds", "60", "--quiet"]
    for each in ("data.local_test=0.2", "evaluation.by=clients", "client.head_epochs=2"):
        options += ["--set", each]
    often = "import winnow.experiment.run as run; run.CHECKPOINT_SECONDS = 0.0; from winnow.cli import main; main()"
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    with running([sys.executable, "-c", often, "run", "demo", *options, "--out", str(broken)]) as process:
        assert kill_after_a_checkpoint(process, broken / "checkpoint.safetensors", 0, 0.05), "it was over too soon"
    for arguments in (["run", str(broken), "--resume", "--quiet"], ["run", "demo", *options, "--out", str(whole)]):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert not left.value.code
    assert settled(broken) == settled(whole)
    one, other = (load_checkpoint(path / "checkpoint.safetensors").snapshot.arrays for path in (whole, broken))
    heads = [name for name in one if name.startswith("clients/own/")]
    assert len(heads) == 2
    assert all(torch.equal(one[name], other[name]) for name in heads)


def large_tensors(size: int) -> list[torch.Tensor]:
    gc.collect()  # other tests of this process have left some
    return [each for each in gc.get_objects() if type(each) is torch.Tensor and each.numel() >= size]


def test_heads_of_a_hundred_thousand_clients_are_one_array() -> None:
    clients, head = 100_000, {"weight": torch.ones(3, 16), "bias": torch.zeros(3)}
    store = ClientStore(clients)
    before = len(large_tensors(clients))
    for client in range(clients):
        store.write(client, {"own": head})
    made = len(large_tensors(clients)) - before
    state = store.state()
    needed = clients * sum(tensor.nbytes for tensor in head.values())
    held = sum(state[f"own/{name}"].untyped_storage().nbytes() for name in head)
    assert needed <= held <= 2 * needed
    assert made < 10
    assert torch.equal(store.mean()["own"]["weight"], head["weight"])
