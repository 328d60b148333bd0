"""Precision of products, convolutions as products, how many clients fit: what can be tested without a CUDA device."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from cohort_training import train
from winnow.core import ModelError
from winnow.learn.local_optimiser import Sgd
from winnow.learn.metrics import METRICS
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.models import ModelSettings, build_model
from winnow.learn.stack import (
    LOSSES,
    CohortTrainingResult,
    Execution,
    ExecutionSetting,
    LocalStart,
    Precision,
    TensorData,
    choose_execution,
    clients_that_fit,
    gpu_memory,
    model_state,
)
from winnow.learn.stack.stacked_layers.convolution_matmul import ConvolutionWindow, convolve
from world import prepared

CROSS_ENTROPY = LOSSES["cross-entropy"]


def small_model() -> nn.Module:
    return build_model(ModelSettings.members["lenet5"](), (1, 28, 28), 10, 0)


def normalised_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 10))


def some_data() -> TensorData:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(22, 1, 28, 28)).astype(np.float32))
    return TensorData(
        x=x, y=torch.from_numpy(rng.integers(0, 10, 22)), rows=np.arange(22), offsets=np.array([0, 8, 13, 22])
    )


def chosen(model: nn.Module, force: ExecutionSetting, precision: Precision) -> Execution:
    data = some_data()
    return choose_execution(model, data.x[:4], data.y[:4], CROSS_ENTROPY, force, precision=precision)


def trained(model: nn.Module, force: ExecutionSetting, precision: Precision) -> CohortTrainingResult:
    local = Sgd(epochs=1, batch_size=4, learning_rate=0.02)
    start = LocalStart.shared(model_state(model))
    return train(chosen(model, force, precision), start, local, some_data(), np.arange(3), round=1, seed=0)


@pytest.mark.parametrize(
    ("make", "force"),
    [
        (small_model, "stacked"),
        (small_model, "vmap"),
        (small_model, "loop"),
        (normalised_model, "stacked"),
        (normalised_model, "loop"),
    ],
)
def test_bfloat16_is_float32_within_its_rounding(make, force: ExecutionSetting) -> None:
    model = make()
    exact, rough = trained(model, force, "float32"), trained(model, force, "bfloat16")
    assert not torch.equal(exact.loss, rough.loss)
    torch.testing.assert_close(exact.loss, rough.loss, rtol=0.02, atol=0.02)
    for name, tensor in exact.states.items():
        assert rough.states[name].dtype == tensor.dtype
        torch.testing.assert_close(tensor, rough.states[name], rtol=0.1, atol=0.01)


def test_a_way_that_cannot_take_bfloat16_is_refused_in_one_line() -> None:
    with pytest.raises(ModelError, match="execution 'vmap' cannot train this model: expected scalar type BFloat16"):
        chosen(normalised_model(), "vmap", "bfloat16")  # torch's batch normalisation, mapped over clients on a CPU


def test_bfloat16_evaluates_in_float32_sums() -> None:
    model, data = small_model(), some_data()
    found = {}
    for precision in ("float32", "bfloat16"):
        evaluator = ModelEvaluator(model, CROSS_ENTROPY, "fc1", chosen(model, "stacked", precision))
        found[precision] = evaluator.evaluate(model_state(model), data.x, data.y, [METRICS["accuracy"]])
    exact, rough = found["float32"], found["bfloat16"]
    assert rough.metrics["loss"] != exact.metrics["loss"]
    assert rough.metrics["loss"] == pytest.approx(exact.metrics["loss"], rel=0.02)
    np.testing.assert_allclose(rough.profile.mean, exact.profile.mean, atol=0.02)


def test_native_training_knows_single_precision_only() -> None:
    with pytest.raises(
        ModelError,
        match="'native' cannot train this model: native execution supports float32 only",
    ):
        chosen(small_model(), "native", "bfloat16")
    execution = chosen(small_model(), "auto", "bfloat16")
    assert execution.name == "stacked"
    assert "not native: native execution supports float32 only" in execution.notice


def test_precision_is_a_setting() -> None:
    ready = prepared("engine.precision=bfloat16")
    assert ready.federation.site.execution.precision == "bfloat16"
    prepared("engine.precision=tf32")
    assert torch.backends.cudnn.allow_tf32
    prepared()
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


@given(
    inputs=st.integers(1, 4),
    outputs=st.integers(1, 5),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    sides=st.tuples(st.integers(3, 7), st.integers(3, 7)),
)
def test_a_convolution_is_a_product(inputs, outputs, kernel, stride, padding, sides) -> None:
    window = ConvolutionWindow.of(nn.Conv2d(inputs, outputs, kernel, stride, padding))
    torch.manual_seed(0)
    x = torch.randn(2 * 3, inputs, *sides, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, outputs, inputs, *kernel, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, outputs, dtype=torch.float64, requires_grad=True)
    expected = torch.cat(
        [functional.conv2d(own, w, b, stride, padding) for own, w, b in zip(x.chunk(2), weight, bias, strict=True)]
    )
    assert_same_with_slopes(convolve(x, weight, bias, window), expected, (x, weight, bias))


def test_large_kernels_over_few_positions_are_multiplied_a_client_at_a_time() -> None:
    window = ConvolutionWindow.of(nn.Conv2d(40, 50, 1))
    torch.manual_seed(0)
    x = torch.randn(2 * 3, 40, 2, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 50, 40, 1, 1, dtype=torch.float64, requires_grad=True)
    expected = torch.cat([functional.conv2d(own, w) for own, w in zip(x.chunk(2), weight, strict=True)])
    assert_same_with_slopes(convolve(x, weight, None, window), expected, (x, weight))


def assert_same_with_slopes(found: Tensor, expected: Tensor, leaves: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(found, expected)
    slope = torch.randn_like(expected)
    pairs = zip(torch.autograd.grad(found, leaves, slope), torch.autograd.grad(expected, leaves, slope), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(64, 64, 3),
        nn.Conv1d(4, 4, 3),
    ],
)
def test_other_convolutions_are_left_to_the_library(layer: nn.Module) -> None:
    assert ConvolutionWindow.of(layer) is None


def test_clients_fit_by_what_one_more_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "_peak", lambda execution, x, y, local, clients: 1000 + 10 * clients)
    execution, data = chosen(small_model(), "loop", "float32"), some_data()

    def fit(free: int) -> int:
        return clients_that_fit(execution, data.x, data.y, Sgd(), free)

    assert [fit(free) for free in (0, 19, 40, 200)] == [1, 1, 2, 10]
