"""What a user sees of a job's log."""

from dataclasses import replace

import numpy as np

from winnow.core import AnyEvent, Cost, Rejected, RoundFinished, Stopped
from winnow.deploy.client.job_progress import LogFormatter
from winnow.deploy.wire.messages import EVENT_KIND, LogLine
from winnow.runs.event_log import encode_event

FINISHED = RoundFinished(
    round=1, at=1.0, version=1, aggregated=np.array([0]), metrics={}, loss=0.1, joules=0.0, cost=Cost()
)


def formatted(*events: AnyEvent) -> list[str | None]:
    texts = [encode_event(event).decode() for event in events]
    return [
        *map(LogFormatter().format, [LogLine(number=0, at=0.0, source="s", kind=EVENT_KIND, text=t) for t in texts])
    ]


def test_a_round_is_one_line_with_the_privacy_spent_and_why_the_run_stopped() -> None:
    metrics = {"test": {"loss": 0.5}, "privacy": {"epsilon": 1.234}}
    finished = replace(FINISHED, round=2, aggregated=np.array([0, 3]), metrics=metrics)
    lines = formatted(finished, Stopped(round=2, at=1.0, reason="it is spent"))
    assert lines == ["round 2: loss 0.5000, ε 1.23, 2 clients aggregated", "stopped after round 2: it is spent"]


def test_rejected_replies_are_counted_and_their_reasons_not_repeated() -> None:
    rejected = [Rejected(round=1, at=1.0, client=client, reason="not a number") for client in (1, 2, 2)]
    lines = formatted(*rejected, FINISHED, replace(FINISHED, round=2))
    assert lines[:3] == [None] * 3
    assert lines[3:] == ["round 1: 1 client aggregated, 2 rejected or missing", "round 2: 1 client aggregated"]
