"""Attacks on client quality: by clients that lie or stay silent, and by those that hold the reference set."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replace_struct

from test_client_quality import ALARMS, SPOILED, events, run
from winnow.core import Assessed, Outcome, Payload, PolicyApplied, Rejected, Reply
from winnow.learn.client_quality.reference_source import SUMMARISE_REFERENCE, SUMMARY

Lie = Callable[[Payload], Payload]


def lie_with(made: Any, task: str, lie: Lie, liars: set[int], *, first_round: int = 1) -> None:
    """From a round on, these clients answer the task with a lie."""
    honest = made.simulation.handlers[task]

    def told(reply: Outcome) -> Outcome:
        if not isinstance(reply, Reply) or reply.task.client not in liars or reply.task.round < first_round:
            return reply
        return replace_struct(reply, payload=lie(reply.payload))

    made.simulation.handlers[task] = lambda tasks, site: [told(reply) for reply in honest(tasks, site)]


def nothing_of_any_class(payload: Payload) -> Payload:
    return {
        block: {name: np.zeros_like(array) for name, array in part.items()}
        for block, part in payload.items()
        if block != "rows"
    }


def only(block: str) -> Lie:
    return lambda payload: {block: payload[block]}


@pytest.mark.parametrize("lie", [nothing_of_any_class, only("outcomes"), only("columns")])
def test_whoever_is_excluded_is_not_readmitted_for_telling_less(lie: Lie) -> None:
    made = run("rounds=4", "quality.assessments=4", "quality.policy=exclude")
    lie_with(made, "assess", lie, SPOILED, first_round=2)
    with made:
        log = events(made)
    assert {event.client for event in log if isinstance(event, PolicyApplied) and event.action == "exclude"} == SPOILED
    assert not [event for event in log if isinstance(event, PolicyApplied) and event.action == "readmit"]
    last = [event for event in log if isinstance(event, Assessed)][-1]
    assert {k for k, verdict in enumerate(last.verdicts) if verdict in ALARMS} == SPOILED


def test_whoever_tells_nothing_is_not_called_fine() -> None:
    made = run("rounds=4", "quality.assessments=2", "select.fraction=1.0")
    lie_with(made, "assess", nothing_of_any_class, SPOILED)
    with made:
        last = events(made, Assessed)[-1]
    assert {last.verdicts[k] for k in SPOILED} <= {"cannot tell", *ALARMS}


def absurd(name: str, value: float) -> Lie:
    def lie(payload: Payload) -> Payload:
        part: dict[str, Any] = dict(payload[SUMMARY])
        part[name] = np.full_like(part[name], value)
        return {SUMMARY: part}

    return lie


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("columns.scale", 1e-300),
        ("columns.kurtosis", 1e300),
        ("representation.mean", 3e38),
        ("representation.fourth", 3e38),
        ("outcomes.by_class", 1e300),
        ("columns.blind", 1e300),
        ("columns.counts", 2**62),
    ],
)
def test_no_holder_of_the_reference_ends_the_run(name: str, value: float) -> None:
    made = run("reference_clients=[1, 2]", "rounds=1")
    lie_with(made, SUMMARISE_REFERENCE, absurd(name, value), {1})
    with made:
        log = events(made)
    (event,) = [event for event in log if isinstance(event, Assessed)]
    assert {event.verdicts[k] for k in SPOILED} <= set(ALARMS)
    assert [
        (event.client, "the reference summary has" in event.reason) for event in log if isinstance(event, Rejected)
    ] == [(1, True)]


def test_what_every_owner_may_read_leaves_out_rare_classes_of_the_reference() -> None:
    """The mean of one row is the row, and what is left of moments of all without those of the others is, too."""

    def summary(min_rows: int) -> Any:
        with run(f"quality.min_rows={min_rows}", "rounds=1") as made:
            assert made.training.assessor is not None
            return made.training.assessor.summary_for_owners(made.training.model)

    whole, *_ = summary(2)
    counts = whole.moments["columns"].counts
    least = int(np.sort(counts)[1])
    assert least > counts.min()
    told, *_ = summary(least)
    rare = counts < least
    assert told.rows == counts[~rare].sum()
    assert not told.moments["columns"].counts[rare].any()
    assert not told.moments["columns"].mean[rare].any()
    assert (told.moments["columns"].mean[~rare] == whole.moments["columns"].mean[~rare]).all()
    assert not (told.nulls["columns"].scale.variance == whole.nulls["columns"].scale.variance).any()
    assert summary(10_000) is None


def of_few_rows(part: str) -> Lie:
    """Chance is allowed for where rows are few: whoever claims one row of a class is allowed anything."""

    def lie(payload: Payload) -> Payload:
        counts = np.asarray(payload[part]["counts"])
        few = np.where(np.arange(len(counts)) == counts.argmax(), 1, 0)
        blocks = {block: {**arrays, "counts": few} for block, arrays in payload.items() if "counts" in arrays}
        return {**payload, **blocks}

    return lie


def test_counts_that_are_never_told_are_rejected() -> None:
    made = run("select.profile=by-class", "rounds=1", algorithm="fedprof")
    lie_with(made, "profile", of_few_rows("profile"), {2})
    lie_with(made, "assess", of_few_rows("columns"), {3})
    with made:
        rejected = {(event.client, event.reason) for event in events(made, Rejected)}
    assert rejected == {
        (2, "the profile by class counts classes of which too few samples are there to be told"),
        (3, "the evidence on representation counts classes of which too few samples are there to be told"),
    }
