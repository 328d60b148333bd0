"""A cohort in chunks: which clients are answered together, and which worker takes a chunk.

Libraries round a stack of K clients differently from one of K': a sum's order, the end of a vectorised loop and the
width of a padded batch all depend on who else is there. So the clients of a chunk are chosen by the cohort alone, never
by the number of workers or by who is quick, and results repeat bit for bit whoever answers which chunk.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from winnow.core import Handler, Outcome, Task
from winnow.core.federation import clients_of

Site = TypeVar("Site")
Indices = NDArray[np.int64]


def split_cohort(sizes: Indices, most: int) -> list[Indices]:
    """Places in the cohort, in chunks of at most so many clients, alike in samples and in number of clients.

    Clients are dealt out from the largest to the smallest, back and forth; within a chunk they keep the cohort's order.
    """
    chunks = -(-len(sizes) // most)
    if not chunks:
        return []
    turn, place = np.divmod(np.arange(len(sizes)), chunks)
    chunk_of = np.empty_like(place)
    chunk_of[np.argsort(-sizes, kind="stable")] = np.where(turn % 2 == 0, place, chunks - 1 - place)
    ends = np.cumsum(np.bincount(chunk_of))[:-1]
    return np.split(np.argsort(chunk_of, kind="stable"), ends)


def assign_chunks(loads: Iterable[float], speeds: Mapping[int, float], free_in: Mapping[int, float]) -> dict[int, int]:
    """Which load each idle worker should take now, if any; loads come from the largest to the smallest.

    Each load goes to the worker that would finish it soonest: a slow one leaves a large load to a fast one that is
    nearly done. Speeds are loads a second; `free_in` gives the seconds that a worker is still busy, and has no entry
    for an idle one.
    """
    done = {worker: free_in.get(worker, 0.0) for worker in sorted(speeds, key=free_in.__contains__)}
    idle = speeds.keys() - free_in.keys()
    picked: dict[int, int] = {}
    for place, load in enumerate(loads):
        if len(picked) == len(idle):
            break
        soonest = min(done, key=lambda worker: done[worker] + load / speeds[worker])
        done[soonest] += load / speeds[soonest]
        if soonest in idle:
            picked.setdefault(soonest, place)
    return picked


def handle_in_chunks(handler: Handler[Site], sizes: Indices, most: int) -> Handler[Site]:
    """The handler, given a cohort a chunk at a time: less memory, and the same numbers as from workers."""

    def answer(tasks: Sequence[Task], site: Site) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        for chunk in split_cohort(sizes[clients_of(tasks)], most):
            answers = handler([tasks[i] for i in chunk], site)
            outcomes.update(zip(chunk.tolist(), answers, strict=True))
        return [outcomes[i] for i in range(len(tasks))]

    return answer
