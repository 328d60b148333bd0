"""A party's module while it trains: forward passes wait for the gradients that another party works out."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from winnow.core import ModelError
from winnow.core.errors import first_line
from winnow.vertical.split_plan import SplitPlan

MODULE, OPTIMISER = "module.", "optimiser."


class TrainedModule:
    """`forward` and `backward` are called in the same order; several batches may be under way."""

    def __init__(self, module: nn.Module, plan: SplitPlan, owner: str) -> None:
        self.module = deepcopy(module).train()
        self._optimiser = plan.optimise(self.module)
        self._owner = owner
        self._under_way: deque[tuple[Tensor, dict[str, Tensor], tuple[Tensor, ...]]] = deque()

    def forward(self, *inputs: Tensor) -> Tensor:
        """Outputs for a batch. The parameters are copied, for they may change before the gradient is there."""
        copies = {
            name: value.detach().clone().requires_grad_(value.requires_grad)
            for name, value in self.module.named_parameters()
        }
        leaves = tuple(each.detach().requires_grad_(each.is_floating_point()) for each in inputs)
        outputs = self._checked(lambda: functional_call(self.module, copies, leaves))
        self._under_way.append((outputs, copies, leaves))
        return outputs.detach()

    def backward(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """Take a step by the gradient of the oldest batch under way; gives the gradients of its inputs."""
        outputs, copies, leaves = self._under_way.popleft()
        trained = {name: value for name, value in copies.items() if value.requires_grad}
        wanted = [*trained.values(), *(leaf for leaf in leaves if leaf.requires_grad)]
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if outputs.requires_grad:
            found = torch.autograd.grad(outputs, wanted, gradient, allow_unused=True)
        self.step(dict(zip(trained, found, strict=False)))
        return tuple(
            torch.zeros_like(leaf) if slope is None else slope
            for leaf, slope in zip(wanted[len(trained) :], found[len(trained) :], strict=True)
        )

    def step(self, gradients: Mapping[str, Tensor | None]) -> None:
        if self._optimiser is None:
            return
        for name, value in self.module.named_parameters():
            value.grad = gradients.get(name)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

    @property
    def batches_under_way(self) -> int:
        return len(self._under_way)

    def outputs(self, *inputs: Tensor) -> Tensor:
        """Without training."""
        self.module.eval()
        try:
            with torch.no_grad():
                return self._checked(lambda: self.module(*inputs))
        finally:
            self.module.train()

    def _checked(self, call: Callable[[], object]) -> Tensor:
        try:
            outputs = call()
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ModelError(f"the module of {self._owner} does not accept its inputs: {first_line(error)}") from error
        if not isinstance(outputs, Tensor):
            raise ModelError(f"the module of {self._owner} returned {type(outputs).__name__}; it must return a tensor")
        return outputs

    def arrays(self) -> dict[str, Tensor]:
        """Everything that it takes to go on: parameters, buffers, and the optimiser's state."""
        held = {f"{MODULE}{name}": value.detach().clone() for name, value in self.module.state_dict().items()}
        for index, state in self._optimiser.state_dict()["state"].items() if self._optimiser else ():
            held.update(
                {f"{OPTIMISER}{index}.{name}": value.clone() for name, value in state.items() if value is not None}
            )
        return held

    def restore(self, arrays: Mapping[str, Tensor]) -> None:
        self._under_way.clear()
        self.module.load_state_dict(
            {name.removeprefix(MODULE): value for name, value in arrays.items() if name.startswith(MODULE)}
        )
        state: dict[int, dict[str, Tensor]] = {}
        for name in (name for name in arrays if name.startswith(OPTIMISER)):
            index, key = name.removeprefix(OPTIMISER).split(".", 1)
            state.setdefault(int(index), {})[key] = arrays[name].clone()
        if self._optimiser is not None:
            self._optimiser.load_state_dict({**self._optimiser.state_dict(), "state": state})
