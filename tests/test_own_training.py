"""A training step, or a whole local loop, of the user's own: what is computed, what is refused, and how it fails."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import winnow

SMALL: dict[str, Any] = {"clients": 4, "rounds": 3, "reference": 40, "test": 40, "progress": False, "scale": "none"}


def blobs(rows: int = 240) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 2, rows)
    return (rng.normal(size=(rows, 3)) + 2.0 * labels[:, None]).astype(np.float32), labels


def network(*more: nn.Module) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), *more, nn.Linear(8, 2))


def run(**settings: Any) -> Any:
    return winnow.run(**{"model": network(), "data": blobs(), **SMALL, **settings})


def same(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch.x), batch.y)


def sgd(model: nn.Module, batches: Any, context: Any) -> dict[str, float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=context.rate, momentum=0.9)
    total = 0.0
    for batch in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model, batch)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return {"loss": total / len(batches)}


# A step ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprof", "scaffold", "fedrep", "fedbuff", "hf-maml"])
def test_plain_cross_entropy_as_a_step_gives_the_bits_of_the_loop(algorithm: str) -> None:
    own = run(step=cross_entropy, algorithm=algorithm)
    loop = run(engine={"execution": "loop"}, algorithm=algorithm)
    assert same(own.model, loop.model)
    # the mean of a batch's losses is rounded before the batches are averaged, not after
    np.testing.assert_allclose(
        [row["loss"] for row in own.history], [row["loss"] for row in loop.history], rtol=1e-5, equal_nan=True
    )
    assert "clients train by step=, one after another" in own.plan.notice


def test_a_step_is_what_it_computes(tmp_path: Path) -> None:
    """One client, one batch, one step of plain SGD: w − η·∇(the step's loss), by hand."""
    alone = {
        "clients": 1,
        "rounds": 1,
        "algorithm": "fedavg",
        "select": {"fraction": 1.0},
        "model": (model := network()),
    }
    alone["local"] = {"name": "sgd", "learning_rate": 0.1, "batch_size": 200, "epochs": 1}

    def smoothed(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch.x), batch.y, label_smoothing=0.1)

    seen: list[Any] = []
    run(train=lambda model, batches, context: seen.extend(batches), **alone)
    run(step=smoothed, **alone, out=tmp_path / "run")
    (batch,) = seen
    assert len(batch.y) == 160
    smoothed(model, batch).backward()
    found = load_file(tmp_path / "run" / "last.safetensors")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach() - 0.1 * parameter.grad)


def test_dropout_in_a_step_repeats_with_the_seed_and_leaves_the_generator_alone() -> None:
    model, before = network(nn.Dropout(0.5)), torch.get_rng_state()
    first, again, other = (run(model=model, step=cross_entropy, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert same(first.model, again.model)
    assert not same(first.model, other.model)


def test_worker_processes_and_chunks_change_nothing() -> None:
    alone = run(step=cross_entropy)
    assert same(alone.model, run(step=cross_entropy, engine={"workers": 2}).model)
    looped = run(train=sgd, model=network(nn.Dropout(0.5)))
    assert same(looped.model, run(train=sgd, model=network(nn.Dropout(0.5)), engine={"workers": 2}).model)
    assert same(looped.model, run(train=sgd, model=network(nn.Dropout(0.5)), engine={"chunk": 1}).model)


@pytest.mark.parametrize("own", [{"step": cross_entropy}, {"train": sgd}])
def test_what_sees_only_updates_works_with_both(own: dict[str, Any]) -> None:
    everybody = {"algorithm": "fedavg", "select": {"fraction": 1.0}}
    plain, secure = run(**own, **everybody), run(**own, **everybody, collect={"name": "secure"})
    for name, tensor in plain.model.state_dict().items():
        torch.testing.assert_close(secure.model.state_dict()[name], tensor, rtol=1e-2, atol=1e-2)
    packed = run(**own, **everybody, filters=[{"name": "compress"}])
    assert packed.summary.rounds == 3
    noisy = run(
        **own, algorithm="fedavg", select={"name": "poisson"}, collect={"name": "central-dp", "noise_multiplier": 1.0}
    )
    assert noisy.summary.rounds == 3


# A whole loop ---------------------------------------------------------------------------------------------------------


def test_a_loop_that_does_what_local_says_gives_its_model() -> None:
    own, loop = run(train=sgd), run(engine={"execution": "loop"})
    for ours, theirs in zip(own.model.parameters(), loop.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert same(own.model, run(train=sgd).model)
    assert own.history[-1]["loss"] == pytest.approx(loop.history[-1]["loss"], rel=0.5)


def test_batches_are_those_of_all_epochs_and_the_context_tells_where_it_is() -> None:
    x, y = blobs()
    contexts, passes = [], []

    def watch(model: nn.Module, batches: Any, context: Any) -> None:
        contexts.append(context)
        passes.append([[len(batch.y) for batch in batches], [batch.x.sum().item() for batch in batches]])
        assert len(batches) == len(passes[-1][0])

    local = {"name": "sgd", "epochs": 3, "batch_size": 16, "learning_rate": 0.2, "decay": 0.5}
    run(train=watch, algorithm="fedavg", select={"fraction": 1.0}, rounds=2, local=local, data=(x, y))
    assert sorted(context.client for context in contexts) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [context.rate for context in contexts] == [0.2] * 4 + [0.1] * 4
    assert {context.round for context in contexts} == {1, 2}
    for sizes, _ in passes:
        assert sum(sizes) == 3 * 40
        assert len(sizes) == 3 * 3


def test_a_client_leaves_nothing_behind_for_the_next() -> None:
    """Frozen layers, gradients and attributes of one client's module are not seen by another's."""

    def untidy(model: nn.Module, batches: Any, context: Any) -> None:
        assert not hasattr(model, "visited")
        assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
        model.visited = True
        model[0].requires_grad_(False)
        next(iter(batches))
        cross_entropy(model, next(iter(batches))).backward()

    assert run(train=untidy).summary.rounds == 3


def test_a_client_without_a_batch_is_not_trained() -> None:
    """Batch normalisation learns nothing from a single sample, which is all that client 1 has."""
    x, y = blobs()
    sizes, seen = [20, 1, 20], []

    def watch(model: nn.Module, batches: Any, context: Any) -> None:
        seen.append(context.client)

    held = {"classes": 2, "reference": (x, y), "test": (x, y)}
    data = winnow.OnDemand(clients=3, sizes=sizes, load=lambda k: (x[: sizes[k]], y[: sizes[k]]), **held)
    model = network(nn.BatchNorm1d(8))
    winnow.run(model=model, data=data, train=watch, algorithm="fedavg", select={"fraction": 1.0}, rounds=1)
    assert sorted(seen) == [0, 2]


def test_clients_tune_a_model_by_the_same_loop() -> None:
    seen = []

    def counted(model: nn.Module, batches: Any, context: Any) -> None:
        seen.append(len(batches))

    run(train=counted, local_test=0.25, evaluation={"tune_epochs": 1, "tune_every": 3}, rounds=3, algorithm="fedavg")
    assert len(set(seen)) == 2  # two epochs in a round, one to tune


# Refused or failed, in one line ---------------------------------------------------------------------------------------


def per_sample(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch.x), batch.y, reduction="none")


def number(model: nn.Module, batch: Any) -> float:
    return cross_entropy(model, batch).item()


def detached(model: nn.Module, batch: Any) -> torch.Tensor:
    return cross_entropy(model, batch).detach()


def backwards(model: nn.Module, batch: Any) -> torch.Tensor:
    loss = cross_entropy(model, batch)
    loss.backward()
    return loss


def undefined(model: nn.Module, batch: Any) -> torch.Tensor:
    return cross_entropy(model, batch) * float("nan")


def failing(model: nn.Module, batch: Any) -> torch.Tensor:
    raise ValueError("two\nlines")


def replacing(model: nn.Module, batches: Any, context: Any) -> None:
    model[0] = nn.Linear(3, 9)


def telling(model: nn.Module, batches: Any, context: Any) -> dict[str, float]:
    return {"accuracy": 1.0}


def dividing(model: nn.Module, batches: Any, context: Any) -> None:
    _ = 1 / 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step": per_sample}, r"^step \(test_own_training\.py, line \d+\) returned shape \(4,\); it must return one"),
        ({"step": number}, "returned float; it must return the loss, a tensor"),
        ({"step": detached}, "does not depend on the model's parameters"),
        ({"step": backwards}, "return the loss and leave backward"),
        ({"step": undefined}, "returned a loss of nan for the first 4 samples"),
        ({"step": failing}, r"^step \(test_own_training\.py, line \d+\): ValueError: two$"),
        ({"step": lambda model: 1}, r"must take model, batch: def step\(model, batch\)"),
        ({"step": "mine"}, "step: str is not a function"),
        ({"step": print}, "step: builtin_function_or_method is not a function"),
        ({"train": replacing}, r"^train \(.*\) changed the model's layers or their types"),
        ({"train": telling}, "returned 'accuracy'; it may return"),
        ({"train": dividing}, r"^train \(test_own_training\.py, line \d+\): ZeroDivisionError: division by zero$"),
        ({"train": cross_entropy}, r"must take model, batches, context"),
        ({"step": cross_entropy, "train": sgd}, "step, train: pass one of the two"),
        ({"step": cross_entropy, "engine": {"execution": "stacked"}}, "'stacked' cannot run step="),
        ({"train": sgd, "engine": {"precision": "bfloat16"}}, "train= decides about its own precision"),
        ({"train": sgd, "algorithm": "fedprox"}, "client.name = 'proximal' cannot be used with a whole training loop"),
        ({"train": sgd, "algorithm": "scaffold"}, "client.name = 'control-variates' cannot be used with a whole"),
        (
            {"step": cross_entropy, "algorithm": "fedavg", "client": {"name": "dp-sgd", "noise_multiplier": 1.0}},
            "client.name = 'dp-sgd' bounds the gradient of every sample, which step= does not give",
        ),
    ],
)
def test_a_mistake_is_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(winnow.WinnowError, match=message) as caught:
        run(**settings)
    assert "\n" not in str(caught.value)


def test_an_error_names_the_users_line_even_below_torch_and_partial() -> None:
    def wrong(model: nn.Module, batch: Any, factor: float) -> torch.Tensor:
        return functional.cross_entropy(model(batch.x), batch.y.float() * factor)

    line = wrong.__code__.co_firstlineno + 1
    with pytest.raises(winnow.WinnowError, match=rf"step \(test_own_training.py, line {line}\): RuntimeError"):
        run(step=partial(wrong, factor=1.0))


def test_an_error_in_a_worker_process_is_the_same_line() -> None:
    with pytest.raises(winnow.WinnowError, match=r"train \(test_own_training.py, line \d+\): ZeroDivisionError"):
        run(train=dividing, engine={"workers": 2})


def test_clients_whose_loss_is_no_number_are_rejected_and_the_others_go_on() -> None:
    def sometimes(model: nn.Module, batches: Any, context: Any) -> None:
        sgd(model, batches, context)
        if context.client == 1:
            nn.init.constant_(model[0].weight, float("nan"))

    result = run(train=sometimes, algorithm="fedavg", select={"fraction": 1.0}, rounds=2)
    rejected = [event for event in result.view.events() if type(event).__name__ == "Rejected"]
    assert {event.client for event in rejected} == {1}
    assert "not finite" in rejected[0].reason
    assert all(torch.isfinite(tensor).all() for tensor in result.model.state_dict().values())


# Resuming -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [{"step": cross_entropy}, {"train": sgd}])
def test_a_run_continues_with_the_same_function_only(own: dict[str, Any], tmp_path: Path) -> None:
    whole = run(**own, rounds=4)
    run(**own, rounds=2, out=tmp_path / "run")
    keyword = next(iter(own))

    def other(model: nn.Module, batch: Any, context: Any = None) -> Any:
        return cross_entropy(model, batch)

    for changed in ({keyword: other}, {}):
        with pytest.raises(winnow.WinnowError, match="different data, a different model, loss or training step"):
            run(**changed, rounds=4, out=tmp_path / "run", resume=True)
    assert same(run(**own, rounds=4, out=tmp_path / "run", resume=True).model, whole.model)


def weighted(model: nn.Module, batch: Any, *, by: float) -> torch.Tensor:
    return by * cross_entropy(model, batch)


def closure(by: float) -> Any:
    noted: list[float] = []

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        noted.append(by)
        return weighted(model, batch, by=by)

    return step


def share_above(limit: float) -> Any:
    def share(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float((outputs > limit).double().mean())

    return share


@pytest.mark.parametrize(
    ("make", "keyword"),
    [
        (lambda value: partial(weighted, by=value), "step"),
        (closure, "step"),
        (lambda value: lambda model, batch, by=value: weighted(model, batch, by=by), "step"),
        (lambda value: partial(closure(value)), "step"),
        (share_above, "metric"),
        (lambda value: winnow.Metric("below", share_above(value), lower_is_better=True), "metric"),
    ],
)
def test_a_run_continues_with_the_same_values_only(make: Any, keyword: str, tmp_path: Path) -> None:
    whole, begun = run(**{keyword: make(0.5)}, rounds=3), make(0.5)
    run(**{keyword: begun}, rounds=1, out=tmp_path / "run")
    with pytest.raises(winnow.WinnowError, match="training step, or another metric of your own"):
        run(**{keyword: make(0.25)}, rounds=2, out=tmp_path / "run", resume=True)
    run(**{keyword: begun}, rounds=2, out=tmp_path / "run", resume=True)
    again = run(**{keyword: make(0.5)}, rounds=3, out=tmp_path / "run", resume=True)
    assert same(again.model, whole.model)


def test_a_comparison_uses_the_step_in_every_run() -> None:
    calls = []

    def counted(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(1)
        return cross_entropy(model, batch)

    compared = winnow.compare(
        algorithms=["fedavg", "fedprof"], seeds=1, model=network(), data=blobs(), step=counted, **SMALL
    )
    assert len(compared.runs) == 2
    assert len(calls) > 2 * 3
