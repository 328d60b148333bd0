"""What a user sees while a run goes on."""

from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from winnow.core import Assessed, Cost, RoundFinished, Selected
from winnow.progress import live_display as module
from winnow.progress.live_display import Progress, ProgressHeader, ProgressState, format_duration
from winnow.runs import PrivacyBudget

HEADLINE = ProgressHeader(title="demo", metric="accuracy", rounds=10)
JUDGE = SimpleNamespace(by="reference")
EXPERIMENT = SimpleNamespace(name="demo", algorithm="fedprof", seed=0, all_rounds=10, evaluation=JUDGE, model_dump=dict)
PREPARED = SimpleNamespace(plan=SimpleNamespace(metric="accuracy", lower_is_better=False, notice=""), clock="device")


def invited(number: int) -> Selected:
    return Selected(round=number, at=0.0, version=number - 1, clients=np.array([1, 4]), counts=np.array([1, 2]))


def finished(number: int, accuracy: float) -> RoundFinished:
    return RoundFinished(
        round=number,
        at=30.0 * number,
        version=number,
        metrics={"reference": {"accuracy": accuracy}},
        aggregated=np.array([1, 4]),
        loss=0.5,
        joules=1800.0,
        cost=Cost(),
    )


@pytest.fixture
def clock(monkeypatch):
    hands = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: hands.now)
    return hands


def test_an_epsilon_is_told_with_its_delta_and_budget():
    privacy_budgets = {"epsilon": PrivacyBudget(delta=0.001, budget=8.0), "record_epsilon": PrivacyBudget(delta=1e-5)}
    course = ProgressState(ProgressHeader(title="demo", metric="accuracy", rounds=10, privacy_budgets=privacy_budgets))
    spent = {"epsilon": 4.849, "record_epsilon": 2.0, "local_epsilon": 1.0}
    course.follow(replace(finished(1, 0.7), metrics={"privacy": spent}))
    assert "ε 4.85 of 8, at δ = 0.001 · record ε 2, at δ = 1e-05 · local ε 1" in course.figures()


def test_the_lowest_is_best_where_lower_is_better():
    course = ProgressState(ProgressHeader(title="demo", metric="accuracy", rounds=10, lower_is_better=True))
    for event in (finished(1, 0.7), finished(2, 0.6), finished(3, float("nan")), finished(4, 0.9)):
        course.follow(event)
    assert course.best == 0.6


def test_the_figures_follow_the_events():
    course = ProgressState(HEADLINE)
    assert course.figures() == "preparing"
    for event in (invited(1), finished(1, 0.7), invited(2), finished(2, 0.6), finished(3, float("nan"))):
        course.follow(event)
    assert course.figures() == "accuracy nan · best 0.7000 · device 90 s · 1.5 Wh · 3 selected"


def test_time_left_counts_only_rounds_made_since_the_start(clock):
    course = ProgressState(HEADLINE)
    for number in range(1, 5):
        course.follow(finished(number, 0.5))
    course.start()
    assert course.seconds_left is None
    clock.now += 8.0
    course.follow(finished(5, 0.5))
    course.follow(finished(6, 0.5))
    assert course.seconds_left == pytest.approx(8.0 / 2 * 4)


def show(console: Console | None, clock, rounds: int, seconds: float) -> None:
    with Progress(EXPERIMENT, console) as progress:
        progress.on_start(PREPARED)
        for number in range(1, rounds + 1):
            clock.now += seconds
            progress.on_event(finished(number, 0.5))


def test_a_pipe_gets_a_line_now_and_then(clock):
    text = StringIO()
    show(Console(file=text, width=80), clock, rounds=10, seconds=2.0)
    lines = text.getvalue().splitlines()
    assert [line.split(" · acc")[0] for line in lines] == [
        f"demo · fedprof · seed 0: round {number}/10 · {left} left"
        for number, left in ((3, "14 s"), (6, "8 s"), (9, "2 s"))
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_gets_whole_lines(clock, width):
    text = StringIO()
    show(Console(file=text, force_terminal=True, width=width, no_color=True), clock, rounds=4, seconds=2.0)
    assert "round 4/10" in text.getvalue()
    assert "12 s left" in text.getvalue()
    assert "0 selected" in text.getvalue()


def test_quiet_is_quiet(capsys, clock):
    show(None, clock, rounds=3, seconds=60.0)
    assert capsys.readouterr() == ("", "")


def test_durations_are_short():
    assert [format_duration(seconds) for seconds in (4.4, 119.0, 300.0, 9000.0)] == [
        "4.4 s",
        "119 s",
        "5.0 min",
        "2.5 h",
    ]


def test_clients_that_look_bad_are_counted_by_their_last_assessment():
    course = ProgressState(HEADLINE)
    course.follow(finished(1, 0.7))
    for verdicts in (("suspect", "suspect", "fine"), ("harmful", "fine", "fine")):
        course.follow(
            Assessed(
                round=1,
                at=0.0,
                version=1,
                clients=np.arange(3),
                scores=np.ones(3),
                verdicts=verdicts,
                evidence=("", "", ""),
            )
        )
    assert " · best 0.7000 · 1 of 3 clients looks bad · " in course.figures()
