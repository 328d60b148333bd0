"""Steps compiled for one shape: depthwise taps equal torch's convolution, and a compiled step a plain one."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from winnow.core import ModelError
from winnow.learn.stack import LOSSES, Batch, Loss, model_state, repeat_state
from winnow.learn.stack.stacked_execution import StackedExecution
from winnow.learn.stack.stacked_layers import depthwise_taps
from winnow.learn.stack.stacked_or_compiled_gradients import StackedCohort, compile_cohort

CLIENTS, SAMPLES = 2, 3


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), ((1, 3), (2, 1), (0, 2)), (2, 3, 0)])
@pytest.mark.parametrize("bias", [False, True])
def test_taps_equal_torchs_depthwise_convolution(kernel: int, stride: int, padding: int, bias: bool) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(4, 4, kernel, stride, padding, groups=4, bias=bias).double() for _ in range(CLIENTS)]
    window = depthwise_taps.depthwise_window(layers[0])
    assert window is not None
    x = torch.randn(CLIENTS * SAMPLES, 4, 7, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.stack([layer.weight for layer in layers])
    shift = torch.stack([layer.bias for layer in layers if layer.bias is not None]) if bias else None
    found = depthwise_taps.convolve(x, weight, shift, window)
    expected = torch.cat([layer(own) for layer, own in zip(layers, x.chunk(CLIENTS), strict=True)])
    torch.testing.assert_close(found, expected)
    slope = torch.randn_like(expected)
    inputs = [x, *(parameter for layer in layers for parameter in layer.parameters())]
    for own, other in zip(
        torch.autograd.grad(found, inputs, slope, retain_graph=True),
        torch.autograd.grad(expected, inputs, slope),
        strict=True,
    ):
        torch.testing.assert_close(own, other)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 4, 3, 2, 1, groups=4, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def cohorts(loss: Loss) -> tuple[StackedCohort, StackedCohort, list[Tensor], Batch]:
    """A cohort, the same in double precision, its buffers and a batch."""
    bound = []
    for module in (model(), model().double()):
        execution = StackedExecution(module, loss)
        states = repeat_state(model_state(module), CLIENTS)
        carried = [states[name] for name in execution.layout.carried]
        cohort = execution.bind_cohort([states[name] for name in execution.layout.trained], carried)
        assert isinstance(cohort, StackedCohort)
        bound.append((cohort, carried))
    x, y = torch.randn(CLIENTS * SAMPLES, 4, 8, 8), torch.arange(CLIENTS * SAMPLES) % 3
    weight = torch.full((CLIENTS, SAMPLES), 1 / SAMPLES)
    (plain, carried), (exact, _) = bound
    return plain, exact, carried, Batch(x, y, weight, np.full(CLIENTS, SAMPLES), full=True)


@pytest.mark.slow(part="executions")
def test_a_compiled_step_has_the_gradients_and_buffers_of_a_plain_one() -> None:
    plain, exact, carried, batch = cohorts(LOSSES["cross-entropy"])
    before = [tensor.clone() for tensor in carried]
    compiled = compile_cohort(plain, exact, carried, batch, backend="aot_eager")
    assert all(torch.equal(tensor, own) for tensor, own in zip(carried, before, strict=True))
    results = []
    for cohort in (plain, compiled):
        gradients, losses = cohort.gradients(batch)
        results.append([*gradients, losses, *(tensor.clone() for tensor in carried)])
        for tensor, values in zip(carried, before, strict=True):
            tensor.copy_(values)
    for own, other in zip(*results, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)


def wrong_if_compiled(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    return 1.01 * losses if torch.compiler.is_compiling() else losses


def not_compilable(outputs: Tensor, targets: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.slow(part="executions")
@pytest.mark.parametrize(
    ("loss", "message"), [(wrong_if_compiled, "gradients deviate by 1.0e-02"), (not_compilable, "cannot compile")]
)
def test_what_compiles_to_something_else_or_not_at_all_is_refused(loss: object, message: str) -> None:
    with pytest.raises(ModelError, match=rf"^engine.compile: .*{message}.*; set it to false$"):
        compile_cohort(*cohorts(Loss("own", loss)), backend="aot_eager")  # type: ignore[arg-type]
