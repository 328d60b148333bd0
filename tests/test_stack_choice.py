"""Which execution a model gets, and what a user is told about it."""

import pytest
import torch
from torch import Tensor, nn

from winnow.core import ModelError
from winnow.learn.models import LstmModel, MlpModel, ResNet18Model, ShuffleNetV2Model, build_model
from winnow.learn.stack import LOSSES, Execution, as_loss, choose_execution

CROSS_ENTROPY = LOSSES["cross-entropy"]


def choose(model: nn.Module, shape: tuple[int, ...] = (6,), force: str = "auto") -> Execution:
    torch.manual_seed(0)
    return choose_execution(model, torch.randn(5, *shape), torch.randint(0, 3, (5,)), CROSS_ENTROPY, force)


class Scaled(nn.Module):
    """A parameter of its own, outside any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * self.scale


class Centred(nn.Module):
    """Looks across samples."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x - x.mean(0))


class Wavering(nn.Module):
    """Its path depends on the data, even if all clients of a trial happen to take the same one."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(x)
        return out * 2 if out.sum() > self.threshold else out


class Functional(nn.Module):
    """Dropout as a function, whose noise must not be mistaken for a difference."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.dropout(self.first(x), 0.5, self.training))


class SinglePrecision(nn.Module):
    """Insists on float32, so the trial cannot be in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x @ torch.eye(6, dtype=torch.float32))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (build_model(MlpModel(), (6,), 3, 0), (6,)),
        (build_model(ResNet18Model(), (1, 4, 4), 3, 0), (1, 4, 4)),
        (build_model(ShuffleNetV2Model(width=0.5), (1, 8, 8), 3, 0), (1, 8, 8)),
        (build_model(LstmModel(hidden=4), (5, 2), 3, 0), (5, 2)),
        (Functional(), (6,)),
        (SinglePrecision(), (6,)),
        (nn.Linear(6, 3), (6,)),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Tanh(), nn.Linear(4, 3)), (6,)),
        (nn.Sequential(nn.Linear(6, 4), nn.Sigmoid(), nn.Linear(4, 3, bias=False)), (6,)),
    ],
)
def test_common_models_are_stacked_without_a_notice(
    model: nn.Module, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINNOW_NATIVE", "0")
    execution = choose(model, shape)
    assert (execution.name, execution.notice) == ("stacked", "")


@pytest.mark.parametrize(
    ("model", "name", "reason"),
    [
        (Scaled(), "vmap", "the model itself (Scaled) has parameters"),
        (nn.Sequential(Scaled()), "vmap", "layer '0' (Scaled) has parameters"),
        (Centred(), "vmap", "mix samples of a batch"),
        (Wavering(threshold=0.0), "loop", "to a Python value"),
        (Wavering(threshold=-1e9), "loop", "to a Python value"),
    ],
)
def test_what_cannot_be_stacked_falls_back_and_says_why(model: nn.Module, name: str, reason: str) -> None:
    execution = choose(model)
    assert execution.name == name
    assert reason in execution.notice
    assert "\n" not in execution.notice


def test_an_execution_that_would_be_wrong_cannot_be_forced() -> None:
    with pytest.raises(ModelError, match="execution 'stacked' cannot train this model"):
        choose(Centred(), force="stacked")


@pytest.mark.parametrize("execution", ["auto", "loop"])
def test_a_model_of_which_nothing_is_trained_is_refused(execution: str) -> None:
    with pytest.raises(ModelError, match="cannot be trained: none of its parameters has requires_grad = True"):
        choose(nn.Linear(6, 3).requires_grad_(False), force=execution)


def test_choosing_leaves_the_users_model_alone() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    choose(model)
    assert not model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "loss", "message"),
    [
        (nn.Linear(5, 3), CROSS_ENTROPY, "does not accept a batch of shape (5, 6)"),
        (nn.Linear(6, 3), as_loss(nn.functional.cross_entropy), 'reduction="none"'),
        (nn.Linear(6, 2), LOSSES["mse"], "does not accept outputs (5, 2) and targets (5,)"),
        (nn.RNN(6, 3), CROSS_ENTROPY, "returned tuple"),
        (nn.Flatten(0), CROSS_ENTROPY, "returned (30,) for 5 samples"),
    ],
)
def test_a_model_or_loss_that_does_not_fit_is_refused_in_one_line(model: nn.Module, loss: object, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        choose_execution(model, torch.randn(5, 6), torch.randint(0, 3, (5,)), loss)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_losses_are_named_and_may_be_the_users_own() -> None:
    outputs, targets = torch.randn(4, 2, requires_grad=True), torch.randn(4, 2)
    assert as_loss("mse") is LOSSES["mse"]
    huber = as_loss(lambda out, y: nn.functional.huber_loss(out, y, reduction="none").mean(1))
    for loss in (LOSSES["mse"], huber):
        losses, slope = loss.losses_and_gradients(outputs.detach(), targets)
        torch.testing.assert_close(losses, loss(outputs, targets).detach())
        torch.testing.assert_close(slope, torch.autograd.grad(loss(outputs, targets).sum(), outputs)[0])
    with pytest.raises(ModelError, match="unknown loss 'msq'; choose one of mse, cross-entropy, nll"):
        as_loss("msq")


def test_cross_entropy_and_nll_agree_on_log_probabilities() -> None:
    outputs, targets = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 2, 1, 1])
    torch.testing.assert_close(CROSS_ENTROPY(outputs, targets), LOSSES["nll"](outputs.log_softmax(1), targets))
    losses, slope = CROSS_ENTROPY.losses_and_gradients(outputs.detach(), targets)
    torch.testing.assert_close(losses, CROSS_ENTROPY(outputs, targets).detach())
    torch.testing.assert_close(slope, torch.autograd.grad(CROSS_ENTROPY(outputs, targets).sum(), outputs)[0])
