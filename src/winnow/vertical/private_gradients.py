"""Gradients of single samples, clipped over parameters and cut together, with noise on both."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from winnow.core import ModelError
from winnow.core.errors import first_line
from winnow.vertical.cut_protection import CutProtection

Tensors: TypeAlias = tuple[Tensor, ...]
SampleLoss: TypeAlias = Callable[[Mapping[str, Tensor], Tensors, Tensors], Tensor]
"""Of parameters, of what came over the cut, and of the owner's own values; all of one sample, as a batch of one."""


def private_gradients(
    loss: SampleLoss,
    parameters: Mapping[str, Tensor],
    cut: Tensors,
    own: Tensors,
    protection: CutProtection,
    noise: np.random.Generator,
) -> tuple[Tensor, dict[str, Tensor], Tensors]:
    """Losses by sample, the noisy mean gradient of the parameters, and noisy gradients of the cut, each divided by the
    number of samples (Gaussian mechanism: whatever one label changes is at most 2·clip long before the noise).
    """
    assert protection.clip is not None

    def of_sample(at: Mapping[str, Tensor], shown: Tensors, held: Tensors) -> tuple[Any, Any]:
        value = loss(at, tuple(each.unsqueeze(0) for each in shown), tuple(each.unsqueeze(0) for each in held)).sum()
        return value, value.detach()

    trained = {name: value.detach() for name, value in parameters.items()}
    try:
        by_sample = vmap(grad(of_sample, argnums=(0, 1), has_aux=True), in_dims=(None, 0, 0), randomness="different")
        (of_parameters, of_cut), losses = by_sample(trained, cut, own)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ModelError(
            f"the top, or the head, has no gradient of single samples, which noise needs: {first_line(error)}"
        ) from error
    parts = [*of_parameters.values(), *of_cut]
    norms = torch.stack([part.flatten(1).norm(dim=1) for part in parts]).norm(dim=0)
    scale = protection.clip / norms.clamp(min=protection.clip)
    sd = protection.noise * protection.clip

    def noisy(values: Tensor) -> Tensor:
        return (values + torch.from_numpy(sd * noise.standard_normal(values.shape, np.float32))) / len(losses)

    return (
        losses,
        {name: noisy(torch.tensordot(scale, part, 1)) for name, part in of_parameters.items()},
        tuple(noisy(part * scale.view(-1, *[1] * (part.dim() - 1))) for part in of_cut),
    )
