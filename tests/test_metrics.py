"""Scores against calculations by hand."""

import numpy as np
import pytest
import torch

from winnow.core import ConfigError
from winnow.learn.metrics import METRICS, metric_name

TARGETS = torch.tensor([[0.2], [0.4], [1.0]])
OUTPUTS = torch.tensor([[0.1], [0.4], [2.0]])


def score(name: str, outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return float(METRICS[name](targets)(outputs, targets).mean())


@pytest.mark.parametrize("shape", [(3, 1), (3,)])
def test_relative_accuracy(shape: tuple[int, ...]) -> None:
    assert score("relative-accuracy", OUTPUTS.reshape(shape), TARGETS) == pytest.approx((0.5 + 1 + 0.5) / 3)


@pytest.mark.parametrize("shape", [(3, 1), (3,)])
def test_r2_is_the_textbook_s(shape: tuple[int, ...]) -> None:
    y, p = TARGETS.numpy(), OUTPUTS.numpy()
    expected = 1 - ((y - p) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert score("r2", OUTPUTS.reshape(shape), TARGETS) == pytest.approx(float(expected), rel=1e-5)


def test_r2_of_several_targets_is_their_mean() -> None:
    rng = np.random.default_rng(0)
    y, p = rng.normal(size=(50, 2)), rng.normal(size=(50, 2))
    expected = (1 - ((y - p) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)).mean()
    assert score("r2", torch.from_numpy(p).float(), torch.from_numpy(y).float()) == pytest.approx(expected, rel=1e-4)


def test_accuracy() -> None:
    outputs = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.6, 0.4]])
    assert score("accuracy", outputs, torch.tensor([1, 0, 1])) == pytest.approx(2 / 3)


@pytest.mark.parametrize("shape", [(3, 1), (3,)])
def test_a_single_output_decides_by_its_sign(shape: tuple[int, ...]) -> None:
    outputs = torch.tensor([-1.0, 2.0, 0.5]).reshape(shape)
    assert score("accuracy", outputs, torch.tensor([0, 1, 0])) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("asked", "classes", "pooled"), [("r2", 3, False), ("accuracy", None, False), ("r2", None, True)]
)
def test_a_metric_that_does_not_fit_is_one_line(asked: str, classes: int | None, pooled: bool) -> None:
    with pytest.raises(ConfigError, match=f"metric: '{asked}' cannot be used for .*; choose"):
        metric_name(asked, classes, pooled=pooled)


def test_defaults() -> None:
    assert metric_name(None, 4, pooled=False) == "accuracy"
    assert metric_name(None, None, pooled=False) == "r2"
    assert metric_name(None, None, pooled=True) == "relative-accuracy"
