"""What the owner of labels does to gradients before they leave it, because gradients at the cut tell labels.

Li et al. (Label leakage and protection in two-party split learning, 2022) infer labels from the norms and directions of
these gradients. `max-norm` is their heuristic against the first. Noise has a guarantee.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from winnow.core import ConfigError


@dataclass(frozen=True, kw_only=True)
class CutProtection:
    """With `noise`, the gradient of each sample is clipped to `clip`, over the cut and the top's parameters together,
    and N(0, (noise·clip)²) is added to what leaves and to the sum that the top learns from.

    A label enters the training through these alone, and once an epoch. Replacing it moves them by 2·clip at most. So
    this is the Gaussian mechanism with the multiplier noise/2, composed over epochs, for each label.
    """

    clip: float | None = None
    noise: float = 0.0
    norms: Literal["as they are", "max-norm"] = "as they are"
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if self.clip is not None and self.clip <= 0:
            raise ConfigError(f"clip is {self.clip:g}; it must be greater than 0")
        if self.noise < 0:
            raise ConfigError(f"noise is {self.noise:g}; it must be at least 0")
        if self.noise and self.clip is None:
            raise ConfigError("noise needs clip: it is measured in multiples of it")
        if self.noise and self.norms != "as they are":
            raise ConfigError('norms = "max-norm" has no effect beside noise; remove one of the two')
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta is {self.delta:g}; it must lie between 0 and 1")

    def epsilon(self, epochs: int) -> float | None:
        """ε for each label after so many epochs; None without noise."""
        if not self.noise:
            return None
        from winnow.privacy.dp import privacy_loss  # noqa: PLC0415 - others need none of it

        return privacy_loss.epsilon([privacy_loss.GaussianRelease(noise=self.noise / 2, times=epochs)], self.delta)

    def leaving(self, gradient: Tensor, noise: np.random.Generator) -> Tensor:
        """The gradient of a batch at the cut, without the guarantee: clipped by sample, and of equal norms if asked."""
        flat = gradient.flatten(1)
        norms = flat.norm(dim=1)
        if self.clip is not None:  # a batch's gradient is that of its mean loss
            limit = self.clip / len(flat)
            flat = flat * (limit / norms.clamp(min=limit))[:, None]
            norms = norms.clamp(max=limit)
        if self.norms == "max-norm":
            spread = ((norms.max() / norms.clamp(min=1e-30)) ** 2 - 1).clamp(min=0).sqrt()
            spread = torch.where(norms > 0, spread, 0.0)
            flat = flat * (1 + spread * torch.from_numpy(noise.standard_normal(len(flat), np.float32)))[:, None]
        return flat.view_as(gradient)


UNPROTECTED = CutProtection()
