"""A FedProf selection round over a million clients: invite 1,000, fold in 1,000 new profiles of q = 128.

Baseline: the same in plain NumPy, written for speed alone (float32 throughout, no state besides the divergences).
"""

import resource
import time
from collections.abc import Callable

import numpy as np

from bench.table import Row
from winnow.core import Population, Reply, Task
from winnow.learn.algorithms.fedprof import ProfileSelector
from winnow.learn.representation_profile import Profile
from winnow.learn.selection import SelectionContext

CLIENTS, INVITED, WIDTH, REPEAT = 1_000_000, 1_000, 128, 20


def measure() -> list[Row]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plain, ours = _milliseconds(_plain()), _milliseconds(_winnow())
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return [
        Row(name="plain NumPy", value=plain, unit="ms", baseline=plain),
        Row(name="Winnow", value=ours, unit="ms", baseline=plain, goal="< 30 ms"),
        Row(name="memory grown by both", value=grown, unit="MB", baseline=500, goal="< 500 MB"),
    ]


def _profiles(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((INVITED, WIDTH), np.float32), rng.random((INVITED, WIDTH), np.float32) + 0.5


def _plain() -> Callable[[int], None]:
    rng = np.random.default_rng(0)
    divergence = rng.random(CLIENTS, np.float32)
    mean, variance = _profiles(rng)
    mean0, variance0 = mean.mean(0), variance.mean(0)

    def once(_: int) -> None:
        waits = rng.standard_exponential(CLIENTS, np.float32)
        waits *= np.exp(10 * divergence)
        clients = np.argpartition(waits, INVITED)[:INVITED]
        kl = 0.5 * (np.log(variance0 / variance) + (variance + (mean - mean0) ** 2) / variance0 - 1)
        divergence[clients] = np.minimum(kl.mean(1), 1)

    return once


def _winnow() -> Callable[[int], None]:
    rng = np.random.default_rng(0)
    mean, variance = _profiles(rng)
    reference = Profile(mean=mean.mean(0), variance=variance.mean(0))
    selection = ProfileSelector(count=INVITED).start(Population(sizes=np.full(CLIENTS, 100)))
    selection.restore({"divergence": rng.random(CLIENTS), "version": np.zeros(CLIENTS, np.int64)})
    parts = [{"profile": {"mean": m, "variance": v}} for m, v in zip(mean, variance, strict=True)]

    def once(number: int) -> None:
        context = SelectionContext(
            round=number,
            version=number - 1,
            oldest_pending_version=number - 1,
            rng=rng,
            model={},
            reference=reference,
            message_bytes=0,
            trained=(),
            send_tasks=lambda tasks: [],
        )
        clients = selection.propose(context).clients.tolist()
        tasks = [Task(name="train", client=k, round=number, version=number - 1) for k in clients]
        selection.observe(context, [Reply(task=t, payload=part) for t, part in zip(tasks, parts, strict=True)])

    return once


def _milliseconds(once: Callable[[int], None]) -> float:
    times = []
    for number in range(2, REPEAT + 2):
        start = time.perf_counter()
        once(number)
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times))
