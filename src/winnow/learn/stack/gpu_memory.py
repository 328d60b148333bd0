"""How many clients can be trained together in the memory of a CUDA device."""

import torch
from torch import Tensor

from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.execution_benchmark import repeated_batch
from winnow.learn.stack.execution_interface import Execution, min_batch_size
from winnow.learn.stack.trainable_state import model_state, repeat_state

FEW, MORE = 2, 4
"""Cohorts whose steps are compared: what a step takes besides its clients is the same for both."""
MARGIN = 2
"""A round takes more than a step: graphs keep memory of their own, and results are copied out."""


def clients_that_fit(execution: Execution, x: Tensor, y: Tensor, local: LocalOptimiser, free: int) -> int:
    """The clients whose training takes at most so many bytes, by the memory of a step of a few; at least one."""
    _peak(execution, x, y, local, FEW)  # libraries take workspaces of their own at first use
    step = {clients: _peak(execution, x, y, local, clients) for clients in (FEW, MORE)}
    one_more = max(1, (step[MORE] - step[FEW]) // (MORE - FEW))
    return max(1, free // (MARGIN * one_more))


def free_bytes(device: torch.device) -> int:
    """What is left on the device now, by this process and others."""
    return int(torch.cuda.mem_get_info(device)[0])


@torch.no_grad()
def _peak(execution: Execution, x: Tensor, y: Tensor, local: LocalOptimiser, clients: int) -> int:
    """The most memory that a step of so many clients takes at a time."""
    before = torch.cuda.memory_allocated(x.device)
    torch.cuda.reset_peak_memory_stats(x.device)
    states = repeat_state(model_state(execution.module), clients)
    trained = [states[name] for name in execution.layout.trained]
    size = max(local.batch_size, min_batch_size(execution.module))
    batch = repeated_batch(x, y, clients, size, trained[0].dtype)
    slots = local.initial_state(trained)
    with torch.random.fork_rng([x.device], device_type="cuda"):  # dropout's noise is nobody's business here
        gradients, _ = execution.bind_cohort(trained, [states[name] for name in execution.layout.carried]).gradients(
            batch
        )
    local.step(trained, gradients, slots, number=1, rate=0.0)
    return int(torch.cuda.max_memory_allocated(x.device)) - before
