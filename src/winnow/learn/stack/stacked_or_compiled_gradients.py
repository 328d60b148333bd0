"""Gradients of a stacked cohort, by torch's own kernels or by kernels compiled for one shape of cohort and batch."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from winnow.core import ModelError
from winnow.core.errors import first_line
from winnow.learn.stack.execution_interface import Batch
from winnow.learn.stack.precision import Precision, autocast_context
from winnow.learn.stack.stacked_layers import FoldedShape

MAX_DEVIATION = 10
"""Compiled gradients may be so many times as far from those in double precision as torch's own are."""
SMALL_DEVIATION = 1e-3
"""What is nearer than this, relative to the gradient, is near enough."""


@dataclass(frozen=True, kw_only=True)
class StackedCohort:
    """K clients' parameters, bound to the stacked twin of a model."""

    fold: FoldedShape
    precision: Precision
    leaves: list[Tensor]
    losses: Callable[[Tensor, Tensor], Tensor]
    """The loss of each sample, from x and y."""

    def gradients(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        self.fold.mask = None if batch.full else batch.weight > 0
        with torch.enable_grad():
            with autocast_context(self.precision, batch.x.device):
                losses = self.losses(batch.x, batch.y)
            gradients = torch.autograd.grad(
                losses, self.leaves, batch.weight.flatten(), allow_unused=True, materialize_grads=True
            )
        return [gradient.contiguous() for gradient in gradients], losses.detach().view(batch.weight.shape)


def compile_cohort(
    plain: StackedCohort, exact: StackedCohort, carried: list[Tensor], batch: Batch, *, backend: str = "inductor"
) -> StackedCohort:
    """The same cohort with kernels that are compiled for batches like this one, which is used to compare both.

    Fusing what lies between products nearly halves a step of ShuffleNet v2; compiling it takes minutes (docs/speed.md).
    `exact` is the cohort in double precision: normalisation magnifies rounding, so its size is not known before.
    """
    losses = cast(
        Callable[[Tensor, Tensor], Tensor],
        torch.compile(
            plain.losses,
            fullgraph=True,
            dynamic=False,
            backend=backend,
            options={"fallback_random": True} if backend == "inductor" else None,  # dropout draws as without compiling
        ),
    )
    compiled = replace(plain, losses=losses)
    expected = exact.gradients(_in_double_precision(batch))
    kept = [tensor.clone() for tensor in carried]
    deviations = []
    for cohort in (plain, compiled):
        try:
            with warnings.catch_warnings(action="ignore"):  # the compiler's, about its own internals
                deviations.append(_deviation(cohort.gradients(batch), expected))
        except Exception as error:  # a compiler may fail in any way
            raise ModelError(
                f"engine.compile: torch cannot compile this model: {first_line(error)}; set it to false"
            ) from error
        for tensor, values in zip(carried, kept, strict=True):
            tensor.copy_(values)
    own, found = deviations
    if not found <= max(SMALL_DEVIATION, MAX_DEVIATION * own):
        raise ModelError(
            f"engine.compile: compiled gradients deviate by {found:.1e} from exact ones, torch's own by {own:.1e}; "
            "set it to false"
        )
    return compiled


def _in_double_precision(batch: Batch) -> Batch:
    x, y, weight = (t.double() if t.is_floating_point() else t for t in (batch.x, batch.y, batch.weight))
    return batch._replace(x=x, y=y, weight=weight)


def _deviation(found: tuple[list[Tensor], Tensor], expected: tuple[list[Tensor], Tensor]) -> float:
    """‖found - expected‖ / ‖expected‖ over all gradients or over the losses, whichever is larger."""
    return max(_relative(found[0], expected[0]), _relative([found[1]], [expected[1]]))


def _relative(found: list[Tensor], expected: list[Tensor]) -> float:
    pairs = list(zip(found, expected, strict=True))
    error = torch.stack([(own.double() - other).square().sum() for own, other in pairs]).sum()
    size = torch.stack([other.square().sum() for _, other in pairs]).sum()
    return float((error / size.clamp_min(torch.finfo(torch.float64).tiny)).sqrt())
