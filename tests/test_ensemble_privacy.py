"""One privacy book a client: the paper's four cases (section 3.2), against dp-accounting itself."""

from typing import Any

import dp_accounting
import numpy as np
import pytest

import winnow
from winnow.core import Population, RoundFinished
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Algorithm
from winnow.learn.local_optimiser import Sgd
from winnow.learn.selection import UniformSelector
from winnow.privacy.dp.central import CentralDp
from winnow.privacy.dp.client_book import BookPage, ClientBook
from winnow.privacy.dp.poisson_sampling import PoissonSampling

DELTA = 1e-5
NOBODY = np.zeros(0, np.int64)


def composed(*parts: tuple[float, int, float]) -> float:
    """dp-accounting's own composition of (noise, times, sampling probability)."""
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    for noise, times, probability in parts:
        event = dp_accounting.GaussianDpEvent(noise)
        if probability < 1:
            event = dp_accounting.PoissonSampledDpEvent(probability, event)
        accountant.compose(event, times)
    return float(accountant.get_epsilon(DELTA))


def sampled(noise: float, fraction: float) -> Algorithm:
    return Algorithm(
        select=PoissonSampling(fraction=fraction),
        local=Sgd(),
        aggregate=PartialAggregation(),
        collect=CentralDp(noise_multiplier=noise, delta=DELTA),
    )


def opened(book: ClientBook, whole: Algorithm, members: list[int], rounds: int) -> BookPage:
    """A page on which all members took part in so many rounds."""
    page = book.page(whole, (), np.array(members))(Population(sizes=np.ones(len(members), np.int64)))
    assert isinstance(page, BookPage)
    for _ in range(rounds):
        page.record_round(np.arange(len(members)))
    return page


def book() -> ClientBook:
    return ClientBook(np.ones(20, np.int64), selection_is_public=False)


def test_leaves_on_different_clients_cost_what_the_worst_of_them_does() -> None:
    mine = book()
    opened(mine, sampled(1.0, 0.2), [0, 1, 2, 3, 4], 30)
    opened(mine, sampled(0.8, 0.4), [5, 6, 7, 8, 9], 20)
    wanted = max(composed((1.0, 30, 0.2)), composed((0.8, 20, 0.4)))
    assert mine.spent()["epsilon"] == pytest.approx(wanted, abs=1e-6)


def test_an_over_arch_by_the_same_users_adds_to_their_leaf() -> None:
    mine = book()
    opened(mine, sampled(1.0, 0.2), [0, 1, 2, 3, 4], 30)
    opened(mine, sampled(1.5, 0.2), [5, 6, 7, 8, 9], 30)
    opened(mine, sampled(1.2, 0.5), list(range(10)), 10)
    both = composed((1.0, 30, 0.2), (1.2, 10, 0.5))
    assert mine.spent()["epsilon"] == pytest.approx(both, abs=1e-6)
    assert both < composed((1.0, 30, 0.2)) + composed((1.2, 10, 0.5)), "tighter than the sum"


def test_an_over_arch_by_other_users_costs_the_larger_of_both() -> None:
    mine = book()
    opened(mine, sampled(1.0, 0.2), [0, 1, 2, 3, 4], 30)
    opened(mine, sampled(0.7, 0.5), [10, 11, 12, 13], 10)
    wanted = max(composed((1.0, 30, 0.2)), composed((0.7, 10, 0.5)))
    assert mine.spent()["epsilon"] == pytest.approx(wanted, abs=1e-6)


def test_an_over_arch_on_opt_in_samples_costs_the_leaves_alone() -> None:
    mine = book()
    opened(mine, sampled(1.0, 0.2), [0, 1, 2, 3, 4], 30)
    still = mine.still_page()(Population(sizes=np.ones(1, np.int64)))
    assert still is not None
    assert still.spent()["epsilon"] == pytest.approx(composed((1.0, 30, 0.2)), abs=1e-6)
    assert still.exhausted_reason() is None


def test_without_sampling_only_rounds_in_which_a_client_took_part_count() -> None:
    whole = Algorithm(
        select=UniformSelector(fraction=0.5),
        local=Sgd(),
        aggregate=PartialAggregation(),
        collect=CentralDp(noise_multiplier=2.0, delta=DELTA),
    )
    mine = book()
    leaf, over = opened(mine, whole, [0, 1, 2, 3], 0), opened(mine, whole, list(range(8)), 0)
    for clients in ([0, 1], [0, 2], [0, 1]):
        leaf.record_round(np.array(clients))
    for clients in ([1, 5], [1, 5]):
        over.record_round(np.array(clients))
    times = 4  # client 1: twice in its leaf, twice in the over-arch; client 0 three times, client 5 twice
    assert mine.spent()["epsilon"] == pytest.approx(
        dp_accounting.get_epsilon_gaussian(2.0 / np.sqrt(times), DELTA), abs=1e-6
    )


def test_a_budget_ends_a_page_for_what_its_clients_spent_elsewhere() -> None:
    whole = Algorithm(
        select=PoissonSampling(fraction=0.5),
        local=Sgd(),
        aggregate=PartialAggregation(),
        collect=CentralDp(noise_multiplier=1.0, delta=DELTA, epsilon=composed((1.0, 12, 0.5)) + 0.01),
    )
    mine = book()
    opened(mine, whole, [0, 1, 2], 10)
    over = opened(mine, whole, [0, 1, 2, 3, 4], 2)
    reason = over.exhausted_reason()
    assert reason is not None
    assert "does not last" in reason
    apart = opened(mine, whole, [10, 11], 2)
    assert apart.exhausted_reason() is None, "others have spent nothing yet"


@pytest.mark.parametrize(
    ("combine", "stages"),
    [
        ("mean", [(1.0, 3)]),
        ({"name": "over-arch", "rounds": 2, "opt_in": 0.3}, [(1.0, 3)]),
        ({"name": "over-arch", "at": "clients", "rounds": 2}, [(1.0, 3), (1.0, 2)]),
        ({"name": "over-arch", "at": "clients", "rounds": 2, "users": "others"}, [(1.0, 3)]),
    ],
    ids=["mean", "opt-in", "same users", "other users"],
)
def test_a_run_tells_the_worst_client(combine: Any, stages: list[tuple[float, int]]) -> None:
    result = winnow.run(
        {
            "algorithm": "fedavg",
            "rounds": 3,
            "select": {"name": "poisson", "fraction": 0.5},
            "collect": {"name": "central-dp", "noise_multiplier": 1.0, "delta": DELTA},
            "local": {"name": "sgd", "learning_rate": 0.1},
            "aggregate": {"name": "partial"},
            "data": {"name": "digits", "clients": 20},
            "model": {"name": "linear"},
            "ensemble": {"clusters": {"name": "random", "count": 2}, "combine": combine},
        }
    )
    last = [event for event in result.view.events() if isinstance(event, RoundFinished)][-1]
    wanted = composed(*((noise, times, 0.5) for noise, times in stages))
    assert last.metrics["privacy"]["epsilon"] == pytest.approx(wanted, abs=1e-6)
