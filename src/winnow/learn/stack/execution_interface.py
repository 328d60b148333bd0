"""The ways to train a cohort, as seen by the trainer."""

from typing import Literal, NamedTuple, Protocol

from torch import Tensor, nn

from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.batch_plan import BatchPlan
from winnow.learn.stack.flat_client_data import Indices, TensorData
from winnow.learn.stack.local_training_start import LocalStart
from winnow.learn.stack.per_sample_losses import Loss
from winnow.learn.stack.precision import Precision
from winnow.learn.stack.trainable_state import ModelState, StateLayout

ExecutionName = Literal["native", "stacked", "vmap", "loop"]


class Batch(NamedTuple):
    """One step's samples of K clients, folded: client k's are the rows k·B to (k + 1)·B, padded at the end."""

    x: Tensor  # [K·B, ...]
    y: Tensor  # [K·B, ...]
    weight: Tensor  # [K, B], what each sample's loss counts: one over the client's batch size, 0 for padding
    sizes: Indices  # [K]
    full: bool  # no client's batch is padded
    draw: int = 0  # of which of a rule's draws it is


class PlanResult(NamedTuple):
    """What the clients of a plan came to, in its order."""

    states: ModelState  # [K, ...], without second names
    losses: Tensor  # [S, K, B], of all samples; [S, K, 1], of steps, where a method has a rule of its own
    slots: list[list[Tensor]]  # the optimiser's own tensors, each list like what is trained
    memory: ModelState = {}  # noqa: RUF012  # nobody writes to it; what a method's own rule remembers


class CohortGradients(Protocol):
    """K clients' parameters, ready for one step after another."""

    def gradients(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        """Gradients of each client's weighted loss, contiguous [K, ...] like the parameters, and the losses [K, B].

        Buffers (batch statistics) are brought up to date in place. A parameter without influence has gradient 0.
        """
        ...


class ForwardPass(Protocol):
    """Forward passes through one model, in evaluation mode."""

    def __call__(self, state: ModelState, x: Tensor, rows: Tensor, to_end: bool) -> tuple[Tensor, Tensor]:
        """Outputs for rows of x and, on the way, the watched layer's fused outputs [n, q].

        What is not asked for is empty: outputs of a pass that need not go on to the end, or nothing watched.
        """
        ...


class Execution(Protocol):
    """A model and a loss, with one way of computing K clients' steps."""

    notice: str
    """Why no faster way is used; empty if there is none."""

    @property
    def name(self) -> ExecutionName: ...

    @property
    def loss(self) -> Loss: ...

    @property
    def threads(self) -> int | None:
        """How many it may use, if it was told."""
        ...

    @property
    def precision(self) -> Precision:
        """That of its products."""
        ...

    @property
    def module(self) -> nn.Module:
        """The plain model; its parameters are scratch space."""
        ...

    @property
    def layout(self) -> StateLayout: ...

    def run_plan(
        self, local_start: LocalStart, local: LocalOptimiser, data: TensorData, plan: BatchPlan, *, rate: float
    ) -> PlanResult | None:
        """A whole round in one go.

        `local_start` has the clients in the plan's order.

        None where it has to be taken step by step, through `cohort`.
        """
        ...

    def bind_cohort(self, trained: list[Tensor], carried: list[Tensor], loss: Loss | None = None) -> CohortGradients:
        """Bind stacked tensors, in the layout's order, until the execution is used for something else.

        Changes made to them in place are seen by the next step. Another `loss` replaces the execution's own.
        """
        ...

    def forward_pass(self, layer: str | None) -> ForwardPass | None:
        """Forward passes that are faster than the plain model's, if there are any; they may watch a layer."""
        ...

    def outputs(self, states: ModelState, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Outputs [K, B, ...] of K models in evaluation mode for x [K, B, ...]; the mask [K, B] marks padding False."""
        ...


def min_batch_size(module: nn.Module) -> int:
    """Batch normalisation has no variance to learn from in a single sample."""
    normalised = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())
    return 2 if normalised else 1
