"""The networks that figure 6 divides: convolutions with the images, dense layers with the labels."""

import torch
from torch import nn


def lenet5(seed: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    """LeNet-5 for 28 × 28 digits, as bottom, middle and top."""
    torch.manual_seed(seed)
    bottom = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
    )  # fmt: skip
    middle = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
    return bottom, middle, nn.Linear(84, 10)


def small_cnn(seed: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Figure 4's network for 32 × 32 photographs, in the place of the paper's, which has six convolutions."""
    torch.manual_seed(seed)
    bottom = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
    )  # fmt: skip
    middle = nn.Sequential(nn.Linear(32 * 8 * 8, 128), nn.ReLU())
    return bottom, middle, nn.Linear(128, 10)
