"""A pool answers cohorts with several workers, and loses nothing when it loses a worker.

What the workers are (processes here, actors on a cluster) is up to the backend. The pool cuts a cohort into chunks,
hands them out, puts the outcomes in order, and gives the chunk of a lost worker to another.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from winnow.core import Handler, Outcome, SiteError, Task
from winnow.core.federation import clients_of
from winnow.simulate.cohort_chunks import Indices, assign_chunks, split_cohort
from winnow.simulate.worker_backend import ChunkFinished, WorkerBackend, WorkerLost, WorkerReady

MAX_LOSSES_PER_WORKER = 2
"""After so many losses a worker, with no answer in between, something is wrong that another attempt will not mend."""


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    places: Indices
    load: float


class WorkerPool:
    """Answers cohorts. Results depend on `chunk`, in the last bits, and on nothing else that is set here."""

    def __init__(
        self,
        backend: WorkerBackend,
        *,
        names: Iterable[str],
        sizes: Indices,
        workers: int,
        chunk: int,
        clock: Callable[[], float],
    ) -> None:
        self._backend, self._names, self._sizes, self._most = backend, tuple(names), sizes, chunk
        self._speeds = _Speeds(clock, workers)
        self._idle: set[int] = set()
        self._busy: dict[int, _Chunk] = {}
        self._losses, self._patience = 0, MAX_LOSSES_PER_WORKER * workers
        try:
            for worker in range(workers):
                backend.start(worker)
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> dict[int, int]:
        """The number of each worker's process, on the worker's machine."""
        return self._backend.processes

    def handlers(self) -> dict[str, Handler[object]]:
        """One for each kind of task; the site that it is given is not asked, because the workers have theirs."""
        return dict.fromkeys(self._names, lambda tasks, site: self.answer(tasks))

    def answer(self, tasks: Sequence[Task]) -> list[Outcome]:
        """The outcomes of a cohort's tasks, in order. An error ends the pool: who knows what its workers are doing."""
        try:
            self._backend.set_cohort(tasks)
            return self._answer(tasks)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._backend.stop_all()

    def _answer(self, tasks: Sequence[Task]) -> list[Outcome]:
        waiting = self._chunks(tasks)
        outcomes: dict[int, Outcome] = {}
        while len(outcomes) < len(tasks):
            self._hand_out(waiting)
            event = self._backend.next_event()
            if isinstance(event, ChunkFinished):
                done = self._finished(event.worker)
                outcomes.update(zip(done.places.tolist(), event.outcomes, strict=True))
            elif isinstance(event, WorkerReady):
                self._idle.add(event.worker)
            else:
                self._replace(event, waiting, tasks[0].name)
        return [outcomes[i] for i in range(len(tasks))]

    def _chunks(self, tasks: Sequence[Task]) -> list[_Chunk]:
        """The cohort's chunks, from the largest to the smallest."""
        sizes = self._sizes[clients_of(tasks)]
        chunks = [_Chunk(places=places, load=float(sizes[places].sum())) for places in split_cohort(sizes, self._most)]
        return sorted(chunks, key=lambda chunk: -chunk.load)

    def _hand_out(self, waiting: list[_Chunk]) -> None:
        """Give idle workers what they should take, and take it off the list."""
        speeds = self._speeds.of(self._idle | self._busy.keys())
        free_in = {worker: self._speeds.seconds_left(worker, chunk.load) for worker, chunk in self._busy.items()}
        picked = assign_chunks((chunk.load for chunk in waiting), speeds, free_in)
        for worker, place in picked.items():
            self._idle.remove(worker)
            self._busy[worker] = waiting[place]
            self._speeds.begin(worker)
            self._backend.submit(worker, waiting[place].places)
        for place in sorted(picked.values(), reverse=True):
            del waiting[place]

    def _finished(self, worker: int) -> _Chunk:
        chunk = self._busy.pop(worker)
        self._speeds.end(worker, chunk.load)
        self._idle.add(worker)
        self._losses = 0
        return chunk

    def _replace(self, lost: WorkerLost, waiting: list[_Chunk], stage: str) -> None:
        """Put the lost worker's chunk back on the list and fill its place."""
        self._losses += 1
        if self._losses > self._patience:
            raise SiteError("simulation", stage, f"{self._losses} workers were lost in a row, the last {lost.reason}")
        self._idle.discard(lost.worker)
        if lost.worker in self._busy:
            waiting.insert(0, self._busy.pop(lost.worker))
        self._backend.start(lost.worker)


class _Speeds:
    """Samples a second of each worker, measured as they work."""

    def __init__(self, clock: Callable[[], float], workers: int) -> None:
        self._clock = clock
        self._since = [0.0] * workers
        self._samples, self._seconds = [0.0] * workers, [0.0] * workers

    def begin(self, worker: int) -> None:
        self._since[worker] = self._clock()

    def end(self, worker: int, load: float) -> None:
        self._samples[worker] += load
        self._seconds[worker] += self._clock() - self._since[worker]

    def of(self, workers: Iterable[int]) -> dict[int, float]:
        return {worker: self._speed(worker) for worker in workers}

    def seconds_left(self, worker: int, load: float) -> float:
        """How long a worker should still take for the load that it has begun."""
        return max(0.0, self._since[worker] + load / self._speed(worker) - self._clock())

    def _speed(self, worker: int) -> float:
        """A worker that has not answered yet counts as the mean of all."""
        samples, seconds = self._samples[worker], self._seconds[worker]
        if not samples or not seconds:
            samples, seconds = sum(self._samples), sum(self._seconds)
        return samples / seconds if samples and seconds else 1.0
