"""The tables that the terminal and the report share."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from winnow.core import Cost
from winnow.report import (
    MeanAndSd,
    comparison_cells,
    comparison_table,
    cost_cells,
    difference_cells,
    paired_differences,
    participation_table,
)
from winnow.report.number_format import mean_sd_text, number_text
from winnow.report.paired_differences import MeanAndError
from winnow.report.plot_data import ParticipationCounts
from winnow.runs import MetricReading, Summary


def summary(best: float, *, rounds_to_target: int | None = None, cost: Cost | None = None) -> Summary:
    reached = rounds_to_target is not None
    return Summary(
        metric="accuracy", target=0.8, rounds=100, best=MetricReading(value=best, round=90),
        last=MetricReading(value=best - 0.1, round=100), test_best=None, test_last=None,
        rounds_to_target=rounds_to_target,
        seconds_to_target=rounds_to_target * 30.0 if reached else None,
        wh_to_target=rounds_to_target * 0.05 if reached else None,
        seconds=3000.0, wh=5.0, cost=cost or Cost(), rejected=0,
    )  # fmt: skip


def test_a_comparison_by_hand() -> None:
    rows = comparison_table(
        [
            ("fedprof", summary(0.84, rounds_to_target=18)),
            ("fedavg-rp", summary(0.82)),
            ("fedprof", summary(0.83, rounds_to_target=20)),
            ("fedprof", summary(0.79)),
        ]
    )
    fedprof, fedavg = rows
    assert (fedprof.algorithm, fedprof.runs, fedprof.reached) == ("fedprof", 3, 2)
    assert fedprof.best == MeanAndSd(mean=pytest.approx(0.82), sd=pytest.approx(0.0264575), count=3)
    assert fedprof.rounds_to_target == MeanAndSd(mean=19, sd=pytest.approx(2**0.5), count=2)
    assert fedprof.seconds_to_target == MeanAndSd(mean=570, sd=pytest.approx(30 * 2**0.5), count=2)
    assert fedprof.cells() == (
        "fedprof", "0.8200 ± 0.0265", "–", "2 of 3", "19.0 ± 1.4", "–", "9.50 ± 0.71", "0.950 ± 0.071",
    )  # fmt: skip
    assert fedavg.cells() == ("fedavg-rp", "0.8200", "–", "0 of 1", "–", "–", "–", "–")
    header, lines = comparison_cells(rows, "accuracy", 0.8)
    assert len(header) == len(fedprof.cells())
    assert lines == [fedprof.cells(), fedavg.cells()]


def test_differences_are_paired_by_seed() -> None:
    """Seeds 0 to 2 have differences −1, −3 and −2 of a hundredth: −0.02 on average, 0.01/√3 of standard error. Seed 3
    was run by one algorithm only, and the runs of seed 2 reached no target.
    """
    ours = {0: summary(0.84, rounds_to_target=10), 1: summary(0.90, rounds_to_target=12), 2: summary(0.70)}
    theirs = {
        0: summary(0.83, rounds_to_target=14),
        1: summary(0.87, rounds_to_target=20),
        2: summary(0.68),
        3: summary(1),
    }
    runs = [("fedprof", seed, each) for seed, each in ours.items()] + [
        ("afl", seed, each) for seed, each in theirs.items()
    ]
    [difference] = paired_differences([*runs, ("lonely", 9, summary(0.5))])
    assert (difference.algorithm, difference.compared_with, difference.pairs) == ("afl", "fedprof", 3)
    assert difference.best == MeanAndError(mean=pytest.approx(-0.02), error=pytest.approx(0.01 / 3**0.5), pairs=3)
    assert difference.rounds_to_target == MeanAndError(mean=6, error=pytest.approx(2), pairs=2)
    assert (difference.test_best, difference.rounds_to_sustained_target) == (None, None)
    header, [line] = difference_cells([difference], "accuracy", 0.8)
    assert header[:3] == ("Minus fedprof", "Seeds", "Best accuracy")
    assert line == ("afl", "3", "−0.0200 ± 0.0058", "–", "+6.0 ± 2.0", "–")
    assert len(difference_cells([difference], "accuracy", None)[1][0]) == 4
    assert paired_differences([("fedprof", 0, summary(1)), ("afl", 1, summary(1))]) == []


def test_the_standard_error_of_paired_differences_is_scipys() -> None:
    own, other = np.random.default_rng(0).normal(size=(2, 7))
    made = MeanAndError.of(zip(own, other, strict=True))
    assert made is not None
    assert made.mean == pytest.approx((own - other).mean())
    assert made.error == pytest.approx(stats.sem(own - other))
    assert made.mean / made.error == pytest.approx(stats.ttest_rel(own, other).statistic)


def test_a_comparison_without_a_target_or_devices_has_no_columns_for_them() -> None:
    aimless = [replace(summary(best), target=None) for best in (0.7, 0.8)]
    header, lines = comparison_cells(comparison_table(("fedprof", each) for each in aimless), "accuracy", None)
    assert header == ("Algorithm", "Best accuracy", "Test accuracy")
    assert lines == [("fedprof", "0.7500 ± 0.0707", "–")]
    hospitals = comparison_table([("fedprof", summary(0.84, rounds_to_target=18).without_devices())])
    header, lines = comparison_cells(hospitals, "accuracy", 0.8)
    assert header == (
        "Algorithm", "Best accuracy", "Test accuracy", "Reached 0.8", "Rounds to target", "Sustained rounds",
    )  # fmt: skip
    assert lines == [("fedprof", "0.8400", "–", "1 of 1", "18", "–")]


def test_a_comparison_of_devices_whose_energy_nobody_counts_has_no_column_for_it() -> None:
    timed = [replace(summary(0.8, rounds_to_target=5), wh=0.0, wh_to_target=0.0), replace(summary(0.7), wh=0.0)]
    rows = comparison_table(("fedrep", each) for each in timed)
    header, lines = comparison_cells(rows, "accuracy", 0.8)
    assert not any("Wh" in title for title in header)
    assert [len(line) for line in lines] == [len(header)]
    assert rows[0].wh_to_target is None


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_a_spread_is_numpys(values: list[float]) -> None:
    spread = MeanAndSd.of(values)
    assert spread is not None
    assert spread.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert spread.sd == pytest.approx(np.std(values, ddof=1), abs=1e-6)


def test_costs_add_up_and_are_averaged_over_runs() -> None:
    first = Cost(transfer_seconds=100, training_seconds=50, transfer_joules=300, training_joules=100)
    second = Cost(transfer_seconds=300, training_seconds=150, transfer_joules=900, training_joules=300)
    header, rows = cost_cells([summary(0.8, cost=first), summary(0.8, cost=second)])
    assert rows == [
        ("transfer", "200", "2", "600", "6", "0.167", "75.0%"),
        ("training", "100", "1", "200", "2", "0.0556", "25.0%"),
        ("profiling", "0", "0", "0", "0", "0", "0.0%"),
        ("total", "300", "3", "800", "8", "0.222", "100.0%"),
    ]
    assert len(header) == len(rows[0])


def test_costs_of_a_fleet_without_energy_are_times() -> None:
    header, rows = cost_cells([summary(0.8, cost=Cost(training_seconds=50))])
    assert header == ("Spent on", "Device seconds", "Device seconds per round")
    assert rows[-1] == ("total", "50", "0.500")


def test_participation_is_relative_to_clean_clients() -> None:
    run = ParticipationCounts(
        labels=("clean", "noise", "unused"), of_client=np.array([0, 1, 0, 1]), selections=np.array([10, 3, 30, 5])
    )
    assert participation_table([run, run]) == [
        ("clean", "2", "40", "20", "100.0%"),
        ("noise", "2", "8", "4", "20.0%"),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (float("nan"), "–"), (0.0, "0"), (12345.6, "12,346"), (0.001234, "0.00123"), (19.96, "20.0")],
)
def test_numbers_as_people_read_them(value: float | None, text: str) -> None:
    assert number_text(value) == text


def test_a_spread_as_people_read_it() -> None:
    assert mean_sd_text(None) == "–"
    assert mean_sd_text(MeanAndSd(mean=28.0, sd=None, count=1)) == "28"
    assert mean_sd_text(MeanAndSd(mean=0.83812, sd=0.00249, count=5), decimals=4) == "0.8381 ± 0.0025"
