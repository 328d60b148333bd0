"""What a model's loss is on clients' own data: asking for it, and reading it from replies."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from winnow.core import Outcome, Payload, Reply, Task, Work
from winnow.core.federation import clients_of
from winnow.learn.handlers import SEED_BYTES, LossEvaluationSettings
from winnow.learn.selection import SelectionContext

START_LOSS = "start_loss"
"""The mean loss over a client's samples, as replies call it."""

START_LOSS_RMS = "start_loss_rms"
"""The root of the mean squared loss over a client's samples."""

LOSS_REPORT_BYTES = 16
"""Two numbers are reported."""


def request_losses(
    context: SelectionContext, clients: NDArray[np.int64], *, always_send_model: bool = False
) -> list[Reply]:
    """Have clients tell the loss of the present model. It costs them a download and a pass over their samples.

    Version 0 need not be sent, unless the transfer itself is to be seen (`always_send_model`).
    """
    sent = always_send_model or context.version > 0
    payload: Payload = {"model": context.model} if sent else {}
    work = Work(
        profiling_passes=1,
        download_bytes=context.message_bytes if sent else SEED_BYTES,
        profile_bytes=LOSS_REPORT_BYTES,
    )
    settings = LossEvaluationSettings()
    tasks = [
        Task(
            name="evaluate-loss",
            client=k,
            round=context.round,
            version=context.version,
            payload=payload,
            settings=settings,
            work=work,
        )
        for k in clients.tolist()
    ]
    return replies_of(context.send_tasks(tasks))


def replies_of(outcomes: Sequence[Outcome]) -> list[Reply]:
    return [outcome for outcome in outcomes if isinstance(outcome, Reply)]


def reporting_clients(replies: Sequence[Reply]) -> NDArray[np.int64]:
    return clients_of([reply.task for reply in replies])


def seconds_of(replies: Sequence[Reply]) -> NDArray[np.float64]:
    """How long each client was at work."""
    return np.fromiter((reply.cost.seconds for reply in replies), np.float64, len(replies))


def reported_metric(replies: Sequence[Reply], metric: str, *, otherwise: float) -> NDArray[np.float64]:
    """What each reply tells under this name, or `otherwise` where that is no finite number."""
    values = np.fromiter((reply.metrics.get(metric, np.nan) for reply in replies), np.float64, len(replies))
    return np.where(np.isfinite(values), values, otherwise)
