"""Summaries against numbers worked out by hand, and against a plain second reading of the same events."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from winnow.core import AnyEvent, Cost, Evaluated, Rejected, RoundFinished, Selected
from winnow.report.tables import traffic
from winnow.runs import MetricReading, RunLabel, points, read_privacy_budgets, result_record, summarise
from winnow.runs.event_log import decode_event, encode_event
from winnow.runs.summary import abandoned_text


def finished(number: int, reference: float, test: float | None = None, joules: float = 3600.0) -> RoundFinished:
    metrics = {"reference": {"accuracy": reference}} | ({} if test is None else {"test": {"accuracy": test}})
    cost = Cost(transfer_joules=joules, transfer_seconds=4.0, training_seconds=1.0)
    return RoundFinished(
        round=number, at=30.0 * number, version=number, metrics=metrics, aggregated=np.array([0]), loss=0.1,
        joules=joules, cost=cost,
    )  # fmt: skip


RUN: list[AnyEvent] = [
    Evaluated(round=0, at=0.0, version=0, metrics={"reference": {"accuracy": 0.1}, "test": {"accuracy": 0.12}}),
    finished(1, 0.5, 0.45),
    Rejected(round=2, at=55.0, client=3, reason="not finite"),
    finished(2, 0.8, 0.70),
    finished(3, 0.9, 0.77),
    finished(4, 0.9, 0.99),
    finished(5, 0.6, 0.55),
]


def test_a_run_by_hand() -> None:
    summary = summarise(RUN, metric="accuracy", target=0.8)
    assert summary.rounds == 5
    assert summary.best == MetricReading(value=0.9, round=3), "the first of equals"
    assert summary.last == MetricReading(value=0.6, round=5)
    assert summary.test_best == MetricReading(value=0.77, round=3), "the test set does not choose the model"
    assert summary.test_last == MetricReading(value=0.55, round=5)
    assert (summary.rounds_to_target, summary.seconds_to_target, summary.wh_to_target) == (2, 60.0, 2.0)
    assert (summary.seconds, summary.wh, summary.rejected) == (150.0, 5.0, 1)
    assert summary.cost == Cost(transfer_joules=18_000.0, transfer_seconds=20.0, training_seconds=5.0)


@pytest.mark.parametrize("lower", [False, True])
def test_a_target_is_sustained_where_the_next_five_rounds_reach_it_on_average(lower: bool) -> None:
    """0.8 is first reached in round 2, whose successors have a mean of 0.77; those of round 4 have exactly 0.8."""
    accuracies = [0.5, 0.81, 0.7, 0.82, 0.75, 0.8, 0.78, 0.85, 0.82, 0.9]
    sign = -1 if lower else 1
    log = [finished(number, sign * value) for number, value in enumerate(accuracies, start=1)]
    summary = summarise(log, metric="accuracy", target=sign * 0.8, lower_is_better=lower)
    assert (summary.rounds_to_target, summary.rounds_to_sustained_target) == (2, 4)
    for shorter in (log[:8], log[:3]):
        early = summarise(shorter, metric="accuracy", target=sign * 0.8, lower_is_better=lower)
        assert (early.rounds_to_target, early.rounds_to_sustained_target) == (2, None), "nobody knows yet"


@pytest.mark.parametrize("target", [None, 0.95])
def test_a_target_that_is_not_reached(target: float | None) -> None:
    summary = summarise(RUN, metric="accuracy", target=target)
    assert (summary.rounds_to_target, summary.seconds_to_target, summary.wh_to_target) == (None, None, None)


def test_nothing_to_summarise() -> None:
    summary = summarise([], metric="accuracy", target=0.5)
    assert (summary.rounds, summary.best, summary.last, summary.seconds, summary.wh) == (0, None, None, 0.0, 0.0)


def test_a_metric_that_is_not_a_number_never_wins() -> None:
    summary = summarise(
        [finished(1, float("nan")), finished(2, 0.3), finished(3, float("nan"))], metric="accuracy", target=0.2
    )
    assert summary.best == summary.last == MetricReading(value=0.3, round=2)
    assert summary.rounds_to_target == 2


@given(
    scores=st.lists(st.floats(0, 1), min_size=1, max_size=30),
    joules=st.lists(st.floats(0, 1e4), min_size=30, max_size=30),
    target=st.floats(0, 1),
)
def test_against_numpy(scores: list[float], joules: list[float], target: float) -> None:
    events = [finished(number, score, joules=joules[number - 1]) for number, score in enumerate(scores, start=1)]
    summary = summarise(events, metric="accuracy", target=target)
    values = np.array(scores)
    assert summary.best == MetricReading(value=values.max(), round=int(values.argmax()) + 1)
    reached = np.flatnonzero(values >= target)
    if len(reached):
        assert summary.rounds_to_target == reached[0] + 1
        assert summary.wh_to_target == pytest.approx(sum(joules[: reached[0] + 1]) / 3600)
    else:
        assert summary.rounds_to_target is None


def test_points_count_from_the_beginning() -> None:
    assert [(point.round, point.seconds, point.joules) for point in points(RUN)] == [
        (number, 30.0 * number, 3600.0 * number) for number in range(6)
    ]


def test_the_record_of_a_result() -> None:
    label = RunLabel(name="toy", algorithm="fedprof", seed=3, metric="accuracy", target=0.95)
    record = result_record(
        summarise(RUN, metric="accuracy", target=0.95), label, parameters=10, message_bytes=40, wall_seconds=1.0
    )
    assert list(record) == [
        "schema", "name", "algorithm", "seed", "metric", "lower_is_better", "evaluated_by", "target", "rounds", "best",
        "last", "test", "best_metrics", "rounds_to_target", "rounds_to_sustained_target", "seconds_to_target",
        "wh_to_target", "seconds", "wh",
        "selections", "cost", "rejected", "stopped", "abandoned", "privacy", "privacy_budgets", "parameters", "private",
        "message_bytes", "winnow", "wall_seconds",
    ]  # fmt: skip
    assert record["best"] == {"value": 0.9, "round": 3}
    assert record["test"] == {"best": {"value": 0.77, "round": 3}, "last": {"value": 0.55, "round": 5}}
    assert record["wh_to_target"] is None
    assert record["cost"]["transfer_joules"] == 18_000.0
    assert "sent_bytes" not in record["cost"], "nobody counted them"


def test_bytes_are_counted_over_rounds() -> None:
    moved = [replace(event, cost=Cost(sent_bytes=2_000, received_bytes=500)) for event in (finished(1, 0.1),) * 3]
    asked = [Selected(round=1, at=0.0, version=0, clients=np.array([0, 4]), counts=np.array([1, 3])) for _ in range(3)]
    summary = summarise([*asked, *moved], metric="accuracy", target=None)
    assert (summary.cost.sent_bytes, summary.cost.received_bytes, summary.selections) == (6_000, 1_500, 6)
    assert [point.sent_bytes for point in points(moved)] == [2_000, 4_000, 6_000]
    assert traffic([summary]) == {
        "sent": "1.00 kB per client and round, 6.00 kB in total",
        "received": "250 B per client and round, 1.50 kB in total",
    }
    assert traffic([summarise(RUN, metric="accuracy", target=None)]) == {}


def test_events_of_earlier_versions_have_no_bytes() -> None:
    line = encode_event(finished(1, 0.5))
    assert b"bytes" not in line
    assert decode_event(line).cost == finished(1, 0.5).cost
    counted = replace(finished(1, 0.5), cost=Cost(sent_bytes=7.0))
    assert decode_event(encode_event(counted)).cost.sent_bytes == 7.0


@pytest.mark.parametrize("unknown", ["loss", "joules", "metric", "nothing"])
def test_a_round_is_read_back_with_what_json_cannot_hold(unknown: str) -> None:
    event = finished(1, 0.5, 0.25)
    event = replace(event, metrics={"test": {"auc": float("nan")}}) if unknown == "metric" else event
    event = replace(event, **{unknown: float("nan")}) if unknown in ("loss", "joules") else event
    read = decode_event(encode_event(event))
    for name in ("round", "at", "version", "loss", "joules", "cost"):
        np.testing.assert_equal(getattr(read, name), getattr(event, name))
    np.testing.assert_equal(dict(read.metrics), dict(event.metrics))
    assert read.aggregated.dtype == np.int64
    assert read.aggregated.tolist() == [0]


@pytest.mark.parametrize("change", ['"extra":1,"loss"', '"los"', '"loss":"x","was"'])
def test_a_round_with_other_fields_is_no_event(change: str) -> None:
    line = encode_event(finished(1, 0.5)).replace(b'"loss"', change.encode())
    with pytest.raises((TypeError, ValueError)):
        decode_event(line)


def test_points_that_were_made_already_change_nothing() -> None:
    told = summarise(RUN, metric="accuracy", target=0.8, course=tuple(points(RUN)))
    assert told == summarise(iter(RUN), metric="accuracy", target=0.8)


def test_rounds_that_came_to_nothing() -> None:
    """Folding nobody counts if somebody was refused: nobody need be invited in a round."""
    nobody = np.array([], np.int64)

    def refused(number: int, reason: str) -> Rejected:
        return Rejected(round=number, at=0.0, client=1, reason=reason)

    events = [
        refused(1, "one late"), finished(1, 0.1),
        replace(finished(2, 0.1), aggregated=nobody),
        *(refused(3, "the round was abandoned: too heavy") for _ in range(3)), refused(3, "too few"),
        replace(finished(3, 0.1), aggregated=nobody),
        refused(4, "too few"), replace(finished(4, 0.1), aggregated=nobody),
    ]  # fmt: skip
    summary = summarise(events, metric="accuracy", target=None)
    assert summary.abandoned is not None
    assert (summary.abandoned.rounds, summary.abandoned.reasons) == (2, {"too heavy": 1, "too few": 1})
    assert abandoned_text(summary) == "2 of 4 rounds were abandoned: 1× too heavy; 1× too few"
    once = summarise([*events[-2:]], metric="accuracy", target=None)
    assert abandoned_text(once) == "1 of 4 rounds was abandoned: too few"
    assert abandoned_text(summarise(RUN, metric="accuracy", target=None)) == ""


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"collect": {"name": "central-dp", "delta": 1e-3, "epsilon": 8.0}}, {"epsilon": (1e-3, 8.0)}),
        (
            {"collect": {"name": "secure", "encoding": {"name": "discrete-gaussian", "delta": 1e-4}}},
            {"epsilon": (1e-4, None)},
        ),
        ({"filters": [{"name": "clip"}, {"name": "local-dp", "delta": 0.1}]}, {"local_epsilon": (0.1, None)}),
        ({"client": {"name": "dp-sgd", "delta": 0.2, "epsilon": 1.0}}, {"record_epsilon": (0.2, 1.0)}),
        ({"client": {"name": "hf-maml", "delta": 0.2}}, {}),
        (
            {"select": {"name": "fedprof", "profile_comparison": {"name": "noisy", "delta": 0.3}}},
            {"profile_epsilon": (0.3, None)},
        ),
        ({"select": {"profile_comparison": "plain"}}, {}),
        ({}, {}),
    ],
)
def test_what_settings_promise(config: dict[str, Any], found: dict[str, tuple[float, float | None]]) -> None:
    assert {name: (each.delta, each.budget) for name, each in read_privacy_budgets(config).items()} == found
