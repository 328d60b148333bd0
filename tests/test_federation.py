"""The laws of every federation. A new one is tested by being listed in FEDERATIONS."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from winnow.core import Failure, Outcome, Population, Reply, SiteError, Task, Until, VirtualClock, Work
from winnow.fleet import DeviceFleet, Devices
from winnow.simulate import SimulatedFederation

SIZES = np.array([40, 10, 30, 20, 50])
"""Clients finish in the order 1, 3, 2, 0, 4: the devices are alike, so time goes with the number of samples."""

ARRIVALS = [1, 3, 2, 0, 4]
WORK = Work(training_passes=1.0)


class Diary:
    """A site that writes down what it was asked to do."""

    def __init__(self) -> None:
        self.cohorts: list[list[int]] = []


def echo(tasks: Sequence[Task], site: Diary) -> list[Outcome]:
    site.cohorts.append([task.client for task in tasks])
    return [Reply(task=task, metrics={"client": task.client}) for task in tasks]


def fail_odd(tasks: Sequence[Task], site: Diary) -> list[Outcome]:
    return [
        Failure(task=task, stage="training", reason="out of memory") if task.client % 2 else Reply(task=task)
        for task in tasks
    ]


HANDLERS = {"echo": echo, "other": echo, "fail": fail_odd}


def in_process(site: Diary, filters: Sequence[Callable[..., Sequence[Outcome]]] = ()) -> SimulatedFederation[Diary]:
    return SimulatedFederation(
        site=site,
        handlers=HANDLERS,
        population=Population(sizes=SIZES),
        fleet=DeviceFleet(settings=Devices(), speed_ghz=np.ones(5), bandwidth_mhz=np.ones(5)),
        clock=VirtualClock(100.0),
        filters=filters,
    )


FEDERATIONS = [in_process]


def tasks_for(clients: Sequence[int], name: str = "echo", version: int = 0) -> list[Task]:
    return [Task(name=name, client=k, round=1, version=version, work=WORK) for k in clients]


def seconds(client: int) -> float:
    """Equation 30 with one epoch, the defaults of the fleet and 1 GHz."""
    return float(SIZES[client] * 28 * 28 * 8 * 400 / 1e9)


@pytest.mark.parametrize("federation", FEDERATIONS)
class TestEveryFederation:
    def test_replies_come_in_the_order_in_which_they_finish(self, federation) -> None:
        with federation(Diary()).dispatch(tasks_for(range(5))) as exchange:
            assert [outcome.task.client for outcome in exchange] == ARRIVALS

    def test_the_first_n_are_enough_and_nobody_else_works(self, federation) -> None:
        site = Diary()
        with federation(site).dispatch(tasks_for(range(5)), Until(replies=2)) as exchange:
            assert [outcome.task.client for outcome in exchange] == [1, 3]
        assert site.cohorts == [[1, 3]]

    def test_a_deadline_cuts_off_the_rest(self, federation) -> None:
        site = Diary()
        deployed = federation(site)
        with deployed.dispatch(tasks_for(range(5)), Until(seconds=seconds(2) + 0.001)) as exchange:
            assert [outcome.task.client for outcome in exchange] == [1, 3, 2]
        assert site.cohorts == [[1, 2, 3]]
        assert deployed.clock.now == pytest.approx(100 + seconds(2) + 0.001)

    def test_replies_and_deadline_together(self, federation) -> None:
        with federation(Diary()).dispatch(tasks_for(range(5)), Until(replies=1, seconds=60)) as exchange:
            assert [outcome.task.client for outcome in exchange] == [1]

    def test_the_clock_moves_with_each_reply(self, federation) -> None:
        deployed = federation(Diary())
        with deployed.dispatch(tasks_for(range(5))) as exchange:
            moments = [(deployed.clock.now, outcome.task.client) for outcome in exchange]
        assert moments == [(pytest.approx(100 + seconds(k)), k) for k in ARRIVALS]

    def test_a_reply_says_what_it_cost(self, federation) -> None:
        with federation(Diary()).dispatch(tasks_for([4])) as exchange:
            (reply,) = exchange
        assert isinstance(reply, Reply)
        assert reply.cost.training_seconds == pytest.approx(seconds(4))
        assert reply.cost.joules == pytest.approx(0.7 * seconds(4))

    def test_tasks_may_be_added_while_the_exchange_is_open(self, federation) -> None:
        seen = []
        with federation(Diary()).dispatch(tasks_for([0, 1])) as exchange:
            for outcome in exchange:
                seen.append(outcome.task.client)
                if outcome.task.client == 1:
                    exchange.send(tasks_for([3]))
        assert seen == [1, 3, 0]

    def test_closing_cancels_the_rest(self, federation) -> None:
        site = Diary()
        with federation(site).dispatch(tasks_for([0, 1])) as exchange:
            next(iter(exchange))
            exchange.close()
            assert list(exchange) == []

    def test_a_client_whose_task_is_cancelled_can_be_given_another(self, federation) -> None:
        """Client 0, the slowest, begins again when client 3 is done; its first task has no outcome."""
        deployed = federation(Diary())
        again = tasks_for([0], version=7)
        with deployed.dispatch(tasks_for([0, 1, 3])) as exchange:
            arrivals = iter(exchange)
            assert [next(arrivals).task.client, next(arrivals).task.client] == [1, 3]
            exchange.cancel({0})
            exchange.send(again)
            assert [outcome.task for outcome in exchange] == again
        assert deployed.clock.now == pytest.approx(100 + seconds(3) + seconds(0))

    def test_tasks_of_one_kind_are_one_cohort_in_the_order_of_the_clients(self, federation) -> None:
        site = Diary()
        mixed = tasks_for([4, 2]) + tasks_for([3, 1], name="other") + tasks_for([0], version=7)
        with federation(site).dispatch(mixed) as exchange:
            assert len(list(exchange)) == 5
        assert sorted(site.cohorts) == [[0], [1, 3], [2, 4]]

    def test_ties_are_broken_by_the_order_of_sending(self, federation) -> None:
        alike = [Task(name="echo", client=k, round=1, version=0) for k in (3, 0, 2)]
        with federation(Diary()).dispatch(alike) as exchange:
            assert [outcome.task.client for outcome in exchange] == [3, 0, 2]

    def test_a_failure_is_an_outcome_like_any_other(self, federation) -> None:
        with federation(Diary()).dispatch(tasks_for([0, 1], name="fail")) as exchange:
            kinds = {outcome.task.client: type(outcome) for outcome in exchange}
        assert kinds == {0: Reply, 1: Failure}

    def test_an_unknown_task_names_the_site_and_what_it_can_do(self, federation) -> None:
        with (
            federation(Diary()).dispatch(tasks_for([0], name="fly")) as exchange,
            pytest.raises(SiteError, match=r"failed \(fly\): there is no handler .*: echo, other, fail"),
        ):
            list(exchange)

    def test_nothing_to_do_is_no_error(self, federation) -> None:
        with federation(Diary()).dispatch([]) as exchange:
            assert list(exchange) == []


def test_filters_wrap_handlers_the_first_outermost() -> None:
    order: list[str] = []

    def named(name: str):
        def layer(tasks, site, call_next):
            order.append(f"{name} in")
            outcomes = call_next(tasks, site)
            order.append(f"{name} out")
            return outcomes

        return layer

    with in_process(Diary(), [named("clip"), named("noise")]).dispatch(tasks_for([0])) as exchange:
        list(exchange)
    assert order == ["clip in", "noise in", "noise out", "clip out"]
