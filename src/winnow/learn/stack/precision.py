"""In which precision products are taken. Parameters, optimisers and sums are always in single precision."""

from typing import Literal

import torch

Precision = Literal["float32", "tf32", "bfloat16"]


def autocast_context(precision: Precision, device: torch.device) -> torch.autocast:
    """A context in which torch's products take bfloat16 if that is asked for; double precision is left alone.

    Weights are cast anew in each step: a captured graph must not remember those of the step that it was captured in.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False)


def allow_tf32(precision: Precision) -> None:
    """Say whether CUDA's products may round their factors to ten bits; torch lets convolutions do so by default."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
