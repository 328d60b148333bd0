"""Compiled code trusts nobody: odd data, rows and classes are refused in one line, and leave no trace in others."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cohort_training import train
from test_stack_native import in_single_precision, trained_natively
from test_stack_training import CLASSES, CROSS_ENTROPY, MODELS, MOMENTUM, make_data
from winnow.core import ModelError
from winnow.learn.local_optimiser import Sgd
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.stack import LOSSES, LocalStart, TensorData, as_loss, choose_execution, model_state

BATCHES_OF_FOUR = Sgd(batch_size=4, learning_rate=0.1)


def changed(data: TensorData, **parts: object) -> TensorData:
    return TensorData(**{"x": data.x, "y": data.y, "rows": data.rows, "offsets": data.offsets, **parts})


# Odd values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.Sigmoid(), nn.ReLU()])
@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.MaxPool2d(1, 2), nn.MaxPool2d(3, 2)])
def test_a_polluted_client_spoils_nobody_trained_after_it_by_the_same_thread(
    activation: nn.Module, pool: nn.Module
) -> None:
    """Also not through places of an image that no window of a pool covers."""
    body = nn.Sequential(nn.Conv2d(1, 2, 2), activation, pool, nn.Flatten())
    model = nn.Sequential(*body, nn.Linear(body(torch.zeros(1, 1, 8, 8)).shape[1], CLASSES))
    data = in_single_precision(make_data((1, 8, 8)))
    clean = trained_natively(model, data, [0, 1, 2, 3], BATCHES_OF_FOUR)
    data.x[data.rows[data.offsets[1] : data.offsets[2]]] = torch.nan  # the largest client, which is trained first
    spoilt = trained_natively(model, data, [0, 1, 2, 3], BATCHES_OF_FOUR)
    for key, tensor in clean.states.items():
        assert torch.equal(spoilt.states[key][[0, 2, 3]], tensor[[0, 2, 3]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", [nn.Tanh(), nn.Sigmoid(), nn.ReLU()])
def test_activations_are_torchs_to_the_last_bits_everywhere(activation: nn.Module, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), activation).to(dtype)
    nn.init.ones_(model[0].weight)
    odd = torch.tensor([0.0, torch.inf, -torch.inf, torch.nan, 1e30, -1e30, 1e-30, 88.5, -88.5, 20.0, 9.01])
    sides = [sign * torch.logspace(-12, 2.5, 5000) for sign in (1, -1)]
    x = torch.cat([odd, *sides, torch.linspace(-3, 3, 5000)]).to(dtype).unsqueeze(1)
    execution = choose_execution(
        model, x[:4].nan_to_num(0, 1, -1), torch.zeros(4, 1, dtype=dtype), as_loss("mse"), "native"
    )
    look = execution.forward_pass(None)
    assert look is not None
    found, _ = look(model_state(model), x, torch.arange(len(x)), True)
    ulp, smallest = torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    torch.testing.assert_close(found, model(x).detach(), rtol=4 * ulp, atol=2 * smallest, equal_nan=True)


@settings(max_examples=25)
@given(
    channels=st.tuples(st.integers(1, 3), st.integers(1, 13)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    samples=st.sampled_from([1, 8, 9, 37]),
)
def test_convolutions_in_single_precision_have_torchs_gradients(
    channels: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    samples: int,
) -> None:
    """Its blocks are wider than those of double precision, and come in two widths."""
    assume(all(p < k for p, k in zip(padding, kernel, strict=True)))
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, channels[0], 1), nn.Conv2d(*channels, kernel, stride, padding), nn.Flatten())
    x, y = torch.randn(samples, 1, 7, 6), torch.randint(0, 3, (samples,))
    model = nn.Sequential(*body, nn.Linear(body(x).shape[1], 3))
    data = TensorData(x=x, y=y, rows=np.arange(samples), offsets=np.array([0, samples]))
    trained = trained_natively(model, data, [0], Sgd(batch_size=samples, learning_rate=1.0))
    nn.functional.cross_entropy(model(x), y).backward()
    for name, parameter in model.named_parameters():
        found = parameter.detach() - trained.states[name][0]
        torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-5)


# Odd classes and rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-1, -100, CLASSES, 2**40])
def test_a_class_out_of_range_is_refused_wherever_it_stands(wrong: int) -> None:
    make, shape = MODELS["mlp"]
    data = make_data(shape)
    data.y[data.rows[data.offsets[3]]] = wrong
    with pytest.raises(ModelError, match="is outside the model's outputs") as caught:
        trained_natively(make(), data, [0, 1, 2, 3, 4], threads=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [-2, 10**6, 2**62])
def test_rows_that_the_data_do_not_have_are_refused(wrong: int) -> None:
    make, shape = MODELS["mlp"]
    data = make_data(shape)
    rows = data.rows.copy()
    rows[3] = wrong
    with pytest.raises(ModelError, match="row index is outside the data"):
        trained_natively(make(), changed(data, rows=rows), [0, 1])
    look = choose_execution(make(), data.x[:4], data.y[:4], CROSS_ENTROPY, "native").forward_pass(None)
    assert look is not None
    with pytest.raises(ModelError, match="row index is outside the data"):
        look(model_state(make()), data.x, torch.tensor([0, wrong]), True)


def test_class_probabilities_are_left_to_others() -> None:
    make, shape = MODELS["mlp"]
    data = make_data(shape)
    shares = nn.functional.one_hot(data.y, CLASSES).double()
    assert choose_execution(make(), data.x, shares, CROSS_ENTROPY).name == "stacked"
    with pytest.raises(ModelError, match="needs one integer per sample"):
        choose_execution(make(), data.x, shares, CROSS_ENTROPY, "native")


def test_targets_that_do_not_match_the_samples_are_refused() -> None:
    make, shape = MODELS["mlp"]
    data = make_data(shape)
    with pytest.raises(ModelError, match="needs one integer per sample"):
        trained_natively(make(), changed(data, y=data.y[:-1]), [0])


def test_samples_of_another_shape_are_refused() -> None:
    make, shape = MODELS["mlp"]
    model, data = make(), make_data(shape)
    execution = choose_execution(model, data.x[:4], data.y[:4], CROSS_ENTROPY, "native")
    narrow = changed(data, x=data.x[:, :-1])
    with pytest.raises(ModelError, match="expects samples of shape 5×1×1"):
        train(execution, LocalStart.shared(model_state(model)), MOMENTUM, narrow, np.array([0]), round=1, seed=1)


# Odd memory -----------------------------------------------------------------------------------------------------------


def test_samples_may_lie_anyhow_in_memory() -> None:
    make, shape = MODELS["cnn"]
    model, data = make().float(), in_single_precision(make_data(shape))
    x, y = data.x.transpose(0, 3).contiguous().transpose(0, 3), torch.stack([data.y, -data.y], 1)[:, 0]
    assert not x.is_contiguous()
    assert not y.is_contiguous()
    straight, odd = (trained_natively(model, each, [0, 1, 2]) for each in (data, changed(data, x=x, y=y)))
    for key, tensor in straight.states.items():
        assert torch.equal(odd.states[key], tensor)


def test_nobody_is_trained_where_nobody_is_asked() -> None:
    make, shape = MODELS["mlp"]
    model, data = make(), make_data(shape)
    execution = choose_execution(model, data.x[:4], data.y[:4], CROSS_ENTROPY, "native", 2)
    nobody = np.array([], np.int64)
    trained = train(execution, LocalStart.shared(model_state(model)), MOMENTUM, data, nobody, round=1, seed=1)
    assert {len(tensor) for tensor in trained.states.values()} == {0}
    assert len(trained.loss) == 0


# What is watched ------------------------------------------------------------------------------------------------------


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(x)))


@pytest.mark.parametrize(
    ("model", "layer", "shape"),
    [
        (Functional(), "", (5,)),  # the whole model, not the function without a name in it
        (nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(15, CLASSES)), "0", (5, 3)),
    ],
)
def test_what_compiled_code_sees_otherwise_is_left_to_torch(
    model: nn.Module, layer: str, shape: tuple[int, ...]
) -> None:
    data = in_single_precision(make_data(shape))
    execution = choose_execution(model, data.x[:4], data.y[:4], LOSSES["cross-entropy"], "native")
    rows, owner = torch.arange(len(data.x)), torch.zeros(len(data.x), dtype=torch.int64)
    plain, compiled = (
        ModelEvaluator(model, CROSS_ENTROPY, layer, how).profiles(model_state(model), data.x, rows, owner, 1)[0]
        for how in (None, execution)
    )
    np.testing.assert_allclose(compiled.mean, plain.mean, rtol=1e-5, atol=1e-6)
