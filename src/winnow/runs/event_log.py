"""Events as lines of JSON and back. Numbers that JSON cannot hold (NaN, infinities) become null, and null is NaN."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from winnow.core import (
    Answered,
    AnyEvent,
    Assessed,
    Cost,
    Evaluated,
    PolicyApplied,
    Rejected,
    Released,
    RoundFinished,
    RunError,
    Scored,
    Selected,
    Stopped,
)

EVENTS: dict[str, type[AnyEvent]] = {
    event.kind: event
    for event in (
        *(Evaluated, Selected, Scored, Rejected, RoundFinished, Assessed, PolicyApplied, Stopped),
        *(Released, Answered),
    )
}


def encode_event(event: AnyEvent) -> bytes:
    """One line, its kind first. Scores keep six significant digits: a log is for reading, not for restoring."""
    record: dict[str, Any] = {"kind": event.kind}
    record |= {field.name: getattr(event, field.name) for field in fields(event)}
    if isinstance(event, RoundFinished):
        record["cost"] = event.cost.record()
    if isinstance(event, Scored | Assessed):
        record["scores"] = [float(f"{score:.6g}") for score in event.scores.tolist()]
    return msgspec.json.encode(record, enc_hook=json_default) + b"\n"


def decode_event(line: bytes) -> AnyEvent:
    if line.startswith(FINISHED_ROUND):
        with suppress(msgspec.ValidationError):
            return _decode_finished_round(line)
    record = msgspec.json.decode(line)
    event = EVENTS[record.pop("kind")]
    for name, value in record.items():
        if (revive := _REVIVE.get(name)) is not None:
            record[name] = revive(value)
    return event(**record)


_CostRecord = msgspec.defstruct(
    "_CostRecord", [(name, float, 0.0) for name in Cost._fields], forbid_unknown_fields=True
)


class _FinishedRoundRecord(msgspec.Struct, tag_field="kind", tag=RoundFinished.kind, forbid_unknown_fields=True):
    """Most lines of most logs, so they have a decoder of their own, twice as fast as the other. It takes only what is
    whole: a metric that is null is left to the other.
    """

    round: int
    at: float
    version: int
    metrics: dict[str, dict[str, float]]
    aggregated: list[int]
    loss: float
    joules: float
    cost: _CostRecord  # type: ignore[valid-type]


FINISHED_ROUND = b'{"kind":"round_finished"'
_finished_round_decoder = msgspec.json.Decoder(_FinishedRoundRecord)


def _decode_finished_round(line: bytes) -> RoundFinished:
    record = _finished_round_decoder.decode(line)
    return RoundFinished(
        round=record.round,
        at=record.at,
        version=record.version,
        metrics=record.metrics,
        aggregated=_integers(record.aggregated),
        loss=record.loss,
        joules=record.joules,
        cost=Cost(*msgspec.structs.astuple(record.cost)),
    )


def json_default(value: object) -> Any:
    """What JSON makes of NumPy's types and of mappings that are no dict."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _number(value: float | None) -> float:
    if type(value) is float:  # nearly all are
        return value
    if not isinstance(value, int | float | None):
        raise TypeError("not a number")
    return float("nan") if value is None else value


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value if type(value) is float else _number(value) for name, value in values.items()}


def _integer(value: int) -> int:
    if type(value) is not int:
        raise TypeError("not a whole number")
    return value


def _text(value: str) -> str:
    return _texts([value])[0]


def _texts(values: list[str]) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError("not texts")
    return tuple(values)


def _integers(values: list[int]) -> Any:
    return np.array(values, np.int64)


_REVIVE: dict[str, Callable[[Any], Any]] = {
    "action": _text,
    "aggregated": _integers,
    "at": _number,
    "cells": _integer,
    "client": _integer,
    "clients": _integers,
    "cost": lambda cost: Cost(**_numbers(cost)),
    "counts": _integers,
    "digest": _text,
    "epsilon": lambda epsilon: None if epsilon is None else _number(epsilon),
    "evidence": _texts,
    "file": _text,
    "hidden": _integer,
    "joules": _number,
    "loss": _number,
    "metrics": lambda metrics: {data: _numbers(values) for data, values in metrics.items()},
    "reason": _text,
    "step": _text,
    "scores": lambda scores: np.array(scores, np.float64),
    "verdicts": _texts,
}


class EventLog:
    """The events of a file, as often as wanted. A last line that is still being written is left for next time.

    The log of a finished run has at least the `rounds` of its result, or something has been taken from it.
    """

    def __init__(self, path: Path, rounds: int = 0) -> None:
        self._path, self._rounds = path, rounds

    def __iter__(self) -> Iterator[AnyEvent]:
        finished = 0
        for event in self._written():
            finished += isinstance(event, RoundFinished)
            yield event
        if finished < self._rounds:
            raise RunError(
                f"{self._path} holds {finished} of the run's {self._rounds} rounds; the log is damaged, repeat the run"
            )

    def _written(self) -> Iterator[AnyEvent]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield decode_event(line)
                except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError, OverflowError):
                    raise RunError(f"{self._path}, line {number}: not an event; the file is damaged") from None
