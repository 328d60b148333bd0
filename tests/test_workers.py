"""Cohorts answered by worker processes: the same numbers whoever works, and whatever happens to a worker."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from child_processes import running
from support.needs import PROC
from waiting import PATIENCE
from winnow.core import AnyEvent, ConfigError, ModelError, Outcome, Reply, RoundFinished, SiteError, Task, WinnowError
from winnow.simulate import ForkedWorkers, WorkerPool, handle_in_chunks
from winnow.simulate.cohort_chunks import assign_chunks, split_cohort
from winnow.simulate.out_of_band_pickling import PickledValue, pack, unpack
from winnow.simulate.worker_backend import ChunkFinished, WorkerEvent, WorkerLost, WorkerReady
from world import experiment, prepared

RAGGED = ("select.count=7", "data.partition.name=dirichlet", "model.hidden=[37, 11]", "local.batch_size=16")
"""Clients of many sizes and layers of odd ones: here the last bits do depend on who is trained together."""

SIZES = np.array([40, 10, 30, 20, 50, 5, 60])


def tasks_for(clients: Sequence[int], name: str = "train", **payload: torch.Tensor) -> list[Task]:
    model = dict(payload)
    return [Task(name=name, client=k, round=1, version=0, payload={"model": model}) for k in clients]


@contextmanager
def pool_of(
    handlers: Mapping[str, object], site: object = None, workers: int = 2, chunk: int = 2
) -> Iterator[WorkerPool]:
    crew = ForkedWorkers(site, handlers, workers)  # type: ignore[arg-type]
    pool = WorkerPool(crew, names=handlers, sizes=SIZES, workers=workers, chunk=chunk, clock=time.monotonic)
    try:
        yield pool
    finally:
        pool.close()


def gone(process: int) -> bool:
    """Whether a process ends soon; one that nobody has waited for yet counts as ended."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


class TestRuns:
    """Whole runs: the model and everything that is said on the way."""

    @staticmethod
    def run(*sets: str, algorithm: str = "fedprof", kill_after: Sequence[int] = ()) -> tuple[list[str], dict]:
        with prepared(*RAGGED, *sets, algorithm=algorithm) as ready:
            events: list[AnyEvent] = []
            for event in ready.training.run(ready.federation):
                events.append(event)
                if isinstance(event, RoundFinished) and event.round in kill_after:
                    os.kill(ready.pool.processes[event.round % 2], signal.SIGKILL)
            return [repr(event) for event in events], ready.training.model

    def same(self, one: tuple[list[str], dict], other: tuple[list[str], dict]) -> bool:
        return one[0] == other[0] and all(torch.equal(one[1][name], other[1][name]) for name in one[1])

    @pytest.mark.parametrize("algorithm", ["fedprof", "fedavg-rp"])
    @pytest.mark.parametrize("execution", ["stacked", "loop"])
    def test_any_number_of_workers_gives_what_this_process_gives(self, algorithm: str, execution: str) -> None:
        sets = ("engine.chunk=2", f"engine.execution={execution}")
        here = self.run(*sets, algorithm=algorithm)
        for workers in (1, 2, 3):
            assert self.same(self.run(*sets, f"engine.workers={workers}", algorithm=algorithm), here)

    def test_without_a_chunk_size_the_number_of_workers_does_not_matter_either(self) -> None:
        assert self.same(self.run("engine.workers=1"), self.run("engine.workers=3"))

    def test_dropout_and_batch_statistics_too(self) -> None:
        """What is random, and what is no parameter, is a client's own."""

        class Net(torch.nn.Sequential):
            def __init__(self) -> None:
                layers = torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)
                super().__init__(*layers)

        def trained(*sets: str) -> dict:
            from winnow.experiment.build_simulation import prepare_run
            from winnow.experiment.build_training_workflow import RunInputs
            from world import blobs

            torch.manual_seed(0)
            asked = experiment(*RAGGED, *sets, algorithm="fedavg-rp")
            with prepare_run(asked, RunInputs(dataset=blobs(), module=Net())) as ready:
                list(ready.training.run(ready.federation))
                return ready.training.model

        here, there = trained("engine.chunk=3"), trained("engine.chunk=3", "engine.workers=2")
        assert all(torch.equal(here[name], there[name]) for name in here)

    def test_clients_that_hold_the_reference_set_are_asked_through_workers(self) -> None:
        sets = ("engine.chunk=2", "reference_clients=[0, 1, 2]")
        assert self.same(self.run(*sets, "engine.workers=2"), self.run(*sets))

    def test_killed_workers_change_nothing(self) -> None:
        assert self.same(self.run("engine.workers=2", kill_after=[1, 2, 3]), self.run("engine.workers=2"))

    def test_the_workers_end_with_the_run(self) -> None:
        with prepared("engine.workers=2") as ready:
            assert ready.pool is not None
            processes = ready.pool.processes.values()
            next(iter(ready.training.run(ready.federation)))
        assert len(set(processes)) == 2
        assert all(gone(process) for process in processes)

    def test_the_workers_end_with_an_error(self) -> None:
        processes: list[int] = []

        def fail() -> None:
            with prepared("engine.workers=2") as ready:
                assert ready.pool is not None
                processes.extend(ready.pool.processes.values())
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail()
        assert all(gone(process) for process in processes)


def double(tasks: Sequence[Task], site: object) -> list[Outcome]:
    return [Reply(task=t, payload={"model": {"w": 2 * t.payload["model"]["w"] + t.client}}) for t in tasks]


class TestPool:
    def test_outcomes_come_in_the_order_of_the_tasks_and_name_the_very_tasks(self) -> None:
        tasks = tasks_for([6, 2, 3, 0, 1], w=torch.arange(3.0))
        with pool_of({"train": double}) as pool:
            outcomes = pool.handlers()["train"](tasks, None)
        assert all(outcome.task is task for outcome, task in zip(outcomes, tasks, strict=True))
        for outcome in outcomes:
            assert isinstance(outcome, Reply)
            expected = 2 * torch.arange(3.0) + outcome.task.client
            assert torch.equal(outcome.payload["model"]["w"], expected)

    def test_earlier_outcomes_keep_their_arrays(self) -> None:
        with pool_of({"train": double}, workers=1) as pool:
            first = pool.answer(tasks_for([1], w=torch.ones(3)))[0]
            pool.answer(tasks_for([1], w=torch.zeros(3)))
        assert isinstance(first, Reply)
        assert first.payload["model"]["w"].tolist() == [3, 3, 3]

    def test_a_larger_model_than_before_fits(self) -> None:
        with pool_of({"train": double}) as pool:
            for size in (1, 100_000, 10):
                for outcome in pool.answer(tasks_for([0, 1, 2], w=torch.ones(size))):
                    assert isinstance(outcome, Reply)
                    assert outcome.payload["model"]["w"].tolist() == [2 + outcome.task.client] * size

    def test_an_empty_cohort_is_answered_by_nobody(self) -> None:
        with pool_of({"train": double}) as pool:
            assert pool.answer([]) == []

    def test_each_worker_has_one_thread_and_cores_of_its_own(self) -> None:
        def settings(tasks: Sequence[Task], site: object) -> list[Outcome]:
            time.sleep(0.05)  # so that every worker gets something to do
            cores = {f"core {core}": 1.0 for core in os.sched_getaffinity(0)}
            return [Reply(task=t, metrics={"threads": torch.get_num_threads(), **cores}) for t in tasks]

        ours = os.sched_getaffinity(0)
        with pool_of({"train": settings}, workers=2, chunk=1) as pool:
            outcomes = pool.answer(tasks_for(range(6)))
        found = [outcome.metrics for outcome in outcomes if isinstance(outcome, Reply)]
        assert {metrics["threads"] for metrics in found} == {1}
        kept = {frozenset(name for name in metrics if name != "threads") for metrics in found}
        assert sum(map(len, kept)) == len(ours)
        assert os.sched_getaffinity(0) == ours

    @PROC.unless(Path("/proc/self/smaps_rollup").exists())
    def test_the_data_are_not_copied(self) -> None:
        def own_memory() -> int:
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) * 1024

        def touch(tasks: Sequence[Task], site: torch.Tensor) -> list[Outcome]:
            before = own_memory()
            total = float(site.sum())
            return [Reply(task=t, metrics={"sum": total, "memory": own_memory() - before}) for t in tasks]

        data = torch.ones(32 * 2**20)
        with pool_of({"train": touch}, site=data) as pool:
            (outcome,) = pool.answer(tasks_for([0]))
        assert isinstance(outcome, Reply)
        assert outcome.metrics["sum"] == data.numel()
        assert outcome.metrics["memory"] < data.nbytes / 8

    def test_a_model_is_sent_once_for_a_cohort(self) -> None:
        model = torch.ones(250_000)
        parcel = pack(tasks_for(range(100), w=model))
        assert len(parcel.head) + sum(map(len, parcel.contents)) < 1.1 * model.nbytes


class TestLosses:
    def test_a_worker_that_dies_at_its_work_is_replaced_and_its_clients_are_asked_again(self, tmp_path: Path) -> None:
        def die_once(tasks: Sequence[Task], site: object) -> list[Outcome]:
            mark = tmp_path / "died"
            if any(t.client == 3 for t in tasks) and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return double(tasks, site)

        tasks = tasks_for(range(7), w=torch.ones(2))
        with pool_of({"train": die_once}) as pool:
            before = set(pool.processes.values())
            outcomes = pool.answer(tasks)
            assert len(before & set(pool.processes.values())) == 1
        assert (tmp_path / "died").exists()
        expected = handle_in_chunks(double, SIZES, 2)(tasks, None)
        for one, other in zip(outcomes, expected, strict=True):
            assert isinstance(one, Reply)
            assert isinstance(other, Reply)
            assert torch.equal(one.payload["model"]["w"], other.payload["model"]["w"])

    def test_the_workers_end_when_the_next_one_cannot_be_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fork, started = os.fork, list[int]()

        def fork_once() -> int:
            if started:
                raise BlockingIOError("no more processes")
            started.append(fork())
            return started[0]

        monkeypatch.setattr(os, "fork", fork_once)
        with pytest.raises(BlockingIOError, match="no more processes"), pool_of({"train": print}):
            pass
        assert gone(started[0])

    def test_work_that_kills_every_worker_is_given_up(self) -> None:
        def die(tasks: Sequence[Task], site: object) -> list[Outcome]:
            os.kill(os.getpid(), signal.SIGKILL)
            return []

        with (
            pool_of({"train": die}) as pool,
            pytest.raises(SiteError, match=r"failed \(train\): 5 workers were lost in a row, the last killed by SIGKI"),
        ):
            pool.answer(tasks_for([0]))

    def test_a_users_mistake_is_raised_as_it_is_and_ends_the_workers(self) -> None:
        def refuse(tasks: Sequence[Task], site: object) -> list[Outcome]:
            raise ModelError("the model has no such layer")

        with pool_of({"train": refuse}) as pool:
            processes = list(pool.processes.values())
            with pytest.raises(ModelError, match=r"^the model has no such layer$"):
                pool.answer(tasks_for([0, 1]))
            assert all(gone(process) for process in processes)

    def test_an_error_that_cannot_travel_keeps_its_line(self) -> None:
        def refuse(tasks: Sequence[Task], site: object) -> list[Outcome]:
            raise SiteError("simulation", "training", "out of paper")

        with (
            pool_of({"train": refuse}) as pool,
            pytest.raises(WinnowError, match=r"failed \(training\): out of paper"),
        ):
            pool.answer(tasks_for([0]))

    def test_a_bug_shows_where_it_happened(self) -> None:
        def stumble(tasks: Sequence[Task], site: object) -> list[Outcome]:
            return [Reply(task=t, metrics={"loss": 1 / 0}) for t in tasks]

        with pool_of({"train": stumble}) as pool, pytest.raises(RuntimeError, match=r"in stumble(.|\n)*ZeroDivision"):
            pool.answer(tasks_for([0]))


SLOW_RUN = """
import os, sys, time
sys.path.insert(0, {tests!r})
from test_workers import pool_of, tasks_for

def sleep(tasks, site):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(600)

with pool_of({{"train": sleep}}) as pool:
    pool.answer(tasks_for(range(7)))
"""


class TestTheParent:
    @staticmethod
    @contextmanager
    def slow_run() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
        script = SLOW_RUN.format(tests=str(Path(__file__).parent))
        with running(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            yield process, [int(process.stdout.readline()) for _ in range(2)]

    def test_workers_die_with_a_parent_that_is_killed_even_at_their_work(self) -> None:
        with self.slow_run() as (process, workers):
            process.kill()
            process.wait(PATIENCE)
        assert all(gone(worker) for worker in workers)

    def test_an_interrupt_is_the_parents_alone(self) -> None:
        with self.slow_run() as (process, workers):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
            _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode in (-signal.SIGINT, 130)
        assert errors.count("Traceback") == 1
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert all(gone(worker) for worker in workers)


class TestChunks:
    @given(sizes=st.lists(st.integers(1, 1000), max_size=60), most=st.integers(1, 9))
    def test_everyone_is_in_one_chunk_and_chunks_are_alike(self, sizes: list[int], most: int) -> None:
        chunks = split_cohort(np.array(sizes, np.int64), most)
        assert sorted(i for chunk in chunks for i in chunk.tolist()) == list(range(len(sizes)))
        assert all(chunk.tolist() == sorted(chunk.tolist()) for chunk in chunks)
        assert all(len(chunk) <= most for chunk in chunks)
        assert len(chunks) == -(-len(sizes) // most)
        loads = [sum(sizes[i] for i in chunk) for chunk in chunks]
        assert max(loads, default=0) - min(loads, default=0) <= 2 * max(sizes, default=0)

    def test_a_large_cohort_is_cut_at_once(self) -> None:
        sizes = np.random.default_rng(0).integers(1, 100, 100_000)
        assert len(split_cohort(sizes, 4)) == 25_000

    @given(
        loads=st.lists(st.floats(1, 100), min_size=1, max_size=12),
        speeds=st.lists(st.floats(0.5, 4), min_size=1, max_size=5),
    )
    def test_the_largest_go_first_to_whoever_is_done_soonest(self, loads: list[float], speeds: list[float]) -> None:
        loads = sorted(loads, reverse=True)
        picked = assign_chunks(loads, dict(enumerate(speeds)), {})
        assert len(set(picked.values())) == len(picked)
        assert picked[int(np.argmax(speeds))] == 0

    def test_a_slow_worker_leaves_the_last_load_to_a_fast_one_that_is_nearly_done(self) -> None:
        speeds = {0: 1.0, 1: 10.0}
        assert assign_chunks([20.0], speeds, {1: 1.0}) == {}  # done after 3 seconds there, after 20 here
        assert assign_chunks([20.0], speeds, {1: 19.0}) == {0: 0}
        assert assign_chunks([20.0, 1.0], speeds, {1: 1.0}) == {0: 1}

    def test_nobody_is_left_waiting_for_a_worker_that_is_overdue(self) -> None:
        assert assign_chunks([5.0], {0: 1.0, 1: 1.0}, {0: 0.0}) == {1: 0}


class Imagined:
    """A crew on imagined time. Its workers have different speeds, and some are lost at their work."""

    def __init__(self, speeds: Sequence[float], lost_at: Sequence[int] = ()) -> None:
        self.now = 0.0
        self.orders: list[int] = []
        self.processes: dict[int, int] = {}
        self._speeds, self._lost_at = speeds, lost_at
        self._coming: list[tuple[float, int, WorkerEvent]] = []
        self._tasks: Sequence[Task] = ()

    def start(self, worker: int) -> None:
        self._coming.append((self.now, len(self._coming), WorkerReady(worker)))

    def set_cohort(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks

    def submit(self, worker: int, chunk: np.ndarray) -> None:
        self.orders.append(worker)
        seconds = SIZES[[self._tasks[i].client for i in chunk]].sum() / self._speeds[worker]
        lost = len(self.orders) in self._lost_at
        answer = ChunkFinished(worker, [Reply(task=self._tasks[i]) for i in chunk])
        self._coming.append((self.now + seconds, len(self.orders), WorkerLost(worker, "gone") if lost else answer))

    def next_event(self) -> WorkerEvent:
        self._coming.sort(key=lambda each: each[:2])
        moment, _, news = self._coming.pop(0)
        self.now = max(self.now, moment)
        return news

    def stop_all(self) -> None:
        pass


class TestSharingOut:
    @staticmethod
    def pool(crew: Imagined, workers: int) -> WorkerPool:
        return WorkerPool(crew, names=["train"], sizes=SIZES, workers=workers, chunk=1, clock=lambda: crew.now)

    def test_once_speeds_are_known_the_work_follows_them(self) -> None:
        crew = Imagined([1.0, 9.0])
        pool, tasks = self.pool(crew, 2), tasks_for(range(7))
        pool.answer(tasks)
        begin = crew.now
        pool.answer(tasks)
        assert crew.now - begin < 1.15 * SIZES.sum() / 10  # together they do ten samples a second
        assert crew.orders[7:].count(0) < crew.orders[7:].count(1)

    @given(
        speeds=st.lists(st.sampled_from([1.0, 2.0, 7.0]), min_size=1, max_size=4),
        lost_at=st.lists(st.integers(1, 12), max_size=2, unique=True),
        clients=st.permutations(range(7)),
    )
    def test_all_tasks_are_answered_in_order_whoever_is_quick_or_lost(
        self, speeds: list[float], lost_at: list[int], clients: list[int]
    ) -> None:
        pool, tasks = self.pool(Imagined(speeds, lost_at), len(speeds)), tasks_for(clients)
        for _ in range(2):
            assert [outcome.task.client for outcome in pool.answer(tasks)] == clients


class TestParcels:
    @given(
        dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8]),
        shape=st.lists(st.integers(0, 4), max_size=3),
    )
    def test_tensors_arrive_as_they_were(self, dtype: torch.dtype, shape: list[int]) -> None:
        sent = torch.randint(0, 2, shape).to(dtype)
        (arrived,) = unpack(pack([sent]))
        assert arrived.dtype == dtype
        assert arrived.shape == sent.shape
        assert torch.equal(arrived, sent)

    def test_a_view_is_sent_without_what_it_is_a_view_of(self) -> None:
        columns = torch.arange(12.0).reshape(3, 4).T
        parcel = pack({"view": columns[1:3], "array": np.arange(5)})
        assert sum(map(len, parcel.contents)) == 6 * 4 + 5 * 8
        arrived = unpack(PickledValue(parcel.head, [np.array(each) for each in parcel.contents]))
        assert torch.equal(arrived["view"], columns[1:3])
        assert arrived["array"].tolist() == [0, 1, 2, 3, 4]

    def test_what_the_other_side_has_is_not_sent(self) -> None:
        tasks = tasks_for([1, 2], w=torch.ones(1000))
        parcel = pack([Reply(task=tasks[1], metrics={"loss": 0.5})], known=tasks)
        assert parcel.contents == []
        (reply,) = unpack(parcel, known=tasks)
        assert reply.task is tasks[1]


class TestSettings:
    @pytest.mark.parametrize(
        ("setting", "line"),
        [
            ("engine.workers=rya", r"engine.workers: 'rya' is unknown; use a number of worker processes .* or 'ray'"),
            ("engine.workers=-1", "engine.workers = -1: must be at least 0"),
            ("engine.chunk=0", "engine.chunk = 0: must be at least 1"),
        ],
    )
    def test_a_mistake_is_one_line(self, setting: str, line: str) -> None:
        with pytest.raises(ConfigError, match=line):
            experiment(setting)
