"""HF-MAML against exact meta-gradients."""

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from textbook import assert_same, mean, samples
from winnow.core import RoundFinished, Selected, stream
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.algorithms.hf_maml import HessianFreeGradient
from winnow.learn.stack import Batch
from world import blobs, experiment, prepared

ALPHA = 0.05
DELTA, DELTA_ACROSS_KINKS = 0.003, 0.03


def test_on_a_quadratic_it_is_the_exact_gradient_of_the_adapted_loss() -> None:
    """f_D(w) = w·A_D·w/2 − b_D·w, whose gradients are A_D·w − b_D and whose Hessians are A_D."""
    torch.manual_seed(0)
    halves = torch.randn(3, 6, 6, dtype=torch.float64)
    hessians, targets = halves @ halves.transpose(1, 2), torch.randn(3, 6, dtype=torch.float64)

    class At:
        @staticmethod
        def gradients(parameters: list[Tensor], batch: Batch) -> tuple[list[Tensor], Tensor]:
            (w,), which = parameters, int(batch.x)
            slope = torch.stack([hessians[which] @ own - targets[which] for own in w])
            return [slope], torch.full((len(w), 1), float(which))

    w = torch.randn(2, 6, dtype=torch.float64)
    before = w.clone()
    batches = [Batch(torch.tensor(each), torch.tensor(0), torch.ones(2, 1), np.ones(2), full=True) for each in range(3)]
    (found,), losses = HessianFreeGradient(alpha=ALPHA, delta=0.1)(At, [w], batches)
    for own, slope in zip(w, found, strict=True):
        adapted = own - ALPHA * (hessians[0] @ own - targets[0])
        outer = hessians[1] @ adapted - targets[1]
        torch.testing.assert_close(slope, outer - ALPHA * hessians[2] @ outer)
    assert torch.equal(w, before)
    assert (losses == 1).all(), "the loss after the inner step is reported"


def loss_of(module: nn.Module, x: Tensor, y: Tensor):
    return lambda state: nn.functional.cross_entropy(functional_call(module, state, (x,)), y)


def meta_step(module: nn.Module, state: dict[str, Tensor], batches: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """(I − α·∇²f(w; D''))·∇f(w − α·∇f(w; D); D') with an exact product."""
    first, second, third = (loss_of(module, x, y) for x, y in batches)
    inner = grad(first)(state)
    outer = grad(second)({name: w - ALPHA * inner[name] for name, w in state.items()})
    product = grad(lambda at: sum((slope * outer[name]).sum() for name, slope in grad(third)(at).items()))(state)
    return {name: outer[name] - ALPHA * product[name] for name in state}


def difference_step(
    module: nn.Module, state: dict[str, Tensor], batches: list[tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """The Hessian-free rule as it is published, which on networks with kinks is not the exact one."""
    first, second, third = (loss_of(module, x, y) for x, y in batches)
    inner = grad(first)(state)
    outer = grad(second)({name: w - ALPHA * inner[name] for name, w in state.items()})
    ahead, behind = (
        grad(third)({name: w + by * outer[name] for name, w in state.items()})
        for by in (DELTA_ACROSS_KINKS, -DELTA_ACROSS_KINKS)
    )
    return {name: outer[name] - ALPHA * (ahead[name] - behind[name]) / (2 * DELTA_ACROSS_KINKS) for name in state}


def trained_by_hand(
    ready: PreparedRun, client: int, start: dict[str, Tensor], step: Callable[..., dict[str, Tensor]] = meta_step
) -> dict[str, Tensor]:
    module, (x, y) = deepcopy(ready.module).double(), samples(ready, client)
    state = {name: tensor.double() for name, tensor in start.items()}
    speed = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    orders = [stream(0, "batches", 1, client, *phase) for phase in ((), ("phase 1",), ("phase 2",))]
    for _ in range(2):
        epochs = [np.array_split(rows := order.permutation(len(x)), range(8, len(rows), 8)) for order in orders]
        for rows in zip(*epochs, strict=True):
            slope = step(module, state, [(x[batch].double(), y[batch]) for batch in rows])
            speed = {name: 0.5 * speed[name] + slope[name] for name in state}
            state = {name: w - 0.1 * speed[name] for name, w in state.items()}
    return {name: tensor.float() for name, tensor in state.items()}


@pytest.mark.parametrize("execution", ["native", "stacked", "vmap", "loop"])
def test_a_round_follows_exact_meta_gradients(execution: str) -> None:
    sets = ("rounds=1", f"client.alpha={ALPHA}", f"client.delta={DELTA}", "model.activation=tanh")
    ready = prepared(*sets, f"engine.execution={execution}", algorithm="hf-maml")
    start = dict(ready.training.model)
    (invited,) = [e.clients for e in ready.training.run(ready.federation) if isinstance(e, Selected)]
    assert_same(ready.training.model, mean([trained_by_hand(ready, k, start) for k in invited.tolist()]))
    assert not torch.allclose(ready.training.model["1.weight"], start["1.weight"], atol=1e-3)


def test_with_kinks_a_round_follows_the_published_differences() -> None:
    sets = ("rounds=1", f"client.alpha={ALPHA}", f"client.delta={DELTA_ACROSS_KINKS}", "model.activation=relu")
    ready = prepared(*sets, algorithm="hf-maml")
    start = dict(ready.training.model)
    (invited,) = [e.clients for e in ready.training.run(ready.federation) if isinstance(e, Selected)]
    by_hand = [
        mean([trained_by_hand(ready, k, start, step) for k in invited.tolist()])
        for step in (difference_step, meta_step)
    ]
    assert_same(ready.training.model, by_hand[0])
    assert not torch.allclose(ready.training.model["1.weight"], by_hand[1]["1.weight"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [None, 1])
def test_tuned_it_takes_plain_steps_of_alpha(steps: int | None) -> None:
    sets = (
        "data.local_test=0.25",
        "evaluation.by=tuned",
        "evaluation.tune_epochs=1",
        "evaluation.tune_every=1",
        "rounds=2",
    )
    adapted = () if steps is None else (f"client.adapt_steps={steps}",)
    ready = prepared(*sets, *adapted, f"client.alpha={ALPHA}", "local.momentum=0.9", algorithm="hf-maml")
    events = list(ready.training.run(ready.federation))
    own, scores = ready.federation.site.local_test, []
    for k in range(8):
        module, (x, y) = deepcopy(ready.module), samples(ready, k)
        module.load_state_dict(ready.training.model)
        module.train()
        order = stream(0, "batches", 2, k, "phase -1").permutation(len(x))
        for batch in np.array_split(order, range(8, len(order), 8))[:steps]:
            module.zero_grad()
            nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(ALPHA * parameter.grad)
        rows = own.rows_of(k)
        scores.append(float((module.eval()(own.x[rows]).argmax(1) == own.y[rows]).double().mean()))
    assert isinstance(events[-1], RoundFinished)
    assert events[-1].metrics["tuned"]["accuracy"] == pytest.approx(np.mean(scores), abs=1e-6)


def test_batch_statistics_stay_sound() -> None:
    network = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    ready = prepare_run(experiment(algorithm="hf-maml"), RunInputs(dataset=blobs(), module=network))
    list(ready.training.run(ready.federation))
    assert (ready.training.model["1.running_var"] > 0).all()
